package main

import (
	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/train"
)

func newInspect(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect DIR | --data FILE",
		Short: "Show what a SavedModel is and whether it can be trained, or a schema of a table",
		Long: `Show whether a SavedModel can be trained, its problems, what steadyfit uses each
signature for, and the signatures as saved_model_cli does. No part of the model is
run, and TensorFlow is not needed. DIR may be builtin:NAME.

With --data, print a schema that is inferred from a table, for --schema of fit.`,
		Example: "  steadyfit inspect builtin:digits\n  steadyfit inspect --data titanic.csv > schema.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if s.Data.Path != "" { // on the command line; the environment is read later
				return noArguments(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				schema, err := data.InferSchema(s.Data.Path, data.Options{Ignore: s.Data.Ignore})
				if err == nil {
					_, err = cmd.OutOrStdout().Write(schema)
				}
				return unusable(err)
			}
			s.Model = args[0]
			m, err := train.OpenModel(&s.Config)
			if err != nil {
				return err
			}
			if s.json {
				return printJSON(cmd.OutOrStdout(), m)
			}
			return m.WriteText(cmd.OutOrStdout())
		},
	}
}
