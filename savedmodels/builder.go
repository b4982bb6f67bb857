package savedmodels

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
)

// builder makes a function from a part of a flat function, and the signature that calls it.
type builder struct {
	*division
	p         *part
	signature Signature
	function  *tfproto.FunctionDef
	replaced  map[value]string // given values, with their names in the function
	sources   []string         // the nodes of the main graph that provide the arguments
	arguments map[int]bool     // arguments of p that are also arguments of this function
}

func (d *division) builder(p *part, name string, given map[value]string) *builder {
	return &builder{
		division: d, p: p, replaced: given, arguments: map[int]bool{},
		signature: Signature{Name: name, Method: p.signature.Method, Inputs: []Tensor{}, Outputs: []Tensor{}},
		function: &tfproto.FunctionDef{
			Signature: &tfproto.OpDef{Name: addedPrefix + name, IsStateful: true},
			Ret:       map[string]string{}, ControlRet: map[string]string{},
		},
	}
}

func (b *builder) argument(name string, dtype dtype.DType, source string) {
	b.function.Signature.InputArg = append(b.function.Signature.InputArg,
		&tfproto.OpDef_ArgDef{Name: name, Type: tfproto.DataType(dtype)})
	b.sources = append(b.sources, source)
}

// placeholder adds an input of the signature.
func (b *builder) placeholder(t Tensor) string {
	name := addedPrefix + b.signature.Name + "_" + cmp.Or(t.Key, t.Name)
	t.Op = name + ":0"
	b.signature.Inputs = append(b.signature.Inputs, t)
	shape := graphdef.Shape(t.Shape)
	if t.UnknownRank {
		shape = graphdef.AnyShape()
	}
	b.nodes = append(b.nodes, &tfproto.NodeDef{Name: name, Op: "Placeholder",
		Attr: graphdef.Attrs{"dtype": graphdef.Type(t.DType), "shape": shape}})
	return name
}

// given adds an argument that takes a feature in place of a value.
func (b *builder) given(name string, v value) error {
	if _, is := b.replaced[v]; is {
		return nil
	}
	elements, err := b.typeOf(v)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(b.signature.Inputs, func(t Tensor) bool { return t.Name == name }) {
		b.argument(name, elements, b.placeholder(Tensor{Name: name, DType: elements, UnknownRank: true}))
	}
	b.replaced[v] = name
	return nil
}

// output adds a result. The results of a signature that takes features keep their order and
// type.
func (b *builder) output(name string, v value) error {
	t := Tensor{Name: name, UnknownRank: true}
	if of := b.p.signature.Output(name); of != nil {
		t = *of
	} else {
		var err error
		if t.DType, err = b.typeOf(v); err != nil {
			return err
		}
	}
	t.Op = addedPrefix + b.signature.Name + ":" + strconv.Itoa(len(b.signature.Outputs))
	b.signature.Outputs = append(b.signature.Outputs, t)
	out := "output_" + strconv.Itoa(len(b.signature.Outputs))
	b.function.Signature.OutputArg = append(b.function.Signature.OutputArg,
		&tfproto.OpDef_ArgDef{Name: out, Type: tfproto.DataType(t.DType)})
	b.function.Ret[out] = b.ref(v)
	return nil
}

// ref returns the name of a value in the new function.
func (b *builder) ref(v value) string {
	if name, ok := b.replaced[v]; ok {
		return name
	}
	if v.op < 0 {
		b.arguments[v.arg()] = true
		return "argument_" + strconv.Itoa(v.arg())
	}
	return opName(v.op) + ":" + v.port
}

func opName(i int) string { return "op_" + strconv.Itoa(i) }

// finish adds the needed operations, and the signature that runs the function.
func (b *builder) finish(need []bool, effects []int) Signature {
	for i, is := range need {
		if !is {
			continue
		}
		op := &b.p.ops[i]
		var inputs []string
		for _, v := range op.in {
			inputs = append(inputs, b.ref(v))
		}
		for _, j := range b.p.waits(op.after, need) {
			inputs = append(inputs, "^"+opName(j))
		}
		b.function.NodeDef = append(b.function.NodeDef, op.clone(opName(i), inputs))
	}
	for _, i := range effects {
		b.function.Signature.ControlOutput = append(b.function.Signature.ControlOutput, opName(i))
		b.function.ControlRet[opName(i)] = opName(i)
	}
	for _, i := range slices.Sorted(maps.Keys(b.arguments)) {
		b.argument("argument_"+strconv.Itoa(i), b.p.flat.args[i].dtype, b.source(i))
	}
	types := func(args []*tfproto.OpDef_ArgDef) *graphdef.Attr {
		var list []dtype.DType
		for _, a := range args {
			list = append(list, dtype.DType(a.GetType()))
		}
		return graphdef.Types(list)
	}
	f := b.function.Signature
	b.library.Function = append(b.library.Function, b.function)
	b.nodes = append(b.nodes, &tfproto.NodeDef{
		Name: addedPrefix + b.signature.Name, Op: "StatefulPartitionedCall", Input: b.sources,
		Attr: graphdef.Attrs{
			"Tin": types(f.InputArg), "Tout": types(f.OutputArg),
			"f": {Value: &tfproto.AttrValue_Func{Func: &tfproto.NameAttrList{Name: f.Name}}},
		},
	})
	return b.sorted()
}

func (b *builder) sorted() Signature {
	slices.SortFunc(b.signature.Inputs, func(x, y Tensor) int { return strings.Compare(x.Name, y.Name) })
	return b.signature
}

// source returns the node of the main graph that provides argument i of the original function: a
// new placeholder if it is an input of the signature, and otherwise a node of the original graph.
func (b *builder) source(i int) string {
	a := b.p.flat.args[i]
	if in := b.p.inputs[i]; in != nil {
		return b.placeholder(*in)
	}
	name := b.graph.main.nodes[a.from].def.GetName()
	b.roots = append(b.roots, name)
	return name
}

// resultTypes has the attribute with the type of the result of pure operations that do not have it in the
// attribute T, and the type if the attribute is left out because it has its default value.
var resultTypes = map[string]struct {
	attr      string
	otherwise dtype.DType
}{
	"Cast": {attr: "DstT"}, "GatherV2": {attr: "Tparams"},
	"ReadVariableOp": {attr: "dtype"}, "ResourceGather": {attr: "dtype"},
	"ArgMax": {"output_type", dtype.Int64}, "ArgMin": {"output_type", dtype.Int64},
	"MaxPool": {"T", dtype.Float32}, "LeakyRelu": {"T", dtype.Float32},
}

// typeOf returns the type of a value of a pure operation.
func (b *builder) typeOf(v value) (dtype.DType, error) {
	if v.op < 0 {
		return b.p.flat.args[v.arg()].dtype, nil
	}
	d := b.p.ops[v.op].def
	if boolOps[d.GetOp()] {
		return dtype.Bool, nil
	}
	typed, known := resultTypes[d.GetOp()]
	if !known {
		typed.attr = "T"
	}
	if a := d.GetAttr()[typed.attr]; a != nil {
		return dtype.DType(a.GetType()), nil
	}
	if typed.otherwise != 0 {
		return typed.otherwise, nil
	}
	return 0, fmt.Errorf("the type of %s (%s) is unknown", d.GetName(), d.GetOp())
}
