package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/autotune"
	"steadyfit/memory"
)

// The peak while the model is opened, which a budget does not include, is printed with the choice or, if
// there is no choice, in the error.
func TestTunedOpening(t *testing.T) {
	var s settings
	s.Budget.Limit = 120 * memory.MiB
	p := autotune.Point{Peak: 100 * memory.MiB, Opening: 143 * memory.MiB}
	var text strings.Builder
	require.NoError(t, s.printTuned(&text, autotune.Result{Chosen: &p}))
	assert.Contains(t, text.String(), "; opening the model takes 143.0 MiB for a moment\n")
	assert.ErrorContains(t, s.notReached(autotune.Result{Nearest: &p}),
		"; opening the model takes 143.0 MiB for a moment; give --memory-budget")
	text.Reset()
	p.Opening = 90 * memory.MiB
	require.NoError(t, s.printTuned(&text, autotune.Result{Chosen: &p}))
	assert.NotContains(t, text.String(), "opening")
}
