package compare

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// arm returns the outcomes of n runs with noise of 3%.
func arm(m maker, n int, kind memory.Kind, slope, peak, step float64) []Outcome {
	list := make([]Outcome, n)
	for i := range list {
		around := func(v float64) float64 { return v * (1 + 0.03*m.NormFloat64()) }
		list[i] = Outcome{
			Verdict:  memory.Verdict{Kind: kind, Slope: memory.Interval{Estimate: around(slope)}},
			Peak:     memory.Known(memory.Bytes(around(peak))),
			StepTime: memory.Known(memory.Bytes(around(step))),
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
		{"gone", LowerSlope, arm(m, 5, memory.Leak, 1e6, 1e9, 1e6), arm(m, 5, memory.Flat, 1e3, 1e9, 1.5e6), Works},
		{"flat, with noise of a third", LowerSlope, arm(m, 5, memory.Leak, 1e6, 1e9, 1e6),
			arm(m, 5, memory.Flat, 2e5, 1e9, 1e6), Works},
		{"halved", LowerSlope, arm(m, 5, memory.Leak, 1e6, 1e9, 1e6), arm(m, 5, memory.Leak, 5e5, 1e9, 1e6), Partly},
		{"the same", LowerSlope, arm(m, 5, memory.Leak, 1e6, 1e9, 1e6), arm(m, 5, memory.Leak, 1e6, 1e9, 1e6), NoEffect},
		{"worse", LowerSlope, arm(m, 5, memory.Leak, 1e6, 1e9, 1e6), arm(m, 5, memory.Leak, 2e6, 1e9, 1e6), Harmful},
		{"no leak to cure", LowerSlope, arm(m, 5, memory.Plateau, 10, 1e9, 1e6), arm(m, 5, memory.Plateau, 10, 1e9, 1e6),
			NotApplicable},
		{"half the peak", LowerPeak, arm(m, 5, memory.Flat, 0, 1e9, 1e6), arm(m, 5, memory.Flat, 0, 5e8, 1e6), Works},
		{"a tenth off the peak", LowerPeak, arm(m, 9, memory.Flat, 0, 1e9, 1e6), arm(m, 9, memory.Flat, 0, 9e8, 1e6), Partly},
		{"a third more", LowerPeak, arm(m, 5, memory.Flat, 0, 1e9, 1e6), arm(m, 5, memory.Flat, 0, 1.33e9, 1e6), Harmful},
		{"never measured", LowerReset, arm(m, 5, memory.Flat, 0, 1e9, 1e6), arm(m, 5, memory.Flat, 0, 1e9, 1e6), Unclear},
		{"half the peak, and a leak", LowerPeak, arm(m, 5, memory.Flat, 0, 1e9, 1e6), arm(m, 5, memory.Leak, 1e6, 5e8, 1e6),
			Harmful},
		{"half the peak, and perhaps a leak", LowerPeak, arm(m, 5, memory.Plateau, 0, 1e9, 1e6),
			slices.Concat(arm(m, 1, memory.Leak, 1e6, 5e8, 1e6), arm(m, 2, memory.Inconclusive, 1e6, 5e8, 1e6),
				arm(m, 2, memory.Flat, 0, 5e8, 1e6)), Unclear},
		{"half the peak, and nobody can tell", LowerPeak, arm(m, 5, memory.Plateau, 0, 1e9, 1e6),
			arm(m, 5, memory.Inconclusive, 1e6, 5e8, 1e6), Works},
		{"half the peak, and half the growth", LowerPeak,
			slices.Concat(arm(m, 2, memory.Leak, 2e6, 1e9, 1e6), arm(m, 3, memory.Plateau, 2e6, 1e9, 1e6)),
			arm(m, 5, memory.Leak, 1e6, 5e8, 1e6), Works},
		{"half the peak of what may leak", LowerPeak, arm(m, 5, memory.Inconclusive, 1e6, 1e9, 1e6),
			arm(m, 5, memory.Inconclusive, 1e6, 5e8, 1e6), Works},
		{"one pair", LowerPeak, arm(m, 1, memory.Flat, 0, 1e9, 1e6), arm(m, 1, memory.Flat, 0, 5e8, 1e6), Unclear},
		{"none", LowerPeak, nil, nil, Unclear},
	} {
		got := Runs(pairUp(c.base, c.remedy), c.goal, 1)
		require.Equal(t, c.want, got.Effect, "%s: %v", c.name, got)
		require.NotEmpty(t, got.Reason, c.name)
		require.Equal(t, got, Runs(pairUp(c.base, c.remedy), c.goal, 1), "the same pairs give the same")
		require.Equal(t, c.name == "half the peak, and perhaps a leak" || c.name == "half the peak, and nobody can tell",
			strings.Contains(got.Reason, "but memory may grow"), got.Reason)
	}
}

func TestCompareStepTime(t *testing.T) {
	m := newMaker(1, 2)
	c := Runs(pairUp(arm(m, 5, memory.Leak, 1e6, 1e9, 1e6), arm(m, 5, memory.Flat, 0, 1e9, 1.5e6)), LowerSlope, 1)
	require.InEpsilon(t, 1.5, c.StepTime.Estimate, 0.06)
	require.Less(t, c.StepTime.Low, 1.5)
	require.Greater(t, c.StepTime.High, 1.5)
	require.Regexp(t, `^x1\.\d\d \[1\.\d\d, 1\.\d\d\]$`, c.StepTime.Times(true))
	require.Equal(t, Works, c.Effect)
	require.Regexp(t, `^the slope is x.* \[.*\] of that without it$`, c.Reason)
}

func TestCompareCrashes(t *testing.T) {
	m := newMaker(1, 3)
	crashed := make([]Outcome, 5)
	for i := range crashed {
		crashed[i].Verdict = Crashed("killed for lack of memory")
	}
	alive := arm(m, 5, memory.Flat, 0, 1e9, 1e6)
	c := Runs(pairUp(crashed, alive), LowerPeak, 1)
	require.Equal(t, Works, c.Effect, c)
	require.Equal(t, 5, c.BaseCrashes)
	c = Runs(pairUp(alive, crashed), LowerPeak, 1)
	require.Equal(t, Harmful, c.Effect, c)
	require.Contains(t, c.Reason, "killed for lack of memory")
	c = Runs(pairUp(crashed, crashed), LowerPeak, 1)
	require.Equal(t, NoEffect, c.Effect, c)
	require.Contains(t, c.Reason, "5 of 5 runs with it crashed, and 5 without it")
	c = Runs(nil, LowerPeak, 1)
	require.Equal(t, Unclear, c.Effect, c)
}

// With 5 pairs that differ by 3%, about 95% of the intervals must contain the truth.
func TestCompareCovers(t *testing.T) {
	m := newMaker(1, 4)
	const n = 200
	misses, wrong := 0, 0
	for range n {
		c := Runs(pairUp(arm(m, 5, memory.Flat, 0, 1e9, 1e6), arm(m, 5, memory.Flat, 0, 1e9, 1e6)), LowerPeak, 1)
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

// Two pairs have only three different bootstrap draws, so the quartiles of the slopes are often
// equal. The interval must not be that narrow.
func TestCompareFewPairs(t *testing.T) {
	m := newMaker(1, 5)
	const rounds = 400
	for n := 2; n <= 5; n++ {
		misses, none := 0, 0
		for range rounds {
			c := Runs(pairUp(arm(m, n, memory.Leak, 1e6, 1e9, 1e6), arm(m, n, memory.Leak, 5e5, 1e9, 1e6)), LowerSlope, 1)
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
	one := Outcome{Verdict: memory.Verdict{Kind: memory.Leak, NoiseFloor: 100, Slope: memory.Interval{Estimate: 1000}},
		Peak: memory.Known(memory.GiB), StepTime: memory.Known(1e6)}
	c := Runs([]Pair{{one, one}, {one, one}}, LowerSlope, 1)
	for _, r := range []Ratio{c.Slope, c.Peak, c.StepTime} {
		require.Equal(t, 1.0, r.Estimate)
		require.Less(t, r.Low, 1.0)
		require.Greater(t, r.High, 1.0)
	}
	require.InDelta(t, 1-12.7*100/2.576/1000, c.Slope.Low, 0.01)
}

func TestCompareGPU(t *testing.T) {
	on := func(list []Outcome, b memory.Bytes) []Outcome {
		for i := range list {
			list[i].GPU = memory.Known(b + memory.Bytes(i)*memory.MiB)
		}
		return list
	}
	m := newMaker(1, 6)
	c := Runs(pairUp(on(arm(m, 5, memory.Flat, 0, 1e9, 1e6), 8*memory.GiB),
		on(arm(m, 5, memory.Flat, 0, 1e9, 1e6), 2*memory.GiB)), LowerGPU, 1)
	require.Equal(t, Works, c.Effect, c)
	require.InEpsilon(t, 0.25, c.GPU.Estimate, 0.01)
	require.Contains(t, c.Reason, "peak of GPU memory")
	require.NotEqual(t, Works, c.Peak.Effect, "of the host's memory")

	c = Runs(pairUp(arm(m, 5, memory.Flat, 0, 1e9, 1e6), arm(m, 5, memory.Flat, 0, 1e9, 1e6)), LowerGPU, 1)
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
				base := append(arm(m, leaks, memory.Leak, 1e6, 1e9, 1e6), arm(m, flat, memory.Flat, 1, 1e9, 1e6)...)
				for range crashed {
					base = append(base, Outcome{Verdict: Crashed("killed")})
				}
				want := leaks > 0 && leaks >= flat
				require.Equal(t, want, Leaks(base), "%d leak, %d do not, %d crashed", leaks, flat, crashed)
				if leaks+flat < 2 {
					continue
				}
				c := Runs(pairUp(base, arm(m, len(base), memory.Flat, 1, 1e9, 1e6)), LowerSlope, 1)
				require.Equal(t, want, c.Effect != NotApplicable, "%d leak, %d do not, %d crashed: %v", leaks, flat, crashed, c)
				require.Equal(t, want, c.Slope.OK)
			}
		}
	}
	require.False(t, Leaks(nil))
}

func TestOutcome(t *testing.T) {
	s := layered(100, map[memory.Layer]func(int) float64{
		memory.Anon: func(int) float64 { return mib }, memlayer.Peak: func(i int) float64 { return mib * float64(i) },
		memlayer.GPUProcess: func(i int) float64 { return mib * float64(100-i) },
	})
	o := Of(s, s.Judge(memory.Criteria{}))
	require.Equal(t, memory.Known(99*memory.MiB), o.Peak)
	require.Equal(t, memory.Known(memory.Bytes(time.Second)), o.StepTime)
	require.False(t, o.Reset.OK)
	require.Equal(t, memory.Known(100*memory.MiB), o.GPU)
	s = layered(20, map[memory.Layer]func(int) float64{memory.RSS: func(int) float64 { return mib }})
	o = Of(s, s.Judge(memory.Criteria{}))
	require.Equal(t, memory.Known(memory.MiB), o.Peak)
	require.False(t, o.GPU.OK)
}

// All that happens between the first and the last judged sample counts as step time.
func TestStepTimeHasAllThatIsDone(t *testing.T) {
	series := func(reset time.Duration) *memory.Series {
		s := &memory.Series{}
		at := time.Unix(1_700_000_000, 0)
		for i := range 101 {
			sample := memory.Sample{Step: 10 * i, At: at}
			sample.Set(memory.Anon, memory.Known(100*memory.MiB))
			s.Append(&sample)
			if at = at.Add(10 * time.Millisecond); i%20 == 18 {
				at = at.Add(reset)
			}
		}
		return s
	}
	// Five resets in 1,000 steps of a millisecond.
	for reset, want := range map[time.Duration]time.Duration{0: time.Millisecond, time.Second: 6 * time.Millisecond} {
		s := series(reset)
		require.Equal(t, memory.Known(memory.Bytes(want)), Of(s, s.Judge(memory.Criteria{})).StepTime)
	}
	s := series(0)
	require.False(t, Of(s, s.Judge(memory.Criteria{PerMinute: true})).StepTime.OK)
}

type maker struct{ *rand.Rand }

func newMaker(seed, n int) maker { return maker{rand.New(rand.NewPCG(uint64(seed), uint64(n)))} }

// layered returns a series of several layers.
func layered(n int, layers map[memory.Layer]func(i int) float64) *memory.Series {
	s := &memory.Series{}
	var sample memory.Sample
	for i := range n {
		sample.Step, sample.At = i, time.Unix(1_700_000_000+int64(i), 0)
		for layer, value := range layers {
			sample.Set(layer, memory.Known(memory.Bytes(value(i))))
		}
		s.Append(&sample)
	}
	return s
}

const mib = float64(memory.MiB)

func grows(slope float64) func(int) float64 {
	return func(i int) float64 { return 100*mib + slope*float64(i) }
}

// A remedy works if only malloc's free memory still grows.
func TestCompareLeavesFragmentationOut(t *testing.T) {
	var pairs []Pair
	for seed := range 5 {
		random := newMaker(seed, 96)
		noise := make([]float64, 96)
		for i := range noise {
			noise[i] = mib * random.NormFloat64()
		}
		creeps := func(i int) float64 { return 40*mib + mib*float64(i) + math.Abs(noise[i]) }
		series := func(used func(int) float64) *memory.Series {
			return layered(96, map[memory.Layer]func(int) float64{
				memory.MallocUsed: used, memory.MallocFree: creeps,
				memory.Anon: func(i int) float64 { return 60*mib + used(i) + creeps(i) },
			})
		}
		leaks := series(grows(4 * mib))
		closed := series(grows(0))
		judge := func(s *memory.Series) Outcome { return Of(s, s.Judge(memory.Criteria{Budget: 64 * memory.KiB})) }
		base, remedy := judge(leaks), judge(closed)
		require.Equal(t, memory.Leak, base.Verdict.Kind)
		require.Equal(t, memlayer.Retention, remedy.Verdict.Cause, "%v", remedy.Verdict)
		require.Equal(t, memory.MallocFree, remedy.Verdict.Carrier)
		pairs = append(pairs, Pair{Base: base, Remedy: remedy})
	}
	c := Runs(pairs, LowerSlope, 1)
	require.Equal(t, Works, c.Effect, c.Reason)
	require.Less(t, c.Slope.High, 0.1)
	require.Contains(t, c.Reason, "not counting freed memory that malloc keeps, which grew in 5 of 5 runs with the remedy")

	// Free memory counts if it is what grows without the remedy.
	for i := range pairs {
		pairs[i].Base = pairs[i].Remedy
	}
	c = Runs(pairs, LowerSlope, 1)
	require.NotEqual(t, Works, c.Effect, c.Reason)
	require.InDelta(t, 1, c.Slope.Estimate, 0.2)
}

func TestTimes(t *testing.T) {
	for _, test := range []struct {
		ratio Ratio
		want  string
	}{
		{Ratio{}, "unknown"},
		{Ratio{Interval: memory.Interval{Estimate: 0.52, Low: 0.49, High: 0.55}, OK: true}, "x0.52 [0.49, 0.55]"},
		{Ratio{Interval: memory.Interval{Estimate: -0.001, Low: -0.02, High: 0.004}, OK: true}, "x0 [-0.02, 0]"},
		{Ratio{Interval: memory.Interval{Estimate: 0.004, Low: 0.0034, High: 0.011}, OK: true}, "x0.004 [0.003, 0.01]"},
		{Ratio{Interval: memory.Interval{Estimate: 19.84, Low: 9.99, High: 123456}, OK: true}, "x19.8 [9.99, 1.2e+05]"},
		{Ratio{Interval: memory.Interval{Estimate: 1, Low: 0, High: math.MaxFloat64}, OK: true, Unbounded: true},
			"x1.00 [0, inf]"},
	} {
		require.Equal(t, test.want, test.ratio.Times(true))
	}
	require.Equal(t, "x19.8", Ratio{Interval: memory.Interval{Estimate: 19.8}, OK: true}.Times(false))
}

// Amounts below their precision give no upper bound. JSON then contains a number and "unbounded".
func TestUnboundedRatio(t *testing.T) {
	of := func(peak memory.Bytes) Outcome {
		return Outcome{Verdict: memory.Verdict{Kind: memory.Flat}, Peak: memory.Known(peak)}
	}
	for _, test := range []struct {
		peak memory.Bytes
		want bool
	}{{1, true}, {memory.GiB, false}} {
		pair := Pair{of(test.peak), of(test.peak)}
		r := Runs([]Pair{pair, pair}, LowerPeak, 1).Peak
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
