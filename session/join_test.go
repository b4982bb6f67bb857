package session

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/cluster"
	"steadyfit/supervise"
)

// A rank whose context ended while it loaded the model does not take part in an exchange.
func TestJoinAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cluster.ErrLost)
	s := &Session{rank: &ranked{}} // which could not exchange anything
	require.Equal(t, cluster.ErrLost, s.join(ctx))
	err := &peerError{err: ctx.Err()}
	for _, want := range []error{ErrPeer, supervise.ErrPeer, supervise.ErrRetry, context.Canceled} {
		require.ErrorIs(t, err, want)
	}
}
