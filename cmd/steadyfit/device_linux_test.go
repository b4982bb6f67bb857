package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Each command that opens a session has the variables of its flags from its start. The test
// looks at the process from outside, while it waits for a reader of its warning.
func TestDeviceFlagsRestart(t *testing.T) {
	for _, args := range [][]string{
		{"fit"}, {"fit", "--release-memory"}, {"evaluate"}, {"predict", "--out", "p.csv"}, {"bench"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			want := []string{"TF_DETERMINISTIC_OPS=1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}
			if len(args) > 1 && args[1] == "--release-memory" {
				want = append(want, "MALLOC_ARENA_MAX=1", "TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1")
			}
			cmd := program(t, append(args, "--model", "builtin:digits", "--data", "gone.csv", "--deterministic", "--visible-gpus", "0")...)
			cmd.Dir = t.TempDir()
			cmd.Env = append(cmd.Env, "TF_GPU_MEMORY_ALLOW_GROWTH=true")
			stderr, full, err := os.Pipe()
			require.NoError(t, err)
			defer stderr.Close()
			size, err := unix.FcntlInt(full.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
			require.NoError(t, err)
			_, err = full.Write(make([]byte, size))
			require.NoError(t, err)
			cmd.Stderr = full
			require.NoError(t, cmd.Start())
			defer func() { _ = cmd.Process.Kill() }() // the process has ended; an error shows later
			require.NoError(t, full.Close())
			var started []string
			assert.Eventually(t, func() bool {
				environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid))
				started = strings.Split(string(environ), "\x00")
				return err == nil && !slices.ContainsFunc(want, func(v string) bool { return !slices.Contains(started, v) })
			}, time.Minute, 5*time.Millisecond)
			text, err := io.ReadAll(stderr)
			require.NoError(t, err)
			var exit *exec.ExitError
			require.True(t, errors.As(cmd.Wait(), &exit))
			log := strings.TrimLeft(string(text), "\x00")
			assert.Equal(t, exitUsage, exit.ExitCode(), log) // there is no data
			assert.Equal(t, 1, strings.Count(log, "warning: TF_GPU_MEMORY_ALLOW_GROWTH: TensorFlow 2.21 does not read it"), log)
		})
	}
}
