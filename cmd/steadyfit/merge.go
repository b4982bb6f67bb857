package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"steadyfit/internal/manifest"
	"steadyfit/session"
	"steadyfit/train"
)

func newMerge(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "merge",
		Short: "Write a SavedModel with the weights of an adapter",
		Long: `Write the SavedModel that consists of a base model and an adapter. It has the same
signatures as the base model and predicts the same as the two together.`,
		Example: "  steadyfit merge --model my/base --adapter out/tenant --out out/tenant-model",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.Adapter == "" || s.Out == "" {
				return usagef("merge needs --adapter, the weights to merge, and --out, the folder for the merged model")
			}
			return s.merge(cmd)
		},
	}
}

func (s *settings) merge(cmd *cobra.Command) error {
	if err := s.inputs().CheckFolder(s.Out); err != nil {
		return usagef("--out %s: %w", s.Out, err)
	}
	model, err := train.OpenModel(&s.Config)
	if err != nil {
		return err
	}
	weights, err := s.readAdapter(model)
	if err != nil {
		return err
	}
	if err := session.CheckOutput(s.Out, model); err != nil {
		return unusable(err)
	}
	opened, err := s.openWith(cmd, model, weights)
	if err != nil {
		return err
	}
	defer opened.Close()
	record := func(dir string) error { return manifest.RecordNotes(dir, weights.Record) }
	if err := opened.SaveModel(cmd.Context(), s.Out, record); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "merged model: %s\n", printable(s.Out))
	return err
}
