package main

import (
	"strings"

	"github.com/spf13/cobra"

	"steadyfit/savedmodels"
)

func newInspect() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show what a SavedModel is and whether it can be trained",
		Long: `Show the signatures of a SavedModel as saved_model_cli does, what steadyfit uses
each of them for, and what would go wrong. Nothing of the model is run, and no
TensorFlow is needed. DIR may be builtin:NAME.`,
		Example: "  steadyfit inspect builtin:digits",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f := modelFlags{model: args[0]}
			m, err := f.open()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), m)
			}
			return m.WriteText(cmd.OutOrStdout())
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, n := range savedmodels.BuiltinNames() {
				if strings.HasPrefix(builtinPrefix+n, typed) {
					names = append(names, builtinPrefix+n)
				}
			}
			return names, cobra.ShellCompDirectiveFilterDirs
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
