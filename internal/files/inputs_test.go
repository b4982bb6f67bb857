package files

import (
	"os"
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
		in     Inputs
		output string
		says   string
	}{
		{Inputs{Data: "a.csv"}, "", ""},
		{Inputs{Data: "a.csv"}, "b.csv", ""},
		{Inputs{Data: "a.csv"}, "new/folder/b.csv", ""},
		{Inputs{Data: "builtin:digits", Model: "builtin:digits"}, "out", ""},
		{Inputs{Data: "images"}, "images-2", ""},
		{Inputs{Data: "images/cat"}, "images/other", ""},
		{Inputs{Data: "a.csv"}, "./a.csv", "this is the data itself, which would be overwritten; give another path"},
		{Inputs{Data: "a.csv"}, "hard.csv", "the data itself"},
		{Inputs{Data: "a.csv"}, "soft.csv", "the data itself"},
		{Inputs{Data: "soft.csv"}, "a.csv", "the data itself"},
		{Inputs{Data: "part-*.tfrecord"}, "part-1.tfrecord", "the data itself"},
		{Inputs{Model: "model"}, "model/", "the model itself"},
		{Inputs{Validation: "a.csv"}, "a.csv", "the validation data itself"},
		{Inputs{Data: "images"}, "images/new/p.csv", "this is inside the data images, which must not change; give another path"},
		{Inputs{Data: "images"}, "cats/new/p.csv", "inside the data images"},
		{Inputs{Data: "images"}, "notes", "inside the data images"},
		{Inputs{Data: "cats"}, "images/cat/p.csv", "inside the data cats"},
	} {
		if err := c.in.Check(c.output); c.says == "" {
			assert.NoError(t, err, c.output)
		} else {
			assert.ErrorContains(t, err, c.says)
		}
	}
	old := Inputs{Validation: "out/old/v.csv"}
	require.NoError(t, old.Check("out"))
	assert.EqualError(t, old.CheckFolder("out"), "the validation data out/old/v.csv is inside this folder, which would be replaced; give another path")
	assert.NoError(t, old.CheckFolder("other"))
	assert.ErrorContains(t, Inputs{Model: "out"}.CheckFolder("out"), "the model itself")
}
