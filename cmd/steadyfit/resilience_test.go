package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A flag without effect is refused, and the error names what it needs.
func TestFlagsThatWouldDoNothing(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--reset-every", "10steps"}, "--reset-every needs --reset, which says how to reset"},
		{[]string{"--memory-budget", "0"}, "expected more than 0"},
		{[]string{"--memory-budget", "500"}, "500 B is too small for any training; a number alone is in bytes"},
		{[]string{"--memory-budget", "20KB"}, "19.5 KiB is too small for any training"},
		{[]string{"--memory-budget", "2MiB:gpu"}, "expected rss, anon or cgroup"},
	} {
		var stdout, stderr bytes.Buffer
		args := append([]string{"fit", "--model", "builtin:digits", "--data", "builtin:digits"}, c.args...)
		assert.Equal(t, exitUsage, run(t.Context(), args, &stdout, &stderr), "%v", c.args)
		assert.Contains(t, stderr.String(), c.want)
	}
}
