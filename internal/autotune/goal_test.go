package autotune

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
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

type configuration = Configuration

var (
	parts = []configuration{{MicroBatches: 2}, {MicroBatches: 4}, {MicroBatches: 8}, {MicroBatches: 16},
		{MicroBatches: 32}}
	bases    = append(slices.Clone(parts), configuration{StepsPerExecution: 50})
	settings = [][]configuration{
		{{NoPrefetch: true}},
		{{Executor: gpuopts.SingleThreaded, IntraThreads: 1, InterThreads: 1}, {IntraThreads: 1}},
		{{Allocator: "jemalloc"}, {Allocator: "mmap"}, {OneDNN: "off"}, {Allocator: "jemalloc", OneDNN: "off"},
			{Allocator: "mmap", OneDNN: "off"}},
	}
)

func axesOf(bases []configuration, settings [][]configuration) [][]configuration {
	return append([][]configuration{bases}, settings...)
}

var over = (&Plan{}).over

// machine is a made-up machine with known times and peaks. It implements measurer.
type machine struct {
	figures  figures
	known    []Measurement
	measured []configuration
	fails    func(configuration) string
	// stop is the number of trials after which the context ends; 0 means never.
	stop   int
	cancel context.CancelFunc
	late   int // trials before the time is up; 0 means no limit
	// reference is the configuration with which the machine compares the others.
	reference configuration
}

// openedMemory is the resident memory of an openedMemory session, and files its part that is not anonymous.
const openedMemory, fileMemory = 380 * memory.MiB, 60 * memory.MiB

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
		ratio, peak = ratio*1.02/1.8, openedMemory+(peak-openedMemory)*6/10
	}
	return ratio, peak
}

// image returns about the values that were measured with image-224: 1110 MB and 137 ms in whole batches,
// 550 MB and 146 ms in four micro-batches of bfloat16.
func image(c configuration) (ratio float64, peak memory.Bytes) {
	n := float64(max(c.MicroBatches, 1))
	ratio, steps := 0.9+0.1*n, 60+670/n
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
	return ratio, openedMemory + memory.Bytes(steps*float64(memory.MiB))
}

func (m *machine) Known() []Measurement { return m.known }

func (m *machine) Measure(ctx context.Context, c configuration) (Measurement, error) {
	if m.late > 0 && len(m.measured) == m.late {
		return Measurement{Configuration: c, Out: "no time was left", Late: true}, nil
	}
	m.measured = append(m.measured, c)
	if m.stop > 0 && len(m.measured) > m.stop {
		m.cancel()
		return Measurement{}, context.Cause(ctx)
	}
	ratio, peak := m.figures(c)
	step := 0.137 * ratio
	if m.reference != (configuration{}) {
		whole, _ := m.figures(m.reference)
		ratio /= whole
	}
	// Trials of a configuration differ by up to 1%.
	noise := 1 + 0.01*math.Sin(float64(7*len(m.known)))
	r := Measurement{
		Configuration: c, Reference: m.reference, Step: step * noise, Ratio: ratio * noise, Low: 0.97 * ratio,
		High: 1.03 * ratio, Rounds: 5,
		Peak: memory.Bytes(float64(peak) * (2 - noise)), Anon: peak - fileMemory,
	}
	if m.fails != nil {
		r.Out = m.fails(c)
	}
	m.known = append(m.known, r)
	return r, nil
}

func searched(t *testing.T, m *machine, g Goal) Result {
	t.Helper()
	s := newSearch(g, axesOf(bases, settings), over)
	require.NoError(t, s.run(t.Context(), m, time.Now().Add(time.Hour), func(Measurement) {}))
	r, err := s.result()
	require.NoError(t, err)
	return r
}

// tried returns the number of trials without those that repeat the default.
func tried(m *machine) (n int) {
	for i, c := range m.measured {
		if i == 0 || c != (configuration{}) {
			n++
		}
	}
	return n
}

// The default is chosen unless another configuration is better than it in all trials of both.
func TestDefaultWinsInsideTheNoise(t *testing.T) {
	gain := 0.0
	slightly := func(c configuration) (ratio float64, peak memory.Bytes) {
		if c.Allocator == "jemalloc" {
			return 1 - gain, 400 * memory.MiB
		}
		return 1 + 0.1*float64(c.changes()), 400 * memory.MiB
	}
	for _, gain = range []float64{0.05, 0.2} {
		for _, g := range []Goal{{}, {Budget: memory.GiB}} {
			r := searched(t, &machine{figures: slightly}, g)
			require.NotNil(t, r.Chosen)
			wins := gain > 0.1
			assert.Equal(t, !wins, r.Chosen.Configuration.Plain(), "%v of %v", gain, g)
			assert.Equal(t, enoughTrials, r.Default.Trials)
		}
	}
}

// A choice that is not the best configuration is repeated, too, and is dropped if only one trial was better than
// the default. It needs no more trials than the default has.
func TestRepeatsTheChoice(t *testing.T) {
	jemalloc := configuration{Allocator: "jemalloc"}
	for name, c := range map[string]struct {
		later    float64
		want     configuration
		repeated []configuration
	}{
		"better in all trials": {0.97, jemalloc, []configuration{{}, {}, jemalloc, jemalloc}},
		"better in one trial":  {1.01, configuration{}, []configuration{{}, {}, jemalloc}},
	} {
		s := newSearch(Goal{Budget: memory.GiB}, axesOf(bases, settings), over)
		trial := func(c configuration, ratio float64) {
			s.add(Measurement{Configuration: c, Step: ratio, Ratio: ratio, Low: ratio, High: ratio, Rounds: 5,
				Peak: 400 * memory.MiB})
		}
		chosen := func() configuration {
			best, reached := s.choice()
			assert.True(t, reached)
			return best.Configuration
		}
		trial(configuration{}, 1)
		trial(jemalloc, 0.97)
		best, _ := s.best()
		require.Equal(t, configuration{}, best.Configuration, "fewer changes within same")
		require.Equal(t, jemalloc, chosen())
		var repeated []configuration
		for next, ok := s.repeat(); ok; next, ok = s.repeat() {
			repeated = append(repeated, next)
			trial(next, map[bool]float64{true: 1, false: c.later}[next.Plain()])
		}
		assert.Equal(t, c.repeated, repeated, name)
		assert.Equal(t, c.want, chosen(), name)
	}
	s := newSearch(Goal{Budget: memory.GiB}, axesOf(bases, settings), over)
	for _, c := range []configuration{{}, jemalloc, jemalloc} {
		ratio := map[bool]float64{true: 1, false: 0.97}[c.Plain()]
		s.add(Measurement{Configuration: c, Step: ratio, Ratio: ratio, Low: ratio, High: ratio, Rounds: 5, Peak: 400})
	}
	best, _ := s.choice()
	assert.Equal(t, configuration{}, best.Configuration, "the default has fewer trials than the other")
}

// least returns the minimum of what a goal minimizes over all configurations that reach it, without noise. The trials of
// a configuration near the limit may exceed it.
func (of figures) least(g Goal) float64 {
	least := math.Inf(1)
	for _, c := range newSearch(Goal{}, axesOf(bases, settings), over).candidates {
		ratio, peak := of(c.is)
		if g.Anon {
			peak -= fileMemory
		}
		if (g.Budget == 0 || 1.01*float64(peak) <= float64(g.Limit())) && ratio*0.137 <= cmp.Or(g.Step.Seconds(), math.Inf(1)) {
			least = min(least, minimized(g, ratio, peak))
		}
	}
	return least
}

func minimized(g Goal, ratio float64, peak memory.Bytes) float64 {
	switch {
	case g.Step > 0:
		return float64(peak)
	case g.Budget > 0:
		return ratio
	}
	return ratio * float64(peak)
}

// The choice is about the best of all configurations, after trials of a fifth of them, even if the effects of settings
// are not independent. The front has no point that another one dominates.
func TestChoice(t *testing.T) {
	type test struct {
		figures figures
		goal    Goal
	}
	tests := []test{{image, Goal{}}}
	for _, budget := range []memory.Bytes{1300, 1000, 820, 700, 620, 560, 500} {
		tests = append(tests, test{image, Goal{Budget: budget * memory.MiB}})
	}
	for _, budget := range []memory.Bytes{1000, 820, 700, 600, 560, 500, 460} {
		tests = append(tests, test{interacting, Goal{Budget: budget * memory.MiB}})
	}
	for _, budget := range []memory.Bytes{900, 700, 560, 500, 440} {
		tests = append(tests, test{image, Goal{Budget: budget * memory.MiB, Anon: true}})
	}
	for _, limit := range []float64{1.1, 1.5, 3} {
		tests = append(tests, test{image, Goal{Step: time.Duration(limit * 0.137 * float64(time.Second))}})
	}
	for _, c := range tests {
		m := &machine{figures: c.figures}
		r := searched(t, m, c.goal)
		require.NotNil(t, r.Chosen, c.goal)
		ratio, peak := c.figures(r.Chosen.Configuration)
		assert.LessOrEqual(t, minimized(c.goal, ratio, peak), 1.06*c.figures.least(c.goal), "%v: %v", c.goal,
			r.Chosen.Configuration)
		if c.goal.Budget > 0 {
			assert.LessOrEqual(t, r.Chosen.Peak, c.goal.Limit(), c.goal)
		}
		if _, peak := c.figures(r.Default.Configuration); c.goal.Anon {
			assert.Equal(t, peak-fileMemory, r.Default.Peak)
		}
		for i, p := range r.Front[1:] {
			assert.Greater(t, p.Step, r.Front[i].Step)
			assert.Less(t, p.Peak, r.Front[i].Peak)
		}
		assert.True(t, r.Complete)
		assert.Less(t, tried(m), r.Configurations/5)
		assert.GreaterOrEqual(t, r.Chosen.Trials, enoughTrials)
		assert.GreaterOrEqual(t, r.Default.Trials, enoughTrials)
	}
}

func TestNoConfigurationReachesTheGoal(t *testing.T) {
	r := searched(t, &machine{figures: image}, Goal{Budget: 390 * memory.MiB})
	assert.Nil(t, r.Chosen)
	require.NotNil(t, r.Nearest)
	least := slices.MinFunc(r.Points, func(a, b Point) int { return cmp.Compare(a.Peak, b.Peak) })
	assert.Equal(t, least.Peak, r.Nearest.Peak, "the least of all trials")
	assert.True(t, slices.ContainsFunc(r.Rows(), func(p Point) bool { return p.Configuration == r.Nearest.Configuration }))
	_, peak := image(r.Nearest.Configuration)
	assert.LessOrEqual(t, float64(peak), 1.02*figures(image).least(Goal{Step: time.Hour}))

	r = searched(t, &machine{figures: image}, Goal{Step: time.Millisecond})
	assert.Nil(t, r.Chosen)
	assert.Equal(t, "jemalloc", r.Nearest.Configuration.Allocator)
}

// A setting that fails is not combined with others.
func TestFailures(t *testing.T) {
	m := &machine{figures: image, fails: func(c configuration) string {
		if c.Allocator == "jemalloc" {
			return "it crashed"
		}
		return ""
	}}
	r := searched(t, m, Goal{Budget: 600 * memory.MiB})
	assert.LessOrEqual(t, len(r.Failures), 4, "on plain steps and on the best configuration, with and without oneDNN")
	for c, why := range r.Failures {
		assert.Contains(t, c, "jemalloc")
		assert.Equal(t, "it crashed", why)
	}
	require.NotNil(t, r.Chosen)
	assert.NotEqual(t, "jemalloc", r.Chosen.Configuration.Allocator)
}

func TestPlainStepsFail(t *testing.T) {
	s := newSearch(Goal{}, axesOf(bases, settings), over)
	require.NoError(t, s.run(t.Context(), &machine{figures: image,
		fails: func(configuration) string { return "its loss is not finite" }}, time.Now().Add(time.Hour), func(Measurement) {}))
	_, err := s.result()
	require.ErrorIs(t, err, errNothing)
	assert.ErrorContains(t, err, "its loss is not finite")
}

// If plain steps run out of memory, other configurations are predicted from micro-batches.
func TestDefaultFails(t *testing.T) {
	g := Goal{Budget: 700 * memory.MiB}
	r := searched(t, &machine{figures: image, fails: func(c configuration) string {
		if _, peak := image(c); peak > 900*memory.MiB {
			return "killed by the kernel because memory ran out"
		}
		return ""
	}}, g)
	assert.Nil(t, r.Default)
	require.NotNil(t, r.Chosen)
	ratio, _ := image(r.Chosen.Configuration)
	assert.LessOrEqual(t, ratio, 1.05*figures(image).least(g))
}

// Earlier ratios to another reference than the present one are not used.
func TestAnotherReference(t *testing.T) {
	g := Goal{Budget: 700 * memory.MiB}
	before := &machine{figures: image, reference: configuration{MicroBatches: 32}, fails: func(c configuration) string {
		return map[bool]string{true: "killed by the kernel because memory ran out"}[c == configuration{}]
	}}
	searched(t, before, g)
	stored := slices.DeleteFunc(before.known, func(m Measurement) bool { return m.Out != "" })
	m := &machine{figures: image, known: stored}
	r := searched(t, m, g)
	want := searched(t, &machine{figures: image}, g)
	assert.Equal(t, want.Chosen.Configuration, r.Chosen.Configuration)
	assert.InEpsilon(t, want.Chosen.Step, r.Chosen.Step, 0.03)
	require.NotNil(t, r.Default)
	assert.InEpsilon(t, 0.137, r.Default.Step, 0.02)
}

// A search that was interrupted, or that had too little time, continues where it stopped.
func TestContinues(t *testing.T) {
	g := Goal{Budget: 600 * memory.MiB}
	whole := &machine{figures: image}
	want := searched(t, whole, g)

	ctx, cancel := context.WithCancel(t.Context())
	m := &machine{figures: image, stop: 5, cancel: cancel}
	s := newSearch(g, axesOf(bases, settings), over)
	require.ErrorIs(t, s.run(ctx, m, time.Now().Add(time.Hour), func(Measurement) {}), context.Canceled)
	require.Len(t, m.known, 5)

	m = &machine{figures: image, known: m.known, late: 3}
	r := searched(t, m, g)
	assert.False(t, r.Complete)
	assert.Equal(t, whole.measured[5:8], m.measured)

	m = &machine{figures: image, known: m.known}
	r = searched(t, m, g)
	assert.True(t, r.Complete)
	assert.Equal(t, want.Chosen.Configuration, r.Chosen.Configuration)
	assert.Len(t, m.measured, len(whole.measured)-8)

	m = &machine{figures: image, known: m.known}
	s = newSearch(g, axesOf(bases, settings), over)
	require.NoError(t, s.run(t.Context(), m, time.Now().Add(time.Hour), func(Measurement) {}))
	assert.Empty(t, m.measured, "all is known")
}

func TestNoTime(t *testing.T) {
	s := newSearch(Goal{}, axesOf(bases, settings), over)
	require.NoError(t, s.run(t.Context(), &machine{figures: image}, time.Now(), func(Measurement) {}))
	_, err := s.result()
	assert.True(t, errors.Is(err, errNothing))
}

// Micro-batches of a model with dropout are another update, not another rounding.
func TestResultsOfTunedSettings(t *testing.T) {
	split := Point{Configuration: Configuration{MicroBatches: 4}}
	for model, want := range map[string][2]string{
		"digits":     {"rounding", "same bits"},
		"digits-cnn": {"another update", "same bits"},
	} {
		m, err := savedmodels.Builtin(model)
		require.NoError(t, err)
		p := Plan{Model: m, Options: session.Options{AllowInexactSplit: true}}
		inexact := p.inexact()
		assert.Equal(t, want, [2]string{split.numbers(inexact), Point{}.numbers(inexact)}, model)
	}
}
