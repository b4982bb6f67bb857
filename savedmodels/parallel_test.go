package savedmodels

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

// Model.Parallel returns steps for all built-in models. Tests of package session run the steps.
func TestParallel(t *testing.T) {
	for _, name := range BuiltinNames() {
		m, err := Builtin(name)
		require.NoError(t, err)
		p, err := m.Parallel(ParallelOptions{Rank: 1, Ranks: 3, Inexact: true})
		require.NoError(t, err, name)
		assert.Len(t, p.Train.Inputs[:p.Train.Own], len(m.find(m.Roles.Gradients).Inputs), name)
		assert.Equal(t, "shares", p.Train.Outputs[0].Name)
		if m.find(m.Roles.ResetMetrics) != nil {
			assert.NotNil(t, p.Train.Output("accuracy"), name)
			assert.NotNil(t, p.EvaluateIdle.Output("accuracy"), name)
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

// A model whose evaluation changes weights has a train step but no evaluation step.
func TestParallelWithoutEvaluation(t *testing.T) {
	m, err := Builtin("digits")
	require.NoError(t, err)
	want, err := m.Parallel(ParallelOptions{Ranks: 2})
	require.NoError(t, err)
	require.NoError(t, want.NoEvaluation)
	m.Roles.Evaluate = m.Roles.Train
	p, err := m.Parallel(ParallelOptions{Ranks: 2})
	require.NoError(t, err)
	assert.ErrorContains(t, p.NoEvaluation, "cannot evaluate the model together: signature train changes variable")
	assert.Equal(t, want.Train, p.Train)
	assert.Empty(t, p.Evaluate.Outputs)
	assert.NotContains(t, string(p.Graph), parallelPrefix+"evaluate")
}

// Ranks gather float32 and reduce bfloat16, since CollectiveGatherV2 does not support bfloat16.
func TestSumOfRanks(t *testing.T) {
	for d, last := range map[tfbind.DType]string{tfbind.Float32: "AddV2", tfbind.BFloat16: "CollectiveReduceV2"} {
		g := &subgraph{}
		(&parallel{ranks: 2}).sum(g, "0", "own", d, []int64{1}, 1)
		assert.Equal(t, last, g.Nodes()[len(g.Nodes())-1].GetOp())
	}
}

// Accumulators of 4 KiB or more are exchanged as bfloat16. Smaller ones are exchanged as float32,
// together with the shares.
func TestNarrowedAccumulators(t *testing.T) {
	for _, name := range []string{"digits", "image-224"} {
		m, err := Builtin(name)
		require.NoError(t, err)
		file, err := m.read()
		require.NoError(t, err)
		src, err := decode(file, maxMemoryBytes)
		require.NoError(t, err)
		p := newParallel(m, src, ParallelOptions{Ranks: 2, BFloat16: true})
		list, err := p.choose(m.find(m.Roles.Gradients), m.find(m.Roles.Apply), false)
		require.NoError(t, err)
		count := map[tfbind.DType]int{}
		for i, group := range groupsOf(list) {
			assert.Equal(t, i == 0, group.shares)
			for _, e := range group.vars {
				assert.Equal(t, e.as, group.as)
				assert.Equal(t, e.dtype == tfbind.Float32 && e.bytes() >= 4<<10, group.as == tfbind.BFloat16, "%s: %s", name, e.name)
				count[group.as]++
			}
		}
		assert.Positive(t, count[tfbind.Float32], name)
		assert.Positive(t, count[tfbind.BFloat16], name)
	}
}
