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

// The priorities of the hooks of this package; hooks without one have 0. Hooks that decide come
// before hooks that report. Checkpoint saves the states of all hooks and comes last.
const (
	PriorityReport     = 500
	PriorityCheckpoint = 1000
)

// Hook has functions that a Loop calls at certain moments; each is optional. A Loop calls its
// hooks from one goroutine, in ascending order of Priority, and hooks of the same priority in
// the order in which they were added. End is called in the reverse order.
//
// An error ends the run as a HookError with the name of the hook. The error of a cancelled
// context is an exception: the other hooks are still called, and the run ends as cancelled.
type Hook struct {
	// Name identifies the hook in errors and in checkpoints. Each hook of a Loop needs its own
	// name.
	Name     string
	Priority int

	// Load is called at the beginning of every run, before Start. If the run resumes from a
	// checkpoint, Load gets the state that Save returned and the folder of the files that Save
	// wrote; otherwise both are empty.
	Load func(dir string, state json.RawMessage) error
	// Save is called while a checkpoint is written. It returns the state of the hook, or nil,
	// and may write files to dir.
	Save func(dir string) (json.RawMessage, error)

	// Start is called before the first step.
	Start func(context.Context, *State) error
	// Step is called after every train step, or call of several steps. It should be fast.
	Step func(context.Context, *State) error
	// StepEvery applies to a Loop with several steps per execution (Stacker). With n > 0, an
	// execution ends at each multiple of n. With AnyStep, the hook does not limit executions.
	// With 0, steps run one by one, and Step is called after each.
	StepEvery int
	// Replays makes the loop call Step also for steps that are trained again after a Recovery.
	// It suits hooks that observe the process rather than the training.
	Replays bool
	// Epoch is called after every epoch, when State.Record is complete.
	Epoch func(context.Context, *State) error
	// End is called once at the end of every run for which Start returned no error. State.Err
	// is the error of the run. The context is never cancelled. All hooks are called, even if
	// one of them fails.
	End func(context.Context, *State) error

	// metric checks the name of the metric that the hook follows; nil if it follows none.
	metric func(available []string, validates bool) error
}

// AnyStep is the Hook.StepEvery of a hook that accepts calls of any number of steps.
const AnyStep = -1

// State is the state of a run, which hooks read and do not change. It is valid during the call.
type State struct {
	// Session is the session being trained.
	Session Session
	// Position is the progress of the training: State.Step is the number of train steps done.
	Position
	// Epoch is the number of the current epoch, or of the epoch that has just ended, from 1.
	Epoch int
	// Epochs is the total number of epochs to do.
	Epochs int
	// StepsPerEpoch is the number of train steps of every epoch.
	StepsPerEpoch int
	// Samples is the number of samples of the last batch.
	Samples int
	// Values are the scalars of the last train step, in the order of Session.TrainMetrics, or
	// their means over the steps of the last call. The next step overwrites them.
	Values []float64
	// Record is the record of the last complete epoch of this run; nil before the first.
	Record *Record
	// History has the records of all epochs, including those before a resume.
	History *History
	// Err is the error of the run, set in End; nil if the run is complete or a hook stopped it.
	Err error
	// Log is Loop.Log, or a logger that discards everything; never nil.
	Log *slog.Logger

	run *run
}

// Stop ends the run once the hooks have been called. Run returns no error, and History.Stopped
// has the first reason. The current epoch gets no record; a resumed run continues it from the
// checkpoint. The training does not count as complete; see Finish.
func (s *State) Stop(reason string) {
	if s.run.stop == "" {
		s.run.stop = cmp.Or(reason, "a hook asked for it")
	}
}

// Finish stops the run as Stop does, and marks the training as complete (History.Done) although
// some epochs were not done.
func (s *State) Finish(reason string) {
	s.Stop(reason)
	s.run.finished = true
}

// Event adds a word to the events of the current epoch or, in Epoch hooks, of the epoch that
// has just ended.
func (s *State) Event(name string) {
	events := s.events()
	*events = append(*events, name)
}

// events returns the events of the current epoch, or of the epoch that has just ended.
func (s *State) events() *[]string {
	if s.run.phase == closing {
		return &s.Record.Events
	}
	return &s.run.tally.Events
}

// CountEvent adds an event like Event, but writes the n-th occurrence of a word as "word*n".
func (s *State) CountEvent(name string) {
	for i, event := range *s.events() {
		word, times, _ := strings.Cut(event, "*")
		if word == name {
			n, _ := strconv.Atoi(times) // a first event has no number
			(*s.events())[i] = name + "*" + strconv.Itoa(max(n, 1)+1)
			return
		}
	}
	s.Event(name)
}

// LastStep reports whether this step is known to be the last one of the run.
func (s *State) LastStep() bool {
	return s.run.stop != "" || s.Epoch >= s.Epochs && (s.EpochStep >= s.StepsPerEpoch || s.run.phase == closing)
}

// ResetBy adds a reset of the session to the record of the epoch, with the memory that it
// returned and the time that it took, and the event "reset".
//
// For session.ResetProcess, returned and took are ignored. The process that resumes measures
// both at its first train step: the decrease of anonymous memory from this process, and the
// time since this call. The hook must come before Checkpoint.
func (s *State) ResetBy(depth session.Depth, returned memory.Reading, took time.Duration) {
	if depth == session.ResetProcess {
		s.run.passOn()
		return
	}
	s.reset(Reset{Step: s.Step, Depth: depth, Returned: returned, Seconds: took.Seconds()})
}

// reset records a reset. The first reset of an epoch adds the event "reset".
func (s *State) reset(one Reset) {
	const event = "reset"
	resets := &s.run.tally.Resets
	if s.run.phase == closing {
		resets = &s.Record.Resets
	}
	resets.add(one)
	if !slices.Contains(*s.events(), event) {
		s.Event(event)
	}
}

// passedOn describes a reset by restarting the process until the next process records it.
type passedOn struct {
	// At is the time of the request, and Step the number of train steps done by then.
	At   time.Time `json:"at"`
	Step int64     `json:"step"`
	// Anon is the anonymous memory of the process, in bytes; nil if unknown.
	Anon *int64 `json:"anon_bytes,omitempty"`
}

// passOn saves what the next process needs to record a reset.
func (r *run) passOn() {
	r.passed = &passedOn{At: r.now(), Step: r.state.Step}
	if usage, err := memory.Read(); err == nil && usage.Anon.OK {
		bytes := int64(usage.Anon.Bytes)
		r.passed.Anon = &bytes
	}
}

// recordPassed records the reset that started this process.
func (r *run) recordPassed() {
	p := r.passed
	r.passed = nil
	one := Reset{Step: p.Step, Depth: session.ResetProcess, Seconds: max(r.now().Sub(p.At), 0).Seconds()}
	if usage, err := memory.Read(); err == nil && usage.Anon.OK && p.Anon != nil {
		one.Returned = memory.Known(memory.Bytes(*p.Anon) - usage.Anon.Bytes)
	}
	r.state.reset(one)
}

// Available returns the names of the metrics in records of this run: the metrics of the train
// signature, then those of the validation, whose names begin with "val_".
func (s *State) Available() []string { return slices.Concat(s.run.train.names, s.run.validation.names) }

// Running returns the means of the metrics over the current epoch, and the last values of
// loss_scale and skipped_steps. It allocates, so do not call it after every step.
func (s *State) Running() Metrics {
	return s.run.train.means(s.sums, s.EpochSamples)
}

// LearningRate returns the rate of the last train step or, before the first one, the rate for
// that step. ok is false if Loop.LearningRate is nil.
func (s *State) LearningRate() (rate float64, ok bool) {
	return s.run.rate, s.run.loop.LearningRate != nil
}

// ScaleLearningRate multiplies the rates of Loop.LearningRate by factor, from the next step on.
// The factors of several calls multiply. Checkpoints store the product. Without a
// Loop.LearningRate it has no effect. A hook with Replays must not call it for steps that are
// trained again.
func (s *State) ScaleLearningRate(factor float64) {
	s.RateScale *= factor
	if s.run.loop.Recover != nil {
		s.run.replay.rescaled = append(s.run.replay.rescaled, rescaling{s.Step, number(s.RateScale)})
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
			return nil, &option.Error{Option: "Hook.Name", Value: h.Name, Reason: "two hooks have this name", Fix: "rename one; errors and checkpoints use the name"}
		}
		seen[h.Name] = true
	}
	return sorted, nil
}

// hookError wraps the error of a hook, except an error of an option. It returns nil for the
// error of a cancelled context, since the loop checks the context right afterwards.
func (r *run) hookError(ctx context.Context, name, phase string, err error) error {
	if err == nil || (ctx.Err() != nil && errors.Is(err, ctx.Err())) {
		return nil
	}
	// Some hooks have been called at this point and others have not, so a checkpoint would be
	// inconsistent.
	r.sound = false
	if phase == "start" && errors.As(err, new(*option.Error)) {
		return err // an option's error names the option
	}
	return &HookError{Hook: name, Phase: phase, Err: err}
}
