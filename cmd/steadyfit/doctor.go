package main

import (
	"errors"

	"github.com/spf13/cobra"

	"steadyfit/internal/doctor"
	"steadyfit/internal/tfprocess"
	"steadyfit/option"
)

func newDoctor(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Examine the environment: TensorFlow, processor, memory, GPU libraries",
		Long: `Examine what steadyfit needs and what affects its speed and memory, and print a fix
for each problem. Exits with 3 if there is one.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := tfprocess.SetLogLevel(tfprocess.LogWarnings)
			if err != nil {
				return err
			}
			report := doctor.Examine(doctor.Options{TensorFlow: s.TensorFlow, NeedGPU: s.needGPU})
			for i := range report.Checks {
				report.Checks[i].Fix = option.Marked(report.Checks[i].Fix, flagName)
			}
			if s.json {
				err = printJSON(cmd.OutOrStdout(), report)
			} else {
				err = report.WriteText(cmd.OutOrStdout())
			}
			if err != nil {
				return err
			}
			switch worst := report.Worst(); {
			case worst == doctor.Problem:
				return &coded{exitEnvironment, errors.New("the environment has a problem; see above")}
			case worst == doctor.Warning && s.strict:
				return &coded{exitEnvironment, errors.New("there are warnings; see above")}
			}
			return nil
		},
	}
}
