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
// cheapest measure that helps: release malloc's free memory, halve the micro-batches, restart the process.
// If none helps, the run stops with an *Error that advises a limit, after the Checkpoint hook has written
// a checkpoint. docs/explanation/recovery.md describes the decisions.
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
	// is called only if a restart can help: this process has grown, or began with larger micro-batches.
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
	// mostParts is the maximum number of micro-batches at the beginning of a run.
	mostParts = 16
	// peakEvery is the number of steps between two readings of the peak. After a change of the
	// micro-batches, the peaks of that many steps are read one by one. If a measure is needed again within
	// that number of steps, it did not help.
	peakEvery = 16
	// looks is the number of steps to measure per size of micro-batch, because the memory of a step varies
	// with the operations that run at the same time.
	looks = 3
	// extrapolated is the factor by which predictions multiply the measured growth. oneDNN's pool grows in
	// regions, whose sizes differ between runs: with 1.15, one of six runs of image-224 exceeded its limit by 3%.
	extrapolated = 1.5
	// reserve is the part of a limit that stays free, because predictions are inexact.
	reserve = 0.03
	// laterSteps is the fraction by which the peak of later steps may exceed the peak of the first steps.
	// In a training that took as much as a limit of 657 MiB allows, it was 5.5% after two epochs.
	laterSteps = 0.06
	// headroomToRetain is the free space that malloc needs before it may retain blocks, in
	// multiples of the memory of a step. Retained blocks took up to half of that memory
	// (measured with image-224 in 1 to 32 micro-batches, glibc 2.36).
	headroomToRetain = 3

	overEvent = "over_budget" // a peak was above the limit
)

// Hook returns the budget as a hook of a loop that trains s. If the budget cannot be kept, the hook
// returns an *Error at the end of the run, after the last checkpoint.
func (b *Budget) Hook(s *session.Session) fit.Hook {
	return b.hook(s, openMeter)
}

func (b *Budget) hook(s trainee, open func(memory.Layer) (meter, error)) fit.Hook {
	e := &enforcer{Budget: *b, session: s, open: open}
	e.Layer, e.Log = cmp.Or(e.Layer, memory.RSS), cmp.Or(e.Log, slog.New(slog.DiscardHandler))
	return fit.Hook{Name: "memory budget", Replays: true, Load: e.load, Save: e.save, Start: e.start,
		Step: e.step, Epoch: e.epoch, End: e.end}
}

// trainee is the part of a session that this package uses. Tests replace it.
type trainee interface {
	// CheckSplit returns the reason why batches cannot be split, or nil.
	CheckSplit() error
	MicroBatches() int
	SetMicroBatches(n int) error
	// Reset is session.Session.Reset.
	Reset(ctx context.Context, depth string) (session.Reset, error)
}

type enforcer struct {
	Budget
	session trainee
	open    func(memory.Layer) (meter, error)
	// loaded is the hook's state from a checkpoint, or nil.
	loaded *budgetState

	meter
	// whole is the reason why batches cannot be split, or nil.
	whole error
	// most is the number of micro-batches at the beginning of a new run, and fewest the least number in this one.
	most, fewest int
	// search is nil after the search for the number of micro-batches. chosen is then that number.
	search *search
	chosen int
	// unchanged is the number of steps with the current micro-batches, and acted the step of the last measure.
	unchanged, acted int64
	// above is the most memory that a step with the current micro-batches needed above the level, which is
	// the memory between steps. top is the highest level since the last reading of the peak.
	above, top memory.Bytes
	// settled is the level after the first steps with the chosen number; 0 before them.
	settled memory.Bytes
	// needed is the highest peak with at least most micro-batches.
	needed memory.Bytes
	// opening is the peak before the first step.
	opening memory.Bytes
	// free is the part of the limit that steps may use, and noise the least difference that is growth.
	free, noise memory.Bytes
	// err is the error to return at the end of the run.
	err error
}

// budgetState is the state of the hook in checkpoints.
type budgetState struct {
	Limit memory.Bytes `json:"limit"`
	Layer memory.Layer `json:"layer"`
	Batch int          `json:"batch"`
	Parts int          `json:"parts"`
	Peak  memory.Bytes `json:"peak"`
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
	return json.Marshal(budgetState{e.Limit, e.Layer, e.Batch, e.session.MicroBatches(), e.needed})
}

func (e *enforcer) start(_ context.Context, s *fit.State) (err error) {
	*e = enforcer{Budget: e.Budget, session: e.session, open: e.open, loaded: e.loaded, acted: s.Step - peakEvery,
		whole: e.session.CheckSplit()}
	if e.Limit <= 0 {
		return &option.Error{Option: "Budget.Limit", Value: e.Limit, Reason: "expected more than 0"}
	}
	if e.Batch < 1 {
		return &option.Error{Option: "Budget.Batch", Value: e.Batch, Reason: "expected at least 1",
			Fix: "set it to {Loop.Batch}"}
	}
	if e.meter, err = e.open(e.Layer); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	e.trim()
	e.noise = max(memory.MiB, e.uncertainty())
	e.free = e.Limit - max(memory.Bytes(reserve*float64(e.Limit)), e.uncertainty())
	e.opening = e.peak()
	if e.top, _, err = e.read(); err != nil { // and forget the peak of opening the model
		return err
	}
	if max(e.opening, e.top) > e.Limit {
		e.Log.Warn("memory budget: exceeded before the first step", "now", e.top, "peak", e.opening, "budget", e.Limit,
			"of", e.Layer)
	}
	return e.begin()
}

// begin sets the first number of micro-batches.
func (e *enforcer) begin() error {
	if e.Batch == 1 {
		e.whole = errors.New("a batch has one sample")
	}
	if e.most = 1; e.whole == nil {
		e.most = min(cmp.Or(e.MicroBatches, mostParts), e.Batch)
	}
	e.fewest = e.most
	says := "micro-batches as set"
	switch l := e.loaded; {
	case l != nil && l.Limit == e.Limit && l.Layer == e.Layer && l.Batch == e.Batch &&
		(l.Parts == 1 || l.Parts > 1 && e.whole == nil):
		e.fewest, e.needed, says = l.Parts, l.Peak, "micro-batches of an earlier run"
	case e.whole != nil:
		says = fmt.Sprintf("batches are not split (%v)", e.whole)
	case e.MicroBatches == 0:
		e.search = &search{parts: e.most, before: e.top}
		return e.session.SetMicroBatches(e.most)
	}
	e.chosen = e.fewest
	e.Log.Info("memory budget: "+says, "parts", e.chosen, "samples", partSize(e.Batch, e.chosen), "now", e.top, "budget",
		e.Limit, "of", e.Layer)
	return e.session.SetMicroBatches(e.chosen)
}
