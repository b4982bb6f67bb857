package files

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An output is not an input, or inside of one, also through links and patterns.
func TestInputs(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, dir := range []string{"model/variables", "images/cat", "out/old"} {
		require.NoError(t, os.MkdirAll(dir, 0o777))
	}
	for _, file := range []string{"a.csv", "part-1.tfrecord", "out/old/v.csv", "images/notes"} {
		require.NoError(t, os.WriteFile(file, nil, 0o666))
	}
	require.NoError(t, os.Link("a.csv", "hard.csv"))
	require.NoError(t, os.Symlink("a.csv", "soft.csv"))
	require.NoError(t, os.Symlink("images/cat", "cats"))
	require.NoError(t, os.Symlink("images/notes", "notes"))
	for _, c := range []struct {
		in     [3]string // model, data, validation data
		output string
		says   string
	}{
		{[3]string{1: "a.csv"}, "", ""},
		{[3]string{1: "a.csv"}, "b.csv", ""},
		{[3]string{1: "a.csv"}, "new/folder/b.csv", ""},
		{[3]string{"builtin:digits", "builtin:digits"}, "out", ""},
		{[3]string{1: os.DevNull}, os.DevNull, ""},
		{[3]string{1: "images"}, "images-2", ""},
		{[3]string{1: "images/cat"}, "images/other", ""},
		{[3]string{1: "a.csv"}, "./a.csv", "this is the data itself, which would be overwritten; give another path"},
		{[3]string{1: "a.csv"}, "hard.csv", "the data itself"},
		{[3]string{1: "a.csv"}, "soft.csv", "the data itself"},
		{[3]string{1: "soft.csv"}, "a.csv", "the data itself"},
		{[3]string{1: "part-*.tfrecord"}, "part-1.tfrecord", "the data itself"},
		{[3]string{"model"}, "model/", "the model itself"},
		{[3]string{2: "a.csv"}, "a.csv", "the validation data itself"},
		{[3]string{1: "images"}, "images/new/p.csv", "this is inside the data images, which must not change; give another " +
			"path"},
		{[3]string{1: "images"}, "cats/new/p.csv", "inside the data images"},
		{[3]string{1: "images"}, "notes", "inside the data images"},
		{[3]string{1: "cats"}, "images/cat/p.csv", "inside the data cats"},
	} {
		if err := NewInputs(c.in[0], c.in[1], c.in[2]).Check(c.output); c.says == "" {
			assert.NoError(t, err, c.output)
		} else {
			assert.ErrorContains(t, err, c.says)
		}
	}
	old := NewInputs("builtin:digits", "", "out/old/v.csv")
	require.NoError(t, old.Check("out"))
	assert.EqualError(t, old.CheckFolder("out"), "the validation data out/old/v.csv is inside this folder, which would "+
		"be replaced; give another path")
	assert.NoError(t, old.CheckFolder("other"))
	assert.NoError(t, NewInputs("builtin:digits", "", "missing").CheckFolder("."))
	assert.ErrorContains(t, NewInputs("out", "", "").CheckFolder("out"), "the model itself")
}

func TestGlob(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"d[1]/a-1.tar", "d[1]/a-2.tar", "d1/a-1.tar"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
		require.NoError(t, os.WriteFile(name, nil, 0o666))
	}
	for pattern, want := range map[string][]string{
		"d[1]/a-*": {"d[1]/a-1.tar", "d[1]/a-2.tar"}, "d[1]/a-1.tar": {"d[1]/a-1.tar"}, "d*/a-2*": {"d[1]/a-2.tar"},
		"d1*": {"d1"}, "none/*": nil,
	} {
		found, err := Glob(pattern)
		require.NoError(t, err)
		require.Equal(t, want, found, pattern)
	}
	_, err := Glob("d1/[")
	require.ErrorIs(t, err, filepath.ErrBadPattern)
}
