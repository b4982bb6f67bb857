package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/attr_value_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/function_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/op_def_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/eager"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/worker"
	"steadyfit/savedmodels"
)

// program is a signature or a function, compiled to a list of instructions. It holds no part of
// the SavedModel's graph. It does not call itself, so it needs one frame.
type program struct {
	name string
	// frame has a slot for each value, the arguments first.
	frame   eager.Frame
	code    []instruction
	results []transfer
	unused  []int32 // slots of unused arguments
}

// transfer is a value to pass on. The value also stays in its slot if a later instruction needs
// it.
type transfer struct {
	place int32
	stays bool
}

func (t transfer) pass(from, to eager.Frame, at int32) error {
	if t.stays {
		return from.Share(t.place, to, at)
	}
	return from.Move(t.place, to, at)
}

// instruction is an operation of the graph, or a call of functions.
type instruction struct {
	node string
	op   *eager.Op
	// variable means that the output is the handle of a variable. made means that the variable was
	// created.
	variable, made bool

	// body is the program to call. If there is a condition, body is called as long as it is true.
	body, condition *program
	// branches are the functions to call for a true and a false first argument.
	branches []*program
	args     []transfer
	first    int32      // slot of the first result of a call
	turns    []transfer // results of one iteration of a loop, for the next one
	unneeded []int32    // results that no instruction needs
}

// draft is an instruction with data for the compiler.
type draft struct {
	*instruction
	def     *node_def_go_proto.NodeDef
	attrs   map[string][]byte // of an instruction that is an operation
	inputs  []int32
	first   int32
	outputs int
}

// compiler compiles programs from a SavedModel's graph.
type compiler struct {
	dir       string
	context   eager.Context
	ops       map[string]*op_def_go_proto.OpDef // for the compiled programs
	functions map[string]*function_go_proto.FunctionDef
	main      []*node_def_go_proto.NodeDef
	done      map[string]*program // functions by name; nil while one is being compiled
	programs  []*program          // all programs
}

func newCompiler(model *savedmodels.Model, context eager.Context) (*compiler, error) {
	file := filepath.Join(model.Dir, "saved_model.pb")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var saved pb.SavedModel
	if err := proto.Unmarshal(text, &saved); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	i := slices.IndexFunc(saved.MetaGraphs, func(m *pb.MetaGraphDef) bool { return slices.Equal(m.GetMetaInfoDef().GetTags(), model.Tags) })
	if i < 0 {
		return nil, fmt.Errorf("%s: no graph with the tags %v", file, model.Tags)
	}
	meta := saved.MetaGraphs[i]
	c := &compiler{
		dir: model.Dir, context: context, main: meta.GetGraphDef().GetNode(),
		ops:       map[string]*op_def_go_proto.OpDef{},
		functions: map[string]*function_go_proto.FunctionDef{},
		done:      map[string]*program{},
	}
	for _, f := range meta.GetGraphDef().GetLibrary().GetFunction() {
		c.functions[f.GetSignature().GetName()] = f
		c.ops[f.GetSignature().GetName()] = f.GetSignature()
	}
	return c, nil
}

// op returns the definition of a node's operation. A SavedModel leaves out the operations in bodies
// of loops, so op asks TensorFlow for their definitions.
func (c *compiler) op(n *node_def_go_proto.NodeDef) *op_def_go_proto.OpDef {
	def := c.ops[n.GetOp()]
	if def == nil {
		text, err := c.context.OpDef(n.GetOp())
		def = &op_def_go_proto.OpDef{}
		if err == nil {
			err = proto.Unmarshal(text, def)
		}
		if err != nil {
			worker.Check(fmt.Errorf("%s: %w", n.GetName(), err))
		}
		c.ops[n.GetOp()] = def
	}
	return def
}

func (c *compiler) refuse(where, reason string) error {
	return &worker.ParameterError{Failure: worker.CouldNotApply, Name: "eager", Value: "1", Reason: fmt.Sprintf("%s: %s: %s", c.dir, where, reason)}
}

// part compiles a part of the main graph, from the fed inputs to the outputs or operations in
// want.
func (c *compiler) part(name string, inputs, want []string) (p *program, err error) {
	b := c.body(name, c.main)
	for _, in := range inputs {
		b.first[nodeName(in)] = b.places
		b.places++
	}
	err = worker.Caught(func() { p = b.compile(want, nil) })
	return p, err
}

func (c *compiler) function(name string) *program {
	p, ok := c.done[name]
	if ok && p == nil {
		worker.Check(c.refuse(name, "it calls itself"))
	}
	if ok {
		return p
	}
	f := c.functions[name]
	if f == nil {
		worker.Check(c.refuse(name, "there is no such function"))
	}
	c.done[name] = nil
	b := c.body(name, f.GetNodeDef())
	b.inFunction = true
	for _, a := range f.GetSignature().GetInputArg() {
		b.first[a.GetName()] = b.places
		b.places++
	}
	var want, also []string
	for _, a := range f.GetSignature().GetOutputArg() {
		want = append(want, f.GetRet()[a.GetName()])
	}
	for _, node := range f.GetControlRet() {
		also = append(also, node)
	}
	// Stateful operations run even if nothing depends on them.
	for _, n := range f.GetNodeDef() {
		if c.op(n).GetIsStateful() {
			also = append(also, n.GetName())
		}
	}
	c.done[name] = b.compile(want, also)
	return c.done[name]
}

// body is a program during compilation.
type body struct {
	*compiler
	name       string
	inFunction bool
	order      []*node_def_go_proto.NodeDef
	nodes      map[string]*node_def_go_proto.NodeDef
	needed     map[string]bool
	begun      map[string]bool
	// first has the slot of the first output of each compiled node and of each argument.
	first  map[string]int32
	places int32
	drafts []draft
}

func (c *compiler) body(name string, nodes []*node_def_go_proto.NodeDef) *body {
	b := &body{
		compiler: c, name: name, order: nodes,
		nodes:  make(map[string]*node_def_go_proto.NodeDef, len(nodes)),
		needed: map[string]bool{}, begun: map[string]bool{}, first: map[string]int32{},
	}
	for _, n := range nodes {
		b.nodes[n.GetName()] = n
	}
	return b
}

// compile compiles the operations in want and also with their dependencies, in the order of the
// graph where possible. The results of the program are the values in want. Eager execution of the
// source has the same order.
func (b *body) compile(want, also []string) *program {
	given := b.places
	for _, name := range slices.Concat(want, also) {
		b.need(nodeName(name))
	}
	for _, n := range b.order {
		if b.needed[n.GetName()] {
			b.emit(n)
		}
	}
	var results []int32
	for _, name := range want {
		if !b.inFunction && !strings.Contains(name, ":") {
			continue // an operation
		}
		results = append(results, b.place(name))
	}
	return b.finish(given, results)
}

func nodeName(ref string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(ref, "^"), ":")
	return name
}

func (b *body) need(name string) {
	_, isArgument := b.first[name]
	if isArgument || b.needed[name] {
		return
	}
	b.needed[name] = true
	for _, in := range b.nodes[name].GetInput() {
		b.need(nodeName(in))
	}
}

func (b *body) emit(n *node_def_go_proto.NodeDef) {
	if _, done := b.first[n.GetName()]; done {
		return
	}
	if b.begun[n.GetName()] {
		worker.Check(b.refuse(n.GetName(), "it depends on itself, as in loops of TensorFlow 1"))
	}
	b.begun[n.GetName()] = true
	d := draft{instruction: &instruction{node: n.GetName()}, def: n}
	for _, ref := range n.GetInput() {
		if dependency := b.nodes[nodeName(ref)]; dependency != nil {
			b.emit(dependency)
		}
		if !strings.HasPrefix(ref, "^") {
			d.inputs = append(d.inputs, b.place(ref))
		}
	}
	op := b.op(n)
	for _, out := range op.GetOutputArg() {
		d.outputs += width(op, out, n)
	}
	d.first = b.places
	b.first[n.GetName()] = b.places
	b.places += int32(d.outputs)
	if n.GetOp() != "NoOp" {
		b.resolve(&d, op)
		b.drafts = append(b.drafts, d)
	}
}

func (b *body) resolve(d *draft, op *op_def_go_proto.OpDef) {
	n := d.def
	called := func(attr string) *program { return b.function(n.GetAttr()[attr].GetFunc().GetName()) }
	switch n.GetOp() {
	case "Placeholder":
		worker.Check(b.refuse(n.GetName(), "it is a placeholder that is not fed"))
	case "PartitionedCall", "StatefulPartitionedCall":
		d.body = called("f")
		return
	case "While", "StatelessWhile":
		d.condition, d.body = called("cond"), called("body")
		return
	case "If", "StatelessIf":
		d.branches = []*program{called("then_branch"), called("else_branch")}
		return
	}
	if b.functions[n.GetOp()] != nil {
		d.body = b.function(n.GetOp())
		return
	}
	d.variable = n.GetOp() == "VarHandleOp" && !b.inFunction
	d.attrs = map[string][]byte{}
	for _, a := range op.GetAttr() {
		value := attrOf(op, n, a.GetName())
		if a.GetType() == "func" || a.GetType() == "list(func)" {
			worker.Check(b.refuse(n.GetName(), n.GetOp()+" takes a function"))
		}
		if d.variable && a.GetName() == "shared_name" && len(value.GetS()) == 0 {
			value = graphdef.Text(n.GetName()) // the default of a session
		}
		if value != nil {
			d.attrs[a.GetName()] = worker.Must(proto.Marshal(value))
		}
	}
}

// attrOf returns an attribute of a node, or its default, which a SavedModel leaves out.
func attrOf(op *op_def_go_proto.OpDef, n *node_def_go_proto.NodeDef, name string) *attr_value_go_proto.AttrValue {
	if v := n.GetAttr()[name]; v != nil {
		return v
	}
	for _, a := range op.GetAttr() {
		if a.GetName() == name {
			return a.GetDefaultValue()
		}
	}
	return nil
}

func width(op *op_def_go_proto.OpDef, out *op_def_go_proto.OpDef_ArgDef, n *node_def_go_proto.NodeDef) int {
	switch {
	case out.GetNumberAttr() != "":
		return int(attrOf(op, n, out.GetNumberAttr()).GetI())
	case out.GetTypeListAttr() != "":
		return len(attrOf(op, n, out.GetTypeListAttr()).GetList().GetType())
	}
	return 1
}

// place returns the slot of a value by its name: "node:1" in the main graph, and "argument" or
// "node:output:1" in a function.
func (b *body) place(ref string) int32 {
	parts := strings.Split(ref, ":")
	first, ok := b.first[parts[0]]
	n := b.nodes[parts[0]]
	if ok && (n == nil || len(parts) == 1) {
		return first
	}
	index, err := strconv.Atoi(parts[len(parts)-1])
	if !ok || err != nil {
		worker.Check(b.refuse(b.name, "unknown value "+ref))
	}
	if len(parts) == 3 {
		op := b.ops[n.GetOp()] // a compiled node has a known operation
		for _, out := range op.GetOutputArg() {
			if out.GetName() == parts[1] {
				break
			}
			index += width(op, out, n)
		}
	}
	return first + int32(index)
}

// finish returns the compiled program, in which the last instruction that needs a value frees the
// value.
func (b *body) finish(given int32, results []int32) *program {
	p := &program{name: b.name, code: make([]instruction, len(b.drafts))}
	needed := make([]bool, b.places)
	for _, d := range b.drafts {
		if d.variable {
			needed[d.first] = true
		}
	}
	p.results = b.transfers(results, needed)
	for i := len(b.drafts) - 1; i >= 0; i-- {
		d := &b.drafts[i]
		var last []int32
		for at := d.first; at < d.first+int32(d.outputs); at++ {
			if !needed[at] {
				last = append(last, at)
			}
		}
		if d.attrs == nil {
			d.instruction.first, d.unneeded = d.first, last
			d.args = b.transfers(d.inputs, needed)
			for at := range int32(d.outputs) {
				d.turns = append(d.turns, transfer{place: d.first + at})
			}
		} else {
			for _, t := range b.transfers(d.inputs, needed) {
				if !t.stays {
					last = append(last, t.place)
				}
			}
			d.op = eager.NewOp(d.def.GetOp(), d.attrs, eager.Places{Inputs: d.inputs, First: d.first, Outputs: d.outputs, Last: last})
		}
		p.code[i] = *d.instruction
	}
	for at := range given {
		if !needed[at] {
			p.unused = append(p.unused, at)
		}
	}
	p.frame = worker.Must(b.context.NewFrame(int(b.places)))
	b.programs = append(b.programs, p)
	return p
}

func (b *body) transfers(places []int32, needed []bool) []transfer {
	list := make([]transfer, len(places))
	for i, at := range slices.Backward(places) {
		list[i] = transfer{at, needed[at]}
		needed[at] = true
	}
	return list
}
