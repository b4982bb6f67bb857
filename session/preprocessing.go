package session

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// PreprocessingOptions say how a preprocessing graph is run.
type PreprocessingOptions struct {
	// Input and Output are tensors of the graph, as in "images" or "augmented:0". Their
	// first size is the number of samples, which may vary.
	Input, Output string
	// SeedInput is a tensor that takes two int64, the seed of TensorFlow's stateless
	// random operations; empty if the graph draws no random numbers. It is fed Seed,
	// and the position of the batch as epoch<<32 + batch.
	SeedInput string
	Seed      int64
	// Device are the settings of TensorFlow's devices, as in Options.
	Device gpuopts.Options
}

// ErrPreprocessing means that the graph cannot preprocess batches, or gives a wrong result.
var ErrPreprocessing = errors.New("the graph does not fit for preprocessing")

// Preprocessing is a graph that a field of the data passes through before the model, such
// as an augmentation or a normalization. It keeps the number of samples, and may change
// their shape and element type. The result depends only on the batch, the seed and the
// position. It runs in a native session of its own.
//
// It is safe for concurrent use; batches are processed one at a time.
type Preprocessing struct {
	o       PreprocessingOptions
	sum     string // of the graph
	in, out tfbind.DType

	// mu is held while the native step is used, and by Close.
	mu    sync.Mutex
	graph *tfbind.Graph
	tf    *tfbind.Session
	step  *tfbind.Step
	shape []int64 // scratch
}

// OpenPreprocessing loads a serialized GraphDef, which may come from other bindings of
// TensorFlow. The result must be closed. A name that the graph lacks is
// tfbind.ErrNotFound.
//
// Strings, half-precision outputs, and operations whose results depend on what ran before
// (random numbers without a seed, queues, tables, iterators), also in functions, are
// ErrPreprocessing: a resumed training could not repeat them. Variables have no value. The
// graph is trusted: operations that touch files are not refused.
//
// ctx is looked at before loading, which TensorFlow cannot interrupt.
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
	if err = p.checkOperations(graph); err != nil {
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
		return fmt.Errorf("output %q is %s, which no batch has: %w: cast it in the graph, to float32 for one", p.o.Output, p.out, ErrPreprocessing)
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

// checkOperations refuses operations whose results depend on what ran before, also in
// functions, which have the bodies of loops and conditions.
func (p *Preprocessing) checkOperations(graph []byte) error {
	list, err := p.graph.Operations()
	if err != nil {
		return err
	}
	ops, err := graphdef.FunctionOps(graph)
	if err != nil {
		return err
	}
	for _, op := range list {
		ops = append(ops, graphdef.Op{Name: op.Name(), Type: op.Type()})
	}
	for _, op := range ops {
		if keeps, ok := savedmodels.Fleeting(op.Type); ok {
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

// Close frees the session, the graph and the buffers, at the end of a batch that is being
// processed. Closing twice does nothing; later batches are tfbind.ErrClosed.
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

// Apply processes one batch of a field, for loops without a dataset. epoch and batch are
// its position, from 0. The result is new memory. Values are converted to the input's
// element type as by [Step.Set], but the shape stays. ctx is looked at before the run,
// which is not interrupted.
func (p *Preprocessing) Apply(ctx context.Context, epoch, batch int, values data.Array) (data.Array, error) {
	return p.apply(ctx, epoch, batch, values, nil, nil)
}

// apply is Apply. sample, if not nil, is the expected shape of a sample. The values are put
// into buffer if they fit.
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
		return out, fmt.Errorf("%w: the first size has to count the samples", ErrData)
	}
	p.shape = p.shape[:0]
	for _, d := range in.Shape {
		p.shape = append(p.shape, int64(d))
	}
	if err := store(p.step, 0, p.in, in.Values, p.shape, whole); err != nil {
		return out, err
	}
	if p.o.SeedInput != "" {
		// A pass has fewer batches than 2^32.
		seed := [2]int64{p.o.Seed, int64(epoch)<<32 + int64(batch)}
		if err := tfbind.Set(p.step, 1, seed[:], 2); err != nil {
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
		return out, fmt.Errorf("%w: %d samples went in, and %s of shape %v came out; the first size has to be the number of samples",
			ErrPreprocessing, in.Shape[0], p.out, out.Shape)
	}
	if sample != nil && !slices.Equal(out.Shape[1:], sample) {
		return out, fmt.Errorf("%w: samples of shape %v came out, expected %v, as for the first ones", ErrPreprocessing, out.Shape[1:], sample)
	}
	out.Values, err = t.Slice(buffer)
	return out, err
}

// Dataset is ds with a field that passes through the graph, batch by batch. The caller
// closes the Preprocessing after the last pass. Concurrent passes take turns. With
// data.Prefetch, the graph runs in the prefetcher's goroutine. A checkpoint compares the
// data before the graph, the graph and the seed.
//
// The first two samples of ds are processed to find the shape and type of the results.
func (p *Preprocessing) Dataset(ds data.Dataset, field string) (data.Dataset, error) {
	d := &preprocessed{graph: p, ds: ds, fields: ds.Fields()}
	d.at = slices.IndexFunc(d.fields, func(f data.FieldSpec) bool { return f.Name == field })
	if d.at < 0 {
		names := make([]string, len(d.fields))
		for i, f := range d.fields {
			names[i] = f.Name
		}
		return nil, fmt.Errorf("%s: no field %q; there are %q: %w", ds.Name(), field, names, data.ErrField)
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

// preprocessed is a dataset with a field that passes through a graph.
type preprocessed struct {
	graph  *Preprocessing
	ds     data.Dataset
	at     int // the field
	fields []data.FieldSpec
	idle   atomic.Pointer[buffers]
}

// buffers are the memory of a pass; the next pass uses it again.
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

// Source is the dataset before the graph, and Describe identifies the graph, for
// checkpoints. Names in the graph do not count.
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
		buf := d.idle.Swap(nil)
		if buf == nil {
			buf = &buffers{}
		}
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

// process replaces the field of a batch.
func (d *preprocessed) process(epoch int, b *data.Batch, buf *buffers) error {
	spec := d.fields[d.at]
	if d.at >= len(b.Fields) || b.Fields[d.at].Name != spec.Name {
		return fmt.Errorf("it is not field %d, as the dataset describes: %w", d.at, data.ErrFormat)
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
