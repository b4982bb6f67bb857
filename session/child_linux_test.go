package session

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asChild calls run instead of the tests if the environment variable is set. kind is the value of
// the variable.
func asChild(variable string, run func(kind string) error) {
	kind := os.Getenv(variable)
	if kind == "" {
		return
	}
	if err := run(kind); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process identifies a child process. It stays the same when the process restarts itself.
type process struct {
	PID  int
	Args []string
}

func thisProcess() process { return process{os.Getpid(), os.Args} }

func (p process) identity() process { return p }

// runChild runs a child and reads its output as JSON. It also returns the child's log and
// error.
func runChild[T interface{ identity() process }](t *testing.T, variable, kind string, env ...string) (o T, log string,
	err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "an argument")
	cmd.Env = append(append(os.Environ(), variable+"="+kind), env...)
	var text, failed strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &failed
	require.NoError(t, cmd.Start())
	if err = cmd.Wait(); err == nil {
		require.NoError(t, json.Unmarshal([]byte(text.String()), &o))
		assert.Equal(t, cmd.Process.Pid, o.identity().PID)
		assert.Equal(t, "an argument", o.identity().Args[1])
	}
	return o, failed.String(), err
}
