package memory

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
)

func appendAll(s *Series, n int, value func(i int) Bytes) {
	start := time.Unix(1_700_000_000, 0)
	var sample Sample
	for i := range n {
		sample.Step, sample.At = i, start.Add(time.Duration(i)*time.Second)
		sample.Set(RSS, Known(value(i)))
		s.Append(&sample)
	}
}

func TestSeriesIsBounded(t *testing.T) {
	s := &Series{Keep: 100}
	appendAll(s, 100_000, func(i int) Bytes { return Bytes(i) })
	require.Equal(t, 100_000, s.Total())
	require.LessOrEqual(t, len(s.Samples()), 101)
	require.GreaterOrEqual(t, len(s.Samples()), 50)
	samples := s.Samples()
	require.Equal(t, 0, samples[0].Step, "the first sample stays")
	require.Equal(t, 99_999, samples[len(samples)-1].Step, "so does the latest")
	gap := 0
	for i := range samples {
		require.Equal(t, Known(Bytes(samples[i].Step)), samples[i].Get(RSS), "a kept value belongs to its step")
		if i > 0 {
			require.Greater(t, samples[i].Step, samples[i-1].Step)
			gap = max(gap, samples[i].Step-samples[i-1].Step)
		}
	}
	require.LessOrEqual(t, gap, 2*2048+1, "kept samples are spread evenly")
	require.Equal(t, Known(99_999), s.Max(RSS))
	require.Equal(t, []Layer{RSS}, s.layers)
}

func TestSeriesRemembersExtremesThatItDropped(t *testing.T) {
	s := &Series{Keep: 64}
	appendAll(s, 5000, func(i int) Bytes {
		if i == 4321 {
			return 1 << 40
		}
		return 1000
	})
	require.Equal(t, Known(1<<40), s.Max(RSS))
	require.Equal(t, Reading{}, s.Max(memlayer.Swap))
}

// Taking exactly each n-th sample of a sawtooth gives a slow wave, which looks like growth.
func TestThinningKeepsASawtooth(t *testing.T) {
	for _, period := range []int{1024, 1027, 513, 258} {
		s := &Series{Keep: 128}
		appendAll(s, 60_000, func(i int) Bytes { return 100*MiB + Bytes(i%period)*10*MiB/Bytes(period) })
		v := s.Judge(Criteria{})
		require.Contains(t, []Kind{Flat, Sawtooth}, v.Kind, "period %d: %v", period, v)
	}
}

func TestThinningKeepsTheSlope(t *testing.T) {
	m := newMaker(3, 0)
	noise := m.noise("heavy-tailed", 50_000, 1e6)
	s := &Series{Keep: 128}
	appendAll(s, len(noise), func(i int) Bytes { return 1000*MiB + Bytes(500*float64(i)+noise[i]) })
	v := s.Judge(Criteria{})
	require.Equal(t, Leak, v.Kind, v)
	require.Less(t, v.Slope.Low, 500.0)
	require.Greater(t, v.Slope.High, 500.0)
	require.InEpsilon(t, 500, v.Slope.Estimate, 0.1)
}

func TestSeriesDropsWhatGoesBack(t *testing.T) {
	var s Series
	now := time.Unix(1_700_000_000, 0)
	s.Append(&Sample{Step: 5, At: now})
	s.Append(&Sample{Step: 4, At: now.Add(time.Second)})
	s.Append(&Sample{Step: 6, At: now.Add(-time.Second)})
	require.Equal(t, 1, s.Total())
}

func TestSeriesJSON(t *testing.T) {
	s := &Series{Keep: 64}
	start := time.Unix(1_700_000_000, 0).UTC()
	for i := range 200 {
		sample := Sample{Step: 2 * i, At: start.Add(time.Duration(i) * time.Millisecond)}
		sample.Set(RSS, Known(Bytes(i)*page))
		if i >= 100 {
			sample.Set(memlayer.GPUUsed, Known(7))
		}
		sample.Set(memlayer.Swap, Reading{})
		s.Append(&sample)
	}
	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.Contains(t, string(text), `null`)
	var back Series
	require.NoError(t, json.Unmarshal(text, &back))
	again, err := json.Marshal(&back)
	require.NoError(t, err)
	require.JSONEq(t, string(text), string(again))
	require.Equal(t, s.Judge(Criteria{Layer: RSS}).Slope, back.Judge(Criteria{Layer: RSS}).Slope)
	require.Equal(t, Known(199*page), back.Max(RSS))
	back.Append(&Sample{Step: 1000, At: start.Add(time.Hour)})
	require.Equal(t, 201, back.Total())

	empty, err := json.Marshal(&Series{})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(empty, &back))
	require.Empty(t, back.Samples())
	for _, bad := range []string{
		`[]`, `{"steps": [1], "seconds": []}`, `{"samples": 1, "steps": [1], "seconds": [0], "layers": {"rss": []}}`,
		`{"samples": 0, "steps": [1], "seconds": [0]}`,
	} {
		require.ErrorIs(t, json.Unmarshal([]byte(bad), &back), errSeries, bad)
	}
}
