package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"steadyfit/internal/bundle"
	"steadyfit/internal/graphdef"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Frozen is the state of a session at the time of Freeze. Another goroutine than that of the session
// may use it.
type Frozen interface {
	// Bytes returns the memory that the state takes if all variables change.
	Bytes() int64
	// Save writes the files of Session.Save. After Close of the session, it returns tfbind.ErrClosed.
	Save(prefix string) error
	// Close frees the state.
	Close() error
}

// Freeze returns the state for a checkpoint that is written while later steps run. Like a Snapshot,
// it shares memory with the variables until training changes them. The result is nil if only Save
// can write the state: for a rank of a cluster, and for a model whose saver saves more than variables.
func (s *Session) Freeze(ctx context.Context) (Frozen, error) {
	if s.rank != nil || s.model.Saver == nil {
		return nil, nil
	}
	return s.freeze(ctx)
}

func (s *Session) freeze(ctx context.Context) (Frozen, error) {
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
	err := withFiles(prefix, func(name *tfbind.Tensor) (err error) {
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
		return err
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
				Add("last", "RestoreV2", graphdef.Attrs{"dtypes": graphdef.Types([]tfbind.DType{tfbind.String})}, "prefix",
					"objectkey", "objectwhole")
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
	w.complete = withFiles(own, func(name *tfbind.Tensor) error {
		found, err := w.tf.Run(context.Background(), tfbind.Feeds{w.prefix: name}, []tfbind.Output{w.last},
			tfbind.RunOptions{Proto: callerRuns})
		if err == nil {
			w.objects = found[0]
		}
		return err
	}) == nil
}

func (w *stateWriter) close() error {
	return errors.Join(w.side.close(), w.objects.Close())
}
