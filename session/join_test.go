package session

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/cluster"
)

// A rank whose context ended while it loaded the model does not take part in an exchange.
func TestJoinAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cluster.ErrAbsent)
	s := &Session{rank: &ranked{}} // which could not exchange anything
	require.Equal(t, cluster.ErrAbsent, s.join(ctx))
}
