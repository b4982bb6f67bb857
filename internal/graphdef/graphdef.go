// Package graphdef writes small TensorFlow graphs without Python. A graph is run on its own or
// imported into a model's graph. TensorFlow checks names, types and inputs when it imports the
// graph.
package graphdef

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/dtype"
	"steadyfit/internal/tfproto"
)

// Attr is the value of an attribute. Attrs has the attributes of an operation by name.
type (
	Attr  = tfproto.AttrValue
	Attrs = map[string]*Attr
)

// producer is the GraphDef version of the graphs. TensorFlow gives a graph the lowest version of the graphs that are
// imported into it, and warns of lower versions than that of the model, so this is the highest.
const producer = math.MaxInt32

// Graph collects operations. TensorFlow sets missing attributes to their defaults at import.
// The zero value is an empty graph.
type Graph struct{ nodes []*tfproto.NodeDef }

// Add adds an operation. An input is a name such as "x" or "x:1", or "^x" for an operation that
// must run before.
func (g *Graph) Add(name, op string, a Attrs, inputs ...string) *Graph {
	g.nodes = append(g.nodes, &tfproto.NodeDef{Name: name, Op: op, Input: inputs, Attr: a})
	return g
}

// Placeholder adds an input of any shape.
func (g *Graph) Placeholder(name string, d dtype.DType) *Graph {
	return g.Add(name, "Placeholder", Attrs{"dtype": Type(d), "shape": AnyShape()})
}

// Constant adds a constant. raw has its elements in little-endian order.
func (g *Graph) Constant(name string, d dtype.DType, raw []byte, shape ...int64) *Graph {
	return g.Add(name, "Const", Constant(d, raw, shape...))
}

func (g *Graph) Number(name string, n int64) *Graph {
	return g.Constant(name, dtype.Int64, binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

// Texts adds a constant vector of strings.
func (g *Graph) Texts(name string, values ...string) *Graph {
	t := &tfproto.TensorProto{Dtype: tfproto.DataType_DT_STRING,
		TensorShape: shapeOf([]int64{int64(len(values))})}
	for _, v := range values {
		t.StringVal = append(t.StringVal, []byte(v))
	}
	return g.Add(name, "Const", Attrs{"dtype": Type(dtype.String),
		"value": {Value: &tfproto.AttrValue_Tensor{Tensor: t}}})
}

// Nodes returns the operations.
func (g *Graph) Nodes() []*tfproto.NodeDef { return g.nodes }

// Bytes returns the serialized GraphDef.
func (g *Graph) Bytes() ([]byte, error) {
	return proto.Marshal(&tfproto.GraphDef{Node: g.nodes,
		Versions: &tfproto.VersionDef{Producer: producer}})
}

// Constant returns the attributes of a constant; see Graph.Constant.
func Constant(d dtype.DType, raw []byte, shape ...int64) Attrs {
	return Attrs{"dtype": Type(d), "value": {Value: &tfproto.AttrValue_Tensor{
		Tensor: &tfproto.TensorProto{Dtype: tfproto.DataType(d), TensorShape: shapeOf(shape),
			TensorContent: raw}}}}
}

// Type, Bool, Int, Text, Shape, AnyShape and Types return the value of an attribute. An
// unknown size in a shape is -1.
func Type(d dtype.DType) *Attr {
	return &Attr{Value: &tfproto.AttrValue_Type{Type: tfproto.DataType(d)}}
}

func Bool(b bool) *Attr { return &Attr{Value: &tfproto.AttrValue_B{B: b}} }

func Int(n int) *Attr { return &Attr{Value: &tfproto.AttrValue_I{I: int64(n)}} }

func Text(s string) *Attr { return &Attr{Value: &tfproto.AttrValue_S{S: []byte(s)}} }

func Shape(sizes []int64) *Attr {
	return &Attr{Value: &tfproto.AttrValue_Shape{Shape: shapeOf(sizes)}}
}

func AnyShape() *Attr {
	shape := &tfproto.TensorShapeProto{UnknownRank: true}
	return &Attr{Value: &tfproto.AttrValue_Shape{Shape: shape}}
}

func Types(ds []dtype.DType) *Attr {
	l := &tfproto.AttrValue_ListValue{}
	for _, d := range ds {
		l.Type = append(l.Type, tfproto.DataType(d))
	}
	return &Attr{Value: &tfproto.AttrValue_List{List: l}}
}

func shapeOf(sizes []int64) *tfproto.TensorShapeProto {
	s := &tfproto.TensorShapeProto{}
	for _, d := range sizes {
		s.Dim = append(s.Dim, &tfproto.TensorShapeProto_Dim{Size: d})
	}
	return s
}
