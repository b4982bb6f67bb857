//go:build galeone

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/lab/loop"
	"steadyfit/savedmodels"
)

type model struct {
	*job
	info  *savedmodels.Model
	saved *tf.SavedModel
}

type function struct {
	signature *savedmodels.Signature
	inputs    []tf.Output
	outputs   []tf.Output
	types     []savedmodels.Tensor // of the inputs
	loss      int                  // index of that output, or -1
}

func (j *job) open() (*model, error) {
	info, err := loop.Model(j.Child)
	if err != nil {
		return nil, err
	}
	m := &model{job: j, info: info}
	return m, m.load()
}

func (m *model) load() (err error) {
	if m.saved, err = tf.LoadSavedModel(m.info.Dir, m.info.Tags, &tf.SessionOptions{Config: m.Spec.Config}); err != nil {
		return fmt.Errorf("load %s: %w", m.info.Dir, err)
	}
	m.tensors.countedGraph(m.saved.Graph)
	return nil
}

func (m *model) close() error {
	m.tensors.releaseGraph()
	return m.saved.Session.Close()
}

func (j *job) trainable() (*model, *function, error) {
	info, err := loop.Model(j.Child)
	if err != nil {
		return nil, nil, err
	}
	return j.trainableOf(info)
}

func (j *job) trainableOf(info *savedmodels.Model) (*model, *function, error) {
	m := &model{job: j, info: info}
	if err := m.load(); err != nil {
		return nil, nil, err
	}
	f, err := m.function(info.Roles.Train)
	return m, f, err
}

func (m *model) function(name string) (*function, error) {
	s, err := m.info.Signature(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.info.Dir, err)
	}
	f := &function{signature: s, types: s.DataInputs(), loss: -1}
	if len(f.types) < len(s.Inputs) {
		return nil, fmt.Errorf("signature %s takes reserved inputs, which this loop does not feed", name)
	}
	return f, m.bind(f)
}

func (m *model) bind(f *function) error {
	f.inputs, f.outputs = nil, nil
	for _, t := range f.types {
		o, err := output(m.saved.Graph, t.Op)
		if err != nil {
			return err
		}
		f.inputs = append(f.inputs, o)
	}
	for i, t := range f.signature.Outputs {
		o, err := output(m.saved.Graph, t.Op)
		if err != nil {
			return err
		}
		f.outputs = append(f.outputs, o)
		if t.Name == savedmodels.OutputLoss {
			f.loss = i
		}
	}
	return nil
}

// split splits "op:index"; the default index is 0.
func split(tensor string) (op string, index int, err error) {
	op, text, found := strings.Cut(tensor, ":")
	if found {
		if index, err = strconv.Atoi(text); err != nil {
			err = fmt.Errorf("tensor %q: %w", tensor, err)
		}
	}
	return op, index, err
}

func output(graph *tf.Graph, tensor string) (tf.Output, error) {
	name, n, err := split(tensor)
	if err != nil {
		return tf.Output{}, err
	}
	op := graph.Operation(name)
	if op == nil {
		return tf.Output{}, fmt.Errorf("no operation %q in the graph", name)
	}
	return op.Output(n), nil
}

// call runs a function on values. read must not keep the results.
func (m *model) call(f *function, values []any, read func([]*tf.Tensor) error) error {
	feeds := make(map[tf.Output]*tf.Tensor, len(values))
	for i, v := range values {
		t, err := tf.NewTensor(v)
		if err != nil {
			return err
		}
		feeds[f.inputs[i]] = m.tensors.counted(t)
	}
	return m.run(m.saved.Session, feeds, f.outputs, read)
}

// run calls Session.Run, and releases results and feeds if the parameter release says so.
func (j *job) run(session *tf.Session, feeds map[tf.Output]*tf.Tensor, fetches []tf.Output, read func([]*tf.Tensor) error) error {
	results, err := session.Run(feeds, fetches, nil)
	if err != nil {
		return err
	}
	for _, t := range results {
		j.tensors.counted(t)
	}
	if read != nil {
		err = read(results)
	}
	if j.drop {
		clear(feeds)
		clear(results)
	}
	return err
}

// scalars runs a function and reads all results, like a loop that prints its progress.
func (m *model) scalars(f *function, values []any) (loss float32, err error) {
	err = m.call(f, values, func(results []*tf.Tensor) error {
		for i, t := range results {
			v, ok := t.Value().(float32)
			if !ok {
				return fmt.Errorf("output %s is not a float32", f.signature.Outputs[i].Name)
			}
			if i == f.loss {
				loss = v
			}
		}
		return nil
	})
	return loss, err
}

func (m *model) train(f *function, batch func(n int) ([]any, error)) *loop.Loop {
	return &loop.Loop{
		Step: func(_ context.Context, n int) (float64, error) {
			values, err := batch(n)
			if err != nil {
				return 0, err
			}
			loss, err := m.scalars(f, values)
			return float64(loss), err
		},
		Close: m.close,
	}
}

func (m *model) trainRows(f *function, n int) (*loop.Loop, error) {
	data, err := m.rows(f, n, 0)
	if err != nil {
		return nil, err
	}
	return m.train(f, func(n int) ([]any, error) { return data.at(n, m.Spec.Batch), nil }), nil
}

// save and restore use files with a prefix.
func (m *model) save(prefix string) error {
	return m.saver(prefix, func(s *savedmodels.Saver) (fetches []tf.Output, _ []*tf.Operation, err error) {
		o, err := output(m.saved.Graph, s.SaveTensor)
		return []tf.Output{o}, nil, err
	})
}

func (m *model) restore(prefix string) error {
	return m.saver(prefix, func(s *savedmodels.Saver) ([]tf.Output, []*tf.Operation, error) {
		op := m.saved.Graph.Operation(s.RestoreOp)
		if op == nil {
			return nil, nil, fmt.Errorf("no operation %q in the graph", s.RestoreOp)
		}
		return nil, []*tf.Operation{op}, nil
	})
}

func (m *model) saver(prefix string, what func(*savedmodels.Saver) ([]tf.Output, []*tf.Operation, error)) error {
	s := m.info.Saver
	if s == nil {
		return fmt.Errorf("%s has no saver", m.info.Dir)
	}
	filename, err := output(m.saved.Graph, s.FilenameTensor)
	if err != nil {
		return err
	}
	fetches, targets, err := what(s)
	if err != nil {
		return err
	}
	x, err := tf.NewTensor(prefix)
	if err != nil {
		return err
	}
	results, err := m.saved.Session.Run(map[tf.Output]*tf.Tensor{filename: m.tensors.counted(x)}, fetches, targets)
	for _, t := range results {
		m.tensors.counted(t)
	}
	return err
}

// resetting adds the action of the parameter reset to the end of each epoch. The state of the
// model stays the same.
func (m *model) resetting(l *loop.Loop, functions ...*function) *loop.Loop {
	reset := m.Choice("reset", "none", "restore", "reload")
	if reset == "none" {
		return l
	}
	before, state := l.Epoch, filepath.Join(m.Spec.Scratch, "state")
	l.Epoch = func(ctx context.Context, n int) error {
		if before != nil {
			if err := before(ctx, n); err != nil {
				return err
			}
		}
		if err := m.save(state); err != nil {
			return err
		}
		if reset == "reload" {
			if err := m.close(); err != nil {
				return err
			}
			if err := m.load(); err != nil {
				return err
			}
			for _, f := range functions {
				if err := m.bind(f); err != nil {
					return err
				}
			}
		}
		return m.restore(state)
	}
	return l
}
