package memory

import (
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
