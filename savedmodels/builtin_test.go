package savedmodels

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/contract"
)

func TestBuiltinModels(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	names := BuiltinNames()
	require.Equal(t, []string{"dense-100-64-1", "dense-784-10", "digits", "digits-bf16", "digits-cnn", "digits-cnn-bf16",
		"digits-cnn-fp16", "digits-fp16", "digits-scaled", "dropout-200-512-256-1", "image-224", "lstm"}, names)
	for _, name := range names {
		m, err := Builtin(name)
		require.NoError(t, err)
		require.NoError(t, m.CheckTrainable(false))
		require.Empty(t, m.Problems)
		require.NotNil(t, m.Metadata)
		require.NotEmpty(t, m.Roles.Evaluate)
		require.NotEmpty(t, m.Roles.Predict)
		require.NotEmpty(t, m.Roles.Gradients)
		require.NotEmpty(t, m.Roles.Apply)
		again, err := Builtin(name)
		require.NoError(t, err)
		require.Equal(t, m.Dir, again.Dir)
	}
}

func TestBuiltinUnknown(t *testing.T) {
	_, err := Builtin("digit")
	require.ErrorIs(t, err, errUnknownBuiltin)
	require.ErrorContains(t, err, `"digit"; there are dense-100-64-1, dense-784-10, digits`)
	for _, bad := range []string{"", ".", "..", "../builtin/digits", "README.txt"} {
		_, err := Builtin(bad)
		require.ErrorIs(t, err, errUnknownBuiltin, bad)
	}
}

func TestOpenBuiltin(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	m, err := Open(contract.BuiltinPrefix + "digits")
	require.NoError(t, err)
	named, err := Builtin("digits")
	require.NoError(t, err)
	require.Equal(t, named.Hash, m.Hash)
	_, err = Open(contract.BuiltinPrefix + "nowhere")
	require.ErrorIs(t, err, errUnknownBuiltin)
}

func TestBuiltinSizes(t *testing.T) {
	for _, name := range BuiltinNames() {
		info, err := os.Stat(filepath.Join(builtinRoot, name+archiveExt))
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(2_000_000), name)
	}
}

// Processes that write the same model at the same time leave one whole folder, which is not written again.
func TestBuiltinIsWrittenOnce(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	var group sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		group.Go(func() { _, errs[i] = Builtin("digits") })
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	models := filepath.Join(cache, "steadyfit", "models")
	entries, err := os.ReadDir(models)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing temporary stays")
	index := filepath.Join(models, entries[0].Name(), "variables", "variables.index")
	before, err := os.Stat(index)
	require.NoError(t, err)
	_, err = Builtin("digits")
	require.NoError(t, err)
	after, err := os.Stat(index)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
}

func TestBuiltinWithoutCache(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o600))
	t.Setenv("XDG_CACHE_HOME", blocked)
	_, err := Builtin("digits")
	require.ErrorContains(t, err, "not a directory; XDG_CACHE_HOME names another folder for it")
}

func TestEnumerate(t *testing.T) {
}
