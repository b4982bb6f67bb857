//go:build galeone

package main

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/lab/mustcompile"
)

// workload opens a loop; knobs are those that it takes beside gc and trim.
type workload struct {
	open  func(*job) (loop, error)
	knobs string
}

var workloads = map[string]workload{
	"W0":  {plain, "release reset model"},
	"W1":  {keeping, "release"},
	"W2":  {repeated, "release input model"},
	"W3":  {varying, "release shapes model"},
	"W4":  {reloading, "release close reuse model"},
	"W5":  {growing, "release graph"},
	"W6":  {subsets, "release fetches"},
	"W8":  {bursts, "goroutines"},
	"W9":  {compiled, "release shapes jit model"},
	"W10": {predictions, "release history model"},
	"W12": {words, "release"},
	"S0":  {large, "release data rows"},
	"S1":  {validated, "release reset model"},
	"S1d": {validated, "release reset model"},
	"S2":  {plain, "release reset model"},
	"S2l": {plain, "release reset model"},
	"S3":  {generated, "release input augment shapes model"},
	"S4":  {recorded, "release history model"},
}

// plain is a train step on samples that are in memory.
func plain(j *job) (loop, error) {
	m, f, err := j.trainable()
	if err != nil {
		return loop{}, err
	}
	data, err := m.rows(f, j.Spec.SetSize())
	if err != nil {
		return loop{}, err
	}
	l := loop{
		step: func(n int) error { return m.train(f, data.at(n, j.Spec.Batch)) },
		free: m.close,
	}
	err = m.resetting(&l, f)
	return l, err
}

// repeated is a train step on the same samples each time.
func repeated(j *job) (loop, error) {
	if _, err := j.Choice("input", "tensor"); err != nil {
		return loop{}, err
	}
	m, f, err := j.trainable()
	if err != nil {
		return loop{}, err
	}
	data, err := m.rows(f, j.Spec.Batch)
	if err != nil {
		return loop{}, err
	}
	return loop{
		step: func(int) error { return m.train(f, data.batch(0, data.n)) },
		free: m.close,
	}, nil
}

// session is one on a graph of the workload's own.
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

// spread is a graph of a placeholder and n operations on it.
func spread(dtype tf.DataType, op string, arguments, n int) (graph *tf.Graph, in tf.Output, out []tf.Output, err error) {
	graph = tf.NewGraph()
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

// leak is what a step of the calibration keeps, in values of 4 bytes.
const leak = 65536 / 4

// keeping is a train step and a fetched tensor of 64 KiB that stays reachable. The
// collector runs after each step, so that nothing but this tensor is in the slope.
func keeping(j *job) (loop, error) {
	release, err := j.Choice("release", "keep", "drop")
	if err != nil {
		return loop{}, err
	}
	l, err := plain(j)
	if err != nil {
		return loop{}, err
	}
	graph, in, out, err := spread(tf.Float, "Identity", 1, 1)
	if err != nil {
		return loop{}, err
	}
	session, closeSession, err := j.session(graph)
	if err != nil {
		return loop{}, err
	}
	values := make([]float32, leak)
	kept := make([]*tf.Tensor, 0, j.Spec.Steps)
	train, closeModel := l.step, l.free
	l.step = func(n int) error {
		if err := train(n); err != nil {
			return err
		}
		x, err := tf.NewTensor(values)
		if err != nil {
			return err
		}
		feeds := map[tf.Output]*tf.Tensor{in: j.tensors.counted(x)}
		err = j.run(session, feeds, out, func(results []*tf.Tensor) error {
			if release == "keep" {
				kept = append(kept, results[0])
				j.tensors.keep(results[0])
			}
			return nil
		})
		runtime.GC()
		return err
	}
	l.free = func() error {
		for _, t := range kept {
			j.tensors.release(t)
		}
		kept = nil
		return errors.Join(closeSession(), closeModel())
	}
	return l, nil
}

// sized is how many samples step n takes: what draw gives, of 1 to most, or as the
// knob shapes has it. What fills a batch up is other samples, since only the shape
// matters here.
func (j *job) sized(most int, draw func(n int) int) (func(n int) int, error) {
	shapes, err := j.Choice("shapes", "varying", "fixed", "pad", "bucket")
	return func(n int) int {
		size := draw(n)
		switch shapes {
		case "fixed":
			size = j.Spec.Batch
		case "pad":
			size = most
		case "bucket":
			size = min(1<<bits.Len(uint(size-1)), most)
		}
		return size
	}, err
}

// varying predicts for another number of samples in each step.
func varying(j *job) (loop, error) {
	most := 2 * j.Spec.Batch
	size, err := j.sized(most, func(int) int { return 1 + j.random.IntN(most) })
	if err != nil {
		return loop{}, err
	}
	m, err := j.open()
	if err != nil {
		return loop{}, err
	}
	f, err := m.function(m.info.Roles.Predict)
	if err != nil {
		return loop{}, err
	}
	data, err := m.rows(f, most)
	if err != nil {
		return loop{}, err
	}
	return loop{
		step: func(n int) error { return m.call(f, data.batch(0, size(n)), nil) },
		free: m.close,
	}, nil
}

// compiled trains a model that XLA compiles for each size, so none comes twice while
// there are others.
func compiled(j *job) (loop, error) {
	jit, err := j.Choice("jit", "on", "off")
	if err != nil {
		return loop{}, err
	}
	info, err := j.find()
	if err == nil && jit == "on" {
		info, err = mustcompile.Copy(info, filepath.Join(j.Spec.Scratch, "compiled"))
	}
	if err != nil {
		return loop{}, err
	}
	most := 2 * j.Spec.Batch
	order := j.random.Perm(most)
	size, err := j.sized(most, func(n int) int { return 1 + order[(n-1)%most] })
	if err != nil {
		return loop{}, err
	}
	m, f, err := j.trainableOf(info)
	if err != nil {
		return loop{}, err
	}
	data, err := m.rows(f, most)
	if err != nil {
		return loop{}, err
	}
	return loop{
		step: func(n int) error { return m.train(f, data.batch(0, size(n))) },
		free: m.close,
	}, nil
}

// reloading loads the model anew for each step.
func reloading(j *job) (loop, error) {
	mode, err := j.Choice("close", "none", "session")
	if err != nil {
		return loop{}, err
	}
	reuse, err := j.Choice("reuse", "0", "1")
	if err != nil {
		return loop{}, err
	}
	m, f, err := j.trainable()
	if err != nil {
		return loop{}, err
	}
	data, err := m.rows(f, j.Spec.Batch)
	if err != nil {
		return loop{}, err
	}
	initial := filepath.Join(j.Spec.Scratch, "initial")
	if reuse == "1" {
		if err := m.save(initial); err != nil {
			return loop{}, err
		}
	}
	again := func() error {
		if reuse == "1" {
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
	return loop{
		step: func(n int) error {
			if n > 1 {
				if err := again(); err != nil {
					return err
				}
			}
			return m.train(f, data.batch(0, data.n))
		},
		free: m.close,
	}, nil
}

// growing adds a constant of 4 KiB and an Identity to the graph in each step.
func growing(j *job) (loop, error) {
	mode, err := j.Choice("graph", "grow", "sealed")
	if err != nil {
		return loop{}, err
	}
	graph := tf.NewGraph()
	session, free, err := j.session(graph)
	if err != nil {
		return loop{}, err
	}
	values := make([]float32, 1024)
	var out tf.Output
	return loop{
		step: func(n int) error {
			if mode == "grow" || n == 1 {
				values[0] = float32(n) // no two constants are the same
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
		},
		free: free,
	}, nil
}

// outputs is how many the graph has whose fetches change.
const outputs = 14

// subsets fetches another set of outputs in each step.
func subsets(j *job) (loop, error) {
	mode, err := j.Choice("fetches", "varying", "fixed")
	if err != nil {
		return loop{}, err
	}
	graph, in, out, err := spread(tf.Float, "AddV2", 2, outputs)
	if err != nil {
		return loop{}, err
	}
	session, free, err := j.session(graph)
	if err != nil {
		return loop{}, err
	}
	values := make([]float32, 16)
	order := j.random.Perm(1<<outputs - 1)
	return loop{
		step: func(n int) error {
			x, err := tf.NewTensor(values)
			if err != nil {
				return err
			}
			fetches := out
			if mode == "varying" {
				fetches = make([]tf.Output, 0, outputs)
				set := order[(n-1)%len(order)] + 1
				for i, o := range out {
					if set>>i&1 == 1 {
						fetches = append(fetches, o)
					}
				}
			}
			return j.run(session, map[tf.Output]*tf.Tensor{in: j.tensors.counted(x)}, fetches, nil)
		},
		free: free,
	}, nil
}

// A burst is what all goroutines together make in a step.
const (
	burstTensors = 320
	burstLeast   = 64 << 10 // bytes
	burstMost    = 256 << 10
	// burstSurvives is the part that lives until the next step: one of so many.
	burstSurvives = 10
)

// bursts makes tensors in several goroutines, each from a slice that it has just
// made, and lets them go in no order; some survive to the next step.
func bursts(j *job) (loop, error) {
	n, err := j.Int("goroutines", 8)
	if err != nil {
		return loop{}, err
	}
	if n < 1 || burstTensors%n != 0 {
		return loop{}, fmt.Errorf("%d goroutines cannot share %d tensors", n, burstTensors)
	}
	makers := make([]*maker, n)
	for i := range makers {
		makers[i] = &maker{tensors: j.tensors, random: rand.New(rand.NewPCG(j.random.Uint64(), 0))}
	}
	errs := make([]error, n)
	return loop{
		step: func(int) error {
			var all sync.WaitGroup
			for i, m := range makers {
				all.Go(func() { errs[i] = m.burst(burstTensors / n) })
			}
			all.Wait()
			return errors.Join(errs...)
		},
		free: func() error {
			for _, m := range makers {
				m.release(0)
			}
			return nil
		},
	}, nil
}

// maker is what belongs to one goroutine.
type maker struct {
	tensors *tensors
	random  *rand.Rand
	held    []*tf.Tensor
}

func (m *maker) burst(n int) error {
	old := len(m.held)
	for range n {
		values := make([]float32, (burstLeast+m.random.IntN(burstMost-burstLeast+1))/4)
		t, err := tf.NewTensor(values)
		if err != nil {
			return err
		}
		m.tensors.keep(m.tensors.counted(t))
		m.held = append(m.held, t)
	}
	for i, t := range m.held[:old] {
		m.tensors.release(t)
		m.held[i] = nil
	}
	m.held = slices.Delete(m.held, 0, old)
	m.release(n / burstSurvives)
	return nil
}

// release lets all but a number of tensors go, in no order.
func (m *maker) release(but int) {
	m.random.Shuffle(len(m.held), func(i, k int) { m.held[i], m.held[k] = m.held[k], m.held[i] })
	for i := but; i < len(m.held); i++ {
		m.tensors.release(m.held[i])
		m.held[i] = nil
	}
	m.held = m.held[:min(but, len(m.held))]
}
