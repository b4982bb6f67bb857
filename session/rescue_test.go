package session

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// If the new model cannot be renamed because a folder with its name is in the way, neither the new model
// nor the one that it replaces is removed.
func TestRescue(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "model")
	write := func(path string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(filepath.Base(path)), 0o666))
	}
	saved := func(name string) string {
		temp := filepath.Join(parent, unfinished(dir)+name)
		write(filepath.Join(temp, newModel, "trained"))
		write(filepath.Join(temp, replacedModel, "before"))
		return temp
	}
	kept, err := rescue(saved("1"), dir)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(parent, "model.new-1"), kept)
	require.FileExists(t, filepath.Join(dir, "before"))
	require.FileExists(t, filepath.Join(kept, newModel, "trained"))

	write(filepath.Join(dir, "other"))
	temp := saved("2")
	kept, err = rescue(temp, dir)
	require.ErrorContains(t, err, replacedModel)
	require.NotEqual(t, temp, kept)
	tidy(dir)
	require.FileExists(t, filepath.Join(kept, newModel, "trained"))
	require.FileExists(t, filepath.Join(kept, replacedModel, "before"))

	write(filepath.Join(parent, "model.new-3", "other"))
	temp = saved("3")
	kept, err = rescue(temp, dir)
	require.ErrorContains(t, err, "model.new-3")
	require.Equal(t, temp, kept)
	require.ErrorContains(t, err, "move the trained model, because a later save to "+dir+" deletes it there")
	require.FileExists(t, filepath.Join(kept, newModel, "trained"))
	tidy(dir)
	require.NoDirExists(t, kept)
}
