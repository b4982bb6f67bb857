package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"steadyfit/internal/child"
)

// Supervised is the child's side of Supervise. A nil one is a training that nobody
// supervises: its methods say so, or do nothing. It is safe for concurrent use.
type Supervised struct {
	order order
	// pipe leads to the parent, and fd is its descriptor.
	pipe     *os.File
	fd       int
	terminal *os.File
	begun    time.Time
	// sent is when the last step was told, since begun; 0 before.
	sent atomic.Int64
	// first is true once a step has been told.
	first atomic.Bool
	// step is the newest one, told or not.
	step atomic.Int64
}

// aliveEvery is the least time from one sign of life to the next.
const aliveEvery = 50 * time.Millisecond

// inChild is true in the child, of which the environment says nothing any more.
var inChild atomic.Bool

// Alive is a sign of life, and tells how many train steps are done, those before a
// resume included; 0 before this process has done one, since Supervisor.Starting holds
// until then. Call it after every step: it looks at the clock, writes to a pipe every
// 50 ms, and neither allocates nor blocks.
func (c *Supervised) Alive(step int64) {
	if c == nil {
		return
	}
	if step > 0 {
		c.step.Store(step)
	}
	now := int64(time.Since(c.begun)) | 1
	sent := c.sent.Load()
	first := step > 0 && !c.first.Load()
	if sent != 0 && now-sent < int64(aliveEvery) && !first {
		return
	}
	if !c.sent.CompareAndSwap(sent, now) {
		return
	}
	var line [24]byte
	// If the parent does not read and the pipe is full, the next sign does as well.
	if c.send(append(strconv.AppendInt(line[:0], step, 10), '\n')) && first {
		c.first.Store(true)
	}
}

// busyEvery is the time from one sign of life of Busy to the next.
const busyEvery = 250 * time.Millisecond

// Busy gives signs of life until done is called, once: for what takes its time before
// the first step, cannot call Alive, and does not hang, such as reading a file.
func (c *Supervised) Busy() (done func()) {
	if c == nil {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(busyEvery)
		defer t.Stop()
		for {
			c.Alive(0)
			select {
			case <-t.C:
			case <-stop:
				return
			}
		}
	}()
	return func() { close(stop); <-stopped }
}

// Again returns an error that wraps ErrAgain. Train saves its state and returns it,
// and another process goes on at once, with fresh memory. Deaths are not counted
// for it, but processes that end before there is progress are. If nobody
// supervises, the error is an ordinary one.
func (c *Supervised) Again(reason string) error {
	if c == nil {
		return fmt.Errorf("%s: another process would have to go on, but nobody is there to start it; train under session.Supervise", reason)
	}
	return fmt.Errorf("%s: %w", reason, ErrAgain)
}

// Attempt is the number of this process in the training, from 1; 0 if nobody
// supervises.
func (c *Supervised) Attempt() int {
	if c == nil {
		return 0
	}
	return c.order.Attempt
}

// Deaths is how many processes of the training have died so far.
func (c *Supervised) Deaths() int {
	if c == nil {
		return 0
	}
	return c.order.Deaths
}

// MemoryDeaths is how many processes ran out of memory and died (Death.OutOfMemory) since
// the training last got further than one of them. It needs less memory to go on; see
// budget.SplitAfterCrashes.
func (c *Supervised) MemoryDeaths() int {
	if c == nil {
		return 0
	}
	return c.order.MemoryDeaths
}

// LastDeath is that of the process that died last. ok is false if none has.
func (c *Supervised) LastDeath() (d Death, ok bool) {
	if c == nil || c.order.Last == nil {
		return Death{}, false
	}
	return *c.order.Last, true
}

// Begun is when the first process of the training was started; zero if nobody supervises.
func (c *Supervised) Begun() time.Time {
	if c == nil {
		return time.Time{}
	}
	return c.order.Begun
}

// Restarted reports whether the process before this one died; it is false where it
// asked for this one with Again.
func (c *Supervised) Restarted() bool { return c != nil && c.order.Died }

// Why says why this process was started, as in "restart 3: killed by SIGKILL"; it
// is empty for the first one.
func (c *Supervised) Why() string {
	if c == nil {
		return ""
	}
	return c.order.Why
}

// Continues reports whether a process before this one has done a train step. If
// so, train must resume from the checkpoints, if there are any; else they are of
// another training, and whether to resume is up to the user.
func (c *Supervised) Continues() bool { return c != nil && c.order.Step > 0 }

// Screen is where a progress bar goes: to the terminal of the parent, if that has
// one, else to w.
func (c *Supervised) Screen(w io.Writer) io.Writer {
	if c == nil || c.terminal == nil {
		return w
	}
	return c.terminal
}

// supervised runs train in the child.
func supervised(ctx context.Context, text string, exitCode func(error) int, train func(context.Context, *Supervised) error) error {
	c := &Supervised{begun: time.Now()}
	if err := json.Unmarshal([]byte(text), &c.order); err != nil {
		return fmt.Errorf("supervise: %s is set, but not by a supervising process; unset it: %w", SupervisedEnv, err)
	}
	lifeline, err := c.attach()
	if err != nil {
		return fmt.Errorf("supervise: %s is set, but not by a supervising process; unset it: %w", SupervisedEnv, err)
	}
	// Programs that train starts are no children of Supervise.
	if err := os.Unsetenv(SupervisedEnv); err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	inChild.Store(true)
	survivePipes()
	ctx, orphan := context.WithCancelCause(ctx)
	defer orphan(nil)
	// It goes on after train has returned: main could hang, too.
	go c.watchParent(lifeline, orphan)
	ctx, stop := signal.NotifyContext(ctx, endSignals()...)
	defer stop()
	err = train(ctx, c)
	if lost := c.end(err, exitCode); lost != nil {
		err = errors.Join(err, lost)
	}
	return err
}

// watchParent reads what is never written, until the parent is gone.
func (c *Supervised) watchParent(lifeline *os.File, orphan context.CancelCauseFunc) {
	_, _ = lifeline.Read(make([]byte, 1)) // any end of it is that
	orphan(ErrOrphaned)
	time.Sleep(c.order.Grace)
	_ = child.Kill(os.Getpid()) // nobody is left to tell
}

// end tells the parent how train has ended.
func (c *Supervised) end(err error, exitCode func(error) int) error {
	e := ending{Kind: endDone, Step: c.step.Load()}
	if err != nil {
		e.Kind, e.Text = endFailed, err.Error()
		if exitCode != nil {
			e.Code = exitCode(err)
		}
	}
	switch {
	case errors.Is(err, ErrAgain):
		e.Kind, e.Text = endAgain, strings.TrimSuffix(e.Text, ": "+ErrAgain.Error())
	case errors.Is(err, ErrRetry):
		e.Kind = endRetry
	}
	if len(e.Text) > 2000 {
		e.Text = strings.ToValidUTF8(e.Text[:2000], "") + "..."
	}
	line, lost := json.Marshal(e)
	lost = cmp.Or(lost, c.pipe.SetWriteDeadline(time.Now().Add(c.order.Grace)))
	if lost == nil {
		_, lost = c.pipe.Write(append(line, '\n'))
	}
	if lost != nil {
		return fmt.Errorf("supervise: telling the parent: %w", lost)
	}
	return nil
}

// passing passes a child's standard error on and keeps its end.
type passing struct {
	w    io.Writer
	out  chan<- func()
	tail child.Tail
	// ended is closed once the child has ended: what there is no room for is left out
	// then, since nobody must wait for a dead child.
	ended chan struct{}
	// stuck is true while there is no room in out, as w takes its time.
	stuck atomic.Bool
}

func (p *passing) Write(b []byte) (int, error) {
	_, _ = p.tail.Write(b) // never fails
	part := bytes.Clone(b)
	say := func() { _, _ = p.w.Write(part) } // the child must not suffer from it
	select {
	case p.out <- say:
		return len(b), nil
	default:
	}
	p.stuck.Store(true)
	defer p.stuck.Store(false)
	select {
	case p.out <- say:
	case <-p.ended:
	}
	return len(b), nil
}
