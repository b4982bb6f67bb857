package matrix

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSelection(t *testing.T) {
	s, err := ParseSelection([]string{"trim", "jemalloc", "W4/none", "W4/reuse", "W4/close-all", "keras:none",
		"keras:clear-session", "keras:W3/all", "W9/none", "W2/close-all"})
	require.NoError(t, err)
	for _, test := range []struct {
		runtime, workload string
		applied           []string
	}{
		{"go", "W0", []string{"trim", "jemalloc"}},
		{"galeone", "W3", []string{"trim", "jemalloc"}},
		{"go", "W2", []string{"trim", "jemalloc", "close-all"}}, // more remedies than elsewhere
		{"go", "W4", []string{"reuse", "close-all"}},            // other remedies than elsewhere
		{"keras", "W4", []string{"reuse", "close-all"}},         // a workload is narrower than a runtime
		{"keras", "W0", []string{"clear-session"}},
		{"go", "W9", nil},
	} {
		var applied []string
		for _, r := range []string{"trim", "jemalloc", "reuse", "close-all", "clear-session"} {
			if s.Selects(test.runtime, test.workload, r) {
				applied = append(applied, r)
			}
		}
		assert.ElementsMatch(t, test.applied, applied, "%s %s", test.runtime, test.workload)
	}
	assert.True(t, s.Selects("keras", "W3", "bf16"))
	assert.True(t, s.Names("reuse"))
	some, err := ParseSelection([]string{"W4/reuse"})
	require.NoError(t, err)
	assert.False(t, some.Names("trim"))
	assert.False(t, some.Selects("go", "W0", "reuse"))

	for entry, says := range map[string]string{
		"jemaloc":          `remedy "jemaloc"; the help of matrix lists them`,
		"W44/trim":         `workload "W44"; the help of matrix lists them`,
		"pytorch:trim":     "keras",
		"keras:W4/rebuild": `remedy "rebuild"; the help of matrix lists them`,
	} {
		_, err := ParseSelection([]string{entry})
		assert.ErrorIs(t, err, ErrUnknown)
		assert.ErrorContains(t, err, says)
		assert.ErrorContains(t, err, entry)
	}
}
