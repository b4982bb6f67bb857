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

// asChild makes the test binary what run does, if the variable is set, to its value.
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

// process is what a child says of itself: started anew, it is still the same one.
type process struct {
	PID  int
	Args []string
}

func thisProcess() process { return process{os.Getpid(), os.Args} }

func (p process) identity() process { return p }

// runChild has a child do that, and reads what it prints as JSON; with its log, and the
// error that it ended with.
func runChild[T interface{ identity() process }](t *testing.T, variable, kind string, env ...string) (o T, log string, err error) {
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
