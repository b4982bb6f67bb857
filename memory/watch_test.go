package memory

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"steadyfit/internal/memlayer"
)

// watched returns a copy of the series, since the watch appends to it.
func watched(w *Watcher) *Series {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.series.Thin(math.MaxInt, func(s Sample) Sample { return s })
}

func TestWatch(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		held := Bytes(0)
		layer := Layer("test bytes")
		w := Watch(t.Context(), Options{
			Every:    time.Second,
			Keep:     64,
			Sources:  []Source{func(add func(Layer, Reading)) { held += MiB; add(layer, Known(held)) }},
			Criteria: Criteria{Layer: layer},
		})
		<-time.After(10*time.Minute + time.Millisecond)
		v := w.Verdict()
		require.Equal(t, Leak, v.Kind, v)
		require.InEpsilon(t, 60*mib, v.Slope.Estimate, 0.02, "a MiB per second")
		require.Contains(t, v.String(), "leak: +60.0 MiB/min")
		require.LessOrEqual(t, len(watched(w).Samples()), 65)
		text, err := json.Marshal(watched(w))
		require.NoError(t, err)
		require.Contains(t, string(text), `"test bytes"`)
		require.NoError(t, w.Stop())
		require.NoError(t, w.Stop())
		require.Equal(t, Leak, w.Verdict().Kind, "the verdict outlives the watch")
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		step := 0
		w := Watch(ctx, Options{Steps: func() int { step += 10; return step }})
		<-time.After(20 * time.Second)
		cancel()
		<-w.done
		samples := watched(w).Samples()
		require.GreaterOrEqual(t, len(samples), 20)
		require.Equal(t, 10*len(samples), samples[len(samples)-1].Step)
		require.Equal(t, memlayer.PerStep, w.Verdict().Per)
	})
}

func TestWatchOfNothing(t *testing.T) {
	w := Watch(t.Context(), Options{PID: -1})
	require.ErrorIs(t, w.Stop(), os.ErrProcessDone)
	v := w.Verdict()
	require.Equal(t, Inconclusive, v.Kind)
	require.Contains(t, v.String(), "process already finished")
	require.Empty(t, watched(w).Samples())
}
