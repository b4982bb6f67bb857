package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/bundle"
	"steadyfit/internal/contract"
	"steadyfit/internal/graphdef"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// A model with frozen variables has a state of two parts. Save and Snapshot hold only the variables
// that its signatures change. The model's own files have the frozen ones. A file of Save has the
// hash of the frozen variables (savedmodels.Model.Base), if any, in the name of a tensor, where it
// can be read without the values.

// baseMark begins the name of the tensor that marks files of Save; the hash follows.
const baseMark = "steadyfit/base/"

// ErrMismatch means that a checkpoint, a snapshot or an adapter cannot be used with a model: it has
// other variables, belongs to a model with other frozen variables, or is closed. From fit.Loop, it
// means that the model, the data or the options of a training differ from those of its checkpoint.
var ErrMismatch = errors.New("it does not fit the model")

// Kinds of ErrMismatch.
var (
	errBase        = contract.Mark(errors.New("it belongs to another base model"), ErrMismatch)
	errSnapshot    = contract.Mark(errors.New("the snapshot cannot be used"), ErrMismatch)
	errVariables   = contract.Mark(errors.New("the checkpoint has other variables than the model"), ErrMismatch)
	errAdapterFile = contract.Mark(errors.New("not a valid adapter"), ErrMismatch)
	errAdapter     = contract.Mark(errors.New("the adapter has other weights than the model"), ErrMismatch)
)

func otherBase(have, want string) error {
	hash := func(base string) string {
		if base == "" {
			return "none"
		}
		return base[:min(12, len(base))]
	}
	return fmt.Errorf("%w: the hash of its frozen variables is %s, and that of this model is %s; use the model that it "+
		"was trained on", errBase, hash(have), hash(want))
}

// stateVariables returns the variables of a checkpoint, the frozen ones last, and the number of
// those that are not frozen.
func stateVariables(m *savedmodels.Model) (vars []savedmodels.Variable, changing int) {
	var frozen []savedmodels.Variable
	for _, v := range m.Variables {
		switch {
		case !v.Saved || !v.Restored:
		case v.Frozen && m.Base != "":
			frozen = append(frozen, v)
		default:
			vars = append(vars, v)
		}
	}
	return append(vars, frozen...), len(vars)
}

// stateOps are operations added to the model's graph that read and write its variables, in the
// order of stateVariables.
type stateOps struct {
	variables     []savedmodels.Variable
	changing      int
	reads, places []tfbind.Output
	// writes are the names of operations that set the variables to the values of places, or without these values,
	// to those in the files whose prefix is fed to prefix.
	writes []string
	prefix tfbind.Output
}

// statePrefix is the prefix of the names of the operations that are added to a model's graph.
const statePrefix = "steadyfit_state"

// stateGraph returns the operations of stateOps. A handle with the same name and container as one in the model's
// graph refers to the same variable. The values of frozen variables, which files of Save lack, are read separately.
func stateGraph(m *savedmodels.Model) (*graphdef.Graph, *stateOps) {
	g, o := (&graphdef.Graph{}).Placeholder("prefix", tfbind.String), &stateOps{}
	o.variables, o.changing = stateVariables(m)
	for _, part := range [][2]int{{0, o.changing}, {o.changing, len(o.variables)}} {
		restored := "restored" + strconv.Itoa(part[0])
		var keys []string
		var types []tfbind.DType
		for i := part[0]; i < part[1]; i++ {
			v, id := o.variables[i], strconv.Itoa(i)
			typed := graphdef.Attrs{"dtype": graphdef.Type(v.DType)}
			g.Add("handle"+id, "VarHandleOp", v.HandleAttrs()).
				Add("read"+id, "ReadVariableOp", typed, "handle"+id).
				Add("value"+id, "PlaceholderWithDefault", graphdef.Attrs{"dtype": graphdef.Type(v.DType),
					"shape": graphdef.AnyShape()}, fmt.Sprintf("%s:%d", restored, len(keys))).
				Add("write"+id, "AssignVariableOp", typed, "handle"+id, "value"+id)
			keys, types = append(keys, v.Key), append(types, v.DType)
		}
		if len(keys) > 0 {
			g.Texts(restored+"keys", keys...).Texts(restored+"whole", make([]string, len(keys))...).
				Add(restored, "RestoreV2", graphdef.Attrs{"dtypes": graphdef.Types(types)}, "prefix", restored+"keys",
					restored+"whole")
		}
	}
	return g, o
}

// addState adds the operations to a graph.
func addState(m *savedmodels.Model, graph *tfbind.Graph) (*stateOps, error) {
	g, o := stateGraph(m)
	def, err := g.Bytes()
	if err == nil {
		err = graph.Import(def, statePrefix)
	}
	if err == nil {
		o.prefix, err = graph.Output(statePrefix + "/prefix")
	}
	for i := range o.variables {
		if err != nil {
			break
		}
		id := strconv.Itoa(i)
		read, errRead := graph.Output(statePrefix + "/read" + id)
		place, errPlace := graph.Output(statePrefix + "/value" + id)
		o.reads, o.places, o.writes = append(o.reads, read), append(o.places, place),
			append(o.writes, statePrefix+"/write"+id)
		err = errors.Join(errRead, errPlace)
	}
	if err != nil {
		return nil, fmt.Errorf("operations for the state of a model: %w", err)
	}
	return o, nil
}

// stateOperations adds the operations to the graph at their first use.
func (s *Session) stateOperations() (*stateOps, error) {
	if s.state != nil {
		return s.state, nil
	}
	o, err := addState(s.model, s.tf.Graph())
	s.state = o
	return o, err
}

// runState runs operations of stateOps in the calling thread if possible: they do little work, and on a
// busy machine each change of the thread takes some milliseconds.
func (s *Session) runState(ctx context.Context, feeds tfbind.Feeds, targets ...string) error {
	_, err := s.tf.Run(ctx, feeds, nil, tfbind.RunOptions{Targets: targets, Proto: inCaller(s.tf)})
	return err
}

// inCaller returns callerRuns on one device, and nil on several, where TensorFlow does not support it.
func inCaller(tf *tfbind.Session) []byte {
	if devices, err := tf.Devices(); err == nil && len(devices) == 1 {
		return callerRuns
	}
	return nil
}

// baseIn returns the hash of the frozen variables to which the files of Save belong; ok is false
// for a complete checkpoint.
func baseIn(tensors map[string]bundle.Tensor) (base string, ok bool) {
	for name := range tensors {
		if base, ok = strings.CutPrefix(name, baseMark); ok {
			return base, true
		}
	}
	return "", false
}

// CheckVariables returns nil if the files of Save, perhaps of another model, have exactly the variables
// of the session's model, with their names, types and shapes, and belong to a model with the same frozen
// variables. Otherwise the error is ErrMismatch with the first differences. TensorFlow may restore a
// variable of another shape without an error. The names are those of objects, which stay the same when a
// model is exported again.
func (s *Session) CheckVariables(prefix string) error {
	if s.model.Saver == nil {
		return errNoSaver(s.model)
	}
	have, err := bundle.Read(prefix)
	if err != nil {
		return err
	}
	want, err := bundle.Read(ownWeights(s.model))
	if err != nil {
		return fmt.Errorf("the weights of the model: %w", err)
	}
	var frozen []string
	vars, changing := stateVariables(s.model)
	for _, v := range vars[changing:] {
		frozen = append(frozen, v.Key)
	}
	base, part := baseIn(have)
	if part {
		delete(have, baseMark+base)
		maps.DeleteFunc(want, func(key string, _ bundle.Tensor) bool { return slices.Contains(frozen, key) })
	} else if s.model.Base != "" {
		base = bundle.Sum(have, frozen)
	}
	if base != s.model.Base {
		return otherBase(base, s.model.Base)
	}
	if found := bundle.Differences(want, have); found != "" {
		return fmt.Errorf("%w: %s", errVariables, found)
	}
	return nil
}

// ownWeights returns the prefix of the files of the model's own weights.
func ownWeights(m *savedmodels.Model) string { return filepath.Join(m.Dir, "variables", "variables") }
