package session

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/cluster"
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

// A rank is lost when its machine no longer answers, although no connection ends, as after a cut of the network.
func TestRankThatIsCutOff(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	var cut atomic.Bool
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			if !cut.Load() {
				_, _ = conn.Write([]byte{0})
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn) // until the other side closes
				conn.Close()
			}()
		}
	}()
	w, err := startWatch(t.Context(), &cluster.Cluster{Workers: []string{"here:1", server.Addr().String()},
		Timeout: 200 * time.Millisecond})
	require.NoError(t, err)
	defer w.close()
	w.joined.Store(true)
	cut.Store(true)
	<-w.ctx.Done()
	require.ErrorIs(t, context.Cause(w.ctx), supervise.ErrPeer)
	require.ErrorContains(t, context.Cause(w.ctx), "rank 1 ("+server.Addr().String()+") was lost: the server does not answer")
}
