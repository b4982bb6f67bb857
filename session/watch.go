package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"steadyfit/cluster"
	"steadyfit/internal/contract"
	"steadyfit/option"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// lostRank returns a supervise.ErrPeer: another rank of the cluster was lost. All ranks continue from
// the last checkpoint in new processes, because TensorFlow runs no collective operation in a process
// after one was aborted.
func lostRank(name string, reason error) error {
	return contract.Mark(fmt.Errorf("%s was lost: %w", name, reason), supervise.ErrPeer)
}

const (
	defaultStart   = 10 * time.Minute
	defaultTimeout = time.Minute
)

// watch notices that another rank ends or cannot be reached. TensorFlow itself does not notice a
// broken network during an exchange, and its timeout for exchanges starts a thread for each run.
//
// A watch holds an idle connection to the server of each other rank. The connection ends when the
// process of that rank ends. It is opened again from time to time, which fails when its machine does not answer.
type watch struct {
	cluster *cluster.Cluster
	timeout time.Duration
	// ctx ends when a rank is lost, or by close. If a rank is lost, its cause is a
	// supervise.ErrPeer.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// joined is true once all ranks train. Before that, a rank may end and start again.
	joined  atomic.Bool
	running sync.WaitGroup
}

// startWatch connects to all other ranks and waits until they answer.
func startWatch(ctx context.Context, c *cluster.Cluster) (*watch, error) {
	w := &watch{cluster: c, timeout: cmp.Or(c.Timeout, defaultTimeout)}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	starting, done := context.WithTimeout(ctx, cmp.Or(c.Start, defaultStart))
	defer done()
	answered := make([]chan struct{}, len(c.Workers))
	for rank := range c.Workers {
		if answered[rank] = make(chan struct{}); rank == c.Rank {
			close(answered[rank])
			continue
		}
		w.running.Go(func() { w.follow(rank, sync.OnceFunc(func() { close(answered[rank]) })) })
	}
	for rank := range c.Workers {
		select {
		case <-answered[rank]:
		case <-starting.Done():
			w.close()
			if ctx.Err() != nil {
				return nil, fmt.Errorf("waiting for the other ranks: %w", context.Cause(ctx))
			}
			return nil, contract.Mark(option.Errorf("%s did not start within %v; start all ranks, or raise {Cluster.Start}",
				w.name(rank), cmp.Or(c.Start, defaultStart)), supervise.ErrRetry)
		}
	}
	return w, nil
}

func (w *watch) name(rank int) string {
	return fmt.Sprintf("rank %d (%s)", rank, w.cluster.Workers[rank])
}

func (w *watch) close() {
	if w == nil {
		return
	}
	w.cancel(fmt.Errorf("session: %w", tfbind.ErrClosed))
	w.running.Wait()
}

// follow keeps a connection to a rank, and calls answered after the first answer.
func (w *watch) follow(rank int, answered func()) {
	for w.ctx.Err() == nil {
		err := w.hold(w.cluster.Workers[rank], answered)
		if err == nil {
			continue
		}
		if w.joined.Load() {
			w.cancel(lostRank(w.name(rank), err)) // does nothing after close
		}
		select { // try again soon
		case <-w.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// renewal is the time after which a connection is opened again, if Cluster.Timeout allows it. A server closes a
// connection on which its settings are not acknowledged within a minute.
const renewal = 20 * time.Second

// hold opens a connection and calls answered when the server answers. All servers of TensorFlow speak HTTP/2, in
// which the server begins with its settings. hold returns nil when the connection has to be renewed, and an error
// when it ends.
func (w *watch) hold(address string, answered func()) error {
	limit := w.timeout / 2 // the connection before this one may have been silent as long
	dialer := net.Dialer{Timeout: limit}
	conn, err := dialer.DialContext(w.ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(w.ctx, func() { conn.Close() })()
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("the server does not answer: %w", err)
	}
	answered()
	_ = conn.SetReadDeadline(time.Now().Add(min(renewal, limit)))
	if _, err = io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("the connection ended: %w", cmp.Or(err, io.EOF))
}
