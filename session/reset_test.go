package session_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Training through a reset of any depth is training without one, bit for bit.
func TestResetsChangeNothing(t *testing.T) {
	ctx := context.Background()
	for _, name := range forDigits {
		t.Run(name, func(t *testing.T) {
			bs := batches(t, digits(t), 32, 9)
			plain := open(t, name, session.Options{Seed: 3})
			want := losses(t, plain, bs, 0)

			s := open(t, name, session.Options{Seed: 3})
			live := tfbind.Live()
			have := losses(t, s, bs[:3], 0)
			for i, depth := range []session.Depth{session.ResetRestore, session.ResetReload} {
				p, err := s.Snapshot(ctx)
				require.NoError(t, err)
				assert.Positive(t, p.Bytes())
				// What is trained meanwhile is undone.
				losses(t, s, bs[:2], 100)
				r, err := s.Reset(ctx, depth, p)
				require.NoError(t, err)
				require.NoError(t, p.Close())
				assert.Equal(t, depth, r.Depth)
				assert.True(t, r.Returned().OK)
				assert.Equal(t, depth == session.ResetReload, r.Closed.OK)
				from := 3 + 3*i
				have = append(have, losses(t, s, bs[from:from+3], int64(from))...)
			}
			assert.Equal(t, want, have)
			after := tfbind.Live()
			assert.Equal(t, live.Sessions, after.Sessions)
			assert.Equal(t, live.Graphs, after.Graphs)
			assert.Equal(t, live.Tensors, after.Tensors)
		})
	}
}

func TestSnapshot(t *testing.T) {
	ctx := context.Background()
	bs := batches(t, digits(t), 32, 4)
	s := open(t, "digits", session.Options{})
	p, err := s.Snapshot(ctx)
	require.NoError(t, err)
	first := losses(t, s, bs, 0)

	// As often as one likes, and into another session.
	require.NoError(t, s.Revert(ctx, p))
	assert.Equal(t, first, losses(t, s, bs, 0))
	other := open(t, "digits", session.Options{})
	losses(t, other, bs[2:], 0)
	require.NoError(t, other.Revert(ctx, p))
	assert.Equal(t, first, losses(t, other, bs, 0))

	// It is the state that a checkpoint has: a model that was reset to what it was
	// exported with begins as it did.
	r, err := other.Reset(ctx, session.ResetRestore, nil)
	require.NoError(t, err)
	assert.Equal(t, session.ResetRestore, r.Depth)
	assert.Equal(t, first, losses(t, other, bs, 0))
	_, err = other.Reset(ctx, session.ResetReload, nil)
	require.NoError(t, err)
	assert.Equal(t, first, losses(t, other, bs, 0))

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	assert.ErrorIs(t, s.Revert(ctx, p), session.ErrSnapshot)
	cnn := open(t, "digits-cnn", session.Options{})
	q, err := cnn.Snapshot(ctx)
	require.NoError(t, err)
	defer q.Close()
	assert.ErrorIs(t, s.Revert(ctx, q), session.ErrSnapshot)
	_, err = s.Reset(ctx, session.ResetReload, q)
	assert.ErrorIs(t, err, session.ErrSnapshot)
	_, err = s.Reset(ctx, session.ResetProcess, nil)
	assert.ErrorContains(t, err, "a session cannot do")
	// The refused ones left the session alone.
	losses(t, s, bs[:1], 0)

	require.NoError(t, s.Close())
	_, err = s.Snapshot(ctx)
	assert.ErrorIs(t, err, tfbind.ErrClosed)
	_, err = s.Reset(ctx, session.ResetReload, nil)
	assert.ErrorIs(t, err, tfbind.ErrClosed)
}

// A learning rate that was set is part of the state.
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
	_, err = s.Reset(ctx, session.ResetReload, p)
	require.NoError(t, err)
	assert.Equal(t, want, losses(t, s, bs, 0))
}

// Micro-batches make the update of the whole batch, and need less memory for it.
func TestMicroBatches(t *testing.T) {
	ctx := context.Background()
	b := batches(t, digits(t), 30, 6)
	whole := open(t, "digits", session.Options{})
	assert.True(t, whole.CanSplit())
	want := losses(t, whole, b, 0)
	for _, parts := range []int{2, 7, 30, 64} {
		s := open(t, "digits", session.Options{})
		require.NoError(t, s.SetMicroBatches(parts))
		assert.Equal(t, parts, s.MicroBatches())
		have := losses(t, s, b, 0)
		assert.InDeltaSlice(t, want, have, 1e-4, "%d parts", parts)
		// The split survives a reload, and can be taken back.
		p, err := s.Snapshot(ctx)
		require.NoError(t, err)
		_, err = s.Reset(ctx, session.ResetReload, p)
		require.NoError(t, err)
		require.NoError(t, p.Close())
		assert.Equal(t, parts, s.MicroBatches())
		losses(t, s, b[:1], 6)
		require.NoError(t, s.SetMicroBatches(1))
		losses(t, s, b[:1], 7)
	}
	assert.Error(t, whole.SetMicroBatches(0))
	readOnly := open(t, "digits", session.Options{ReadOnly: true})
	assert.ErrorIs(t, readOnly.SetMicroBatches(2), session.ErrNoSignature)
}

// Reloading again and again takes no more memory than doing so a few times.
func TestReloadsStayFlat(t *testing.T) {
	ctx := context.Background()
	s := open(t, "digits", session.Options{})
	b := batches(t, digits(t), 32, 1)
	var series memory.Series
	sampler, err := memory.NewSampler(memory.SamplerOptions{})
	require.NoError(t, err)
	defer sampler.Close()
	var sample memory.Sample
	for i := range 60 {
		p, err := s.Snapshot(ctx)
		require.NoError(t, err)
		_, err = s.Reset(ctx, session.ResetReload, p)
		require.NoError(t, err)
		require.NoError(t, p.Close())
		losses(t, s, b, int64(i))
		require.NoError(t, sampler.Sample(i+1, &sample))
		series.Append(&sample)
	}
	v := series.Judge(memory.Criteria{Budget: 64 * memory.KiB})
	assert.NotEqual(t, memory.Leak, v.Kind, v)
}
