package programs

import (
	"context"
	"fmt"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/synth"
	"steadyfit/tfbind"
)

// pipeline is a tf.data pipeline in its own graph: slices of the fed tensors, a shuffle buffer,
// batches, and an iterator that restarts with each pass.
type pipeline struct {
	session *tfbind.Session
	feeds   tfbind.Feeds // all samples, a tensor per field
	next    []tfbind.Output
	batch   data.Batch
	passLen int
	at      int
}

// pipeline opens a pipeline with a shuffle buffer of samples and a prefetch buffer of batches.
// 0 means no buffer, and a prefetch of -1 lets TensorFlow choose. A process that continues
// restarts the pass.
func (b *run) pipeline(ctx context.Context, s *synth.Synth, samples, shuffle, prefetch int) *pipeline {
	if samples < b.Batch {
		program.Check(fmt.Errorf("%d samples are fewer than a batch of %d", samples, b.Batch))
	}
	p := &pipeline{batch: s.Batch(b.Batch), passLen: samples / b.Batch, feeds: make(tfbind.Feeds)}
	p.session = b.graph(pipelineGraph(s, b.Batch, shuffle, prefetch, b.Seed))
	all := s.Batch(samples)
	s.FillAll(all, 0)
	for i, f := range all.Fields {
		found := outputs(p.session, "all_"+f.Name, fmt.Sprintf("next:%d", i))
		x := program.Must(newTensor(f.Array))
		b.OnClose(x.Close)
		p.feeds[found[0]] = x
		p.next = append(p.next, found[1])
	}
	p.rewind(ctx)
	return p
}

func pipelineGraph(s *synth.Synth, batch, shuffle, prefetch int, seed int64) *graphdef.Graph {
	g := new(graphdef.Graph)
	var types []dtype.DType
	var shapes, batched [][]int64
	var inputs []string
	for _, f := range s.Fields {
		g.Placeholder("all_"+f.Name, f.DType)
		shape := make([]int64, len(f.Shape))
		for i, d := range f.Shape {
			shape[i] = int64(d)
		}
		types, shapes = append(types, f.DType), append(shapes, shape)
		batched = append(batched, append([]int64{int64(batch)}, shape...))
		inputs = append(inputs, "all_"+f.Name)
	}
	of := func(shapes [][]int64) graphdef.Attrs {
		return graphdef.Attrs{"output_types": graphdef.Types(types), "output_shapes": graphdef.Shapes(shapes)}
	}
	g.Add("slices", "TensorSliceDataset", graphdef.Attrs{"Toutput_types": graphdef.Types(types),
		"output_shapes": graphdef.Shapes(shapes)}, inputs...)
	last := "slices"
	if shuffle > 0 {
		g.Number("shuffle_size", int64(shuffle)).Number("seed", seed).Number("seed2", 11).
			Add("shuffle", "ShuffleDataset", of(shapes), last, "shuffle_size", "seed", "seed2")
		last = "shuffle"
	}
	g.Number("batch_size", int64(batch)).Constant("drop", dtype.Bool, []byte{1}).
		Add("batch", "BatchDatasetV2", of(batched), last, "batch_size", "drop")
	last = "batch"
	if prefetch != 0 {
		g.Number("prefetch_size", int64(prefetch)).Add("prefetch", "PrefetchDataset", of(batched), last, "prefetch_size")
		last = "prefetch"
	}
	iterator := of(batched)
	iterator["shared_name"], iterator["container"] = graphdef.Text("steadyfit"), graphdef.Text("")
	return g.Add("iterator", "IteratorV2", iterator).
		Add("begin", "MakeIterator", nil, last, "iterator").
		Add("next", "IteratorGetNext", of(batched), "iterator")
}

func (p *pipeline) rewind(ctx context.Context) {
	program.Must(p.session.Run(ctx, p.feeds, nil, tfbind.RunOptions{Targets: []string{"begin"}}))
	p.at = 0
}

func (p *pipeline) take(ctx context.Context) data.Batch {
	if p.at == p.passLen {
		p.rewind(ctx)
	}
	out := program.Must(p.session.Run(ctx, nil, p.next))
	defer out.Close()
	for i, x := range out {
		program.Must(x.Slice(p.batch.Fields[i].Values))
	}
	p.batch.Index = p.at
	p.at++
	return p.batch
}
