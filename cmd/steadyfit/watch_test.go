package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const flatTests = `
import pytest
kept = []

@pytest.mark.flat(within=6)
def test_level():
    [0] * 100_000

@pytest.mark.flat(within=60)
def test_leaks():
    kept.append(bytearray(100_000))
    sum(range(20_000))

@pytest.mark.flat
def test_fails():
    assert kept
`

// The plugin of pytest repeats a test until the verdict is sure, and reports what grows.
//
//lane:skip onednn (it does not use TensorFlow)
func TestPytestPlugin(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "steadyfit")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "test_flat.py"), []byte(flatTests), 0o600))
	plugin, err := filepath.Abs("../../scripts")
	require.NoError(t, err)
	cmd := exec.Command(python(t), "-m", "pytest", "-q", "-p", "pytest_steadyfit", "-p", "no:cacheprovider", "test_flat.py")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONPATH="+plugin, "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, _ := cmd.CombinedOutput() // it fails, and the output says why
	text := string(out)
	assert.Contains(t, text, "2 failed, 1 passed")
	assert.Regexp(t, `The memory leaks: \+\S+ KiB per repetition`, text)
	assert.Regexp(t, `place +\S*test_flat.py:11`, text)
	assert.Contains(t, text, "the test failed when it was repeated")
}
