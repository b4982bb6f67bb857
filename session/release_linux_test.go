package session

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// resetEnv makes the test binary a program that resets the image model.
const resetEnv = "STEADYFIT_TEST_RESET"

func init() { asChild(resetEnv, resetChild) }

type resetOutcome struct {
	process
	Variable string
	Losses   []float64
	// The anonymous memory before a reload, between closing and loading, and after the reload.
	Before, Closed, After memory.Bytes
}

// reload does what Reset does for "reload", and measures the memory.
func (o *resetOutcome) reload(ctx context.Context, s *Session, to *Snapshot) error {
	o.Before = anonymous().Bytes
	if err := s.unload(); err != nil {
		return err
	}
	tfbind.TrimMalloc()
	o.Closed = anonymous().Bytes
	err := s.reload(ctx, to)
	o.After = anonymous().Bytes
	return err
}

func resetChild(kind string) error {
	ctx := context.Background()
	o := resetOutcome{process: thisProcess(), Variable: os.Getenv("TF_ONEDNN_USE_SYSTEM_ALLOCATOR")}
	model, err := savedmodels.Builtin("image-224")
	if err != nil {
		return err
	}
	s, err := OpenModel(ctx, model, Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	const n = 32
	batch := data.Batch{Size: n, Fields: []data.Field{
		{Name: "x", Array: data.Array{Shape: []int{n, 224, 224, 3}, Values: make([]float32, n*224*224*3)}},
		{Name: "y", Array: data.Array{Shape: []int{n}, Values: make([]int64, n)}},
	}}
	out := make([]float64, len(s.TrainMetrics()))
	for _, depth := range []string{"restore", "reload"} {
		for step := range 2 {
			if err := s.Train(ctx, int64(step), batch, out); err != nil {
				return err
			}
			o.Losses = append(o.Losses, out[0])
		}
		p, err := s.Snapshot(ctx)
		if err != nil {
			return err
		}
		if depth == "reload" {
			err = o.reload(ctx, s, p)
		} else {
			_, err = s.Reset(ctx, depth, p)
		}
		if err := errors.Join(err, p.Close()); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(o)
}

// TestReleaseProfile measures the memory in docs/explanation/recovery.md: what a reload of the
// image model returns with oneDNN's pool, without oneDNN, and with the profile.
//
//lane:skip gcstress (measures memory)
//lane:skip onednn (sets oneDNN itself)
func TestReleaseProfile(t *testing.T) {
	if RaceEnabled {
		t.Skip("the race detector's own memory would be in the figures; the tests without it have this one")
	}
	run := func(kind string, env ...string) (o resetOutcome, log string, err error) {
		o, log, err = runChild[resetOutcome](t, resetEnv, kind, env...)
		t.Logf("%s: %v, closed %v, after %v", kind, o.Before, o.Closed, o.After)
		return o, log, err
	}
	pool, log, err := run("default", "TF_ENABLE_ONEDNN_OPTS=1")
	require.NoError(t, err, log)
	malloc, log, err := run("default", "TF_ENABLE_ONEDNN_OPTS=0")
	require.NoError(t, err, log)
	profile, log, err := run("release", append(releaseVariables(), "TF_ENABLE_ONEDNN_OPTS=1")...)
	require.NoError(t, err, log)
	assert.Equal(t, "1", profile.Variable)
	assert.InEpsilonSlice(t, pool.Losses, profile.Losses, 1e-6)
	closed := func(o resetOutcome) memory.Bytes { return o.Before - o.Closed }
	assert.Less(t, closed(pool), pool.Before/4, "TensorFlow's pool has started to give memory back: then the profile "+
		"may go")
	// Without the pool, malloc keeps little memory and returns it. On a busy machine, the process
	// kept 75 MiB more with malloc than with the profile, and 674 MiB more with the pool. The
	// number of arenas depends on the cores.
	assert.Less(t, malloc.Before, pool.Before/2)
	most := profile.Closed + (pool.Closed-profile.Closed)/4
	assert.Less(t, malloc.Closed, most)
	assert.Greater(t, closed(profile), profile.Before/2)
	assert.Greater(t, profile.Before-profile.After, profile.Before/2)
}

// releaseVariables returns variables with which TensorFlow allocates large blocks with malloc instead of
// its own pool, and malloc keeps freed blocks until a reset.
func releaseVariables() []string {
	return []string{"TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1", "MALLOC_ARENA_MAX=1", "MALLOC_MMAP_MAX_=0",
		"MALLOC_TRIM_THRESHOLD_=1099511627776", "MALLOC_CONF=" + tfprocess.JemallocKeeps}
}
