package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/internal/tune"
	"steadyfit/memory"
	"steadyfit/train"
)

// Micro-batches of a model with dropout are another update, not another rounding.
func TestResultsOfTunedSettings(t *testing.T) {
	split := tune.Point{Configuration: autotune.Configuration{MicroBatches: 4}}
	half := tune.Point{Configuration: autotune.Configuration{MicroBatches: 4, Precision: gpuopts.BFloat16}}
	exact := tune.Point{Configuration: autotune.Configuration{CachedFeatures: true}, Features: &autotune.Features{}}
	near := tune.Point{Configuration: exact.Configuration, Features: &autotune.Features{Difference: 1e-7}}
	for model, want := range map[string][5]string{
		"builtin:digits":     {"rounding", "16 bits", "same bits", "same bits", "rounding"},
		"builtin:digits-cnn": {"another update", "another update, 16 bits", "same bits", "same bits", "rounding"},
	} {
		m, err := train.OpenModel(model, "")
		require.NoError(t, err)
		var s settings
		s.Session.AllowInexactSplit = true
		inexact := s.inexact(m)
		assert.Equal(t, want, [5]string{numbers(split, inexact), numbers(half, inexact), numbers(tune.Point{}, inexact), numbers(exact, inexact), numbers(near, inexact)}, model)
	}
}

// With the tuned settings, fit caches features if and only if the settings were measured with
// cached features, and with the value of --cache-features that was given to tune.
func TestTunedFlagsOfCachedFeatures(t *testing.T) {
	plain, cached := autotune.Configuration{}, autotune.Configuration{CachedFeatures: true}
	for _, c := range []struct {
		is      autotune.Configuration
		consent train.Choice
		frozen  bool
		want    string
	}{{plain, "auto", false, ""}, {plain, "auto", true, "off"}, {cached, "auto", true, "auto"}, {cached, "on", true, "on"}} {
		got := ""
		for _, kv := range tunedFlags(c.is, c.consent, c.frozen) {
			if kv[0] == "cache-features" {
				got += kv[1]
			}
		}
		assert.Equal(t, c.want, got, c)
	}
}

// The peak while the model is opened, which a budget does not include, is printed with the choice or, if
// there is no choice, in the error.
func TestTunedOpening(t *testing.T) {
	var s settings
	s.Budget.Limit = 120 * memory.MiB
	p := tune.Point{Peak: 100 * memory.MiB, Opening: 143 * memory.MiB}
	var text strings.Builder
	require.NoError(t, s.printTuned(&text, tune.Result{Chosen: &p}, false))
	assert.Contains(t, text.String(), "; opening the model takes 143.0 MiB for a moment\n")
	assert.ErrorContains(t, s.notReached(tune.Result{Nearest: &p}, false), "; opening the model takes 143.0 MiB for a moment; give --memory-budget")
	text.Reset()
	p.Opening = 90 * memory.MiB
	require.NoError(t, s.printTuned(&text, tune.Result{Chosen: &p}, false))
	assert.NotContains(t, text.String(), "opening")
}
