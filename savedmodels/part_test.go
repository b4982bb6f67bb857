package savedmodels

import (
	"testing"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// labelled returns a part with a chain of n operations on an input and, for each of them, an
// operation on its result that is not frozen.
func labelled(input, op string, n int) *part {
	p := &part{flat: &flat{args: make([]flatArg, 1)}, args: []kind{sample}, inputs: []*Tensor{{Name: input, Shape: []int64{-1, 3}}}}
	add := func(k kind, op string, in value) int {
		p.ops = append(p.ops, flatOp{def: &node_def_go_proto.NodeDef{Name: "a", Op: op}, in: []value{in}})
		p.kinds, p.needed = append(p.kinds, k), append(p.needed, true)
		return len(p.ops) - 1
	}
	last := value{op: -1}
	for range n {
		last = value{op: add(sample, op, last), port: "y:0"}
		add(live, "Shape", last)
	}
	return p
}

// The work for a graph does not grow with the square of its size. With quadratic work, this test
// would time out.
func TestLongChainOfLabels(t *testing.T) {
	d := &division{model: &Model{Roles: Roles{Predict: "predict"}, Signatures: []Signature{{Name: "predict", Inputs: []Tensor{{Name: "x"}}}}}}
	assert.Contains(t, d.whyNone(labelled("y", "Neg", 300_000)), "no matrix product or convolution depends only on the data")
	assert.Contains(t, d.whyNone(labelled("x", "Neg", 3)), "comes before a (Shape)")
}

func TestLongChainOfShapes(t *testing.T) {
	b := &builder{division: &division{graph: &graph{work: maxWork - 10}}, p: labelled("x", "Cast", 20)}
	require.ErrorIs(t, b.givenShape(len(b.p.ops)-1, "feature_0"), errTooLarge)
}
