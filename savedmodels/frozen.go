package savedmodels

import (
	"maps"
	"path/filepath"
	"strings"

	"steadyfit/internal/bundle"
)

// keys returns the name of each variable in a checkpoint, by the index of the variable, from the
// operations that restore. A variable has no name if several tensors, a part of a tensor, or a
// value other than a restored tensor are assigned to it.
func (g *graph) keys(restore string) map[int]string {
	t := g.follow([]string{restore})
	found, ambiguous := map[int]string{}, set{}
	for b, n := range t.nodes() {
		if n.def.GetOp() != "AssignVariableOp" || len(n.inputs) < 2 {
			continue
		}
		ids, key := t.variables(b, n.inputs[0]), t.restored(b, n.inputs[1])
		for _, id := range ids {
			if _, twice := found[id]; twice || key == "" || len(ids) > 1 {
				ambiguous[id] = true
			}
			found[id] = key
		}
	}
	maps.DeleteFunc(found, func(id int, _ string) bool { return ambiguous[id] })
	return found
}

// restored returns the name of the tensor of a checkpoint that an edge carries; empty if it is
// not exactly one whole tensor.
func (t *trace) restored(b *body, e edge) string {
	from := t.origins(b, e)
	if len(from) != 1 || from[0].node < 0 {
		return ""
	}
	p := from[0]
	n := &p.in.nodes[p.node]
	if n.def.GetOp() != "RestoreV2" || len(n.inputs) < 3 || t.text(p.in, n.inputs[2], p.out) != "" {
		return ""
	}
	return t.text(p.in, n.inputs[1], p.out)
}

// text returns element i of a constant of strings; empty if there is none.
func (t *trace) text(b *body, e edge, i int) string {
	from := t.origins(b, e)
	if len(from) != 1 || from[0].node < 0 {
		return ""
	}
	values := from[0].in.nodes[from[0].node].def.GetAttr()["value"].GetTensor().GetStringVal()
	if i >= len(values) {
		return ""
	}
	return string(values[i])
}

// markFrozen sets Variable.Key, Frozen and Weight.
func (m *Model) markFrozen(v *Variable, id int) {
	k := &m.known
	v.Key = k.keys[id]
	changed, read, predicts := false, false, false
	for name, f := range k.signature {
		changes := f.written[id] || f.updated[id]
		changed = changed || (changes || f.passed[id]) && name != "restore"
		read = read || f.read[id]
		if name == m.Roles.Predict || name == m.Roles.Evaluate && !changes {
			predicts = predicts || f.read[id]
		}
	}
	kept := v.Saved && v.Restored
	v.Frozen, v.Weight = kept && !changed && read, kept && changed && predicts
}

// frozen returns the names of the frozen variables in checkpoints.
func (m *Model) frozen() (keys []string) {
	for _, v := range m.Variables {
		if v.Frozen {
			keys = append(keys, v.Key)
		}
	}
	return keys
}

// frozenSum returns the hash of the frozen variables in the model's files; empty if there are none or they
// cannot be read.
func (m *Model) frozenSum() string {
	tensors, _ := bundle.Read(m.weights())
	return bundle.Sum(tensors, m.frozen())
}

// findBase computes ByKey and Base. Errors leave them false and empty: TensorFlow reports a damaged index when it
// loads the model.
func (m *Model) findBase() {
	tensors, err := bundle.Read(m.weights())
	seen := map[string]bool{}
	m.ByKey = err == nil
	for _, v := range m.Variables {
		if !v.Saved && !v.Restored {
			continue
		}
		if v.Key == "" || seen[v.Key] || v.Container != "" {
			m.ByKey = false
			return
		}
		_, stored := tensors[v.Key]
		m.ByKey = m.ByKey && stored && v.Saved && v.Restored
		seen[v.Key] = true
	}
	m.ByKey = m.ByKey && len(tensors) == len(seen)
	m.Base = bundle.Sum(tensors, m.frozen())
}

// weights returns the prefix of the files with the model's own values.
func (m *Model) weights() string { return filepath.Join(m.Dir, "variables", "variables") }

// keySuffix ends the name of a variable in a checkpoint of TensorFlow 2.
const keySuffix = "/.ATTRIBUTES/VARIABLE_VALUE"

// WeightName returns the name of the variable for users: its path through the Python objects, as in
// "model/dense/kernel". TensorFlow escapes slashes in the names of its checkpoints
// (_escape_local_name in checkpoint/trackable_view.py).
func (v Variable) WeightName() string {
	path, ok := strings.CutSuffix(v.Key, keySuffix)
	if !ok {
		return v.Key
	}
	return strings.NewReplacer("..", ".", ".S", "/").Replace(path)
}
