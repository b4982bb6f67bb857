package session_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/session"
)

// TidyModels removes unfinished models and restores a replaced model if the new one is missing.
// It touches nothing else.
func TestTidyModels(t *testing.T) {
	dir := t.TempDir()
	leave := func(names ...string) {
		for _, name := range names {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.FromSlash(name)), 0o777))
		}
	}
	leave("a/now", ".a.tmp-1/new", ".a.tmp-1/old/before", ".b.tmp-2/old/before", ".c.tmp-3/new", ".tmp-4/new", "d.tmp-5", ".e", ".a.tmp-0.tmp-6/old/before", ".g.tmp-data/new")
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".f.tmp-7"), nil, 0o666))
	names := func() (names []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}

	changed := time.Unix(1_700_000_000, 0)
	require.NoError(t, os.Chtimes(filepath.Join(dir, ".c.tmp-3"), changed, changed))
	asked := map[string]time.Time{}
	require.NoError(t, session.TidyModels(dir, func(model string, changed time.Time) bool {
		asked[model] = changed
		return model == "c"
	}))
	assert.Len(t, asked, 4, "%v", asked)
	assert.Contains(t, asked, "a.tmp-0")
	assert.True(t, asked["c"].Equal(changed))
	assert.Equal(t, []string{".a.tmp-0.tmp-6", ".a.tmp-1", ".b.tmp-2", ".e", ".f.tmp-7", ".g.tmp-data", ".tmp-4", "a", "d.tmp-5"}, names())

	require.NoError(t, session.TidyModels(dir, nil))
	assert.Equal(t, []string{".e", ".f.tmp-7", ".g.tmp-data", ".tmp-4", "a", "a.tmp-0", "b", "d.tmp-5"}, names())
	assert.DirExists(t, filepath.Join(dir, "a", "now"))
	assert.DirExists(t, filepath.Join(dir, "b", "before"))

	require.NoError(t, session.TidyModels(filepath.Join(dir, "none"), nil))
	assert.ErrorIs(t, session.TidyModels(filepath.Join(dir, ".f.tmp-7"), nil), syscall.ENOTDIR)
}
