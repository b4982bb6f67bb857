package session

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

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
// process of that rank ends, or when its machine does not answer.
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
	answers := make(chan int)
	for rank := range c.Workers {
		if rank != c.Rank {
			w.running.Go(func() { w.follow(rank, answers) })
		}
	}
	missing := make(map[int]bool)
	for rank := range c.Workers {
		missing[rank] = rank != c.Rank
	}
	for left := len(c.Workers) - 1; left > 0; left-- {
		select {
		case rank := <-answers:
			missing[rank] = false
		case <-starting.Done():
			w.close()
			if ctx.Err() != nil {
				return nil, fmt.Errorf("waiting for the other ranks: %w", context.Cause(ctx))
			}
			for rank := range c.Workers {
				if missing[rank] {
					return nil, contract.Mark(option.Errorf("%s did not start within %v; start all ranks, or raise {Cluster.Start}",
						w.name(rank), cmp.Or(c.Start, defaultStart)), supervise.ErrRetry)
				}
			}
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

// follow keeps a connection to a rank. After the first answer, it sends the number of the rank to
// the channel answers.
func (w *watch) follow(rank int, answers chan<- int) {
	for first := true; w.ctx.Err() == nil; {
		conn, err := w.connect(rank)
		if err == nil {
			if first {
				first = false
				select {
				case answers <- rank:
				case <-w.ctx.Done():
				}
			}
			err = w.idle(conn)
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

// connect opens a connection and waits until the server answers. All servers of TensorFlow
// speak HTTP/2, in which the server begins with its settings.
func (w *watch) connect(rank int) (*connection, error) {
	dialer := net.Dialer{Timeout: w.timeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: w.timeout / 4, Interval: w.timeout / 4, Count: 3,
	}}
	conn, err := dialer.DialContext(w.ctx, "tcp", w.cluster.Workers[rank])
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, frames: http2.NewFramer(conn, conn)}
	c.stop = context.AfterFunc(w.ctx, func() { conn.Close() })
	err = conn.SetDeadline(time.Now().Add(w.timeout))
	if err == nil {
		_, err = io.WriteString(conn, http2.ClientPreface)
	}
	if err == nil {
		err = c.frames.WriteSettings()
	}
	if err == nil {
		err = c.answer()
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("the server does not answer: %w", err)
	}
	return c, nil
}

type connection struct {
	net.Conn
	frames *http2.Framer
	stop   func() bool
}

func (c *connection) close() {
	c.stop()
	c.Close()
}

// answer reads a frame and acknowledges it. A server closes a connection on which its settings
// are not acknowledged within a minute.
func (c *connection) answer() error {
	frame, err := c.frames.ReadFrame()
	if err != nil {
		return err
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			err = c.frames.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = c.frames.WritePing(true, f.Data)
		}
	}
	return err
}

// idle answers the server until the connection ends.
func (w *watch) idle(c *connection) error {
	defer c.close()
	for {
		if err := c.answer(); err != nil {
			return fmt.Errorf("the connection ended: %w", err)
		}
	}
}
