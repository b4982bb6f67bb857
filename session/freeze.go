package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"steadyfit/internal/graphdef"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Frozen is the state of a session at the time of Freeze. Another goroutine than that of the session
// may use it.
type Frozen interface {
	// Bytes returns the memory that the state takes if all variables change.
	Bytes() int64
	// Save writes the variables like Session.Save, without the description of Python objects. After Close of the
	// session, it returns tfbind.ErrClosed.
	Save(prefix string) error
	// Close frees the state.
	Close() error
}

// Freeze returns the state for a checkpoint that is written while later steps run. Like a Snapshot,
// it shares memory with the variables until training changes them. The result is nil if only Save
// can write the state: for a rank of a cluster, and for a model whose saver saves more than variables.
func (s *Session) Freeze(ctx context.Context) (Frozen, error) {
	if s.rank != nil || !hasKeys(s.model) {
		return nil, nil
	}
	return s.freeze(ctx)
}

// hasKeys reports whether the names of all variables in checkpoints are known, and checkpoints have nothing else.
func hasKeys(m *savedmodels.Model) bool { return m.ByKey || m.Base != "" }

func (s *Session) freeze(ctx context.Context) (Frozen, error) {
	if err := s.writer.open(slices.Concat(s.config, oneThread), s.writerGraph); err != nil {
		return nil, err
	}
	p, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return frozen{p, s}, nil
}

// oneThread is a serialized tensorflow.ConfigProto with inter_op_parallelism_threads (5) = 1 and
// use_per_session_threads (9) = true. SaveV2 of TensorFlow 2.21 fills a buffer of 8 MiB, and the arena of glibc's
// malloc that its thread uses keeps it after the first save. With saves in many threads, each arena would keep one.
var oneThread = []byte{5 << 3, 1, 9 << 3, 1}

type frozen struct {
	*Snapshot
	of *Session // of which only the model and the side graph are used, since it may run steps
}

func (f frozen) Save(prefix string) error {
	if err := f.fits(f.of.model); err != nil {
		return fmt.Errorf("save %s: %w", prefix, err)
	}
	w := &f.of.writer
	err := withFiles(prefix, func(name *tfbind.Tensor) error {
		input, err := w.output("prefix")
		feeds := tfbind.Feeds{input: name}
		for i, v := range f.values {
			value, errValue := w.output("value" + strconv.Itoa(i))
			feeds[value], err = v, cmp.Or(err, errValue)
		}
		if err == nil {
			_, err = w.tf.Run(context.Background(), feeds, nil, tfbind.RunOptions{Targets: []string{"save"}})
		}
		return err
	})
	vars, changing := stateVariables(f.of.model)
	return saveError(prefix, vars[:changing], err)
}

// writerGraph returns the graph that writes the files of Save from the values of a snapshot. SaveV2 writes one data
// file under a temporary name and renames it, so MergeV2Checkpoints is not needed.
func (s *Session) writerGraph() *graphdef.Graph {
	g := new(graphdef.Graph).Placeholder("prefix", tfbind.String).Number("mark", 1)
	keys, types := []string{baseMark + s.model.Base}, []tfbind.DType{tfbind.Int64}
	inputs := []string{"prefix", "keys", "whole", "mark"}
	vars, changing := stateVariables(s.model)
	for i, v := range vars[:changing] {
		id := "value" + strconv.Itoa(i)
		g.Placeholder(id, v.DType)
		keys, types, inputs = append(keys, v.Key), append(types, v.DType), append(inputs, id)
	}
	return g.Texts("keys", keys...).Texts("whole", make([]string, len(keys))...).
		Add("save", "SaveV2", graphdef.Attrs{"dtypes": graphdef.Types(types)}, inputs...)
}
