package compare

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// workload returns the variants of a workload as the matrix runs them: groups of 8 remedies that share
// the runs without a remedy. The remedies have no effect; deviation returns the scatter of the runs
// with a remedy.
func workload(m maker, arms, pairs int, deviation func(arm int) float64) []Variant {
	list := make([]Variant, arms)
	var base []Outcome
	for i := range list {
		run := func(deviation float64) Outcome {
			return Outcome{
				Verdict: memory.Verdict{Kind: memory.Flat},
				Peak:    memory.Known(memory.Bytes(1e9 * math.Exp(deviation*m.NormFloat64()))),
			}
		}
		if i%8 == 0 {
			base = nil
			for range pairs {
				base = append(base, run(deviation(0)))
			}
		}
		list[i].Group = i / 8
		for _, b := range base {
			list[i].Pairs = append(list[i].Pairs, Pair{b, run(deviation(i))})
		}
	}
	return list
}

// rounds returns the number of workloads to simulate, and whether it suffices to measure how often an
// interval misses the truth.
func rounds() (n int, rates bool) {
	if raceEnabled || testing.Short() {
		return 15, false
	}
	return 300, true
}

// Intervals contain the truth as often as their confidence states, whether or not all remedies scatter
// alike, and are narrower than intervals from three pairs alone.
//
//lane:skip check (long)
func TestScatterCovers(t *testing.T) {
	rounds, rates := rounds()
	for _, c := range []struct {
		name     string
		pairs    int
		arms     int
		differ   float64 // standard deviation of the logarithm of a variant's deviation
		misses   float64 // maximum share of intervals that miss the truth
		narrower float64 // maximum ratio of the median width to that of three pairs alone
	}{
		{"alike", 3, 25, 0, 0.06, 0.7},

		{"alike, the fewest", 3, commonVariants, 0, 0.06, 0.75},
		{"somewhat alike", 3, 25, 0.5, 0.065, 0.75},
		{"of all kinds", 3, 25, 1.5, 0.08, 0.9},
		{"five pairs", 5, 25, 0.5, 0.065, 0.95},
	} {
		m := newMaker(3, c.arms)
		misses, plain, n := 0, 0, 0
		var widths, before []float64
		for range rounds {
			deviations := make([]float64, c.arms)
			for i := range deviations {
				deviations[i] = 0.03 * math.Exp(c.differ*m.NormFloat64())
			}
			arms := workload(m, c.arms, c.pairs, func(i int) float64 { return deviations[i] })
			s := ScatterOf(arms, 1)
			for _, a := range arms {
				with, without := s.Compare(a.Pairs, LowerPeak, 1).Peak, Runs(a.Pairs, LowerPeak, 1).Peak
				if with.Low > 1 || with.High < 1 {
					misses++
				}
				if without.Low > 1 || without.High < 1 {
					plain++
				}
				require.Equal(t, c.arms, with.Pooled)
				widths, before = append(widths, with.High-with.Low), append(before, without.High-without.Low)
				n++
			}
		}
		narrower := stats.Median(widths) / stats.Median(before)
		t.Logf("%s: %.1f%% of %d intervals miss the truth, %.1f%% of those of the pairs alone; %.2f as wide",
			c.name, 100*float64(misses)/float64(n), n, 100*float64(plain)/float64(n), narrower)
		if rates {
			require.LessOrEqual(t, float64(misses)/float64(n), c.misses, c.name)
			require.LessOrEqual(t, narrower, c.narrower, c.name)
		}
	}
}

// Remedies that scatter ten times as much as the others must not get narrow intervals.
func TestScatterOfTwoKinds(t *testing.T) {
	rounds, rates := rounds()
	m := newMaker(3, 100)
	misses, n := 0, 0
	for range rounds {
		arms := workload(m, 24, 3, func(i int) float64 {
			if i%4 == 1 {
				return 0.1
			}
			return 0.01
		})
		s := ScatterOf(arms, 1)
		for i, a := range arms {
			if i%4 == 1 {
				if r := s.Compare(a.Pairs, LowerPeak, 1).Peak; r.Low > 1 || r.High < 1 {
					misses++
				}
				n++
			}
		}
	}
	t.Logf("%.1f%% of %d intervals of the noisy ones miss the truth", 100*float64(misses)/float64(n), n)
	if rates {
		require.LessOrEqual(t, float64(misses)/float64(n), 0.15)
	}
}

func commonOf(s Scatter, goal Goal) common {
	return s.common[slices.IndexFunc(amounts, func(a amount) bool { return a.goal == goal })]
}

func TestScatterKnowsNothing(t *testing.T) {
	m := newMaker(3, 200)
	alike := func(int) float64 { return 0.03 }
	arms := workload(m, commonVariants, 3, alike)
	for _, few := range [][]Variant{nil, arms[1:], {{}, {}, {}, {}, {}}} {
		require.Zero(t, ScatterOf(few, 1))
	}
	require.Equal(t, Runs(arms[0].Pairs, LowerPeak, 1), Scatter{}.Compare(arms[0].Pairs, LowerPeak, 1))

	learnt := ScatterOf(arms, 1)
	require.NotZero(t, commonOf(learnt, LowerPeak))
	require.Zero(t, commonOf(learnt, LowerSlope), "no run leaks")
	require.Zero(t, commonOf(learnt, LowerReset), "not measured")
	require.Zero(t, ScatterOf(arms, 1).Compare(nil, LowerPeak, 1).Peak)

	// Crashed runs and amounts without scatter are left out.
	arms = append(arms, slices.Clone(workload(m, 1, 3, alike))...)
	for i := range arms[0].Pairs {
		arms[0].Pairs[i].Remedy.Verdict = Crashed("killed")
	}
	require.Equal(t, commonVariants, commonOf(ScatterOf(arms, 1), LowerPeak).variants)
	for i := range arms {
		for j := range arms[i].Pairs {
			arms[i].Pairs[j].Base.Verdict = memory.Verdict{Kind: memory.Leak, Slope: memory.Interval{Estimate: 1000}}
			arms[i].Pairs[j].Remedy.Verdict = memory.Verdict{Kind: memory.Leak, Slope: memory.Interval{Estimate: 1000}}
		}
	}
	require.Zero(t, commonOf(ScatterOf(arms, 1), LowerSlope), "slopes that are all the same have no deviation")
}

func TestInverseTrigamma(t *testing.T) {
	for _, x := range []float64{1e-3, 0.1, 0.5, 1, 2, 10, 1e3, 1e6} {
		require.InEpsilon(t, x, inverseTrigamma(trigamma(x)), 1e-6, fmt.Sprint(x))
	}
	require.InEpsilon(t, math.Pi*math.Pi/6, trigamma(1), 1e-12)
}

// Remedies that remove a slope do not affect remedies without effect, noise floors are not scatter, and
// the other intervals contain the truth.
func TestScatterOfSlopes(t *testing.T) {
	rounds, rates := rounds()
	for _, floor := range []float64{0, 2000} {
		m := newMaker(3, 300)
		misses, n := 0, 0
		var widths, before []float64
		for range rounds {
			var base []Outcome
			run := func(kind memory.Kind, slope, deviation float64) Outcome {
				// Student's t with 5 degrees of freedom has heavier tails than a normal distribution.
				z := m.NormFloat64()
				noise := m.NormFloat64() / math.Sqrt((2*m.ExpFloat64()+2*m.ExpFloat64()+z*z)/5)
				return Outcome{Verdict: memory.Verdict{Kind: kind, Slope: memory.Interval{Estimate: slope + deviation*noise},
					NoiseFloor: floor}}
			}
			arms := make([]Variant, 24)
			for i := range arms {
				if i%8 == 0 {
					base = nil
					for range 3 {
						base = append(base, run(memory.Leak, 10000, 300))
					}
				}
				arms[i].Group = i / 8
				for _, b := range base {
					with := run(memory.Leak, 8000, 300)
					if i%4 == 3 {
						with = run(memory.Flat, 0, 5)
					}
					arms[i].Pairs = append(arms[i].Pairs, Pair{b, with})
				}
			}
			s := ScatterOf(arms, 1)
			for i, a := range arms {
				with, alone := s.Compare(a.Pairs, LowerSlope, 1), Runs(a.Pairs, LowerSlope, 1)
				if i%4 == 3 {
					require.Equal(t, alone.Slope, with.Slope)
					require.Equal(t, Works, with.Effect)
					continue
				}
				require.Equal(t, 18, with.Slope.Pooled)
				if with.Slope.Low > 0.8 || with.Slope.High < 0.8 {
					misses++
				}
				widths, before = append(widths, with.Slope.High-with.Slope.Low), append(before, alone.Slope.High-alone.Slope.Low)
				n++
			}
		}
		t.Logf("floor %v: %.1f%% of %d intervals miss the truth; %.2f as wide", floor, 100*float64(misses)/float64(n), n,
			stats.Median(widths)/stats.Median(before))
		if rates {
			require.LessOrEqual(t, float64(misses)/float64(n), 0.075)
			require.LessOrEqual(t, stats.Median(widths)/stats.Median(before), 0.75)
		}
	}
}

// Amounts that come in large steps can have equal deviations.
func TestScatterThatIsTheSame(t *testing.T) {
	var arms []Variant
	for range commonVariants {
		var a Variant
		for i := range 3 {
			a.Pairs = append(a.Pairs, Pair{Outcome{GPU: memory.Known(1 << 30)},
				Outcome{GPU: memory.Known(memory.Bytes(1<<30 + i<<21))}})
		}
		arms = append(arms, a)
	}
	r := ScatterOf(arms, 1).Compare(arms[0].Pairs, LowerGPU, 1).GPU
	require.True(t, r.OK)
	require.Equal(t, commonVariants, r.Pooled)
	require.Less(t, r.High-r.Low, Runs(arms[0].Pairs, LowerGPU, 1).GPU.High-Runs(arms[0].Pairs, LowerGPU, 1).GPU.Low)
}
