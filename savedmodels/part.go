package savedmodels

import (
	"crypto/sha256"
	"encoding/binary"
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
	// Values of the kind sizes may also depend on the number of samples in the batch. They become
	// shapes; an operation that computes something else from them is live.
	sizes
	// sample values also depend on data inputs.
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
	p.kinds, p.heavy, p.sums = make([]kind, len(f.ops)), make([]bool, len(f.ops)), make([]string, len(f.ops))
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
	case k == live || !pureOps[name] || mixesInTraining(op) || k == sample && p.reducesSamples(op):
		return live
	case k >= shapes && name == "Rank", k == sizes && p.leavesSamples(op):
		return shapes
	case k == sample && shapeOps[name]:
		return sizes
	case slices.ContainsFunc(op.in, func(v value) bool { return p.kindOf(v) == sizes }):
		k = withSizes(op, k)
	}
	p.heavy[i] = heavy || k == sample && heavyMath[name]
	return k
}

// withSizes returns the kind of an operation that has an input of the kind sizes. k is the kind of all inputs.
func withSizes(op *flatOp, k kind) kind {
	name := op.def.GetOp()
	switch {
	case spreads[name], k == sample && name == "Reshape":
		return sample
	case k == sample || !sizeOps[name] || name == "Cast" && !integerTypes[op.def.GetAttr()["DstT"].GetType()]:
		return live
	}
	return sizes
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

var integerTypes = map[tfproto.DataType]bool{tfproto.DataType_DT_INT32: true, tfproto.DataType_DT_INT64: true}

// spreads are the operations that give a value the number of samples as its first dimension.
var spreads = setOf("BroadcastTo Tile")

// reductions are the operations that combine elements along the axes in their second input.
var reductions = setOf("Sum Mean Max Min Prod All Any ArgMax ArgMin Cumsum")

// mixesInTraining reports whether an operation normalizes batches.
func mixesInTraining(op *flatOp) bool {
	training := op.def.GetAttr()["is_training"]
	return strings.HasPrefix(op.def.GetOp(), "FusedBatchNorm") && (training == nil || training.GetB())
}

// reducesSamples reports whether an operation may combine the elements of different samples.
func (p *part) reducesSamples(op *flatOp) bool {
	if !reductions[op.def.GetOp()] {
		return false
	}
	axes, known := p.integers(op, 1)
	return !known || slices.Contains(axes, 0)
}

// leavesSamples reports whether an operation takes elements from a shape other than the number of samples.
func (p *part) leavesSamples(op *flatOp) bool {
	name, attr := op.def.GetOp(), op.def.GetAttr()
	if name != "StridedSlice" && name != "GatherV2" || op.in[0].op < 0 || p.ops[op.in[0].op].def.GetOp() != "Shape" {
		return false
	}
	begin, known := p.integers(op, 1)
	return known && !slices.Contains(begin, 0) && attr["begin_mask"].GetI() == 0
}

// integers returns the elements of an input that is an integer constant.
func (p *part) integers(op *flatOp, input int) (all []int64, known bool) {
	if input >= len(op.in) || op.in[input].op < 0 {
		return nil, false
	}
	from := p.ops[op.in[input].op].def
	t := from.GetAttr()["value"].GetTensor()
	if from.GetOp() != "Const" || !integerTypes[t.GetDtype()] {
		return nil, false
	}
	size := dtype.DType(t.GetDtype()).Size()
	for content := t.GetTensorContent(); len(content) >= size; content = content[size:] {
		if size == 4 {
			all = append(all, int64(int32(binary.LittleEndian.Uint32(content))))
		} else {
			all = append(all, int64(binary.LittleEndian.Uint64(content)))
		}
	}
	for _, v := range t.GetIntVal() {
		all = append(all, int64(v))
	}
	return append(all, t.GetInt64Val()...), true
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
