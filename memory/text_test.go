package memory

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRate(t *testing.T) {
	mib := float64(MiB)
	for _, test := range []struct {
		layer  Layer
		slope  Interval
		per    Per
		bounds bool
		want   string
	}{
		{Anon, Interval{4.6 * mib, 4.5 * mib, 4.7 * mib}, PerStep, true, "+4.6 MiB/step [4.5, 4.7]"},
		{Anon, Interval{100, -3072, 4096}, PerMinute, true, "+0.1 KiB/min [-3.0, 4.0]"},
		{Anon, Interval{100, -3072, 4096}, "", false, "+100 B/step"},
		{Anon, Interval{-3, -6.4, 0.2}, PerStep, true, "-3.0 B/step [-6.4, 0.2]"},
		{Anon, Interval{-0.001, -20, 20}, PerStep, true, "0.0 B/step [-20.0, 20.0]"},
		{Threads, Interval{0.5, 0.25, 1}, PerStep, true, "+0.5/step [0.2, 1.0]"},
	} {
		require.Equal(t, test.want, Rate(test.layer, test.slope, test.per, test.bounds))
	}
}

func TestTimes(t *testing.T) {
	for _, test := range []struct {
		ratio Ratio
		want  string
	}{
		{Ratio{}, "unknown"},
		{Ratio{Interval: Interval{0.52, 0.49, 0.55}, OK: true}, "x0.52 [0.49, 0.55]"},
		{Ratio{Interval: Interval{-0.001, -0.02, 0.004}, OK: true}, "x0 [-0.02, 0]"},
		{Ratio{Interval: Interval{0.004, 0.0034, 0.011}, OK: true}, "x0.004 [0.003, 0.01]"},
		{Ratio{Interval: Interval{19.84, 9.99, 123456}, OK: true}, "x19.8 [9.99, 1.2e+05]"},
		{Ratio{Interval: Interval{1, 0, math.MaxFloat64}, OK: true, Unbounded: true}, "x1.00 [0, inf]"},
		{Ratio{Interval: Interval{1, 0, math.MaxFloat64}, OK: true}, "x1.00 [0, inf]"},
	} {
		require.Equal(t, test.want, test.ratio.Times(true))
	}
	require.Equal(t, "x19.8", Ratio{Interval: Interval{Estimate: 19.8}, OK: true}.Times(false))
}

// Amounts below their precision give no upper bound. JSON then contains a number and "unbounded".
func TestUnboundedRatio(t *testing.T) {
	of := func(peak Bytes) Outcome { return Outcome{Verdict: Verdict{Kind: Flat}, Peak: Known(peak)} }
	for _, test := range []struct {
		peak Bytes
		want bool
	}{{1, true}, {GiB, false}} {
		pair := Pair{of(test.peak), of(test.peak)}
		r := Compare([]Pair{pair, pair}, LowerPeak, 1).Peak
		require.True(t, r.OK)
		require.Equal(t, test.want, r.Unbounded)
		text, err := json.Marshal(r)
		require.NoError(t, err)
		require.Equal(t, test.want, strings.Contains(string(text), `"unbounded":true`), "%s", text)
		var back Ratio
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, r, back)
	}
}
