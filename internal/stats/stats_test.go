package stats

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, Median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, Median([]float64{4, 1, 3, 2}))
	require.Equal(t, 7.0, Median([]float64{7}))
	require.True(t, math.IsNaN(Median(nil)))
	require.Equal(t, 5.0, Median([]float64{5, 5, 5, 5, 5, 5}))
}

func TestSlopes(t *testing.T) {
	s := NewSlopes([]float64{0, 1, 2, 4})
	require.Equal(t, 3.0, s.Median([]float64{1, 4, 7, 13}))
	require.Equal(t, 3.0, s.Median([]float64{1, 4, 100, 13}), "an outlier does not move it")
	require.True(t, math.IsNaN(NewSlopes([]float64{1}).Median([]float64{1})))
}

func TestMean(t *testing.T) {
	// Student's t for 95% and 4 degrees of freedom is 2.7764; the deviation is 1.5811.
	mean, low, high := Mean([]float64{1, 2, 3, 4, 5}, 0.95)
	require.InDelta(t, 3, mean, 1e-12)
	require.InDelta(t, 3-1.9632, low, 1e-4)
	require.InDelta(t, 3+1.9632, high, 1e-4)
	mean, low, high = Mean([]float64{7}, 0.95)
	require.Equal(t, []float64{7, math.Inf(-1), math.Inf(1)}, []float64{mean, low, high})
	mean, _, _ = Mean(nil, 0.95)
	require.True(t, math.IsNaN(mean))
}

func TestMedianRatio(t *testing.T) {
	ratio, low, high := MedianRatio([]float64{1, 2, 9}, []float64{2, 2, 3})
	require.Equal(t, []float64{1, 0.5, 3}, []float64{ratio, low, high})
	ratio, low, high = MedianRatio([]float64{1, 2, 3, 4, 5, 6, 7, 80}, []float64{1, 1, 1, 1, 1, 1, 1, 1})
	require.Equal(t, []float64{4.5, 2, 7}, []float64{ratio, low, high}, "the outermost are left out")
}
