package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

func newEvaluate(g *global) *cobra.Command {
	var (
		f      inference
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "evaluate",
		Short: "Measure loss and metrics of a SavedModel on a dataset",
		Long: `Measure loss and metrics of a SavedModel on a dataset; of a dataset with a
training and a test part, on the test part.`,
		Example: "  steadyfit evaluate --model out/digits --data builtin:digits",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			roles := func(r savedmodels.Roles) string { return r.Evaluate }
			return f.run(cmd, g, roles, "evaluate with (evaluate or eval that gives a loss; --loss-output names it if it is called otherwise)", func(s *session.Session, ds *data.InMemory) error {
				metrics, err := fit.Evaluate(cmd.Context(), s, ds, f.batch)
				if err != nil {
					return err
				}
				if asJSON {
					values := map[string]any{"samples": ds.Len()}
					for _, m := range metrics {
						values[m.Name] = m.Value
					}
					return printJSON(cmd.OutOrStdout(), values)
				}
				line := []string{fmt.Sprintf("%s: %d samples:", ds.Name(), ds.Len())}
				for _, m := range metrics {
					line = append(line, fmt.Sprintf("%s %.6f", m.Name, m.Value))
				}
				return printMetrics(cmd.OutOrStdout(), line)
			})
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}
