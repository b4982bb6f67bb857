package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A training with variables that a process reads only at its start runs in a child process that has them from
// its start.
func TestAllocatorTakesAChild(t *testing.T) {
	history := filepath.Join(t.TempDir(), "history.jsonl")
	cmd := program(t, "fit", "--model", "builtin:digits", "--data", "builtin:digits", "--epochs", "10000000",
		"--allocator", "mmap", "--history", history)
	output := start(t, cmd)
	want := []string{"TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1"}
	assert.Eventually(t, func() bool {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", childOf(cmd.Process.Pid)))
		started := strings.Split(string(environ), "\x00")
		return err == nil && !slices.ContainsFunc(want, func(v string) bool { return !slices.Contains(started, v) })
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.True(t, errors.As(cmd.Wait(), &exit))
	assert.Equal(t, exitInterrupted, exit.ExitCode(), "%s", output)
}
