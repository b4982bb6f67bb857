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
	// Input and Output are names of tensors in the graph, such as "images" or "augmented:0".
	// Their first dimension counts the samples and must be open.
	Input, Output string
	// SeedInput is the name of a tensor of two int64, for TensorFlow's stateless random
	// operations. It gets Seed and the position of the batch, epoch<<32 + batch. It is empty if
	// the graph draws no random numbers.
	SeedInput string
	Seed      int64
	// Device are the settings of TensorFlow's devices, like Options.Device.
	Device gpuopts.Options
}

// ErrPreprocessing means that the graph cannot preprocess batches or returned a wrong shape.
var ErrPreprocessing = errors.New("the graph cannot be used for preprocessing")

// Preprocessing is a graph that transforms a field of the data, such as an augmentation or a
// normalization. It may change the shape and the type of samples, but not their number. The
// result depends only on the batch, the seed and the position of the batch. The graph runs in a
// native session separate from the model's.
//
// Several goroutines may use a Preprocessing. It processes one batch at a time.
type Preprocessing struct {
	o       PreprocessingOptions
	sum     string // hash of the graph
	in, out tfbind.DType

	// mu protects the native step.
	mu    sync.Mutex
	graph *tfbind.Graph
	tf    *tfbind.Session
	step  *tfbind.Step
	shape []int64 // scratch
}

// OpenPreprocessing loads a serialized GraphDef, which any TensorFlow binding can write. The
// result must be closed. A missing name is tfbind.ErrNotFound. The error is ErrPreprocessing if
// the graph
//   - returns strings or half-precision values, or
//   - has an operation with state, such as random numbers without a seed, a queue, a table or
//     an iterator. A resumed training could not repeat its results.
//
// Variables have no value. The graph must be trusted, since it may access files. ctx is checked
// before loading, which TensorFlow cannot interrupt.
func OpenPreprocessing(ctx context.Context, graph []byte, o PreprocessingOptions) (*Preprocessing, error) {
	p := &Preprocessing{o: o}
	err := causeOf(ctx)
	if err == nil {
		p.sum, err = graphdef.Sum(graph)
	}
	if err == nil {
		err = p.load(graph)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open preprocessing graph: %w", err), p.Close())
	}
	return p, nil
}

func (p *Preprocessing) load(graph []byte) error {
	config, err := p.o.Device.ConfigProto()
	if err == nil {
		err = settle(p.o.Device, config)
	}
	if err != nil {
		return fmt.Errorf("device options: %w", err)
	}
	if p.graph, err = tfbind.NewGraph(); err != nil {
		return err
	}
	if err = p.graph.Import(graph, ""); err != nil {
		return err
	}
	if err = checkOperations(graph); err != nil {
		return err
	}
	input, err := p.graph.Output(p.o.Input)
	if err != nil {
		return fmt.Errorf("input %q: %w", p.o.Input, err)
	}
	output, err := p.graph.Output(p.o.Output)
	if err != nil {
		return fmt.Errorf("output %q: %w", p.o.Output, err)
	}
	spec := tfbind.StepSpec{Feeds: []tfbind.Output{input}, Fetches: []tfbind.Output{output}}
	p.in, p.out = input.DType(), output.DType()
	if p.in.Size() == 0 {
		return fmt.Errorf("input %q takes %s: %w: expected numbers or bool", p.o.Input, p.in, ErrPreprocessing)
	}
	if out := dtype.ByCode(int32(p.out)); out == nil || out.Slice == nil || out.Kind == dtype.String {
		return fmt.Errorf("output %q is %s, which batches do not support: %w: cast it in the graph, for example to float32", p.o.Output, p.out, ErrPreprocessing)
	}
	if p.o.SeedInput != "" {
		seed, err := p.graph.Output(p.o.SeedInput)
		if err != nil {
			return fmt.Errorf("input %q: %w", p.o.SeedInput, err)
		}
		if seed.DType() != tfbind.Int64 {
			return fmt.Errorf("seed input %q takes %s: %w: expected two int64", p.o.SeedInput, seed.DType(), ErrPreprocessing)
		}
		spec.Feeds = append(spec.Feeds, seed)
	}
	if p.tf, err = tfbind.NewSession(p.graph, config); err != nil {
		return err
	}
	p.step, err = p.tf.Prepare(spec)
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
				op.Name, op.Type, in, keeps, ErrPreprocessing)
		}
	}
	return nil
}

// Close waits for a batch in progress and frees the graph. Closing twice does nothing, and
// later batches return tfbind.ErrClosed.
func (p *Preprocessing) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := errors.Join(p.step.Close(), p.tf.Close(), p.graph.Close())
	p.step, p.tf, p.graph = nil, nil, nil
	return err
}

// Apply processes one batch of a field in new memory. epoch and batch are its position, from 0.
// Values are converted to the input's element type as in [Step.Set]. ctx is checked before the
// run, which is not interrupted.
func (p *Preprocessing) Apply(ctx context.Context, epoch, batch int, values data.Array) (data.Array, error) {
	return p.apply(ctx, epoch, batch, values, nil, nil)
}

// apply implements Apply. sample is the expected shape of a sample, if not nil. The result uses
// the memory of buffer if it fits.
func (p *Preprocessing) apply(ctx context.Context, epoch, batch int, in data.Array, sample []int, buffer any) (out data.Array, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() {
		if err != nil {
			out, err = data.Array{}, fmt.Errorf("%T of shape %v through the preprocessing graph %s -> %s: %w", in.Values, in.Shape, p.o.Input, p.o.Output, err)
		}
	}()
	if p.step == nil {
		return out, tfbind.ErrClosed
	}
	if len(in.Shape) == 0 {
		return out, fmt.Errorf("%w: the first size must be the number of samples", ErrData)
	}
	p.shape = p.shape[:0]
	for _, d := range in.Shape {
		p.shape = append(p.shape, int64(d))
	}
	if err := store(p.step, 0, p.in, in.Values, p.shape, whole); err != nil {
		return out, err
	}
	if p.o.SeedInput != "" {
		// A pass has fewer than 2^32 batches.
		seed := [2]int64{p.o.Seed, int64(epoch)<<32 + int64(batch)}
		if err := p.step.Set(1, seed[:], 2); err != nil {
			return out, err
		}
	}
	if err := p.step.Run(ctx); err != nil {
		return out, err
	}
	t, err := p.step.Output(0)
	if err != nil {
		return out, err
	}
	defer t.Close()
	for _, d := range t.Shape() {
		out.Shape = append(out.Shape, int(d))
	}
	if len(out.Shape) == 0 || out.Shape[0] != in.Shape[0] {
		return out, fmt.Errorf("%w: %d samples went in, and %s of shape %v came out; the first size must be the number of samples",
			ErrPreprocessing, in.Shape[0], p.out, out.Shape)
	}
	if sample != nil && !slices.Equal(out.Shape[1:], sample) {
		return out, fmt.Errorf("%w: samples of shape %v came out, expected %v like the first ones", ErrPreprocessing, out.Shape[1:], sample)
	}
	out.Values, err = t.Slice(buffer)
	return out, err
}

// Dataset returns ds with a field that the graph transforms. The caller closes the
// Preprocessing after the last pass. Concurrent passes wait for each other. With data.Prefetch,
// the graph runs in the goroutine that reads ahead. The identity in a checkpoint consists of
// ds, the graph and the seed.
//
// To find the shape and type of the result, Dataset processes the first two samples.
func (p *Preprocessing) Dataset(ds data.Dataset, field string) (data.Dataset, error) {
	d := &preprocessed{graph: p, ds: ds, fields: ds.Fields()}
	d.at = slices.IndexFunc(d.fields, func(f data.FieldSpec) bool { return f.Name == field })
	if d.at < 0 {
		names := make([]string, len(d.fields))
		for i, f := range d.fields {
			names[i] = f.Name
		}
		return nil, fmt.Errorf("%s: no field %q; the names are %q: %w", ds.Name(), field, names, data.ErrField)
	}
	for b, err := range ds.Batches(data.Pass{Batch: min(2, max(ds.Len(), 1))}) {
		if err != nil {
			return nil, err
		}
		in, ok := b.Field(field)
		if !ok {
			return nil, fmt.Errorf("%s: batch %d has no field %q: %w", ds.Name(), b.Index, field, data.ErrFormat)
		}
		out, err := p.Apply(context.Background(), 0, b.Index, in)
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", ds.Name(), field, err)
		}
		d.fields = slices.Clone(d.fields)
		d.fields[d.at] = data.FieldSpec{Name: field, Shape: out.Shape[1:], Type: p.out.String()}
		return d, nil
	}
	return nil, fmt.Errorf("%s: no samples to try the preprocessing graph on: %w", ds.Name(), data.ErrFormat)
}

type preprocessed struct {
	graph  *Preprocessing
	ds     data.Dataset
	at     int // index of the field
	fields []data.FieldSpec
	idle   atomic.Pointer[buffers]
}

// buffers is memory that the next pass uses again.
type buffers struct {
	values any
	fields []data.Field
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
	text := fmt.Sprintf("field %q through a graph (sha256 %s)", d.fields[d.at].Name, d.graph.sum)
	if d.graph.o.SeedInput != "" {
		text += fmt.Sprintf(", seed %d", d.graph.o.Seed)
	}
	return text
}

func (d *preprocessed) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		buf := cmp.Or(d.idle.Swap(nil), &buffers{})
		defer d.idle.Store(buf)
		for b, err := range d.ds.Batches(p) {
			if err == nil {
				if err = d.process(p.Epoch, &b, buf); err != nil {
					err = fmt.Errorf("%s: batch %d: field %q: %w", d.Name(), b.Index, d.fields[d.at].Name, err)
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

// process replaces the field of a batch with the graph's result.
func (d *preprocessed) process(epoch int, b *data.Batch, buf *buffers) error {
	spec := d.fields[d.at]
	if d.at >= len(b.Fields) || b.Fields[d.at].Name != spec.Name {
		return fmt.Errorf("field %d of the batch does not have the name that the dataset declares: %w", d.at, data.ErrFormat)
	}
	out, err := d.graph.apply(context.Background(), epoch, b.Index, b.Fields[d.at].Array, spec.Shape, buf.values)
	if err != nil {
		return err
	}
	buf.values = out.Values
	buf.fields = append(buf.fields[:0], b.Fields...)
	buf.fields[d.at].Array = out
	b.Fields = buf.fields
	return nil
}
