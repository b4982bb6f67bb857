package graphdef_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
)

// The order of attributes does not change the sum.
func TestSum(t *testing.T) {
	sum := func(op string, order bool) string {
		g := &tfproto.GraphDef{Node: []*tfproto.NodeDef{{Name: "z", Op: op, Attr: graphdef.Attrs{
			"a": graphdef.Int(1), "b": graphdef.Int(2), "c": graphdef.Int(3), "d": graphdef.Int(4)}}}}
		def, err := proto.MarshalOptions{Deterministic: order}.Marshal(g)
		require.NoError(t, err)
		s, err := graphdef.Sum(def)
		require.NoError(t, err)
		return s
	}
	one := sum("Sub", true)
	require.Len(t, one, 16)
	for range 20 {
		require.Equal(t, one, sum("Sub", false))
	}
	require.NotEqual(t, one, sum("Mul", true))
	_, err := graphdef.Sum([]byte("no graph"))
	require.ErrorContains(t, err, "8 bytes are not a valid GraphDef")
}

// Ops lists the operations of functions, too.
func TestOps(t *testing.T) {
	def, err := proto.Marshal(&tfproto.GraphDef{
		Node: []*tfproto.NodeDef{{Name: "x", Op: "Placeholder"}, {Name: "call", Op: "PartitionedCall"}},
		Library: &tfproto.FunctionDefLibrary{Function: []*tfproto.FunctionDef{{
			Signature: &tfproto.OpDef{Name: "f"}, NodeDef: []*tfproto.NodeDef{{Name: "n", Op: "Neg"}}}}}})
	require.NoError(t, err)
	ops, err := graphdef.Ops(def)
	require.NoError(t, err)
	require.Equal(t, []graphdef.Op{{"", "x", "Placeholder"}, {"", "call", "PartitionedCall"}, {"f", "n", "Neg"}}, ops)
}
