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

// StageOptions say how a graph is run as a stage.
type StageOptions struct {
	// Input and Output are tensors of the graph, as in "images" or "augmented:0". The
	// first size of both counts the samples, and is the same for both; the graph takes
	// any number of them, since the last batch of a pass may be smaller.
	Input, Output string
	// SeedInput is a tensor that takes two int64, the seed of TensorFlow's stateless
	// random operations; empty if the graph draws no random numbers. It is fed Seed,
	// and the position of the batch as epoch<<32 + batch.
	SeedInput string
	Seed      int64
	// Device are the settings of TensorFlow's devices, as in Options. Those that it
	// takes once per process have to be those of the other sessions.
	Device gpuopts.Options
}

// ErrStage: a graph that cannot be a stage, or does not give what a stage has to.
var ErrStage = errors.New("the graph does not fit as a stage")

// Stage is a graph between a field of the data and the batches: an augmentation or a
// normalization. A batch goes in, and as many samples come out,
// which may have another shape and element type. It runs in a native session of its
// own, beside the one that trains.
//
// It is safe for concurrent use; batches are taken one at a time. What comes out
// depends on the batch, the seed and the position alone.
type Stage struct {
	o   StageOptions
	sum string // of the graph
	in  tfbind.DType
	out tfbind.DType

	// mu is held while the native step is used, and by Close.
	mu    sync.Mutex
	graph *tfbind.Graph
	tf    *tfbind.Session
	step  *tfbind.Step
	shape []int64 // scratch
}

// OpenStage loads a serialized GraphDef, which need not come from a SavedModel: other
// bindings of TensorFlow write one, too. The result must be closed. A name that the
// graph does not have is tfbind.ErrNotFound.
//
// Strings, half-precision outputs, and operations that draw random numbers without a
// seed from outside, or keep queues, tables or positions, are ErrStage, also in functions
// of the graph: after a resume they would go on as if nothing had been drawn or read. Variables have no value.
// The graph is trusted: operations that touch files are not refused.
//
// ctx is looked at before loading, which TensorFlow cannot interrupt.
func OpenStage(ctx context.Context, graph []byte, o StageOptions) (*Stage, error) {
	if err := causeOf(ctx); err != nil {
		return nil, fmt.Errorf("open stage: %w", err)
	}
	config, err := o.Device.ConfigProto()
	if err == nil {
		err = settle(o.Device, config)
	}
	if err != nil {
		return nil, fmt.Errorf("open stage: device options: %w", err)
	}
	s := &Stage{o: o}
	if s.sum, err = graphdef.Sum(graph); err == nil {
		err = s.load(graph, config)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open stage: %w", err), s.Close())
	}
	return s, nil
}

func (s *Stage) load(graph, config []byte) (err error) {
	if s.graph, err = tfbind.NewGraph(); err != nil {
		return err
	}
	if err = s.graph.Import(graph, ""); err != nil {
		return err
	}
	if err = s.checkOperations(graph); err != nil {
		return err
	}
	spec := tfbind.StepSpec{}
	names := []string{s.o.Input}
	if s.o.SeedInput != "" {
		names = append(names, s.o.SeedInput)
	}
	for _, name := range names {
		t, err := s.graph.Output(name)
		if err != nil {
			return fmt.Errorf("input %q: %w", name, err)
		}
		spec.Feeds = append(spec.Feeds, t)
	}
	output, err := s.graph.Output(s.o.Output)
	if err != nil {
		return fmt.Errorf("output %q: %w", s.o.Output, err)
	}
	spec.Fetches = []tfbind.Output{output}
	s.in, s.out = spec.Feeds[0].DType(), output.DType()
	if s.in.Size() == 0 {
		return fmt.Errorf("input %q takes %s: %w: expected numbers or bool", s.o.Input, s.in, ErrStage)
	}
	if s.o.SeedInput != "" && spec.Feeds[1].DType() != tfbind.Int64 {
		return fmt.Errorf("seed input %q takes %s: %w: expected two int64", s.o.SeedInput, spec.Feeds[1].DType(), ErrStage)
	}
	if out := dtype.ByCode(int32(s.out)); out == nil || out.Slice == nil || out.Kind == dtype.String {
		return fmt.Errorf("output %q is %s, which no batch has: %w: cast it in the graph, to float32 for one", s.o.Output, s.out, ErrStage)
	}
	if s.tf, err = tfbind.NewSession(s.graph, config); err != nil {
		return err
	}
	s.step, err = s.tf.Prepare(spec)
	return err
}

// checkOperations refuses those whose results depend on what ran before, also in functions,
// where the bodies of loops and conditions are.
func (s *Stage) checkOperations(graph []byte) error {
	check := func(name, kind, in string) error {
		if keeps, ok := savedmodels.Fleeting(kind); ok {
			return fmt.Errorf("operation %s (%s)%s %s, which no seed and no checkpoint brings back: %w: use stateless operations, with random numbers from the seed of SeedInput",
				name, kind, in, keeps, ErrStage)
		}
		return nil
	}
	ops, err := s.graph.Operations()
	if err != nil {
		return err
	}
	for _, op := range ops {
		if err := check(op.Name(), op.Type(), ""); err != nil {
			return err
		}
	}
	inner, err := graphdef.FunctionOps(graph)
	if err != nil {
		return err
	}
	for _, op := range inner {
		if err := check(op.Name, op.Type, " in function "+op.Function); err != nil {
			return err
		}
	}
	return nil
}

// Close frees the session, the graph and the buffers, when the batch that is being
// made is done. Closing twice does nothing; a batch that is asked for afterwards is
// tfbind.ErrClosed.
func (s *Stage) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errors.Join(s.step.Close(), s.tf.Close(), s.graph.Close())
	s.step, s.tf, s.graph = nil, nil, nil
	return err
}

// Apply gives one batch of a field to the graph, for loops without a dataset. epoch
// and batch are its position, from 0. The result is new memory. Values are converted
// to the input's element type as by [Step.Set], but the shape stays what it is.
//
// ctx is looked at before the run, which is not interrupted.
func (s *Stage) Apply(ctx context.Context, epoch, batch int, values data.Array) (data.Array, error) {
	out, err := s.apply(ctx, epoch, batch, values, nil)
	if err != nil {
		return data.Array{}, s.failed(values, err)
	}
	return out, nil
}

// failed says what a batch was given to.
func (s *Stage) failed(in data.Array, err error) error {
	return fmt.Errorf("%T of shape %v through the stage %s -> %s: %w", in.Values, in.Shape, s.o.Input, s.o.Output, err)
}

// apply is Apply; the values are put where room has room for them.
func (s *Stage) apply(ctx context.Context, epoch, batch int, in data.Array, room any) (out data.Array, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.step == nil {
		return out, tfbind.ErrClosed
	}
	if len(in.Shape) == 0 {
		return out, fmt.Errorf("%w: the first size has to count the samples", ErrData)
	}
	s.shape = s.shape[:0]
	for _, d := range in.Shape {
		s.shape = append(s.shape, int64(d))
	}
	if err := store(s.step, 0, s.in, in.Values, s.shape, whole); err != nil {
		return out, err
	}
	if s.o.SeedInput != "" {
		// A pass has fewer batches than 2^32.
		seed := [2]int64{s.o.Seed, int64(epoch)<<32 + int64(batch)}
		if err := tfbind.Set(s.step, 1, seed[:], 2); err != nil {
			return out, err
		}
	}
	if err := s.step.Run(ctx); err != nil {
		return out, err
	}
	t, err := s.step.Output(0)
	if err != nil {
		return out, err
	}
	defer t.Close()
	for _, d := range t.Shape() {
		out.Shape = append(out.Shape, int(d))
	}
	if len(out.Shape) == 0 || out.Shape[0] != in.Shape[0] {
		return out, fmt.Errorf("%w: %d samples went in, and %s of shape %v came out; the first size has to be the number of samples", ErrStage, in.Shape[0], s.out, out.Shape)
	}
	out.Values, err = t.Slice(room)
	return out, err
}

// Dataset is ds with the samples of a field given to the stage, batch by batch. The
// stage stays the caller's, to be closed after the last pass. Concurrent passes take
// turns.
//
// It is read ahead by data.Prefetch like any other dataset: the stage runs in the
// prefetcher's goroutine then, while earlier batches are trained on. A checkpoint
// compares the data before the stage, the graph and the seed, and runs nothing for it.
//
// The shape and type of the new samples are found by giving the stage the first two
// of ds.
func (s *Stage) Dataset(ds data.Dataset, field string) (data.Dataset, error) {
	d := &staged{stage: s, ds: ds, fields: ds.Fields()}
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
		out, err := s.Apply(context.Background(), 0, b.Index, in)
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", ds.Name(), field, err)
		}
		d.fields = slices.Clone(d.fields)
		d.fields[d.at] = data.FieldSpec{Name: field, Shape: out.Shape[1:], Type: s.out.String()}
		return d, nil
	}
	return nil, fmt.Errorf("%s: no samples to try the stage on: %w", ds.Name(), data.ErrFormat)
}

// staged is a dataset with a stage between one of its fields and the batches.
type staged struct {
	stage  *Stage
	ds     data.Dataset
	at     int // the field
	fields []data.FieldSpec
	idle   atomic.Pointer[stageRoom]
}

// stageRoom is what a pass hands out; one is kept for the next pass.
type stageRoom struct {
	values any
	fields []data.Field
}

func (d *staged) Name() string { return d.ds.Name() }

func (d *staged) Len() int { return d.ds.Len() }

func (d *staged) Fields() []data.FieldSpec {
	fields := slices.Clone(d.fields)
	for i := range fields {
		fields[i].Shape = slices.Clone(fields[i].Shape)
	}
	return fields
}

// Source is the dataset before the stage, and Describe what the stage is: a checkpoint
// goes by them. Names in the graph do not count.
func (d *staged) Source() data.Dataset { return d.ds }

func (d *staged) Describe() string {
	text := fmt.Sprintf("field %q through a graph (sha256 %s)", d.fields[d.at].Name, d.stage.sum)
	if d.stage.o.SeedInput != "" {
		text += fmt.Sprintf(", seed %d", d.stage.o.Seed)
	}
	return text
}

func (d *staged) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		room := d.idle.Swap(nil)
		if room == nil {
			room = &stageRoom{}
		}
		defer d.idle.Store(room)
		for b, err := range d.ds.Batches(p) {
			if err == nil {
				b, err = d.make(p.Epoch, b, room)
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

// make is a batch after the stage, of which the field lies in room.
func (d *staged) make(epoch int, b data.Batch, room *stageRoom) (data.Batch, error) {
	spec := d.fields[d.at]
	fail := func(err error) (data.Batch, error) {
		return data.Batch{}, fmt.Errorf("%s: batch %d: field %q: %w", d.Name(), b.Index, spec.Name, err)
	}
	if d.at >= len(b.Fields) || b.Fields[d.at].Name != spec.Name {
		return fail(fmt.Errorf("it is not number %d, as was promised: %w", d.at, data.ErrFormat))
	}
	in := b.Fields[d.at].Array
	out, err := d.stage.apply(context.Background(), epoch, b.Index, in, room.values)
	if err == nil && !slices.Equal(out.Shape[1:], spec.Shape) {
		err = fmt.Errorf("%w: samples of shape %v came out, expected %v, as for the first ones", ErrStage, out.Shape[1:], spec.Shape)
	}
	if err != nil {
		return fail(d.stage.failed(in, err))
	}
	room.values = out.Values
	room.fields = append(room.fields[:0], b.Fields...)
	room.fields[d.at].Array = out
	b.Fields = room.fields
	return b, nil
}
