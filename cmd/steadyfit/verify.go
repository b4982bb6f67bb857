package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"steadyfit/internal/manifest"
	"steadyfit/internal/texts"
	"steadyfit/savedmodels"
)

func newVerify(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Compare the files of a trained SavedModel with their hashes",
		Long: `Compare the files of a SavedModel with SHA256SUMS, the manifest that fit and merge
write into it. If files are missing, not listed or different, the exit code is 6.
DIR may also be a folder of --out-version, whose versions are all compared.
TensorFlow is not needed.`,
		Example: "  steadyfit verify out/digits",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, err := modelsIn(args[0])
			if err != nil {
				return unusable(err)
			}
			var errs []error
			for _, dir := range dirs {
				errs = append(errs, s.verify(cmd, dir))
			}
			return errors.Join(errs...)
		},
	}
}

// modelsIn returns dir, or the versions in it if it has versions and is no SavedModel.
func modelsIn(dir string) (dirs []string, err error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("%s: it is a file; expected the folder of a SavedModel, or of --out-version", dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "saved_model.pb")); err != nil {
		found, err := savedmodels.Versions(dir)
		if err != nil {
			return nil, err
		}
		for _, v := range found {
			dirs = append(dirs, v.Path)
		}
	}
	if len(dirs) == 0 {
		dirs = []string{dir}
	}
	return dirs, nil
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
