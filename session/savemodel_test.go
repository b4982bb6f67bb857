package session_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/files"
	"steadyfit/session"
)

// CheckOutput removes the temporary folders of killed processes, and restores a replaced model if
// the new one is missing. It changes no other files.
func TestCheckOutputTidies(t *testing.T) {
	model := builtin(t, "digits")
	dir := t.TempDir()
	for _, name := range []string{"a", ".a.tmp-1/new", ".a.tmp-1/old/before", ".b.tmp-2/old", ".b.tmp-20/new",
		".c.tmp-3/new", ".b.tmp-0.tmp-6/old", ".b.tmp-data/new"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.FromSlash(name)), 0o777))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".b.tmp-2/old/saved_model.pb"), []byte("before"), 0o666))
	saving, remove, err := files.NewScratch(dir, ".b.tmp-")
	require.NoError(t, err)
	defer func() { require.NoError(t, remove()) }()
	for _, name := range []string{"a", "b", "none/a"} {
		_ = session.CheckOutput(filepath.Join(dir, name), model)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.ElementsMatch(t, []string{filepath.Base(saving), ".b.tmp-0.tmp-6", ".b.tmp-data", ".c.tmp-3", "a", "b", "none"},
		names)
	text, err := os.ReadFile(filepath.Join(dir, "b", "saved_model.pb"))
	require.NoError(t, err)
	assert.Equal(t, "before", string(text))
}
