package session

import (
	"context"
	"errors"
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
	Losses []float64
	// The anonymous memory before a reload, between closing and loading, and after the reload.
	Before, Closed, After memory.Bytes
}

// resetChild does what Reset does for "restore" and then for "reload", and measures the memory.
func resetChild(string) (any, error) {
	ctx := context.Background()
	var o resetOutcome
	model, err := savedmodels.Builtin("image-224")
	if err != nil {
		return nil, err
	}
	s, err := OpenModel(ctx, model, Options{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	const n = 32
	batch := data.Batch{Size: n, Fields: []data.Field{
		{Name: "x", Array: data.Array{Shape: []int{n, 224, 224, 3}, Values: make([]float32, n*224*224*3)}},
		{Name: "y", Array: data.Array{Shape: []int{n}, Values: make([]int64, n)}},
	}}
	out := make([]float64, len(s.TrainMetrics()))
	for _, reset := range []func(p *Snapshot) error{
		func(p *Snapshot) error { return s.Revert(ctx, p) },
		func(p *Snapshot) error {
			o.Before = anonymous().Bytes
			err := s.unload()
			tfbind.TrimMalloc()
			o.Closed = anonymous().Bytes
			err = errors.Join(err, s.reload(ctx, p))
			o.After = anonymous().Bytes
			return err
		},
	} {
		for step := range 2 {
			if err := s.Train(ctx, int64(step), batch, out); err != nil {
				return nil, err
			}
			o.Losses = append(o.Losses, out[0])
		}
		p, err := s.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(reset(p), p.Close()); err != nil {
			return nil, err
		}
	}
	return o, nil
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
	run := func(name string, env ...string) resetOutcome {
		o, log, err := runChild[resetOutcome](t, resetEnv, name, env...)
		require.NoError(t, err, log)
		t.Logf("%s: %v, closed %v, after %v", name, o.Before, o.Closed, o.After)
		return o
	}
	pool, malloc := run("pool", "TF_ENABLE_ONEDNN_OPTS=1"), run("malloc", "TF_ENABLE_ONEDNN_OPTS=0")
	profile := run("profile", "TF_ENABLE_ONEDNN_OPTS=1", "TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1", "MALLOC_ARENA_MAX=1",
		"MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=1099511627776", "MALLOC_CONF="+tfprocess.JemallocKeeps)
	assert.InEpsilonSlice(t, pool.Losses, profile.Losses, 1e-6)
	assert.Less(t, pool.Before-pool.Closed, pool.Before/4, "TensorFlow's pool has started to give memory back: then the "+
		"profile may go")
	// Without the pool, malloc keeps little memory and returns it. On a busy machine, the process
	// kept 75 MiB more with malloc than with the profile, and 674 MiB more with the pool. The
	// number of arenas depends on the cores.
	assert.Less(t, malloc.Before, pool.Before/2)
	assert.Less(t, malloc.Closed, profile.Closed+(pool.Closed-profile.Closed)/4)
	assert.Greater(t, profile.Before-profile.Closed, profile.Before/2)
	assert.Greater(t, profile.Before-profile.After, profile.Before/2)
}
