package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// Priorities of the hooks of this package. Hooks run in ascending order of
// priority, so those that decide come before those that report, and Checkpoint,
// which stores what all of them remember, comes last.
const (
	PriorityDefault    = 0
	PriorityReport     = 500
	PriorityCheckpoint = 1000
)

// Hook is called by a Loop at certain moments. Every function is optional. A
// Loop calls its hooks from one goroutine, in ascending order of Priority, and
// those of the same priority in the order in which they were added; End is
// called in the reverse order.
//
// An error ends the run, as a HookError that has the name of the hook. A hook
// that returns the context's own error because the run was cancelled is not
// faulty: the other hooks are still called, and the run ends as any cancelled
// one does.
type Hook struct {
	// Name tells hooks apart in errors and in checkpoints. Two hooks of a Loop
	// must not share one.
	Name     string
	Priority int

	// Load is called at the beginning of every run, before Start. If the run
	// resumes from a checkpoint that has a state of this hook, Load gets what
	// Save returned, and the folder where Save put files, if it put any;
	// otherwise both are empty, and the hook begins anew.
	Load func(dir string, state json.RawMessage) error
	// Save is called while a checkpoint is written. It returns what the hook
	// has to remember, or nil, and may write files into dir.
	Save func(dir string) (json.RawMessage, error)

	// Start is called before the first step.
	Start func(context.Context, *State) error
	// Step is called after every train step, or after every call of several steps (see
	// StepEvery). It should cost little.
	Step func(context.Context, *State) error
	// StepEvery says after which steps Step has to be called where a Loop runs several
	// steps in one call (Stacker): with n > 0 after those whose number
	// (State.Step) is divisible by n, at which a call then ends; with AnyStep after no
	// step in particular. Step is called after every call, after others than these, too.
	// 0 is after every step, so that a Loop with such a hook runs steps one by one.
	StepEvery int
	// Replays has Step called also for steps that are trained again after a Recovery
	// went back: for hooks that look at the process, such as at its memory, rather than
	// at what is learnt.
	Replays bool
	// Epoch is called after every epoch, when State.Record is complete.
	Epoch func(context.Context, *State) error
	// End is called once at the end of a run, however it ended, if Start was
	// called without an error. State.Err says what ended it. Its context is
	// never cancelled. All hooks are called, even if one of them fails.
	End func(context.Context, *State) error
}

// AnyStep is the Hook.StepEvery of a hook that several steps may pass by between two of
// its calls.
const AnyStep = -1

// State is what a hook sees of a run. Hooks read it and do not write to it; it
// is valid during the call.
type State struct {
	// Session is the session being trained.
	Session Session
	// Position is how far the training is: State.Step is the number of train steps done.
	Position
	// Epoch is the epoch in progress, or that has just ended, from 1.
	Epoch int
	// Epochs is the number of epochs that are to be done in all.
	Epochs int
	// StepsPerEpoch is the number of train steps of every epoch.
	StepsPerEpoch int
	// Samples is the number of samples of the last batch.
	Samples int
	// Values are the scalars of the last train step, in the order of
	// Session.TrainMetrics, or their means over the steps of the last call. They are
	// overwritten by the next step.
	Values []float64
	// Record is that of the epoch that ended last in this run; nil before.
	Record *Record
	// History has the records of all epochs, those before a resume included.
	History *History
	// Err is what ended the run, in End; nil if it is complete, or was stopped
	// by a hook.
	Err error
	// Log is Loop.Log, or a logger that discards everything; never nil.
	Log *slog.Logger

	run *run
}

// Stop asks for the run to end once the hooks have been called. That is not an
// error: Run returns nil, and History.Stopped has the reason. If several hooks
// ask, the first reason is kept. Stopping in the middle of an epoch leaves that
// epoch without a record, and a checkpoint from which it continues.
//
// The training is not over with that: it is to go on, in another process or at
// another time. See Finish.
func (s *State) Stop(reason string) {
	if s.run.stop == "" {
		s.run.stop = cmp.Or(reason, "a hook asked for it")
	}
}

// Finish is Stop for a training that is over: the session has its result, although
// not all epochs are done, and History.Done says so.
func (s *State) Finish(reason string) {
	s.Stop(reason)
	s.run.finished = true
}

// Event adds a word to the events of the epoch in progress, or, in Epoch hooks,
// of the epoch that has just ended.
func (s *State) Event(name string) {
	if s.run.closing {
		s.Record.Events = append(s.Record.Events, name)
		return
	}
	s.run.tally.Events = append(s.run.tally.Events, name)
}

// CountEvent is Event, except that a word that was there n-1 times becomes "word*n".
func (s *State) CountEvent(name string) {
	events := s.run.tally.Events
	if s.run.closing {
		events = s.Record.Events
	}
	for i, event := range events {
		word, times, _ := strings.Cut(event, "*")
		if word == name {
			n, _ := strconv.Atoi(times) // once has no number
			events[i] = name + "*" + strconv.Itoa(max(n, 1)+1)
			return
		}
	}
	s.Event(name)
}

// LastStep reports whether no train step follows, as far as is known.
func (s *State) LastStep() bool {
	return s.run.stop != "" || s.Epoch >= s.Epochs && (s.EpochStep >= s.StepsPerEpoch || s.run.closing)
}

// ResetBy adds a reset of the session, and what it did, to the record of the epoch, as
// Event does, and the event "reset".
//
// Of session.ResetProcess this process sees neither what it returns nor how long it
// takes: they are not looked at. The process that goes on from the checkpoint records
// the reset with its first train step: what it has less of then than this one has now,
// of anonymous memory, and the time since now. The hook that calls this has to come
// before Checkpoint.
func (s *State) ResetBy(depth session.Depth, returned memory.Reading, took time.Duration) {
	if depth == session.ResetProcess {
		s.run.passOn()
		return
	}
	one := Reset{Step: s.Step, Depth: depth, Returned: returned, Seconds: took.Seconds()}
	events := s.run.tally.Events
	if s.run.closing {
		s.Record.Resets.add(one)
		events = s.Record.Events
	} else {
		s.run.tally.Resets.add(one)
	}
	if !slices.Contains(events, resetEvent) {
		s.Event(resetEvent)
	}
}

// resetEvent says in the history that there were resets.
const resetEvent = "reset"

// passedOn is a reset by way of another process, before that has begun.
type passedOn struct {
	// At is when it was asked for, and Step after which step.
	At   time.Time `json:"at"`
	Step int64     `json:"step"`
	// Anon is the anonymous memory of the process, in bytes; nil if it was not known.
	Anon *int64 `json:"anon_bytes,omitempty"`
}

// passOn notes what the next process needs to know of a reset.
func (r *run) passOn() {
	r.passed = &passedOn{At: r.now(), Step: r.state.Step}
	if usage, err := memory.Read(); err == nil && usage.Anon.OK {
		bytes := int64(usage.Anon.Bytes)
		r.passed.Anon = &bytes
	}
}

// recordPassed records the reset that this process goes on after.
func (r *run) recordPassed() {
	p := r.passed
	r.passed = nil
	one := Reset{Step: p.Step, Depth: session.ResetProcess, Seconds: max(r.now().Sub(p.At), 0).Seconds()}
	if usage, err := memory.Read(); err == nil && usage.Anon.OK && p.Anon != nil {
		one.Returned = memory.Known(memory.Bytes(*p.Anon) - usage.Anon.Bytes)
	}
	r.tally.Resets.add(one)
	if !slices.Contains(r.tally.Events, resetEvent) {
		r.state.Event(resetEvent)
	}
}

// Available names the metrics that records of this run have: those of the train
// signature, then those of the validation, which begin with "val_".
func (s *State) Available() []string { return slices.Clone(s.run.available) }

// Running returns the means of the metrics over the epoch in progress, and the last
// values of loss_scale and skipped_steps. It allocates; do not call it for every step.
func (s *State) Running() Metrics {
	return s.run.train.means(s.sums, s.EpochSamples)
}

// LearningRate is the rate of the last train step, or before the first one, of
// that step. It is unknown if Loop.LearningRate is nil.
func (s *State) LearningRate() (rate float64, ok bool) {
	return s.run.rate, s.run.loop.LearningRate != nil
}

// ScaleLearningRate multiplies what Loop.LearningRate gives, from the next step
// on, on top of earlier calls. The scale is part of checkpoints. Without a
// Loop.LearningRate it has no effect. Steps that are trained again after a Recovery
// went back have the scales that they had; a hook with Replays is not to call it
// for them.
func (s *State) ScaleLearningRate(factor float64) {
	s.RateScale *= factor
	if s.run.loop.Recover != nil {
		s.run.rescaled = append(s.run.rescaled, rescaling{s.Step, number(s.RateScale)})
	}
}

// checkHooks sorts hooks into the order in which they are called.
func checkHooks(hooks []Hook) ([]Hook, error) {
	sorted := slices.Clone(hooks)
	slices.SortStableFunc(sorted, func(a, b Hook) int { return cmp.Compare(a.Priority, b.Priority) })
	seen := make(map[string]bool, len(hooks))
	for _, h := range sorted {
		if h.Name == "" {
			return nil, &option.Error{Option: "Hook.Name", Reason: "a hook has none", Fix: "set it; errors and checkpoints use it"}
		}
		if seen[h.Name] {
			return nil, &option.Error{Option: "Hook.Name", Value: h.Name, Reason: "two hooks have this name", Fix: "give one of them another, so that errors and checkpoints tell them apart"}
		}
		seen[h.Name] = true
	}
	return sorted, nil
}

// call calls one function of all hooks, in order.
func (r *run) call(ctx context.Context, phase string, function func(*Hook) func(context.Context, *State) error) error {
	for i := range r.hooks {
		if f := function(&r.hooks[i]); f != nil {
			if err := r.hookError(ctx, r.hooks[i].Name, phase, f(ctx, &r.state)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hookError wraps the error of a hook, but not that of an option. The error of a cancelled context is
// dropped here, since the loop looks at the context itself right afterwards.
func (r *run) hookError(ctx context.Context, name, phase string, err error) error {
	if err == nil || (ctx.Err() != nil && errors.Is(err, ctx.Err())) {
		return nil
	}
	// Some hooks have seen this moment and others have not, so a checkpoint of
	// it would not be the state of any run.
	r.sound = false
	if phase == "start" && errors.As(err, new(*option.Error)) {
		return err // it names what is wrong
	}
	return &HookError{Hook: name, Phase: phase, Err: err}
}
