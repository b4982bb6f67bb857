package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

// The network that was pretrained on some digits learns the others, with the same weights with
// and without the cache.
func TestTransfer(t *testing.T) {
	python := os.Getenv("STEADYFIT_PYTHON")
	if python == "" {
		python = "../../.runtime/venv/bin/python"
	}
	if _, err := os.Stat(python); err != nil {
		t.Skipf("no Python with TensorFlow at %s: run `make venv`, or set STEADYFIT_PYTHON", python)
	}
	dir := t.TempDir()
	cmd := exec.Command(python, "pretrain.py", dir, "--epochs", "3")
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=-1")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)

	var out bytes.Buffer
	o := options{dir: dir, data: filepath.Join(dir, "train.npz"), test: filepath.Join(dir, "test.npz"), epochs: 6,
		batch: 32}
	require.NoError(t, run(context.Background(), o, &out))
	t.Log(out.String())
	assert.Contains(t, out.String(), "computed once for 717 samples")
	lines := regexp.MustCompile(`test accuracy ([\d.]+), (\d+) steps`).FindAllStringSubmatch(out.String(), -1)
	require.Len(t, lines, 2)
	assert.Equal(t, lines[0], lines[1], "without and with the cache")
	accuracy, err := strconv.ParseFloat(lines[0][1], 64)
	require.NoError(t, err)
	assert.Greater(t, accuracy, 0.95)
	assert.Equal(t, "138", lines[0][2], "6 epochs of 23 batches")

	weights := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name, "variables", "variables.data-00000-of-00001"))
		require.NoError(t, err)
		return b
	}
	assert.True(t, bytes.Equal(weights("without"), weights("with")))
	assert.False(t, bytes.Equal(weights("model"), weights("with")))
	assert.Equal(t, tfbind.Counts{}, tfbind.Live())
}
