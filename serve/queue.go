package serve

import (
	"context"
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
		p.mu.Unlock()
		return p.lead(ctx, c)
	}
	p.waiting = append(p.waiting, c)
	if g := p.gathering; g != nil && p.samples(g) >= p.o.Batch {
		p.gathering = nil
		g.full <- struct{}{}
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
	p.mu.Lock()
	p.pass()
	p.mu.Unlock()
	return context.Cause(ctx)
}

// joins reports whether a call can be computed in the run of another one.
func (p *Predictor) joins(leader, c *call) bool {
	return leader != nil && p.o.Batch > 1 && leader.version == c.version && leader.adapter == c.adapter &&
		leader.joinable && c.joinable &&
		leader.n+c.n <= p.o.Batch && slices.Equal(leader.sizes, c.sizes)
}

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

// pass lets the first waiting call begin a run. The caller has locked mu.
func (p *Predictor) pass() {
	if len(p.waiting) == 0 {
		p.free++
		return
	}
	p.waiting[0].wake <- true
	p.waiting = slices.Delete(p.waiting, 0, 1)
}

// lead computes a call that may begin a run, and the waiting calls that can join it.
func (p *Predictor) lead(ctx context.Context, c *call) error {
	if p.o.Delay > 0 && c.joinable && c.n < p.o.Batch {
		p.gather(ctx, c)
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
	p.mu.Unlock()
	s.compute()
	err := c.err
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range s.calls[1:] {
		other.wake <- false
	}
	clear(s.calls)
	c.version.slots = append(c.version.slots, s)
	p.pass()
	return err
}

// gather waits for calls that can join the run of c.
func (p *Predictor) gather(ctx context.Context, c *call) {
	p.mu.Lock()
	if p.gathering != nil || p.samples(c) >= p.o.Batch {
		p.mu.Unlock()
		return
	}
	p.gathering = c
	p.mu.Unlock()
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
