package graphdef_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
)

// The names of operations do not change the sum.
func TestSum(t *testing.T) {
	sum := func(g *graphdef.Graph) string {
		def, err := g.Bytes()
		require.NoError(t, err)
		s, err := graphdef.Sum(def)
		require.NoError(t, err)
		return s
	}
	float := graphdef.Attrs{"T": graphdef.Type(dtype.Float32)}
	graph := func(first, second, op string, inputs ...string) *graphdef.Graph {
		return new(graphdef.Graph).Placeholder(first, dtype.Float32).Placeholder(second, dtype.Float32).Add("z", op, float,
			inputs...)
	}
	one := sum(graph("x", "y", "Sub", "x", "y"))
	require.Len(t, one, 16)
	require.Equal(t, one, sum(graph("a", "b/c", "Sub", "a:0", "b/c")))
	for _, other := range []*graphdef.Graph{
		graph("x", "y", "Sub", "y", "x"), graph("x", "y", "Mul", "x", "y"),
		graph("x", "y", "Sub", "x", "y", "^y"), graph("x", "y", "Sub", "x", "y:1"),
		graph("x", "y", "Sub", "x", "y").Placeholder("w", dtype.Float32),
		new(graphdef.Graph).Placeholder("x", dtype.Float32).Placeholder("y", dtype.Float64).Add("z", "Sub", float, "x", "y"),
	} {
		require.NotEqual(t, one, sum(other))
	}
	_, err := graphdef.Sum([]byte("no graph"))
	require.ErrorContains(t, err, "8 bytes are not a valid GraphDef")
}

// TensorFlow may number function names differently in each process, and a library has no order.
func TestSumOfFunctions(t *testing.T) {
	run := func(name string) graphdef.Attrs {
		return graphdef.Attrs{
			"f":                 {Value: &tfproto.AttrValue_Func{Func: &tfproto.NameAttrList{Name: name}}},
			"_gradient_op_type": graphdef.Text("PartitionedCall-" + name),
		}
	}
	node := func(name, op string, a graphdef.Attrs, inputs ...string) *tfproto.NodeDef {
		return &tfproto.NodeDef{Name: name, Op: op, Attr: a, Input: inputs}
	}
	function := func(name, argument, ret string, nodes ...*tfproto.NodeDef) *tfproto.FunctionDef {
		return &tfproto.FunctionDef{
			Signature: &tfproto.OpDef{Name: name, InputArg: []*tfproto.OpDef_ArgDef{{Name: argument}},
				OutputArg: []*tfproto.OpDef_ArgDef{{Name: name + "_out"}}},
			NodeDef: nodes, Ret: map[string]string{name + "_out": ret},
			Attr: graphdef.Attrs{"backward_function_name": graphdef.Text("backward_of_" + name)},
		}
	}
	graph := func(calls []string, functions ...*tfproto.FunctionDef) []byte {
		g := &tfproto.GraphDef{Library: &tfproto.FunctionDefLibrary{Function: functions}}
		g.Node = append(g.Node, node("x", "Placeholder", nil))
		for _, name := range calls {
			g.Node = append(g.Node, node("call_"+name, "PartitionedCall", run(name), "x"))
		}
		def, err := proto.Marshal(g)
		require.NoError(t, err)
		return def
	}
	sum := func(def []byte) string {
		s, err := graphdef.Sum(def)
		require.NoError(t, err)
		return s
	}
	// outer calls the function inner and itself.
	outer := func(name, inner string) *tfproto.FunctionDef {
		return function(name, "a", "c2:output:0", node("c1", "PartitionedCall", run(inner), "a"),
			node("c2", "PartitionedCall", run(name), "c1:output:0", "^c1"))
	}
	inner := func(name, argument, op string) *tfproto.FunctionDef {
		return function(name, argument, "n:y:0", node("n", op, nil, argument))
	}
	one := sum(graph([]string{"outer_1", "inner_2"}, outer("outer_1", "inner_2"), inner("inner_2", "a", "Neg")))
	require.Equal(t, one, sum(graph([]string{"o", "i"}, inner("unused", "a", "Exp"), inner("i", "b", "Neg"),
		outer("o", "i"))))
	for _, other := range [][]byte{
		graph([]string{"o", "i"}, inner("i", "b", "Exp"), outer("o", "i")),
		graph([]string{"i", "o"}, inner("i", "b", "Neg"), outer("o", "i")),
		graph([]string{"o", "i"}, inner("i", "b", "Neg"), outer("o", "o")),
		graph([]string{"o", "i"}, function("i", "b", "b", node("n", "Neg", nil, "b")), outer("o", "i")),
		graph([]string{"o", "i"}),
	} {
		require.NotEqual(t, one, sum(other))
	}

	ops, err := graphdef.Ops(graph([]string{"o"}, inner("i", "b", "Neg"), outer("o", "i")))
	require.NoError(t, err)
	require.Equal(t, []graphdef.Op{
		{"", "x", "Placeholder"}, {"", "call_o", "PartitionedCall"},
		{"i", "n", "Neg"}, {"o", "c1", "PartitionedCall"}, {"o", "c2", "PartitionedCall"},
	}, ops)
}
