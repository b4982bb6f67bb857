package train

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/session"
)

// Session options that are set are not chosen.
func TestLimits(t *testing.T) {
	device := func(o gpuopts.Options) session.Options { return session.Options{Device: o} }
	all := autotune.Limits{StepsPerExecution: 50, Compiled: true, Threads: true, OneDNN: true, Precision: true}
	for _, c := range []struct {
		name    string
		fixed   Fixed
		options session.Options
		without func(l *autotune.Limits)
	}{
		{"nothing set", Fixed{}, session.Options{}, func(*autotune.Limits) {}},
		{"steps", Fixed{}, session.Options{StepsPerExecution: 8}, func(l *autotune.Limits) { l.StepsPerExecution = 0 }},
		{"one step", Fixed{StepsPerExecution: true}, session.Options{}, func(l *autotune.Limits) { l.StepsPerExecution = 0 }},
		{"compiled", Fixed{}, session.Options{Compiled: true}, func(l *autotune.Limits) { l.Compiled = false }},
		{"threads", Fixed{}, device(gpuopts.Options{InterThreads: 1}), func(l *autotune.Limits) { l.Threads = false }},
		{"oneDNN", Fixed{}, device(gpuopts.Options{OneDNN: gpuopts.Off}), func(l *autotune.Limits) { l.OneDNN = false }},
		{"oneDNN by a variable", Fixed{OneDNN: true}, session.Options{}, func(l *autotune.Limits) { l.OneDNN = false }},
		{"bfloat16", Fixed{}, device(gpuopts.Options{Precision: gpuopts.BFloat16}), func(l *autotune.Limits) { l.Precision = false }},
		{"float16", Fixed{}, device(gpuopts.Options{Precision: gpuopts.Float16}), func(l *autotune.Limits) { l.Precision, l.Threads = false, false }},
		{"float16, resolved", Fixed{}, device(gpuopts.Options{Precision: gpuopts.Float16CPU}), func(l *autotune.Limits) { l.Precision, l.Threads = false, false }},
	} {
		want := all
		c.without(&want)
		a := Autotune{Mode: AutotunePrecision, Fixed: c.fixed}
		assert.Equal(t, want, a.limits(c.options, 50), c.name)
	}
}
