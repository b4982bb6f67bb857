package autotune

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/session"
	"steadyfit/tfbind"
)

// Trials are compared with plain steps and stored. If plain steps fail, the most micro-batches
// replace them.
func TestTrials(t *testing.T) {
	m, ds := dense(t)
	most, eight := Configuration{MicroBatches: 32}, Configuration{MicroBatches: 8}
	for name, fails := range map[string]error{"plain steps run": nil, "plain steps fail": errors.New("killed by the kernel because memory ran out")} {
		t.Run(name, func(t *testing.T) {
			p := Plan{Model: m, Data: ds, Batch: 32, Cache: t.TempDir(), Budget: 1}
			plain := scripted{step: 0.1}
			if fails != nil {
				plain.failsAt, plain.fails = 1, fails
			}
			s := newScriptedTuner(t, &p, []scripted{plain, {is: most, step: 0.4}, {is: eight, step: 0.2}, {is: both, step: 0.1, cold: true}})
			trials := Trials{tuner: &s.tuner, cached: p.load(newKey(&p, tfbind.Info{}))}
			measured, err := trials.Measure(t.Context(), eight)
			require.NoError(t, err)
			assert.InDelta(t, map[bool]float64{true: 2, false: 0.5}[fails == nil], measured.Ratio, 1e-9)
			s.until = time.Now().Add(10 * time.Millisecond)
			late, err := trials.Measure(t.Context(), both)
			require.NoError(t, err)
			assert.True(t, late.Late)
			require.NoError(t, trials.Close())
			assert.Empty(t, s.running)

			assert.Equal(t, []Measurement{measured}, trials.Known(), "late ones are not known")
			again := Trials{tuner: &s.tuner, cached: p.load(newKey(&p, tfbind.Info{}))}
			assert.Equal(t, trials.Known(), again.Known())
			p.Budget = 0
			assert.Empty(t, again.Known(), "trainings with and without a budget differ")
		})
	}
}

func TestSpace(t *testing.T) {
	_, err := tfbind.Load("")
	require.NoError(t, err)
	m, ds := dense(t)
	p := Plan{Model: m, Data: ds, Batch: 24, Limits: Limits{StepsPerExecution: 10, Threads: true, Precision: true}}
	bases, groups, err := p.Space()
	require.NoError(t, err)
	assert.Equal(t, []Configuration{{MicroBatches: 2}, {MicroBatches: 4}, {MicroBatches: 8}, {MicroBatches: 24}, {StepsPerExecution: 10}}, bases)
	require.Len(t, groups, 3, "without a restart, neither allocators nor oneDNN")
	assert.Equal(t, []Configuration{{NoPrefetch: true}}, groups[1])
	p.Options = session.Options{MicroBatches: 3}
	bases, _, err = p.Space()
	require.NoError(t, err)
	assert.Empty(t, bases, "the number is set")
}
