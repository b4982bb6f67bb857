package watch

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// try tries remedies on a copy of a report.
func try(t *testing.T, r *Report, o Options, choice string) map[string]*Trial {
	t.Helper()
	o.Command = r.Command
	require.NoError(t, r.Try(t.Context(), o, choice, 2, func(text string) { t.Log(text) }))
	var text strings.Builder
	require.NoError(t, r.WriteRemedies(&text))
	t.Log("\n" + text.String())
	by := map[string]*Trial{}
	for _, trial := range r.Trials {
		by[trial.Remedy] = trial
	}
	return by
}

//lane:skip race (the time goes to Python)
func TestTensorsEndRetracing(t *testing.T) {
	r, _ := run(t, Options{}, python(t), "testdata/retraces.py")
	require.Equal(t, Leak, r.Verdict)
	by := try(t, r, Options{}, "tensors,gpu-growth")
	assert.Equal(t, "tensors ends the leak: pass Python numbers to a retraced tf.function as tensors.", r.Advice)
	tensors := by["tensors"]
	require.Equal(t, EndsLeak, tensors.Verdict, tensors.Reason)
	assert.Equal(t, 2, tensors.Pairs)
	assert.Greater(t, tensors.Acted, 50)
	assert.Less(t, tensors.Slope.High, 0.1)
	assert.Less(t, tensors.Peak.High, 1.0)
	assert.Contains(t, tensors.Permanent[0], "tf.constant")
	assert.Equal(t, r.Trials[0], tensors)
	var page strings.Builder
	require.NoError(t, r.HTML(&page))
	assert.Contains(t, page.String(), "To keep tensors:")
}

// A program without TensorFlow is compared by marks and by time.
//
//lane:skip race (the time goes to Python)
func TestRemediesOfAnyProgram(t *testing.T) {
	marks := Options{Mark: regexp.MustCompile(`^round \d+`)}
	first, _ := run(t, marks, python(t), "testdata/grows.py", "200")
	require.Equal(t, Leak, first.Verdict)

	t.Run("environment", func(t *testing.T) {
		t.Setenv("TF_ENABLE_ONEDNN_OPTS", "1")
		r := *first
		by := try(t, &r, marks, "arenas,onednn-off,collect")
		assert.Equal(t, NoEffect, by["arenas"].Verdict, by["arenas"].Reason)
		assert.InDelta(t, 1, by["arenas"].Slope.Estimate, 0.1)
		assert.NotZero(t, by["arenas"].Time.Estimate)
		assert.Equal(t, NotApplied, by["onednn-off"].Verdict)
		assert.Contains(t, by["onednn-off"].Reason, "/libtensorflow")
		assert.Equal(t, NotApplied, by["collect"].Verdict)
		assert.Equal(t, "No remedy helps: the program has to be changed.", r.Advice)
	})
	t.Run("no probe", func(t *testing.T) {
		r := *first
		r.python = false
		by := try(t, &r, marks, "collect")
		assert.Equal(t, Unavailable, by["collect"].Verdict)
		assert.Equal(t, "the program has no probe of Python", by["collect"].Reason)
		assert.Equal(t, "No remedy was compared.", r.Advice)
	})
	t.Run("set already", func(t *testing.T) {
		t.Setenv("MALLOC_ARENA_MAX", "2")
		r := *first
		assert.Contains(t, try(t, &r, marks, "arenas")["arenas"].Reason, "has MALLOC_ARENA_MAX=2 already")
	})
	t.Run("interrupted", func(t *testing.T) {
		r, o := *first, marks
		o.Command = r.Command
		ctx, stop := context.WithCancel(t.Context())
		require.NoError(t, r.Try(ctx, o, "arenas", 2, func(string) { stop() }))
		assert.Equal(t, Undecided, r.Trials[0].Verdict)
	})
	t.Run("time", func(t *testing.T) {
		r, _ := run(t, Options{}, python(t), "-I", "testdata/grows.py", "800")
		require.Equal(t, perMinute, r.Unit)
		require.Equal(t, Leak, r.Verdict)
		by := try(t, r, Options{}, "arenas")
		assert.NotEmpty(t, by["arenas"].Slope)
		assert.Zero(t, by["arenas"].Time)
	})
}

func TestProgramFailsAgain(t *testing.T) {
	o := Options{Mark: regexp.MustCompile(`^round \d+`)}
	folder := filepath.Join(t.TempDir(), "results")
	r, _ := run(t, o, "sh", "-c", "mkdir "+folder+" && exec "+python(t)+" testdata/grows.py 200")
	require.Equal(t, Leak, r.Verdict)
	o.Command = r.Command
	err := r.Try(t.Context(), o, "arenas", 2, func(string) {})
	assert.ErrorContains(t, err, "when it ran again: exit code 1: mkdir: ")
	assert.Equal(t, Undecided, r.Trials[0].Verdict)
}

func TestNoRemedyToTry(t *testing.T) {
	for text, r := range map[string]*Report{
		"No remedies were tried": {Verdict: Level},
		"Nothing from outside helps against this cause (arrays kept in a list in Python)": {Verdict: Leak,
			Cause: "arrays kept in a list in Python"},
	} {
		require.NoError(t, r.Try(t.Context(), Options{}, Auto, 2, nil))
		assert.Contains(t, r.Advice, text)
		assert.Empty(t, r.Trials)
	}
	_, err := ParseRemedies("jemalloc,magic")
	assert.ErrorContains(t, err, `the remedy "magic" is not known; expected auto, all, or a list of tensors,`)
	for cause, names := range suggestions {
		assert.Len(t, chosen(Auto, cause), len(names), cause)
	}
}

func TestVerdictOfTrial(t *testing.T) {
	base := &Trial{runs: []outcome{{100, 1000, 1, true}, {102, 1000, 1.1, true}, {98, 1000, 0.9, true}}}
	for _, c := range []struct {
		text   string
		slopes [3]float64
		leaks  bool
	}{
		{"ends the leak", [3]float64{1, -1, 2}, false},
		{"reduces the leak by 99%", [3]float64{1, -1, 2}, true},
		{"reduces the leak by 33%", [3]float64{66, 68, 66}, true},
		{"no effect", [3]float64{101, 101, 99}, true},
		{"worse", [3]float64{150, 151, 152}, true},
		{"undecided", [3]float64{10, 100, 200}, true},
	} {
		trial := &Trial{}
		for i, slope := range c.slopes {
			trial.runs = append(trial.runs, outcome{slope, 900, 2 * base.runs[i].step, c.leaks})
		}
		trial.compare(base)
		assert.Equal(t, c.text, trial.Text())
		assert.InDelta(t, 0.9, trial.Peak.Estimate, 1e-9)
		assert.InDelta(t, 2, trial.Time.Low, 1e-9)
	}
	few := &Trial{runs: base.runs[:1]}
	few.compare(base)
	assert.Equal(t, Undecided, few.Verdict)
	level := &Trial{runs: base.runs}
	level.compare(&Trial{runs: []outcome{{}, {}, {}}})
	assert.Contains(t, level.Reason, "does not grow when it runs again")
}
