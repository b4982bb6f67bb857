package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"steadyfit/internal/manifest"
	"steadyfit/internal/texts"
)

func newVerify(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Compare the files of a trained SavedModel with their hashes",
		Long: `Compare the files of a SavedModel with SHA256SUMS, the manifest that fit and merge
write into it. If files are missing, not listed or different, the exit code is 6.
TensorFlow is not needed.`,
		Example: "  steadyfit verify out/digits",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.verify(cmd, args[0])
		},
	}
}

func (s *settings) verify(cmd *cobra.Command, dir string) error {
	n, err := manifest.Verify(cmd.Context(), dir)
	var damaged *manifest.Damage
	if err != nil && !errors.As(err, &damaged) {
		return unusable(err)
	}
	if damaged == nil {
		damaged = &manifest.Damage{Dir: dir, Missing: []string{}, Extra: []string{}, Differs: []string{}}
	} else {
		err = &coded{exitCheck, err}
	}
	switch {
	case s.json:
		return errors.Join(err, printJSON(cmd.OutOrStdout(), struct {
			*manifest.Damage
			Files int `json:"files"`
		}{damaged, n}))
	case err == nil:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "verified %s: %s\n", printable(dir), texts.Count(n, "file"))
	}
	return err
}
