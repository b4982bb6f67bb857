package loop

import (
	"iter"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/lab/worker"
)

// The losses of a diverged run are reported, though they are NaN or infinite.
func TestLosses(t *testing.T) {
	for _, c := range []struct {
		name   string
		losses []float64
		want   map[string]string
	}{
		{"nothing trained", nil, nil},
		{"learns", []float64{2.5, 1, 0.125}, map[string]string{worker.FactLossFirst: "2.5", worker.FactLossLast: "0.125"}},
		{"no number", []float64{2.5, math.NaN()}, map[string]string{worker.FactLossFirst: "2.5", worker.FactLossLast: "NaN"}},
		{"never one", []float64{math.NaN(), math.NaN()},
			map[string]string{worker.FactLossFirst: "NaN", worker.FactLossLast: "NaN"}},
		{"infinite", []float64{2.5, math.Inf(1)}, map[string]string{worker.FactLossFirst: "2.5",
			worker.FactLossLast: "+Inf"}},
		{"a step of 0", []float64{0}, map[string]string{worker.FactLossFirst: "0", worker.FactLossLast: "0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l losses
			for _, loss := range c.losses {
				l.add(loss)
			}
			assert.Equal(t, c.want, l.facts())
		})
	}
}

type empty struct{ data.Dataset }

func (empty) Batches(data.Pass) iter.Seq2[data.Batch, error] {
	return func(func(data.Batch, error) bool) {}
}

func TestPasses(t *testing.T) {
	ds, err := data.New("three", data.Field{Name: "x", Array: data.Array{Shape: []int{3}, Values: []float32{0, 1, 2}}})
	require.NoError(t, err)
	var sizes []int
	for b, err := range Passes(ds, data.Pass{Batch: 2, Skip: 1}) {
		require.NoError(t, err)
		if sizes = append(sizes, b.Size); len(sizes) == 4 {
			break
		}
	}
	assert.Equal(t, []int{1, 2, 1, 2}, sizes)
	for _, err := range Passes(empty{ds}, data.Pass{Batch: 4}) {
		require.ErrorContains(t, err, "three has fewer samples than a batch of 4")
	}
}
