package session_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/native"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// Training with a reset of any depth is the same, bit for bit, as training without one.
func TestResetsChangeNothing(t *testing.T) {
	ctx := context.Background()
	bs := batches(t, digits(t), 32, 9)
	plain := open(t, "digits-cnn", session.Options{Seed: 3})
	want := losses(t, plain, bs, 0)

	s := open(t, "digits-cnn", session.Options{Seed: 3})
	live := tfbind.Live()
	have := losses(t, s, bs[:3], 0)
	for i, depth := range []string{"restore", "reload"} {
		p, err := s.Snapshot(ctx)
		require.NoError(t, err)
		assert.Positive(t, p.Bytes())
		// Revert undoes these steps.
		losses(t, s, bs[:2], 100)
		require.NoError(t, s.Revert(ctx, p))
		require.NoError(t, p.Close())
		r, err := s.Reset(ctx, depth)
		require.NoError(t, err)
		assert.True(t, r.Returned.OK)
		assert.Positive(t, r.Took)
		from := 3 + 3*i
		have = append(have, losses(t, s, bs[from:from+3], int64(from))...)
	}
	assert.Equal(t, want, have)
	after := tfbind.Live()
	assert.Equal(t, live.Sessions, after.Sessions)
	assert.Equal(t, live.Graphs, after.Graphs)
	assert.Equal(t, live.Tensors, after.Tensors)
}

func TestSnapshot(t *testing.T) {
	ctx := context.Background()
	bs := batches(t, digits(t), 32, 4)
	s := open(t, "digits", session.Options{})
	p, err := s.Snapshot(ctx)
	require.NoError(t, err)
	first := losses(t, s, bs, 0)

	// A snapshot can be used several times and in other sessions.
	require.NoError(t, s.Revert(ctx, p))
	assert.Equal(t, first, losses(t, s, bs, 0))
	other := open(t, "digits", session.Options{})
	losses(t, other, bs[2:], 0)
	require.NoError(t, other.Revert(ctx, p))
	assert.Equal(t, first, losses(t, other, bs, 0))

	// A model reset to its original weights trains as it did at first.
	require.NoError(t, other.Restore(ctx, weightsOf(other.Model())))
	assert.Equal(t, first, losses(t, other, bs, 0))

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	assert.ErrorIs(t, s.Revert(ctx, p), session.ErrMismatch)
	cnn := open(t, "digits-cnn", session.Options{})
	q, err := cnn.Snapshot(ctx)
	require.NoError(t, err)
	defer q.Close()
	assert.ErrorIs(t, s.Revert(ctx, q), session.ErrMismatch)
	_, err = s.Reset(ctx, "process")
	assert.ErrorContains(t, err, "a session has no depth")
	// What was rejected did not change the session.
	losses(t, s, bs[:1], 0)

	require.NoError(t, s.Close())
	_, err = s.Snapshot(ctx)
	assert.ErrorIs(t, err, tfbind.ErrClosed)
	_, err = s.Reset(ctx, "reload")
	assert.ErrorIs(t, err, tfbind.ErrClosed)
}

// A snapshot includes the learning rate.
func TestSnapshotHasTheLearningRate(t *testing.T) {
	ctx := context.Background()
	bs := batches(t, digits(t), 32, 2)
	s := open(t, "digits", session.Options{})
	require.NoError(t, s.SetLearningRate(0.125))
	p, err := s.Snapshot(ctx)
	require.NoError(t, err)
	defer p.Close()
	want := losses(t, s, bs, 0)
	require.NoError(t, s.SetLearningRate(1e-9))
	require.NoError(t, s.Revert(ctx, p))
	_, err = s.Reset(ctx, "reload")
	require.NoError(t, err)
	assert.Equal(t, want, losses(t, s, bs, 0))
}

// Micro-batches give the update of the whole batch and need less memory.
//
//lane:skip gcstress (hundreds of steps)
func TestMicroBatches(t *testing.T) {
	ctx := context.Background()
	b := batches(t, digits(t), 30, 6)
	whole := open(t, "digits", session.Options{})
	assert.NoError(t, whole.CheckSplit())
	want := losses(t, whole, b, 0)
	for _, parts := range []int{2, 7, 30, 64} {
		s := open(t, "digits", session.Options{})
		require.NoError(t, s.SetMicroBatches(parts))
		assert.Equal(t, parts, s.MicroBatches())
		have := losses(t, s, b, 0)
		assert.InDeltaSlice(t, want, have, 1e-4, "%d parts", parts)
		// The number of micro-batches survives a reload and can be reset to 1.
		_, err := s.Reset(ctx, "reload")
		require.NoError(t, err)
		assert.Equal(t, parts, s.MicroBatches())
		losses(t, s, b[:1], 6)
		require.NoError(t, s.SetMicroBatches(1))
		losses(t, s, b[:1], 7)
	}
	assert.Error(t, whole.SetMicroBatches(0))
	readOnly := open(t, "digits", session.Options{ReadOnly: true})
	assert.ErrorIs(t, readOnly.SetMicroBatches(2), savedmodels.ErrNoSignature)
}

// A model that cannot be loaded again is detected before the session is closed.
func TestReloadOfAnotherModel(t *testing.T) {
	ctx := context.Background()
	bs := batches(t, digits(t), 32, 2)
	for name, c := range map[string]struct {
		spoil func(dir string) error
		want  error
	}{
		"exported anew": {func(dir string) error {
			model, err := savedmodels.Builtin("digits-cnn")
			if err != nil {
				return err
			}
			return errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(model.Dir)))
		}, savedmodels.ErrChanged},
		"weights removed": {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "variables")) },
			savedmodels.ErrNotSavedModel},
		"folder gone": {os.RemoveAll, fs.ErrNotExist},
		"other frozen variables": {func(dir string) error {
			weights := filepath.Join(dir, "variables")
			return errors.Join(os.RemoveAll(weights), os.CopyFS(weights, os.DirFS("testdata/other")))
		}, savedmodels.ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(lora)))
			model, err := savedmodels.Open(dir)
			require.NoError(t, err)
			s := openModel(t, model, session.Options{})
			losses(t, s, bs, 0)
			p, err := s.Snapshot(ctx)
			require.NoError(t, err)
			defer p.Close()
			require.NoError(t, c.spoil(dir))
			_, err = s.Reset(ctx, "reload")
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, session.ErrLost)
			want := losses(t, s, bs, 2)
			require.NoError(t, s.Revert(ctx, p))
			assert.Equal(t, want, losses(t, s, bs, 2), "the session goes on")
		})
	}
}

// If loading fails, the session is lost, but not an earlier snapshot.
func TestReloadThatFails(t *testing.T) {
	ctx := context.Background()
	bs := batches(t, digits(t), 32, 2)
	model := noted(t, "digits", nil)
	s := openModel(t, model, session.Options{Seed: 1})
	require.NoError(t, s.SetMicroBatches(2))
	losses(t, s, bs, 0)
	p, err := s.Snapshot(ctx)
	require.NoError(t, err)
	defer p.Close()
	damageWeights(t, model.Dir) // TensorFlow detects this only while loading
	_, err = s.Reset(ctx, "reload")
	require.ErrorIs(t, err, session.ErrLost)
	require.ErrorIs(t, err, supervise.ErrRetry, "another process goes on")
	require.ErrorContains(t, err, "resume from the last checkpoint")

	// The session is closed.
	out := make([]float64, 2)
	_, err = s.Reset(ctx, "reload")
	for _, err := range []error{err, s.Train(ctx, 0, bs[0], out), s.Evaluate(ctx, bs[0], out), s.SetLearningRate(1),
		s.Revert(ctx, p), s.Save(ctx, filepath.Join(t.TempDir(), "state"))} {
		assert.ErrorIs(t, err, tfbind.ErrClosed)
	}

	plain := open(t, "digits", session.Options{Seed: 1})
	require.NoError(t, plain.SetMicroBatches(2))
	losses(t, plain, bs, 0)
	other := open(t, "digits", session.Options{Seed: 1})
	require.NoError(t, other.SetMicroBatches(2))
	require.NoError(t, other.Revert(ctx, p))
	assert.Equal(t, losses(t, plain, bs, 2), losses(t, other, bs, 2))
}

// soakEnv, if set, makes soak tests run for a long time (make soak).
const soakEnv = "STEADYFIT_TEST_SOAK"

// Repeated reloads need no more memory than a few do. malloc's arenas grow at first: each keeps
// some MiB from the first load by an operating system thread, and there are at most 8 per core.
//
//lane:run onednn soak
//lane:skip gcstress (measures memory)
func TestReloadsStayFlat(t *testing.T) {
	if session.RaceEnabled {
		t.Skip("the race detector's own memory would be in the figures; the tests without it have this one")
	}
	whole := os.Getenv(soakEnv) != ""
	reloads, budget := 60, 64*memory.KiB
	if whole {
		reloads, budget = 1000, 16*memory.KiB // a leaked graph takes 200 KiB
	}
	ctx := context.Background()
	s := open(t, "digits", session.Options{})
	b := batches(t, digits(t), 32, 1)
	sampler, err := memory.NewSampler(0, native.Source())
	require.NoError(t, err)
	defer sampler.Close()
	var series memory.Series
	var sample memory.Sample
	began := time.Now()
	for i := range reloads {
		_, err := s.Reset(ctx, "reload")
		require.NoError(t, err)
		losses(t, s, b, int64(i))
		require.NoError(t, sampler.Sample(i+1, &sample))
		series.Append(&sample)
	}
	v := series.Judge(memory.Criteria{Budget: budget})
	inUse := series.Judge(memory.Criteria{Budget: budget, Layer: memory.MallocUsed})
	t.Logf("%d reloads in %v: %v; %v", reloads, time.Since(began).Round(time.Millisecond), v, inUse)
	if !whole { // malloc's arenas still grow
		require.NotZero(t, inUse.Samples)
		assert.LessOrEqual(t, inUse.Slope.High, float64(budget), inUse)
		return
	}
	assert.NotEqual(t, memory.Leak, v.Kind, v)
	assert.LessOrEqual(t, v.Slope.High, float64(budget), v)
}
