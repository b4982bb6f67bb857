package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/internal/files"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

func newPredict(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "predict",
		Short: "Write the predictions of a SavedModel for a dataset",
		Long: `Write the predictions of a SavedModel for a dataset to a file, one row per sample
in the order of the data: all outputs to .csv and .jsonl, one output to .npy. If the
dataset has a training and a test part, predict uses the test part. For a folder of
images or texts, with or without class folders, .csv and .jsonl have a last column
file with the path of the file in the folder, unless an output is called file.`,
		Example: "  steadyfit predict --model out/digits --data builtin:digits --out predictions.csv",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kind := strings.ToLower(filepath.Ext(s.Out))
			if s.Out == "" {
				return usagef("--out is missing: expected a file that ends in .npy, .csv or .jsonl")
			}
			if !slices.Contains([]string{".npy", ".csv", ".jsonl"}, kind) {
				return usagef("--out %q: expected a file that ends in .npy, .csv or .jsonl", s.Out)
			}
			if err := s.checkOutputFile("predictions" + kind); err != nil {
				return err
			}
			role := func(r savedmodels.Roles) string { return r.Predict }
			return s.infer(cmd, role, "predict with (predict, infer or serving_default)", func(opened *session.Session, ds *data.InMemory) error {
				step, err := opened.Prepare(opened.Roles().Predict)
				if err != nil {
					return err
				}
				defer step.Close()
				names, err := outputs(step, s.output, kind == ".npy")
				if err != nil {
					return err
				}
				if err := predict(cmd.Context(), step, names, ds, s.Loop.Batch, s.Out, kind); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d predictions (%s): %s\n", ds.Len(), strings.Join(names, ", "), s.Out)
				return err
			})
		},
	}
}

func outputs(step *session.Step, chosen string, single bool) ([]string, error) {
	var names []string
	for _, t := range step.Signature.Outputs {
		names = append(names, t.Name)
	}
	if chosen != "" {
		if !slices.Contains(names, chosen) {
			return nil, usagef("--output %q: signature %s has %s", chosen, step.Signature.Name, strings.Join(names, ", "))
		}
		return []string{chosen}, nil
	}
	if single && len(names) > 1 {
		return nil, usagef("an .npy file holds one array, and signature %s has %s: choose one with --output, or write .csv or .jsonl",
			step.Signature.Name, strings.Join(names, ", "))
	}
	return names, nil
}

// fileColumn is the name of the paths of images among the outputs.
const fileColumn = "file"

// predict writes to a temporary file, which it renames at the end.
func predict(ctx context.Context, step *session.Step, names []string, ds *data.InMemory, batch int, path, kind string) error {
	if err := files.WritableDir(filepath.Dir(path), 0); err != nil {
		return unusable(fmt.Errorf("--out %s: %w", path, err))
	}
	created, named := false, kind != ".npy" && ds.FilePath(0) != "" && !slices.Contains(names, fileColumn)
	err := files.Stream(path, func(out io.Writer) error {
		created = true
		buffered := bufio.NewWriter(out)
		w, err := data.NewWriter(buffered, kind, ds.Len())
		if err != nil {
			return err
		}
		for b, err := range ds.Batches(data.Pass{Batch: batch}) {
			if err != nil {
				return err
			}
			fields, err := predictBatch(ctx, step, names, b)
			if err != nil {
				return err
			}
			if named {
				paths := make([]string, b.Size)
				for i := range paths {
					paths[i] = ds.FilePath(b.Index*batch + i)
				}
				fields = append(fields, data.Field{Name: fileColumn, Array: data.Array{Shape: []int{b.Size}, Values: paths}})
			}
			if err := w.Write(fields...); err != nil {
				return err
			}
		}
		return errors.Join(w.Flush(), buffered.Flush())
	})
	if !created {
		return unusable(err)
	}
	return err
}

func predictBatch(ctx context.Context, step *session.Step, names []string, b data.Batch) ([]data.Field, error) {
	if err := step.Feed(b); err != nil {
		return nil, err
	}
	if err := step.Run(ctx); err != nil {
		return nil, err
	}
	var fields []data.Field
	for _, name := range names {
		a, err := step.Array(name)
		if err != nil {
			return nil, err
		}
		if len(a.Shape) == 0 || a.Shape[0] != b.Size {
			return nil, fmt.Errorf("output %s has shape %v for a batch of %d samples; expected one row per sample", name, a.Shape, b.Size)
		}
		fields = append(fields, data.Field{Name: name, Array: a})
	}
	return fields, nil
}
