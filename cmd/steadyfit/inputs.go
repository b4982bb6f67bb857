package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/data"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/train"
)

// modelFlags choose a model and how its session is opened.
type modelFlags struct {
	model   string
	loss    string
	options session.Options
	device  deviceFlags
}

func (f *modelFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.model, "model", "", "folder of the SavedModel, or builtin:NAME ("+strings.Join(savedmodels.BuiltinNames(), ", ")+")")
	flags.StringVar(&f.loss, "loss-output", "", "output of the train signature that is the loss, if none is called loss")
	flags.BoolVar(&f.options.AllowUnsafeOps, "allow-unsafe-ops", false, "run a model that reads or writes files, uses the network or runs Python")
	f.device.register(flags, &f.options.Device)
}

// apply has the process run under the device flags, which may start it anew; it is the first
// thing that a command does. It prints those that have no effect.
func (f *modelFlags) apply(stderr io.Writer) error {
	if err := f.device.parse(&f.options.Device); err != nil {
		return err
	}
	warnings, err := f.options.Device.Check(os.Environ())
	if err == nil {
		err = session.UseEnvironment(f.options.Device)
	}
	if err != nil {
		return unusable(err)
	}
	for _, w := range warnings {
		notice(stderr, "warning", w)
	}
	return nil
}

// open reads the model that the flags name.
func (f *modelFlags) open() (*savedmodels.Model, error) { return train.OpenModel(f.model, f.loss) }

// session opens TensorFlow and the model for evaluation and prediction.
func (f *modelFlags) session(cmd *cobra.Command, g *global, model *savedmodels.Model) (*session.Session, error) {
	if _, err := g.load(); err != nil {
		return nil, err
	}
	o := f.options
	o.ReadOnly = true
	if err := resolvePrecision(&o, cmd.ErrOrStderr()); err != nil {
		return nil, g.noGPU(cmd.Context(), err)
	}
	plan, err := session.Compile(model, o)
	if err != nil {
		return nil, err
	}
	s, err := session.Open(cmd.Context(), plan)
	return s, g.noGPU(cmd.Context(), err)
}

// resolvePrecision settles what fp16 is, and prints that it is slow where it is.
func resolvePrecision(o *session.Options, stderr io.Writer) error {
	warning, err := session.ResolvePrecision(&o.Device)
	if warning != nil {
		notice(stderr, "warning", warning)
	}
	return err
}

// inference are the flags of commands that run a model over a dataset and change neither.
type inference struct {
	modelFlags
	input dataFlags
	batch int
}

func (f *inference) register(flags *pflag.FlagSet) {
	f.modelFlags.register(flags)
	f.input.register(flags)
	flags.IntVar(&f.batch, "batch", 32, "samples per step")
}

// run opens the model and the data that its signature for a role takes, and closes both
// after do. purpose is what that signature would be for, in the error if there is none.
func (f *inference) run(cmd *cobra.Command, g *global, role func(savedmodels.Roles) string, purpose string, do func(*session.Session, *data.InMemory) error) error {
	if f.batch < 1 {
		return usagef("--batch %d: expected at least 1", f.batch)
	}
	if f.batch > math.MaxInt32 {
		return usagef("--batch %d: expected at most %d", f.batch, math.MaxInt32)
	}
	if err := f.apply(cmd.ErrOrStderr()); err != nil {
		return err
	}
	model, err := f.open()
	if err != nil {
		return err
	}
	signature := role(model.Roles)
	if signature == "" {
		return usagef("%s has no signature to %s", model.Dir, purpose)
	}
	if err := f.input.parse(); err != nil {
		return err
	}
	ds, err := train.OpenData(model, signature, f.input.Data, "test", data.Pass{Batch: f.batch})
	if err != nil {
		return err
	}
	defer ds.Close()
	if signature == model.Roles.Evaluate && model.Metadata != nil && len(model.Metadata.ClassNames) == 0 {
		if names, classes := ds.ClassNames("y"), model.Metadata.Labels["y"].Classes; len(names) > 0 && len(names) < classes {
			return usagef("%s has %d names of labels, and the model has %d classes without names, so that their numbers cannot be told: write numbers, or export the model with its class names", ds.Name(), len(names), classes)
		}
	}
	s, err := f.session(cmd, g, model)
	if err != nil {
		return err
	}
	defer s.Close()
	return do(s, ds)
}

// dataFlags choose data, and say how it is read.
type dataFlags struct {
	train.Data
	header, imageSize, scale, mapped, most string
}

func (f *dataFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.Path, "data", "", "data: .npz, .npy, .csv[.gz], .jsonl[.gz], a folder in MNIST's layout, a folder of images with a sub-folder per class, or builtin:NAME ("+strings.Join(data.BuiltinNames(), ", ")+")")
	flags.StringVar(&f.Label, "label", "", "label of a CSV or JSON lines file: its name, in a table also its number from 1, or -1 for the last; default the one named label or y")
	flags.StringVar(&f.header, "header", "auto", "whether the first line of a table names the columns: yes, no, or auto, by the names and numbers in it")
	flags.StringVar(&f.imageSize, "image-size", "", "size that images in a folder are brought to, or that samples of pixels in a row have, as in 224 or HEIGHTxWIDTH; default what the model takes")
	flags.StringVar(&f.scale, "scale", "", "what 0 and 255 of bytes become, as in 0,1; default, for images in a folder, the range that the model was exported with")
	flags.StringVar(&f.most, "max-data", "", "largest size of the data when decompressed, as in 8GiB; default 64 MiB and 50 times the size of the files, at most half of the free memory")
	flags.StringSliceVar(&f.Ignore, "ignore-fields", nil, "arrays of the data to leave out, as in id,weight; others that no input takes are an error")
	flags.StringVar(&f.mapped, "map", "auto", "leave arrays of .npy and uncompressed .npz files on disk and map them: always, never, or auto, from 1 GiB on")
}

// parse reads the flags that are text.
func (f *dataFlags) parse() error {
	var ok bool
	if f.Map, ok = map[string]train.Mapping{"auto": train.MapAuto, "always": train.MapAlways, "never": train.MapNever}[f.mapped]; !ok {
		return usagef("--map %q: expected always, never or auto", f.mapped)
	}
	if f.Header, ok = map[string]data.Header{"": data.HeaderAuto, "auto": data.HeaderAuto, "yes": data.HeaderPresent, "no": data.HeaderAbsent}[f.header]; !ok {
		return usagef("--header %q: expected yes, no or auto", f.header)
	}
	if f.imageSize != "" {
		height, width, both := strings.Cut(f.imageSize, "x")
		if !both {
			width = height
		}
		var heightErr, widthErr error
		f.Height, heightErr = strconv.Atoi(height)
		f.Width, widthErr = strconv.Atoi(width)
		if heightErr != nil || widthErr != nil || f.Height < 1 || f.Width < 1 {
			return usagef("--image-size %q: expected pixels, as in 224 or 240x320 (height by width)", f.imageSize)
		}
	}
	if f.scale != "" {
		low, high, both := strings.Cut(f.scale, ",")
		l, lowErr := strconv.ParseFloat(strings.TrimSpace(low), 32)
		h, highErr := strconv.ParseFloat(strings.TrimSpace(high), 32)
		if !both || lowErr != nil || highErr != nil {
			return usagef("--scale %q: expected two numbers, as in 0,1 or -1,1", f.scale)
		}
		f.Scale = &[2]float64{l, h}
	}
	if f.most != "" {
		most, err := memory.ParseBytes(f.most)
		if err != nil || most < 1 {
			return usagef("--max-data %q: expected a size, as in 8GiB", f.most)
		}
		f.MaxBytes = int64(most)
	}
	return nil
}

// printMetrics prints metrics on one line.
func printMetrics(w io.Writer, metrics []string) error {
	_, err := fmt.Fprintln(w, strings.Join(metrics, "  "))
	return err
}
