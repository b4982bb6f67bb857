package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"steadyfit/internal/manifest"
	"steadyfit/internal/texts"
)

func newVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Compare the files of a trained SavedModel with their hashes",
		Long: `Compare the files of a SavedModel with SHA256SUMS, the manifest that fit and merge
write into it. If files are missing, not listed or different, the exit code is 6.
TensorFlow is not needed.`,
		Example: "  steadyfit verify out/digits",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			n, err := manifest.Verify(cmd.Context(), dir)
			switch {
			case errors.As(err, new(*manifest.Damage)):
				return &coded{exitCheck, err}
			case err != nil:
				return unusable(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "verified %s: %s\n", printable(dir), texts.Count(n, "file"))
			return err
		},
	}
}
