package savedmodels

import (
	"slices"
	"strings"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
)

// facts describe what a part of the model does when it runs.
type facts struct {
	// read, written and tested are the variables whose values are used, that are assigned, and
	// that are tested for having a value.
	read, written, tested set
	// updated are the variables that change by an update rather than an assignment.
	updated set
	unsafe  []finding
	// fleeting are the operations that keep state outside of variables, one of each type.
	fleeting []finding
	// half16 is a compute-intensive operation on float16; empty if there is none.
	half16 string
	// guarded means that an operation tests for infinities, as loss scaling does.
	guarded bool
}

// changed returns the variables that are assigned or updated.
func (f facts) changed() set { return union(f.written, f.updated) }

// finding is an operation that accesses anything outside the computation, or that keeps its
// own state.
type finding struct {
	op, does string
	// where is the name of the node and of the function that contains it.
	where string
}

// inspect derives the facts from the nodes reached from roots.
func (g *graph) inspect(roots []string) (facts, error) {
	t, err := g.follow(roots)
	if err != nil {
		return facts{}, err
	}
	f := facts{read: set{}, written: set{}, tested: set{}, updated: set{}}
	for b, n := range t.nodes() {
		op := n.def.GetOp()
		does, unsafe, err := t.reachesOutside(b, n)
		if err != nil {
			return f, err
		}
		if unsafe {
			f.unsafe = append(f.unsafe, finding{op, does, where(b, n)})
		}
		if does, keeps := fleetingOps[op]; keeps && !slices.ContainsFunc(f.fleeting, func(o finding) bool { return o.op == op }) {
			f.fleeting = append(f.fleeting, finding{op, does, where(b, n)})
		}
		f.guarded = f.guarded || op == "IsFinite" || op == "IsInf" || op == "IsNan"
		if heavyMath[op] && f.half16 == "" && n.def.GetAttr()["T"].GetType() == types_go_proto.DataType_DT_HALF {
			f.half16 = where(b, n)
		}
		if passesThrough[op] || len(n.calls) > 0 {
			continue
		}
		for k, e := range n.inputs {
			ids, err := t.variables(b, e)
			if err != nil {
				return f, err
			}
			for _, id := range ids {
				f.use(op, k, id)
			}
		}
	}
	return f, nil
}

// use records what an operation does with a variable that is its input k.
func (f *facts) use(op string, k, id int) {
	switch op {
	case "AssignVariableOp", "Assign", "AssignVariableXlaConcatND":
		if k == 0 {
			f.written[id] = true
		} else {
			f.read[id] = true // by a reference, in the form of TensorFlow 1
		}
	case "VarIsInitializedOp", "IsVariableInitialized":
		f.tested[id] = true
	case "DestroyResourceOp", "DisableCopyOnRead", "VariableShape":
	case "ReadVariableOp", "ResourceGather", "ResourceGatherNd":
		f.read[id] = true
	default:
		f.read[id] = true
		if slices.ContainsFunc([]string{"Assign", "Apply", "Scatter", "CountUpTo"}, func(part string) bool { return strings.Contains(op, part) }) {
			f.updated[id] = true
		}
	}
}

// reachesOutside reports whether a node accesses anything outside the computation, and returns
// what it does.
func (t *trace) reachesOutside(b *body, n *node) (does string, unsafe bool, err error) {
	op := n.def.GetOp()
	does, unsafe = unsafeOps[op]
	// file returns the source of the node's file name.
	file := func() ([]place, error) {
		if len(n.inputs) < 2 {
			return nil, nil
		}
		return t.origins(b, n.inputs[1])
	}
	switch {
	case op == "PrintV2" && strings.HasPrefix(string(n.def.GetAttr()["output_stream"].GetS()), "file://"):
		return "writes files", true, nil
	case op == "CacheDataset" || op == "CacheDatasetV2":
		// Without a file name, it caches in memory.
		places, err := file()
		return "writes files", len(places) == 0 || slices.ContainsFunc(places, func(p place) bool {
			d := p.in.nodes[p.node].def
			values := d.GetAttr()["value"].GetTensor().GetStringVal()
			return d.GetOp() != "Const" || len(values) != 1 || len(values[0]) > 0
		}), err
	case vocabularyOps[op]:
		// A table may be initialized from an asset of the model.
		places, err := file()
		return does, len(places) == 0 || slices.ContainsFunc(places, func(p place) bool {
			return p.in != t.g.main || !t.g.asset[p.in.nodes[p.node].def.GetName()]
		}), err
	}
	return does, unsafe, nil
}

func where(b *body, n *node) string {
	if b.name == "" {
		return n.def.GetName()
	}
	return n.def.GetName() + " in function " + b.name
}
