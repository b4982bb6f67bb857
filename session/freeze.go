package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"steadyfit/internal/bundle"
	"steadyfit/internal/capability"
	"steadyfit/internal/graphdef"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Freeze returns state that shares memory with the variables until training changes them, like a
// Snapshot. It is nil for a rank of a cluster, for a model whose saver saves more than variables, and
// after Restore of a complete checkpoint with other frozen variables.
func (s capable) Freeze(ctx context.Context) (capability.Frozen, error) {
	if s.rank != nil || s.foreign || s.model.Saver == nil {
		return nil, nil
	}
	return s.freeze(ctx)
}

func (s *Session) freeze(ctx context.Context) (capability.Frozen, error) {
	w := &s.writer
	if err := w.open(s.config, w.define(s.model)); err != nil || !w.complete {
		return nil, err
	}
	p, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return frozen{p, w, &s.saves}, nil
}

type frozen struct {
	*Snapshot
	writer *stateWriter
	thread *thread
}

func (f frozen) Save(prefix string) error {
	w := f.writer
	if err := f.fits(w.model); err != nil {
		return fmt.Errorf("save %s: %w", prefix, err)
	}
	name, err := tfbind.NewTensor([]string{prefix})
	if err != nil {
		return err
	}
	defer name.Close()
	feeds := tfbind.Feeds{w.prefix: name}
	if w.objects != nil {
		feeds[w.last] = w.objects
	}
	for i, v := range f.values {
		feeds[w.values[i]] = v
	}
	f.thread.run(func() {
		_, err = w.tf.Run(context.Background(), feeds, nil, tfbind.RunOptions{Targets: []string{"save"}, Proto: callerRuns})
	})
	if err = saveError(prefix, w.variables, err); err != nil && !errors.As(err, new(*SaveError)) {
		err = fmt.Errorf("save %s: %w", prefix, err)
	}
	return err
}

// stateWriter writes the files of Save from the values of a snapshot.
type stateWriter struct {
	side
	model     *savedmodels.Model
	variables []savedmodels.Variable
	prefix    tfbind.Output
	values    []tfbind.Output
	// last is the checkpoint entry after the variables: the entry that names the hash of the frozen
	// variables (baseMark), or without frozen variables the description of the Python objects.
	// objects is the value of that description, which comes from the model's own weights.
	last    tfbind.Output
	objects *tfbind.Tensor
	// complete is false if the model's saver saves other entries, or if the model's own weights
	// cannot be read.
	complete bool
}

// define adds one SaveV2 operation. SaveV2 writes one data file under a temporary name and renames
// it, so MergeV2Checkpoints is not needed.
func (w *stateWriter) define(m *savedmodels.Model) func(*graphdef.Graph) (find func()) {
	return func(g *graphdef.Graph) func() {
		vars, changing := stateVariables(m)
		base := m.Base
		if base != "" {
			vars = vars[:changing]
		}
		w.model, w.variables, w.values = m, vars, nil
		var keys []string
		var types []tfbind.DType
		inputs := []string{"prefix", "keys", "whole"}
		for i, v := range vars {
			id := "value" + strconv.Itoa(i)
			g.Placeholder(id, v.DType)
			keys, types, inputs = append(keys, v.Key), append(types, v.DType), append(inputs, id)
		}
		g.Placeholder("prefix", tfbind.String)
		if base != "" {
			g.Number("last", 1)
			keys, types = append(keys, baseMark+base), append(types, tfbind.Int64)
		} else {
			g.Texts("objectkey", bundle.ObjectGraph).Texts("objectwhole", "").
				Add("last", "RestoreV2", graphdef.Attrs{"dtypes": graphdef.Types([]tfbind.DType{tfbind.String})}, "prefix", "objectkey", "objectwhole")
			keys, types = append(keys, bundle.ObjectGraph), append(types, tfbind.String)
		}
		g.Texts("keys", keys...).Texts("whole", make([]string, len(keys))...).
			Add("save", "SaveV2", graphdef.Attrs{"dtypes": graphdef.Types(types)}, append(inputs, "last")...)
		return w.find
	}
}

func (w *stateWriter) find() {
	w.prefix, w.last = w.output("prefix"), w.output("last")
	for i := range w.variables {
		w.values = append(w.values, w.output("value"+strconv.Itoa(i)))
	}
	if w.complete = w.model.Base != ""; w.complete || w.err != nil {
		return
	}
	own := ownWeights(w.model)
	saved, err := bundle.Read(own)
	for _, v := range w.variables {
		if _, ok := saved[v.Key]; !ok {
			return
		}
		delete(saved, v.Key)
	}
	if err != nil || len(saved) > 0 {
		return
	}
	name, err := tfbind.NewTensor([]string{own})
	if err != nil {
		return
	}
	defer name.Close()
	found, err := w.tf.Run(context.Background(), tfbind.Feeds{w.prefix: name}, []tfbind.Output{w.last}, tfbind.RunOptions{Proto: callerRuns})
	if err == nil {
		w.objects, w.complete = found[0], true
	}
}

func (w *stateWriter) close() error {
	return errors.Join(w.side.close(), w.objects.Close())
}
