package loop

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

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
		{"never one", []float64{math.NaN(), math.NaN()}, map[string]string{worker.FactLossFirst: "NaN", worker.FactLossLast: "NaN"}},
		{"infinite", []float64{2.5, math.Inf(1)}, map[string]string{worker.FactLossFirst: "2.5", worker.FactLossLast: "+Inf"}},
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
