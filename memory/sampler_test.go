package memory

import (
	"encoding/json"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
)

func TestSample(t *testing.T) {
	calls := 0
	s, err := NewSampler(0, func(add func(Layer, Reading)) {
		calls++
		add(memlayer.LiveCount, Known(Bytes(calls)))
		add(memlayer.MallocArenas, Reading{})
	})
	require.NoError(t, err)
	defer s.Close()
	var sample Sample
	require.NoError(t, s.Sample(10, &sample))
	require.Equal(t, 10, sample.Step)
	require.False(t, sample.At.IsZero())
	for _, layer := range []Layer{RSS, memlayer.GoHeap, memlayer.GoLive, memlayer.GoTotal, memlayer.CleanupCount,
		memlayer.Goroutines, memlayer.GCCycles} {
		require.True(t, sample.Get(layer).OK, layer)
	}
	require.Greater(t, sample.Get(memlayer.GoHeap).Bytes, Bytes(0))
	require.GreaterOrEqual(t, sample.Get(memlayer.Goroutines).Bytes, Bytes(1))
	require.Equal(t, Known(1), sample.Get(memlayer.LiveCount))
	require.Contains(t, sample.Values, Value{Layer: memlayer.MallocArenas})
	require.False(t, sample.Get(memlayer.StepTime).OK, "there was no sample before")
	require.False(t, sample.Get("no such layer").OK)

	layers := len(sample.Values)
	require.NoError(t, s.Sample(14, &sample))
	require.Len(t, sample.Values, layers)
	require.Equal(t, Known(2), sample.Get(memlayer.LiveCount))
	require.True(t, sample.Get(memlayer.StepTime).OK)

	require.NoError(t, s.Sample(14, &sample))
	require.False(t, sample.Get(memlayer.StepTime).OK, "no step was done")
}

func TestSampleSeesTheGoHeapGrow(t *testing.T) {
	s, err := NewSampler(0)
	require.NoError(t, err)
	defer s.Close()
	var before, after Sample
	runtime.GC() // otherwise the garbage of earlier tests would be freed during this test
	require.NoError(t, s.Sample(0, &before))
	block := make([]byte, 32*MiB)
	require.NoError(t, s.Sample(1, &after))
	runtime.KeepAlive(block)
	require.Greater(t, after.Get(memlayer.GoHeap).Bytes-before.Get(memlayer.GoHeap).Bytes, 16*MiB)
}

func TestSampleDoesNotAllocate(t *testing.T) {
	s, err := NewSampler(0, func(add func(Layer, Reading)) {
		add(memlayer.LiveBytes, Known(1))
	})
	require.NoError(t, err)
	defer s.Close()
	var sample Sample
	series := Series{Keep: 64}
	step := 0
	take := func() {
		if err := s.Sample(step, &sample); err != nil {
			t.Error(err)
		}
		series.Append(&sample)
		step++
	}
	for range 100 {
		take()
	}
	require.Zero(t, testing.AllocsPerRun(20, take), "a sample that is filled again, and a series that has been thinned")
}

func TestSampleJSON(t *testing.T) {
	sample := Sample{Step: 3}
	sample.Set(RSS, Known(4096))
	sample.Set(RSS, Known(8192))
	sample.Set(memlayer.Swap, Reading{})
	text, err := json.Marshal(sample)
	require.NoError(t, err)
	require.JSONEq(t, `{"step": 3, "at": "0001-01-01T00:00:00Z", "values": {"rss": 8192, "swap": null}}`, string(text))
	var back Sample
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, []Value{{RSS, Known(8192)}, {memlayer.Swap, Reading{}}}, back.Values)
	require.Error(t, json.Unmarshal([]byte(`{"step": "x"}`), &back))
}
