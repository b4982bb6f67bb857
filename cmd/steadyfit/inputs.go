package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/data"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

const builtinPrefix = "builtin:"

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

// apply has the device flags in force; it is the first thing that a command does.
func (f *modelFlags) apply() error { return f.device.apply(&f.options.Device) }

// open reads the model that the flags name.
func (f *modelFlags) open() (*savedmodels.Model, error) {
	if f.model == "" {
		return nil, usagef("--model is missing: a folder with a SavedModel, or builtin:NAME (%s)", strings.Join(savedmodels.BuiltinNames(), ", "))
	}
	open, at := savedmodels.Open, f.model
	if name, ok := strings.CutPrefix(f.model, builtinPrefix); ok {
		open, at = savedmodels.Builtin, name
	}
	m, err := open(at)
	if err == nil {
		m, err = m.WithLoss(f.loss)
	}
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
		return nil, g.noGPU(cmd.Context(), err)
	}
	plan, err := session.Compile(model, o)
	if err != nil {
		return nil, err
	}
	s, err := session.Open(cmd.Context(), plan)
	return s, g.noGPU(cmd.Context(), err)
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
func (f *inference) run(cmd *cobra.Command, g *global, role func(savedmodels.Roles) string, purpose string, do func(*session.Session, *data.Memory) error) error {
	if f.batch < 1 {
		return usagef("--batch %d: expected at least 1", f.batch)
	}
	if f.batch > math.MaxInt32 {
		return usagef("--batch %d: expected at most %d", f.batch, math.MaxInt32)
	}
	if err := f.apply(); err != nil {
		return err
	}
	f.device.warn(cmd.ErrOrStderr())
	model, err := f.open()
	if err != nil {
		return err
	}
	signature := role(model.Roles)
	if signature == "" {
		return usagef("%s has no signature to %s", model.Dir, purpose)
	}
	if err := f.input.suit(model, signature); err != nil {
		return err
	}
	ds, err := f.input.openTest(f.input.path)
	if err != nil {
		return err
	}
	defer f.input.close()
	if ds, err = f.input.scaled(ds); err != nil {
		return err
	}
	if err := check(ds, model, signature, data.Pass{Batch: f.batch}); err != nil {
		return err
	}
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
	path   string
	label  string
	header string
	// classes are the class names of the training data, which other data of the
	// same run must be numbered by.
	classes []string

	imageSize, scale, mapped string
	most                     string   // bytes
	ignore                   []string // fields
	// What the flags and the model say of images and tables; see suit. pixels is the range of
	// pixels that the model takes, where it is not that of bytes.
	images data.ImageOptions
	pixels *[2]float64
	csv    data.CSVOptions

	opened []*data.Memory
}

func (f *dataFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.path, "data", "", "data: .npz, .npy, .csv[.gz], .jsonl[.gz], a folder in MNIST's layout, a folder of images with a sub-folder per class, or builtin:NAME ("+strings.Join(data.BuiltinNames(), ", ")+")")
	flags.StringVar(&f.label, "label", "", "label of a CSV or JSON lines file: its name, in a table also its number from 1, or -1 for the last; default the one named label or y")
	flags.StringVar(&f.header, "header", "auto", "whether the first line of a table names the columns: yes, no, or auto, by the names and numbers in it")
	flags.StringVar(&f.imageSize, "image-size", "", "size that images in a folder are brought to, or that samples of pixels in a row have, as in 224 or HEIGHTxWIDTH; default what the model takes")
	flags.StringVar(&f.scale, "scale", "", "what 0 and 255 of bytes become, as in 0,1; default, for images in a folder, the range that the model was exported with")
	flags.StringVar(&f.most, "max-data", "", "largest size of the data when decompressed, as in 8GiB; default 64 MiB and 50 times the size of the files, at most half of the free memory")
	flags.StringSliceVar(&f.ignore, "ignore-fields", nil, "arrays of the data to leave out, as in id,weight; others that no input takes are an error")
	flags.StringVar(&f.mapped, "map", mapAuto, "leave arrays of .npy and uncompressed .npz files on disk and map them: always, never, or auto, from 1 GiB on")
}

// The values of --map.
const (
	mapAuto   = "auto"
	mapAlways = "always"
	mapNever  = "never"
	// mapFrom is the size of the files, in bytes, from which auto maps them.
	mapFrom = 1 << 30
)

// suit checks the flags, and has images and tables read as the model takes them.
func (f *dataFlags) suit(model *savedmodels.Model, signature string) error {
	if !slices.Contains([]string{mapAuto, mapAlways, mapNever}, f.mapped) {
		return usagef("--map %q: expected %s, %s or %s", f.mapped, mapAlways, mapNever, mapAuto)
	}
	headers := map[string]data.Header{"": data.HeaderAuto, "auto": data.HeaderAuto, "yes": data.HeaderPresent, "no": data.HeaderAbsent}
	header, ok := headers[f.header]
	if !ok {
		return usagef("--header %q: expected yes, no or auto", f.header)
	}
	var h, w int
	if f.imageSize != "" {
		height, width, both := strings.Cut(f.imageSize, "x")
		if !both {
			width = height
		}
		var heightErr, widthErr error
		h, heightErr = strconv.Atoi(height)
		w, widthErr = strconv.Atoi(width)
		if heightErr != nil || widthErr != nil || h < 1 || w < 1 {
			return usagef("--image-size %q: expected pixels, as in 224 or 240x320 (height by width)", f.imageSize)
		}
	}
	var err error
	if f.csv, err = session.CSVOptions(model, signature); err != nil {
		return unusable(err)
	}
	f.csv.Header = header
	if f.images, f.pixels, err = session.ImageOptions(model, signature, h, w); err != nil {
		return unusable(err)
	}
	if f.scale != "" {
		low, high, both := strings.Cut(f.scale, ",")
		l, lowErr := strconv.ParseFloat(strings.TrimSpace(low), 32)
		h, highErr := strconv.ParseFloat(strings.TrimSpace(high), 32)
		if !both || lowErr != nil || highErr != nil {
			return usagef("--scale %q: expected two numbers, as in 0,1 or -1,1", f.scale)
		}
		f.pixels = &[2]float64{l, h}
	}
	return nil
}

// scaled brings the pixels of images, or with --scale the bytes of any other data,
// to the range that the model takes.
func (f *dataFlags) scaled(ds *data.Memory) (*data.Memory, error) {
	if f.pixels == nil || f.scale == "" && !ds.HasImages() {
		return ds, nil
	}
	scaled, err := ds.Scale("x", float32(f.pixels[0]), float32(f.pixels[1]))
	if err != nil && f.scale != "" {
		err = fmt.Errorf("--scale %s: %w", f.scale, err)
	}
	return scaled, unusable(err)
}

// maps says whether the arrays at a path are mapped.
func (f *dataFlags) maps(path string) bool {
	if f.mapped != mapAuto {
		return f.mapped == mapAlways
	}
	files := []string{path}
	if inside, err := filepath.Glob(filepath.Join(path, "*.npy")); err == nil { // else the folder has a name like a pattern
		files = append(files, inside...)
	}
	var bytes int64
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
	}
	return bytes >= mapFrom
}

// close closes what was opened.
func (f *dataFlags) close() error {
	var errs []error
	for _, ds := range f.opened {
		errs = append(errs, ds.Close())
	}
	f.opened = nil
	return errors.Join(errs...)
}

// open reads a dataset that has one part, or that part of a dataset with two.
func (f *dataFlags) open(path, part string) (*data.Memory, error) {
	if path == "" {
		return nil, usagef("--data is missing: a file, a folder, or builtin:NAME (%s)", strings.Join(data.BuiltinNames(), ", "))
	}
	o := data.Options{Split: part, CSV: f.csv, Images: f.images, Map: f.maps(path)}
	if f.most != "" {
		most, err := memory.ParseBytes(f.most)
		if err != nil || most < 1 {
			return nil, usagef("--max-data %q: expected a size, as in 8GiB", f.most)
		}
		o.MaxBytes = int64(most)
	}
	o.CSV.Classes = f.classes
	if len(f.classes) > 0 {
		o.Images.Classes = f.classes
	}
	usual := []string{"label", "y", ""} // other formats ignore it
	if f.label != "" {
		usual = []string{f.label}
	}
	var ds *data.Memory
	var err error
	for _, o.CSV.Label = range usual {
		if ds, err = data.Open(path, o); !errors.Is(err, data.ErrField) {
			break
		}
	}
	if err != nil {
		return nil, unusable(err)
	}
	f.opened = append(f.opened, ds)
	if len(f.ignore) == 0 {
		return ds, nil
	}
	ignore := f.ignore
	if len(f.opened) > 1 { // other data of the run need not have them
		has := func(name string) bool {
			return slices.ContainsFunc(ds.Fields(), func(f data.FieldSpec) bool { return f.Name == name })
		}
		ignore = slices.DeleteFunc(slices.Clone(ignore), func(name string) bool { return !has(name) })
	}
	if ds, err = ds.Drop(ignore...); err != nil {
		return nil, usagef("--ignore-fields: %w", err)
	}
	return ds, nil
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
		if errors.As(err, new(*session.UnusedFieldError)) {
			return err
		}
		if hasY := slices.ContainsFunc(ds.Fields(), func(f data.FieldSpec) bool { return f.Name == "y" }); !hasY {
			return fmt.Errorf("%w (for a CSV or JSON lines file, --label names the label)", err)
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
		field := fields[in.Name]
		if m := model.Metadata; integer(in.DType) && m != nil && m.Labels[in.Name].DType != "" {
			classes := m.Labels[in.Name].Classes
			if len(m.ClassNames) > 0 {
				classes = len(m.ClassNames)
			}
			if names := namesOf(ds, field); classes > 0 && len(names) > classes {
				return fmt.Errorf("%s: field %s has the labels %s, and the model has %d classes: %w", ds.Name(), field, strings.Join(names[:min(8, len(names))], ", "), classes, data.ErrLabel)
			}
			if classes > 0 {
				if err := data.CheckLabels(ds, field, classes); err != nil {
					return err
				}
				continue
			}
		}
		if limit, ok := overflows[in.DType]; ok {
			if err := data.CheckMagnitude(ds, field, limit); err != nil {
				return fmt.Errorf("input %s of signature %s takes %s: %w", in.Name, sig.Name, in.DType, err)
			}
		}
		i := slices.IndexFunc(ds.Fields(), func(f data.FieldSpec) bool { return f.Name == field })
		takes, rows := in.DType.String(), int64(0)
		if m := model.Metadata; m != nil && m.Inputs[in.Name].Rows > 0 {
			rows = m.Inputs[in.Name].Rows
			takes = fmt.Sprintf("indices of a table of %d rows", rows)
		}
		if low, high, check := mayExceed(ds.Fields()[i].Type, in.DType, rows); check {
			if err := data.CheckIntegers(ds, field, low, high); err != nil {
				return fmt.Errorf("input %s of signature %s takes %s: %w", in.Name, sig.Name, takes, err)
			}
		}
	}
	return nil
}

// namesOf are the names of classes that a table has for labels; nil if they are numbers.
func namesOf(ds data.Dataset, field string) []string {
	m, ok := ds.(*data.Memory)
	if !ok {
		return nil
	}
	return m.ClassNames(field)
}

// overflows are the magnitudes from which on a value is rounded to an infinity.
var overflows = map[tfbind.DType]float64{
	tfbind.Float32: 0x1.ffffffp127, tfbind.BFloat16: 0x1.ffp127, tfbind.Float16: 65520,
}

// integers are the types of integers, with the ends of their ranges as far as an int64 goes.
var integers = map[tfbind.DType]struct{ low, high int64 }{
	tfbind.Int8: {math.MinInt8, math.MaxInt8}, tfbind.Uint8: {0, math.MaxUint8},
	tfbind.Int16: {math.MinInt16, math.MaxInt16}, tfbind.Uint16: {0, math.MaxUint16},
	tfbind.Int32: {math.MinInt32, math.MaxInt32}, tfbind.Uint32: {0, math.MaxUint32},
	tfbind.Int64: {math.MinInt64, math.MaxInt64}, tfbind.Uint64: {0, math.MaxInt64},
}

func integer(d tfbind.DType) bool {
	_, ok := integers[d]
	return ok
}

// mayExceed reports whether a field of some type may have values that an input does not take
// which takes the integers from low to high: those of its type, and, if rows is not 0, the
// indices of a table of so many, from its end if they are negative.
func mayExceed(field string, input tfbind.DType, rows int64) (low, high int64, may bool) {
	takes, ok := integers[input]
	if !ok || rows == 0 && field == input.String() {
		return 0, 0, false
	}
	low, high = takes.low, takes.high
	if rows > 0 {
		low, high = max(low, -rows), min(high, rows-1)
	}
	for d, has := range integers {
		if d.String() == field {
			fits := d != tfbind.Uint64 && has.low >= low && has.high <= high
			return low, high, !fits
		}
	}
	return low, high, field != "bool" || high < 1
}

// printMetrics prints metrics on one line.
func printMetrics(w io.Writer, metrics []string) error {
	_, err := fmt.Fprintln(w, strings.Join(metrics, "  "))
	return err
}
