package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"steadyfit/savedmodels"
	"steadyfit/train"
)

func newInspect(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show what a SavedModel is and whether it can be trained",
		Long: `Show whether a SavedModel can be trained, its problems, what steadyfit uses each
signature for, and the signatures as saved_model_cli does. Nothing of the model is
run, and TensorFlow is not needed. DIR may be builtin:NAME.`,
		Example: "  steadyfit inspect builtin:digits",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := train.OpenModel(args[0], s.LossOutput)
			if err != nil {
				return err
			}
			if s.json {
				err = printJSON(cmd.OutOrStdout(), m)
			} else {
				err = m.WriteText(cmd.OutOrStdout())
			}
			if err == nil && s.strict && slices.ContainsFunc(m.Problems, func(p savedmodels.Problem) bool { return p.Severity == savedmodels.Error }) {
				err = &coded{exitCheck, fmt.Errorf("%s cannot be trained; see the problems above", args[0])}
			}
			return err
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, n := range savedmodels.BuiltinNames() {
				if strings.HasPrefix(savedmodels.BuiltinPrefix+n, typed) {
					names = append(names, savedmodels.BuiltinPrefix+n)
				}
			}
			return names, cobra.ShellCompDirectiveFilterDirs
		},
	}
}
