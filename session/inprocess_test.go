package session

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const oneDNNVariable = "TF_ENABLE_ONEDNN_OPTS"

// InProcess reports whether TF_ENABLE_ONEDNN_OPTS has the value in this process; an empty value
// means that the variable is not set. If this process has another value, InProcess runs the test in
// a child process that has the right one.
func InProcess(t *testing.T, value string) bool {
	t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, oneDNNVariable+"=") })
	if len(env) == len(os.Environ()) && value == "" || value != "" && os.Getenv(oneDNNVariable) == value {
		return true
	}
	if value != "" {
		env = append(env, oneDNNVariable+"="+value)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "with %s=%s\n%s", oneDNNVariable, value, out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}
