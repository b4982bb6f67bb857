package savedmodels

import (
	"slices"

	"steadyfit/internal/tfproto"
)

var integerTypes = map[tfproto.DataType]bool{tfproto.DataType_DT_INT32: true,
	tfproto.DataType_DT_INT64: true}

// withSizes returns the kind of an operation that has an input of the kind sizes. k is the kind of
// all inputs together. leading is the result of isLeading. The number of samples may only become
// the first dimension of a value with one part per sample, since the last batch of an epoch may be
// smaller.
func (p *part) withSizes(op *flatOp, k kind) (result kind, leading bool) {
	name := op.def.GetOp()
	is := func(i int, k kind) bool { return i < len(op.in) && p.kindOf(op.in[i]) == k }
	switch {
	case k == sample && name == "Reshape" && is(0, sample) && p.isLeading(op.in[1]),
		name == "BroadcastTo" && !is(0, sizes) && p.isLeading(op.in[1]),
		name == "Tile" && !is(0, sizes) && !is(0, sample) && p.isLeading(op.in[1]),
		name == "Fill" && !is(1, sizes) && p.isLeading(op.in[0]):
		return sample, false
	case k == sample || !sizeOps[name]:
		return live, false
	}
	if d := op.def.GetAttr()["DstT"]; name == "Cast" && !integerTypes[d.GetType()] {
		return live, false
	}
	return p.ofSizes(op)
}

// ofSizes returns the kind of an operation that computes shapes from sizes. leading is the result
// of isLeading.
func (p *part) ofSizes(op *flatOp) (result kind, leading bool) {
	others := func(list []value) bool { // whether the number of samples is in none of them
		return !slices.ContainsFunc(list, func(v value) bool { return p.kindOf(v) == sizes })
	}
	first, rest := p.isLeading(op.in[0]), others(op.in[1:])
	switch name := op.def.GetOp(); {
	case name == "Pack":
		return sizes, op.def.GetAttr()["axis"].GetI() == 0 && rest
	case name == "ConcatV2":
		return sizes, first && rest
	case p.kindOf(op.in[0]) != sizes || !rest:
		return sizes, p.single(op)
	}
	switch op.def.GetOp() {
	case "Identity", "Snapshot", "StopGradient", "EnsureShape", "Cast", "Reshape", "ExpandDims", "Squeeze":
		return sizes, first
	case "Prod", "Sum", "Max", "Min":
		return sizes, first || p.single(op)
	case "StridedSlice", "Slice", "GatherV2":
		begin, known := p.elements(op)
		switch {
		case !first || !known:
		case !slices.ContainsFunc(begin, func(i int64) bool { return i <= 0 }):
			return shapes, false
		case begin[0] == 0 && !slices.ContainsFunc(begin[1:], func(i int64) bool { return i <= 0 }):
			return sizes, true
		}
		return sizes, false
	}
	return sizes, p.single(op)
}

// isLeading reports whether no element of a value except the first can be the number of samples.
func (p *part) isLeading(v value) bool {
	return p.kindOf(v) != sizes || v.op >= 0 && p.leading[v.op]
}

// elements returns the index of the first of consecutive elements, or the indices of all elements,
// that an operation takes from a vector. The second result is false if the indices are not
// constant.
func (p *part) elements(op *flatOp) ([]int64, bool) {
	attr := op.def.GetAttr()
	begin, known := p.integers(op, 1)
	if !known || len(begin) == 0 {
		return nil, false
	}
	if op.def.GetOp() == "GatherV2" {
		return begin, attr["batch_dims"].GetI() == 0
	}
	if op.def.GetOp() == "StridedSlice" {
		strides, ok := p.integers(op, 3)
		if !ok || len(strides) != 1 || strides[0] < 1 || attr["ellipsis_mask"].GetI() != 0 ||
			attr["new_axis_mask"].GetI() != 0 {
			return nil, false
		}
		if attr["begin_mask"].GetI() != 0 {
			begin = []int64{0}
		}
		if rank := p.rank(op.in[0]); rank > 1 {
			return nil, false
		}
		if begin[0] < 0 { // counts from the end of the shape, whose length is the rank of a value
			if from := op.in[0]; from.op >= 0 && p.ops[from.op].def.GetOp() == "Shape" {
				begin[0] += p.rank(p.ops[from.op].in[0])
			}
		}
	}
	return begin, len(begin) == 1
}

// single reports whether the graph records that the result of an operation has one element.
func (p *part) single(op *flatOp) bool {
	shape := op.recorded()
	return shape != nil && !slices.ContainsFunc(shape.GetDim(), func(d *tfproto.TensorShapeProto_Dim) bool {
		return d.GetSize() != 1
	})
}
