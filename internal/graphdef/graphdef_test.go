package graphdef_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// A sum tells what a graph computes, and not how its operations are called.
func TestSum(t *testing.T) {
	sum := func(g *graphdef.Graph) string {
		def, err := g.Bytes()
		require.NoError(t, err)
		s, err := graphdef.Sum(def)
		require.NoError(t, err)
		return s
	}
	float := graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}
	graph := func(first, second, op string, inputs ...string) *graphdef.Graph {
		return new(graphdef.Graph).Placeholder(first, tfbind.Float32).Placeholder(second, tfbind.Float32).Add("z", op, float, inputs...)
	}
	one := sum(graph("x", "y", "Sub", "x", "y"))
	require.Len(t, one, 16)
	require.Equal(t, one, sum(graph("a", "b/c", "Sub", "a:0", "b/c")))
	for _, other := range []*graphdef.Graph{
		graph("x", "y", "Sub", "y", "x"), graph("x", "y", "Mul", "x", "y"),
		graph("x", "y", "Sub", "x", "y", "^y"), graph("x", "y", "Sub", "x", "y:1"),
		graph("x", "y", "Sub", "x", "y").Placeholder("w", tfbind.Float32),
		new(graphdef.Graph).Placeholder("x", tfbind.Float32).Placeholder("y", tfbind.Float64).Add("z", "Sub", float, "x", "y"),
	} {
		require.NotEqual(t, one, sum(other))
	}
	_, err := graphdef.Sum([]byte("no graph"))
	require.ErrorContains(t, err, "8 bytes are no GraphDef")
}
