package graphdef_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
)

// The operations of functions are listed, too.
func TestOps(t *testing.T) {
	node := func(name, op string) *tfproto.NodeDef { return &tfproto.NodeDef{Name: name, Op: op} }
	def, err := proto.Marshal(&tfproto.GraphDef{Node: []*tfproto.NodeDef{node("x", "Placeholder")},
		Library: &tfproto.FunctionDefLibrary{Function: []*tfproto.FunctionDef{{
			Signature: &tfproto.OpDef{Name: "f"}, NodeDef: []*tfproto.NodeDef{node("n", "Neg")}}}}})
	require.NoError(t, err)
	ops, err := graphdef.Ops(def)
	require.NoError(t, err)
	require.Equal(t, []graphdef.Op{{"", "x", "Placeholder"}, {"f", "n", "Neg"}}, ops)
	_, err = graphdef.Ops([]byte("no graph"))
	require.ErrorContains(t, err, "8 bytes are not a valid GraphDef")
}
