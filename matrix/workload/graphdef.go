package workload

import (
	"errors"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/attr_value_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_shape_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/versions_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/tfbind"
)

type (
	attr  = attr_value_go_proto.AttrValue
	attrs = map[string]*attr
)

// producer is the version of the graphs that are written here: one that knows all
// operations that they use.
const producer = 1395

// graphDef collects the nodes of a small graph. Attributes that are left out get
// their defaults when it is imported.
type graphDef struct{ nodes []*node_def_go_proto.NodeDef }

func (g *graphDef) add(name, op string, a attrs, inputs ...string) *graphDef {
	g.nodes = append(g.nodes, &node_def_go_proto.NodeDef{Name: name, Op: op, Input: inputs, Attr: a})
	return g
}

func (g *graphDef) placeholder(name string, d tfbind.DType) *graphDef {
	return g.add(name, "Placeholder", attrs{"dtype": typeAttr(d), "shape": anyShape()})
}

// constant adds a tensor of raw little-endian elements.
func (g *graphDef) constant(name string, d tfbind.DType, raw []byte, shape ...int64) *graphDef {
	return g.add(name, "Const", attrs{"dtype": typeAttr(d), "value": {Value: &attr_value_go_proto.AttrValue_Tensor{
		Tensor: &tensor_go_proto.TensorProto{Dtype: types_go_proto.DataType(d), TensorShape: shapeOf(shape), TensorContent: raw}}}})
}

// number adds an int64 scalar.
func (g *graphDef) number(name string, n int64) *graphDef {
	return g.add(name, "Const", attrs{"dtype": typeAttr(tfbind.Int64), "value": {Value: &attr_value_go_proto.AttrValue_Tensor{
		Tensor: &tensor_go_proto.TensorProto{Dtype: types_go_proto.DataType_DT_INT64, TensorShape: shapeOf(nil), Int64Val: []int64{n}}}}})
}

func shapeOf(sizes []int64) *tensor_shape_go_proto.TensorShapeProto {
	s := &tensor_shape_go_proto.TensorShapeProto{}
	for _, d := range sizes {
		s.Dim = append(s.Dim, &tensor_shape_go_proto.TensorShapeProto_Dim{Size: d})
	}
	return s
}

func typeAttr(d tfbind.DType) *attr {
	return &attr{Value: &attr_value_go_proto.AttrValue_Type{Type: types_go_proto.DataType(d)}}
}

func boolAttr(b bool) *attr { return &attr{Value: &attr_value_go_proto.AttrValue_B{B: b}} }

func textAttr(s string) *attr {
	return &attr{Value: &attr_value_go_proto.AttrValue_S{S: []byte(s)}}
}

func anyShape() *attr {
	return &attr{Value: &attr_value_go_proto.AttrValue_Shape{Shape: &tensor_shape_go_proto.TensorShapeProto{UnknownRank: true}}}
}

func typesAttr(ds []tfbind.DType) *attr {
	l := &attr_value_go_proto.AttrValue_ListValue{}
	for _, d := range ds {
		l.Type = append(l.Type, types_go_proto.DataType(d))
	}
	return &attr{Value: &attr_value_go_proto.AttrValue_List{List: l}}
}

func shapesAttr(shapes [][]int64) *attr {
	l := &attr_value_go_proto.AttrValue_ListValue{}
	for _, s := range shapes {
		l.Shape = append(l.Shape, shapeOf(s))
	}
	return &attr{Value: &attr_value_go_proto.AttrValue_List{List: l}}
}

func (g *graphDef) bytes() ([]byte, error) {
	return proto.Marshal(&graph_go_proto.GraphDef{Node: g.nodes, Versions: &versions_go_proto.VersionDef{Producer: producer}})
}

// session opens a session on a graph of its own; closeGraph closes both.
func (g *graphDef) session(config []byte) (*tfbind.Session, error) {
	def, err := g.bytes()
	if err != nil {
		return nil, err
	}
	graph, err := tfbind.NewGraph()
	if err != nil {
		return nil, err
	}
	if err := graph.Import(def, ""); err != nil {
		return nil, errors.Join(err, graph.Close())
	}
	s, err := tfbind.NewSession(graph, config)
	if err != nil {
		return nil, errors.Join(err, graph.Close())
	}
	return s, nil
}

// closeGraph closes a session and the graph that it does not own.
func closeGraph(s *tfbind.Session) error {
	if s == nil {
		return nil
	}
	return errors.Join(s.Close(), s.Graph().Close())
}

// find looks an output up.
func find(s *tfbind.Session, name string, into *tfbind.Output) (err error) {
	*into, err = s.Graph().Output(name)
	return err
}

// closeErr closes a job that was not begun.
func closeErr(j job) error {
	_, err := j.close()
	return err
}
