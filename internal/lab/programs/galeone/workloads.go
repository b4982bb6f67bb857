//go:build galeone

package main

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/data"
	"steadyfit/internal/lab/program"
)

var workloads = map[string]func(*job) *program.Loop{
	"W0":  plain,
	"W1":  keeping,
	"W2":  repeated,
	"W4":  reloading,
	"S0":  large,
	"S1":  validated,
	"S1d": validated,
	"S2":  plain,
	"S2l": plain,
	"S3":  generated,
}

// plain trains on samples in memory.
func plain(j *job) *program.Loop {
	m, f := j.trainable()
	return m.trainRows(f, j.Samples)
}

// repeated trains on the same batch in each step.
func repeated(j *job) *program.Loop {
	j.Choice("input", "tensor")
	m, f := j.trainable()
	return m.trainRows(f, j.Batch)
}

func (j *job) session(graph *tf.Graph) *tf.Session {
	s := program.Must(tf.NewSession(graph, &tf.SessionOptions{Config: j.Config}))
	j.OnClose(s.Close)
	return s
}

// leak is the number of 4-byte values that a calibration step keeps.
const leak = 65536 / 4

// keeping trains, and in each step fetches a tensor of 64 KiB that stays reachable.
func keeping(j *job) *program.Loop {
	keep := j.Choice("release", "keep", "drop") == "keep"
	l := plain(j)
	graph := tf.NewGraph()
	in := program.Must(graph.AddOperation(tf.OpSpec{Type: "Placeholder", Name: "x",
		Attrs: map[string]any{"dtype": tf.Float}})).Output(0)
	out := []tf.Output{program.Must(graph.AddOperation(tf.OpSpec{Type: "Identity", Name: "y",
		Input: []tf.Input{in}})).Output(0)}
	session := j.session(graph)
	values := make([]float32, leak)
	kept := make([]*tf.Tensor, 0, j.Steps)
	train := l.Step
	l.Step = func(ctx context.Context, n int) float64 {
		loss := train(ctx, n)
		j.run(session, map[tf.Output]*tf.Tensor{in: tensor(values)}, out, func(results []*tf.Tensor) {
			if keep {
				kept = append(kept, results[0])
			}
		})
		runtime.GC() // so that the slope is that of this tensor only
		return loss
	}
	return l
}

// reloading loads the model for each step.
func reloading(j *job) *program.Loop {
	mode := j.Choice("close", "none", "session")
	m, f := j.trainable()
	data := m.rows(f, j.Batch, 0)
	return m.train(f, func(n int) []any {
		if n > 1 {
			if mode == "session" {
				program.Check(m.saved.Session.Close())
			}
			if j.drop {
				m.saved, f.inputs, f.outputs = nil, nil, nil
			}
			m.load()
			m.bind(f)
		}
		return data.batch(0, data.n)
	})
}

const validationBatch = 64

// validated evaluates the model after each epoch. The last batch of an epoch is a quarter full,
// like that of 1000 samples in batches of 32.
func validated(j *job) *program.Loop {
	m, f := j.trainable()
	evaluate := m.function(m.info.Roles.Evaluate)
	n := max(1, j.Samples-j.WholeBatch()*3/4)
	others := m.rows(evaluate, max(1, n/5), 1)
	l := m.trainRows(f, n)
	l.Epoch = func(context.Context, int) {
		for n := 1; (n-1)*validationBatch < others.n; n++ {
			m.scalars(evaluate, others.at(n, validationBatch))
		}
	}
	return l
}

// large trains on many rows of floats, in memory or from files.
func large(j *job) *program.Loop {
	where, n := j.Choice("data", "memory", "disk"), j.Int("rows", 1_000_000)
	if n < j.Batch {
		program.Check(fmt.Errorf("%d rows are fewer than a batch of %d", n, j.Batch))
	}
	m, f := j.trainable()
	if where == "memory" {
		return m.trainRows(f, n)
	}
	files := program.Must(m.synth(f).Stream(n, j.Scratch))
	next, stop := iter.Pull2(program.Passes(files, data.Pass{Batch: j.Batch}))
	l := m.train(f, func(int) []any {
		b, err, _ := next()
		program.Check(err)
		values := f.nested(b).batch(0, b.Size)
		for _, v := range values {
			if rows, ok := v.([][]float32); ok {
				for i := range rows {
					rows[i] = slices.Clone(rows[i]) // like rows from a reader
				}
			}
		}
		return values
	})
	j.OnClose(func() error { stop(); return files.Close() })
	return l
}

// generated trains on generated images.
func generated(j *job) *program.Loop {
	j.Choice("input", "tensor")
	m, f := j.trainable()
	return m.train(f, func(step int) []any { return m.rows(f, j.Batch, uint64(step)).batch(0, j.Batch) })
}
