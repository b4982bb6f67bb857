package savedmodels

import (
	"slices"
	"strings"

	"steadyfit/internal/contract"
	"steadyfit/internal/tfproto"
)

// facts describe what a part of the model does when it runs.
type facts struct {
	// read, written and tested are the variables that operations read, assign, and test for
	// being initialized.
	read, written, tested set
	// updated are the variables that operations change in place, such as by AssignAdd.
	updated set
	// passed are the variables that operations take as resources without being known to only
	// read them, such as RngReadAndSkip.
	passed set
	unsafe []finding
	// fleeting has one operation of each type that keeps state outside of variables.
	fleeting []finding
}

func (f facts) changed() set { return union(f.written, f.updated) }

// finding is an operation that accesses files, the network or Python, or that keeps state
// outside of variables.
type finding struct {
	op, does string
	// where has the names of the node and its function.
	where string
}

// inspect derives the facts of all nodes that the tensors or operations in roots need.
func (g *graph) inspect(roots ...string) facts {
	t := g.follow(roots)
	f := facts{read: set{}, written: set{}, tested: set{}, updated: set{}, passed: set{}}
	for b, n := range t.nodes() {
		op := n.def.GetOp()
		if does, unsafe := t.reachesOutside(b, n); unsafe {
			f.unsafe = append(f.unsafe, finding{op, does, where(b, n)})
		}
		if does, keeps := contract.Fleeting(op); keeps &&
			!slices.ContainsFunc(f.fleeting, func(o finding) bool { return o.op == op }) {
			f.fleeting = append(f.fleeting, finding{op, does, where(b, n)})
		}
		if passesThrough[op] || len(n.calls) > 0 {
			continue
		}
		for k, e := range n.inputs {
			for _, id := range t.variables(b, e) {
				f.use(op, k, id)
			}
		}
	}
	return f
}

// use records what operation op does with variable id, its input k.
func (f *facts) use(op string, k, id int) {
	switch op {
	case "AssignVariableOp", "Assign", "AssignVariableXlaConcatND":
		if k == 0 {
			f.written[id] = true
		} else {
			f.read[id] = true // TensorFlow 1 passes variables by reference
		}
	case "VarIsInitializedOp", "IsVariableInitialized":
		f.tested[id] = true
	case "DestroyResourceOp", "DisableCopyOnRead", "VariableShape":
	case "ReadVariableOp", "ResourceGather", "ResourceGatherNd":
		f.read[id] = true
	default:
		f.passed[id] = true
		f.read[id] = true
		if slices.ContainsFunc([]string{"Assign", "Apply", "Scatter", "CountUpTo"},
			func(part string) bool { return strings.Contains(op, part) }) {
			f.updated[id] = true
		}
	}
}

// reachesOutside reports whether a node accesses files, the network or Python, or might do so. does
// describes the access.
func (t *trace) reachesOutside(b *body, n *node) (does string, unsafe bool) {
	op := n.def.GetOp()
	for _, a := range n.def.GetAttr() {
		if _, open := a.GetValue().(*tfproto.AttrValue_Placeholder); open {
			return "has an attribute that its caller gives, so it cannot be examined", true
		}
	}
	if does, unsafe = unsafeOps[op]; !unsafe {
		return "is not an operation that steadyfit knows", !safeOps[op] && t.g.funcs[op] == nil
	}
	return does, !t.harmless(b, n)
}

// harmless reports whether a node reaches no file, although its operation may do so.
func (t *trace) harmless(b *body, n *node) bool {
	switch n.def.GetOp() {
	case "PrintV2":
		return !strings.HasPrefix(string(n.def.GetAttr()["output_stream"].GetS()), "file://")
	case "InitializeTableFromTextFile", "InitializeTableFromTextFileV2":
		if len(n.inputs) < 2 {
			return false
		}
		file := t.origins(b, n.inputs[1])
		return len(file) > 0 && !slices.ContainsFunc(file, func(p place) bool { return !t.isAsset(p) })
	}
	return false
}

// isAsset reports whether a value is the path of one of the model's assets.
func (t *trace) isAsset(p place) bool {
	n := &p.in.nodes[p.node]
	return n.def.GetOp() == "ReadVariableOp" && n.ofStrings() && t.g.onlyAssets || p.in == t.g.main && t.g.assets[p.edge]
}

func where(b *body, n *node) string {
	if b.name == "" {
		return n.def.GetName()
	}
	return n.def.GetName() + " in function " + b.name
}
