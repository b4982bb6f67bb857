//go:build galeone

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/contract"
	"steadyfit/internal/lab/program"
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
	loss      int                  // index of the output with the loss, or -1
}

func (j *job) open(info *savedmodels.Model) *model {
	m := &model{job: j, info: info}
	m.load()
	j.OnClose(func() error { return m.saved.Session.Close() })
	return m
}

func (m *model) load() {
	saved, err := tf.LoadSavedModel(m.info.Dir, m.info.Tags, &tf.SessionOptions{Config: m.Config})
	if err != nil {
		program.Check(fmt.Errorf("load %s: %w", m.info.Dir, err))
	}
	m.saved = saved
}

// tensor creates a tensor from slices, as in the binding's documentation.
func tensor(value any) *tf.Tensor { return program.Must(tf.NewTensor(value)) }

func (j *job) trainable() (*model, *function) {
	m := j.open(j.OpenModel())
	return m, m.function(m.info.Roles.Train)
}

func (m *model) function(name string) *function {
	s, err := m.info.Signature(name)
	if err != nil {
		program.Check(fmt.Errorf("%s: %w", m.info.Dir, err))
	}
	f := &function{signature: s, types: s.DataInputs(), loss: -1}
	if len(f.types) < len(s.Inputs) {
		program.Check(fmt.Errorf("signature %s takes reserved inputs, which this loop does not feed", name))
	}
	m.bind(f)
	return f
}

func (m *model) bind(f *function) {
	f.inputs, f.outputs = nil, nil
	for _, t := range f.types {
		f.inputs = append(f.inputs, output(m.saved.Graph, t.Op))
	}
	for i, t := range f.signature.Outputs {
		f.outputs = append(f.outputs, output(m.saved.Graph, t.Op))
		if t.Name == contract.OutputLoss {
			f.loss = i
		}
	}
}

// split splits "op:index"; the default index is 0.
func split(tensor string) (op string, index int) {
	op, text, found := strings.Cut(tensor, ":")
	if found {
		index = program.Must(strconv.Atoi(text))
	}
	return op, index
}

func output(graph *tf.Graph, tensor string) tf.Output {
	name, n := split(tensor)
	op := graph.Operation(name)
	if op == nil {
		program.Check(fmt.Errorf("no operation %q in the graph", name))
	}
	return op.Output(n)
}

// run calls Session.Run, and releases results and feeds if the parameter release says so.
func (j *job) run(session *tf.Session, feeds map[tf.Output]*tf.Tensor, fetches []tf.Output, read func([]*tf.Tensor)) {
	results := program.Must(session.Run(feeds, fetches, nil))
	if read != nil {
		read(results)
	}
	if j.drop {
		clear(feeds)
		clear(results)
	}
}

// scalars runs a function and reads all results, like a loop that prints its progress.
func (m *model) scalars(f *function, values []any) (loss float32) {
	feeds := make(map[tf.Output]*tf.Tensor, len(values))
	for i, v := range values {
		feeds[f.inputs[i]] = tensor(v)
	}
	m.run(m.saved.Session, feeds, f.outputs, func(results []*tf.Tensor) {
		for i, t := range results {
			v, ok := t.Value().(float32)
			if !ok {
				program.Check(fmt.Errorf("output %s is not a float32", f.signature.Outputs[i].Name))
			}
			if i == f.loss {
				loss = v
			}
		}
	})
	return loss
}

func (m *model) train(f *function, batch func(n int) []any) *program.Loop {
	return &program.Loop{Step: func(_ context.Context, n int) float64 { return float64(m.scalars(f, batch(n))) }}
}

func (m *model) trainRows(f *function, n int) *program.Loop {
	data := m.rows(f, n, 0)
	return m.train(f, func(n int) []any { return data.at(n, m.Batch) })
}
