package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"steadyfit/internal/doctor"
)

func newDoctor(g *global) *cobra.Command {
	var asJSON, strict, gpu bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at the environment: TensorFlow, processor, memory, GPU libraries",
		Long: `Look at what steadyfit needs and what decides its speed and memory, and say how to
mend what is wrong. Exits with 3 if something is.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			environ := os.Environ() // the user's, before anything is added to it
			err := g.quiet()
			if err != nil {
				return err
			}
			report := doctor.Examine(cmd.Context(), doctor.Options{TensorFlow: g.tensorflow, NeedGPU: gpu, Environ: environ})
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), report)
			} else {
				err = report.WriteText(cmd.OutOrStdout())
			}
			if err != nil {
				return err
			}
			switch worst := report.Worst(); {
			case worst == doctor.Problem:
				return &environmentError{errors.New("the environment has a problem; see above")}
			case worst == doctor.Warning && strict:
				return &environmentError{errors.New("there are warnings; see above")}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 3 for warnings, too")
	cmd.Flags().BoolVar(&gpu, "gpu", false, "a GPU is needed: what it lacks is a problem")
	return cmd
}
