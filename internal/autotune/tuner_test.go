package autotune

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/allocator"
	"steadyfit/memory"
)

var jemalloc = Configuration{Allocator: allocator.Jemalloc}

// scripted is a trial whose steps take as long as the test says.
type scripted struct {
	tuner *scriptedTuner
	is    Configuration
	step  float64
	// jitter is the additional time of a step in each round.
	jitter []float64
	// failsAt is the first failing round, counted from 1 over all trials of the configuration. It
	// fails with an error, by a timeout, or with a loss that is not finite.
	failsAt int
	fails   error
	// cold trials never warm up.
	cold bool
	anon memory.Bytes
	// holds has the amounts of memory for the answers of the trial.
	holds answer

	latest answer
}

func (s *scripted) hear(until time.Time) (answer, error) {
	if !s.cold {
		return s.answer(), nil
	}
	s.tuner.waited = append(s.tuner.waited, time.Until(until).Round(time.Minute))
	return answer{}, errLate
}

func (s *scripted) answer() answer {
	s.latest = s.holds
	s.latest.Step, s.latest.Execution, s.latest.Finite = s.step, s.step, true
	s.latest.Peak, s.latest.Anon = 2*s.anon, s.anon
	return s.latest
}

func (s *scripted) ask(until time.Time, _ float64) (answer, error) {
	s.tuner.rounds[s.is]++
	a := s.answer()
	if len(s.jitter) > 0 {
		a.Step *= s.jitter[s.tuner.rounds[s.is]%len(s.jitter)]
	}
	if s.failsAt == 0 || s.tuner.rounds[s.is] < s.failsAt {
		return a, nil
	}
	switch {
	case errors.Is(s.fails, errNotFinite):
		a.Finite = false
		return a, nil
	case errors.Is(s.fails, errHangs):
		if !until.Before(s.tuner.until) {
			s.tuner.t.Errorf("%v is waited for until the end", s.is)
		}
		return answer{}, errLate
	}
	return answer{}, s.fails
}

func (s *scripted) last() answer { return s.latest }

func (s *scripted) end() {
	s.tuner.running = slices.DeleteFunc(s.tuner.running, func(o *scripted) bool { return o == s })
}

// scriptedTuner is a tuner whose trials are scripted.
type scriptedTuner struct {
	tuner
	t       *testing.T
	started []Configuration
	running []*scripted
	rounds  map[Configuration]int
	waited  []time.Duration // for cold trials to warm up
}

func newScriptedTuner(t *testing.T, p *Plan, trials []scripted) *scriptedTuner {
	s := &scriptedTuner{t: t, rounds: map[Configuration]int{}}
	p.Time = time.Hour
	s.tuner = tuner{plan: p, began: time.Now(), until: time.Now().Add(time.Hour), start: func(_ context.Context, c Configuration) trial {
		i := slices.IndexFunc(trials, func(o scripted) bool { return o.is == c })
		if i < 0 {
			i = slices.IndexFunc(trials, func(o scripted) bool { return o.is == Configuration{} })
		}
		one := trials[i]
		one.tuner, one.is = s, c
		s.started, s.running = append(s.started, c), append(s.running, &one)
		if len(s.running) > 2 {
			t.Errorf("%d processes at the same time", len(s.running))
		}
		return &one
	}}
	return s
}

func (s *scriptedTuner) outcome(bases, settings []Configuration) Choice {
	s.t.Helper()
	measured, err := s.measureAll(s.t.Context(), offer{bases: bases, settings: settings})
	require.NoError(s.t, err)
	assert.Empty(s.t, s.running, "all have ended")
	c := Choice{Measurements: measured}
	c.decide(s.plan, 0)
	return c
}

// The order of trials, and the base of each.
func TestOrderOfTrials(t *testing.T) {
	bases, settings := []Configuration{both, fused, compiled}, []Configuration{single, intra, inter, two, jemalloc}
	t.Run("a base that is best with a setting", func(t *testing.T) {
		s := newScriptedTuner(t, &Plan{}, []scripted{
			{step: 1}, {is: both, step: 4}, {is: single, step: 0.5}, {is: fused, step: 0.8}, {is: inter.over(fused), step: 0.4}, {is: jemalloc.over(inter.over(fused)), step: 0.39},
		})
		c := s.outcome(bases, settings)
		assert.Equal(t, []Configuration{
			{}, both, single, intra, fused, compiled,
			single.over(fused), intra.over(fused), inter.over(fused), two.over(fused), jemalloc.over(inter.over(fused)),
		}, s.started)
		assert.Equal(t, inter.over(fused), c.Configuration, "jemalloc gains too little on top of it")
		for configuration, want := range map[Configuration]struct {
			ratio  float64
			rounds int
		}{
			{}: {1, 1 + 3 + 9}, both: {4, 3}, single: {0.5, 9}, intra: {1, 3}, fused: {0.8, 5}, inter.over(fused): {0.4, 9}, jemalloc.over(inter.over(fused)): {0.39, 9},
		} {
			m := find(c.Measurements, configuration)
			require.NotNil(t, m, configuration)
			assert.InDelta(t, want.ratio, m.Ratio, 1e-12, configuration)
			assert.Equal(t, want.rounds, m.Rounds, configuration)
		}
	})
	t.Run("oneDNN comes first, and the others build on it", func(t *testing.T) {
		s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1}, {is: oneDNNOn, step: 0.4}, {is: fused.over(oneDNNOn), step: 0.2}, {is: jemalloc.over(fused.over(oneDNNOn)), step: 0.1}})
		c := s.outcome([]Configuration{fused}, []Configuration{inter, oneDNNOn, jemalloc})
		on := fused.over(oneDNNOn)
		assert.Equal(t, []Configuration{{}, oneDNNOn, on, inter.over(on), jemalloc.over(on)}, s.started)
		assert.Equal(t, jemalloc.over(on), c.Configuration)
	})
	t.Run("oneDNN that is slower", func(t *testing.T) {
		s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1}, {is: oneDNNOn, step: 1.1}, {is: fused, step: 0.2}})
		assert.Equal(t, fused, s.outcome([]Configuration{fused}, []Configuration{oneDNNOn}).Configuration)
		assert.Equal(t, []Configuration{{}, oneDNNOn, fused}, s.started)
	})
	t.Run("bases that are all slower", func(t *testing.T) {
		s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1}, {is: both, step: 4}, {is: fused, step: 2}, {is: compiled, step: 3}})
		c := s.outcome(bases, settings)
		assert.Equal(t, []Configuration{{}, both, single, intra, fused, compiled, inter, two, jemalloc}, s.started, "on plain steps, and nothing twice")
		assert.Equal(t, Configuration{}, c.Configuration)
	})
	t.Run("no bases", func(t *testing.T) {
		s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1}, {is: single, step: 0.5}})
		assert.Equal(t, single, s.outcome(nil, settings[:2]).Configuration)
		assert.Equal(t, []Configuration{{}, single, intra}, s.started)
	})
}

// A configuration that is faster by the median, but not in nearly all rounds, may win. Other
// configurations are not compared with it, since its luck would affect all later ratios.
func TestBestIsShown(t *testing.T) {
	for _, c := range []struct {
		name   string
		jitter []float64
		best   Configuration
	}{
		{"in two of three rounds", []float64{1, 1, 5}, both},
		{"in eight of nine", []float64{1, 1, 1, 1, 1, 1, 1, 1, 5}, fused},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1}, {is: both, step: 0.25}, {is: fused, step: 0.1, jitter: c.jitter}, {is: compiled, step: 0.5}})
			got := s.outcome([]Configuration{both, fused, compiled}, nil)
			assert.Equal(t, fused, got.Configuration)
			assert.InDelta(t, 0.1, find(got.Measurements, fused).Ratio, 1e-12)
			want := map[Configuration]int{{}: 1 + 9, both: 9 + 9, fused: 9, compiled: 5}
			want[c.best] += 5
			assert.Equal(t, want, s.rounds)
		})
	}
}

// A configuration that fails after it was the best does not win. Later configurations are then
// compared with plain steps.
func TestBestThatFails(t *testing.T) {
	for _, c := range []struct {
		name    string
		fails   error
		out     string
		passing bool
	}{
		{"it dies", errors.New("its process has ended: boom"), "its process has ended: boom", true},
		{"it cannot run", &failure{text: "no such kernel", lasting: true}, "no such kernel", false},
		{"its loss is not finite", errNotFinite, "its loss is not finite", false},
		{"it hangs", errHangs, "it hangs", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1}, {is: both, step: 0.25, failsAt: 9 + 2, fails: c.fails}, {is: fused, step: 0.5}})
			got := s.outcome([]Configuration{both, fused}, nil)
			assert.Equal(t, []Configuration{{}, both, fused, {}, fused}, s.started)
			assert.Equal(t, fused, got.Configuration)
			assert.Equal(t, Measurement{Configuration: both, Out: c.out, Passing: c.passing}, *find(got.Measurements, both))
			m := find(got.Measurements, fused)
			assert.InDelta(t, 0.5, m.Ratio, 1e-12)
			assert.Equal(t, 9, m.Rounds)
		})
	}
	t.Run("plain steps", func(t *testing.T) {
		s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1, failsAt: 3, fails: &failure{text: "boom", lasting: true}}, {is: fused, step: 0.5}})
		got := s.outcome([]Configuration{fused}, nil)
		assert.Equal(t, Configuration{}, got.Configuration)
		assert.Equal(t, Measurement{Configuration: fused, Out: "the steps that it is compared with failed: boom", Passing: true}, *find(got.Measurements, fused), "it is not the configuration that cannot run")
	})
}

// A trial that hangs does not use up the time of other trials.
func TestCandidateThatHangs(t *testing.T) {
	t.Run("in a round", func(t *testing.T) {
		s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1}, {is: both, step: 0.25, failsAt: 2, fails: errHangs}, {is: fused, step: 0.5}})
		got := s.outcome([]Configuration{both, fused}, nil)
		assert.Equal(t, fused, got.Configuration)
		assert.Equal(t, Measurement{Configuration: both, Out: "it hangs", Passing: true}, *find(got.Measurements, both))
	})
	t.Run("before the first", func(t *testing.T) {
		s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1}, {is: both, cold: true}, {is: fused, step: 0.5}})
		got := s.outcome([]Configuration{both, fused}, nil)
		assert.Equal(t, fused, got.Configuration)
		assert.Equal(t, []time.Duration{30 * time.Minute}, s.waited, "half of the time")
		cold := *find(got.Measurements, both)
		assert.InDelta(t, 1800, cold.Waited, 1)
		assert.Equal(t, Measurement{Configuration: both, Out: errCold.Error(), Waited: cold.Waited, Late: true}, cold)
	})
}

// A configuration over the budget is measured, but no other configuration is compared with it.
func TestTrialsUnderBudget(t *testing.T) {
	s := newScriptedTuner(t, &Plan{Budget: memory.GiB}, []scripted{{step: 1, anon: memory.MiB}, {is: both, step: 0.25, anon: memory.GiB}, {is: fused, step: 0.5, anon: 2 * memory.MiB}})
	c := s.outcome([]Configuration{both, fused}, nil)
	assert.Equal(t, fused, c.Configuration)
	assert.Equal(t, 9, s.rounds[both])
	assert.InDelta(t, 0.25, find(c.Measurements, both).Ratio, 1e-12)
	assert.Equal(t, "over the budget of 1.0 GiB of resident memory", find(c.Measurements, both).Out)
	assert.Equal(t, 1+9+9, c.Measurements[0].Rounds)
	assert.Equal(t, memory.MiB, c.Measurements[0].Anon)
	assert.Equal(t, 2*memory.MiB, c.Measurements[0].Peak)
}

// No second process is started if there may be too little memory for it.
func TestTrialsWithoutHeadroom(t *testing.T) {
	s := newScriptedTuner(t, &Plan{}, []scripted{{step: 1, anon: 1 << 60}})
	c := s.outcome([]Configuration{both, fused}, []Configuration{single})
	assert.Equal(t, []Configuration{{}}, s.started)
	require.Len(t, c.Measurements, 4)
	for _, m := range c.Measurements[1:] {
		assert.Contains(t, m.Out, "there may be too little memory: ")
		assert.True(t, m.Passing)
	}
}
