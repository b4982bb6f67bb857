package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Where TensorFlow would abort, the command says why in one line.
//
//lane:skip race (the race detector needs the address space)
func TestProcessThatTensorFlowCannotUse(t *testing.T) {
	empty := t.TempDir()
	for _, c := range []struct{ script, says string }{
		{`ulimit -v 3000000 && exec "$0"`, "the limit of the address space (ulimit -v) is 2.9 GiB, and TensorFlow needs at least 4 GiB"},
		{`exec unshare -m -r sh -c 'mount --bind ` + empty + ` /proc && exec "$0"' "$0"`, "TensorFlow aborts without /proc/self/exe"},
		{`exec unshare -m -r sh -c 'mount --bind ` + empty + ` /dev && exec "$0"' "$0"`, "TensorFlow aborts without /dev/urandom"},
	} {
		if strings.Contains(c.script, "unshare") && exec.Command("unshare", "-m", "-r", "mount", "--bind", empty, empty).Run() != nil {
			t.Log("skipped, since this user cannot make namespaces: " + c.says)
			continue
		}
		cmd := program(t, "fit", "--model", "builtin:digits", "--data", "builtin:digits", "--epochs", "1")
		cmd.Args, cmd.Path = []string{"sh", "-c", c.script, cmd.Path}, "/bin/sh"
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		_ = cmd.Run() // the exit code says what happened
		assert.Equal(t, exitEnvironment, cmd.ProcessState.ExitCode(), "%s", &output)
		assert.Contains(t, output.String(), "steadyfit: no usable TensorFlow library: "+c.says)
		assert.Equal(t, 1, strings.Count(output.String(), "\n"), "%s", &output)
	}
}
