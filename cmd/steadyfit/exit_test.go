package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/fit"
	"steadyfit/internal/budget"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
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
	oomKilled := []supervise.Crash{{OutOfMemory: true}, {OutOfMemory: true}}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{supervise.ErrRestart, exitOK},
		{errors.New("other"), exitFailed},
		{usagef("no"), exitUsage},
		{savedmodels.ErrNoSignature, exitUsage},
		{session.ErrInexactSplit, exitUsage},
		{&coded{exitEnvironment, errors.New("no GPU")}, exitEnvironment},
		{fit.ErrDiverged, exitDiverged},
		{context.Canceled, exitInterrupted},
		{session.ErrOutOfMemory, exitMemory},
		{&budget.Error{}, exitMemory},
		// A lack of memory determines the code, whatever else the error says.
		{fmt.Errorf("the batch cannot be split any further: %w: %w", savedmodels.ErrNoSignature, session.ErrOutOfMemory),
			exitMemory},
		{fmt.Errorf("the batch cannot be split any further: %w: %w", session.ErrInexactSplit, session.ErrOutOfMemory),
			exitMemory},
		{&fit.HookError{Hook: "memory budget", Phase: "start", Err: &budget.Error{}}, exitMemory},
		{&fit.HookError{Hook: "reset", Phase: "step", Err: savedmodels.ErrChanged}, exitFailed},
		// In a resumed process, a bad input is not a usage error, since the input was good when the
		// training began.
		{fmt.Errorf("%w: %w", supervise.ErrRetry, usagef("no")), exitFailed},
		{fmt.Errorf("%w: %w", supervise.ErrRetry, session.ErrOutOfMemory), exitMemory},
		{fmt.Errorf("%w: %w", session.ErrLost, tfbind.ErrResourceExhausted), exitMemory},
		// The parent returns the child's exit code, unless the kernel has killed the child for lack
		// of memory.
		{&supervise.Error{Code: exitDiverged}, exitDiverged},
		{&supervise.Error{Code: exitFailed, Crashes: []supervise.Crash{{}, {}}}, exitFailed},
		{&supervise.Error{Code: exitFailed, Crashes: oomKilled}, exitMemory},
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
