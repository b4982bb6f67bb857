package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/freeport"
	"steadyfit/supervise"
)

// outcome is the result of a rank's Rendezvous: the cluster that open got.
type outcome struct {
	present *Cluster
	err     error
}

// meet calls Rendezvous as a rank. open may be nil.
func meet(ctx context.Context, c Cluster, rank int, open func(context.Context) error) <-chan outcome {
	done := make(chan outcome, 1)
	c.Rank = rank
	go func() {
		var o outcome
		o.err = c.Rendezvous(ctx, slog.New(slog.DiscardHandler), func(ctx context.Context, present *Cluster) error {
			o.present = present
			if open != nil {
				return open(ctx)
			}
			return nil
		})
		done <- o
	}()
	return done
}

func result(t *testing.T, done <-chan outcome) outcome {
	t.Helper()
	select {
	case o := <-done:
		return o
	case <-time.After(2 * time.Minute): // longer than Start
		require.Fail(t, "Rendezvous does not return")
		return outcome{}
	}
}

func TestRendezvous(t *testing.T) {
	for _, c := range []struct {
		name       string
		ranks, min int
		wait       time.Duration
		present    []int
	}{
		{"all", 4, 2, time.Minute, []int{0, 1, 2, 3}},
		{"one is absent", 4, 3, time.Millisecond, []int{0, 1, 3}},
		{"two are absent", 4, 2, time.Millisecond, []int{0, 3}},
		{"rank 0 alone", 3, 1, time.Millisecond, []int{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := Cluster{Workers: freeport.Addresses(t, c.ranks), MinWorkers: c.min, Start: time.Minute, Wait: c.wait}
			var want []string
			waiting := make([]<-chan outcome, len(c.present))
			for i := len(c.present) - 1; i >= 0; i-- { // rank 0 last
				waiting[i] = meet(t.Context(), all, c.present[i], nil)
			}
			for _, rank := range c.present {
				want = append(want, all.Workers[rank])
			}
			for i := range c.present {
				o := result(t, waiting[i])
				require.NoError(t, o.err)
				assert.Equal(t, want, o.present.Workers)
				assert.Equal(t, i, o.present.Rank)
				assert.NoError(t, o.present.Check())
			}
			l, err := net.Listen("tcp", all.Workers[0]) // the port is free for the server
			require.NoError(t, err)
			l.Close()
		})
	}
}

func TestRendezvousTooFew(t *testing.T) {
	all := Cluster{Workers: freeport.Addresses(t, 3), MinWorkers: 2, Start: 300 * time.Millisecond, Wait: 100 * time.Millisecond}
	o := result(t, meet(t.Context(), all, 0, nil))
	require.ErrorIs(t, o.err, supervise.ErrRetry)
	assert.ErrorContains(t, o.err, "1 of 3 ranks are present after 300ms, and Cluster.MinWorkers is 2")
	o = result(t, meet(t.Context(), all, 1, nil))
	require.ErrorIs(t, o.err, supervise.ErrRetry)
	assert.ErrorContains(t, o.err, "rank 0 ("+all.Workers[0]+") did not answer within 300ms")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := []<-chan outcome{meet(ctx, all, 0, nil), meet(ctx, all, 2, nil)}
	cancel()
	for _, done := range waiting {
		require.ErrorIs(t, result(t, done).err, context.Canceled)
	}
}

// A rank that ends while the others open their sessions ends their contexts.
func TestRendezvousLosesARank(t *testing.T) {
	for lost := range 3 {
		all := Cluster{Workers: freeport.Addresses(t, 3), MinWorkers: 2, Start: time.Minute, Wait: time.Minute}
		failed := errors.New("cannot open")
		var waiting []<-chan outcome
		for rank := range 3 {
			waiting = append(waiting, meet(t.Context(), all, rank, func(ctx context.Context) error {
				if rank == lost {
					return failed
				}
				<-ctx.Done()
				return errors.New("the context ended")
			}))
		}
		for rank, done := range waiting {
			o := result(t, done)
			if rank == lost {
				require.Equal(t, failed, o.err)
				continue
			}
			require.ErrorIs(t, o.err, supervise.ErrPeer)
			assert.Regexp(t, `rank [0-2] \(127.0.0.1:[0-9]+\) ended while the training started`, o.err)
		}
	}
}

// Ranks may take longer to open their sessions than the exchange of messages may.
func TestRendezvousOpensSlowly(t *testing.T) {
	before := exchangeTime
	exchangeTime = 300 * time.Millisecond
	defer func() { exchangeTime = before }()
	all := Cluster{Workers: freeport.Addresses(t, 2), MinWorkers: 2, Start: time.Minute}
	ready := make(chan struct{})
	first := meet(t.Context(), all, 0, func(context.Context) error {
		<-time.After(2 * exchangeTime)
		return nil
	})
	last := meet(t.Context(), all, 1, func(ctx context.Context) error {
		<-ready
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(exchangeTime):
			return nil
		}
	})
	require.NoError(t, result(t, first).err) // the byte that reports the open session has been written
	close(ready)
	require.NoError(t, result(t, last).err)
}

// Rank 0 may stop while it gathers the others, which do not wait for its decision forever.
func TestRendezvousWithoutADecision(t *testing.T) {
	before := exchangeTime
	exchangeTime = 200 * time.Millisecond
	defer func() { exchangeTime = before }()
	all := Cluster{Workers: freeport.Addresses(t, 2), MinWorkers: 1, Start: 200 * time.Millisecond}
	l, err := net.Listen("tcp", all.Workers[0])
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			defer conn.Close()
			_, _ = io.WriteString(conn, greeting)
		}
	}()
	o := result(t, meet(t.Context(), all, 1, nil))
	require.ErrorIs(t, o.err, supervise.ErrRetry)
	assert.ErrorContains(t, o.err, "did not answer within")
}

// If the context ends while the port is in use, the error is that of the context and not
// supervise.ErrRetry.
func TestRendezvousEndsWithoutThePort(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer l.Close()
	all := Cluster{Workers: []string{fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port), "127.0.0.1:1"}, MinWorkers: 1}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = result(t, meet(ctx, all, 0, nil)).err
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NotErrorIs(t, err, supervise.ErrRetry)
}

// Connections of other programs neither disturb rank 0 nor take its memory.
func TestRendezvousOfStrangers(t *testing.T) {
	all := Cluster{Workers: freeport.Addresses(t, 3), MinWorkers: 2, Start: time.Minute, Wait: time.Minute}
	first := meet(t.Context(), all, 0, nil)
	dial := func() net.Conn {
		var conn net.Conn
		require.Eventually(t, func() bool {
			var err error
			conn, err = net.Dial("tcp", all.Workers[0])
			return err == nil
		}, time.Minute, 10*time.Millisecond)
		t.Cleanup(func() { conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		return conn
	}
	for _, text := range []string{
		"\n", "GET / HTTP/1.1\r\n\r\n", "{}\n", `{"rank":-1}` + "\n", `{"rank":1,"workers":"no"}` + "\n", `{"rank":1e99}` + "\n",
		fmt.Sprintf(`{"rank":0,"workers":%q}`+"\n", all.hash()), fmt.Sprintf(`{"rank":3,"workers":%q}`+"\n", all.hash()), strings.Repeat("[", maxLine-1) + "\n",
	} {
		conn := dial()
		_, err := conn.Write([]byte(text))
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		if err == nil {
			assert.True(t, strings.HasPrefix(string(answer), greeting), "%q", answer)
			assert.Less(t, len(answer), 1000)
		}
	}
	endless := dial()
	var err error
	for err == nil { // rank 0 ends the connection
		_, err = endless.Write(make([]byte, 1<<20))
	}
	var silent []net.Conn
	for range 200 { // more than rank 0 keeps open
		silent = append(silent, dial())
	}
	for _, conn := range silent {
		conn.Close()
	}
	half := dial()
	_, err = half.Write([]byte(`{"rank":1,`))
	require.NoError(t, err)
	// The process of rank 1 ends while it waits, and a new process takes its place.
	ctx, cancel := context.WithCancel(t.Context())
	gone := meet(ctx, all, 1, nil)
	cancel()
	require.Error(t, result(t, gone).err)
	waiting := []<-chan outcome{first, meet(t.Context(), all, 1, nil), meet(t.Context(), all, 2, nil)}
	for _, done := range waiting {
		o := result(t, done)
		require.NoError(t, o.err)
		assert.Len(t, o.present.Workers, 3)
	}
}

// Ranks with another list of ranks, and processes with the same rank, are refused.
func TestRendezvousRefuses(t *testing.T) {
	all := Cluster{Workers: freeport.Addresses(t, 3), MinWorkers: 2, Start: time.Minute, Wait: time.Minute}
	first := meet(t.Context(), all, 0, nil)
	other := all
	other.Workers = all.Workers[:2]
	o := result(t, meet(t.Context(), other, 1, nil))
	require.ErrorContains(t, o.err, "rank 0 has another list of ranks; give all ranks the same list of 3")
	assert.NotErrorIs(t, o.err, supervise.ErrRetry)
	one, two := meet(t.Context(), all, 1, nil), meet(t.Context(), all, 1, nil)
	select {
	case o = <-one:
		one = two
	case o = <-two:
	}
	require.ErrorContains(t, o.err, "another process has announced itself as rank 1")
	last := meet(t.Context(), all, 2, nil)
	for _, done := range []<-chan outcome{first, one, last} {
		require.NoError(t, result(t, done).err)
	}
}

// A rank that comes while the others train waits for their restart. Other servers on the port of
// rank 0, and strange answers, end its wait.
func TestRendezvousComesLate(t *testing.T) {
	all := Cluster{Workers: freeport.Addresses(t, 2), MinWorkers: 1, Start: 500 * time.Millisecond, Wait: time.Second}
	serve := func(answer string) (stop func()) {
		l, err := net.Listen("tcp", all.Workers[0])
		require.NoError(t, err)
		asked := make(chan struct{}, 100)
		go func() {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				_, _ = io.WriteString(conn, answer)
				conn.Close()
				asked <- struct{}{}
			}
		}()
		return func() {
			<-asked
			l.Close()
		}
	}
	settings := "\x00\x00\x12\x04\x00\x00\x00\x00\x00" // the header of a frame of HTTP/2
	stop := serve(settings)
	late := meet(t.Context(), all, 1, nil)
	stop()
	stop = serve(settings)
	select {
	case o := <-late:
		require.Fail(t, "a late rank does not wait", "%v", o.err)
	case <-time.After(2 * all.Start):
	}
	stop()
	first := meet(t.Context(), all, 0, nil)
	for _, done := range []<-chan outcome{first, late} {
		o := result(t, done)
		require.NoError(t, o.err)
		assert.Len(t, o.present.Workers, 2)
	}
	for answer, want := range map[string]string{
		"":                                    "did not answer within",
		strings.Repeat("s", 2*maxLine):        "did not answer within",
		"ssh\n":                               "is another program",
		"SSH-2.0-OpenSSH\r\n":                 "is another program",
		greeting + "x\n":                      "did not answer within",
		greeting + `{"ranks":[0]}` + "\n":     "sent the list of ranks [0]",
		greeting + `{"ranks":[0,1,2]}` + "\n": "sent the list of ranks",
		greeting + `{"ranks":[1,0]}` + "\n":   "sent the list of ranks",
		greeting + `{"error":"no"}` + "\n":    "refused this rank: no",
	} {
		stop := serve(answer)
		o := result(t, meet(t.Context(), all, 1, nil))
		require.ErrorContains(t, o.err, want, "%q", answer)
		stop()
	}
}
