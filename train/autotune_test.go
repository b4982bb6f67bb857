package train

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/session"
)

// Autotune does not change session options that are set.
func TestLimits(t *testing.T) {
	device := func(o gpuopts.Options) session.Options { return session.Options{Device: o} }
	all := autotune.Limits{StepsPerExecution: 50, Compiled: true, Threads: true, OneDNN: true}
	for _, c := range []struct {
		name    string
		fixed   autotune.Fixed
		options session.Options
		without func(l *autotune.Limits)
	}{
		{"nothing set", autotune.Fixed{}, session.Options{}, func(*autotune.Limits) {}},
		{"steps", autotune.Fixed{}, session.Options{StepsPerExecution: 8},
			func(l *autotune.Limits) { l.StepsPerExecution = 0 }},
		{"one step", autotune.Fixed{StepsPerExecution: true}, session.Options{},
			func(l *autotune.Limits) { l.StepsPerExecution = 0 }},
		{"compiled", autotune.Fixed{}, session.Options{Compiled: true}, func(l *autotune.Limits) { l.Compiled = false }},
		{"threads", autotune.Fixed{}, device(gpuopts.Options{InterThreads: 1}),
			func(l *autotune.Limits) { l.Threads = false }},
		{"oneDNN", autotune.Fixed{}, device(gpuopts.Options{OneDNN: "off"}), func(l *autotune.Limits) { l.OneDNN = false }},
		{"oneDNN by a variable", autotune.Fixed{OneDNN: true}, session.Options{},
			func(l *autotune.Limits) { l.OneDNN = false }},
		{"float16", autotune.Fixed{}, device(gpuopts.Options{Precision: gpuopts.Float16}),
			func(l *autotune.Limits) { l.Threads = false }},
		{"float16, resolved", autotune.Fixed{}, device(gpuopts.Options{Precision: gpuopts.Float16CPU}),
			func(l *autotune.Limits) { l.Threads = false }},
	} {
		want := all
		c.without(&want)
		assert.Equal(t, want, c.fixed.Limits(c.options, 50), c.name)
	}
}

// Unless the threads are set, a training measures during the steps whether the calling thread runs
// them faster.
func TestStepsChooseTheirThread(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		live   bool
	}{
		{func(*Config) {}, true},
		{func(c *Config) { c.Autotune.Mode = "" }, true},
		{func(c *Config) { c.Autotune.Fixed.Threads = true }, false},
		{func(c *Config) { c.Session.CallerRuns = true }, false},
	} {
		config := Config{
			Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Prefetch: -1, Loop: fit.Loop{Batch: 32, Epochs: 1},
			Autotune: Autotune{Mode: On}, CacheFeatures: "",
		}
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		c.change(&config)
		var live bool
		config.Loop.Hook(fit.Hook{Name: "look", Start: func(_ context.Context, s *fit.State) error {
			_, live = s.Session.(*autotune.Live)
			return nil
		}})
		_, err := Run(t.Context(), config)
		require.NoError(t, err)
		assert.Equal(t, c.live, live, "%+v", config)
	}
}
