package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"steadyfit/savedmodels"
)

func newInspect() *cobra.Command {
	var asJSON, strict bool
	var f modelFlags
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show what a SavedModel is and whether it can be trained",
		Long: `Show the signatures of a SavedModel as saved_model_cli does, what steadyfit uses
each of them for, and what would go wrong. Nothing of the model is run, and no
TensorFlow is needed. DIR may be builtin:NAME.`,
		Example: "  steadyfit inspect builtin:digits",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.model = args[0]
			m, err := f.open()
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), m)
			} else {
				err = m.WriteText(cmd.OutOrStdout())
			}
			if err == nil && strict && slices.ContainsFunc(m.Problems, func(p savedmodels.Problem) bool { return p.Severity == savedmodels.Error }) {
				err = &checkError{fmt.Errorf("%s cannot be trained; see the problems above", args[0])}
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
	cmd.Flags().StringVar(&f.loss, "loss-output", "", "output of the train signature that is the loss, if none is called loss")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 6 if the model cannot be trained")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
