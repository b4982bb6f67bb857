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
	// borrows means that inputs read from a batch; keeps, that the model was seen to keep one.
	borrows, keeps bool
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
	fix := "leave it out with {InMemory.Drop}, or name it like the input that it is for"
	if e.Field == savedmodels.InputSampleWeight {
		fix = "export the model with that input, or leave it out with {InMemory.Drop}"
	}
	fix = option.Marked(fix, name)
	return fmt.Sprintf("%v: no input of signature %s takes the field %s (the inputs are %s); %s", ErrData, e.Signature, e.Field, e.Takes, fix)
}

// Is reports that this is ErrData.
func (e *UnusedFieldError) Is(target error) bool { return target == ErrData }

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
