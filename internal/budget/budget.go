// Package budget keeps the memory of a training process within limits. Its hooks run in a
// fit.Loop: a Budget keeps the process under a limit, a Resets resets the session at intervals, and
// OnOutOfMemory continues a training after TensorFlow ran out of memory. None of them changes the
// trained weights, except that micro-batches add gradients in another order.
package budget

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// Budget keeps the memory of a training process under a limit. A run begins with small micro-batches, and
// doubles their size while larger ones are predicted to fit. When memory becomes short, it takes the
// cheapest measure that helps: release malloc's free memory, halve the micro-batches, reload the model,
// restart the process. If none helps, the run stops with an *Error that advises a limit, after the
// Checkpoint hook has written a checkpoint. docs/explanation/recovery.md describes the decisions.
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
	// Restart starts another process that resumes the training; nil if that is impossible. It
	// is called only if a restart can help: the micro-batches have changed, or this process has grown
	// and has run for more than 64 steps.
	Restart func(reason string)
	// Log receives the measures and their reasons; nil discards them.
	Log *slog.Logger
}

// ErrExceeded means that a budget cannot be kept. The error is an *Error.
var ErrExceeded = errors.New("a memory budget cannot be kept")

// Error reports that a budget cannot be kept.
type Error struct {
	Limit memory.Bytes
	Layer memory.Layer
	// Need is a limit in whole MiB that should be sufficient for the steps. It is a peak plus an
	// allowance for later steps and a reserve. The peak is the highest one with at least as many
	// micro-batches as at the beginning, or that of writing the last checkpoint if it is higher. A
	// process that keeps growing needs more.
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
	fmt.Fprintf(&b, "the limit of %v of %s cannot be kept (after step %d): raise it to about %d MiB", e.Limit, e.Layer,
		e.Step, e.Need/memory.MiB)
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

// Is reports whether target is ErrExceeded.
func (e *Error) Is(target error) bool { return target == ErrExceeded }

// Unwrap returns Whole.
func (e *Error) Unwrap() error { return e.Whole }

const (
	// headroomToRetain is the free space that malloc needs before it may retain blocks, in
	// multiples of the memory of a step. Retained blocks took up to half of that memory
	// (measured with image-224 in 1 to 32 micro-batches, glibc 2.36).
	headroomToRetain = 3
	// leastLife is the number of steps that a new process must run for a restart to help.
	leastLife = 64

	overEvent = "over_budget" // a peak was above the limit
)

// Hook returns the budget as a hook of a loop that trains s. If the budget cannot be kept, the hook
// returns an *Error at the end of the run, after the last checkpoint.
func (b *Budget) Hook(s *session.Session) fit.Hook {
	return b.hook(trainable{s}, openMeter)
}

func (b *Budget) hook(s trainee, open func(memory.Layer) (meter, error)) fit.Hook {
	e := &enforcer{Budget: b, session: s, open: open}
	return fit.Hook{Name: "memory budget", Replays: true, Load: e.load, Save: e.save, Start: e.start,
		Step: e.step, Epoch: e.epoch, End: e.end}
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
	// searching searches for the number of micro-batches; nil after the search.
	searching *search
	// chosen is the number of micro-batches of the run; 0 during the search.
	chosen int
	// settled is the memory after the first steps with the chosen number; 0 before them.
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
	// handoff is the number of micro-batches for the next process; 0 means the current number.
	handoff int
	// err is the error to return at the end of the run.
	err error
}

// budgetState is the state of the hook in checkpoints.
type budgetState struct {
	Limit memory.Bytes `json:"limit"`
	Layer memory.Layer `json:"layer"`
	Batch int          `json:"batch"`
	Parts int          `json:"parts"`
	Most  memory.Bytes `json:"peak"`
}

func (e *enforcer) load(state json.RawMessage) (err error) {
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

func (e *enforcer) save() (json.RawMessage, error) {
	if e.chosen == 0 {
		return nil, nil
	}
	parts := cmp.Or(e.handoff, e.session.MicroBatches())
	return json.Marshal(budgetState{e.Limit, e.layer, e.Batch, parts, e.most})
}

func (e *enforcer) start(_ context.Context, s *fit.State) (err error) {
	*e = enforcer{Budget: e.Budget, session: e.session, open: e.open, loaded: e.loaded, layer: cmp.Or(e.Layer, memory.RSS),
		log: e.Log}
	if e.Limit <= 0 {
		return &option.Error{Option: "Budget.Limit", Value: e.Limit, Reason: "expected more than 0"}
	}
	if e.Batch < 1 {
		return &option.Error{Option: "Budget.Batch", Value: e.Batch, Reason: "expected at least 1",
			Fix: "set it to {Loop.Batch}"}
	}
	e.log = cmp.Or(e.log, slog.New(slog.DiscardHandler))
	m, err := e.open(e.layer)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.release(m))
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
	base, err := m.level()
	if err != nil {
		return err
	}
	e.opening = m.peak()
	if base > e.Limit {
		e.log.Warn("memory budget: exceeded before the first step", "now", base, "budget", e.Limit, "of", e.layer)
	} else if e.opening > e.Limit {
		e.log.Warn("memory budget: exceeded when the model was opened; kept from now on", "peak", e.opening, "now", base,
			"budget", e.Limit, "of", e.layer)
	}
	e.watch.changed(0)
	return errors.Join(e.watch.restart(), e.first(base))
}

// first sets the first number of micro-batches of the run. base is the memory before the first step.
func (e *enforcer) first(base memory.Bytes) error {
	whole := e.session.CheckSplit()
	if e.Batch == 1 {
		whole = errors.New("a batch has one sample")
	}
	l := e.loaded
	if l != nil && (l.Limit != e.Limit || l.Layer != e.layer || l.Batch != e.Batch || l.Parts < 1 || l.Parts > 1 &&
		whole != nil) {
		l, e.loaded = nil, nil
	}
	parts, says := 1, "memory budget: batches are not split"
	var reason error
	switch {
	case l != nil:
		e.most, parts, says = l.Most, l.Parts, "memory budget: micro-batches of an earlier run"
	case e.MicroBatches > 0:
		parts, says = min(e.MicroBatches, e.Batch), "memory budget: micro-batches as set"
	case whole == nil:
		e.searching = &search{batch: e.Batch, limit: e.Limit, free: e.watch.free(), noise: e.watch.noise(), before: base}
		return e.session.SetMicroBatches(e.firstParts())
	default:
		reason = whole
	}
	e.chosen = parts
	about := []any{"parts", parts, "samples", partSize(e.Batch, parts), "now", base, "budget", e.Limit, "of", e.layer}
	if reason != nil {
		about = append(about, "reason", reason)
	}
	e.log.Info(says, about...)
	if parts == e.session.MicroBatches() {
		return nil
	}
	return e.session.SetMicroBatches(parts)
}

func (e *enforcer) splits() bool { return e.Batch > 1 && e.session.CheckSplit() == nil }

// firstParts returns the number of micro-batches at the beginning of a run.
func (e *enforcer) firstParts() int {
	if !e.splits() {
		return 1
	}
	return min(cmp.Or(e.MicroBatches, mostParts), e.Batch)
}

func (e *enforcer) end(_ context.Context, s *fit.State) error {
	var exceeded *Error
	if errors.As(e.err, &exceeded) {
		exceeded.Checkpoint = s.History.Checkpoint // the last checkpoint was written
		level, unread := e.watch.level()
		beyond, unseen := e.watch.beyond()
		if exceeded.Checkpoint != "" && unread == nil && unseen == nil {
			// Writing the checkpoint may have taken more memory than the steps.
			exceeded.Need = max(exceeded.Need, e.watch.enough(level+beyond))
		}
	}
	return errors.Join(e.err, e.release(e.watch.meter))
}

// release lets malloc retain blocks after the run, and closes the meter.
func (e *enforcer) release(m meter) error {
	if e.unmaps && m.unmapFrom(unmapHuge) == nil {
		e.unmaps = false
	}
	return m.close()
}

func (e *enforcer) step(ctx context.Context, s *fit.State) error {
	err := e.enforce(ctx, s)
	if err != nil {
		e.err, err = stopWithCheckpoint(s, err)
	}
	return err
}

// enforce reads the memory after a step and takes measures.
func (e *enforcer) enforce(ctx context.Context, s *fit.State) error {
	w := &e.watch
	level, err := w.level()
	if err != nil {
		return err
	}
	var peak memory.Bytes
	counts := false
	if w.due(s, level, e.searching != nil) {
		if peak, counts, err = e.look(s, level, w.alone(s)); err != nil {
			return err
		}
	}
	switch {
	case s.LastStep() || w.starting:
		return nil
	case peak > e.Limit:
		return e.act(ctx, s, level)
	case w.guessed:
		return nil // above is a guess until the next step is measured
	case level+w.above > e.Limit:
		return e.act(ctx, s, level)
	case e.searching != nil:
		if !counts {
			return nil
		}
		return e.search(peak)
	case level+w.above > w.free() && !e.taken.tolerates(s.Step, level, e.Limit-w.above):
		return e.act(ctx, s, level)
	}
	return nil
}

func (e *enforcer) epoch(_ context.Context, s *fit.State) error {
	level, err := e.watch.level()
	if err == nil {
		_, _, err = e.look(s, level, false)
	}
	if err != nil {
		e.err, err = stopWithCheckpoint(s, err)
	}
	return err
}

// look reads the peak since the last call. alone is true if only a step ran since the last call.
// counts is false if the peak does not predict later steps.
func (e *enforcer) look(s *fit.State, level memory.Bytes, alone bool) (peak memory.Bytes, counts bool, err error) {
	peak, counts, err = e.watch.look(level, alone)
	if err != nil {
		return 0, false, err
	}
	if e.session.MicroBatches() >= e.firstParts() {
		e.most = max(e.most, peak)
	}
	if peak > e.Limit {
		e.over(s, peak)
	}
	if e.settled == 0 && e.chosen > 0 && e.watch.steady() {
		e.settled = level
		e.retain(level)
	}
	return peak, counts, nil
}

// retain lets malloc retain freed blocks if there is much headroom, since returning them costs time.
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
	s.Event(overEvent)
}

// search records the peak of a step. Then it either halves the number of micro-batches or ends the search.
func (e *enforcer) search(peak memory.Bytes) error {
	parts := e.session.MicroBatches()
	e.log.Debug("memory budget: measured", "parts", parts, "peak", peak, "first", e.watch.firstPeak, "above",
		e.watch.above)
	next, why := e.searching.next(parts, e.watch.firstPeak, peak, e.watch.above)
	if next == parts && why == "" {
		return nil
	}
	if why != "" {
		e.searching, e.chosen = nil, next
		e.log.Info("memory budget: chosen", "parts", next, "samples", partSize(e.Batch, next), "peak", peak,
			"budget", e.Limit, "of", e.layer, "reason", why)
	}
	if next == parts {
		return nil
	}
	e.watch.changed(0)
	return e.session.SetMicroBatches(next)
}
