package fit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"steadyfit/data"
	"steadyfit/memory"
	"steadyfit/session"
)

// Budget keeps the memory of a training process under a limit, by the cheapest means
// that does: giving back what malloc holds, reading fewer batches ahead, splitting
// batches into parts, loading the model anew, going on in another process. Where
// nothing holds it the run is stopped, with a checkpoint if there is a hook for them,
// and Err is a *BudgetError with the smallest limit that would do.
//
// A step needs its memory at once, so a run begins with batches in small parts, then
// parts of twice the size, and from what these needed it chooses the largest that fit.
// A model that cannot be split (session.Session.CanSplit) has no such beginning: its
// first step tells whether it fits.
type Budget struct {
	// Limit is what the process may have at any time.
	Limit memory.Bytes
	// Layer is what it is about: memory.RSS, which empty means, memory.Anon or
	// memory.CgroupUsed.
	Layer memory.Layer
	// Batch is the size of the batches.
	Batch int
	// Prefetch is what reads batches ahead; nil if there is none whose number may be
	// lowered.
	Prefetch *data.Prefetched
	// Again goes on in another process; nil if nobody could start one. See
	// ResetPolicy.Again.
	Again func(reason string)
	// Log gets what is done, and why; nil discards it.
	Log *slog.Logger
	// Err is why the run was stopped; nil if it was not.
	Err error
}

// BudgetError: a budget that cannot be kept.
type BudgetError struct {
	Limit memory.Bytes
	Layer memory.Layer
	// Need is the smallest limit that would do, as far as was measured.
	Need memory.Bytes
	// Step is after how many steps that was found.
	Step int64
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("memory budget: %v of %s cannot be kept (after step %d); %v would do", e.Limit, e.Layer, e.Step, e.Need)
}

const (
	// smallestParts is how many parts a budget begins with, if the batch has as many
	// samples.
	smallestParts = 16
	// settleSteps is how many steps are looked at for each number of parts: the first
	// one of a shape takes what later ones use again.
	settleSteps = 2
	// reserve is the part of a limit that is left free for what a prediction misses,
	// and extrapolated how much more growth with the samples is reckoned with than
	// between the two sizes that were measured.
	reserve      = 0.03
	extrapolated = 1.15
	// peakEvery is how many steps lie between two looks at the peak.
	peakEvery = 16
)

// Hook is the budget as a hook of a loop that trains s.
func (b *Budget) Hook(s *session.Session) Hook {
	k := &keeper{Budget: b, session: s}
	return Hook{Name: "memory budget", Start: k.start, Step: k.step, End: k.end}
}

// keeper keeps a budget during a run.
type keeper struct {
	*Budget
	session *session.Session
	layer   memory.Layer
	log     *slog.Logger
	gauge   *memory.Gauge
	sampler *memory.Sampler

	exploring bool
	steps     int // with the present number of parts, while exploring
	// first is what the first parts needed; its size is 0 before.
	first   need
	base    memory.Bytes // before the first step
	above   memory.Bytes // what a step has beyond the level after it, at most
	sincePk int
	idle    int64 // no measures before this step
	// then is done when wait more steps are: batches that are read ahead no longer
	// are let go one by one.
	then func() error
	wait int
}

// need is what steps on parts of a size had at most.
type need struct {
	size int
	peak memory.Bytes
}

func (k *keeper) start(_ context.Context, s *State) (err error) {
	if k.Limit <= 0 || k.Batch < 1 {
		return fmt.Errorf("memory budget: limit %v, batch %d: expected more than 0", k.Limit, k.Batch)
	}
	k.layer, k.log, k.Err = layerOr(k.Layer), k.Log, nil
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if k.gauge, err = memory.NewGauge(k.layer); err != nil {
		return err
	}
	if k.sampler, err = memory.NewSampler(memory.SamplerOptions{}); err != nil {
		return errors.Join(err, k.gauge.Close())
	}
	session.Trim()
	k.base = k.gauge.Read().Bytes
	k.resetPeak()
	if k.base >= k.free() {
		err := &BudgetError{k.Limit, k.layer, k.base + k.base/10, s.Step}
		return errors.Join(err, k.close())
	}
	if k.session.CanSplit() && k.Batch > 1 {
		k.exploring = true
		return k.session.SetMicroBatches(min(smallestParts, k.Batch))
	}
	return nil
}

// free is the limit less the reserve.
func (k *keeper) free() memory.Bytes { return memory.Bytes((1 - reserve) * float64(k.Limit)) }

func (k *keeper) end(context.Context, *State) error { return k.close() }

func (k *keeper) close() error { return errors.Join(k.gauge.Close(), k.sampler.Close()) }

// resetPeak has the kernel's peak begin anew; where it refuses, the peak is that of
// the whole life of the process, which makes predictions careful.
func (k *keeper) resetPeak() { _ = k.sampler.ResetPeak() }

// peak is the most that the layer had since the last resetPeak. The kernel counts the
// peak of RSS alone; what a step has beyond what stays is the same in all layers.
func (k *keeper) peak() memory.Bytes {
	level := k.gauge.Read().Bytes
	usage, err := memory.Read()
	if err != nil || !usage.Peak.OK || !usage.RSS.OK {
		return level
	}
	k.above = max(k.above, usage.Peak.Bytes-usage.RSS.Bytes)
	return level + max(usage.Peak.Bytes-usage.RSS.Bytes, 0)
}

func (k *keeper) step(ctx context.Context, s *State) error {
	if k.exploring {
		return k.explore(ctx, s)
	}
	level := k.gauge.Read()
	if !level.OK {
		return nil
	}
	if k.then != nil && level.Bytes+k.above <= k.Limit {
		if k.wait--; k.wait > 0 {
			return nil
		}
		then := k.then
		k.then = nil
		debug.FreeOSMemory()
		return then()
	}
	if k.sincePk++; k.sincePk >= peakEvery {
		k.sincePk = 0
		k.peak() // for what a step has beyond its level
		k.resetPeak()
	}
	if level.Bytes+k.above <= k.free() || level.Bytes+k.above <= k.Limit && s.Step < k.idle {
		return nil
	}
	return k.act(ctx, s, level.Bytes)
}

// partSize is the samples of a part.
func (k *keeper) partSize() int {
	parts := min(k.session.MicroBatches(), k.Batch)
	return (k.Batch + parts - 1) / parts
}

// explore measures parts of two sizes, and chooses.
func (k *keeper) explore(ctx context.Context, s *State) error {
	if k.steps++; k.steps < settleSteps {
		return nil
	}
	k.steps = 0
	now := need{k.partSize(), k.peak()}
	if now.peak > k.Limit {
		// More than was predicted: the next smaller parts are what fits.
		k.exploring = false
		return k.act(ctx, s, now.peak-k.above)
	}
	k.log.Debug("memory budget: measured", "parts", k.session.MicroBatches(), "samples", now.size, "peak", now.peak, "beyond", k.above)
	if k.first.size == 0 {
		k.first, k.above = now, 0
		k.resetPeak()
		return k.session.SetMicroBatches((k.session.MicroBatches() + 1) / 2)
	}
	k.exploring = false
	if now.size <= k.first.size {
		return nil // a batch of one or two samples
	}
	// The pool keeps the blocks of smaller parts, which are of no use to larger ones:
	// so not one size after the other is tried, but what the first two say.
	perSample := max(float64(now.peak-k.first.peak)/float64(now.size-k.first.size), 0)
	parts, ahead := 0, k.ahead()
	for a := ahead; ; a /= 2 {
		if n := k.fewest(now, perSample, k.saved(a)); n > 0 && (parts == 0 || n < parts) {
			parts, ahead = n, a
		}
		if a == 0 {
			break
		}
	}
	if parts == 0 {
		k.log.Info("memory budget: chosen", "parts", k.session.MicroBatches(), "peak", now.peak, "budget", k.Limit)
		return nil
	}
	choose := func() error {
		k.log.Info("memory budget: chosen", "parts", parts, "prefetch", ahead, "peak_so_far", now.peak, "budget", k.Limit)
		k.above = 0
		k.resetPeak()
		return k.session.SetMicroBatches(parts)
	}
	if ahead == k.ahead() {
		return choose()
	}
	k.readAhead(s, ahead, choose)
	return nil
}

// fewest is the smallest number of parts below the present one that is predicted to
// fit when saved bytes less are read ahead; 0 if none is. now is what the present
// parts need.
func (k *keeper) fewest(now need, perSample float64, saved memory.Bytes) int {
	fits := 0
	for parts := 1; parts < k.session.MicroBatches(); parts++ {
		size := (k.Batch + parts - 1) / parts
		if now.peak-saved+memory.Bytes(extrapolated*perSample*float64(size-now.size)) > k.free() {
			continue
		}
		if fits == 0 {
			fits = parts
		}
		// Parts of two sizes take blocks of two sizes from the pool.
		if k.Batch%parts == 0 {
			return parts
		}
		if parts >= 2*fits {
			break
		}
	}
	return fits
}

// ahead is how many batches are read ahead.
func (k *keeper) ahead() int {
	if k.Prefetch == nil {
		return 0
	}
	return k.Prefetch.Ahead()
}

// saved is what reading only so many batches ahead would save.
func (k *keeper) saved(ahead int) memory.Bytes {
	if k.Prefetch == nil {
		return 0
	}
	return memory.Bytes(int64(k.Prefetch.Ahead()-ahead) * k.Prefetch.BatchBytes(k.Batch))
}

// readAhead lowers the number of batches that are read ahead, and does then when they
// are let go.
func (k *keeper) readAhead(s *State, ahead int, then func() error) {
	k.wait = k.Prefetch.Ahead() - ahead + 1
	k.then = then
	k.Prefetch.SetAhead(ahead)
	s.Event("prefetch")
}

// act takes one measure after the other until there is room, the cheapest first.
func (k *keeper) act(ctx context.Context, s *State, level memory.Bytes) error {
	room := func() bool { return k.gauge.Read().Bytes+k.above <= k.free() }
	done := func(what string) error {
		k.log.Info("memory budget: "+what, "step", s.Step, "before", level, "now", k.gauge.Read(), "budget", k.Limit)
		s.Event(what)
		return nil
	}
	if session.Trim() && room() {
		return done("trim")
	}
	for ahead := k.ahead(); ahead > 0 && level+k.above <= k.Limit; {
		ahead /= 2
		if level+k.above-k.saved(ahead) <= k.free() {
			k.log.Info("memory budget: prefetch", "step", s.Step, "now", level, "batches", ahead, "budget", k.Limit)
			k.readAhead(s, ahead, func() error { return nil })
			return nil
		}
	}
	if parts := k.session.MicroBatches(); k.session.CanSplit() && parts < k.Batch {
		if err := k.session.SetMicroBatches(min(2*parts, k.Batch)); err != nil {
			return err
		}
		// What the step needs beyond its level is about half as much from now on; the
		// pool of the larger parts stays.
		k.above /= 2
		k.resetPeak()
		if room() {
			return done("microbatch")
		}
	}
	did, err := resetInPlace(context.WithoutCancel(ctx), k.session, session.ResetReload)
	if err != nil {
		return err
	}
	s.Reset(did.Returned(), did.Took)
	k.resetPeak()
	if room() {
		return done("reload")
	}
	now := k.gauge.Read().Bytes
	if now+k.above <= k.Limit {
		k.idle = s.Step + 2*peakEvery
		k.log.Warn("memory budget: little room is left", "step", s.Step, "now", now, "budget", k.Limit)
		return nil
	}
	if k.Again != nil {
		s.Reset(memory.Reading{}, 0)
		s.Stop(fmt.Sprintf("a new process goes on: %v of %v in use", level, k.Limit))
		k.Again("memory budget")
		return nil
	}
	k.Err = &BudgetError{k.Limit, k.layer, memory.Bytes(float64(now+k.above) / (1 - reserve)), s.Step}
	s.Stop(k.Err.Error())
	return nil
}
