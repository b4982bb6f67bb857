package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

const builtinPrefix = "builtin:"

// modelFlags choose a model and how its session is opened.
type modelFlags struct {
	model   string
	options session.Options
	device  deviceFlags
}

func (f *modelFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.model, "model", "", "folder of the SavedModel, or builtin:NAME ("+strings.Join(savedmodels.BuiltinNames(), ", ")+")")
	flags.BoolVar(&f.options.AllowUnsafeOps, "allow-unsafe-ops", false, "run a model that reads or writes files, uses the network or runs Python")
	f.device.register(flags, &f.options.Device)
}

// apply has the device flags in force; it is the first thing that a command does.
func (f *modelFlags) apply() error { return f.device.apply(&f.options.Device) }

// open reads the model that the flags name.
func (f *modelFlags) open() (*savedmodels.Model, error) {
	if f.model == "" {
		return nil, usagef("--model is missing: a folder with a SavedModel, or builtin:NAME (%s)", strings.Join(savedmodels.BuiltinNames(), ", "))
	}
	if name, ok := strings.CutPrefix(f.model, builtinPrefix); ok {
		m, err := savedmodels.Builtin(name)
		return m, unusable(err)
	}
	m, err := savedmodels.Open(f.model)
	return m, unusable(err)
}

// session opens TensorFlow and the model for evaluation and prediction.
func (f *modelFlags) session(cmd *cobra.Command, g *global, model *savedmodels.Model) (*session.Session, error) {
	if _, err := g.load(); err != nil {
		return nil, err
	}
	o := f.options
	o.ReadOnly = true
	if err := f.device.decide(&o.Device, cmd.ErrOrStderr()); err != nil {
		return nil, err
	}
	return session.Open(cmd.Context(), model, o)
}

// dataFlags choose data.
type dataFlags struct {
	path  string
	label string
	// classes are the class names of the training data, which other data of the
	// same run must be numbered by.
	classes []string
}

func (f *dataFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.path, "data", "", "data: .npz, .npy, .csv[.gz], a folder in MNIST's layout, or builtin:NAME ("+strings.Join(data.BuiltinNames(), ", ")+")")
	flags.StringVar(&f.label, "label", "", "label column of a CSV file: its name, its number from 1, or -1 for the last; default the one named label or y")
}

// open reads a dataset that has one part, or that part of a dataset with two.
func (f *dataFlags) open(path, part string) (*data.Memory, error) {
	if path == "" {
		return nil, usagef("--data is missing: a file, a folder, or builtin:NAME (%s)", strings.Join(data.BuiltinNames(), ", "))
	}
	o := data.Options{Split: part, CSV: data.CSVOptions{Label: f.label, Classes: f.classes}}
	if f.label != "" {
		ds, err := data.Open(path, o)
		return ds, unusable(err)
	}
	var ds *data.Memory
	var err error
	for _, usual := range []string{"label", "y", ""} { // other formats ignore it
		o.CSV.Label = usual
		if ds, err = data.Open(path, o); !errors.Is(err, data.ErrField) {
			break
		}
	}
	return ds, unusable(err)
}

// openTest reads the test part of a dataset, or all of it if it has no parts.
func (f *dataFlags) openTest(path string) (*data.Memory, error) {
	ds, err := f.open(path, "test")
	if errors.Is(err, data.ErrNoSplit) {
		return f.open(path, "")
	}
	return ds, err
}

// check looks for data that does not fit the signature, and for values that
// TensorFlow would fail on in the middle of a run, or train NaN into the weights
// from.
func check(ds data.Dataset, model *savedmodels.Model, signature string, pass data.Pass) error {
	fields, err := session.CheckData(model, signature, ds, pass)
	if err != nil {
		if hasY := slices.ContainsFunc(ds.Fields(), func(f data.FieldSpec) bool { return f.Name == "y" }); !hasY {
			return fmt.Errorf("%w (for a CSV file, --label names the column)", err)
		}
		return err
	}
	if err := data.CheckFinite(ds); err != nil {
		return err
	}
	sig, err := model.Signature(signature)
	if err != nil {
		return err
	}
	for _, in := range sig.DataInputs() {
		if !integer(in.DType) {
			continue
		}
		// Of what goes into integers, at least it must be known that it is some;
		// with class names, that labels are among the classes.
		classes := math.MaxInt
		if m := model.Metadata; m != nil && len(m.ClassNames) > 0 && m.Labels[in.Name].DType != "" {
			classes = len(m.ClassNames)
		} else if i := slices.IndexFunc(ds.Fields(), func(f data.FieldSpec) bool { return f.Name == fields[in.Name] }); !strings.HasPrefix(ds.Fields()[i].Type, "float") {
			continue
		}
		if err := data.CheckLabels(ds, fields[in.Name], classes); err != nil {
			return err
		}
	}
	return nil
}

func integer(d tfbind.DType) bool {
	return slices.Contains([]tfbind.DType{tfbind.Int8, tfbind.Int16, tfbind.Int32, tfbind.Int64, tfbind.Uint8, tfbind.Uint16, tfbind.Uint32, tfbind.Uint64}, d)
}

// printMetrics prints metrics on one line.
func printMetrics(w io.Writer, metrics []string) error {
	_, err := fmt.Fprintln(w, strings.Join(metrics, "  "))
	return err
}
