package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"steadyfit/data"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Step is a signature, ready to run again and again. It is for one goroutine at
// a time.
type Step struct {
	binding
	session *Session
	tf      *tfbind.Step
	outputs []savedmodels.Tensor
	seed    [2]int64
	ones    []float32
	// lent means that inputs read from a batch; keeps, that the model was seen to keep one.
	lent, keeps bool
}

// binding is what the inputs of a signature are fed from.
type binding struct {
	signature *savedmodels.Signature
	inputs    []input
	// features are the inputs that the model also takes to predict; the others
	// are labels.
	features []string
	// fields are the names of the batches that the inputs were matched to.
	fields []string
	// strict refuses fields that no input takes, nor one of those in also; see
	// UnusedFieldError.
	strict bool
	also   []string
}

func newBinding(model *savedmodels.Model, sig *savedmodels.Signature) binding {
	b := binding{signature: sig, strict: sig.Output(savedmodels.OutputLoss) != nil && len(sig.DataInputs()) > 0}
	// Data to evaluate with is that of the training, less what it does not take.
	if train, err := model.Signature(model.Roles.Train); err == nil && sig.Name == model.Roles.Evaluate {
		for _, t := range train.Inputs {
			b.also = append(b.also, t.Name)
		}
	}
	for _, t := range sig.Inputs {
		b.inputs = append(b.inputs, input{Tensor: t})
	}
	if predict, err := model.Signature(model.Roles.Predict); err == nil {
		for _, t := range predict.DataInputs() {
			if sig.Input(t.Name) != nil {
				b.features = append(b.features, t.Name)
			}
		}
	}
	return b
}

// CheckData says whether the passes over a dataset can be fed to a signature,
// from what is known before anything is loaded or run: names, shapes, types, and
// the size of the last batch. fields gives the field that feeds each data input.
// An error is ErrData.
func CheckData(model *savedmodels.Model, signature string, ds data.Dataset, pass data.Pass) (fields map[string]string, err error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return nil, err
	}
	b := newBinding(model, sig)
	specs := ds.Fields()
	names := make([]string, len(specs))
	for i, f := range specs {
		names[i] = f.Name
	}
	if err := b.match(names); err != nil {
		return nil, fmt.Errorf("%s: %w", ds.Name(), err)
	}
	sizes := []int{min(pass.Batch, ds.Len())}
	if last := ds.Len() % pass.Batch; last > 0 && !pass.DropRemainder {
		sizes = append(sizes, last)
	}
	fields = map[string]string{}
	for i := range b.inputs {
		in := &b.inputs[i]
		if in.field < 0 {
			if in.Name == savedmodels.InputSampleWeight && len(in.Shape) > 1 && slices.Min(in.Shape[1:]) < 0 {
				return nil, fmt.Errorf("%s: %w", ds.Name(), in.noSize(sig))
			}
			continue
		}
		f := specs[in.field]
		fields[in.Name] = f.Name
		refuse := func(err error) error {
			return fmt.Errorf("%s: field %s for signature %s, input %s: %w", ds.Name(), f.Name, sig.Name, in.Name, err)
		}
		for _, size := range sizes {
			if err := in.fit(append([]int{size}, f.Shape...)); err != nil {
				return nil, refuse(err)
			}
		}
		if (f.Type == "string") != (in.DType == tfbind.String) || in.DType == tfbind.Bool && f.Type != "bool" {
			fix := ""
			if f.Type == "string" {
				fix = "; of names, make numbers (numpy.unique(names, return_inverse=True) gives them)"
			}
			return nil, refuse(fmt.Errorf("%w: expected %s, got %s%s", ErrData, in.DType, f.Type, fix))
		}
	}
	return fields, nil
}

// CSVOptions says how a table has to be read for a signature: exactly where an input that is
// no label takes numbers that float32 may not hold; as text where the one input takes that;
// and by the names of the inputs where there are several, or one of text, each of which takes
// one value per sample.
func CSVOptions(model *savedmodels.Model, signature string) (o data.CSVOptions, err error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return o, err
	}
	rounded := []tfbind.DType{tfbind.Float32, tfbind.Float16, tfbind.BFloat16, tfbind.Bool, tfbind.String}
	features := slices.DeleteFunc(sig.DataInputs(), func(in savedmodels.Tensor) bool {
		return in.Name == "y" || model.Metadata != nil && model.Metadata.Labels[in.Name].DType != ""
	})
	if model.Metadata != nil && len(features) < len(sig.DataInputs()) {
		o.Names = slices.Clone(model.Metadata.ClassNames)
	}
	isText := func(in savedmodels.Tensor) bool { return in.DType == tfbind.String }
	o.Exact = slices.ContainsFunc(features, func(in savedmodels.Tensor) bool { return !slices.Contains(rounded, in.DType) })
	o.Text = len(features) == 1 && isText(features[0])
	single := func(in savedmodels.Tensor) bool {
		return !in.UnknownRank && (len(in.Shape) == 1 || len(in.Shape) == 2 && in.Shape[1] == 1)
	}
	if o.Text || len(features) > 1 {
		for _, in := range features {
			if !single(in) {
				o.Columns = nil
				break
			}
			o.Columns = append(o.Columns, data.Column{Name: in.Name, Text: isText(in)})
		}
	}
	return o, nil
}

// ImageOptions says how a folder of images has to be read for a signature: the size
// and the channels that its input of images takes, and the classes that the model
// names. height and width, where they are not 0, go before the size of the input; with
// them, an input of as many elements in a row is one of images, too. What stays open is
// 0. scale is the range that the input expects its pixels in; nil if it is that of
// bytes, 0 to 255, or not stated.
func ImageOptions(model *savedmodels.Model, signature string, height, width int) (o data.ImageOptions, scale *[2]float64, err error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return o, nil, err
	}
	o.Height, o.Width = height, width
	in := sig.ImageInput()
	if in != nil {
		o.Height = cmp.Or(height, int(max(in.Shape[1], 0)))
		o.Width = cmp.Or(width, int(max(in.Shape[2], 0)))
		o.Channels = int(max(in.Shape[3], 0))
	}
	for _, t := range sig.DataInputs() {
		pixels := int64(height) * int64(width)
		if in != nil || pixels == 0 || t.UnknownRank || len(t.Shape) != 2 || t.Shape[1] != pixels && t.Shape[1] != 3*pixels {
			continue
		}
		in, o.Channels = sig.Input(t.Name), int(t.Shape[1]/pixels)
	}
	if m := model.Metadata; in != nil && m != nil {
		o.Classes = slices.Clone(m.ClassNames)
		if scale = m.Inputs[in.Name].Range; scale != nil && *scale == [2]float64{0, 255} {
			scale = nil
		}
	}
	return o, scale, nil
}

// ErrData: data that does not fit the signature it is to be fed to.
var ErrData = errors.New("the data does not fit the model")

// input is an input of the signature, in the order of the native step's feeds.
type input struct {
	savedmodels.Tensor
	shape []int64 // scratch: the shape of the value being set
	// field is the position in a batch of what this input is fed; reserved
	// inputs that no field has are generated, and have -1.
	field int
}

// Prepare resolves the names of a signature and lays out its inputs, once. All
// its outputs are fetched. The result must be closed.
func (s *Session) Prepare(signature string) (*Step, error) {
	return s.prepareAll(s.tf, signature)
}

func (s *Session) prepareAll(tf *tfbind.Session, signature string) (*Step, error) {
	sig, err := s.model.Signature(signature)
	if err != nil {
		return nil, err
	}
	return s.prepare(tf, sig, sig.Outputs)
}

// callerRuns is the tensorflow.RunOptions of Options.CallerRuns: inter_op_thread_pool,
// which is field 3, is -1.
var callerRuns = protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), math.MaxUint64)

func (s *Session) prepare(tf *tfbind.Session, sig *savedmodels.Signature, fetch []savedmodels.Tensor) (*Step, error) {
	step := &Step{binding: newBinding(s.model, sig), session: s, outputs: fetch}
	var spec tfbind.StepSpec
	if s.opts.CallerRuns {
		spec.RunOptions = callerRuns
	}
	for _, t := range sig.Inputs {
		o, err := tf.Graph().Output(t.Op)
		if err != nil {
			return nil, fmt.Errorf("signature %s, input %s: %w", sig.Name, t.Name, err)
		}
		spec.Feeds = append(spec.Feeds, o)
	}
	for _, t := range fetch {
		o, err := tf.Graph().Output(t.Op)
		if err != nil {
			return nil, fmt.Errorf("signature %s, output %s: %w", sig.Name, t.Name, err)
		}
		spec.Fetches = append(spec.Fetches, o)
	}
	var err error
	if step.tf, err = tf.Prepare(spec); err != nil {
		return nil, fmt.Errorf("signature %s: %w", sig.Name, err)
	}
	return step, nil
}

// Signature is what the step runs.
func (st *Step) Signature() *savedmodels.Signature { return st.signature }

// Close frees the step's buffers. Closing twice does nothing.
func (st *Step) Close() error {
	if st == nil {
		return nil
	}
	return st.tf.Close()
}

// Set copies an array into the input of that name, converted to its element
// type. Conversions that would lose more than precision are refused: a number
// that the input's integer type cannot hold is an error that names it. A shape
// may differ from the signature's in dimensions of size 1, or be flat where the
// signature is not, or the other way round.
func (st *Step) Set(name string, a data.Array) error {
	for i := range st.inputs {
		if st.inputs[i].Name == name {
			return st.set(i, a, false)
		}
	}
	return fmt.Errorf("signature %s has no input %q; it has %s", st.signature.Name, name, names(st.signature.Inputs))
}

func (st *Step) set(i int, a data.Array, lend bool) error {
	in := &st.inputs[i]
	err := in.fit(a.Shape)
	if err == nil {
		err = st.lendOrStore(i, a.Values, in.shape, lend)
	}
	if err != nil {
		return fmt.Errorf("signature %s, input %s: %w", st.signature.Name, in.Name, err)
	}
	return nil
}

// Feed sets all inputs from the fields of a batch. A field feeds the input of
// its name; if none has the names of the inputs, and there is one input that the
// model also predicts from and one that it does not, the fields x and y feed
// these. Reserved inputs that the batch does not have are filled in: sample
// weights with 1, the learning rate with what was set, the loss scale with that of the
// session (Options.LossScale).
func (st *Step) Feed(b data.Batch) error { return st.feed(b, false) }

// feed is Feed. With lend, large inputs read from the batch itself, if it allows that,
// until takeBack.
func (st *Step) feed(b data.Batch, lend bool) error {
	if err := st.matchTo(b.Fields); err != nil {
		return err
	}
	for i := range st.inputs {
		in := &st.inputs[i]
		var err error
		if in.field >= 0 {
			err = st.set(i, b.Fields[in.field].Array, lend && b.Lends(in.field))
		} else {
			err = st.setReserved(i, b.Size)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// matchTo finds the field of each input, unless that was done for the same ones.
func (b *binding) matchTo(fields []data.Field) error {
	if b.matches(fields) {
		return nil
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return b.match(names)
}

// matches reports whether the inputs are matched to these fields already.
func (b *binding) matches(fields []data.Field) bool {
	if len(b.fields) != len(fields) || b.fields == nil {
		return false
	}
	for i := range fields {
		if b.fields[i] != fields[i].Name {
			return false
		}
	}
	return true
}

// match finds the field of each input.
func (b *binding) match(fields []string) error {
	data := b.signature.DataInputs()
	labels := slices.DeleteFunc(slices.Clone(data), func(t savedmodels.Tensor) bool { return slices.Contains(b.features, t.Name) })
	has := func(name string) bool { return slices.Contains(fields, name) }
	byName := !slices.ContainsFunc(data, func(t savedmodels.Tensor) bool { return !has(t.Name) })
	byRole := len(b.features) == 1 && len(labels) <= 1 && has("x") && (len(labels) == 0 || has("y"))
	if !byName && !byRole {
		return fmt.Errorf("%w: signature %s takes %s, and the data has %s; name the arrays of the data like the inputs, or x and y",
			ErrData, b.signature.Name, names(data), strings.Join(fields, ", "))
	}
	for i := range b.inputs {
		in := &b.inputs[i]
		name := in.Name
		switch {
		case byName || savedmodels.IsReserved(name):
		case slices.Contains(b.features, name):
			name = "x"
		default:
			name = "y"
		}
		in.field = slices.Index(fields, name)
	}
	if b.strict {
		for i, name := range fields {
			if !slices.Contains(b.also, name) && !slices.ContainsFunc(b.inputs, func(in input) bool { return in.field == i }) {
				return &UnusedFieldError{Field: name, Signature: b.signature.Name, Takes: names(b.signature.Inputs)}
			}
		}
	}
	b.fields = slices.Clone(fields)
	return nil
}

// UnusedFieldError is a field of the data that no input of a signature takes. Training
// without it would be another training than the one that was meant: sample weights, for
// one, would all count as 1. It is ErrData. Only signatures with a loss refuse such fields:
// one that predicts leaves labels out. One that evaluates leaves out what the train
// signature takes.
type UnusedFieldError struct {
	Field, Signature string
	// Takes lists the inputs of the signature.
	Takes string
}

func (e *UnusedFieldError) Error() string { return e.OptionText(option.GoName) }

// OptionText is part of option.Named.
func (e *UnusedFieldError) OptionText(name option.Name) string {
	fix := "leave it out with {Memory.Drop}, or name it like the input that it is for"
	if e.Field == savedmodels.InputSampleWeight {
		fix = "export the model with that input, or leave it out with {Memory.Drop}"
	}
	fix = option.Marked(fix, name)
	return fmt.Sprintf("%v: no input of signature %s takes the field %s (the inputs are %s); %s", ErrData, e.Signature, e.Field, e.Takes, fix)
}

// Is reports that this is ErrData.
func (e *UnusedFieldError) Is(target error) bool { return target == ErrData }

func (st *Step) setReserved(i, samples int) error {
	in := &st.inputs[i]
	switch in.Name {
	case savedmodels.InputSampleWeight:
		return st.setOnes(i, int64(samples))
	case savedmodels.InputLearningRate:
		if math.IsNaN(st.session.rate) {
			return option.Errorf("signature %s takes the learning rate as an input, and none was set: set it with {Session.SetLearningRate}", st.signature.Name)
		}
		return setScalar(st.tf, i, in.DType, st.session.rate)
	case savedmodels.InputSeed:
		return tfbind.Set(st.tf, i, st.seed[:], int64(len(st.seed)))
	case savedmodels.InputLossScale:
		scale := 1.0
		if l := st.session.scaler; l != nil {
			scale = l.Scale
		}
		return setScalar(st.tf, i, in.DType, scale)
	case savedmodels.InputGroupSize:
		return setScalar(st.tf, i, in.DType, 1)
	}
	return fmt.Errorf("signature %s, input %s: nothing to feed it with", st.signature.Name, in.Name)
}

// setOnes feeds an input whose first dimensions are those given with 1 everywhere.
func (st *Step) setOnes(i int, first ...int64) error {
	in := &st.inputs[i]
	in.shape = append(in.shape[:0], first...)
	if len(in.Shape) > 1 {
		in.shape = append(in.shape, in.Shape[1:]...)
	}
	n := 1
	for _, d := range in.shape {
		if d < 0 {
			return in.noSize(st.signature)
		}
		n *= int(d)
	}
	for len(st.ones) < n {
		st.ones = append(st.ones, 1)
	}
	return store(st.tf, i, in.DType, st.ones[:n], in.shape, whole)
}

// Run runs the step once. Its results last until the next run.
func (st *Step) Run(ctx context.Context) error {
	err := st.tf.Run(ctx)
	if err == nil {
		return nil
	}
	if st.session.opts.ListAllocations && errors.Is(err, ErrOutOfMemory) {
		// The variables are in doubt anyway. Where there is memory after all, the
		// first error stands.
		if again := st.tf.Explain(ctx); errors.Is(again, ErrOutOfMemory) {
			err = again
		}
	}
	return fmt.Errorf("signature %s: %w", st.signature.Name, err)
}

// Trace is Run, and returns a serialized tensorflow.RunMetadata, which tells of
// each operation when it ran, and how much memory it took from which allocator.
// Tracing costs time and memory; see [tfbind.Step.Trace].
func (st *Step) Trace(ctx context.Context) ([]byte, error) {
	metadata, err := st.tf.Trace(ctx)
	if err != nil {
		return nil, fmt.Errorf("signature %s: %w", st.signature.Name, err)
	}
	return metadata, nil
}

// Float returns a scalar output of the last run, without allocating.
func (st *Step) Float(name string) (float64, error) {
	i, err := st.output(name)
	if err != nil {
		return 0, err
	}
	return st.tf.Float(i)
}

// Output hands over an output of the last run, once; the caller closes it.
func (st *Step) Output(name string) (*tfbind.Tensor, error) {
	i, err := st.output(name)
	if err != nil {
		return nil, err
	}
	return st.tf.Output(i)
}

func (st *Step) output(name string) (int, error) {
	for i := range st.outputs {
		if st.outputs[i].Name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("signature %s has no output %q to read; it has %s", st.signature.Name, name, names(st.outputs))
}

func names(ts []savedmodels.Tensor) string {
	if len(ts) == 0 {
		return "none"
	}
	list := make([]string, len(ts))
	for i, t := range ts {
		list[i] = t.Name
	}
	return strings.Join(list, ", ")
}

// fit writes to in.shape the shape in which a value of the given shape is fed.
func (in *input) fit(shape []int) error {
	in.shape = in.shape[:0]
	if in.UnknownRank || len(shape) == len(in.Shape) {
		for _, d := range shape {
			in.shape = append(in.shape, int64(d))
		}
		return in.checkSizes(shape)
	}
	if len(shape) == 0 || len(in.Shape) == 0 {
		return in.mismatch(shape)
	}
	// Samples stay samples; within a sample, dimensions of size 1 come and go,
	// and a flat sample takes on the signature's shape.
	want, have := in.Shape[1:], shape[1:]
	in.shape = append(in.shape, int64(shape[0]))
	isOpen := func(d int64) bool { return d < 0 }
	if !sameButOnes(want, have) && (len(want) > 1 && len(have) > 1 || slices.ContainsFunc(want, isOpen)) {
		return in.mismatch(shape)
	}
	left := int64(1)
	for _, d := range have {
		left *= int64(d)
	}
	open := -1
	for i, d := range want {
		if d < 0 && open >= 0 {
			return in.mismatch(shape) // two sizes left open: no way to tell
		}
		if d < 0 {
			open = i
			continue
		}
		if d == 0 || left%d != 0 {
			return in.mismatch(shape)
		}
		left /= d
	}
	for i, d := range want {
		if i == open {
			d, left = left, 1
		}
		in.shape = append(in.shape, d)
	}
	if left != 1 {
		return in.mismatch(shape)
	}
	return in.checkSizes(shape)
}

// sameButOnes reports whether two shapes differ in dimensions of size 1 only.
func sameButOnes(want []int64, have []int) bool {
	i, j := 0, 0
	for i < len(want) || j < len(have) {
		switch {
		case i < len(want) && j < len(have) && (want[i] == int64(have[j]) || want[i] < 0):
			i, j = i+1, j+1
		case i < len(want) && want[i] == 1:
			i++
		case j < len(have) && have[j] == 1:
			j++
		default:
			return false
		}
	}
	return true
}

// checkSizes holds in.shape against the signature.
func (in *input) checkSizes(shape []int) error {
	if in.UnknownRank {
		return nil
	}
	for i, d := range in.Shape {
		if d >= 0 && d != in.shape[i] {
			if i == 0 && !savedmodels.IsReserved(in.Name) {
				return fmt.Errorf("%w: the batch size %d is part of the model, and the batch has %d samples: train with that batch size and without a smaller last batch, or export the model with an open batch size",
					ErrData, d, in.shape[0])
			}
			return in.mismatch(shape)
		}
	}
	return nil
}

func (in *input) mismatch(shape []int) error {
	return fmt.Errorf("%w: expected shape %s, got %v (the first size counts the samples)", ErrData, shapeText(in.Shape), slices.Clone(shape))
}

// noSize is the error about weights whose shape only the data could tell.
func (in *input) noSize(sig *savedmodels.Signature) error {
	return fmt.Errorf("%w: signature %s takes %s of shape %s, whose size the data has to give: add that field", ErrData, sig.Name, in.Name, shapeText(in.Shape))
}

func shapeText(shape []int64) string { return strings.ReplaceAll(fmt.Sprint(shape), "-1", "?") }
