package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The batch script runs fit on all machines with valid flags, and only an interrupted training is
// queued again.
func TestSlurmScript(t *testing.T) {
	for _, code := range []int{exitOK, exitFailed, exitUsage, exitDiverged, exitInterrupted} {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"srun":     `printf '%s\n' "$@" >"$LOG"/srun.log; exit ` + strconv.Itoa(code),
			"scontrol": `echo "$*" >"$LOG"/scontrol.log`,
		} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
		}
		cmd := exec.Command("bash", "../../examples/slurm/fit.sbatch")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LOG="+dir, "SLURM_JOB_ID=7",
			"SLURM_CPUS_PER_TASK=8")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if code != 0 {
			require.ErrorAs(t, err, &exit, "%s", out)
			assert.Equal(t, code, exit.ExitCode())
		} else {
			require.NoError(t, err, "%s", out)
		}
		arguments, err := os.ReadFile(filepath.Join(dir, "srun.log"))
		require.NoError(t, err)
		options, fit, ok := strings.Cut(string(arguments), "\nsteadyfit\n")
		require.True(t, ok)
		assert.Contains(t, options, "--distribution=block", "package cluster expects the tasks of a machine in a row")
		run := parsed(t, strings.Fields(fit))
		assert.Equal(t, "fit", run.Name())
		for _, name := range []string{"supervise", "resume", "checkpoints"} {
			assert.True(t, run.Flags().Changed(name), name)
		}
		requeued, err := os.ReadFile(filepath.Join(dir, "scontrol.log"))
		if code == exitInterrupted {
			require.NoError(t, err)
			assert.Equal(t, "requeue 7\n", string(requeued))
		} else {
			assert.ErrorIs(t, err, os.ErrNotExist, "exit code %d", code)
		}
	}
}
