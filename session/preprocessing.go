package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// PreprocessingOptions configure a preprocessing graph.
type PreprocessingOptions struct {
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
// the batch, the seed and the position of the batch. Values are converted to the type of the input
// as in [Step.Set].
//
// The graph runs in a native session separate from the model's, one batch at a time, so concurrent
// passes wait for each other. With data.Prefetch, it runs in the goroutine that reads ahead. The
// caller calls close after the last pass; later batches are tfbind.ErrClosed. The identity in a
// checkpoint consists of ds, the graph and the seed. To find the shape and type of the result,
// Preprocess processes the first two samples.
//
// A missing name is tfbind.ErrNotFound. It is an error if the graph
//   - returns strings or half-precision values, or
//   - has an operation with state, such as random numbers without a seed, a queue, a table or
//     an iterator. A resumed training could not repeat its results.
//
// Variables have no value. The graph must be trusted, since it may access files. ctx is checked
// before loading, which TensorFlow cannot interrupt.
func Preprocess(ctx context.Context, ds data.Dataset, graph []byte, o PreprocessingOptions) (_ data.Dataset, close func() error, err error) {
	d := &preprocessed{o: o, ds: ds, fields: ds.Fields()}
	if err = d.load(ctx, graph); err != nil {
		err = fmt.Errorf("open preprocessing graph: %w", err)
	} else {
		err = d.try(ctx)
	}
	if err != nil {
		return nil, nil, errors.Join(err, d.close())
	}
	return d, d.close, nil
}

type preprocessed struct {
	o       PreprocessingOptions
	ds      data.Dataset
	at      int // index of the field
	fields  []data.FieldSpec
	sum     string // hash of the graph
	in, out tfbind.DType
	idle    atomic.Pointer[batchMemory]

	// mu protects the native step.
	mu    sync.Mutex
	graph *tfbind.Graph
	tf    *tfbind.Session
	step  *tfbind.Step
	shape []int64 // scratch
}

// batchMemory is the memory of the batches of a pass. Each batch reuses the memory of the batch before
// it, and a pass reuses the memory of the pass that ended last.
type batchMemory struct {
	values any
	fields []data.Field
}

func (d *preprocessed) load(ctx context.Context, graph []byte) (err error) {
	if err := causeOf(ctx); err != nil {
		return err
	}
	if d.sum, err = graphdef.Sum(graph); err != nil {
		return err
	}
	config, err := d.o.Device.ConfigProto()
	if err == nil {
		err = settle(d.o.Device, config)
	}
	if err != nil {
		return fmt.Errorf("device options: %w", err)
	}
	if d.graph, err = tfbind.NewGraph(); err != nil {
		return err
	}
	if err = d.graph.Import(graph, ""); err != nil {
		return err
	}
	if err = checkOperations(graph); err != nil {
		return err
	}
	input, err := d.graph.Output(d.o.Input)
	if err != nil {
		return fmt.Errorf("input %q: %w", d.o.Input, err)
	}
	output, err := d.graph.Output(d.o.Output)
	if err != nil {
		return fmt.Errorf("output %q: %w", d.o.Output, err)
	}
	feeds := []tfbind.Output{input}
	d.in, d.out = input.DType(), output.DType()
	if d.in.Size() == 0 {
		return fmt.Errorf("input %q takes %s: %w: expected numbers or bool", d.o.Input, d.in, errPreprocessing)
	}
	if out := dtype.ByCode(int32(d.out)); out == nil || out.Slice == nil || out.Kind == dtype.String {
		return fmt.Errorf("output %q is %s, which batches do not support: %w: cast it in the graph, for example to float32", d.o.Output, d.out, errPreprocessing)
	}
	if d.o.SeedInput != "" {
		seed, err := d.graph.Output(d.o.SeedInput)
		if err != nil {
			return fmt.Errorf("input %q: %w", d.o.SeedInput, err)
		}
		if seed.DType() != tfbind.Int64 {
			return fmt.Errorf("seed input %q takes %s: %w: expected two int64", d.o.SeedInput, seed.DType(), errPreprocessing)
		}
		feeds = append(feeds, seed)
	}
	if d.tf, err = tfbind.NewSession(d.graph, config); err != nil {
		return err
	}
	d.step, err = d.tf.Prepare(feeds, []tfbind.Output{output})
	return err
}

// checkOperations rejects operations with state in the graph and its functions, which include
// the bodies of loops and conditions.
func checkOperations(graph []byte) error {
	ops, err := graphdef.Ops(graph)
	if err != nil {
		return err
	}
	for _, op := range ops {
		if keeps, ok := contract.Fleeting(op.Type); ok {
			in := ""
			if op.Function != "" {
				in = " in function " + op.Function
			}
			return fmt.Errorf("operation %s (%s)%s %s, which no seed and no checkpoint restores: %w: use stateless operations, with random numbers from the seed of SeedInput",
				op.Name, op.Type, in, keeps, errPreprocessing)
		}
	}
	return nil
}

// close waits for a batch in progress and frees the graph.
func (d *preprocessed) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := errors.Join(d.step.Close(), d.tf.Close(), d.graph.Close())
	d.step, d.tf, d.graph = nil, nil, nil
	return err
}

// try processes the first samples to find the shape and type of the result.
func (d *preprocessed) try(ctx context.Context) error {
	d.at = slices.IndexFunc(d.fields, func(f data.FieldSpec) bool { return f.Name == d.o.Field })
	if d.at < 0 {
		names := make([]string, len(d.fields))
		for i, f := range d.fields {
			names[i] = f.Name
		}
		return fmt.Errorf("%s: no field %q; the names are %q: %w", d.Name(), d.o.Field, names, data.ErrField)
	}
	for b, err := range d.ds.Batches(data.Pass{Batch: min(2, max(d.Len(), 1))}) {
		if err != nil {
			return err
		}
		in, ok := b.Field(d.o.Field)
		if !ok {
			return fmt.Errorf("%s: batch %d has no field %q: %w", d.Name(), b.Index, d.o.Field, data.ErrFormat)
		}
		out, err := d.apply(ctx, 0, b.Index, in, nil, nil)
		if err != nil {
			return fmt.Errorf("%s: field %q: %w", d.Name(), d.o.Field, err)
		}
		d.fields = slices.Clone(d.fields)
		d.fields[d.at] = data.FieldSpec{Name: d.o.Field, Shape: out.Shape[1:], Type: d.out.String()}
		return nil
	}
	return fmt.Errorf("%s: no samples to try the preprocessing graph on: %w", d.Name(), data.ErrFormat)
}

// apply processes one batch of the field. epoch and batch are its position, from 0. sample is the
// expected shape of a sample, if not nil. The result uses the memory of buffer if it fits.
func (d *preprocessed) apply(ctx context.Context, epoch, batch int, in data.Array, sample []int, buffer any) (out data.Array, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if err != nil {
			out, err = data.Array{}, fmt.Errorf("%T of shape %v through the preprocessing graph %s -> %s: %w", in.Values, in.Shape, d.o.Input, d.o.Output, err)
		}
	}()
	if d.step == nil {
		return out, tfbind.ErrClosed
	}
	if len(in.Shape) == 0 {
		return out, fmt.Errorf("%w: the first size must be the number of samples", ErrData)
	}
	d.shape = d.shape[:0]
	for _, n := range in.Shape {
		d.shape = append(d.shape, int64(n))
	}
	if err := store(d.step, 0, d.in, in.Values, d.shape, whole); err != nil {
		return out, err
	}
	if d.o.SeedInput != "" {
		// A pass has fewer than 2^32 batches.
		seed := [2]int64{d.o.Seed, int64(epoch)<<32 + int64(batch)}
		if err := d.step.Set(1, seed[:], 2); err != nil {
			return out, err
		}
	}
	if err := d.step.Run(ctx); err != nil {
		return out, err
	}
	t, err := d.step.Output(0)
	if err != nil {
		return out, err
	}
	defer t.Close()
	for _, n := range t.Shape() {
		out.Shape = append(out.Shape, int(n))
	}
	if len(out.Shape) == 0 || out.Shape[0] != in.Shape[0] {
		return out, fmt.Errorf("%w: %d samples went in, and %s of shape %v came out; the first size must be the number of samples",
			errPreprocessing, in.Shape[0], d.out, out.Shape)
	}
	if sample != nil && !slices.Equal(out.Shape[1:], sample) {
		return out, fmt.Errorf("%w: samples of shape %v came out, expected %v like the first ones", errPreprocessing, out.Shape[1:], sample)
	}
	out.Values, err = t.Slice(buffer)
	return out, err
}

func (d *preprocessed) Name() string { return d.ds.Name() }

func (d *preprocessed) Len() int { return d.ds.Len() }

func (d *preprocessed) Fields() []data.FieldSpec {
	fields := slices.Clone(d.fields)
	for i := range fields {
		fields[i].Shape = slices.Clone(fields[i].Shape)
	}
	return fields
}

// Source returns the dataset before the graph. Source and Describe identify the data in
// checkpoints. The names in the graph are not part of the identity.
func (d *preprocessed) Source() data.Dataset { return d.ds }

func (d *preprocessed) Describe() string {
	text := fmt.Sprintf("field %q through a graph (sha256 %s)", d.o.Field, d.sum)
	if d.o.SeedInput != "" {
		text += fmt.Sprintf(", seed %d", d.o.Seed)
	}
	return text
}

func (d *preprocessed) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		memory := cmp.Or(d.idle.Swap(nil), &batchMemory{})
		defer d.idle.Store(memory)
		for b, err := range d.ds.Batches(p) {
			if err == nil {
				if err = d.process(p.Epoch, &b, memory); err != nil {
					err = fmt.Errorf("%s: batch %d: field %q: %w", d.Name(), b.Index, d.o.Field, err)
				}
			}
			if err != nil {
				yield(data.Batch{}, err)
				return
			}
			if !yield(b, nil) {
				return
			}
		}
	}
}

// process replaces the field of a batch with the graph's result. The batch then uses the memory.
func (d *preprocessed) process(epoch int, b *data.Batch, memory *batchMemory) error {
	spec := d.fields[d.at]
	if d.at >= len(b.Fields) || b.Fields[d.at].Name != spec.Name {
		return fmt.Errorf("field %d of the batch does not have the name that the dataset declares: %w", d.at, data.ErrFormat)
	}
	out, err := d.apply(context.Background(), epoch, b.Index, b.Fields[d.at].Array, spec.Shape, memory.values)
	if err != nil {
		return err
	}
	memory.values = out.Values
	memory.fields = append(memory.fields[:0], b.Fields...)
	memory.fields[d.at].Array = out
	b.Fields = memory.fields
	return nil
}
