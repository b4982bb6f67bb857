package savedmodels

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/internal/tfproto"
)

// graph is an indexed GraphDef. Its main graph and each of its functions are a body.
//
// A function with several callers has one body, and each argument has the sources of all
// callers. The facts of a function therefore hold for all callers together.
type graph struct {
	main  *body
	funcs map[string]*body
	// alternatives has the functions with the same attribute api_implements. TensorFlow may run one of
	// them in place of another.
	alternatives map[string][]*body
	vars         []*Variable
	// assets has the placeholders of the main graph that TensorFlow sets to paths of the model's assets
	// while it loads the model.
	assets map[edge]bool
	// onlyAssets reports whether variables of strings have no other values than paths of assets.
	onlyAssets bool
	// work counts the steps of following values.
	work int
}

// maxWork limits the steps of following values. A step takes about 0.2 us, and a model of 50 MB takes about
// 2 million. Without a limit, a malicious graph could take years.
const maxWork = 20_000_000

// exhausted counts steps, and reports whether they are more than maxWork. What was found is then incomplete.
func (g *graph) exhausted(steps int) bool {
	g.work += steps
	return g.work > maxWork
}

type body struct {
	name   string // "" for the main graph
	api    string // see alternatives
	nodes  []node
	byName map[string]int
	// handles reports for each argument whether it may be a handle to a variable.
	handles []bool
	rets    []edge
}

type node struct {
	def    *tfproto.NodeDef
	inputs []edge // data inputs
	after  []int  // control inputs; recorded in the main graph only
	calls  []call
	// variable is an index in graph.vars; -1 if the node creates no variable.
	variable int
}

// edge is the source of a value in a body: output out of a node, or argument -1-node if node is
// negative.
type edge struct{ node, out int }

// nowhere is the source of a value that the graph does not define.
var nowhere = edge{node: math.MinInt}

// arg returns the index of the function argument that the edge comes from.
func (e edge) arg() int { return -1 - e.node }

type place struct {
	in *body
	edge
}

// call is a function that a node may run.
type call struct {
	to *body
	// skip is the number of inputs of the node that precede the function's first argument; -1 if
	// unknown.
	skip int
}

func newGraph(def *tfproto.GraphDef) *graph {
	g := &graph{main: &body{}, funcs: map[string]*body{}, alternatives: map[string][]*body{}, assets: map[edge]bool{}}
	defs := map[string]*tfproto.FunctionDef{}
	for _, f := range def.GetLibrary().GetFunction() {
		name := f.GetSignature().GetName()
		defs[name] = f
		b := &body{name: name, api: string(f.GetAttr()["api_implements"].GetS())}
		g.funcs[name] = b
		g.alternatives[b.api] = append(g.alternatives[b.api], b)
	}
	vars := map[string]int{}
	g.fill(g.main, def.GetNode(), nil, vars)
	// The order is fixed because the first node with a variable's name defines its type and
	// shape.
	for _, name := range slices.Sorted(maps.Keys(defs)) {
		f, b := defs[name], g.funcs[name]
		args := map[string]int{}
		for i, a := range f.GetSignature().GetInputArg() {
			args[a.GetName()] = i
			b.handles = append(b.handles, a.GetTypeAttr() != "" || a.GetIsRef() || mayBeHandle(a.GetType()))
		}
		g.fill(b, f.GetNodeDef(), args, vars)
		for _, a := range f.GetSignature().GetOutputArg() {
			b.rets = append(b.rets, b.edge(f.GetRet()[a.GetName()], args))
		}
	}
	return g
}

// mayBeHandle reports whether a value of the type can refer to a variable. Types from 100 on
// are references.
func mayBeHandle(t tfproto.DataType) bool {
	return t == tfproto.DataType_DT_RESOURCE || t == tfproto.DataType_DT_INVALID || t >= 100
}

// fill adds nodes to b. args has the indices of a function's arguments; it is nil for the main
// graph. vars has the indices of variables by container and name.
func (g *graph) fill(b *body, defs []*tfproto.NodeDef, args map[string]int, vars map[string]int) {
	b.nodes = make([]node, len(defs))
	b.byName = make(map[string]int, len(defs))
	for i, d := range defs {
		b.byName[d.GetName()] = i
	}
	for i, d := range defs {
		n := &b.nodes[i]
		n.def, n.variable, n.calls = d, -1, g.callsOf(d)
		for _, in := range d.GetInput() {
			if name, control := strings.CutPrefix(in, "^"); !control {
				n.inputs = append(n.inputs, b.edge(in, args))
			} else if j, ok := b.byName[name]; ok && args == nil {
				n.after = append(n.after, j)
			}
		}
		if createsVariable[d.GetOp()] {
			v := describe(d, b.name)
			key := v.Container + "|" + v.Name
			id, ok := vars[key]
			if !ok {
				id = len(g.vars)
				vars[key] = id
				g.vars = append(g.vars, v)
			}
			n.variable = id
		}
	}
}

// describe reads a variable from the node that creates its handle. Within a session, handles
// with the same container and shared name refer to the same variable (resource_variable_ops in
// TensorFlow).
func describe(d *tfproto.NodeDef, function string) *Variable {
	attr := d.GetAttr()
	shape := attr["shape"].GetShape()
	v := &Variable{
		Container:   string(attr["container"].GetS()),
		Name:        string(attr["shared_name"].GetS()),
		DType:       dtype.DType(attr["dtype"].GetType()),
		UnknownRank: shape == nil || shape.GetUnknownRank(),
	}
	if !v.UnknownRank {
		v.Shape = []int64{}
	}
	if v.Name == "" {
		v.Name = d.GetName()
		if function != "" {
			v.Name = function + "/" + v.Name
		}
	}
	for _, dim := range shape.GetDim() {
		v.Shape = append(v.Shape, dim.GetSize())
	}
	return v
}

// edge parses an input: "node:1" in the main graph; "argument" or "node:output:1" in a
// function.
func (b *body) edge(ref string, args map[string]int) edge {
	name, rest, _ := strings.Cut(ref, ":")
	if i, ok := args[name]; ok {
		return edge{node: -1 - i}
	}
	i, ok := b.byName[name]
	if !ok {
		return nowhere
	}
	out, err := strconv.Atoi(rest[strings.IndexByte(rest, ':')+1:])
	if err != nil || out < 0 {
		out = 0
	}
	return edge{i, out}
}

// callsOf finds the functions that a node may run, in a fixed order.
func (g *graph) callsOf(d *tfproto.NodeDef) []call {
	var calls []call
	skip := -1
	switch d.GetOp() {
	case "PartitionedCall", "StatefulPartitionedCall", "TPUPartitionedCall", "XlaLaunch", "SymbolicGradient",
		"While", "StatelessWhile", "_While":
		skip = 0
	case "If", "StatelessIf", "_If", "Case", "StatelessCase", "RemoteCall":
		skip = 1
	}
	add := func(name string, skip int) {
		b := g.funcs[name]
		switch {
		case b == nil:
		case b.api == "":
			calls = append(calls, call{b, skip})
		default:
			for _, b := range g.alternatives[b.api] {
				calls = append(calls, call{b, skip})
			}
		}
	}
	add(d.GetOp(), 0)
	for _, key := range slices.Sorted(maps.Keys(d.GetAttr())) {
		// This attribute names a gradient function, which a saved graph never runs.
		if key == "_gradient_op_type" {
			continue
		}
		v := d.GetAttr()[key]
		for _, f := range append([]*tfproto.NameAttrList{v.GetFunc()}, v.GetList().GetFunc()...) {
			add(f.GetName(), skip)
		}
	}
	return calls
}

// findAssets finds the paths of the model's assets. TensorFlow 2 assigns each path to a variable. Any
// other assignment to a variable of strings anywhere may be to the same variable, by another handle.
func (g *graph) findAssets(assets []*tfproto.AssetFileDef) {
	for _, a := range assets {
		e := g.main.edge(a.GetTensorInfo().GetName(), nil)
		if e != nowhere && g.main.nodes[e.node].def.GetOp() == "Placeholder" && filepath.IsLocal(a.GetFilename()) {
			g.assets[e] = true
		}
	}
	g.onlyAssets = true
	for _, b := range append(slices.Collect(maps.Values(g.funcs)), g.main) {
		for i := range b.nodes {
			n := &b.nodes[i]
			if op := n.def.GetOp(); !strings.HasPrefix(op, "Assign") && !strings.HasPrefix(op, "Resource") || !n.ofStrings() {
				continue
			}
			if n.def.GetOp() != "AssignVariableOp" || b != g.main || len(n.inputs) < 2 || !g.assets[n.inputs[1]] {
				g.onlyAssets = false
			}
		}
	}
}

// ofStrings reports whether an attribute of the node is the type string.
func (n *node) ofStrings() bool {
	for _, a := range n.def.GetAttr() {
		if a.GetType() == tfproto.DataType_DT_STRING {
			return true
		}
	}
	return false
}

// checkCalls returns an error if functions call each other without end, or far more often than those of a
// real model: TensorFlow would crash or hang when it loads the model.
func (g *graph) checkCalls() error {
	type extent struct{ levels, nodes int }
	known := map[*body]extent{}
	var path []string
	var visit func(b *body) (extent, error)
	visit = func(b *body) (extent, error) {
		e, ok := known[b]
		path = append(path, b.name)
		for i := 0; !ok && i < len(b.nodes) && len(path) <= maxInlined; i++ {
			for _, c := range b.nodes[i].calls {
				inner, err := visit(c.to)
				if err != nil {
					return e, err
				}
				e.levels, e.nodes = max(e.levels, 1+inner.levels), e.nodes+inner.nodes
			}
			e.nodes++
		}
		if len(path)+e.levels > maxInlined || e.nodes > maxCalled {
			return e, fmt.Errorf("%w: its functions call each other without end, more than %d levels deep, or so often that "+
				"they run more than %d operations: %s; TensorFlow would crash or hang when it loads the model; export it again "+
				"without recursion", ErrNotSavedModel, maxInlined, maxCalled, strings.Join(path[:min(len(path), 4)], " calls "))
		}
		path = path[:len(path)-1]
		known[b] = e
		return e, nil
	}
	for i := range g.main.nodes {
		for _, c := range g.main.nodes[i].calls {
			if _, err := visit(c.to); err != nil {
				return err
			}
		}
	}
	return nil
}

// nodeOf returns the index of a node in the main graph, by the name of the node or of one of
// its outputs; -1 if there is none.
func (g *graph) nodeOf(name string) int {
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "^"), ":")
	if i, ok := g.main.byName[name]; ok {
		return i
	}
	return -1
}

// trace is the part of the model that runs to compute some tensors or operations.
type trace struct {
	g    *graph
	main []int // indices of nodes in the main graph
	// bodies are the functions that may run. All nodes of a function are part of the trace,
	// since TensorFlow prunes only nodes without side effects.
	bodies []*body
	// callers has the nodes that may run each function.
	callers map[*body][]caller
	// known caches the results of origins.
	known map[place][]place
}

type caller struct {
	in   *body
	node int
	skip int
}

// follow returns the trace of the tensors ("name:0") or operations ("name") in roots, and of calls by nodes
// that are not in the graph. It ignores names that are not in the graph.
func (g *graph) follow(roots []string, calls ...call) *trace {
	t := &trace{g: g, callers: map[*body][]caller{}, known: map[place][]place{}}
	seen := make([]bool, len(g.main.nodes))
	var todo []int
	push := func(i int) {
		if i >= 0 && !seen[i] {
			seen[i] = true
			todo = append(todo, i)
		}
	}
	for _, root := range roots {
		push(g.nodeOf(root))
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n := &g.main.nodes[i]
		t.main = append(t.main, i)
		for _, e := range n.inputs {
			push(e.node)
		}
		for _, j := range n.after {
			push(j)
		}
		t.enter(n.calls, caller{in: g.main, node: i})
	}
	slices.Sort(t.main)
	t.enter(calls, caller{})
	for k := 0; k < len(t.bodies); k++ {
		b := t.bodies[k]
		for i := range b.nodes {
			t.enter(b.nodes[i].calls, caller{in: b, node: i})
		}
	}
	slices.SortFunc(t.bodies, func(a, b *body) int { return cmp.Compare(a.name, b.name) })
	return t
}

// enter records the functions that a node may run.
func (t *trace) enter(calls []call, by caller) {
	for _, c := range calls {
		if t.callers[c.to] == nil {
			t.bodies = append(t.bodies, c.to)
		}
		by.skip = c.skip
		t.callers[c.to] = append(t.callers[c.to], by)
	}
}

// nodes iterates over the nodes of the trace, each with its body.
func (t *trace) nodes() iter.Seq2[*body, *node] {
	return func(yield func(*body, *node) bool) {
		for _, i := range t.main {
			if !yield(t.g.main, &t.g.main.nodes[i]) {
				return
			}
		}
		for _, b := range t.bodies {
			for i := range b.nodes {
				if !yield(b, &b.nodes[i]) {
					return
				}
			}
		}
	}
}

// origins finds the nodes that may have made the value of an edge. It follows the value
// backwards through identities, function calls, loops and conditions. It finds nothing once the graph is
// exhausted.
func (t *trace) origins(b *body, e edge) []place {
	if e == nowhere {
		return nil
	}
	start := place{b, e}
	if found, ok := t.known[start]; ok {
		return found
	}
	var found []place
	seen := map[place]bool{start: true}
	todo := []place{start}
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		before, ok := t.known[p]
		if t.g.exhausted(1 + len(before)) {
			return nil
		}
		if ok {
			for _, made := range before {
				if made == p || !seen[made] {
					seen[made] = true
					found = append(found, made)
				}
			}
			continue
		}
		sources, passes := t.sources(p)
		t.g.exhausted(len(sources))
		if !passes {
			found = append(found, p)
		}
		for _, s := range sources {
			if s.edge != nowhere && !seen[s] {
				seen[s] = true
				todo = append(todo, s)
			}
		}
	}
	if len(seen) > 1 {
		t.known[start] = found
	}
	return found
}

// sources finds the places that p may take its value from. passes is false if p is a node that
// makes a new value.
func (t *trace) sources(p place) (from []place, passes bool) {
	add := func(b *body, edges ...edge) {
		for _, e := range edges {
			from = append(from, place{b, e})
		}
	}
	if p.node < 0 {
		for _, c := range t.callers[p.in] {
			n := &c.in.nodes[c.node]
			inputs, loops := only(n.inputs, p.arg()+c.skip), strings.HasSuffix(n.def.GetOp(), "While")
			if c.skip < 0 {
				inputs = n.inputs
			}
			add(c.in, inputs...)
			for _, before := range n.calls { // a loop takes the results of its previous iteration
				if c.skip < 0 {
					add(before.to, before.to.rets...)
				} else if loops {
					add(before.to, only(before.to.rets, p.arg())...)
				}
			}
		}
		return from, true
	}
	n := &p.in.nodes[p.node]
	op := n.def.GetOp()
	switch {
	case op == "IdentityN":
		add(p.in, only(n.inputs, p.out)...)
	case passesThrough[op]:
		add(p.in, n.inputs...)
	case len(n.calls) > 0:
		for _, c := range n.calls {
			if t.g.funcs[op] != nil || c.skip < 0 {
				// If the type of a node is the name of a function, each result has an output name
				// of its own, with index 0. The index therefore does not tell which result it is.
				add(c.to, c.to.rets...)
			} else {
				add(c.to, only(c.to.rets, p.out)...)
			}
		}
		if n.calls[0].skip < 0 {
			add(p.in, n.inputs...)
		} else if strings.HasSuffix(op, "While") {
			add(p.in, only(n.inputs, p.out)...)
		}
	default:
		return nil, false
	}
	return from, true
}

// only returns edge i alone; nil if there is none.
func only(edges []edge, i int) []edge {
	if i < 0 || i >= len(edges) {
		return nil
	}
	return edges[i : i+1]
}

// variables returns the variables that the value of an edge may be a handle to.
func (t *trace) variables(b *body, e edge) (ids []int) {
	if e.node < 0 && (e == nowhere || e.arg() >= len(b.handles) || !b.handles[e.arg()]) {
		return nil
	}
	for _, p := range t.origins(b, e) {
		if id := p.in.nodes[p.node].variable; id >= 0 {
			ids = append(ids, id)
		}
	}
	return ids
}
