package memory

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// arm returns the outcomes of n runs with noise of 3%.
func arm(m maker, n int, kind Kind, slope, peak, step float64) []Outcome {
	list := make([]Outcome, n)
	for i := range list {
		around := func(v float64) float64 { return v * (1 + 0.03*m.NormFloat64()) }
		list[i] = Outcome{
			Verdict:  Verdict{Kind: kind, Slope: Interval{Estimate: around(slope)}},
			Peak:     Known(Bytes(around(peak))),
			StepTime: Known(Bytes(around(step))),
		}
	}
	return list
}

func pairUp(base, remedy []Outcome) []Pair {
	pairs := make([]Pair, len(base))
	for i := range pairs {
		pairs[i] = Pair{base[i], remedy[i]}
	}
	return pairs
}

func TestCompare(t *testing.T) {
	m := newMaker(1, 1)
	for _, c := range []struct {
		name   string
		goal   Goal
		base   []Outcome
		remedy []Outcome
		want   Effect
	}{
		{"gone", LowerSlope, arm(m, 5, Leak, 1e6, 1e9, 1e6), arm(m, 5, Flat, 1e3, 1e9, 1.5e6), Works},
		{"flat, with noise of a third", LowerSlope, arm(m, 5, Leak, 1e6, 1e9, 1e6), arm(m, 5, Flat, 2e5, 1e9, 1e6), Works},
		{"halved", LowerSlope, arm(m, 5, Leak, 1e6, 1e9, 1e6), arm(m, 5, Leak, 5e5, 1e9, 1e6), Partly},
		{"the same", LowerSlope, arm(m, 5, Leak, 1e6, 1e9, 1e6), arm(m, 5, Leak, 1e6, 1e9, 1e6), NoEffect},
		{"worse", LowerSlope, arm(m, 5, Leak, 1e6, 1e9, 1e6), arm(m, 5, Leak, 2e6, 1e9, 1e6), Harmful},
		{"no leak to cure", LowerSlope, arm(m, 5, Plateau, 10, 1e9, 1e6), arm(m, 5, Plateau, 10, 1e9, 1e6), NotApplicable},
		{"half the peak", LowerPeak, arm(m, 5, Flat, 0, 1e9, 1e6), arm(m, 5, Flat, 0, 5e8, 1e6), Works},
		{"a tenth off the peak", LowerPeak, arm(m, 9, Flat, 0, 1e9, 1e6), arm(m, 9, Flat, 0, 9e8, 1e6), Partly},
		{"a third more", LowerPeak, arm(m, 5, Flat, 0, 1e9, 1e6), arm(m, 5, Flat, 0, 1.33e9, 1e6), Harmful},
		{"never measured", LowerReset, arm(m, 5, Flat, 0, 1e9, 1e6), arm(m, 5, Flat, 0, 1e9, 1e6), Unclear},
		{"half the peak, and a leak", LowerPeak, arm(m, 5, Flat, 0, 1e9, 1e6), arm(m, 5, Leak, 1e6, 5e8, 1e6), Harmful},
		{"half the peak, and perhaps a leak", LowerPeak, arm(m, 5, Plateau, 0, 1e9, 1e6), slices.Concat(arm(m, 1, Leak, 1e6, 5e8, 1e6), arm(m, 2, Inconclusive, 1e6, 5e8, 1e6), arm(m, 2, Flat, 0, 5e8, 1e6)), Unclear},
		{"half the peak, and nobody can tell", LowerPeak, arm(m, 5, Plateau, 0, 1e9, 1e6), arm(m, 5, Inconclusive, 1e6, 5e8, 1e6), Works},
		{"half the peak, and half the growth", LowerPeak, slices.Concat(arm(m, 2, Leak, 2e6, 1e9, 1e6), arm(m, 3, Plateau, 2e6, 1e9, 1e6)), arm(m, 5, Leak, 1e6, 5e8, 1e6), Works},
		{"half the peak of what may leak", LowerPeak, arm(m, 5, Inconclusive, 1e6, 1e9, 1e6), arm(m, 5, Inconclusive, 1e6, 5e8, 1e6), Works},
		{"one pair", LowerPeak, arm(m, 1, Flat, 0, 1e9, 1e6), arm(m, 1, Flat, 0, 5e8, 1e6), Unclear},
		{"none", LowerPeak, nil, nil, Unclear},
	} {
		got := Compare(pairUp(c.base, c.remedy), c.goal, 1)
		require.Equal(t, c.want, got.Effect, "%s: %v", c.name, got)
		require.NotEmpty(t, got.Reason, c.name)
		require.Equal(t, got, Compare(pairUp(c.base, c.remedy), c.goal, 1), "the same pairs give the same")
		if got.Effect == Unclear {
			require.Positive(t, got.More)
		}
		require.Equal(t, c.name == "half the peak, and perhaps a leak" || c.name == "half the peak, and nobody can tell", strings.Contains(got.Reason, "but memory may grow"), got.Reason)
	}
}

func TestCompareStepTime(t *testing.T) {
	m := newMaker(1, 2)
	c := Compare(pairUp(arm(m, 5, Leak, 1e6, 1e9, 1e6), arm(m, 5, Flat, 0, 1e9, 1.5e6)), LowerSlope, 1)
	require.InEpsilon(t, 1.5, c.StepTime.Estimate, 0.06)
	require.Less(t, c.StepTime.Low, 1.5)
	require.Greater(t, c.StepTime.High, 1.5)
	require.Regexp(t, `^works: the slope is x.* \[.*\] of that without it; step time x1\.\d\d \[1\.\d\d, 1\.\d\d\]; 5 pairs$`, c.String())
	require.Equal(t, "could not apply: no GPU; 0 pairs", Comparison{Effect: CouldNotApply, Reason: "no GPU"}.String())
}

func TestCompareCrashes(t *testing.T) {
	m := newMaker(1, 3)
	crashed := make([]Outcome, 5)
	for i := range crashed {
		crashed[i].Verdict = Crashed("killed for lack of memory")
	}
	alive := arm(m, 5, Flat, 0, 1e9, 1e6)
	c := Compare(pairUp(crashed, alive), LowerPeak, 1)
	require.Equal(t, Works, c.Effect, c)
	require.Equal(t, 5, c.BaseCrashes)
	c = Compare(pairUp(alive, crashed), LowerPeak, 1)
	require.Equal(t, Harmful, c.Effect, c)
	require.Contains(t, c.Reason, "killed for lack of memory")
	c = Compare(pairUp(crashed, crashed), LowerPeak, 1)
	require.Equal(t, NoEffect, c.Effect, c)
	require.Contains(t, c.Reason, "5 of 5 runs with it crashed, and 5 without it")
	c = Compare(nil, LowerPeak, 1)
	require.Equal(t, Unclear, c.Effect, c)
}

// With 5 pairs that differ by 3%, about 95% of the intervals must contain the truth.
func TestCompareCovers(t *testing.T) {
	m := newMaker(1, 4)
	const n = 200
	misses, wrong := 0, 0
	for range n {
		c := Compare(pairUp(arm(m, 5, Flat, 0, 1e9, 1e6), arm(m, 5, Flat, 0, 1e9, 1e6)), LowerPeak, 1)
		if c.Peak.Low > 1 || c.Peak.High < 1 {
			misses++
		}
		if c.Effect != NoEffect && c.Effect != Unclear {
			wrong++
		}
	}
	t.Logf("%d of %d intervals miss the truth, %d effects are wrong", misses, n, wrong)
	require.LessOrEqual(t, misses, n/10)
	require.LessOrEqual(t, wrong, n/50)
}

// Two pairs have only three different bootstrap draws, so the quartiles of the slopes were often
// equal. The interval must not be that narrow.
func TestCompareFewPairs(t *testing.T) {
	m := newMaker(1, 5)
	const rounds = 400
	for n := 2; n <= 5; n++ {
		misses, none := 0, 0
		for range rounds {
			c := Compare(pairUp(arm(m, n, Leak, 1e6, 1e9, 1e6), arm(m, n, Leak, 5e5, 1e9, 1e6)), LowerSlope, 1)
			for _, r := range []struct {
				Ratio
				truth float64
			}{{c.Slope, 0.5}, {c.Peak, 1}, {c.StepTime, 1}} {
				if r.High <= r.Low {
					none++
				}
				if r.Low > r.truth || r.High < r.truth {
					misses++
				}
			}
		}
		t.Logf("%d pairs: %.1f%% of %d intervals miss the truth", n, 100*float64(misses)/(3*rounds), 3*rounds)
		require.Zero(t, none, "%d pairs", n)
		require.LessOrEqual(t, misses, 3*rounds*8/100, "%d pairs", n)
	}

	// The precision of the measurements also bounds the intervals of equal pairs.
	one := Outcome{Verdict: Verdict{Kind: Leak, NoiseFloor: 100, Slope: Interval{Estimate: 1000}}, Peak: Known(GiB), StepTime: Known(1e6)}
	c := Compare([]Pair{{one, one}, {one, one}}, LowerSlope, 1)
	for _, r := range []Ratio{c.Slope, c.Peak, c.StepTime} {
		require.Equal(t, 1.0, r.Estimate)
		require.Less(t, r.Low, 1.0)
		require.Greater(t, r.High, 1.0)
	}
	require.InDelta(t, 1-12.7*100/2.576/1000, c.Slope.Low, 0.01)
}

func TestCompareGPU(t *testing.T) {
	on := func(list []Outcome, b Bytes) []Outcome {
		for i := range list {
			list[i].GPU = Known(b + Bytes(i)*MiB)
		}
		return list
	}
	m := newMaker(1, 6)
	c := Compare(pairUp(on(arm(m, 5, Flat, 0, 1e9, 1e6), 8*GiB), on(arm(m, 5, Flat, 0, 1e9, 1e6), 2*GiB)), LowerGPU, 1)
	require.Equal(t, Works, c.Effect, c)
	require.InEpsilon(t, 0.25, c.GPU.Estimate, 0.01)
	require.Contains(t, c.Reason, "peak of GPU memory")
	require.NotEqual(t, Works, c.Peak.Effect, "of the host's memory")

	c = Compare(pairUp(arm(m, 5, Flat, 0, 1e9, 1e6), arm(m, 5, Flat, 0, 1e9, 1e6)), LowerGPU, 1)
	require.Equal(t, Unclear, c.Effect, "no GPU was there")
	text, err := json.Marshal(c)
	require.NoError(t, err)
	require.NotContains(t, string(text), `"gpu":`, "what has no GPU is written as before")
	text, err = json.Marshal(Outcome{})
	require.NoError(t, err)
	require.NotContains(t, string(text), `"gpu"`)
	require.False(t, c.GPU.OK)
}

// If Leaks holds, Compare never answers that there is no slope to lower.
func TestLeaks(t *testing.T) {
	m := newMaker(1, 7)
	for leaks := range 5 {
		for flat := range 5 {
			for crashed := range 2 {
				base := append(arm(m, leaks, Leak, 1e6, 1e9, 1e6), arm(m, flat, Flat, 1, 1e9, 1e6)...)
				for range crashed {
					base = append(base, Outcome{Verdict: Crashed("killed")})
				}
				want := leaks > 0 && leaks >= flat
				require.Equal(t, want, Leaks(base), "%d leak, %d do not, %d crashed", leaks, flat, crashed)
				if leaks+flat < 2 {
					continue
				}
				c := Compare(pairUp(base, arm(m, len(base), Flat, 1, 1e9, 1e6)), LowerSlope, 1)
				require.Equal(t, want, c.Effect != NotApplicable, "%d leak, %d do not, %d crashed: %v", leaks, flat, crashed, c)
				require.Equal(t, want, c.Slope.OK)
			}
		}
	}
	require.False(t, Leaks(nil))
}

func TestOutcome(t *testing.T) {
	s := layered(100, map[Layer]func(int) float64{
		Anon: func(int) float64 { return mib }, Peak: func(i int) float64 { return mib * float64(i) },
		StepTime: func(i int) float64 { return 1000 + float64(i%3) }, GPUProcess: func(i int) float64 { return mib * float64(100-i) },
	})
	o := s.Outcome(s.Judge(Criteria{}))
	require.Equal(t, Known(99*MiB), o.Peak)
	require.Equal(t, Known(1001), o.StepTime)
	require.False(t, o.Reset.OK)
	require.Equal(t, Known(100*MiB), o.GPU)
	s = layered(20, map[Layer]func(int) float64{RSS: func(int) float64 { return mib }})
	o = s.Outcome(s.Judge(Criteria{}))
	require.Equal(t, Known(MiB), o.Peak)
	require.False(t, o.StepTime.OK)
	require.False(t, o.GPU.OK)
}

// Work between two samples counts as step time, but the sampling itself does not.
func TestStepTimeHasAllThatIsDone(t *testing.T) {
	const sampling, reset = 300 * time.Microsecond, time.Second
	series := func(process bool) *Series {
		s := &Series{}
		at := time.Unix(1_700_000_000, 0)
		for i := range 101 {
			sample := Sample{Step: 10 * i, At: at}
			sample.Set(Anon, Known(100*MiB))
			if i%20 != 19 || !process {
				sample.Set(StepTime, Known(Bytes(time.Millisecond)))
			}
			s.Append(&sample)
			at = at.Add(10*time.Millisecond + sampling)
			if i%20 == 18 && process {
				at = at.Add(reset)
			}
		}
		return s
	}
	plain, renewed := series(false), series(true)
	require.Equal(t, Known(Bytes(time.Millisecond)), plain.Outcome(plain.Judge(Criteria{})).StepTime)
	// Five renewals in 1,000 steps of a millisecond.
	require.InEpsilon(t, float64(6*time.Millisecond), float64(renewed.Outcome(renewed.Judge(Criteria{})).StepTime.Bytes), 0.01)
}
