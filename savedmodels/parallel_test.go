package savedmodels

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/dtype"
)

// Model.Parallel returns the step for all built-in models. Tests of package session run the steps.
func TestParallel(t *testing.T) {
	for _, name := range BuiltinNames() {
		m, err := Builtin(name)
		require.NoError(t, err)
		p, err := m.Parallel(ParallelOptions{Rank: 1, Ranks: 3, Inexact: true})
		require.NoError(t, err, name)
		assert.Len(t, p.Signature.Inputs[:p.Own], len(m.find(m.Roles.Gradients).Inputs), name)
		assert.Equal(t, "shares", p.Signature.Outputs[0].Name)
		if m.find(m.Roles.ResetMetrics) != nil {
			assert.NotNil(t, p.Signature.Output("accuracy"), name)
		}
	}
}

// Dropout and BatchNormalization change variables that differ between ranks.
func TestNotParallel(t *testing.T) {
	m, err := Builtin("digits-cnn")
	require.NoError(t, err)
	_, err = m.Parallel(ParallelOptions{Ranks: 2})
	require.ErrorIs(t, err, errNotParallel)
	assert.ErrorContains(t, err, "seed_generator")
	for _, c := range []struct {
		gradients, apply string
		problem          string
	}{
		{m.Roles.Gradients, m.Roles.Predict, "no variable in common"},
		{m.Roles.Train, m.Roles.Train, "other than by adding"},
	} {
		changed := *m
		changed.Roles.Gradients, changed.Roles.Apply = c.gradients, c.apply
		_, err = changed.Parallel(ParallelOptions{Ranks: 2, Inexact: true})
		require.ErrorIs(t, err, errNotParallel)
		assert.ErrorContains(t, err, c.problem)
	}
}

// Ranks gather float32 and reduce bfloat16, since CollectiveGatherV2 does not support bfloat16.
func TestSumOfRanks(t *testing.T) {
	for d, last := range map[dtype.DType]string{dtype.Float32: "AddV2", dtype.BFloat16: "CollectiveReduceV2"} {
		g := &subgraph{}
		(&parallel{ranks: 2}).sum(g, "0", "own", d, []int64{1}, 1)
		assert.Equal(t, last, g.Nodes()[len(g.Nodes())-1].GetOp())
	}
}
