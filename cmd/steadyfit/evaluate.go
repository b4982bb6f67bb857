package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/fit"
)

func newEvaluate(g *global) *cobra.Command {
	var (
		model  modelFlags
		input  dataFlags
		batch  int
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
			if batch < 1 {
				return usagef("--batch %d: expected at least 1", batch)
			}
			if err := model.apply(); err != nil {
				return err
			}
			model.device.warn(cmd.ErrOrStderr())
			m, err := model.open()
			if err != nil {
				return err
			}
			if m.Roles.Evaluate == "" {
				return usagef("%s has no signature to evaluate with (evaluate or eval)", m.Dir)
			}
			if err := input.suit(m, m.Roles.Evaluate); err != nil {
				return err
			}
			ds, err := input.openTest(input.path)
			if err != nil {
				return err
			}
			defer input.close()
			if ds, err = input.scaled(ds); err != nil {
				return err
			}
			if err := check(ds, m, m.Roles.Evaluate, data.Pass{Batch: batch}); err != nil {
				return err
			}
			s, err := model.session(cmd, g, m)
			if err != nil {
				return err
			}
			defer s.Close()
			metrics, err := fit.Evaluate(cmd.Context(), s, ds, batch)
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
		},
	}
	model.register(cmd.Flags())
	input.register(cmd.Flags())
	cmd.Flags().IntVar(&batch, "batch", 32, "samples per step")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}
