//go:build galeone

package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/lab/mustcompile"
	"steadyfit/internal/lab/program"
)

var workloads = map[string]func(*job) *program.Loop{
	"W0":  plain,
	"W1":  keeping,
	"W2":  repeated,
	"W3":  varying,
	"W4":  reloading,
	"W5":  growing,
	"W6":  subsets,
	"W8":  bursts,
	"W9":  compiled,
	"W10": predictions,
	"W12": words,
	"S0":  large,
	"S1":  validated,
	"S1d": validated,
	"S2":  plain,
	"S2l": plain,
	"S3":  generated,
	"S4":  recorded,
}

// plain trains on samples in memory.
func plain(j *job) *program.Loop {
	m, f := j.trainable()
	return m.resetting(m.trainRows(f, j.Samples), f)
}

// repeated trains on the same batch in each step.
func repeated(j *job) *program.Loop {
	j.Choice("input", "tensor")
	m, f := j.trainable()
	return m.trainRows(f, j.Batch)
}

func untrained(step func(n int)) *program.Loop {
	return &program.Loop{Untrained: true, Step: func(_ context.Context, n int) float64 { step(n); return 0 }}
}

func (j *job) session(graph *tf.Graph) *tf.Session {
	s := program.Must(tf.NewSession(graph, &tf.SessionOptions{Config: j.Config}))
	j.OnClose(s.Close)
	return s
}

// newGraph creates a graph whose finalizer runs as soon as the graph is unreachable. Go's
// allocator puts small objects without pointers, such as a tf.Graph, into shared blocks of 16
// bytes, and runs no finalizer while another object of the block is reachable. So newGraph
// fills the block with objects that become garbage at once.
func newGraph() *tf.Graph {
	garbage()
	garbage()
	g := tf.NewGraph()
	garbage()
	return g
}

//go:noinline
func garbage() *[8]byte { return new([8]byte) }

// spread creates a graph with a placeholder and n operations on it.
func spread(dtype tf.DataType, op string, arguments, n int) (graph *tf.Graph, in tf.Output, out []tf.Output) {
	graph = newGraph()
	in = program.Must(graph.AddOperation(tf.OpSpec{Type: "Placeholder", Name: "x",
		Attrs: map[string]any{"dtype": dtype}})).Output(0)
	for i := range n {
		y := program.Must(graph.AddOperation(tf.OpSpec{Type: op, Name: "y" + strconv.Itoa(i),
			Input: slices.Repeat([]tf.Input{in}, arguments)}))
		out = append(out, y.Output(0))
	}
	return graph, in, out
}

// leak is the number of 4-byte values that a calibration step keeps.
const leak = 65536 / 4

// keeping trains, and in each step fetches a tensor of 64 KiB that stays reachable.
func keeping(j *job) *program.Loop {
	keep := j.Choice("release", "keep", "drop") == "keep"
	l := plain(j)
	graph, in, out := spread(tf.Float, "Identity", 1, 1)
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

func (j *job) predicting(n int) (*model, *function, rows) {
	m := j.open(j.OpenModel())
	f := m.function(m.info.Roles.Predict)
	return m, f, m.rows(f, n, 0)
}

// varying predicts for another number of samples in each step.
func varying(j *job) *program.Loop {
	most := 2 * j.Batch
	round := j.Rounding(most)
	m, f, data := j.predicting(most)
	return untrained(func(int) { m.call(f, data.batch(0, round(1+j.random.IntN(most))), nil) })
}

// compiled trains a model that XLA compiles for each size. Every size comes once before one
// repeats.
func compiled(j *job) *program.Loop {
	jit := j.Choice("jit", "on", "off")
	most := 2 * j.Batch
	order := j.random.Perm(most)
	round := j.Rounding(most)
	info := j.OpenModel()
	if jit == "on" {
		info = program.Must(mustcompile.Copy(info, filepath.Join(j.Scratch, "compiled")))
	}
	m, f := j.trainableOf(info)
	data := m.rows(f, most, 0)
	return m.train(f, func(n int) []any { return data.batch(0, round(1+order[(n-1)%most])) })
}

// reloading loads the model for each step.
func reloading(j *job) *program.Loop {
	mode, reuse := j.Choice("close", "none", "session"), j.Choice("reuse", "0", "1") == "1"
	m, f := j.trainable()
	data := m.rows(f, j.Batch, 0)
	initial := filepath.Join(j.Scratch, "initial")
	if reuse {
		m.save(initial)
	}
	again := func() {
		if reuse {
			m.restore(initial)
			return
		}
		if mode == "session" {
			program.Check(m.saved.Session.Close())
		} else {
		}
		if j.drop {
			m.saved, f.inputs, f.outputs = nil, nil, nil
		}
		m.load()
		m.bind(f)
	}
	return m.train(f, func(n int) []any {
		if n > 1 {
			again()
		}
		return data.batch(0, data.n)
	})
}

// growing adds a constant of 4 KiB and an Identity to the graph in each step.
func growing(j *job) *program.Loop {
	sealed := j.Choice("graph", "grow", "sealed") == "sealed"
	graph := newGraph()
	session := j.session(graph)
	values := make([]float32, 1024)
	var out tf.Output
	return untrained(func(n int) {
		if !sealed || n == 1 {
			values[0] = float32(n) // different constants
			c := program.Must(graph.AddOperation(tf.OpSpec{Type: "Const", Name: "c" + strconv.Itoa(n),
				Attrs: map[string]any{"dtype": tf.Float, "value": tensor(values)}}))
			y := program.Must(graph.AddOperation(tf.OpSpec{Type: "Identity", Name: "y" + strconv.Itoa(n),
				Input: []tf.Input{c.Output(0)}}))
			out = y.Output(0)
		}
		j.run(session, nil, []tf.Output{out}, nil)
	})
}

const outputs = 14

// subsets fetches a different set of outputs in each step.
func subsets(j *job) *program.Loop {
	vary := j.Choice("fetches", "varying", "fixed") == "varying"
	graph, in, out := spread(tf.Float, "AddV2", 2, outputs)
	session := j.session(graph)
	values := make([]float32, 16)
	order := j.random.Perm(1<<outputs - 1)
	return untrained(func(n int) {
		fetches := out
		if vary {
			fetches = make([]tf.Output, 0, outputs)
			set := order[(n-1)%len(order)] + 1
			for i, o := range out {
				if set>>i&1 == 1 {
					fetches = append(fetches, o)
				}
			}
		}
		j.run(session, map[tf.Output]*tf.Tensor{in: tensor(values)}, fetches, nil)
	})
}

// predictions keeps the predictions of the model as Go values.
func predictions(j *job) *program.Loop {
	keep := j.Choice("history", "keep", "last") == "keep"
	m, f, data := j.predicting(j.Batch)
	var kept [][]any
	return untrained(func(int) {
		var values []any
		m.call(f, data.batch(0, data.n), func(results []*tf.Tensor) {
			for _, t := range results {
				values = append(values, t.Value())
			}
		})
		if !keep {
			kept = kept[:0]
		}
		kept = append(kept, values)
	})
}

const (
	wordCount    = 1000
	wordShortest = 10
	wordLongest  = 200
)

// words passes strings through an Identity and reads them back.
func words(j *job) *program.Loop {
	graph, in, out := spread(tf.String, "Identity", 1, 1)
	session := j.session(graph)
	pool := make([]string, 2*wordCount)
	for i := range pool {
		pool[i] = strings.Repeat(string(rune('a'+j.random.IntN(26))), wordShortest+j.random.IntN(wordLongest-wordShortest+1))
	}
	return untrained(func(n int) {
		from := n * 7 % wordCount
		values := pool[from : from+wordCount]
		j.run(session, map[tf.Output]*tf.Tensor{in: tensor(values)}, out, func(results []*tf.Tensor) {
			back, ok := results[0].Value().([]string)
			if !ok || !slices.Equal(back, values) {
				program.Check(errors.New("the output has other strings than the input"))
			}
		})
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
	return m.resetting(l, f, evaluate)
}

// recorded keeps the results of each step.
func recorded(j *job) *program.Loop {
	keep := j.Choice("history", "keep", "last") == "keep"
	m, f := j.trainable()
	data := m.rows(f, min(j.Epoch, 200)*j.WholeBatch(), 0)
	var kept []map[string]float32
	return &program.Loop{Step: func(_ context.Context, n int) float64 {
		entry := make(map[string]float32, len(f.outputs))
		m.call(f, data.at(n, j.Batch), func(results []*tf.Tensor) {
			for i, t := range results {
				entry[f.signature.Outputs[i].Name] = f.scalar(i, t)
			}
		})
		if !keep {
			kept = kept[:0]
		}
		kept = append(kept, entry)
		return float64(entry[contract.OutputLoss])
	}}
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
	augment, varying := j.Choice("augment", "0", "1") == "1", j.Choice("shapes", "fixed", "varying") == "varying"
	m, f := j.trainable()
	return m.train(f, func(step int) []any {
		n := j.Batch
		if varying { // 8 to 40 for a batch of 32
			n = n/4 + j.random.IntN(n+1)
		}
		values := m.rows(f, n, uint64(step)).batch(0, n)
		if augment {
			for i, v := range values {
				if images, ok := v.([][][][]float32); ok {
					values[i] = j.augmented(images)
				}
			}
		}
		return values
	})
}

// augmented returns new images: mirrored or not, shifted with a repeated edge, and with another
// brightness.
func (j *job) augmented(images [][][][]float32) [][][][]float32 {
	const most = 16 // pixels
	result := make([][][][]float32, len(images))
	for n, image := range images {
		mirror, scale := j.random.IntN(2) == 1, 0.8+0.4*j.random.Float32()
		down, right := j.random.IntN(2*most+1)-most, j.random.IntN(2*most+1)-most
		result[n] = make([][][]float32, len(image))
		for y := range image {
			row := image[min(max(y+down, 0), len(image)-1)]
			result[n][y] = make([][]float32, len(row))
			for x := range row {
				from := x
				if mirror {
					from = len(row) - 1 - x
				}
				pixel := row[min(max(from+right, 0), len(row)-1)]
				changed := make([]float32, len(pixel))
				for c, v := range pixel {
					changed[c] = min(v*scale, 1)
				}
				result[n][y][x] = changed
			}
		}
	}
	return result
}
