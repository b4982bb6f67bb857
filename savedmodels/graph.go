package savedmodels

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/attr_value_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/function_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"

	"steadyfit/tfbind"
)

// maxWork bounds the steps of following a graph, which take about 0.2 us each.
// The built-in models take 35 steps per KB of saved_model.pb, so that one of
// 50 MB takes 2 million; a graph made to be hard could take years.
const maxWork = 20_000_000

// graph is a GraphDef made easy to follow: the main graph and the functions
// that it calls are bodies of nodes, and inputs are indices.
//
// Following is insensitive to context: a function called from two places is
// one body whose arguments may be what either place passes. For the questions
// asked here (which variables may this operation touch) that loses nothing,
// since the answer joins all calls anyway.
type graph struct {
	main  *body
	funcs map[string]*body
	vars  []*variable
	// asset holds the main graph's nodes that TensorFlow feeds with the names
	// of the model's asset files while loading it.
	asset map[string]bool
	work  int
}

// body is the main graph or a function.
type body struct {
	name   string // "" for the main graph
	nodes  []node
	byName map[string]int
	args   []argument
	rets   []edge
}

type node struct {
	def    *node_def_go_proto.NodeDef
	inputs []edge // without control inputs
	after  []int  // nodes that it waits for; main graph only
	calls  []call
	// variable is an index into graph.vars, -1 for other nodes.
	variable int
}

// argument is one of a function.
type argument struct {
	name string
	// user is the name in the Python function, which the parts of a composite tensor share.
	user string
	// handle says that it may be a handle to a variable.
	handle bool
}

// edge says where a value comes from: output out of a node, or an argument of
// the function. Both are -1 where the graph is damaged.
type edge struct{ node, arg, out int }

var nowhere = edge{node: -1, arg: -1}

// call is a function that a node may run.
type call struct {
	to *body
	// skip is how many inputs precede those passed as arguments; -1 if the
	// operation passes its inputs on in a way of its own.
	skip int
}

type variable struct {
	key       string
	container string
	name      string
	dtype     tfbind.DType
	shape     []int64
	unknown   bool
}

// newGraph indexes a GraphDef.
func newGraph(def *graph_go_proto.GraphDef) *graph {
	g := &graph{main: &body{}, funcs: map[string]*body{}, asset: map[string]bool{}}
	defs := map[string]*function_go_proto.FunctionDef{}
	for _, f := range def.GetLibrary().GetFunction() {
		name := f.GetSignature().GetName()
		defs[name] = f
		g.funcs[name] = &body{name: name}
	}
	vars := map[string]int{}
	g.fill(g.main, def.GetNode(), nil, vars)
	// In a fixed order, since the first to name a variable describes it.
	for _, name := range slices.Sorted(maps.Keys(defs)) {
		f, b := defs[name], g.funcs[name]
		args := map[string]int{}
		for i, a := range f.GetSignature().GetInputArg() {
			args[a.GetName()] = i
			t := a.GetType()
			b.args = append(b.args, argument{
				name:   a.GetName(),
				user:   string(f.GetArgAttr()[uint32(i)].GetAttr()["_user_specified_name"].GetS()),
				handle: a.GetTypeAttr() != "" || a.GetIsRef() || mayBeHandle(t),
			})
		}
		g.fill(b, f.GetNodeDef(), args, vars)
		for _, a := range f.GetSignature().GetOutputArg() {
			b.rets = append(b.rets, g.edge(b, f.GetRet()[a.GetName()], args))
		}
	}
	return g
}

// mayBeHandle reports whether a value of the type can lead to a variable:
// resources, references (types from 100 on), and what is not declared.
func mayBeHandle(t types_go_proto.DataType) bool {
	return t == types_go_proto.DataType_DT_RESOURCE || t == types_go_proto.DataType_DT_INVALID || t >= 100
}

// fill adds nodes to b. args is nil for the main graph.
func (g *graph) fill(b *body, defs []*node_def_go_proto.NodeDef, args map[string]int, vars map[string]int) {
	b.nodes = make([]node, len(defs))
	b.byName = make(map[string]int, len(defs))
	for i, d := range defs {
		b.byName[d.GetName()] = i
	}
	for i, d := range defs {
		n := &b.nodes[i]
		n.def, n.variable = d, -1
		for _, in := range d.GetInput() {
			if name, ok := strings.CutPrefix(in, "^"); ok {
				if j, ok := b.byName[name]; ok && args == nil {
					n.after = append(n.after, j)
				}
				continue
			}
			n.inputs = append(n.inputs, g.edge(b, in, args))
		}
		n.calls = g.callsOf(d)
		if createsVariable[d.GetOp()] {
			key := sharedName(d, b.name)
			id, ok := vars[key]
			if !ok {
				id = len(g.vars)
				vars[key] = id
				g.vars = append(g.vars, describe(d, key))
			}
			n.variable = id
		}
	}
}

// sharedName identifies a variable in a session: handles of the same container
// and shared name are the same variable (resource_variable_ops in TensorFlow).
func sharedName(d *node_def_go_proto.NodeDef, function string) string {
	container := string(d.GetAttr()["container"].GetS())
	name := string(d.GetAttr()["shared_name"].GetS())
	if name == "" {
		name = d.GetName()
		if function != "" {
			name = function + "/" + name
		}
	}
	return container + "|" + name
}

func describe(d *node_def_go_proto.NodeDef, key string) *variable {
	shape := d.GetAttr()["shape"].GetShape()
	container, name, _ := strings.Cut(key, "|")
	v := &variable{
		key:       key,
		container: container,
		name:      name,
		dtype:     tfbind.DType(d.GetAttr()["dtype"].GetType()),
		unknown:   shape == nil || shape.GetUnknownRank(),
		shape:     []int64{},
	}
	for _, dim := range shape.GetDim() {
		v.shape = append(v.shape, dim.GetSize())
	}
	return v
}

// edge parses what a node names as its input: "node:1" in the main graph,
// "argument" or "node:output:1" in a function.
func (g *graph) edge(b *body, ref string, args map[string]int) edge {
	name, rest, _ := strings.Cut(ref, ":")
	if args != nil {
		if i, ok := args[name]; ok {
			return edge{node: -1, arg: i}
		}
	}
	i, ok := b.byName[name]
	if !ok {
		return nowhere
	}
	e := edge{node: i, arg: -1}
	index := rest
	if _, k, ok := strings.Cut(rest, ":"); ok {
		index = k
	}
	if k, err := strconv.Atoi(index); err == nil && k >= 0 {
		e.out = k
	}
	return e
}

// callsOf finds the functions that a node may run, in a fixed order.
func (g *graph) callsOf(d *node_def_go_proto.NodeDef) []call {
	var calls []call
	skip := -1
	switch d.GetOp() {
	case "PartitionedCall", "StatefulPartitionedCall", "TPUPartitionedCall", "XlaLaunch", "SymbolicGradient",
		"While", "StatelessWhile", "_While":
		skip = 0
	case "If", "StatelessIf", "_If", "Case", "StatelessCase", "RemoteCall":
		skip = 1
	}
	if f := g.funcs[d.GetOp()]; f != nil {
		calls = append(calls, call{f, 0})
	}
	add := func(f *attr_value_go_proto.NameAttrList) {
		if b := g.funcs[f.GetName()]; b != nil {
			calls = append(calls, call{b, skip})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.GetAttr())) {
		// Names of gradients describe how to differentiate a call; nothing
		// runs them once the graph is saved.
		if key == "_gradient_op_type" {
			continue
		}
		v := d.GetAttr()[key]
		if f := v.GetFunc(); f != nil {
			add(f)
		}
		for _, f := range v.GetList().GetFunc() {
			add(f)
		}
	}
	return calls
}

// trace is what can be reached from some tensors or operations of the main
// graph: what runs when they are asked for.
type trace struct {
	g    *graph
	main []int // reached nodes of the main graph
	// bodies are the functions reached. Every node of a function counts as
	// reached: TensorFlow prunes only what has no side effect.
	bodies []*body
	in     map[*body]bool
	// callers are the nodes that may run a function.
	callers map[*body][]caller
	// known remembers what origins found, where that took more than a look.
	known map[place][]place
}

type caller struct {
	in   *body
	node int
	skip int
}

// place is a node of a body, or if node is negative, argument -1-node of it.
// out selects an output.
type place struct {
	in        *body
	node, out int
}

// spend counts work, and fails when there was too much of it.
func (g *graph) spend(n int) error {
	if g.work += n; g.work > maxWork {
		return fmt.Errorf("%w: following its graph takes more than %d steps; no real model comes near this, so suspect the file",
			ErrTooLarge, maxWork)
	}
	return nil
}

// follow collects what runs to produce the tensors or operations named by
// roots ("name:0" or "name"). Names that are not in the graph are left out.
func (g *graph) follow(roots []string) (*trace, error) {
	t := &trace{g: g, in: map[*body]bool{}, callers: map[*body][]caller{}, known: map[place][]place{}}
	seen := make([]bool, len(g.main.nodes))
	if err := g.spend(1 + len(seen)/64); err != nil {
		return nil, err
	}
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
		if err := g.spend(1 + len(n.inputs) + len(n.after)); err != nil {
			return nil, err
		}
		for _, e := range n.inputs {
			push(e.node)
		}
		for _, j := range n.after {
			push(j)
		}
		t.enter(g.main, i, n)
	}
	slices.Sort(t.main)
	for k := 0; k < len(t.bodies); k++ {
		b := t.bodies[k]
		if err := g.spend(1 + len(b.nodes)); err != nil {
			return nil, err
		}
		for i := range b.nodes {
			t.enter(b, i, &b.nodes[i])
		}
	}
	slices.SortFunc(t.bodies, func(a, b *body) int { return cmp.Compare(a.name, b.name) })
	return t, nil
}

// nodeOf finds a main graph's node by the name of it or of a tensor of it; -1
// if there is none.
func (g *graph) nodeOf(name string) int {
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "^"), ":")
	if i, ok := g.main.byName[name]; ok {
		return i
	}
	return -1
}

func (t *trace) enter(in *body, i int, n *node) {
	for _, c := range n.calls {
		t.callers[c.to] = append(t.callers[c.to], caller{in, i, c.skip})
		if !t.in[c.to] {
			t.in[c.to] = true
			t.bodies = append(t.bodies, c.to)
		}
	}
}

// each calls f for every reached node.
func (t *trace) each(f func(b *body, i int, n *node) error) error {
	for _, i := range t.main {
		if err := f(t.g.main, i, &t.g.main.nodes[i]); err != nil {
			return err
		}
	}
	for _, b := range t.bodies {
		for i := range b.nodes {
			if err := f(b, i, &b.nodes[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// origins finds the nodes that may have made the value that arrives by an edge
// of a node in b, looking through what passes values on: identities, function
// calls, loops and conditions.
func (t *trace) origins(b *body, e edge) ([]place, error) {
	start, ok := at(b, e)
	if !ok {
		return nil, nil
	}
	if found, ok := t.known[start]; ok {
		return found, t.g.spend(len(found))
	}
	var found []place
	seen := map[place]bool{start: true}
	todo := []place{start}
	push := func(b *body, e edge) {
		if p, ok := at(b, e); ok && !seen[p] {
			seen[p] = true
			todo = append(todo, p)
		}
	}
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if before, ok := t.known[p]; ok {
			if err := t.g.spend(1 + len(before)); err != nil {
				return nil, err
			}
			for _, made := range before {
				if made == p || !seen[made] {
					seen[made] = true
					found = append(found, made)
				}
			}
			continue
		}
		if p.node < 0 {
			arg := -1 - p.node
			callers := t.callers[p.in]
			if err := t.g.spend(1 + len(callers)); err != nil {
				return nil, err
			}
			for _, c := range callers {
				inputs := c.in.nodes[c.node].inputs
				switch {
				case c.skip >= 0 && arg+c.skip < len(inputs):
					push(c.in, inputs[arg+c.skip])
				case c.skip < 0:
					if err := t.g.spend(len(inputs)); err != nil {
						return nil, err
					}
					for _, e := range inputs {
						push(c.in, e)
					}
				}
			}
			continue
		}
		n := &p.in.nodes[p.node]
		if err := t.g.spend(1 + len(n.inputs) + len(n.calls)); err != nil {
			return nil, err
		}
		switch g, op := t.g, n.def.GetOp(); {
		case op == "IdentityN":
			if p.out < len(n.inputs) {
				push(p.in, n.inputs[p.out])
			}
		case passesThrough[op]:
			for _, e := range n.inputs {
				push(p.in, e)
			}
		case len(n.calls) > 0:
			for _, c := range n.calls {
				switch {
				case g.funcs[op] != nil:
					// Called by its own name, it has an output name per
					// result, and the index within each is 0.
					for _, e := range c.to.rets {
						push(c.to, e)
					}
				case p.out < len(c.to.rets):
					push(c.to, c.to.rets[p.out])
				}
			}
			// A loop that does not run gives back what it was given.
			if strings.HasSuffix(op, "While") && p.out < len(n.inputs) {
				push(p.in, n.inputs[p.out])
			}
		default:
			found = append(found, p)
		}
	}
	if len(seen) > 1 {
		t.known[start] = found
	}
	return found, nil
}

// at turns an edge within b into a place; false if it leads nowhere, or to an
// argument that cannot be a handle.
func at(b *body, e edge) (place, bool) {
	switch {
	case e.node >= 0:
		return place{b, e.node, e.out}, true
	case e.arg >= 0:
		return place{b, -1 - e.arg, 0}, true
	}
	return place{}, false
}

// variables finds the variables whose handle may arrive by an edge of b.
func (t *trace) variables(b *body, e edge) ([]int, error) {
	if e.node < 0 && (e.arg < 0 || e.arg >= len(b.args) || !b.args[e.arg].handle) {
		return nil, nil
	}
	places, err := t.origins(b, e)
	if err != nil {
		return nil, err
	}
	var ids []int
	for _, p := range places {
		if id := p.in.nodes[p.node].variable; id >= 0 {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// facts are what a trace says of a part of the model.
type facts struct {
	// read, written and tested are variables by index: those whose value is
	// used, those that are given one, and those asked whether they have one.
	read, written, tested map[int]bool
	// updated are the variables that change by more than plain assignment.
	updated map[int]bool
	unsafe  []finding
	// fleeting are the operations that keep state in no variable, one of each kind.
	fleeting []finding
	// half16 names a heavy operation on float16; "" if there is none.
	half16 string
	// guarded says that something looks for infinities, as loss scaling does.
	guarded bool
}

// finding is an operation that reaches outside the computation, or that keeps state of
// its own.
type finding struct {
	op, does string
	// where names the node, and the function that holds it.
	where string
}

// inspect draws the facts from what is reached from roots.
func (g *graph) inspect(roots []string) (facts, error) {
	t, err := g.follow(roots)
	if err != nil {
		return facts{}, err
	}
	f := facts{read: map[int]bool{}, written: map[int]bool{}, tested: map[int]bool{}, updated: map[int]bool{}}
	err = t.each(func(b *body, i int, n *node) error {
		op := n.def.GetOp()
		if err := t.safety(&f, b, n, op); err != nil {
			return err
		}
		if does, keeps := fleetingOps[op]; keeps && !slices.ContainsFunc(f.fleeting, func(o finding) bool { return o.op == op }) {
			f.fleeting = append(f.fleeting, finding{op, does, where(b, n)})
		}
		if op == "IsFinite" || op == "IsInf" || op == "IsNan" {
			f.guarded = true
		}
		if heavyMath[op] && f.half16 == "" && n.def.GetAttr()["T"].GetType() == types_go_proto.DataType_DT_HALF {
			f.half16 = where(b, n)
		}
		if passesThrough[op] || len(n.calls) > 0 {
			return nil
		}
		for k, e := range n.inputs {
			ids, err := t.variables(b, e)
			if err != nil {
				return err
			}
			for _, id := range ids {
				switch {
				case op == "AssignVariableOp" || op == "Assign" || op == "AssignVariableXlaConcatND":
					if k == 0 {
						f.written[id] = true
					} else {
						f.read[id] = true // by a reference, in TensorFlow 1 form
					}
				case op == "VarIsInitializedOp" || op == "IsVariableInitialized":
					f.tested[id] = true
				case op == "DestroyResourceOp" || op == "DisableCopyOnRead" || op == "VariableShape":
				case op == "ReadVariableOp" || op == "ResourceGather" || op == "ResourceGatherNd":
					f.read[id] = true
				default:
					f.read[id] = true
					if strings.Contains(op, "Assign") || strings.Contains(op, "Apply") ||
						strings.Contains(op, "Scatter") || strings.Contains(op, "CountUpTo") {
						f.updated[id] = true
					}
				}
			}
		}
		return nil
	})
	return f, err
}

// safety notes a node that reaches outside the computation.
func (t *trace) safety(f *facts, b *body, n *node, op string) error {
	does, bad := unsafeOps[op]
	switch {
	case op == "PrintV2" && printsToFile(n.def):
		does, bad = "writes files", true
	case op == "CacheDataset" || op == "CacheDatasetV2":
		in, err := t.cachesInFile(b, n)
		if err != nil {
			return err
		}
		does, bad = "writes files", in
	case vocabularyOps[op]:
		is, err := t.readsAsset(b, n)
		if err != nil {
			return err
		}
		bad = !is
	}
	if bad {
		f.unsafe = append(f.unsafe, finding{op, does, where(b, n)})
	}
	return nil
}

// printsToFile reports whether tf.print was given a file to append to.
func printsToFile(d *node_def_go_proto.NodeDef) bool {
	return strings.HasPrefix(string(d.GetAttr()["output_stream"].GetS()), "file://")
}

// cachesInFile reports whether a CacheDataset may have a file name: without
// one it caches in memory.
func (t *trace) cachesInFile(b *body, n *node) (bool, error) {
	if len(n.inputs) < 2 {
		return true, nil
	}
	places, err := t.origins(b, n.inputs[1])
	if err != nil {
		return false, err
	}
	for _, p := range places {
		d := p.in.nodes[p.node].def
		values := d.GetAttr()["value"].GetTensor().GetStringVal()
		if d.GetOp() != "Const" || len(values) != 1 || len(values[0]) > 0 {
			return true, nil
		}
	}
	return len(places) == 0, nil
}

// readsAsset reports whether a table's file is surely an asset of the model.
func (t *trace) readsAsset(b *body, n *node) (bool, error) {
	if len(n.inputs) < 2 {
		return false, nil
	}
	places, err := t.origins(b, n.inputs[1])
	if err != nil {
		return false, err
	}
	for _, p := range places {
		if p.in != t.g.main || !t.g.asset[p.in.nodes[p.node].def.GetName()] {
			return false, nil
		}
	}
	return len(places) > 0, nil
}

func where(b *body, n *node) string {
	if b.name == "" {
		return n.def.GetName()
	}
	return n.def.GetName() + " in function " + b.name
}
