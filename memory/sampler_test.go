package memory

import (
	"encoding/json"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSample(t *testing.T) {
	calls := 0
	s, err := NewSampler(SamplerOptions{Sources: []Source{func(add func(Layer, Reading)) {
		calls++
		add(LiveCount, Known(Bytes(calls)))
		add(TFUsed.Of("mklcpu"), Reading{})
	}}})
	require.NoError(t, err)
	defer s.Close()
	var sample Sample
	require.NoError(t, s.Sample(10, &sample))
	require.Equal(t, 10, sample.Step)
	require.False(t, sample.At.IsZero())
	for _, layer := range []Layer{RSS, GoHeap, goLive, goTotal, cleanupCount, goroutines, gcCycles} {
		require.True(t, sample.Get(layer).OK, layer)
	}
	require.Greater(t, sample.Get(GoHeap).Bytes, Bytes(0))
	require.GreaterOrEqual(t, sample.Get(goroutines).Bytes, Bytes(1))
	require.Equal(t, Known(1), sample.Get(LiveCount))
	require.Contains(t, sample.Values, Value{Layer: TFUsed.Of("mklcpu")})
	require.False(t, sample.Get(StepTime).OK, "there was no sample before")
	require.False(t, sample.Get("no such layer").OK)

	layers := len(sample.Values)
	require.NoError(t, s.Sample(14, &sample))
	require.Len(t, sample.Values, layers)
	require.Equal(t, Known(2), sample.Get(LiveCount))
	require.True(t, sample.Get(StepTime).OK)

	require.NoError(t, s.Sample(14, &sample))
	require.False(t, sample.Get(StepTime).OK, "no step was done")
}

func TestSampleSeesTheGoHeapGrow(t *testing.T) {
	s, err := NewSampler(SamplerOptions{})
	require.NoError(t, err)
	defer s.Close()
	var before, after Sample
	require.NoError(t, s.Sample(0, &before))
	block := make([]byte, 32*MiB)
	require.NoError(t, s.Sample(1, &after))
	runtime.KeepAlive(block)
	require.Greater(t, after.Get(GoHeap).Bytes-before.Get(GoHeap).Bytes, 16*MiB)
}

func TestSampleDoesNotAllocate(t *testing.T) {
	s, err := NewSampler(SamplerOptions{PSS: true, Sources: []Source{func(add func(Layer, Reading)) {
		add(LiveBytes, Known(1))
	}}})
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
	sample.Set(pss, Reading{})
	text, err := json.Marshal(sample)
	require.NoError(t, err)
	require.JSONEq(t, `{"step": 3, "at": "0001-01-01T00:00:00Z", "values": {"rss": 8192, "pss": null}}`, string(text))
	var back Sample
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, []Value{{pss, Reading{}}, {RSS, Known(8192)}}, back.Values)
	require.Error(t, json.Unmarshal([]byte(`{"step": "x"}`), &back))
}

func TestLayers(t *testing.T) {
	require.Equal(t, Layer("tensorflow used (mklcpu)"), TFUsed.Of("mklcpu"))
	require.Equal(t, TFUsed, TFUsed.Of("mklcpu").Whole())
	require.Equal(t, TFUsed, TFUsed.Whole())
	require.Equal(t, inBytes, RSS.unit())
	require.Equal(t, inCount, LiveCount.Of("tensor").unit())
	require.Equal(t, inNanoseconds, StepTime.unit())
	require.Equal(t, "1.0 KiB", RSS.amount(1024))
	require.Equal(t, "17", Threads.amount(17))
	require.Equal(t, "1.5ms", StepTime.amount(1_500_000))
	require.Equal(t, "unknown", Reading{}.String())
}

// BenchmarkSample measures a sample with all default layers. It should take less than 75 us: 1% of 50
// steps of 150 us.
func BenchmarkSample(b *testing.B) {
	for _, c := range []struct {
		name    string
		options SamplerOptions
	}{{"default", SamplerOptions{}}, {"pss", SamplerOptions{PSS: true}}} {
		b.Run(c.name, func(b *testing.B) {
			s, err := NewSampler(c.options)
			require.NoError(b, err)
			defer s.Close()
			var sample Sample
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Sample(0, &sample); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkJudge measures the verdict on a full series of one layer.
func BenchmarkJudge(b *testing.B) {
	m := newMaker(1, 1)
	c := course{y: m.noise("gaussian", 2000, 1e6), step: 1}.tilt(1e4)
	series := c.series()
	for b.Loop() {
		series.Judge(Criteria{})
	}
}
