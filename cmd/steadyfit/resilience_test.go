package main

import (
	"bytes"
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"steadyfit/session"
)

// A budget may need another process, and gets one where there is something to go on from.
func TestWhoTrains(t *testing.T) {
	for _, c := range []struct {
		name        string
		r           resilience
		checkpoints string
		given       bool
		child       bool
		deadline    time.Duration
		restarts    int
		grace       time.Duration
	}{
		{"plain", resilience{budgetOf: "rss"}, "ckpt", false, false, 0, 0, 0},
		{"supervised", resilience{supervise: true, deadline: time.Minute, restarts: 3}, "ckpt", true, true, time.Minute, 3, 0},
		{"supervised, without restarts", resilience{supervise: true}, "ckpt", true, true, 0, -1, 0},
		{"budget", resilience{budget: "1GiB", budgetOf: "rss", deadline: 5 * time.Minute, restarts: 3}, "ckpt", false, true, 0, -1, 5 * time.Minute},
		{"budget, without a deadline", resilience{budget: "1GiB", budgetOf: "rss"}, "ckpt", false, true, 0, -1, time.Minute},
		{"budget without checkpoints", resilience{budget: "1GiB", budgetOf: "rss"}, "", false, false, 0, 0, 0},
		{"budget, not supervised", resilience{budget: "1GiB", budgetOf: "rss"}, "ckpt", true, false, 0, 0, 0},
		{"budget of a GPU", resilience{budget: "1GiB", budgetOf: budgetOfGPU}, "ckpt", false, false, 0, 0, 0},
	} {
		s, ok := c.r.supervisor(c.checkpoints, c.given)
		assert.Equal(t, c.child, ok, c.name)
		assert.Equal(t, c.deadline, s.Deadline, c.name)
		assert.Equal(t, c.restarts, s.Restarts, c.name)
		assert.Equal(t, c.grace, s.Grace, c.name)
	}
}

// A flag that would do nothing is refused, with what it needs.
func TestFlagsThatWouldDoNothing(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--reset-every", "10steps"}, "--reset-every needs --reset, how to reset"},
		{[]string{"--reset", "reload", "--reset-near", "0"}, "--reset-near 0: expected more than 0"},
		{[]string{"--memory-budget", "0"}, "--memory-budget 0: expected more than 0"},
		{[]string{"--memory-budget", "500"}, "--memory-budget 500: that is 500 B, and no training has less than 1 MiB; a number alone is in bytes: did you mean 500MiB?"},
		{[]string{"--memory-budget", "20KB"}, "--memory-budget 20KB: that is 19.5 KiB, and no training has less than 1 MiB\n"},
		{[]string{"--memory-budget", "2", "--memory-budget-of", "gpu"}, "did you mean 2MiB?"},
		{[]string{"--reset", "reload", "--reset-near", "1.5"}, "--reset-near 1.5: that is 2 B, and no training has less than 1 MiB; a number alone is in bytes: did you mean 1.5MiB?"},
		{[]string{"--deadline", "1m"}, "--deadline needs --supervise"},
		{[]string{"--deadline", "1m", "--supervise=false", "--memory-budget", "1GiB", "--checkpoints", "ckpt"}, "--deadline needs --supervise"},
		{[]string{"--restarts", "3"}, "--restarts needs --supervise"},
		{[]string{"--restarts", "3", "--memory-budget", "1GiB", "--checkpoints", "ckpt"}, "--restarts needs --supervise"},
	} {
		var stdout, stderr bytes.Buffer
		args := append([]string{"fit", "--model", "builtin:digits", "--data", "builtin:digits"}, c.args...)
		assert.Equal(t, exitUsage, run(t.Context(), args, &stdout, &stderr), "%v", c.args)
		assert.Contains(t, stderr.String(), c.want)
	}
	f := &fitFlags{checkpoints: "ckpt", resilience: resilience{
		reset: "none", onOOM: oomStop, onError: "stop", budget: "1GiB", budgetOf: "rss", deadline: time.Minute,
	}}
	assert.NoError(t, f.check(f, func(flag string) bool { return flag == "deadline" }), "the child of a budget has it to end in")
}

// What a process meets before it goes on with a training is tried again; what the training
// itself meets is not.
func TestWhatIsTriedAgain(t *testing.T) {
	full := &session.SaveError{Op: "save model to", Err: syscall.EROFS}
	gone := unusable(&fs.PathError{Op: "open", Path: "train.npz", Err: syscall.ENOENT})
	for _, c := range []struct {
		err          error
		onOOM        string
		early, again bool
	}{
		{nil, oomStop, true, false},
		{full, oomStop, true, true},
		{full, oomRestart, false, false},
		{gone, oomStop, true, true},
		{gone, oomStop, false, false},
		{session.ErrOutOfMemory, oomStop, true, true},
		{session.ErrOutOfMemory, oomStop, false, false},
		{session.ErrOutOfMemory, oomRestart, false, true},
		{usagef("no"), oomStop, true, false},
	} {
		r := resilience{onOOM: c.onOOM}
		err := r.restartable(c.err, c.early)
		assert.Equal(t, c.again, errors.Is(err, session.ErrRetry), "%v", c)
		assert.ErrorIs(t, err, c.err)
	}
}

// A training that died too often says what there is to continue from; other errors stay as
// they are.
func TestGoOn(t *testing.T) {
	dir := t.TempDir()
	died := &session.ChildError{Code: exitFailed, Text: "killed by SIGKILL", Deaths: []session.Death{{}}}
	err := goOn(died, dir)
	assert.ErrorIs(t, err, died)
	assert.Equal(t, exitFailed, exitCode(err))
	assert.ErrorContains(t, err, "\nthere is no checkpoint in "+dir+" to continue from")
	for _, err := range []error{nil, syscall.EIO, &session.ChildError{Code: exitUsage, Text: "no"}} {
		assert.Equal(t, err, goOn(err, dir))
	}
}

func TestContinued(t *testing.T) {
	f := &fitFlags{checkImages: true}
	f.continued(false)
	assert.True(t, f.checkImages)
	assert.False(t, f.resume)
	f.continued(true)
	assert.False(t, f.checkImages, "they have been decoded once")
	assert.True(t, f.resume)
}
