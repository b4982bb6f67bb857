package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// No command replaces its model or data, or writes into their folders.
func TestOutputsAreNotInputs(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll("images/cat", 0o777))
	require.NoError(t, os.MkdirAll("out/base", 0o777))
	require.NoError(t, os.Mkdir("dir.csv", 0o777))
	require.NoError(t, os.Symlink("images", "link"))
	require.NoError(t, os.WriteFile("shop.csv", []byte("x,y\n1,0\n"), 0o666))
	tree := func() string {
		var all bytes.Buffer
		require.NoError(t, filepath.Walk(".", func(path string, info os.FileInfo, err error) error {
			all.WriteString(path + "\n")
			if err == nil && info.Mode().IsRegular() {
				text, err := os.ReadFile(path)
				all.Write(text)
				return err
			}
			return err
		}))
		return all.String()
	}
	before := tree()
	for args, says := range map[string]string{
		"predict --model images --data shop.csv --out shop.csv": "--out shop.csv: this " +
			"is the data itself, which would be overwritten; give another path",
		"predict --model out/base --data images --out images/new/p.csv": "--out images/new/p.csv: this is inside the data images, which must not change; give another path",
		"predict --model images --data shop.csv --out dir.csv": "--out dir.csv: it is " +
			"a folder; name a file in it, such as dir.csv/predictions.csv",
		"tune --model images --data shop.csv --out shop.csv": "--out shop.csv: this " +
			"is the data",
		"tune --model images --data shop.csv --out images": "--out images: this " +
			"is the model",
		"explain --model out/base --data images --out images": "--out images: this " +
			"is the data",
		"matrix --model out/base --data images --out images/matrix": "--out images/matrix: " +
			"this is inside the data images",
		"merge --model out/base --adapter a --out out": "--out out: the model " +
			"out/base is inside this folder, which would be replaced",
		"fit --model images --data shop.csv --history ./shop.csv":         "--history ./shop.csv: this is the data",
		"fit --model out/base --data images --history images/cat/h.jsonl": "--history images/cat/h.jsonl: this is inside the data images",
		"fit --model out/base --data shop.csv --validation images --checkpoints images": "--checkpoints " +
			"images: this is the validation data",
		"fit --model out/base --data images --out-version images": "--out-version " +
			"images: this is the data",
		"fit --model out/base --data shop.csv --profile steps=2:3,file=shop.csv --learning-rate 1": "--profile shop.csv: " +
			"this is the data",
		"fit --model out/base --data shop.csv --out new --checkpoints ./new":  "--checkpoints ./new: this is inside of --out",
		"fit --model out/base --data shop.csv --out new --checkpoints new/ck": "--checkpoints new/ck: this is inside of --out",
		"fit --model out/base --data shop.csv --out new --out-adapter new":    "--out-adapter new: this is inside of --out",
		"fit --model out/base --data shop.csv --out new --tensorboard new/tb": "--tensorboard new/tb: this is inside of --out",
		"fit --model out/base --data shop.csv --out new --history new/h.csv": "--history new/h.csv: this is inside of --out, " +
			"which is replaced as a whole; give another path",
		"fit --model out/base --data shop.csv --checkpoints link/a --tensorboard out/../images/a": "--tensorboard " +
			"out/../images/a: --checkpoints has the same path; give another one",
	} {
		var stderr strings.Builder
		assert.Equal(t, exitUsage, run(t.Context(), strings.Fields(args), io.Discard, &stderr), args)
		assert.Contains(t, stderr.String(), "steadyfit: "+says, args)
	}
	assert.Equal(t, before, tree())
}

// Errors of outputs name the path that was given, and say what to do.
func TestOutputErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("multi.npz", nil, 0o666))
	err := predictions{kind: ".csv"}.write(t.Context(), nil, 1, "multi.npz/new/p.csv")
	assert.EqualError(t, err, "--out multi.npz/new/p.csv: write multi.npz/new: not a directory; make the folder writable, "+
		"or use another folder")
	assert.Equal(t, exitUsage, exitCode(err))
}
