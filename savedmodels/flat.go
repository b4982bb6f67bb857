package savedmodels

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/dtype"
	"steadyfit/internal/tfproto"
)

// flat is the function of a signature with all its calls inlined: a list of operations without
// cycles, sorted so that each follows its inputs.
type flat struct {
	args []flatArg
	ops  []flatOp
	// rets are the results of the function, in order. effects are the operations that run even
	// if no result depends on them.
	rets    []value
	effects []int
}

// flatArg is an argument of a flat function.
type flatArg struct {
	dtype dtype.DType
	// from is the node of the main graph that provides the argument.
	from int
}

// flatOp is an operation of a flat function. Its inputs are in the fields in and after, not in its
// definition.
type flatOp struct {
	def   *tfproto.NodeDef
	in    []value
	after []int // operations that have to run before
}

// value is a result of operation op or, if op is negative, the argument with index -1-op. port is
// the part after the operation in the name of a result: "output:0" in "operation:output:0".
type value struct {
	op   int
	port string
}

// arg returns the index of the argument that the value refers to.
func (v value) arg() int { return -1 - v.op }

// The limits on functions that TensorFlow may inline (graph.checkCalls). The train step of a model with 1,000
// layers has 50,000 operations and calls.
const (
	maxInlined = 64 // nesting of calls
	maxCalled  = 2_000_000
)

// errFlat means that a step cannot be divided because of its form.
var errFlat = errors.New("the program of the signature has an unexpected form")

// scope is one call of a function that is inlined.
type scope struct {
	def    *tfproto.FunctionDef
	args   map[string]int
	nodes  map[string]*tfproto.NodeDef // without inlined calls
	parent *scope                      // nil for the function of the signature
	inputs []string                    // of the call, without control inputs
	call   *tfproto.NodeDef
	inside map[string]*scope // calls by the name of the calling operation
	ops    map[string]int    // operations by name; -1 while the inputs of an operation are added
}

// flattener inlines the calls of one function.
type flattener struct {
	defs map[string]*tfproto.FunctionDef
	ops  []flatOp
}

// flatten inlines the function that computes a signature's outputs. It returns the indices of
// the results for the outputs, and an error for a signature that is not one call of a function.
func flatten(def *tfproto.GraphDef, g *graph, s *Signature) (f *flat, outputs []int, err error) {
	entry := -1
	for _, t := range s.Outputs {
		i := g.nodeOf(t.Op)
		if i < 0 || entry >= 0 && i != entry {
			return nil, nil, fmt.Errorf("%w: its outputs are not those of one function", errFlat)
		}
		entry = i
		e := g.main.edge(t.Op, nil)
		outputs = append(outputs, e.out)
	}
	if entry < 0 {
		return nil, nil, fmt.Errorf("%w: it has no outputs", errFlat)
	}
	fl := &flattener{defs: map[string]*tfproto.FunctionDef{}}
	for _, d := range def.GetLibrary().GetFunction() {
		fl.defs[d.GetSignature().GetName()] = d
	}
	node := &g.main.nodes[entry]
	callee := fl.callee(node.def)
	if callee == nil {
		return nil, nil, fmt.Errorf("%w: its outputs come from a %s, not from a function", errFlat, node.def.GetOp())
	}
	f = &flat{}
	for i, a := range callee.GetSignature().GetInputArg() {
		if i >= len(node.inputs) || node.inputs[i].node < 0 || node.inputs[i].out != 0 {
			return nil, nil, fmt.Errorf("%w: argument %d of its function has no source", errFlat, i)
		}
		f.args = append(f.args, flatArg{dtype.DType(a.GetType()), node.inputs[i].node})
	}
	top := fl.open(callee, nil, nil)
	for _, out := range callee.GetSignature().GetOutputArg() {
		v, err := fl.resolve(top, callee.GetRet()[out.GetName()])
		if err != nil {
			return nil, nil, err
		}
		f.rets = append(f.rets, v)
	}
	for _, i := range outputs {
		if i >= len(f.rets) {
			return nil, nil, fmt.Errorf("%w: its function has %d results", errFlat, len(f.rets))
		}
	}
	f.effects, err = fl.controls(top)
	f.ops = fl.ops
	return f, outputs, err
}

// bypass replaces the result of an identity by the value that it passes on.
func (fl *flattener) bypass(v value) value {
	from, i := &fl.ops[v.op], 0
	switch from.def.GetOp() {
	case "Identity", "StopGradient", "PreventGradient", "Snapshot":
	case "IdentityN":
		_, index, _ := strings.Cut(v.port, ":")
		var err error
		if i, err = strconv.Atoi(index); err != nil {
			return v
		}
	default:
		return v
	}
	if i >= 0 && i < len(from.in) {
		return from.in[i]
	}
	return v
}

// callee returns the function that an operation calls if it can be inlined, and nil otherwise.
// Functions that TensorFlow compiles or replaces as a whole are not inlined.
func (fl *flattener) callee(n *tfproto.NodeDef) *tfproto.FunctionDef {
	if op := n.GetOp(); op != "PartitionedCall" && op != "StatefulPartitionedCall" {
		return nil
	}
	called := n.GetAttr()["f"].GetFunc()
	d := fl.defs[called.GetName()]
	if d == nil || len(called.GetAttr()) > 0 || n.GetAttr()["_XlaMustCompile"].GetB() {
		return nil
	}
	for _, name := range []string{"_XlaMustCompile", "_noinline", "api_implements", "implements"} {
		if d.GetAttr()[name] != nil {
			return nil
		}
	}
	return d
}

// open prepares the operations of a function and of the functions that it calls, whose depth graph.checkCalls
// limits.
func (fl *flattener) open(d *tfproto.FunctionDef, parent *scope, call *tfproto.NodeDef) *scope {
	s := &scope{def: d, args: map[string]int{}, nodes: map[string]*tfproto.NodeDef{}, parent: parent, call: call,
		inside: map[string]*scope{}, ops: map[string]int{}}
	for i, a := range d.GetSignature().GetInputArg() {
		s.args[a.GetName()] = i
	}
	for _, in := range call.GetInput() {
		if !strings.HasPrefix(in, "^") {
			s.inputs = append(s.inputs, in)
		}
	}
	for _, n := range d.GetNodeDef() {
		if inner := fl.callee(n); inner != nil {
			s.inside[n.GetName()] = fl.open(inner, s, n)
			continue
		}
		s.nodes[n.GetName()] = n
	}
	return s
}

// op returns the index of an operation of s. It adds the operation after those that it needs.
func (fl *flattener) op(s *scope, name string) (int, error) {
	if i, ok := s.ops[name]; ok {
		if i < 0 {
			return 0, fmt.Errorf("%w: its operations form a cycle", errFlat)
		}
		return i, nil
	}
	s.ops[name] = -1
	op := flatOp{def: s.nodes[name]}
	for _, in := range op.def.GetInput() {
		if strings.HasPrefix(in, "^") {
			continue
		}
		v, err := fl.resolve(s, in)
		if err != nil {
			return 0, err
		}
		op.in = append(op.in, v)
	}
	// Operations that must run before a call must also run before the operations of its function.
	at, of := s, op.def
	for of != nil {
		for _, in := range of.GetInput() {
			if before, control := strings.CutPrefix(in, "^"); control {
				list, err := fl.after(at, before)
				if err != nil {
					return 0, err
				}
				op.after = append(op.after, list...)
			}
		}
		at, of = at.parent, at.call
	}
	slices.Sort(op.after)
	op.after = slices.Compact(op.after)
	s.ops[name] = len(fl.ops)
	fl.ops = append(fl.ops, op)
	return s.ops[name], nil
}

// resolve finds the source of an input of an operation of s.
func (fl *flattener) resolve(s *scope, ref string) (value, error) {
	for range 4 * maxInlined { // bounds a chain of calls
		name, port, _ := strings.Cut(ref, ":")
		if i, ok := s.args[name]; ok {
			if s.call == nil {
				return value{op: -1 - i}, nil
			}
			if i >= len(s.inputs) {
				break
			}
			s, ref = s.parent, s.inputs[i]
			continue
		}
		if s.nodes[name] != nil {
			op, err := fl.op(s, name)
			if err != nil {
				return value{}, err
			}
			return fl.bypass(value{op, port}), nil
		}
		inner := s.inside[name]
		_, index, _ := strings.Cut(port, ":")
		var out int
		if _, err := fmt.Sscanf(index, "%d", &out); err != nil || inner == nil || out < 0 ||
			out >= len(inner.def.GetSignature().GetOutputArg()) {
			break
		}
		s, ref = inner, inner.def.GetRet()[inner.def.GetSignature().GetOutputArg()[out].GetName()]
	}
	return value{}, fmt.Errorf("%w: the input %s of an operation in %s has no source", errFlat, ref,
		s.def.GetSignature().GetName())
}

// after returns the operations that a control input in scope s waits for.
func (fl *flattener) after(s *scope, name string) ([]int, error) {
	if inner := s.inside[name]; inner != nil {
		return fl.controls(inner)
	}
	if s.nodes[name] == nil {
		return nil, nil
	}
	i, err := fl.op(s, name)
	return []int{i}, err
}

// controls returns the operations of a function that run at each call, even if no result depends on
// them.
func (fl *flattener) controls(s *scope) (list []int, err error) {
	for _, key := range slices.Sorted(maps.Keys(s.def.GetControlRet())) {
		more, err := fl.after(s, s.def.GetControlRet()[key])
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// needed marks the operations that results and effects depend on. Values in stop are known, so
// operations that only compute these values are not needed. Without controls, it does not follow control
// inputs.
func (f *flat) needed(results []value, effects []int, stop map[value]string, controls bool) []bool {
	need := make([]bool, len(f.ops))
	mark := func(list []value) {
		for _, v := range list {
			if _, given := stop[v]; !given && v.op >= 0 {
				need[v.op] = true
			}
		}
	}
	mark(results)
	for _, i := range effects {
		need[i] = true
	}
	for i := len(f.ops) - 1; i >= 0; i-- {
		if !need[i] {
			continue
		}
		mark(f.ops[i].in)
		for _, j := range f.ops[i].after {
			if controls && !pureOps[f.ops[j].def.GetOp()] {
				need[j] = true
			}
		}
	}
	return need
}

// waits returns the needed operations that must run before an operation with these control inputs.
// An operation that is not needed is replaced by the operations that must run before it.
func (f *flat) waits(after []int, need []bool) (list []int) {
	seen := map[int]bool{}
	todo := slices.Clone(after)
	for len(todo) > 0 {
		j := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch {
		case seen[j]:
		case need[j]:
			list = append(list, j)
		default:
			todo = append(todo, f.ops[j].after...)
			for _, v := range f.ops[j].in {
				if v.op >= 0 {
					todo = append(todo, v.op)
				}
			}
		}
		seen[j] = true
	}
	slices.Sort(list)
	return list
}

// clone returns the definition of an operation for another function.
func (o *flatOp) clone(name string, inputs []string) *tfproto.NodeDef {
	n := proto.CloneOf(o.def)
	n.Name, n.Input = name, inputs
	n.ExperimentalDebugInfo = nil
	if n.Attr == nil {
		n.Attr = map[string]*tfproto.AttrValue{}
	}
	delete(n.Attr, "_class") // names of operations on the same device
	return n
}
