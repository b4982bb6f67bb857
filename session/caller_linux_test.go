package session_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/session"
)

// handed returns how often the threads that run TensorFlow's operations have gone to sleep; see
// poolThreads in matrix for their name.
func handed(t *testing.T) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*")
	require.NoError(t, err)
	sum := 0
	for _, task := range tasks {
		text, err := os.ReadFile(filepath.Join(task, "status"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		require.NoError(t, err)
		if !strings.HasPrefix(string(text), "Name:\ttf_Compute\n") {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if times, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				n, err := strconv.Atoi(strings.TrimSpace(times))
				require.NoError(t, err)
				sum += n
			}
		}
	}
	return sum
}

// CallerRuns gives the same variables bit for bit and hands no operations to other threads.
//
//lane:skip gcstress (hundreds of steps)
func TestCallerRuns(t *testing.T) {
	ctx := context.Background()
	bs := batches(t, digits(t), 32, 19)
	o := session.Options{StepsPerExecution: 16}
	others := open(t, "digits", o)
	o.CallerRuns = true
	caller := open(t, "digits", o)
	assert.Equal(t, others.Identity(), caller.Identity(), "the same run")
	assert.Equal(t, losses(t, others, bs[:3], 0), losses(t, caller, bs[:3], 0))
	assert.Equal(t, stackedRun(t, others, bs[3:], 3), stackedRun(t, caller, bs[3:], 3))
	want, have := make([]float64, 2), make([]float64, 2)
	require.NoError(t, others.Evaluate(ctx, bs[0], want))
	require.NoError(t, caller.Evaluate(ctx, bs[0], have))
	assert.Equal(t, want, have)
	assert.True(t, variables(t, others) == variables(t, caller), "the variables differ")

	const steps = 200
	run := func(s *session.Session) int {
		losses(t, s, bs[:1], 0)
		// Wait until the threads of the previous session are idle.
		before := -1
		require.Eventually(t, func() bool {
			now := handed(t)
			quiet := now == before
			before = now
			return quiet
		}, time.Minute, 20*time.Millisecond)
		for range steps {
			losses(t, s, bs[:1], 0)
		}
		return handed(t) - before
	}
	// A thread that spins takes over an operation without going to sleep, so only few
	// sleeps may be counted.
	runs, taken := 1, run(others)
	for ; taken < 12 && runs < 50; runs++ {
		taken += run(others)
	}
	require.GreaterOrEqual(t, taken, 12, "nothing was handed over")
	own := 0
	for range runs {
		own += run(caller)
	}
	assert.LessOrEqual(t, own, taken/4)
}

// An execution of many steps does not overflow the stack of the calling thread.
//
//lane:skip gcstress (hundreds of steps)
func TestCallerRunsLongCalls(t *testing.T) {
	bs := batches(t, digits(t), 1, 1)
	const n = 2000
	s := open(t, "digits-cnn", session.Options{StepsPerExecution: n, CallerRuns: true})
	for i := range n {
		require.NoError(t, s.Stack(i, n, bs[0]))
	}
	out := make([]float64, len(s.TrainMetrics()))
	require.NoError(t, s.TrainN(context.Background(), 0, n, out))
	assert.False(t, math.IsNaN(out[0]))
}
