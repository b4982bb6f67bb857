package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLocateVersion(t *testing.T) {
	t.Chdir(t.TempDir())
	dir := filepath.Join(".runtime-2.17.1", "tensorflow")
	require.NoError(t, os.MkdirAll(dir, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "steadyfit-runtime.json"), []byte(`{"version": "2.17.1"}`), 0o666))
	got, err := locateVersion("2.17.1")
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(here, dir, "libtensorflow_cc.so.2"), got)

	_, err = locateVersion("2.0.1")
	assert.ErrorContains(t, err, "run scripts/runtime.py --version 2.0.1")
	assert.Equal(t, exitEnvironment, exitCode(err))
}
