package workload

import (
	"context"
	"errors"
	"fmt"

	"steadyfit/data"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/cell"
	"steadyfit/tfbind"
)

// pipeline is a tf.data pipeline inside a graph of its own: slices of tensors that
// it is fed, a shuffle buffer, batches, and an iterator over them that begins anew
// with each pass.
type pipeline struct {
	session *tfbind.Session
	whole   []*tfbind.Tensor // all samples, a tensor per field
	feeds   tfbind.Feeds
	begin   tfbind.Operation
	next    []tfbind.Output
	room    data.Batch
	passLen int
	at      int
}

type pipelineOptions struct {
	// shuffle and prefetch are the sizes of the buffers: samples and batches; 0 is
	// none, and prefetch -1 leaves it to TensorFlow.
	shuffle, prefetch int
}

func newPipeline(ctx context.Context, c *cell.Child, s *synth, samples int, o pipelineOptions) (*pipeline, error) {
	if samples < c.Spec.Batch {
		return nil, fmt.Errorf("%d samples are no batch of %d", samples, c.Spec.Batch)
	}
	p := &pipeline{room: s.batch(c.Spec.Batch), passLen: samples / c.Spec.Batch}
	var err error
	if p.session, err = openGraph(pipelineGraph(s, c.Spec.Batch, o, c.Spec.Seed), c.Spec.Config); err != nil {
		return nil, err
	}
	if err = p.load(s, samples); err == nil {
		err = p.resolve(s)
	}
	if err == nil {
		// Where an earlier process ended, the pass begins anew.
		err = p.rewind(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func pipelineGraph(s *synth, batch int, o pipelineOptions, seed int64) *graphdef.Graph {
	g := new(graphdef.Graph)
	var types []tfbind.DType
	var shapes, batched [][]int64
	var inputs []string
	for _, f := range s.fields {
		g.Placeholder("all_"+f.name, f.dtype)
		shape := make([]int64, len(f.shape))
		for i, d := range f.shape {
			shape[i] = int64(d)
		}
		types, shapes = append(types, f.dtype), append(shapes, shape)
		batched = append(batched, append([]int64{int64(batch)}, shape...))
		inputs = append(inputs, "all_"+f.name)
	}
	of := func(shapes [][]int64) graphdef.Attrs {
		return graphdef.Attrs{"output_types": graphdef.Types(types), "output_shapes": graphdef.Shapes(shapes)}
	}
	g.Add("slices", "TensorSliceDataset", graphdef.Attrs{"Toutput_types": graphdef.Types(types), "output_shapes": graphdef.Shapes(shapes)}, inputs...)
	last := "slices"
	if o.shuffle > 0 {
		g.Number("shuffle_size", int64(o.shuffle)).Number("seed", seed).Number("seed2", 11).
			Add("shuffle", "ShuffleDataset", of(shapes), last, "shuffle_size", "seed", "seed2")
		last = "shuffle"
	}
	drop := of(batched)
	g.Number("batch_size", int64(batch)).Constant("drop", tfbind.Bool, []byte{1}).
		Add("batch", "BatchDatasetV2", drop, last, "batch_size", "drop")
	last = "batch"
	if o.prefetch != 0 {
		g.Number("prefetch_size", int64(o.prefetch)).Add("prefetch", "PrefetchDataset", of(batched), last, "prefetch_size")
		last = "prefetch"
	}
	iterator := of(batched)
	iterator["shared_name"], iterator["container"] = graphdef.Text("steadyfit"), graphdef.Text("")
	return g.Add("iterator", "IteratorV2", iterator).
		Add("begin", "MakeIterator", nil, last, "iterator").
		Add("next", "IteratorGetNext", of(batched), "iterator")
}

// load copies all samples into tensors.
func (p *pipeline) load(s *synth, samples int) error {
	b := s.batch(samples)
	s.fillAll(b, 0)
	for _, f := range b.Fields {
		x, err := newTensor(f.Array)
		if err != nil {
			return err
		}
		p.whole = append(p.whole, x)
	}
	return nil
}

func (p *pipeline) resolve(s *synth) (err error) {
	p.feeds = make(tfbind.Feeds)
	p.next = make([]tfbind.Output, len(s.fields))
	for i, f := range s.fields {
		var in tfbind.Output
		if err := find(p.session, "all_"+f.name, &in); err != nil {
			return err
		}
		p.feeds[in] = p.whole[i]
		if err := find(p.session, fmt.Sprintf("next:%d", i), &p.next[i]); err != nil {
			return err
		}
	}
	p.begin, err = p.session.Graph().Operation("begin")
	return err
}

func (p *pipeline) rewind(ctx context.Context) error {
	_, err := p.session.RunWith(ctx, p.feeds, nil, tfbind.RunOptions{Targets: []tfbind.Operation{p.begin}})
	p.at = 0
	return err
}

func (p *pipeline) take(ctx context.Context) (data.Batch, error) {
	if p.at == p.passLen {
		if err := p.rewind(ctx); err != nil {
			return data.Batch{}, err
		}
	}
	out, err := p.session.Run(ctx, nil, p.next)
	if err != nil {
		return data.Batch{}, err
	}
	defer out.Close()
	for i, x := range out {
		if err := copyTo(p.room.Fields[i].Values, x); err != nil {
			return data.Batch{}, err
		}
	}
	p.room.Index = p.at
	p.at++
	return p.room, nil
}

func copyTo(to any, x *tfbind.Tensor) error {
	switch v := to.(type) {
	case []float32:
		return tfbind.CopyTo(v, x)
	case []int64:
		return tfbind.CopyTo(v, x)
	case []int32:
		return tfbind.CopyTo(v, x)
	case []uint8:
		return tfbind.CopyTo(v, x)
	}
	return fmt.Errorf("%w: %T", tfbind.ErrType, to)
}

func (p *pipeline) close() error {
	for _, x := range p.whole {
		x.Close()
	}
	return closeGraph(p.session)
}

// newW11 trains from a shuffling pipeline; an epoch of whole batches is a pass.
func newW11(ctx context.Context, c *cell.Child) (job, error) {
	shuffle, err := c.Int("shuffle", 1000)
	if err != nil {
		return nil, err
	}
	prefetch, err := c.Int("prefetch", 0)
	if err != nil {
		return nil, err
	}
	t, err := newTrainer(ctx, c)
	if err != nil {
		return nil, err
	}
	l := &loop{trainer: t}
	s, err := t.synth()
	if err == nil {
		l.source, err = newPipeline(ctx, c, s, c.Spec.SetSize(), pipelineOptions{shuffle, prefetch})
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return l, nil
}
