package savedmodels

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckUnchanged(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(dir string) error
		want  error
	}{
		"nothing": {func(string) error { return nil }, nil},
		"other weights": {func(dir string) error {
			path := filepath.Join(dir, "variables/variables.data-00000-of-00001")
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, make([]byte, info.Size()), 0o600)
		}, nil},
		"weights cut off": {func(dir string) error {
			return os.Truncate(filepath.Join(dir, "variables/variables.data-00000-of-00001"), 1)
		}, ErrNotSavedModel},
		"replaced": {func(dir string) error { return os.WriteFile(filepath.Join(dir, modelFile), []byte("x"), 0o600) },
			ErrChanged},
		"no program":   {func(dir string) error { return os.Remove(filepath.Join(dir, modelFile)) }, ErrNotSavedModel},
		"no weights":   {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "variables")) }, ErrNotSavedModel},
		"nothing left": {os.RemoveAll, fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "good")
			require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/good")))
			m, err := Open(dir)
			require.NoError(t, err)
			require.NoError(t, c.spoil(dir))
			err = m.CheckUnchanged()
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, dir)
		})
	}
}

func TestStateOutsideOfVariables(t *testing.T) {
	for op, does := range map[string]string{
		"RandomUniform": "draws random numbers", "MutableHashTableV2": "keeps a table that changes",
		"IteratorV2": "keeps its position",
	} {
		m := read(t, trainer(nil, nodeDef("n", op, nil, nil)))
		require.Equal(t, []string{"warning state-not-saved train"}, brief(m.Problems))
		require.Contains(t, m.Problems[0].Message, op+" "+does)
		require.Contains(t, m.Problems[0].Message, "at n")
		require.NoError(t, m.CheckTrainable(false), "it is for the user to judge")
	}
	for _, op := range []string{"StatelessRandomUniformV2", "StatefulUniform", "HashTableV2"} {
		require.Empty(t, read(t, trainer(nil, nodeDef("n", op, nil, nil))).Problems, op)
	}
}
