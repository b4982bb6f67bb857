package tfbind_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/tfproto"
	"steadyfit/tfbind"
)

type attr = tfproto.AttrValue

// graphDef collects nodes for tests that need a graph with exact contents.
type graphDef struct{ nodes []*tfproto.NodeDef }

func (g *graphDef) add(name, op string, attrs map[string]*attr, inputs ...string) *graphDef {
	g.nodes = append(g.nodes, &tfproto.NodeDef{Name: name, Op: op, Input: inputs, Attr: attrs})
	return g
}

func typeAttr(d tfbind.DType) *attr {
	return &attr{Value: &tfproto.AttrValue_Type{Type: tfproto.DataType(d)}}
}

func typesAttr(ds ...tfbind.DType) *attr {
	l := &tfproto.AttrValue_ListValue{}
	for _, d := range ds {
		l.Type = append(l.Type, tfproto.DataType(d))
	}
	return &attr{Value: &tfproto.AttrValue_List{List: l}}
}

func anyShape() *attr {
	return &attr{Value: &tfproto.AttrValue_Shape{Shape: &tfproto.TensorShapeProto{UnknownRank: true}}}
}

func textAttr(s string) *attr {
	return &attr{Value: &tfproto.AttrValue_S{S: []byte(s)}}
}

func (g *graphDef) placeholder(name string, d tfbind.DType) *graphDef {
	return g.add(name, "Placeholder", map[string]*attr{"dtype": typeAttr(d), "shape": anyShape()})
}

func (g *graphDef) bytes(t testing.TB) []byte {
	t.Helper()
	b, err := g.marshal()
	require.NoError(t, err)
	return b
}

func (g *graphDef) marshal() ([]byte, error) {
	return proto.Marshal(&tfproto.GraphDef{Node: g.nodes, Versions: &tfproto.VersionDef{Producer: 1395}})
}

// session opens a session on the graph; both are closed with the test.
func (g *graphDef) session(t testing.TB) *tfbind.Session {
	t.Helper()
	graph, err := tfbind.NewGraph()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, graph.Close()) })
	require.NoError(t, graph.Import(g.bytes(t), ""))
	s, err := tfbind.NewSession(graph, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func output(t testing.TB, s *tfbind.Session, name string) tfbind.Output {
	t.Helper()
	o, err := s.Graph().Output(name)
	require.NoError(t, err)
	return o
}

func tensor[T tfbind.Element](t testing.TB, values []T, shape ...int64) *tfbind.Tensor {
	t.Helper()
	x, err := tfbind.NewTensor(values, shape...)
	require.NoError(t, err)
	t.Cleanup(func() { x.Close() })
	return x
}

// variableGraph returns a graph with a float32 input x, a variable v, the operations "assign" and
// "read", which set v to x and read v, and the operation "twice", which returns x + x.
func variableGraph() *graphDef {
	f := typeAttr(tfbind.Float32)
	return new(graphDef).placeholder("x", tfbind.Float32).
		add("v", "VarHandleOp", map[string]*attr{"dtype": f, "shape": anyShape(), "shared_name": textAttr("v"),
			"container": textAttr("")}).
		add("assign", "AssignVariableOp", map[string]*attr{"dtype": f}, "v", "x").
		add("read", "ReadVariableOp", map[string]*attr{"dtype": f}, "v").
		add("twice", "AddV2", map[string]*attr{"T": f}, "x", "x")
}

// blockingGraph returns a graph with the operations "wait", which waits for an element of an empty
// queue, "put", which adds an element to the queue, and "ready", which does not wait.
func blockingGraph() *graphDef {
	f := typeAttr(tfbind.Float32)
	return new(graphDef).placeholder("x", tfbind.Float32).
		add("queue", "FIFOQueueV2", map[string]*attr{"component_types": typesAttr(tfbind.Float32),
			"shapes":    {Value: &tfproto.AttrValue_List{List: &tfproto.AttrValue_ListValue{}}},
			"container": textAttr(""), "shared_name": textAttr("")}).
		add("wait", "QueueDequeueV2", map[string]*attr{"component_types": typesAttr(tfbind.Float32)}, "queue").
		add("put", "QueueEnqueueV2", map[string]*attr{"Tcomponents": typesAttr(tfbind.Float32)}, "queue", "x").
		add("ready", "AddV2", map[string]*attr{"T": f}, "x", "x")
}

func intAttr(i int64) *tfproto.AttrValue_I { return &tfproto.AttrValue_I{I: i} }
