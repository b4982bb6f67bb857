package memlayer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAmount(t *testing.T) {
	require.True(t, InBytes(Peak))
	require.False(t, InBytes(LiveCount))
	require.False(t, InBytes(StepTime))
	require.Equal(t, "1.0 KiB", Amount(Peak, 1024))
	require.Equal(t, "17", Amount(Threads, 17))
	require.Equal(t, "1.5ms", Amount(StepTime, 1_500_000))
}

func TestRate(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		layer, per string
		slope      float64
		bounds     []float64
		want       string
	}{
		{Peak, PerStep, 4.6 * mib, []float64{4.5 * mib, 4.7 * mib}, "+4.6 MiB/step [4.5, 4.7]"},
		{Peak, PerMinute, 100, []float64{-3072, 4096}, "+0.1 KiB/min [-3.0, 4.0]"},
		{Peak, "", 100, nil, "+100 B/step"},
		{Peak, PerStep, -3, []float64{-6.4, 0.2}, "-3.0 B/step [-6.4, 0.2]"},
		{Peak, PerStep, -0.001, []float64{-20, 20}, "0.0 B/step [-20.0, 20.0]"},
		{Threads, PerStep, 0.5, []float64{0.25, 1}, "+0.5/step [0.2, 1.0]"},
	} {
		require.Equal(t, test.want, Rate(test.layer, test.per, test.slope, test.bounds...))
	}
}
