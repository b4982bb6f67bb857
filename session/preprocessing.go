package session

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// PreprocessingOptions configure a preprocessing graph.
type PreprocessingOptions struct {
	// Name identifies the graph in messages and checkpoints. Change Name when the graph changes, so that a
	// checkpoint with the old graph is rejected.
	Name string
	// Field is the field of the data that the graph transforms.
	Field string
	// Input and Output are names of tensors in the graph, such as "images" or "augmented:0". Their
	// first dimension counts the samples, and its size must be unknown.
	Input, Output string
	// SeedInput is the name of a tensor of two int64, for TensorFlow's stateless random
	// operations. It gets Seed and the position of the batch, epoch<<32 + batch. It is empty if
	// the graph draws no random numbers.
	SeedInput string
	Seed      int64
	// Device has the settings of TensorFlow's devices, like Options.Device.
	Device gpuopts.Options
}

// errPreprocessing means that the graph cannot preprocess batches or returned a wrong shape.
var errPreprocessing = errors.New("the graph cannot be used for preprocessing")

// Preprocess returns ds with a field that a graph transforms, such as an augmentation or a
// normalization. graph is a serialized GraphDef, which any TensorFlow binding can write. The graph
// may change the shape and the type of samples, but not their number. The result depends only on
// the batch, the seed and the position of the batch. The graph must be trusted, since it may access
// files. Operations with state, such as random numbers without a seed, are an error, because a resumed
// training could not repeat their results. Variables have no value.
//
// The graph runs in a native session of its own. To find the shape of the result, Preprocess processes
// the first two samples. The caller calls close after the last pass; later batches are tfbind.ErrClosed.
func Preprocess(ctx context.Context, ds data.Dataset, graph []byte, o PreprocessingOptions) (_ data.Dataset,
	close func() error, err error) {
	if err := causeOf(ctx); err != nil {
		return nil, nil, fmt.Errorf("preprocess: %w", err)
	}
	d := &preprocessed{Dataset: ds, o: o, fields: ds.Fields()}
	if d.at = slices.IndexFunc(d.fields, func(f data.FieldSpec) bool { return f.Name == o.Field }); d.at < 0 {
		return nil, nil, fmt.Errorf("preprocess: %s: no field %q: %w", ds.Name(), o.Field, data.ErrField)
	}
	if err = d.load(graph); err == nil {
		err = d.try()
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("preprocess: %w", err), d.close())
	}
	return d, d.close, nil
}

// preprocessed is the result of Preprocess.
type preprocessed struct {
	data.Dataset
	o      PreprocessingOptions
	at     int // index of the field
	fields []data.FieldSpec
	in     tfbind.DType

	// The field mu of side protects the native step.
	side
	step *tfbind.Step
}

func (d *preprocessed) load(graph []byte) (err error) {
	if d.o.Name == "" || d.o.Input == "" || d.o.Output == "" {
		return fmt.Errorf("%w: set Name, and the names of the tensors Input and Output", errPreprocessing)
	}
	ops, err := graphdef.Ops(graph) // also those of functions, which have the bodies of loops and conditions
	for _, op := range ops {
		if keeps, ok := contract.Fleeting(op.Type); ok {
			return fmt.Errorf("operation %s (%s) %s, which no seed and no checkpoint restores: %w: "+
				"use stateless operations, with random numbers from the seed of SeedInput", op.Name, op.Type, keeps,
				errPreprocessing)
		}
	}
	config, configErr := d.o.Device.ConfigProto()
	if err = errors.Join(err, configErr); err == nil {
		err = settle(d.o.Device, config)
	}
	if err == nil {
		err = d.side.load(graph, config)
	}
	if err != nil {
		return err
	}
	names := []string{d.o.Output, d.o.Input, d.o.SeedInput}
	if d.o.SeedInput == "" {
		names = names[:2]
	}
	tensors := make([]tfbind.Output, len(names))
	for i, name := range names {
		if tensors[i], err = d.output(name); err != nil {
			return err
		}
	}
	d.in = tensors[1].DType()
	d.step, err = d.tf.Prepare(tensors[1:], tensors[:1])
	return err
}

// close waits for a batch in progress and frees the graph.
func (d *preprocessed) close() error {
	d.mu.Lock()
	err := d.step.Close()
	d.step = nil
	d.mu.Unlock()
	return errors.Join(err, d.side.close())
}

// try processes the first samples to find the shape and type of the result.
func (d *preprocessed) try() error {
	for b, err := range d.Batches(data.Pass{Batch: min(2, max(d.Len(), 1))}) {
		if err == nil {
			out := b.Fields[d.at]
			d.fields[d.at] = data.FieldSpec{Name: d.o.Field, Shape: out.Shape[1:], Type: dtype.Of(out.Values).Name}
		}
		return err
	}
	return fmt.Errorf("%s: no samples to try the graph on: %w", d.Name(), data.ErrFormat)
}

// apply runs the graph on the field of a batch. The result uses the memory of buffer if it fits.
func (d *preprocessed) apply(epoch, batch int, in data.Array, buffer any) (out data.Array, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.step == nil {
		return out, tfbind.ErrClosed
	}
	var shape []int64
	for _, n := range in.Shape {
		shape = append(shape, int64(n))
	}
	err = store(d.step, 0, d.in, in.Values, shape, whole)
	if err == nil && d.o.SeedInput != "" {
		// A pass has fewer than 2^32 batches.
		err = d.step.Set(1, []int64{d.o.Seed, int64(epoch)<<32 + int64(batch)}, 2)
	}
	if err == nil {
		err = d.step.Run(context.Background())
	}
	if err != nil {
		return out, err
	}
	out.Values = buffer
	if err = readOutput(d.step, 0, &out); err == nil && (len(out.Shape) == 0 || out.Shape[0] != in.Shape[0]) {
		err = fmt.Errorf("%w: %d samples went in, and values of shape %v came out; the first size must be the "+
			"number of samples", errPreprocessing, in.Shape[0], out.Shape)
	}
	return out, err
}

func (d *preprocessed) Fields() []data.FieldSpec { return slices.Clone(d.fields) }

// Source returns the dataset before the graph. Source and Describe identify the data in checkpoints.
func (d *preprocessed) Source() data.Dataset { return d.Dataset }

func (d *preprocessed) Describe() string {
	text := fmt.Sprintf("field %q through the graph %q", d.o.Field, d.o.Name)
	if d.o.SeedInput != "" {
		text += fmt.Sprintf(", seed %d", d.o.Seed)
	}
	return text
}

// Batches replaces the field in the batches of the dataset. All batches of a pass use the same memory.
func (d *preprocessed) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		var fields []data.Field
		var values any
		for b, err := range d.Dataset.Batches(p) {
			if err == nil {
				fields = append(fields[:0], b.Fields...)
				in := fields[d.at].Array
				if fields[d.at].Array, err = d.apply(p.Epoch, b.Index, in, values); err != nil {
					err = fmt.Errorf("%s: batch %d: field %q: %T of shape %v through the preprocessing graph %s -> %s: %w",
						d.Name(), b.Index, d.o.Field, in.Values, in.Shape, d.o.Input, d.o.Output, err)
				}
				values, b.Fields = fields[d.at].Values, fields
			}
			if err != nil {
				b = data.Batch{}
			}
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}
