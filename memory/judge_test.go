package memory

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
)

// made returns a series of one layer with a value per step and one second between samples.
func made(n int, value func(step int) float64) *Series {
	c := course{step: 1, y: make([]float64, n)}
	for i := range c.y {
		c.y[i] = value(i)
	}
	return c.series()
}

const mib = float64(MiB)

func TestLeakOfKnownSize(t *testing.T) {
	noise := newMaker(1, 1).noise("gaussian", 400, 2*mib)
	v := made(400, func(i int) float64 { return 300*mib + 0.5*mib*float64(i) + noise[i] }).Judge(Criteria{})
	require.Equal(t, Leak, v.Kind, v)
	require.InEpsilon(t, 0.5*mib, v.Slope.Estimate, 0.01)
	require.Less(t, v.Slope.Low, 0.5*mib)
	require.Greater(t, v.Slope.High, 0.5*mib)
	require.Equal(t, Anon, v.Layer)

	v = made(400, func(i int) float64 { return 300*mib + 0.5*mib*float64(i) + noise[i] }).Judge(Criteria{Budget: MiB})
	require.Equal(t, Flat, v.Kind, "within the budget: %v", v)
}

func TestLeakAfterWarmUp(t *testing.T) {
	noise := newMaker(1, 2).noise("gaussian", 400, mib)
	v := made(400, func(i int) float64 {
		y := 100*mib + noise[i]
		if i >= 20 {
			y += 700*mib + 0.2*mib*float64(i)
		}
		return y
	}).Judge(Criteria{})
	require.Equal(t, Leak, v.Kind, v)
	require.InEpsilon(t, 0.2*mib, v.Slope.Estimate, 0.02)
	require.InDelta(t, 20, v.From, 5)
	require.Len(t, v.Jumps, 1)
	require.InDelta(t, 700*mib, float64(v.Jumps[0].Amount), 20*mib)
}

func TestJump(t *testing.T) {
	noise := newMaker(1, 3).noise("pages", 300, page)
	v := made(300, func(i int) float64 {
		if i < 40 {
			return 100*mib + noise[i]
		}
		return 800*mib + noise[i]
	}).Judge(Criteria{})
	require.Equal(t, Jump, v.Kind, v)
	require.Len(t, v.Jumps, 1)
	require.InDelta(t, 40, v.Jumps[0].At, 5)
	require.InEpsilon(t, 700*mib, float64(v.Jumps[0].Amount), 0.02)
	require.InEpsilon(t, 800*mib, float64(v.Level), 0.01)
}

func TestJumpDown(t *testing.T) {
	v := made(100, func(i int) float64 {
		if i < 50 {
			return 800 * mib
		}
		return 100 * mib
	}).Judge(Criteria{})
	require.Equal(t, Jump, v.Kind, v)
	require.InEpsilon(t, -700*mib, float64(v.Jumps[0].Amount), 0.02)
	require.Empty(t, v.Cause, "nothing grew")
}

func TestJumpNearTheEndIsInconclusive(t *testing.T) {
	noise := newMaker(1, 4).noise("gaussian", 300, mib)
	v := made(300, func(i int) float64 {
		if i < 290 {
			return 100*mib + noise[i]
		}
		return 300*mib + noise[i]
	}).Judge(Criteria{})
	require.Equal(t, Inconclusive, v.Kind, v)
	require.Greater(t, v.More, 0.0)
	require.Contains(t, v.String(), "near the end")
}

func TestFlat(t *testing.T) {
	v := made(100, func(int) float64 { return 100 * mib }).Judge(Criteria{})
	require.Equal(t, Flat, v.Kind, v)
	require.Zero(t, v.Slope.Estimate)
	require.InDelta(t, page/99.0, v.NoiseFloor, 1, "without noise, a page over the span")
	require.Empty(t, v.Cause)
}

func TestSteadyFallIsFlat(t *testing.T) {
	v := made(100, func(i int) float64 { return 100*mib - 0.01*mib*float64(i) }).Judge(Criteria{})
	require.Equal(t, Flat, v.Kind, v)
	require.Less(t, v.Slope.High, 0.0)
}

func TestSawThatClimbsIsALeak(t *testing.T) {
	saw := func(slope float64) *Series {
		return made(600, func(i int) float64 { return 100*mib + 40*mib*float64(i%40)/40 + slope*float64(i) })
	}
	v := saw(0).Judge(Criteria{})
	require.Equal(t, Sawtooth, v.Kind, v)
	require.InEpsilon(t, 40*mib, float64(v.Depth), 0.1)

	v = saw(0.2 * mib).Judge(Criteria{})
	require.Equal(t, Leak, v.Kind, v)
	require.InEpsilon(t, 0.2*mib, v.Slope.Estimate, 0.05)
}

// Memory that shrinks page by page looks similar to a sawtooth, but is flat.
func TestMemoryReturnedByPagesIsNoSawtooth(t *testing.T) {
	v := made(160, func(i int) float64 { return 100*mib - page*float64(i/20) }).Judge(Criteria{Budget: 2 * KiB})
	require.Equal(t, Flat, v.Kind, v)
}

// A change of two pages near the end is flat, since a leak above the budget would have added more.
func TestALateChangeWithinTheBudget(t *testing.T) {
	late := func(amount float64) Verdict {
		return made(160, func(i int) float64 {
			if i < 150 {
				return 100 * mib
			}
			return 100*mib + amount
		}).Judge(Criteria{Budget: 2 * KiB})
	}
	require.NotEqual(t, Inconclusive, late(2*page).Kind, late(2*page))
	require.NotEqual(t, Leak, late(2*page).Kind, late(2*page))
	require.Equal(t, Inconclusive, late(64*page).Kind, late(64*page))
}

// A trim at the end of each epoch returns memory that the next steps allocate again. A series is
// judged as well if its last sample follows a trim.
func TestSeriesThatEndsInADip(t *testing.T) {
	dips := func(slope float64) Verdict {
		noise := newMaker(1, 8).noise("pages", 80, page)
		return made(80, func(i int) float64 {
			y := 66*mib + noise[i] + slope*float64(i)
			if i >= 7 {
				y -= 8.3 * mib // first trim
			}
			if i%8 == 7 {
				y -= mib
			}
			return y
		}).Judge(Criteria{Budget: 32 * KiB})
	}
	v := dips(0)
	require.Contains(t, []Kind{Jump, Plateau}, v.Kind, v)
	require.InEpsilon(t, 57.7*mib, float64(v.Level), 0.01)
	require.Empty(t, v.Cause, "nothing grew")
	v = dips(128 * 1024)
	require.Equal(t, Leak, v.Kind, v)
	require.InEpsilon(t, 128*1024, v.Slope.Estimate, 0.1)
}

// stairs returns a series with step changes on top of a slope.
func stairs(n int, height, slope float64, at ...int) *Series {
	return made(n, func(i int) float64 {
		y := 66*mib + slope*float64(i)
		for _, a := range at {
			if i >= a {
				y += height
			}
		}
		return y
	})
}

// Two step changes, such as arenas of 8 MiB that threads allocate, are a plateau if both are early,
// and inconclusive if the second one is late.
func TestStepChanges(t *testing.T) {
	v := stairs(80, 7.7*mib, 0, 15, 46).Judge(Criteria{Budget: 32 * KiB})
	require.Equal(t, Plateau, v.Kind, v)
	require.Len(t, v.Jumps, 2)
	require.Equal(t, 46.0, v.Jumps[1].At)
	require.InEpsilon(t, 7.7*mib, float64(v.Jumps[1].Amount), 0.01)
	require.InEpsilon(t, 15.4*mib, float64(v.Level-v.Start), 0.01)

	v = stairs(80, 7.7*mib, 0, 15, 71).Judge(Criteria{Budget: 32 * KiB})
	require.Equal(t, Inconclusive, v.Kind, v)
	require.Contains(t, v.Reason, "rose in 2 steps")
	require.GreaterOrEqual(t, v.More, 40.0)
	require.Equal(t, Inconclusive, stairs(80, 7.7*mib, 0, 5, 46).Judge(Criteria{}).Kind,
		"at that interval the next is still to come")

	require.Equal(t, Leak, stairs(80, 7.7*mib, 128*1024, 15, 46).Judge(Criteria{Budget: 32 * KiB}).Kind,
		"it grows beside them")
	require.Equal(t, Leak, stairs(80, 7.7*mib, 128*1024, 15, 71).Judge(Criteria{Budget: 32 * KiB}).Kind,
		"it grows beside them")
	require.Equal(t, Leak, stairs(80, mib, 0, 8, 16, 24, 32, 40, 48, 56, 64, 72).Judge(Criteria{Budget: 32 * KiB}).Kind,
		"so many are growth")
}

func TestTooFewSamples(t *testing.T) {
	v := (&Series{}).Judge(Criteria{})
	require.Equal(t, Inconclusive, v.Kind)
	require.Contains(t, v.Reason, "no sample has rss")
	v = made(1, func(int) float64 { return mib }).Judge(Criteria{})
	require.Equal(t, Inconclusive, v.Kind)
	require.Equal(t, 1.0, v.More)
	v = made(10, func(int) float64 { return mib }).Judge(Criteria{})
	require.Equal(t, Inconclusive, v.Kind)
	require.Equal(t, 22.0, v.More)
	require.Equal(t, "inconclusive: 10 samples are too few; about 22 steps more would decide", v.String())
}

// The number of further steps in Verdict.More suffices for a verdict in most cases.
func TestMoreStepsDecide(t *testing.T) {
	decided, asked := 0, 0
	for i := range 60 {
		m := newMaker(5, i)
		noise := m.noise("gaussian", 20_000, mib)
		slope := m.between(0, 7_000)
		if i%2 == 0 {
			slope += 13_000
		}
		value := func(step int) float64 { return 200*mib + slope*float64(step) + noise[step] }
		criteria := Criteria{Budget: 10_000}
		v := made(60, value).Judge(criteria)
		if v.Kind != Inconclusive {
			continue
		}
		asked++
		if v = made(min(60+int(v.More), len(noise)), value).Judge(criteria); v.Kind != Inconclusive {
			decided++
		}
	}
	t.Logf("%d of %d were decided within the requested steps", decided, asked)
	require.Greater(t, asked, 20)
	require.Greater(t, decided*2, asked)
}

func TestJudgeIsDeterministic(t *testing.T) {
	c := newMaker(2, 2).make(3)
	require.Equal(t, c.series().Judge(Criteria{Seed: 9}), c.series().Judge(Criteria{Seed: 9}))
}

func TestPerMinute(t *testing.T) {
	noise := newMaker(1, 5).noise("gaussian", 300, mib/10)
	s := made(300, func(i int) float64 { return 100*mib + 3.1/60*mib*float64(i) + noise[i] })
	v := s.Judge(Criteria{PerMinute: true})
	require.Equal(t, Leak, v.Kind)
	require.InEpsilon(t, 3.1*mib, v.Slope.Estimate, 0.03)
	require.Regexp(t, `^leak: \+3\.\d MiB/min \[\d\.\d, \d\.\d\] at [\d.]+ MiB, carried by no sampled layer \(99% interval, 300 samples over 4m59s of anon\)$`, v.String())
}

func TestVerdictText(t *testing.T) {
	base := Verdict{Layer: Anon, Per: memlayer.PerStep, Confidence: 0.99, Samples: 200, To: 1000, NoiseFloor: 1,
		Slope: Interval{10, -20, 40}, Start: 100 * MiB, Level: 800 * MiB}
	for _, c := range []struct {
		change func(*Verdict)
		want   string
	}{
		{func(v *Verdict) { v.Kind = Flat }, "flat: +10.0 B/step [-20.0, 40.0] at 800.0 MiB (99% interval, 200 samples " +
			"over 1000 steps of anon)"},
		{func(v *Verdict) { v.Kind, v.Jumps = Jump, []Change{{40, 700 * MiB}} },
			"jump, +700.0 MiB since the start: +10.0 B/step [-20.0, 40.0] at 800.0 MiB (99% interval, 200 samples over " +
				"1000 steps of anon)"},
		{func(v *Verdict) { v.Kind, v.From = Plateau, 100 },
			"plateau, +700.0 MiB since the start: +10.0 B/step [-20.0, 40.0] at 800.0 MiB (99% interval, 200 samples over " +
				"900 steps of anon)"},
		{func(v *Verdict) {
			v.Kind, v.Cause, v.Carrier = Leak, memlayer.NativeHeap, MallocUsed
			v.Slope = Interval{3.1 * mib, 2.9 * mib, 3.4 * mib}
		}, "leak: +3.1 MiB/step [2.9, 3.4] at 800.0 MiB, carried by malloc in use (99% interval, 200 samples over " +
			"1000 steps of anon)"},
		{func(v *Verdict) { v.Kind, v.Cause, v.Slope = Leak, memlayer.Retention, Interval{2048, 1024, 3072} },
			"leak: +2.0 KiB/step [1.0, 3.0] at 800.0 MiB, retained freed memory (malloc in use is flat) (99% interval, 200 samples over " +
				"1000 steps of anon)"},
		{func(v *Verdict) {
			*v = Verdict{Kind: memlayer.Crash, Per: memlayer.PerStep, Reason: "killed for lack of memory"}
		}, "crash: killed for lack of memory"},
		{func(v *Verdict) { *v = Verdict{} }, "no verdict"},
	} {
		v := base
		c.change(&v)
		require.Equal(t, c.want, v.String())
	}
}

func TestVerdictJSON(t *testing.T) {
	v := made(100, func(i int) float64 { return mib * float64(100+i) }).Judge(Criteria{})
	text, err := json.Marshal(v)
	require.NoError(t, err)
	var back Verdict
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, v, back)
}

// layered returns a series of several layers.
func layered(n int, layers map[Layer]func(i int) float64) *Series {
	s := &Series{}
	var sample Sample
	for i := range n {
		sample.Step, sample.At = i, time.Unix(1_700_000_000+int64(i), 0)
		for layer, value := range layers {
			sample.Set(layer, Known(Bytes(value(i))))
		}
		s.Append(&sample)
	}
	return s
}

func TestCause(t *testing.T) {
	noise := newMaker(1, 6).noise("gaussian", 300, mib/4)
	line := func(slope float64) func(int) float64 {
		return func(i int) float64 { return 200*mib + slope*float64(i) + noise[i] }
	}
	flat := line(0)
	exact := func(slope float64) func(int) float64 { return func(i int) float64 { return 50 + slope*float64(i) } }
	for _, c := range []struct {
		name    string
		layers  map[Layer]func(int) float64
		cause   string
		carrier Layer
	}{
		{"unreleased", map[Layer]func(int) float64{MallocUsed: line(mib), memlayer.GoHeap: flat,
			memlayer.LiveBytes: line(mib)}, memlayer.Unreleased, memlayer.LiveBytes},
		{"waiting cleanups", map[Layer]func(int) float64{MallocUsed: line(mib), memlayer.CleanupCount: exact(1)},
			memlayer.GCLag, memlayer.CleanupCount},
		{"history", map[Layer]func(int) float64{memlayer.GoHeap: line(mib), memlayer.GoLive: line(0.9 * mib),
			MallocUsed: flat}, memlayer.HostHistory, memlayer.GoLive},
		{"graph", map[Layer]func(int) float64{MallocUsed: line(mib), memlayer.LiveCount: exact(0),
			memlayer.GraphOperations: exact(2), memlayer.Executors: exact(1)}, memlayer.RuntimeCache, memlayer.GraphOperations},
		{"executors", map[Layer]func(int) float64{MallocUsed: line(mib), memlayer.LiveCount: exact(0),
			memlayer.GraphOperations: exact(0), memlayer.Executors: exact(1)}, memlayer.RuntimeCache, memlayer.Executors},
		{"malloc", map[Layer]func(int) float64{MallocUsed: line(mib), memlayer.GoHeap: flat, memlayer.GCCycles: exact(0)},
			memlayer.NativeHeap, MallocUsed},
		{"retention", map[Layer]func(int) float64{MallocUsed: flat, MallocFree: line(mib), memlayer.GoHeap: flat},
			memlayer.Retention, MallocFree},
		{"go runtime", map[Layer]func(int) float64{MallocUsed: flat, memlayer.GoHeap: flat, memlayer.GoTotal: line(mib)},
			memlayer.GoRuntime, memlayer.GoTotal},
		{"nothing known", map[Layer]func(int) float64{memlayer.Threads: exact(0.5)}, memlayer.Unattributed, ""},
	} {
		c.layers[Anon] = line(mib)
		v := layered(300, c.layers).Judge(Criteria{})
		require.Equal(t, Leak, v.Kind, "%s: %v", c.name, v)
		require.Equal(t, c.cause, v.Cause, "%s: %v", c.name, v)
		require.Equal(t, c.carrier, v.Carrier, "%s: %v", c.name, v)
		switch c.name {
		case "malloc":
			require.Contains(t, v.String(), "carried by malloc in use")
		}
	}
}

func TestFilePagesAreNamed(t *testing.T) {
	noise := newMaker(1, 7).noise("gaussian", 300, mib/4)
	line := func(i int) float64 { return 200*mib + mib*float64(i) + noise[i] }
	v := layered(300, map[Layer]func(int) float64{RSS: line, memlayer.File: line}).Judge(Criteria{})
	require.Equal(t, RSS, v.Layer, "anon is not known")
	require.Equal(t, memlayer.Files, v.Cause, v)
}

func TestJumpIsAttributedByItsRise(t *testing.T) {
	jump := func(height float64) func(int) float64 {
		return func(i int) float64 {
			if i < 30 {
				return 100 * mib
			}
			return 100*mib + height
		}
	}
	v := layered(200, map[Layer]func(int) float64{Anon: jump(700 * mib), MallocUsed: jump(650 * mib),
		memlayer.GoHeap: jump(0)}).Judge(Criteria{})
	require.Equal(t, Jump, v.Kind, v)
	require.Equal(t, memlayer.NativeHeap, v.Cause, v)
	require.Contains(t, v.String(), "carried by malloc in use")
}

func TestMemoryThatIsHeldIsFilled(t *testing.T) {
	s := layered(200, map[Layer]func(int) float64{
		Anon:               func(int) float64 { return 900 * mib },
		memlayer.LiveBytes: func(i int) float64 { return 4 * mib * float64(i) },
	})
	v := s.Judge(Criteria{Budget: MiB})
	require.Equal(t, Inconclusive, v.Kind, v)
	require.Contains(t, v.Reason, "the level is constant, but live native bytes grows by +4.0 MiB/step")
	require.Positive(t, v.More)
	v = s.Judge(Criteria{Budget: 8 * MiB})
	require.Equal(t, Flat, v.Kind, "as much is no leak: %v", v)
}

// A heap may grow inside memory that the process kept after an earlier peak. If the heap grows by
// no more than a flat level may gain, the verdict is flat.
func TestHeldMemoryIsFilledByAHeap(t *testing.T) {
	noise := newMaker(1, 9).noise("gaussian", 1000, mib)
	for _, layer := range []Layer{MallocUsed, memlayer.GoLive} {
		series := func(slope float64) *Series {
			return layered(1000, map[Layer]func(int) float64{
				Anon:  func(i int) float64 { return 800*mib + noise[i] },
				layer: func(i int) float64 { return 100*mib + slope*float64(i) + noise[999-i] },
			})
		}
		v := series(0.1 * mib).Judge(Criteria{})
		require.Equal(t, Inconclusive, v.Kind, v)
		require.Contains(t, v.Reason, "the level is constant, but "+string(layer)+" grows by")
		v = series(0.005 * mib).Judge(Criteria{})
		require.Equal(t, Flat, v.Kind, v)
		require.Empty(t, v.Notes)
	}
}

// Growth of the Go heap may be garbage. Only memory that was live after a collection is retained.
func TestGarbageIsNoLeak(t *testing.T) {
	noise := newMaker(1, 8).noise("gaussian", 300, 0.01*mib)
	heap := func(i int) float64 { return 40*mib + 0.1*mib*float64(i) + noise[i] }
	series := func(live func(int) float64) *Series {
		return layered(300, map[Layer]func(int) float64{Anon: heap, memlayer.GoHeap: heap, memlayer.GoTotal: heap,
			memlayer.GoLive: live, memlayer.GCCycles: func(i int) float64 { return float64(i / 150) }})
	}
	v := series(func(int) float64 { return 40 * mib }).Judge(Criteria{})
	require.Equal(t, Inconclusive, v.Kind, v)
	require.Contains(t, v.Reason, "its live part does not")
	require.Equal(t, memlayer.GoRuntime, v.Cause)
	require.Equal(t, Layer(memlayer.GoHeap), v.Carrier)
	v = series(heap).Judge(Criteria{})
	require.Equal(t, Leak, v.Kind, v)
	require.Equal(t, memlayer.HostHistory, v.Cause)
}

// A bend does not count as noise, so half of a rising curve is not a plateau.
func TestBendIsNoNoise(t *testing.T) {
	v := made(24, func(i int) float64 {
		return 300*mib +
			600*mib*(1-math.Exp(-float64(i)/11))
	}).Judge(Criteria{Budget: 256 * KiB})
	require.Equal(t, Inconclusive, v.Kind, v)
	require.Contains(t, v.Reason, "the growth slows down")
}

func TestSlowCurveWithinTheBudgetPasses(t *testing.T) {
	v := made(200, func(i int) float64 {
		return 100*mib +
			10*mib*(1-math.Exp(-float64(i)/80))
	}).Judge(Criteria{Budget: MiB})
	require.Equal(t, Flat, v.Kind, v)
	curve := func(height float64) *Series {
		return made(200, func(i int) float64 { return 100*mib + height*(1-math.Exp(-float64(i)/80)) })
	}
	v = curve(100 * mib).Judge(Criteria{})
	require.Equal(t, Inconclusive, v.Kind, v)
	require.Contains(t, v.Reason, "the growth slows down")
	v = curve(10 * mib).Judge(Criteria{})
	require.Equal(t, Plateau, v.Kind, "the little that is to come does not matter: %v", v)
}

// Every series has a verdict that can be written as JSON, which has no infinity.
//
//lane:skip check (long)
func TestEveryCourseHasAVerdict(t *testing.T) {
	n := 600
	if raceEnabled {
		n = 100
	}
	parallel(n, func(i int) {
		m := newMaker(21, i)
		s := &Series{Keep: 64 + m.IntN(100)}
		var sample Sample
		scale := m.logBetween(1, 1e15)
		for range m.IntN(120) {
			sample.Step += m.IntN(3)
			sample.At = sample.At.Add(time.Duration(m.IntN(3)) * time.Second)
			v := Known(Bytes(scale * m.NormFloat64()))
			switch m.IntN(8) {
			case 0:
				v = Reading{}
			case 1:
				v = Known(Bytes(scale))
			case 2:
				v = Known(math.MaxInt64)
			}
			sample.Set(Anon, v)
			sample.Set(MallocUsed, Known(Bytes(m.IntN(2))))
			s.Append(&sample)
		}
		for _, c := range []Criteria{{}, {Budget: 1}, {PerMinute: true}, {Layer: MallocUsed},
			{Layer: "no such layer"}} {
			v := s.Judge(c)
			if v.Kind == "" || v.String() == "no verdict" || v.Kind == Inconclusive && v.More <= 0 && v.Samples > 0 {
				t.Errorf("course %d, %+v: %+v", i, c, v)
			}
			if _, err := json.Marshal(v); err != nil {
				t.Errorf("course %d, %+v: %v", i, c, err)
			}
		}
	})
}
