package session

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// asChild calls run instead of the tests if the environment variable is set, and prints the result. kind is the value
// of the variable.
func asChild(variable string, run func(kind string) (any, error)) {
	kind := os.Getenv(variable)
	if kind == "" {
		return
	}
	result, err := run(kind)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild runs a child and reads its result. It also returns the child's log and error.
func runChild[T any](t *testing.T, variable, kind string, env ...string) (result T, log string, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), variable+"="+kind), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err == nil {
		require.NoError(t, json.Unmarshal(text, &result))
	}
	return result, stderr.String(), err
}
