package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/fit"
	"steadyfit/internal/lab/matrix"
)

// Exit codes of train.ExitCode.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitDiverged    = 4
	exitMemory      = 5
	exitInterrupted = 130
)

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{usagef("no"), exitUsage},
		{&coded{exitEnvironment, errors.New("no GPU")}, exitEnvironment},
		{fmt.Errorf("matrix: %w", matrix.ErrMissing), exitEnvironment},
		{fit.ErrDiverged, exitDiverged},
	} {
		assert.Equal(t, c.want, exitCode(c.err), "%v", c.err)
	}
}

// Names of files, outputs and metrics do not reach the terminal with escape sequences.
func TestPrintable(t *testing.T) {
	err := fmt.Errorf("a\x1b[31m.png: %w", &os.PathError{Op: "open", Path: "b\x9b\r", Err: fs.ErrNotExist})
	assert.Equal(t, `a\x1b[31m.png: open b�\r: file does not exist`, message(err))
	var text strings.Builder
	notice(&text, "note", "two\nlines\x1b]0;title\a")
	assert.Equal(t, "note: two\nlines\\x1b]0;title\\a\n", text.String())
	assert.Equal(t, `los\x1b[1ms 1.0000`, fit.Metric{Name: "los\x1b[1ms", Value: 1}.String())
}
