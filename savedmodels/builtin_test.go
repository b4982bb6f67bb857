package savedmodels

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestBuiltinModels(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	names := BuiltinNames()
	require.Contains(t, names, "digits")
	for _, name := range names {
		m, err := Builtin(name)
		require.NoError(t, err)
		require.NoError(t, m.CheckTrainable(CheckOptions{}))
		require.Empty(t, m.Problems)
		require.NotNil(t, m.Metadata)
		require.NotEmpty(t, m.Roles.Evaluate)
		require.NotEmpty(t, m.Roles.Predict)
		again, err := Builtin(name)
		require.NoError(t, err)
		require.Equal(t, m.Dir, again.Dir)
	}
}

func TestBuiltinUnknown(t *testing.T) {
	_, err := Builtin("digit")
	require.ErrorIs(t, err, ErrUnknownBuiltin)
	require.ErrorContains(t, err, `"digit"; there are digits`)
	for _, bad := range []string{"", ".", "..", "../builtin/digits", "README.txt"} {
		_, err := Builtin(bad)
		require.ErrorIs(t, err, ErrUnknownBuiltin, bad)
	}
	_, _, err = builtinFiles(fstest.MapFS{}, "digits")
	require.ErrorContains(t, err, "this build has none")
}

var someModel = fstest.MapFS{
	"builtin/README.txt":                {Data: []byte("about")},
	"builtin/m/saved_model.pb":          {Data: []byte("program")},
	"builtin/m/variables/variables.idx": {Data: []byte("weights")},
	"builtin/other/notes.txt":           {Data: []byte("no model")},
}

func TestMaterialise(t *testing.T) {
	require.Equal(t, []string{"m"}, builtinNames(someModel))
	cache := t.TempDir()
	dir, err := materialise(someModel, "m", []string{cache})
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
	for name, damage := range map[string]func() error{
		"nothing":   func() error { return nil },
		"truncated": func() error { return os.WriteFile(weights, nil, 0o600) },
		"longer":    func() error { return os.WriteFile(weights, []byte("weights and more"), 0o600) },
		"other":     func() error { return os.WriteFile(weights, []byte("WEIGHTS"), 0o600) },
		"missing":   func() error { return os.RemoveAll(filepath.Dir(weights)) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, damage())
			again, err := materialise(someModel, "m", []string{cache})
			require.NoError(t, err)
			require.Equal(t, dir, again)
			check()
		})
	}

	changed := fstest.MapFS{"builtin/m/saved_model.pb": {Data: []byte("another program")}}
	other, err := materialise(changed, "m", []string{cache})
	require.NoError(t, err)
	require.NotEqual(t, dir, other, "other content has another folder")
}

func TestMaterialiseRace(t *testing.T) {
	cache := t.TempDir()
	var group sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		group.Go(func() {
			dir, err := materialise(someModel, "m", []string{cache})
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
	t.Setenv("TMPDIR", t.TempDir())
	dir, err := materialise(someModel, "m", []string{blocked})
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "saved_model.pb"))
	info, err := os.Stat(filepath.Dir(dir))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), "no other user may change it")
}

func TestEnumerate(t *testing.T) {
	require.Equal(t, "a, b and 2 others", enumerate([]string{"a", "b", "c", "d"}, 2))
	require.Equal(t, "a, b and 1 other", enumerate([]string{"a", "b", "c"}, 2))
	require.Equal(t, "a", enumerate([]string{"a"}, 2))
}
