package session

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/supervise"
)

// A rank whose context ended while it loaded the model does not take part in an exchange.
func TestJoinAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(supervise.ErrPeer)
	s := &Session{rank: &ranked{}} // which could not exchange anything
	require.Equal(t, supervise.ErrPeer, s.join(ctx))
	err := lostRank("rank 1", ctx.Err())
	for _, want := range []error{supervise.ErrPeer, supervise.ErrRetry, context.Canceled} {
		require.ErrorIs(t, err, want)
	}
}
