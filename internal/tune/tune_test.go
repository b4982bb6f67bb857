package tune

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/memory"
)

type configuration = autotune.Configuration

var (
	parts    = []configuration{{MicroBatches: 2}, {MicroBatches: 4}, {MicroBatches: 8}, {MicroBatches: 16}, {MicroBatches: 32}}
	bases    = append(slices.Clone(parts), configuration{StepsPerExecution: 50})
	bfloat16 = configuration{Precision: gpuopts.BFloat16}
	settings = [][]configuration{
		{bfloat16},
		{{NoPrefetch: true}},
		{{Executor: gpuopts.SingleThreaded, IntraThreads: 1, InterThreads: 1}, {IntraThreads: 1}},
		{{Allocator: "jemalloc"}, {Allocator: "mmap"}, {OneDNN: "off"}, {Allocator: "jemalloc", OneDNN: "off"}, {Allocator: "mmap", OneDNN: "off"}},
	}
)

// over combines configurations of different axes.
func over(c, base configuration) (configuration, bool) {
	base.MicroBatches += c.MicroBatches
	base.StepsPerExecution += c.StepsPerExecution
	base.Precision += c.Precision
	base.CachedFeatures = base.CachedFeatures || c.CachedFeatures
	base.NoPrefetch = base.NoPrefetch || c.NoPrefetch
	base.Executor += c.Executor
	base.IntraThreads += c.IntraThreads
	base.InterThreads += c.InterThreads
	base.Allocator += c.Allocator
	base.OneDNN += c.OneDNN
	return base, c.OneDNN == "" || base.Precision == "" // bfloat16 needs oneDNN
}

// machine is a made-up machine with known times and peaks. It implements trials.
type machine struct {
	figures  figures
	known    []autotune.Measurement
	measured []configuration
	fails    func(configuration) string
	// stop is the number of trials after which the context ends; 0 means never.
	stop   int
	cancel context.CancelFunc
	late   int // trials before the time is up; 0 means no limit
	// reference is the configuration with which the machine compares the others.
	reference configuration
}

// opened is the resident memory of an opened session, and files its part that is not anonymous.
const opened, files = 380 * memory.MiB, 60 * memory.MiB

// figures are the time and the peak of each configuration of a machine.
type figures func(configuration) (ratio float64, peak memory.Bytes)

// interacting is like image, but two settings interact: turning oneDNN off costs little, and the
// allocator mmap then costs little and saves more.
func interacting(c configuration) (ratio float64, peak memory.Bytes) {
	ratio, peak = image(c)
	if c.OneDNN == "" {
		return ratio, peak
	}
	ratio *= 1.15 / 3
	if c.Allocator == "mmap" {
		ratio, peak = ratio*1.02/1.8, opened+(peak-opened)*6/10
	}
	return ratio, peak
}

// image returns about the values that were measured with image-224: 1110 MB and 137 ms in whole batches,
// 550 MB and 146 ms in four micro-batches of bfloat16.
func image(c configuration) (ratio float64, peak memory.Bytes) {
	n := float64(max(c.MicroBatches, 1))
	ratio, steps := 0.9+0.1*n, 60+670/n
	if c.Precision != "" {
		ratio, steps = ratio*(0.72+0.005*n), steps*0.7
	}
	factor := func(when bool, time, memory float64) {
		if when {
			ratio, steps = ratio*time, steps*memory
		}
	}
	factor(c.NoPrefetch, 1.06, 1)
	if c.NoPrefetch {
		steps -= 38
	}
	factor(c.Executor != "", 1.6, 0.9)
	factor(c.IntraThreads > 0 && c.Executor == "", 1.7, 1.0)
	factor(c.Allocator == "jemalloc", 0.99, 1.03)
	factor(c.Allocator == "mmap", 1.8, 0.88)
	factor(c.OneDNN != "", 3, 1.05)
	factor(c.StepsPerExecution > 1, 1.01, 1.5)
	return ratio, opened + memory.Bytes(steps*float64(memory.MiB))
}

func (m *machine) Known() []autotune.Measurement { return m.known }

func (m *machine) Measure(ctx context.Context, c configuration) (autotune.Measurement, error) {
	if m.late > 0 && len(m.measured) == m.late {
		return autotune.Measurement{Configuration: c, Out: "no time was left", Late: true}, nil
	}
	m.measured = append(m.measured, c)
	if m.stop > 0 && len(m.measured) > m.stop {
		m.cancel()
		return autotune.Measurement{}, context.Cause(ctx)
	}
	ratio, peak := m.figures(c)
	step := 0.137 * ratio
	if m.reference != (configuration{}) {
		whole, _ := m.figures(m.reference)
		ratio /= whole
	}
	// Trials of a configuration differ by up to 1%.
	noise := 1 + 0.01*math.Sin(float64(7*len(m.known)))
	r := autotune.Measurement{
		Configuration: c, Reference: m.reference, Step: step * noise, Ratio: ratio * noise, Low: 0.97 * ratio, High: 1.03 * ratio, Rounds: 5,
		StepPeak: memory.Bytes(float64(peak) * (2 - noise)), StepAnon: peak - files, Opened: opened, OpenedAnon: opened - files,
		Opening: opened + 700*memory.MiB,
	}
	if m.fails != nil {
		r.Out = m.fails(c)
	}
	m.known = append(m.known, r)
	return r, nil
}

func find(t *testing.T, m *machine, g Goal) Result {
	t.Helper()
	return findIn(t, settings, m, g)
}

func findIn(t *testing.T, groups [][]configuration, m *machine, g Goal) Result {
	t.Helper()
	s := newSearch(g, bases, groups, over)
	require.NoError(t, s.run(t.Context(), m, time.Now().Add(time.Hour), nil))
	r, err := s.result()
	require.NoError(t, err)
	return r
}

// With a budget of resident memory, the peak of opening the model is shown, too.
func TestOpening(t *testing.T) {
	g := Goal{Budget: 2 * memory.GiB}
	assert.Equal(t, opened+700*memory.MiB, find(t, &machine{figures: image}, g).Chosen.Opening)
	g.Anon = true
	assert.Zero(t, find(t, &machine{figures: image}, g).Chosen.Opening)
}

// exhaustive returns the minimum of cost over all configurations, without noise.
func (of figures) exhaustive(groups [][]configuration, cost func(ratio float64, peak memory.Bytes) float64) float64 {
	least := math.Inf(1)
	for _, c := range newSearch(Goal{}, bases, groups, over).candidates {
		least = min(least, cost(of(c.is)))
	}
	return least
}

func TestFastestUnderABudget(t *testing.T) {
	for _, budget := range []memory.Bytes{1300, 1000, 820, 700, 600, 560, 500} {
		m, g := &machine{figures: image}, Goal{Budget: budget * memory.MiB}
		r := find(t, m, g)
		best := figures(image).exhaustive(settings, func(ratio float64, peak memory.Bytes) float64 {
			if peak > g.Limit() {
				return math.Inf(1)
			}
			return ratio
		})
		require.NotNil(t, r.Chosen, "%d MiB", budget)
		ratio, _ := image(r.Chosen.Configuration)
		assert.LessOrEqual(t, ratio, 1.05*best, "%d MiB: %v", budget, r.Chosen.Configuration)
		assert.LessOrEqual(t, r.Chosen.Peak, g.Limit())
		assert.True(t, r.Complete)
		assert.Less(t, len(m.measured), r.Configurations/8)
	}
}

func TestLeastMemoryAtASpeed(t *testing.T) {
	for _, limit := range []float64{1.1, 1.5, 3} {
		m, g := &machine{figures: image}, Goal{Step: time.Duration(limit * 0.137 * float64(time.Second))}
		r := find(t, m, g)
		least := figures(image).exhaustive(settings, func(ratio float64, peak memory.Bytes) float64 {
			if ratio > limit {
				return math.Inf(1)
			}
			return float64(peak)
		})
		require.NotNil(t, r.Chosen)
		_, peak := image(r.Chosen.Configuration)
		assert.LessOrEqual(t, float64(peak), 1.05*least, "%v: %v", limit, r.Chosen.Configuration)
		assert.Less(t, len(m.measured), r.Configurations/8)
	}
}

// Each configuration is dominated by a point of the front, within 5%.
func TestFront(t *testing.T) {
	m := &machine{figures: image}
	r := find(t, m, Goal{})
	for _, c := range newSearch(Goal{}, bases, settings, over).candidates {
		ratio, peak := image(c.is)
		assert.True(t, slices.ContainsFunc(r.Front, func(p Point) bool {
			frontRatio, frontPeak := image(p.Configuration)
			return frontRatio <= 1.05*ratio && float64(frontPeak) <= 1.05*float64(peak)
		}), "%v: %.2f, %v", c.is, ratio, peak)
	}
	assert.True(t, slices.IsSortedFunc(r.Front, func(a, b Point) int { return int(a.Step - b.Step) }))
	assert.Less(t, len(m.measured), r.Configurations/5)
	require.NotNil(t, r.Chosen)
	assert.Contains(t, r.Front, *r.Chosen)
	assert.GreaterOrEqual(t, r.Chosen.Trials, enoughTrials)
}

func TestNoConfigurationReachesTheGoal(t *testing.T) {
	r := find(t, &machine{figures: image}, Goal{Budget: 390 * memory.MiB})
	assert.Nil(t, r.Chosen)
	require.NotNil(t, r.Nearest)
	least := slices.MinFunc(r.Points, func(a, b Point) int { return cmp.Compare(a.Peak, b.Peak) })
	assert.Equal(t, least.Peak, r.Nearest.Peak, "the least of all trials")
	assert.True(t, slices.ContainsFunc(r.Rows(), func(p Point) bool { return p.Configuration == r.Nearest.Configuration }))
	_, peak := image(r.Nearest.Configuration)
	assert.LessOrEqual(t, float64(peak), 1.02*figures(image).exhaustive(settings, func(_ float64, peak memory.Bytes) float64 { return float64(peak) }))

	r = find(t, &machine{figures: image}, Goal{Step: time.Millisecond})
	assert.Nil(t, r.Chosen)
	assert.Equal(t, gpuopts.BFloat16, r.Nearest.Configuration.Precision)
}

// A setting that fails is not combined with others.
func TestFailures(t *testing.T) {
	m := &machine{figures: image, fails: func(c configuration) string {
		if c.Precision != "" {
			return "it crashed"
		}
		return ""
	}}
	r := find(t, m, Goal{Budget: 600 * memory.MiB})
	assert.LessOrEqual(t, len(r.Failures), 2, "on plain steps and on the best configuration")
	for _, f := range r.Failures {
		assert.NotEmpty(t, f.Configuration.Precision)
		assert.Equal(t, "it crashed", f.Reason)
	}
	require.NotNil(t, r.Chosen)
	assert.Empty(t, r.Chosen.Configuration.Precision)
}

func TestPlainStepsFail(t *testing.T) {
	s := newSearch(Goal{}, bases, settings, over)
	require.NoError(t, s.run(t.Context(), &machine{figures: image, fails: func(configuration) string { return "its loss is not finite" }}, time.Now().Add(time.Hour), nil))
	_, err := s.result()
	require.ErrorIs(t, err, ErrNothing)
	assert.ErrorContains(t, err, "its loss is not finite")
}

// Settings whose effects are not independent are found, too. bfloat16, which excludes them, is not
// allowed.
func TestInteractions(t *testing.T) {
	exact := settings[1:]
	for _, budget := range []memory.Bytes{1000, 820, 700, 600, 560, 500, 460} {
		m, g := &machine{figures: interacting}, Goal{Budget: budget * memory.MiB}
		r := findIn(t, exact, m, g)
		best := figures(interacting).exhaustive(exact, func(ratio float64, peak memory.Bytes) float64 {
			if 1.01*float64(peak) > float64(g.Limit()) { // a trial may exceed the limit
				return math.Inf(1)
			}
			return ratio
		})
		require.NotNil(t, r.Chosen, "%d MiB", budget)
		ratio, _ := interacting(r.Chosen.Configuration)
		assert.LessOrEqual(t, ratio, 1.05*best, "%d MiB: %v", budget, r.Chosen.Configuration)
		assert.Less(t, len(m.measured), r.Configurations/8)
	}
}

// If plain steps run out of memory, other configurations are predicted from micro-batches.
func TestDefaultFails(t *testing.T) {
	g := Goal{Budget: 700 * memory.MiB}
	r := find(t, &machine{figures: image, fails: func(c configuration) string {
		if _, peak := image(c); peak > 900*memory.MiB {
			return "killed by the kernel because memory ran out"
		}
		return ""
	}}, g)
	assert.Nil(t, r.Default)
	require.NotNil(t, r.Chosen)
	ratio, _ := image(r.Chosen.Configuration)
	assert.LessOrEqual(t, ratio, 1.05*figures(image).exhaustive(settings, func(ratio float64, peak memory.Bytes) float64 {
		if peak > g.Limit() {
			return math.Inf(1)
		}
		return ratio
	}))
}

// Earlier ratios to another reference than the present one are not used.
func TestAnotherReference(t *testing.T) {
	g := Goal{Budget: 700 * memory.MiB}
	before := &machine{figures: image, reference: configuration{MicroBatches: 32}, fails: func(c configuration) string {
		return map[bool]string{true: "killed by the kernel because memory ran out"}[c == configuration{}]
	}}
	find(t, before, g)
	for i := range before.known {
		before.known[i].Passing = before.known[i].Out != ""
	}
	m := &machine{figures: image, known: before.known}
	r := find(t, m, g)
	want := find(t, &machine{figures: image}, g)
	assert.Equal(t, want.Chosen.Configuration, r.Chosen.Configuration)
	assert.InEpsilon(t, want.Chosen.Step.Seconds(), r.Chosen.Step.Seconds(), 0.03)
	require.NotNil(t, r.Default)
	assert.InEpsilon(t, 0.137, r.Default.Step.Seconds(), 0.02)
}

// A search that was interrupted, or that had too little time, continues where it stopped.
func TestContinues(t *testing.T) {
	g := Goal{Budget: 600 * memory.MiB}
	whole := &machine{figures: image}
	want := find(t, whole, g)

	ctx, cancel := context.WithCancel(t.Context())
	m := &machine{figures: image, stop: 5, cancel: cancel}
	s := newSearch(g, bases, settings, over)
	require.ErrorIs(t, s.run(ctx, m, time.Now().Add(time.Hour), nil), context.Canceled)
	require.Len(t, m.known, 5)

	m = &machine{figures: image, known: m.known, late: 3}
	r := find(t, m, g)
	assert.False(t, r.Complete)
	assert.Equal(t, whole.measured[5:8], m.measured)

	m = &machine{figures: image, known: m.known}
	r = find(t, m, g)
	assert.True(t, r.Complete)
	assert.Equal(t, want.Chosen.Configuration, r.Chosen.Configuration)
	assert.Len(t, m.measured, len(whole.measured)-8)

	m = &machine{figures: image, known: m.known}
	var events []Event
	s = newSearch(g, bases, settings, over)
	require.NoError(t, s.run(t.Context(), m, time.Now().Add(time.Hour), func(e Event) { events = append(events, e) }))
	assert.Empty(t, m.measured, "all is known")
	assert.Equal(t, []Event{{Trials: len(m.known)}}, events)
}

func TestNoTime(t *testing.T) {
	s := newSearch(Goal{}, bases, settings, over)
	require.NoError(t, s.run(t.Context(), &machine{figures: image}, time.Now(), nil))
	_, err := s.result()
	assert.True(t, errors.Is(err, ErrNothing))
}

// frozen is like image, but steps on cached features take 1/200 of the time, and about as much memory as
// the check of the features. Fewer threads make these steps faster, and other steps slower.
func frozen(c configuration) (ratio float64, peak memory.Bytes) {
	if !c.CachedFeatures {
		return image(c)
	}
	ratio, peak = 0.005, opened+750*memory.MiB
	slower := func(when bool, factor float64) {
		if when {
			ratio *= factor
		}
	}
	slower(c.IntraThreads > 0, 0.5)
	slower(c.Executor != "", 1.2)
	slower(c.NoPrefetch, 1.4)
	slower(c.Precision != "", 1.3)
	slower(c.OneDNN != "", 1.1)
	slower(c.Allocator != "", 1.2)
	if c.Allocator == "mmap" {
		peak -= 60 * memory.MiB
	}
	return ratio, peak
}

// Cached features are chosen where their memory fits, also if it fits only with a setting. Settings have
// other effects on steps with cached features.
func TestCachedFeatures(t *testing.T) {
	cached := configuration{CachedFeatures: true}
	with := append([]configuration{cached}, bases...)
	for budget, want := range map[memory.Bytes]bool{1300: true, 1160: true, 1000: false, 600: false} {
		m, g := &machine{figures: frozen}, Goal{Budget: budget * memory.MiB}
		s := newSearch(g, with, settings, over)
		require.NoError(t, s.run(t.Context(), m, time.Now().Add(time.Hour), nil))
		r, err := s.result()
		require.NoError(t, err)
		require.NotNil(t, r.Chosen, "%d MiB", budget)
		assert.Equal(t, want, r.Chosen.Configuration.CachedFeatures, "%d MiB", budget)
		best := math.Inf(1)
		for _, c := range s.candidates {
			if ratio, peak := frozen(c.is); peak <= g.Limit() {
				best = min(best, ratio)
			}
		}
		ratio, _ := frozen(r.Chosen.Configuration)
		assert.LessOrEqual(t, ratio, 1.05*best, "%d MiB: %v", budget, r.Chosen.Configuration)
		assert.Less(t, len(m.measured), r.Configurations/8)
	}

	s, m := newSearch(Goal{}, with, settings, over), &machine{figures: frozen}
	fewer := configuration{IntraThreads: 1}
	both, ok := over(fewer, cached)
	require.True(t, ok)
	for _, c := range []configuration{{}, cached, fewer, both} {
		r, err := m.Measure(t.Context(), c)
		require.NoError(t, err)
		s.add(r)
	}
	c, ok := s.find(both)
	require.True(t, ok)
	slower, ok1 := s.effect(3, c.at[3], false)
	faster, ok2 := s.effect(3, c.at[3], true)
	require.True(t, ok1 && ok2)
	assert.InDelta(t, math.Log(1.7), slower.time, 0.05)
	assert.InDelta(t, math.Log(0.5), faster.time, 0.05)
}

// Result.Cache describes the memory and the time that cached features take.
func TestCache(t *testing.T) {
	cached := Point{Configuration: configuration{CachedFeatures: true}, Features: &autotune.Features{Samples: 640, Bytes: 3 * memory.MiB, Seconds: 1.2}}
	r := Result{Points: []Point{cached}, Front: []Point{cached}}
	assert.Equal(t, "cached features take 3.0 MiB for all 640 samples, which the peak includes, and are computed once, before the first step, in about 1.2s after their check; the time of a step is that of all epochs", r.Cache())
	assert.Empty(t, Result{}.Cache())
}

// With a budget of anonymous memory, the peak and the memory of the opened session are anonymous
// memory.
func TestAnonymousMemory(t *testing.T) {
	for _, budget := range []memory.Bytes{900, 700, 560, 500, 440} {
		m, g := &machine{figures: image}, Goal{Budget: budget * memory.MiB, Anon: true}
		r := find(t, m, g)
		_, peak := image(r.Default.Configuration)
		assert.Equal(t, peak-files, r.Default.Peak)
		best := figures(image).exhaustive(settings, func(ratio float64, peak memory.Bytes) float64 {
			if peak-files > g.Limit() {
				return math.Inf(1)
			}
			return ratio
		})
		require.NotNil(t, r.Chosen, "%d MiB", budget)
		ratio, _ := image(r.Chosen.Configuration)
		assert.LessOrEqual(t, ratio, 1.05*best, "%d MiB: %v", budget, r.Chosen.Configuration)
		assert.Less(t, len(m.measured), r.Configurations/8)
	}
}

// The search predicts every number of micro-batches from measurements of a middle number and the
// largest one.
func TestPredictsNumbersOfMicroBatches(t *testing.T) {
	for _, g := range []Goal{{}, {Anon: true}} {
		s, m := newSearch(g, bases, settings, over), &machine{figures: image}
		for _, c := range []configuration{{}, {MicroBatches: 8}, {MicroBatches: 32}, bfloat16} {
			r, err := m.Measure(t.Context(), c)
			require.NoError(t, err)
			s.add(r)
		}
		assert.Equal(t, map[bool]memory.Bytes{false: opened, true: opened - files}[g.Anon], s.opened)
		for _, c := range s.candidates {
			p, ok := s.predict(c)
			known := c.is.MicroBatches > 0 || c.is.StepsPerExecution == 0
			for _, v := range c.at[2:] {
				known = known && v == 0
			}
			require.Equal(t, known, ok, "%v", c.is)
			ratio, peak := image(c.is)
			if g.Anon {
				peak -= files
			}
			if ok {
				assert.InEpsilon(t, ratio, p.ratio, 0.2, "%v", c.is)
				assert.InEpsilon(t, float64(peak), p.peak, 0.05, "%v, anonymous: %v", c.is, g.Anon)
			}
		}
	}
}
