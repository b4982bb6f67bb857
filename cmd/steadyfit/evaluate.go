package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

func newEvaluate(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "evaluate",
		Short: "Measure loss and metrics of a SavedModel on a dataset",
		Long: `Measure loss and metrics of a SavedModel on a dataset. If the dataset has a
training and a test part, evaluate uses the test part.`,
		Example: "  steadyfit evaluate --model out/digits --data builtin:digits",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			role := func(r savedmodels.Roles) string { return r.Evaluate }
			return s.infer(cmd, role, "evaluate with (evaluate or eval with a loss; --loss-output names a loss that has "+
				"another name)", func(opened *session.Session, ds *data.InMemory) error {
				metrics, err := fit.Evaluate(cmd.Context(), opened, ds, s.Loop.Batch)
				if err != nil {
					return err
				}
				if s.json {
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
				_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(strings.Join(line, "  ")))
				return err
			})
		},
	}
}
