package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/train"
)

// Micro-batches of a model with dropout are another update, not another rounding.
func TestResultsOfTunedSettings(t *testing.T) {
	split := autotune.Configuration{MicroBatches: 4}
	half := autotune.Configuration{MicroBatches: 4, Precision: gpuopts.BFloat16}
	for model, want := range map[string][3]string{
		"builtin:digits":     {"rounding", "16 bits", "same bits"},
		"builtin:digits-cnn": {"another update", "another update, 16 bits", "same bits"},
	} {
		m, err := train.OpenModel(model, "")
		require.NoError(t, err)
		var s settings
		s.Session.AllowInexactSplit = true
		inexact := s.inexact(m)
		assert.Equal(t, want, [3]string{numbers(split, inexact), numbers(half, inexact), numbers(autotune.Configuration{}, inexact)}, model)
	}
}
