// Package budget keeps the memory of a training process within limits. Its hooks run in a
// fit.Loop: a Budget keeps the process under a limit, a ResetPolicy resets the session at
// intervals or near a limit, and OnOutOfMemory continues a training after TensorFlow ran out of
// memory. None of them changes the trained weights, except that micro-batches add gradients in
// another order.
package budget

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// Budget keeps the memory of a training process under a limit. It takes the cheapest measure
// that helps: trim malloc, lower malloc's mmap threshold, prefetch fewer batches, split batches
// into more micro-batches, reload the model, restart the process. If none helps, the run stops
// with an *Error that advises a limit, after the Checkpoint hook has written a
// checkpoint. docs/explanation/recovery.md describes the decisions.
type Budget struct {
	// Limit is the maximum memory of the process.
	Limit memory.Bytes
	// Layer is the layer of memory that is limited: memory.RSS, memory.Anon, or for a control
	// group "cgroup working set", which excludes memory that the kernel can reclaim at once.
	// Empty means memory.RSS.
	Layer memory.Layer
	// Batch is the number of samples of a batch.
	Batch int
	// MicroBatches is the number of micro-batches to begin with. 0 searches for the smallest
	// sufficient number during the first steps.
	MicroBatches int
	// Prefetch is the dataset whose prefetching may be reduced, or nil.
	Prefetch *data.Prefetched
	// Restart starts another process that resumes the training; nil if that is impossible. It
	// is called only if a restart can help: the plan has changed, or this process has grown and
	// has run for more than 64 steps.
	Restart func(reason string)
	// Log receives the measures and their reasons; nil discards them.
	Log *slog.Logger
}

// Error reports that a budget cannot be kept.
type Error struct {
	Limit memory.Bytes
	Layer memory.Layer
	// Need is a limit in whole MiB that should be sufficient for the steps. It is the highest peak with
	// at least as many micro-batches as at the beginning, or the peak of writing the last checkpoint if
	// that is higher, plus an allowance for later steps and a reserve. A process that keeps growing needs
	// more.
	Need memory.Bytes
	// Opening is the peak before the first step, when the model was opened; 0 if it is unknown.
	// A budget is kept from the first step on, so Opening may exceed Need.
	Opening memory.Bytes
	// Step is the number of train steps done.
	Step int64
	// Whole is the reason why batches were not split (session.Session.CheckSplit). It is nil if
	// they were split or have one sample.
	Whole error
	// Checkpoint is the newest checkpoint; empty if there is none.
	Checkpoint string
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the limit of %v of %s cannot be kept (after step %d): raise it to about %d MiB", e.Limit, e.Layer, e.Step, e.Need/memory.MiB)
	if e.Whole != nil {
		fmt.Fprintf(&b, ", or allow micro-batches, which were not used (%v)", e.Whole) // the reason includes a fix
	} else {
		b.WriteString(", or train with smaller batches")
	}
	if e.Opening > e.Need {
		fmt.Fprintf(&b, "; opening the model takes %d MiB for a moment", (e.Opening+memory.MiB-1)/memory.MiB)
	}
	if e.Checkpoint != "" {
		fmt.Fprintf(&b, "; a training with another limit can resume from %s", e.Checkpoint)
	} else {
		b.WriteString("; there is no checkpoint to resume from")
	}
	return b.String()
}

// Unwrap returns Whole.
func (e *Error) Unwrap() error { return e.Whole }

const (
	// reserve is the part of a limit that stays free, because predictions are inexact.
	reserve = 0.03
	// laterSteps is the fraction by which the peak of later steps may exceed the peak of the first steps.
	// In a training that took as much as a limit of 657 MiB allows, it was 5.5% after two epochs.
	laterSteps = 0.06
	// headroomToRetain is the free space that malloc needs before it may retain blocks, in
	// multiples of the memory of a step. Retained blocks took up to half of that memory
	// (measured with image-224 in 1 to 32 micro-batches, glibc 2.36).
	headroomToRetain = 3
	// leastLife is the number of steps that a new process must run for a restart to help.
	leastLife = 64

	overEvent  = "over_budget"  // a peak was above the limit
	blindEvent = "budget_blind" // memory cannot be read
)

// Hook returns the budget as a hook of a loop that trains s. If the budget cannot be kept, the hook
// returns an *Error at the end of the run, after the last checkpoint.
func (b *Budget) Hook(s *session.Session) fit.Hook {
	return b.hook(trainable{s}, openMeter)
}

func (b *Budget) hook(s trainee, open func(memory.Layer) (meter, error)) fit.Hook {
	e := &enforcer{Budget: b, session: s, open: open}
	return fit.Hook{Name: "memory budget", Replays: true, Load: e.load, Save: e.save, NoFiles: true, Start: e.start, Step: e.step, Epoch: e.epoch, End: e.end}
}

// trainee is the part of a session that this package uses. Tests replace it.
type trainee interface {
	// CheckSplit returns the reason why batches cannot be split, or nil.
	CheckSplit() error
	MicroBatches() int
	SetMicroBatches(n int) error
	// variableBytes returns the total size of the variables.
	variableBytes() memory.Bytes
	// reset resets the session and restores its state.
	reset(ctx context.Context, depth string) (session.Reset, error)
}

type enforcer struct {
	*Budget
	session trainee
	open    func(memory.Layer) (meter, error)
	// loaded is the hook's state from the checkpoint of an earlier run with the same budget, or
	// nil.
	loaded *budgetState

	layer memory.Layer
	log   *slog.Logger
	watch watch
	taken ladder
	// exploring searches for the plan; nil after the search.
	exploring *choice
	// chosen is the plan of the run. Its Parts is 0 during the search.
	chosen plan
	// settled is the memory after the first steps with the chosen plan; 0 before them.
	settled memory.Bytes
	// unmaps is true if malloc returns freed large blocks to the system. retained is true if malloc
	// may retain them. beyondUnmapped is the memory of a step, measured before malloc was allowed
	// to retain blocks.
	unmaps, retained bool
	beyondUnmapped   memory.Bytes
	// most is the highest peak with at least as many micro-batches as at the beginning.
	most memory.Bytes
	// opening is the peak before the first step.
	opening memory.Bytes
	// The function then is called after wait more steps, when the prefetched batches that are no
	// longer wanted are used up.
	then func() error
	wait int
	// handoff is the plan for the next process; nil means the current plan.
	handoff *plan
	// blind is true once the run has logged that memory cannot be read.
	blind bool
	// err is the error to return at the end of the run.
	err error
}

// budgetState is the state of the hook in checkpoints.
type budgetState struct {
	Limit memory.Bytes `json:"limit"`
	Layer memory.Layer `json:"layer"`
	Batch int          `json:"batch"`
	plan
	Most memory.Bytes `json:"peak"`
}

func (e *enforcer) load(_ string, state json.RawMessage) (err error) {
	e.loaded, err = load[budgetState](state)
	return err
}

// load decodes the state of a hook; nil if there is none.
func load[T any](state json.RawMessage) (*T, error) {
	if state == nil {
		return nil, nil
	}
	loaded := new(T)
	if err := json.Unmarshal(state, loaded); err != nil {
		return nil, fmt.Errorf("reading its state: %w", err)
	}
	return loaded, nil
}

func (e *enforcer) save(string) (json.RawMessage, error) {
	if e.chosen.Parts == 0 {
		return nil, nil
	}
	next := e.plan()
	if e.handoff != nil {
		next = *e.handoff
	}
	return json.Marshal(budgetState{e.Limit, e.layer, e.Batch, next, e.most})
}

func (e *enforcer) start(_ context.Context, s *fit.State) (err error) {
	*e = enforcer{Budget: e.Budget, session: e.session, open: e.open, loaded: e.loaded, layer: cmp.Or(e.Layer, memory.RSS), log: e.Log}
	if e.Limit <= 0 {
		return &option.Error{Option: "Budget.Limit", Value: e.Limit, Reason: "expected more than 0"}
	}
	if e.Batch < 1 {
		return &option.Error{Option: "Budget.Batch", Value: e.Batch, Reason: "expected at least 1", Fix: "set it to {Loop.Batch}"}
	}
	e.log = cmp.Or(e.log, slog.New(slog.DiscardHandler))
	m, err := e.open(e.layer)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			e.restoreThreshold()
			err = errors.Join(err, m.close())
		}
	}()
	m.trim()
	if err := m.unmapFrom(unmapLarge); err != nil {
		e.log.Debug("memory budget: the mmap threshold of malloc is not changed", "reason", err)
	} else {
		e.unmaps = true
	}
	e.taken.backoff = firstBackoff
	e.watch = watch{meter: m, limit: e.Limit, began: s.Step, starting: true}
	base := m.level().Bytes
	e.opening = m.peak()
	if base > e.Limit {
		e.log.Warn("memory budget: exceeded before the first step", "now", base, "budget", e.Limit, "of", e.layer)
	} else if e.opening > e.Limit {
		e.log.Warn("memory budget: exceeded when the model was opened; kept from now on", "peak", e.opening, "now", base, "budget", e.Limit, "of", e.layer)
	}
	e.watch.restart()
	e.watch.changed(0)
	return e.firstPlan(base)
}

// firstPlan sets the first plan of the run. base is the memory before the first step.
func (e *enforcer) firstPlan(base memory.Bytes) error {
	whole := e.session.CheckSplit()
	if l := e.loaded; l != nil && (l.Limit != e.Limit || l.Layer != e.layer || l.Batch != e.Batch || l.Parts < 1 || l.Parts > 1 && whole != nil) {
		e.loaded = nil
	}
	if l := e.loaded; l != nil {
		if l.Ahead < e.ahead() {
			e.Prefetch.SetAhead(l.Ahead)
		}
		e.most = max(e.most, l.Most)
		err := e.session.SetMicroBatches(l.Parts)
		e.chosen = e.plan()
		l.plan = e.chosen // the number of prefetched batches may have changed
		e.log.Info("memory budget: plan of an earlier run", "parts", e.chosen.Parts, "samples", partSize(e.Batch, e.chosen.Parts), "prefetch", e.chosen.Ahead,
			"now", base, "budget", e.Limit, "of", e.layer)
		return err
	}
	if e.splits() && e.MicroBatches == 0 {
		e.exploring = &choice{batch: e.Batch, limit: e.Limit, free: e.watch.free(), noise: e.watch.noise(), base: base, aheadBytes: e.aheadBytes(), returns: e.unmaps}
		return e.session.SetMicroBatches(e.firstParts())
	}
	if e.MicroBatches > 0 {
		err := e.session.SetMicroBatches(min(e.MicroBatches, e.Batch))
		e.chosen = e.plan()
		e.log.Info("memory budget: plan as set", "parts", e.chosen.Parts, "samples", partSize(e.Batch, e.chosen.Parts), "prefetch", e.chosen.Ahead,
			"now", base, "budget", e.Limit, "of", e.layer)
		return err
	}
	e.chosen = e.plan()
	if e.Batch == 1 {
		whole = errors.New("a batch has one sample")
	}
	e.log.Info("memory budget: batches are not split", "budget", e.Limit, "of", e.layer, "reason", whole)
	return nil
}

func (e *enforcer) splits() bool { return e.Batch > 1 && e.session.CheckSplit() == nil }

// firstParts returns the number of micro-batches at the beginning of a run.
func (e *enforcer) firstParts() int {
	if !e.splits() {
		return 1
	}
	return min(cmp.Or(e.MicroBatches, mostParts), e.Batch)
}

func (e *enforcer) plan() plan { return plan{e.session.MicroBatches(), e.ahead()} }

func (e *enforcer) ahead() int {
	if e.Prefetch == nil {
		return 0
	}
	return e.Prefetch.Ahead()
}

func (e *enforcer) aheadBytes() memory.Bytes {
	if e.Prefetch == nil {
		return 0
	}
	return memory.Bytes(data.Prefetch(e.Prefetch.Dataset, 0).PassBytes(e.Batch)) // the size of one batch
}

func (e *enforcer) end(_ context.Context, s *fit.State) error {
	e.restoreThreshold()
	var exceeded *Error
	if errors.As(e.err, &exceeded) {
		exceeded.Checkpoint = s.History.Checkpoint // the last checkpoint was written
		if reading := e.watch.level(); reading.OK && exceeded.Checkpoint != "" {
			// Writing the checkpoint may have taken more memory than the steps.
			exceeded.Need = max(exceeded.Need, e.watch.enough(reading.Bytes+e.watch.beyond()))
		}
	}
	return errors.Join(e.err, e.watch.close())
}

func (e *enforcer) step(ctx context.Context, s *fit.State) error {
	err := e.enforce(ctx, s)
	e.reportBlind(s)
	if err != nil {
		e.err, err = stopWithCheckpoint(s, err)
	}
	return err
}

// enforce reads the memory after a step and takes measures.
func (e *enforcer) enforce(ctx context.Context, s *fit.State) error {
	w := &e.watch
	reading := w.level()
	if !reading.OK {
		return nil
	}
	level := reading.Bytes
	var peak memory.Bytes
	counts := false
	if w.due(s, level, e.exploring != nil) {
		peak, counts = e.look(s, level, w.alone(s))
	}
	switch {
	case s.LastStep() || w.starting:
		return nil
	case peak > e.Limit:
		return e.act(ctx, s, level)
	case w.guessed:
		return nil // above is a guess, which the next step measures
	case level+w.above > e.Limit:
		return e.act(ctx, s, level)
	case e.exploring != nil:
		if !counts {
			return nil
		}
		return e.explore(s, peak)
	case e.then != nil:
		if e.wait--; e.wait > 0 {
			return nil
		}
		then := e.then
		e.then = nil
		w.collect()
		return then()
	case level+w.above > w.free() && !e.taken.tolerates(s.Step, level, e.Limit-w.above):
		return e.act(ctx, s, level)
	}
	return nil
}

func (e *enforcer) epoch(_ context.Context, s *fit.State) error {
	if reading := e.watch.level(); reading.OK {
		e.look(s, reading.Bytes, false)
	}
	e.reportBlind(s)
	return nil
}

func (e *enforcer) reportBlind(s *fit.State) {
	why := e.watch.unread()
	if why == nil || e.blind {
		return
	}
	e.blind = true
	e.log.Warn("memory budget: memory cannot be read, so the budget is not enforced until it can", "step", s.Step, "reason", why)
	s.Event(blindEvent)
}

// look reads the peak since the last call. alone is true if only a step ran since the last call.
// counts is false if the peak does not predict later steps.
func (e *enforcer) look(s *fit.State, level memory.Bytes, alone bool) (peak memory.Bytes, counts bool) {
	peak, counts = e.watch.look(level, alone)
	if e.session.MicroBatches() >= e.firstParts() {
		e.most = max(e.most, peak)
	}
	if peak > e.Limit {
		e.over(s, peak)
	}
	if e.settled == 0 && e.chosen.Parts > 0 && e.watch.steady() {
		e.settled = level
		e.retain(level)
	}
	return peak, counts
}

func (e *enforcer) retain(level memory.Bytes) {
	if !e.unmaps || level+headroomToRetain*e.watch.above > e.watch.free() {
		return
	}
	if e.watch.unmapFrom(unmapHuge) == nil {
		e.unmaps, e.retained, e.beyondUnmapped = false, true, e.watch.above
	}
}

func (e *enforcer) over(s *fit.State, peak memory.Bytes) {
	e.log.Warn("memory budget: exceeded", "step", s.Step, "peak", peak, "budget", e.Limit, "by", peak-e.Limit)
	s.CountEvent(overEvent)
}

// explore records the peak with the current plan. Then it either tries fewer micro-batches or ends
// the search.
func (e *enforcer) explore(s *fit.State, peak memory.Bytes) error {
	now := e.plan()
	peak, done := e.exploring.enough(now.Parts, peak)
	if !done {
		return nil
	}
	e.log.Debug("memory budget: measured", "parts", now.Parts, "samples", partSize(e.Batch, now.Parts), "peak", peak, "beyond", e.watch.above)
	next, done := e.exploring.next(now, e.watch.firstPeak, peak, e.watch.above)
	if !done {
		return e.resize(next.Parts)
	}
	needs, why := e.exploring.needs, e.exploring.why
	e.exploring = nil
	if next.Ahead == now.Ahead {
		return e.choose(next, needs, why)
	}
	e.prefetchLess(s, next.Ahead, func() error { return e.choose(next, needs, why) })
	return nil
}

func (e *enforcer) resize(parts int) error {
	e.watch.changed(0)
	return e.session.SetMicroBatches(parts)
}

// choose ends the search with plan p, which has the peak needs. why is the reason against fewer
// micro-batches.
func (e *enforcer) choose(p plan, needs memory.Bytes, why string) error {
	e.chosen = p
	e.log.Info("memory budget: chosen", "parts", p.Parts, "samples", partSize(e.Batch, p.Parts), "prefetch", p.Ahead,
		"needs", needs, "budget", e.Limit, "of", e.layer, "reason", why)
	if p.Parts == e.session.MicroBatches() {
		return nil
	}
	return e.resize(p.Parts)
}

// prefetchLess lowers the number of prefetched batches to ahead. It calls the function then when
// the batches beyond that number are used up.
func (e *enforcer) prefetchLess(s *fit.State, ahead int, then func() error) {
	e.wait = e.Prefetch.Ahead() - ahead + 1
	e.then = then
	e.Prefetch.SetAhead(ahead)
	s.CountEvent(measurePrefetch.String())
}

// lastResort is called if no measure in this process makes enough headroom.
func (e *enforcer) lastResort(s *fit.State, level memory.Bytes) error {
	w := &e.watch
	now := w.level().Bytes
	grown := e.Restart != nil && s.Step-w.began >= leastLife && now > e.settled+w.noise()
	if now+w.above <= e.Limit && !(grown && e.taken.grew(now, w.noise())) {
		e.taken.tolerate(s.Step, now)
		e.log.Warn("memory budget: little headroom is left", "step", s.Step, "now", now, "needed", now+w.above, "budget", e.Limit)
		return nil
	}
	if grown {
		// A new process begins with the headroom that this process had.
		return e.restart(s, level, e.chosen)
	}
	if parts := e.session.MicroBatches(); e.splits() && (parts < e.Batch || w.guessed) {
		// The error needs the peak of the smallest micro-batches, so measure them first.
		s.CountEvent(measureSplit.String())
		e.log.Info("memory budget: trying the smallest micro-batches", "step", s.Step, "before", level, "now", now, "parts", e.Batch, "budget", e.Limit)
		return e.shrink(parts, e.Batch)
	}
	if e.Restart != nil && (e.loaded == nil || e.loaded.plan != e.plan()) {
		return e.restart(s, level, e.plan())
	}
	exceeded := &Error{Limit: e.Limit, Layer: e.layer, Need: w.enough(e.most), Opening: e.opening, Step: s.Step}
	if e.Batch > 1 {
		exceeded.Whole = e.session.CheckSplit()
	}
	e.err = exceeded
	s.Stop(fmt.Sprintf("memory budget: %v of %s cannot be kept", e.Limit, e.layer))
	return nil
}

func (e *enforcer) restart(s *fit.State, level memory.Bytes, p plan) error {
	e.handoff = &p
	s.ResetBy(contract.ResetProcess, memory.Reading{}, 0)
	s.Stop(fmt.Sprintf("resuming in a new process: %v of %v in use", level, e.Limit))
	e.Restart("memory budget")
	return nil
}
