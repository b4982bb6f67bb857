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
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/mustcompile"
	"steadyfit/internal/lab/synth"
	"steadyfit/savedmodels"
)

var workloads = map[string]func(*job) (*loop.Loop, error){
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

// plain is a train step on samples in memory.
func plain(j *job) (*loop.Loop, error) {
	m, f, err := j.trainable()
	if err != nil {
		return nil, err
	}
	l, err := m.trainRows(f, j.Spec.SetSize())
	if err != nil {
		return nil, err
	}
	return m.resetting(l, f), nil
}

// repeated is a train step on the same batch.
func repeated(j *job) (*loop.Loop, error) {
	j.Choice("input", "tensor")
	m, f, err := j.trainable()
	if err != nil {
		return nil, err
	}
	return m.trainRows(f, j.Spec.Batch)
}

func untrained(step func(n int) error, free func() error) *loop.Loop {
	return &loop.Loop{Untrained: true, Close: free, Step: func(_ context.Context, n int) (float64, error) { return 0, step(n) }}
}

func (j *job) session(graph *tf.Graph) (*tf.Session, func() error, error) {
	s, err := tf.NewSession(graph, &tf.SessionOptions{Config: j.Spec.Config})
	if err != nil {
		return nil, nil, err
	}
	j.tensors.countedGraph(graph)
	return s, func() error {
		j.tensors.releaseGraph()
		return s.Close()
	}, nil
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
func spread(dtype tf.DataType, op string, arguments, n int) (graph *tf.Graph, in tf.Output, out []tf.Output, err error) {
	graph = newGraph()
	x, err := graph.AddOperation(tf.OpSpec{Type: "Placeholder", Name: "x", Attrs: map[string]any{"dtype": dtype}})
	if err != nil {
		return nil, tf.Output{}, nil, err
	}
	for i := range n {
		y, err := graph.AddOperation(tf.OpSpec{Type: op, Name: "y" + strconv.Itoa(i),
			Input: slices.Repeat([]tf.Input{x.Output(0)}, arguments)})
		if err != nil {
			return nil, tf.Output{}, nil, err
		}
		out = append(out, y.Output(0))
	}
	return graph, x.Output(0), out, nil
}

// leak is the number of 4-byte values that a calibration step keeps.
const leak = 65536 / 4

// keeping is a train step and a fetched tensor of 64 KiB that stays reachable.
func keeping(j *job) (*loop.Loop, error) {
	keep := j.Choice("release", "keep", "drop") == "keep"
	l, err := plain(j)
	if err != nil {
		return nil, err
	}
	graph, in, out, err := spread(tf.Float, "Identity", 1, 1)
	if err != nil {
		return nil, err
	}
	session, closeSession, err := j.session(graph)
	if err != nil {
		return nil, err
	}
	values := make([]float32, leak)
	kept := make([]*tf.Tensor, 0, j.Spec.Steps)
	train, closeModel := l.Step, l.Close
	l.Step = func(ctx context.Context, n int) (float64, error) {
		loss, err := train(ctx, n)
		if err != nil {
			return 0, err
		}
		x, err := tf.NewTensor(values)
		if err != nil {
			return 0, err
		}
		feeds := map[tf.Output]*tf.Tensor{in: j.tensors.counted(x)}
		err = j.run(session, feeds, out, func(results []*tf.Tensor) error {
			if keep {
				kept = append(kept, results[0])
				j.tensors.keep(results[0])
			}
			return nil
		})
		runtime.GC() // so that the slope is that of this tensor only
		return loss, err
	}
	l.Close = func() error {
		for _, t := range kept {
			j.tensors.release(t)
		}
		kept = nil
		return errors.Join(closeSession(), closeModel())
	}
	return l, nil
}

func (j *job) predicting(n int) (*model, *function, rows, error) {
	m, err := j.open()
	if err != nil {
		return nil, nil, rows{}, err
	}
	f, err := m.function(m.info.Roles.Predict)
	if err != nil {
		return nil, nil, rows{}, err
	}
	data, err := m.rows(f, n, 0)
	return m, f, data, err
}

// varying predicts for another number of samples in each step.
func varying(j *job) (*loop.Loop, error) {
	most := 2 * j.Spec.Batch
	round := loop.Rounding(j.Child, most)
	m, f, data, err := j.predicting(most)
	if err != nil {
		return nil, err
	}
	return untrained(func(n int) error { return m.call(f, data.batch(0, round(1+j.random.IntN(most))), nil) }, m.close), nil
}

// compiled trains a model that XLA compiles for each size. Every size comes once before one
// repeats.
func compiled(j *job) (*loop.Loop, error) {
	jit := j.Choice("jit", "on", "off")
	most := 2 * j.Spec.Batch
	order := j.random.Perm(most)
	round := loop.Rounding(j.Child, most)
	info, err := loop.Model(j.Child)
	if err == nil && jit == "on" {
		info, err = mustcompile.Copy(info, filepath.Join(j.Spec.Scratch, "compiled"))
	}
	if err != nil {
		return nil, err
	}
	m, f, err := j.trainableOf(info)
	if err != nil {
		return nil, err
	}
	data, err := m.rows(f, most, 0)
	if err != nil {
		return nil, err
	}
	return m.train(f, func(n int) ([]any, error) { return data.batch(0, round(1+order[(n-1)%most])), nil }), nil
}

// reloading loads the model for each step.
func reloading(j *job) (*loop.Loop, error) {
	mode, reuse := j.Choice("close", "none", "session"), j.Choice("reuse", "0", "1") == "1"
	m, f, err := j.trainable()
	if err != nil {
		return nil, err
	}
	data, err := m.rows(f, j.Spec.Batch, 0)
	if err != nil {
		return nil, err
	}
	initial := filepath.Join(j.Spec.Scratch, "initial")
	if reuse {
		if err := m.save(initial); err != nil {
			return nil, err
		}
	}
	again := func() error {
		if reuse {
			return m.restore(initial)
		}
		if mode == "session" {
			if err := m.close(); err != nil {
				return err
			}
		} else {
			j.tensors.releaseGraph()
		}
		if j.drop {
			m.saved, f.inputs, f.outputs = nil, nil, nil
		}
		if err := m.load(); err != nil {
			return err
		}
		return m.bind(f)
	}
	return m.train(f, func(n int) ([]any, error) {
		if n > 1 {
			if err := again(); err != nil {
				return nil, err
			}
		}
		return data.batch(0, data.n), nil
	}), nil
}

// growing adds a constant of 4 KiB and an Identity to the graph in each step.
func growing(j *job) (*loop.Loop, error) {
	sealed := j.Choice("graph", "grow", "sealed") == "sealed"
	graph := newGraph()
	session, free, err := j.session(graph)
	if err != nil {
		return nil, err
	}
	values := make([]float32, 1024)
	var out tf.Output
	return untrained(func(n int) error {
		if !sealed || n == 1 {
			values[0] = float32(n) // different constants
			value, err := tf.NewTensor(values)
			if err != nil {
				return err
			}
			c, err := graph.AddOperation(tf.OpSpec{Type: "Const", Name: "c" + strconv.Itoa(n),
				Attrs: map[string]any{"dtype": tf.Float, "value": j.tensors.counted(value)}})
			if err != nil {
				return err
			}
			y, err := graph.AddOperation(tf.OpSpec{Type: "Identity", Name: "y" + strconv.Itoa(n), Input: []tf.Input{c.Output(0)}})
			if err != nil {
				return err
			}
			out = y.Output(0)
		}
		return j.run(session, nil, []tf.Output{out}, nil)
	}, free), nil
}

const outputs = 14

// subsets fetches a different set of outputs in each step.
func subsets(j *job) (*loop.Loop, error) {
	vary := j.Choice("fetches", "varying", "fixed") == "varying"
	graph, in, out, err := spread(tf.Float, "AddV2", 2, outputs)
	if err != nil {
		return nil, err
	}
	session, free, err := j.session(graph)
	if err != nil {
		return nil, err
	}
	values := make([]float32, 16)
	order := j.random.Perm(1<<outputs - 1)
	return untrained(func(n int) error {
		x, err := tf.NewTensor(values)
		if err != nil {
			return err
		}
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
		return j.run(session, map[tf.Output]*tf.Tensor{in: j.tensors.counted(x)}, fetches, nil)
	}, free), nil
}

// predictions keeps the predictions of the model as Go values.
func predictions(j *job) (*loop.Loop, error) {
	keep := j.Choice("history", "keep", "last") == "keep"
	m, f, data, err := j.predicting(j.Spec.Batch)
	if err != nil {
		return nil, err
	}
	var kept [][]any
	return untrained(func(int) error {
		var values []any
		err := m.call(f, data.batch(0, data.n), func(results []*tf.Tensor) error {
			for _, t := range results {
				values = append(values, t.Value())
			}
			return nil
		})
		if !keep {
			kept = kept[:0]
		}
		kept = append(kept, values)
		return err
	}, m.close), nil
}

const (
	wordCount    = 1000
	wordShortest = 10
	wordLongest  = 200
)

// words passes strings through an Identity and reads them back.
func words(j *job) (*loop.Loop, error) {
	graph, in, out, err := spread(tf.String, "Identity", 1, 1)
	if err != nil {
		return nil, err
	}
	session, free, err := j.session(graph)
	if err != nil {
		return nil, err
	}
	pool := make([]string, 2*wordCount)
	for i := range pool {
		pool[i] = strings.Repeat(string(rune('a'+j.random.IntN(26))), wordShortest+j.random.IntN(wordLongest-wordShortest+1))
	}
	return untrained(func(n int) error {
		from := n * 7 % wordCount
		values := pool[from : from+wordCount]
		x, err := tf.NewTensor(values)
		if err != nil {
			return err
		}
		feeds := map[tf.Output]*tf.Tensor{in: j.tensors.counted(x)}
		return j.run(session, feeds, out, func(results []*tf.Tensor) error {
			back, ok := results[0].Value().([]string)
			if !ok || !slices.Equal(back, values) {
				return errors.New("the output has other strings than the input")
			}
			return nil
		})
	}, free), nil
}

const validationBatch = 64

// validated evaluates the model after each epoch. The last batch of an epoch is a quarter full,
// like that of 1000 samples in batches of 32.
func validated(j *job) (*loop.Loop, error) {
	m, f, err := j.trainable()
	if err != nil {
		return nil, err
	}
	evaluate, err := m.function(m.info.Roles.Evaluate)
	if err != nil {
		return nil, err
	}
	n := max(1, j.Spec.SetSize()-j.Spec.WholeBatch()*3/4)
	others, err := m.rows(evaluate, max(1, n/5), 1)
	if err != nil {
		return nil, err
	}
	l, err := m.trainRows(f, n)
	if err != nil {
		return nil, err
	}
	l.Epoch = func(context.Context, int) error {
		for n := 1; (n-1)*validationBatch < others.n; n++ {
			if _, err := m.scalars(evaluate, others.at(n, validationBatch)); err != nil {
				return err
			}
		}
		return nil
	}
	return m.resetting(l, f, evaluate), nil
}

// recorded keeps the results of each step.
func recorded(j *job) (*loop.Loop, error) {
	keep := j.Choice("history", "keep", "last") == "keep"
	m, f, err := j.trainable()
	if err != nil {
		return nil, err
	}
	data, err := m.rows(f, min(j.Spec.Epoch, 200)*j.Spec.WholeBatch(), 0)
	if err != nil {
		return nil, err
	}
	l := m.train(f, nil)
	var kept []map[string]float32
	l.Step = func(_ context.Context, n int) (float64, error) {
		entry := make(map[string]float32, len(f.outputs))
		err := m.call(f, data.at(n, j.Spec.Batch), func(results []*tf.Tensor) error {
			for i, t := range results {
				v, ok := t.Value().(float32)
				if !ok {
					return fmt.Errorf("output %s is not a float32", f.signature.Outputs[i].Name)
				}
				entry[f.signature.Outputs[i].Name] = v
			}
			return nil
		})
		if !keep {
			kept = kept[:0]
		}
		kept = append(kept, entry)
		return float64(entry[savedmodels.OutputLoss]), err
	}
	return l, nil
}

// large trains on many rows of floats, in memory or from files.
func large(j *job) (*loop.Loop, error) {
	where, n := j.Choice("data", "memory", "disk"), j.Int("rows", 1_000_000)
	if n < j.Spec.Batch {
		return nil, fmt.Errorf("%d rows are fewer than a batch of %d", n, j.Spec.Batch)
	}
	m, f, err := j.trainable()
	if err != nil {
		return nil, err
	}
	if where == "memory" {
		return m.trainRows(f, n)
	}
	s, err := m.synth(f.signature.Name)
	if err != nil {
		return nil, err
	}
	files, err := synth.Stream(s, n, j.Spec.Scratch)
	if err != nil {
		return nil, err
	}
	next, stop := iter.Pull2(forever(files, j.Spec.Batch))
	l := m.train(f, func(int) ([]any, error) {
		b, err, _ := next()
		if err != nil {
			return nil, err
		}
		values := f.nested(b).batch(0, b.Size)
		for _, v := range values {
			if rows, ok := v.([][]float32); ok {
				for i := range rows {
					rows[i] = slices.Clone(rows[i]) // like rows from a reader
				}
			}
		}
		return values, nil
	})
	l.Close = func() error {
		stop()
		return errors.Join(files.Close(), m.close())
	}
	return l, nil
}

func forever(ds data.Dataset, batch int) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		for pass := 0; ; pass++ {
			for b, err := range ds.Batches(data.Pass{Batch: batch, Epoch: pass}) {
				if !yield(b, err) || err != nil {
					return
				}
			}
		}
	}
}

// generated trains on generated images.
func generated(j *job) (*loop.Loop, error) {
	j.Choice("input", "tensor")
	augment, varying := j.Choice("augment", "0", "1") == "1", j.Choice("shapes", "fixed", "varying") == "varying"
	m, f, err := j.trainable()
	if err != nil {
		return nil, err
	}
	return m.train(f, func(step int) ([]any, error) {
		n := j.Spec.Batch
		if varying { // 8 to 40 for a batch of 32
			n = n/4 + j.random.IntN(n+1)
		}
		data, err := m.rows(f, n, uint64(step))
		if err != nil {
			return nil, err
		}
		values := data.batch(0, n)
		if augment {
			for i, v := range values {
				if images, ok := v.([][][][]float32); ok {
					values[i] = j.augmented(images)
				}
			}
		}
		return values, nil
	}), nil
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
