package savedmodels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/dtype"
	"steadyfit/internal/tfproto"
)

// kind is what a value of a flat function depends on.
type kind uint8

const (
	// live values depend on trained variables, random numbers, or the reserved inputs.
	live kind = iota
	// frozen values depend on constants and on variables that training does not change.
	frozen
	// Values of the kind shapes also depend on the shapes of samples.
	shapes
	// Values of the kind sizes may also depend on the number of samples in the batch. They are
	// integers that become shapes; an operation that computes something else from them is live.
	sizes
	// sample values also depend on data inputs, and have one part per sample.
	sample
)

// part is a signature with the analysis of its function.
type part struct {
	signature *Signature
	*flat
	results []value // one for each output of the signature
	args    []kind
	inputs  []*Tensor // the data or reserved input of each argument; nil for the model's own values
	kinds   []kind
	leading []bool // for the kind sizes, whether only the first element may be the number of samples
	heavy   []bool // whether an operation, or one that it depends on, is in heavyMath
	sums    []string
	needed  []bool
}

// analyse finds the kind of each operation that a signature needs.
func (d *division) analyse(s *Signature) (*part, error) {
	f, outputs, err := flatten(d.def, d.graph, s)
	if err != nil {
		return nil, err
	}
	p := &part{signature: s, flat: f}
	p.kinds, p.leading = make([]kind, len(f.ops)), make([]bool, len(f.ops))
	p.heavy, p.sums = make([]bool, len(f.ops)), make([]string, len(f.ops))
	for _, a := range f.args {
		k, in := d.argument(s, a)
		p.args, p.inputs = append(p.args, k), append(p.inputs, in)
	}
	f.effects = slices.DeleteFunc(f.effects, func(i int) bool { return pureOps[f.ops[i].def.GetOp()] })
	for _, i := range outputs {
		p.results = append(p.results, f.rets[i])
	}
	p.needed = f.needed(p.results, f.effects, nil, true)
	for i := range f.ops {
		if p.needed[i] {
			p.kinds[i] = p.classify(i)
		}
		p.sums[i] = p.sum(i)
	}
	return p, nil
}

// argument returns the kind of an argument, and the input of the signature that provides it.
func (d *division) argument(s *Signature, a flatArg) (kind, *Tensor) {
	n := &d.graph.main.nodes[a.from]
	for i, t := range s.Inputs {
		if d.graph.nodeOf(t.Op) != a.from {
			continue
		}
		if t.IsReserved() || t.Constant != nil || t.DType == dtype.String {
			return live, &s.Inputs[i]
		}
		return sample, &s.Inputs[i]
	}
	if n.variable >= 0 {
		v := d.graph.vars[n.variable]
		if d.frozen[[2]string{v.Container, v.Name}] {
			return frozen, nil
		}
		return live, nil
	}
	if n.def.GetOp() == "Const" {
		return frozen, nil
	}
	return live, nil
}

func (p *part) kindOf(v value) kind {
	if v.op < 0 {
		return p.args[v.arg()]
	}
	return p.kinds[v.op]
}

// classify returns the kind of an operation whose inputs have been classified.
func (p *part) classify(i int) kind {
	op := &p.ops[i]
	name := op.def.GetOp()
	k, heavy := p.inputsOf(op)
	p.heavy[i] = heavy
	for _, j := range op.after {
		if p.kinds[j] == live && !pureOps[p.ops[j].def.GetOp()] {
			k = live
		}
	}
	switch {
	case k == live || !pureOps[name] || p.mixes(op):
		return live
	case k >= shapes && name == "Rank", k == sizes && shapeOps[name]:
		return shapes
	case k == sample && shapeOps[name]:
		p.leading[i] = true
		return sizes
	case slices.ContainsFunc(op.in, func(v value) bool { return p.kindOf(v) == sizes }):
		k, p.leading[i] = p.withSizes(op, k)
	}
	p.heavy[i] = heavy || k == sample && heavyMath[name]
	return k
}

// inputsOf returns the kind that the inputs of an operation have together, and whether one of the
// inputs depends on a heavy operation.
func (p *part) inputsOf(op *flatOp) (k kind, heavy bool) {
	k = frozen
	for _, v := range op.in {
		in := p.kindOf(v)
		if in == live {
			return live, false
		}
		k = max(k, in)
		heavy = heavy || v.op >= 0 && p.heavy[v.op]
	}
	return k, heavy
}

// axisInputs has the index of the input with the axes along which an operation combines the
// elements of its first input; -1 is the last input.
var axisInputs = map[string]int{
	"Sum": 1, "Mean": 1, "Max": 1, "Min": 1, "Prod": 1, "All": 1, "Any": 1, "ArgMax": 1, "ArgMin": 1, "Cumsum": 1,
	"ConcatV2": -1, "GatherV2": 2,
}

// mixes reports whether an operation on samples is known to combine samples, or to treat them
// differently in training.
func (p *part) mixes(op *flatOp) bool {
	of := func(i int) bool { return i < len(op.in) && p.kindOf(op.in[i]) == sample }
	attr, name := op.def.GetAttr(), op.def.GetOp()
	if strings.HasPrefix(name, "FusedBatchNorm") {
		return attr["is_training"] == nil || attr["is_training"].GetB()
	}
	if !slices.ContainsFunc(op.in, func(v value) bool { return p.kindOf(v) == sample }) {
		return false
	}
	switch name {
	case "Transpose":
		axes, known := p.integers(op, 1)
		return of(0) && (!known || len(axes) == 0 || axes[0] != 0)
	case "Pack":
		return attr["axis"].GetI() == 0
	case "MatMul":
		return of(0) && attr["transpose_a"].GetB() || of(1)
	}
	at, has := axisInputs[name]
	if !has || name == "GatherV2" && (!of(0) || attr["batch_dims"].GetI() != 0) {
		return false
	}
	if at < 0 {
		at = len(op.in) - 1
	}
	return p.alongSamples(op, at)
}

// alongSamples reports whether the axes in an input may include the first dimension of the first
// input.
func (p *part) alongSamples(op *flatOp, input int) bool {
	axes, known := p.integers(op, input)
	rank := p.rank(op.in[0])
	return !known || slices.ContainsFunc(axes, func(axis int64) bool { return axis == 0 || rank > 0 && axis == -rank })
}

// rank returns the number of dimensions of a value; 0 if the graph does not record it.
func (p *part) rank(v value) int64 {
	if v.op < 0 {
		if in := p.inputs[v.arg()]; in != nil && !in.UnknownRank {
			return int64(len(in.Shape))
		}
		return 0
	}
	return int64(len(p.ops[v.op].recorded().GetDim()))
}

// recorded returns the shape of the only result of an operation, if the graph records it; nil otherwise.
func (o *flatOp) recorded() *tfproto.TensorShapeProto {
	shapes := o.def.GetAttr()["_output_shapes"].GetList().GetShape()
	if len(shapes) != 1 || shapes[0].GetUnknownRank() {
		return nil
	}
	return shapes[0]
}

// integers returns the elements of an input that is an integer constant or a concatenation of such
// constants. Axes of a tensor product are an example.
func (p *part) integers(op *flatOp, input int) ([]int64, bool) {
	steps := 0
	return p.constant(op, input, &steps)
}

// constant implements integers. It gives up after 100 recursive calls, which steps counts.
func (p *part) constant(op *flatOp, input int, steps *int) (all []int64, known bool) {
	if *steps++; *steps > 100 || input < 0 || input >= len(op.in) || op.in[input].op < 0 {
		return nil, false
	}
	from := &p.ops[op.in[input].op]
	switch from.def.GetOp() {
	case "Const":
		t := from.def.GetAttr()["value"].GetTensor()
		all, known = elementsOf(t.GetDtype(), t.GetTensorContent(), t.GetIntVal(), t.GetInt64Val())
		if dims := t.GetTensorShape().GetDim(); len(dims) == 1 && dims[0].GetSize() != int64(len(all)) {
			return nil, false // equal elements may be stored once
		}
		return all, known
	case "ConcatV2":
		for i := range len(from.in) - 1 {
			some, known := p.constant(from, i, steps)
			if !known {
				return nil, false
			}
			all = append(all, some...)
		}
		return all, true
	}
	return nil, false
}

// elementsOf decodes the elements of a TensorProto of int32 or int64.
func elementsOf(dtype tfproto.DataType, content []byte, small []int32, large []int64) (out []int64, ok bool) {
	size := map[tfproto.DataType]int{tfproto.DataType_DT_INT32: 4,
		tfproto.DataType_DT_INT64: 8}[dtype]
	if size == 0 {
		return nil, false
	}
	for ; len(content) >= size; content = content[size:] {
		var bits uint64
		for i := range size {
			bits |= uint64(content[i]) << (8 * i)
		}
		if size == 4 {
			out = append(out, int64(int32(bits)))
		} else {
			out = append(out, int64(bits))
		}
	}
	for _, v := range small {
		out = append(out, int64(v))
	}
	return append(out, large...), true
}

// sum returns a hash of what an operation computes.
func (p *part) sum(i int) string {
	op := &p.ops[i]
	d := op.clone("", nil)
	for name := range d.Attr {
		if strings.HasPrefix(name, "_") {
			delete(d.Attr, name)
		}
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		text = []byte(op.def.GetName()) // such an operation equals no other
	}
	h := sha256.New()
	h.Write(text)
	for _, v := range op.in {
		fmt.Fprintf(h, "%s\n", p.sumOf(v))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func (p *part) sumOf(v value) string {
	if v.op >= 0 {
		return p.sums[v.op] + ":" + v.port
	}
	if in := p.inputs[v.arg()]; in != nil {
		return "input " + in.Name
	}
	return fmt.Sprintf("node %d", p.flat.args[v.arg()].from)
}

// independent leaves out features that can be computed from other features without a matrix product
// or a convolution. The rest of the step computes them again.
func (p *part) independent(features []value) []value {
	slices.SortFunc(features, func(a, b value) int { return a.op - b.op })
	given := map[value]string{}
	return slices.DeleteFunc(features, func(v value) bool {
		need := p.flat.needed([]value{v}, nil, given, true)
		for i, is := range need {
			if is && p.kinds[i] == sample && heavyMath[p.ops[i].def.GetOp()] {
				given[v] = ""
				return false
			}
		}
		return true
	})
}

// uses calls use for each value that the live operations and the results use. by is the
// operation, or -1 for a result.
func (p *part) uses(use func(v value, by int)) {
	for i := range p.ops {
		if p.needed[i] && p.kinds[i] == live {
			for _, v := range p.ops[i].in {
				use(v, i)
			}
		}
	}
	for _, v := range p.results {
		use(v, -1)
	}
}
