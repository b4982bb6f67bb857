package tune

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

var jemalloc = Candidate{Allocator: allocator.Jemalloc}

// scripted is a rival whose steps take as long as the test says.
type scripted struct {
	race *scriptedRace
	is   Candidate
	step float64
	// jitter, if there is any, is what steps of a round are slower by, one round after the other.
	jitter []float64
	// From this round on, counted from 1 over all rivals of its kind, it fails: with an
	// error, not at all in time, or with a loss that is not finite.
	failsAt int
	fails   error
	// cold rivals never warm up.
	cold bool
	anon memory.Bytes

	latest answer
}

func (s *scripted) hear(until time.Time) (answer, error) {
	if !s.cold {
		return s.answer(), nil
	}
	s.race.waited = append(s.race.waited, time.Until(until).Round(time.Minute))
	return answer{}, errLate
}

func (s *scripted) answer() answer {
	s.latest = answer{Step: s.step, Call: s.step, Finite: true, Peak: 2 * s.anon, Anon: s.anon}
	return s.latest
}

func (s *scripted) ask(until time.Time, _ float64) (answer, error) {
	s.race.rounds[s.is]++
	a := s.answer()
	if len(s.jitter) > 0 {
		a.Step *= s.jitter[s.race.rounds[s.is]%len(s.jitter)]
	}
	if s.failsAt == 0 || s.race.rounds[s.is] < s.failsAt {
		return a, nil
	}
	switch {
	case errors.Is(s.fails, errNotFinite):
		a.Finite = false
		return a, nil
	case errors.Is(s.fails, errHangs):
		if !until.Before(s.race.until) {
			s.race.t.Errorf("%v is waited for until the end of the race", s.is)
		}
		return answer{}, errLate
	}
	return answer{}, s.fails
}

func (s *scripted) last() answer { return s.latest }

func (s *scripted) end() {
	s.race.running = slices.DeleteFunc(s.race.running, func(o *scripted) bool { return o == s })
}

// scriptedRace is a race of scripted rivals.
type scriptedRace struct {
	race
	t       *testing.T
	started []Candidate
	running []*scripted
	rounds  map[Candidate]int
	waited  []time.Duration // for cold ones
}

func newScriptedRace(t *testing.T, p *Plan, rivals []scripted) *scriptedRace {
	s := &scriptedRace{t: t, rounds: map[Candidate]int{}}
	p.Time = time.Hour
	s.race = race{plan: p, begun: time.Now(), until: time.Now().Add(time.Hour), start: func(_ context.Context, c Candidate) rival {
		i := slices.IndexFunc(rivals, func(o scripted) bool { return o.is == c })
		if i < 0 {
			i = slices.IndexFunc(rivals, func(o scripted) bool { return o.is == Candidate{} })
		}
		one := rivals[i]
		one.race, one.is = s, c
		s.started, s.running = append(s.started, c), append(s.running, &one)
		if len(s.running) > 2 {
			t.Errorf("%d processes at the same time", len(s.running))
		}
		return &one
	}}
	return s
}

func (s *scriptedRace) outcome(ways, settings []Candidate) Choice {
	s.t.Helper()
	measured, err := s.among(s.t.Context(), ways, settings)
	require.NoError(s.t, err)
	assert.Empty(s.t, s.running, "all have ended")
	c := Choice{Measurements: measured}
	c.decide(s.plan, 0)
	return c
}

// What is measured after what, and on top of what.
func TestOrderOfRace(t *testing.T) {
	ways, settings := []Candidate{both, fused, compiled}, []Candidate{single, intra, inter, caller, jemalloc}
	t.Run("a way that is best with a setting", func(t *testing.T) {
		s := newScriptedRace(t, &Plan{}, []scripted{
			{step: 1}, {is: both, step: 4}, {is: single, step: 0.5}, {is: fused, step: 0.8}, {is: inter.over(fused), step: 0.4}, {is: jemalloc.over(inter.over(fused)), step: 0.39},
		})
		c := s.outcome(ways, settings)
		assert.Equal(t, []Candidate{
			{}, both, single, intra, fused, compiled,
			single.over(fused), intra.over(fused), inter.over(fused), caller.over(fused), jemalloc.over(inter.over(fused)),
		}, s.started)
		assert.Equal(t, inter.over(fused), c.Candidate, "jemalloc gains too little on top of it")
		for candidate, want := range map[Candidate]struct {
			ratio  float64
			rounds int
		}{
			{}: {1, 1 + 3 + 9}, both: {4, 3}, single: {0.5, 9}, intra: {1, 3}, fused: {0.8, 5}, inter.over(fused): {0.4, 9}, jemalloc.over(inter.over(fused)): {0.39, 9},
		} {
			m := c.of(candidate)
			require.NotNil(t, m, candidate)
			assert.InDelta(t, want.ratio, m.Ratio, 1e-12, candidate)
			assert.Equal(t, want.rounds, m.Rounds, candidate)
		}
	})
	t.Run("ways that are all slower", func(t *testing.T) {
		s := newScriptedRace(t, &Plan{}, []scripted{{step: 1}, {is: both, step: 4}, {is: fused, step: 2}, {is: compiled, step: 3}})
		c := s.outcome(ways, settings)
		assert.Equal(t, []Candidate{{}, both, single, intra, fused, compiled, inter, caller, jemalloc}, s.started, "on plain steps, and nothing twice")
		assert.Equal(t, Candidate{}, c.Candidate)
	})
	t.Run("no ways", func(t *testing.T) {
		s := newScriptedRace(t, &Plan{}, []scripted{{step: 1}, {is: single, step: 0.5}})
		assert.Equal(t, single, s.outcome(nil, settings[:2]).Candidate)
		assert.Equal(t, []Candidate{{}, single, intra}, s.started)
	})
}

// What is faster by the median, and not in nearly all rounds, may win, but nothing is measured
// beside it: its luck would be in all ratios from then on.
func TestBestIsShown(t *testing.T) {
	for _, c := range []struct {
		name   string
		jitter []float64
		best   Candidate
	}{
		{"in two of three rounds", []float64{1, 1, 5}, both},
		{"in eight of nine", []float64{1, 1, 1, 1, 1, 1, 1, 1, 5}, fused},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScriptedRace(t, &Plan{}, []scripted{{step: 1}, {is: both, step: 0.25}, {is: fused, step: 0.1, jitter: c.jitter}, {is: compiled, step: 0.5}})
			got := s.outcome([]Candidate{both, fused, compiled}, nil)
			assert.Equal(t, fused, got.Candidate)
			assert.InDelta(t, 0.1, got.of(fused).Ratio, 1e-12)
			want := map[Candidate]int{{}: 1 + 9, both: 9 + 9, fused: 9, compiled: 5}
			want[c.best] += 5
			assert.Equal(t, want, s.rounds)
		})
	}
}

// What fails after it was the best does not win, and what was to be measured beside it is
// measured beside plain steps.
func TestBestThatFails(t *testing.T) {
	for _, c := range []struct {
		name    string
		fails   error
		out     string
		passing bool
	}{
		{"it dies", errors.New("its process has ended: boom"), "its process has ended: boom", true},
		{"it cannot run", &failure{"no such kernel", true}, "no such kernel", false},
		{"its loss is not finite", errNotFinite, "its loss is not finite", false},
		{"it hangs", errHangs, "it hangs", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScriptedRace(t, &Plan{}, []scripted{{step: 1}, {is: both, step: 0.25, failsAt: 9 + 2, fails: c.fails}, {is: fused, step: 0.5}})
			got := s.outcome([]Candidate{both, fused}, nil)
			assert.Equal(t, []Candidate{{}, both, fused, {}, fused}, s.started)
			assert.Equal(t, fused, got.Candidate)
			assert.Equal(t, Measurement{Candidate: both, Out: c.out, Passing: c.passing}, *got.of(both))
			m := got.of(fused)
			assert.InDelta(t, 0.5, m.Ratio, 1e-12)
			assert.Equal(t, 9, m.Rounds)
		})
	}
	t.Run("plain steps", func(t *testing.T) {
		s := newScriptedRace(t, &Plan{}, []scripted{{step: 1, failsAt: 3, fails: &failure{"boom", true}}, {is: fused, step: 0.5}})
		got := s.outcome([]Candidate{fused}, nil)
		assert.Equal(t, Candidate{}, got.Candidate)
		assert.Equal(t, Measurement{Candidate: fused, Out: "plain steps, which it is measured against: boom", Passing: true}, *got.of(fused), "it is not the way that cannot run")
	})
}

// What hangs does not take the time of the others.
func TestCandidateThatHangs(t *testing.T) {
	t.Run("in a round", func(t *testing.T) {
		s := newScriptedRace(t, &Plan{}, []scripted{{step: 1}, {is: both, step: 0.25, failsAt: 2, fails: errHangs}, {is: fused, step: 0.5}})
		got := s.outcome([]Candidate{both, fused}, nil)
		assert.Equal(t, fused, got.Candidate)
		assert.Equal(t, Measurement{Candidate: both, Out: "it hangs", Passing: true}, *got.of(both))
	})
	t.Run("before the first", func(t *testing.T) {
		s := newScriptedRace(t, &Plan{}, []scripted{{step: 1}, {is: both, cold: true}, {is: fused, step: 0.5}})
		got := s.outcome([]Candidate{both, fused}, nil)
		assert.Equal(t, fused, got.Candidate)
		assert.Equal(t, []time.Duration{30 * time.Minute}, s.waited, "half of the race")
		assert.Equal(t, Measurement{Candidate: both, Out: errCold.Error(), Late: true}, *got.of(both))
	})
}

// What must not be chosen is measured, and nothing is measured beside it.
func TestRaceUnderBudget(t *testing.T) {
	s := newScriptedRace(t, &Plan{Budget: memory.GiB}, []scripted{{step: 1, anon: memory.MiB}, {is: both, step: 0.25, anon: memory.GiB}, {is: fused, step: 0.5, anon: 2 * memory.MiB}})
	c := s.outcome([]Candidate{both, fused}, nil)
	assert.Equal(t, fused, c.Candidate)
	assert.Equal(t, 9, s.rounds[both])
	assert.InDelta(t, 0.25, c.of(both).Ratio, 1e-12)
	assert.Equal(t, "over the budget of 1.0 GiB of resident memory", c.of(both).Out)
	assert.Equal(t, 1+9+9, c.Measurements[0].Rounds)
	assert.Equal(t, memory.MiB, c.Measurements[0].Anon)
	assert.Equal(t, 2*memory.MiB, c.Measurements[0].Peak)
}

// Where there may be no room for a second process, none is begun.
func TestRaceWithoutRoom(t *testing.T) {
	s := newScriptedRace(t, &Plan{}, []scripted{{step: 1, anon: 1 << 60}})
	c := s.outcome([]Candidate{both, fused}, []Candidate{single})
	assert.Equal(t, []Candidate{{}}, s.started)
	require.Len(t, c.Measurements, 4)
	for _, m := range c.Measurements[1:] {
		assert.Contains(t, m.Out, "there may be no room for it")
		assert.True(t, m.Passing)
	}
}
