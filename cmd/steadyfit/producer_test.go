package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TensorFlow does not warn of graphs of another version when a checkpoint is written and read.
func TestVersionsOfGraphs(t *testing.T) {
	checkpoints := filepath.Join(t.TempDir(), "ckpt")
	for _, epochs := range []string{"1", "2"} {
		said, err := program(t, "fit", "--model", "builtin:digits", "--data", "builtin:digits", "--steps-per-epoch", "2",
			"--auto", "off", "--checkpoints", checkpoints, "--epochs", epochs, "--resume").CombinedOutput()
		require.NoError(t, err, string(said))
		assert.NotContains(t, string(said), "producer version")
	}
}
