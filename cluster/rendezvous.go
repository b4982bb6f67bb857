package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"steadyfit/internal/mark"
	"steadyfit/option"
	"steadyfit/supervise"
)

const (
	defaultStart   = 10 * time.Minute
	defaultTimeout = time.Minute
	// portWait is the longest wait for the end of an earlier process that has the port.
	portWait = 10 * time.Second
	// maxLine is the largest size of a line from another process.
	maxLine = 32 << 10
	// maxPause is the longest pause between two attempts to reach rank 0 while it trains.
	maxPause = 10 * time.Second

	// greeting is the first line that rank 0 sends. trains is the first byte that a server of
	// TensorFlow sends, the high byte of the length of an HTTP/2 frame. A rank that receives it
	// knows that rank 0 already trains.
	greeting = "steadyfit rendezvous 1\n"
	trains   = 0
	// opened is sent by a rank that has opened its session. Later, the connection may end.
	opened = '+'
)

// exchangeTime is the longest time to connect, to write a line, and to exchange the greeting and
// the announcement.
var exchangeTime = 10 * time.Second

// announcement is the line with which a rank announces itself to rank 0.
type announcement struct {
	Rank    int    `json:"rank"`
	Workers string `json:"workers"` // a hash of all addresses
}

// decision is the line with which rank 0 answers: the ranks that train, or an error.
type decision struct {
	Ranks []int  `json:"ranks,omitempty"`
	Error string `json:"error,omitempty"`
}

// Rendezvous waits until all ranks have called it, or until c.Wait has passed and at least
// c.MinWorkers ranks have called it. Then it calls open with the cluster of the ranks that are
// present. Rank 0 must be present: it listens on its port, on which its server starts later. The
// context of open ends with a supervise.ErrPeer if another rank ends before open has returned on
// that rank. A rank that comes too late waits for the next rendezvous for as long as the server of
// rank 0 answers. If too few ranks are present, the error is supervise.ErrRetry.
func (c *Cluster) Rendezvous(ctx context.Context, log *slog.Logger, open func(context.Context, *Cluster) error) error {
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	meet := c.announce
	if c.Rank == 0 {
		meet = c.host
	}
	ranks, peers, err := meet(ctx, log)
	if err != nil {
		return err
	}
	defer func() {
		for _, p := range peers {
			p.Close()
		}
	}()
	present := *c
	present.Workers, present.Rank = nil, slices.Index(ranks, c.Rank)
	var missing []string
	for rank, address := range c.Workers {
		if slices.Contains(ranks, rank) {
			present.Workers = append(present.Workers, address)
		} else {
			missing = append(missing, c.name(rank))
		}
	}
	if missing != nil {
		log.Warn("the training continues without some ranks", "cluster", &present, "missing", strings.Join(missing, ", "))
	}
	for _, p := range peers {
		go p.follow(lose)
	}
	err = open(ctx, &present)
	if lost := context.Cause(ctx); err != nil && errors.Is(lost, supervise.ErrPeer) {
		return lost
	}
	if err == nil {
		for _, p := range peers {
			_ = p.write([]byte{opened}) // a rank that is lost is noticed in the training
		}
	}
	return err
}

func (c *Cluster) name(rank int) string { return fmt.Sprintf("rank %d (%s)", rank, c.Workers[rank]) }

func (c *Cluster) hash() string {
	sum := sha256.Sum256([]byte(strings.Join(c.Workers, "\n")))
	return hex.EncodeToString(sum[:8])
}

func (c *Cluster) keepAlive() net.KeepAliveConfig {
	every := cmp.Or(c.Timeout, defaultTimeout) / 4
	return net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 3}
}

// longest returns the longest time for which rank 0 gathers the others.
func (c *Cluster) longest() time.Duration { return max(cmp.Or(c.Start, defaultStart), c.Wait) }

// Listen listens on the port of this rank, on all addresses. An earlier process of the rank may
// still have the port, so Listen waits for its end, at most 10 s. If the port cannot be had, the
// error is supervise.ErrRetry.
func (c *Cluster) Listen(ctx context.Context) (net.Listener, error) {
	_, port, err := net.SplitHostPort(c.Workers[c.Rank])
	config := net.ListenConfig{KeepAliveConfig: c.keepAlive()}
	for began := time.Now(); err == nil; err = pause(ctx, 50*time.Millisecond) {
		var l net.Listener
		if l, err = config.Listen(ctx, "tcp", ":"+port); err == nil {
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) > portWait {
			break
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("waiting for the port %s: %w", port, context.Cause(ctx))
	}
	return nil, mark.As(fmt.Errorf("%v needs the port %s: %w; end the process that uses it, or use another port", c, port, err), supervise.ErrRetry)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// peer is the connection to another rank. It is open from the announcement until both ranks have
// opened their sessions.
type peer struct {
	net.Conn
	rank  int
	name  string
	lines *bufio.Reader
	// ended is closed when the connection ends. opened is then true if the other rank has
	// opened its session.
	ended  chan struct{}
	opened bool
}

func newPeer(conn net.Conn) *peer {
	return &peer{Conn: conn, lines: bufio.NewReaderSize(conn, maxLine), ended: make(chan struct{})}
}

// read reads a line of JSON.
func (p *peer) read(to any) error {
	line, err := p.lines.ReadSlice('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, to)
}

// send writes a line of JSON.
func (p *peer) send(line any) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	return p.write(append(text, '\n'))
}

// write writes b, and gives up after exchangeTime.
func (p *peer) write(b []byte) error {
	if err := p.SetWriteDeadline(time.Now().Add(exchangeTime)); err != nil {
		return err
	}
	_, err := p.Write(b)
	return err
}

// watch waits for the byte that the other rank sends when it has opened its session.
func (p *peer) watch() {
	defer close(p.ended)
	b, err := p.lines.ReadByte()
	p.opened = err == nil && b == opened
}

// follow calls lose if the other rank ends before it has opened its session.
func (p *peer) follow(lose context.CancelCauseFunc) {
	if <-p.ended; !p.opened {
		lose(mark.As(fmt.Errorf("%s ended while the training started", p.name), supervise.ErrPeer))
	}
}

// host is rank 0 while the ranks gather.
type host struct {
	*Cluster
	log           *slog.Logger
	arrived, left chan *peer
	present       []*peer // by rank; nil for an absent one
}

// host waits for the other ranks and sends them the list of those that are present.
func (c *Cluster) host(ctx context.Context, log *slog.Logger) (ranks []int, peers []*peer, err error) {
	listener, err := c.Listen(ctx)
	if err != nil {
		return nil, nil, err
	}
	h := &host{Cluster: c, log: log, arrived: make(chan *peer), left: make(chan *peer), present: make([]*peer, len(c.Workers))}
	gathering, end := context.WithCancel(ctx)
	go h.accept(gathering, listener)
	err = h.gather(ctx)
	end()
	listener.Close() // the port is for the server of TensorFlow now
	ranks = []int{0}
	for rank, p := range h.present {
		if p != nil {
			ranks, peers = append(ranks, rank), append(peers, p)
		}
	}
	for _, p := range peers {
		if err != nil {
			p.Close()
		} else {
			_ = p.send(decision{Ranks: ranks}) // follow notices a rank that has ended
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return ranks, peers, nil
}

// gather waits until enough ranks are present.
func (h *host) gather(ctx context.Context) error {
	wait := time.NewTimer(cmp.Or(h.Wait, h.longest()))
	last := time.NewTimer(h.longest())
	defer wait.Stop()
	defer last.Stop()
	for n, need := 1, len(h.Workers); n < need; {
		select {
		case p := <-h.arrived:
			if old := h.present[p.rank]; old != nil {
				_ = old.send(decision{Error: fmt.Sprintf("another process has announced itself as %s; start each rank once", p.name)})
				old.Close()
				n--
			}
			h.present[p.rank] = p
			n++
		case p := <-h.left:
			if h.present[p.rank] == p {
				h.present[p.rank] = nil
				n--
			}
			p.Close()
		case <-wait.C:
			need = h.MinWorkers
		case <-last.C:
			return mark.As(option.Errorf("%d of %d ranks are present after %v, and {Cluster.MinWorkers} is %d; start all ranks, or raise {Cluster.Start}", n, len(h.Workers), h.longest(), h.MinWorkers), supervise.ErrRetry)
		case <-ctx.Done():
			return fmt.Errorf("waiting for the other ranks: %w", context.Cause(ctx))
		}
	}
	return nil
}

// accept serves connections until the listener is closed. More connections than ranks can need
// are closed at once.
func (h *host) accept(ctx context.Context, listener net.Listener) {
	places := make(chan struct{}, 2*len(h.Workers)+64)
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil { // such as too many open files
			if pause(ctx, 50*time.Millisecond) != nil {
				return
			}
			continue
		}
		select {
		case places <- struct{}{}:
			go func() {
				h.serve(ctx, conn)
				<-places
			}()
		default:
			conn.Close()
		}
	}
}

// serve serves a connection, which may be that of any program, until the connection or ctx ends.
func (h *host) serve(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	p := newPeer(conn)
	err := conn.SetDeadline(time.Now().Add(exchangeTime))
	if err == nil {
		_, err = conn.Write([]byte(greeting))
	}
	var a announcement
	if err == nil {
		err = p.read(&a)
	}
	if err == nil && (a.Workers != h.hash() || a.Rank < 1 || a.Rank >= len(h.Workers)) {
		_ = p.send(decision{Error: fmt.Sprintf("rank 0 has another list of ranks; give all ranks the same list of %d", len(h.Workers))})
		err = errRefused
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil || !stop() {
		conn.Close()
		return
	}
	p.rank = a.Rank
	p.name = h.name(p.rank)
	go p.watch()
	select {
	case h.arrived <- p:
	case <-ctx.Done():
		conn.Close()
		return
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return // from now on, follow waits for p.ended
	}
	select {
	case h.left <- p:
	case <-ctx.Done():
	}
}

var (
	errTraining = errors.New("rank 0 trains without this rank")
	errRefused  = errors.New("rank 0 refused this rank")
)

// announce waits until rank 0 decides which ranks are present.
func (c *Cluster) announce(ctx context.Context, log *slog.Logger) (ranks []int, peers []*peer, err error) {
	start := cmp.Or(c.Start, defaultStart)
	answered, began, logged := time.Now(), time.Now(), false
	most := min(maxPause, cmp.Or(c.Wait, start)/4)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, most) {
		ranks, p, err := c.ask(ctx)
		switch {
		case err == nil:
			return ranks, []*peer{p}, nil
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("waiting for the other ranks: %w", context.Cause(ctx))
		case errors.Is(err, errRefused):
			return nil, nil, err
		case errors.Is(err, errTraining):
			answered = time.Now()
			if !logged && time.Since(began) > exchangeTime { // by now, an earlier process of rank 0 would have ended
				log.Warn("the others train without this rank, which waits until they restart", "cluster", c)
				logged = true
			}
		case time.Since(answered) > start:
			return nil, nil, mark.As(option.Errorf("%s did not answer within %v; start it, or raise {Cluster.Start}: %w", c.name(0), start, err), supervise.ErrRetry)
		}
		if err := pause(ctx, wait); err != nil {
			return nil, nil, fmt.Errorf("waiting for the other ranks: %w", err)
		}
	}
}

// ask announces this rank to rank 0 and waits for the decision.
func (c *Cluster) ask(ctx context.Context) (ranks []int, p *peer, err error) {
	dialer := net.Dialer{Timeout: exchangeTime, KeepAliveConfig: c.keepAlive()}
	conn, err := dialer.DialContext(ctx, "tcp", c.Workers[0])
	if err != nil {
		return nil, nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	p = newPeer(conn)
	p.name = c.name(0)
	if ranks, err = c.decided(p); err != nil {
		conn.Close()
		return nil, nil, err
	}
	go p.watch()
	return ranks, p, nil
}

func (c *Cluster) decided(p *peer) (ranks []int, err error) {
	if err := p.SetDeadline(time.Now().Add(exchangeTime)); err != nil {
		return nil, err
	}
	other := fmt.Errorf("%w: %s is another program; use the same version for all ranks", errRefused, p.name)
	if first, err := p.lines.Peek(1); err != nil {
		return nil, err
	} else if first[0] == trains {
		return nil, errTraining
	} else if first[0] != greeting[0] {
		return nil, other
	}
	if line, err := p.lines.ReadSlice('\n'); err != nil {
		return nil, err
	} else if !bytes.Equal(line, []byte(greeting)) {
		return nil, other
	}
	if err := p.send(announcement{Rank: c.Rank, Workers: c.hash()}); err != nil {
		return nil, err
	}
	// Rank 0 may be stopped or cut off while it gathers the others.
	if err := p.SetReadDeadline(time.Now().Add(c.longest() + exchangeTime)); err != nil {
		return nil, err
	}
	var d decision
	switch err := cmp.Or(p.read(&d), p.SetReadDeadline(time.Time{})); {
	case err != nil:
		return nil, err
	case d.Error != "":
		return nil, fmt.Errorf("%w: %s", errRefused, strings.ToValidUTF8(d.Error[:min(len(d.Error), 500)], ""))
	case !c.valid(d.Ranks):
		return nil, fmt.Errorf("%w: it sent the list of ranks %v", errRefused, d.Ranks)
	}
	return d.Ranks, nil
}

// valid reports whether a list of present ranks is in order and has rank 0 and this one.
func (c *Cluster) valid(ranks []int) bool {
	for i, rank := range ranks {
		if rank >= len(c.Workers) || i > 0 && rank <= ranks[i-1] {
			return false
		}
	}
	return len(ranks) > 0 && ranks[0] == 0 && slices.Contains(ranks, c.Rank)
}
