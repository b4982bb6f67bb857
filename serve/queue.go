package serve

import (
	"context"
	"errors"
	"slices"
	"time"
)

// call is a call of Predict.
type call struct {
	request
	version *version
	// wake ends the wait of a call: true lets it begin a run, and false means that another call has computed it.
	wake chan bool
	full chan struct{} // ends the wait for Options.Delay
	err  error         // of the run
}

// do computes a call, in a run of its own or in that of another call.
func (p *Predictor) do(ctx context.Context, c *call) error {
	p.mu.Lock()
	if p.free > 0 && !p.joins(p.gathering, c) {
		p.free--
		if p.gathering == nil && p.gathers(c) {
			p.gathering = c // before another call could lead
		}
		p.mu.Unlock()
		return p.lead(ctx, c)
	}
	p.waiting = append(p.waiting, c)
	// A call that cannot join ends the wait for more calls, since it waits for that run.
	if g := p.gathering; g != nil && (!p.joins(g, c) || p.samples(g) >= p.o.Batch) {
		p.begin()
	}
	p.mu.Unlock()
	select {
	case leads := <-c.wake:
		if leads {
			return p.lead(ctx, c)
		}
		return c.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	if i := slices.Index(p.waiting, c); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		p.mu.Unlock()
		return context.Cause(ctx)
	}
	p.mu.Unlock()
	if leads := <-c.wake; !leads {
		return c.err
	}
	p.pass()
	return context.Cause(ctx)
}

// begin ends the wait of a run for more calls. The caller has locked mu.
func (p *Predictor) begin() {
	if g := p.gathering; g != nil {
		p.gathering = nil
		g.full <- struct{}{}
	}
}

// joins reports whether a call can be computed in the run of another one.
func (p *Predictor) joins(leader, c *call) bool {
	return leader != nil && p.o.Batch > 1 && leader.version == c.version && leader.adapter == c.adapter &&
		leader.joinable && c.joinable &&
		leader.n+c.n <= p.o.Batch && slices.Equal(leader.sizes, c.sizes)
}

// gathers reports whether the run of a call may wait for more calls.
func (p *Predictor) gathers(c *call) bool { return p.o.Delay > 0 && c.joinable && c.n < p.o.Batch }

// samples returns the number of samples that the run of a call can have now.
func (p *Predictor) samples(leader *call) int {
	n := leader.n
	for _, c := range p.waiting {
		if p.joins(leader, c) {
			n += c.n
		}
	}
	return n
}

// pass ends a run, so that a waiting call may begin one.
func (p *Predictor) pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
	p.dispatch()
}

// dispatch lets waiting calls begin the runs that are free. The caller has locked mu.
func (p *Predictor) dispatch() {
	n := min(p.free, len(p.waiting))
	for _, c := range p.waiting[:n] {
		c.wake <- true
	}
	p.free -= n
	p.waiting = slices.Delete(p.waiting, 0, n)
}

// lead computes a call that may begin a run, and the waiting calls that can join it.
func (p *Predictor) lead(ctx context.Context, c *call) error {
	defer p.pass()
	if p.gathers(c) {
		if p.gather(ctx, c); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	p.mu.Lock()
	s := c.version.slot()
	s.calls = append(s.calls[:0], c)
	n := c.n
	p.waiting = slices.DeleteFunc(p.waiting, func(other *call) bool {
		if !p.joins(c, other) || n+other.n > p.o.Batch {
			return false
		}
		n += other.n
		s.calls = append(s.calls, other)
		return true
	})
	p.dispatch() // calls that have waited to join
	p.mu.Unlock()
	completed := false
	defer func() { // also if the run panics
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, other := range s.calls[1:] {
			if !completed {
				other.err = errors.New("the run has panicked")
			}
			other.wake <- false
		}
		clear(s.calls)
		c.version.slots = append(c.version.slots, s)
	}()
	s.compute()
	completed = true
	return c.err
}

// gather waits for calls that can join the run of c.
func (p *Predictor) gather(ctx context.Context, c *call) {
	p.mu.Lock()
	cannotJoin := func(other *call) bool { return !p.joins(c, other) }
	if p.gathering == nil && p.samples(c) < p.o.Batch && !slices.ContainsFunc(p.waiting, cannotJoin) {
		p.gathering = c
	}
	waits := p.gathering == c
	p.mu.Unlock()
	if !waits {
		return
	}
	timer := time.NewTimer(p.o.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.full:
	case <-ctx.Done():
	}
	p.mu.Lock()
	if p.gathering == c {
		p.gathering = nil
	}
	p.mu.Unlock()
}
