package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// arm makes the outcomes of n runs with noise of 3%.
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
	}
}

func TestCompareStepTime(t *testing.T) {
	m := newMaker(1, 2)
	c := Compare(pairUp(arm(m, 5, Leak, 1e6, 1e9, 1e6), arm(m, 5, Flat, 0, 1e9, 1.5e6)), LowerSlope, 1)
	require.InEpsilon(t, 1.5, c.StepTime.Estimate, 0.06)
	require.Less(t, c.StepTime.Low, 1.5)
	require.Greater(t, c.StepTime.High, 1.5)
	require.Regexp(t, `^works: the slope is .* times that without it \[.*\]; step time x1\.\d\d \[1\.\d\d, 1\.\d\d\]; 5 pairs$`, c.String())
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
	require.Contains(t, c.Reason, "5 of 5 runs with it died, and 5 without it")
	c = Compare(nil, LowerPeak, 1)
	require.Equal(t, Unclear, c.Effect, c)
}

// With 5 pairs that differ by 3% the interval should hold the truth in about 95
// of 100 comparisons.
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

func TestOutcome(t *testing.T) {
	s := layered(100, map[Layer]func(int) float64{
		Anon: func(int) float64 { return mib }, Peak: func(i int) float64 { return mib * float64(i) },
		StepTime: func(i int) float64 { return 1000 + float64(i%3) },
	})
	o := s.Outcome(s.Judge(Criteria{}))
	require.Equal(t, Known(99*MiB), o.Peak)
	require.Equal(t, Known(1001), o.StepTime)
	require.False(t, o.Reset.OK)
	s = layered(20, map[Layer]func(int) float64{RSS: func(int) float64 { return mib }})
	o = s.Outcome(s.Judge(Criteria{}))
	require.Equal(t, Known(MiB), o.Peak)
	require.False(t, o.StepTime.OK)
}
