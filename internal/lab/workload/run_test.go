package workload

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/cell"
	"steadyfit/session"
)

// What diverged has trained: its losses are told, however little they are numbers.
func TestLosses(t *testing.T) {
	for _, c := range []struct {
		name   string
		losses []float64
		want   map[string]string
	}{
		{"nothing trained", nil, nil},
		{"learns", []float64{2.5, 1, 0.125}, map[string]string{cell.FactLossFirst: "2.5", cell.FactLossLast: "0.125"}},
		{"no number", []float64{2.5, math.NaN()}, map[string]string{cell.FactLossFirst: "2.5", cell.FactLossLast: "NaN"}},
		{"never one", []float64{math.NaN(), math.NaN()}, map[string]string{cell.FactLossFirst: "NaN", cell.FactLossLast: "NaN"}},
		{"infinite", []float64{2.5, math.Inf(1)}, map[string]string{cell.FactLossFirst: "2.5", cell.FactLossLast: "+Inf"}},
		{"a step of 0", []float64{0}, map[string]string{cell.FactLossFirst: "0", cell.FactLossLast: "0"}},
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

func TestWhichJobsTrainNothing(t *testing.T) {
	for _, c := range []struct {
		job  job
		none bool
	}{
		{&loop{}, false}, {&leaking{}, false}, {&dropped{}, false}, {&varyingPredict{}, true}, {&reloading{}, false},
		{&reusing{}, false}, {&growing{}, true}, {&fetching{}, true}, {&bursting{}, true}, {&varyingTrain{}, false},
		{&predicting{}, true}, {&texts{}, true}, {&tensorImages{}, false}, {&recorded{}, false}, {&fitting{}, false},
	} {
		_, none := c.job.(interface{ trainsNothing() })
		assert.Equal(t, c.none, none, "%T", c.job)
	}
}

// S1 has 1000 samples and S1d 10,000, whatever part of the batch a step takes.
func TestAlmost(t *testing.T) {
	for _, s := range []cell.Spec{{Epoch: 32, Batch: 32}, {Epoch: 32, Batch: 16, Samples: 1024}, {Epoch: 32, Batch: 8, Samples: 1024}} {
		assert.Equal(t, 1000, almost(s), "batch %d", s.Batch)
	}
	assert.Equal(t, 10_000, almost(cell.Spec{Epoch: 157, Batch: 32, Samples: 157 * 64}))
	assert.Equal(t, 1, almost(cell.Spec{Epoch: 1, Batch: 1}))
}

// The model with dropout draws other numbers for parts of a batch.
func TestSplitOf(t *testing.T) {
	for name, want := range map[string]string{"digits": cell.SplitExact, "digits-cnn": cell.SplitInexact} {
		// Whatever the session is allowed to do.
		for _, o := range []session.Options{{}, {AllowInexactSplit: true}} {
			split, err := splitOf(builtin(t, name), o)
			require.NoError(t, err, name)
			assert.Equal(t, want, split, name)
		}
	}
	_, err := splitOf(builtin(t, "digits"), session.Options{ReadOnly: true})
	require.ErrorIs(t, err, session.ErrNoSignature)
}
