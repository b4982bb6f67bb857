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
dataset has a training and a test part, predict uses the test part. --keep names
columns of the data to write first, as data.NAME if an output is called NAME. In
.csv, the values of an output with one value per class of the model have the names of
the classes. For a folder of images, with or without class folders, .csv and .jsonl
have a last column file with the path of the file in the folder, unless an output is
called file.`,
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
			if kind == ".npy" && len(s.Data.Keep) > 0 {
				return usagef("--keep: an .npy file holds one array; write .csv or .jsonl")
			}
			if err := s.checkOutputFile("predictions" + kind); err != nil {
				return err
			}
			role := func(r savedmodels.Roles) string { return r.Predict }
			return s.infer(cmd, role, "predict with (predict, infer or serving_default)",
				func(opened *session.Session, ds *data.InMemory) error {
					step, err := opened.Prepare(opened.Roles().Predict)
					if err != nil {
						return err
					}
					defer step.Close()
					names, err := outputs(step, s.output, kind == ".npy")
					if err != nil {
						return err
					}
					p := predictions{step: step, names: names, keep: s.Data.Keep, kind: kind}
					if m := opened.Model().Metadata; m != nil {
						p.classes = m.ClassNames
					}
					if err := p.write(cmd.Context(), ds, s.Loop.Batch, s.Out); err != nil {
						return err
					}
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d predictions (%s): %s\n", ds.Len(),
						printable(strings.Join(names, ", ")), printable(s.Out))
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
		return nil, usagef("an .npy file holds one array, and signature %s has %s: choose one with --output, or write "+
			".csv or .jsonl",
			step.Signature.Name, strings.Join(names, ", "))
	}
	return names, nil
}

// fileColumn is the name of the paths of images among the outputs.
const fileColumn = "file"

// predictions are the columns of a file of predictions.
type predictions struct {
	step        *session.Step
	names, keep []string // outputs, and fields of the data
	classes     []string // names of the classes of the model; nil if unknown
	kind        string
}

// write writes to a temporary file, which it renames at the end.
func (p predictions) write(ctx context.Context, ds *data.InMemory, batch int, path string) error {
	if err := checkFolder(path, filepath.Dir(path)); err != nil {
		return err
	}
	created, named := false, p.kind != ".npy" && ds.FilePath(0) != "" && !slices.Contains(p.names, fileColumn)
	err := files.Stream(path, func(out io.Writer) error {
		created = true
		buffered := bufio.NewWriter(out)
		w, err := data.NewWriter(buffered, p.kind, ds.Len())
		if err != nil {
			return err
		}
		for b, err := range ds.Batches(data.Pass{Batch: batch}) {
			if err != nil {
				return err
			}
			fields, err := p.batch(ctx, ds, b)
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

func (p predictions) batch(ctx context.Context, ds *data.InMemory, b data.Batch) ([]data.Field, error) {
	if err := p.step.Feed(b); err != nil {
		return nil, err
	}
	if err := p.step.Run(ctx); err != nil {
		return nil, err
	}
	var fields []data.Field
	for _, name := range p.keep {
		a, ok := b.Field(data.KeptPrefix + name)
		if !ok {
			a, ok = b.Field(name) // of arrays
		}
		if !ok {
			return nil, usagef("--keep %s: %s has no such column", name, ds.Name())
		}
		if slices.ContainsFunc(p.names, func(output string) bool {
			return name == output || p.kind == ".csv" && strings.HasPrefix(name, output+"_")
		}) {
			name = "data." + name
		}
		fields = append(fields, data.Field{Name: name, Array: a})
	}
	for _, name := range p.names {
		var a data.Array
		if err := p.step.Read(name, &a); err != nil {
			return nil, err
		}
		if len(a.Shape) == 0 || a.Shape[0] != b.Size {
			return nil, fmt.Errorf("output %s has shape %v for a batch of %d samples; expected one row per sample", name,
				a.Shape, b.Size)
		}
		if scores, ok := a.Values.([]float32); ok && p.kind == ".csv" && len(a.Shape) == 2 && len(p.classes) > 1 &&
			a.Shape[1] == len(p.classes) {
			for i, class := range p.classes {
				column := make([]float32, b.Size)
				for row := range column {
					column[row] = scores[row*len(p.classes)+i]
				}
				fields = append(fields, data.Field{Name: name + "_" + class,
					Array: data.Array{Shape: []int{b.Size}, Values: column}})
			}
			continue
		}
		fields = append(fields, data.Field{Name: name, Array: a})
	}
	return fields, nil
}
