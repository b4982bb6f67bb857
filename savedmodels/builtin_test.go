package savedmodels

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

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

// packed returns a file system with the model m, which has these files by name.
func packed(t *testing.T, files map[string]string) fstest.MapFS {
	t.Helper()
	var data bytes.Buffer
	w := zip.NewWriter(&data)
	for name, content := range files {
		out, err := w.Create(name)
		require.NoError(t, err)
		_, err = out.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return fstest.MapFS{"builtin/README.txt": {Data: []byte("about")}, "builtin/m.zip": {Data: data.Bytes()}}
}

func someModel(t *testing.T) fstest.MapFS {
	return packed(t, map[string]string{"saved_model.pb": "program", "variables/variables.idx": "weights"})
}

func TestMaterialise(t *testing.T) {
	model := someModel(t)
	require.Equal(t, []string{"m"}, builtinNames(model))
	cache := t.TempDir()
	dir, err := materialise(model, "m", cache)
	require.NoError(t, err)
	require.Equal(t, cache, filepath.Dir(dir))
	weights := filepath.Join(dir, "variables", "variables.idx")
	check := func() {
		t.Helper()
		data, err := os.ReadFile(weights)
		require.NoError(t, err)
		require.Equal(t, "weights", string(data))
		entries, err := os.ReadDir(cache)
		require.NoError(t, err)
		require.Len(t, entries, 1, "nothing temporary stays")
	}
	check()
	t.Run("nothing", func(t *testing.T) {
		before, err := os.Stat(weights)
		require.NoError(t, err)
		again, err := materialise(model, "m", cache)
		require.NoError(t, err)
		require.Equal(t, dir, again)
		after, err := os.Stat(weights)
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after), "what is whole is not written again")
	})

	changed := packed(t, map[string]string{"saved_model.pb": "another program"})
	other, err := materialise(changed, "m", cache)
	require.NoError(t, err)
	require.NotEqual(t, dir, other, "other content has another folder")
}

func TestMaterialiseRace(t *testing.T) {
	model := someModel(t)
	cache := t.TempDir()
	var group sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		group.Go(func() {
			dir, err := materialise(model, "m", cache)
			if err == nil {
				_, err = os.ReadFile(filepath.Join(dir, "saved_model.pb"))
			}
			errs[i] = err
		})
	}
	group.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	entries, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestMaterialiseWithoutCache(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o600))
	_, err := materialise(someModel(t), "m", blocked)
	require.ErrorContains(t, err, "not a directory; XDG_CACHE_HOME names another folder for it")
}

func TestEnumerate(t *testing.T) {
}
