package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"steadyfit/memory"
	"steadyfit/option"
)

// The priorities of hooks in this package; see Hook.Priority.
const (
	priorityReport     = 500
	priorityCheckpoint = 1000
)

// Hook is a set of functions that a Loop calls during a run; all are optional. A Loop calls its
// hooks from one goroutine, in ascending order of Priority. Hooks with equal priority are
// called in the order in which they were added. End is called in reverse order.
//
// An error of a hook ends the run as a HookError. The error of a cancelled context is an
// exception: the loop still calls the other hooks, and the run ends as cancelled.
type Hook struct {
	// Name identifies the hook in errors and in checkpoints. It must be unique in a Loop.
	Name string
	// Priority defaults to 0. Hooks that report decisions of earlier hooks, such as Progress, have
	// the priority 500. Checkpoint has 1000, since it saves the states of all hooks.
	Priority int

	// Load is called at the beginning of every run, before Start. state is the result of Save, or nil
	// if the run does not resume from a checkpoint.
	Load func(state json.RawMessage) error
	// Save is called when a checkpoint is written. It returns the state of the hook, or nil.
	Save func() (json.RawMessage, error)

	// Start is called before the first step.
	Start func(context.Context, *State) error
	// Step is called after every train step, or after every execution of several steps.
	Step func(context.Context, *State) error
	// StepEvery applies to sessions that run several steps per execution. If it is n > 0, an
	// execution ends at each multiple of n steps. If it is AnyStep, the hook does not limit
	// executions. If it is 0, steps run one by one.
	StepEvery int
	// Replays makes the loop call Step also for steps that are trained again after a Recovery.
	// It is for hooks that observe the process, not the training.
	Replays bool
	// Epoch is called after every epoch, when State.Record is complete.
	Epoch func(context.Context, *State) error
	// End is called once at the end of a run if Start succeeded, even if other hooks fail.
	// State.Err is the error of the run. The context is never cancelled.
	End func(context.Context, *State) error

	// metric checks the name of the metric that the hook uses; nil if it uses none.
	metric func(available []string, validates bool) error
	// local is true for a hook that only the first of several ranks calls.
	local bool
	// settings describes options that all ranks must have.
	settings any
}

// AnyStep is the Hook.StepEvery of a hook that does not limit the steps per execution.
const AnyStep = -1

// State is the state of a run. Hooks must not change it, and must not use it after they return.
type State struct {
	Session Session
	// Position is the progress of the training. State.Step is the number of train steps done.
	Position
	// Epoch is the number of the current epoch, from 1. Between epochs it is the number of the last
	// epoch.
	Epoch int
	// Epochs is the total number of epochs to train.
	Epochs int
	// StepsPerEpoch is the number of train steps of every epoch.
	StepsPerEpoch int
	// Samples is the number of samples of the last batch.
	Samples int
	// Values are the results of the last train step, in the order of Session.TrainMetrics.
	// After an execution of several steps, they are means over its steps. The next step
	// overwrites them.
	Values []float64
	// Record describes the last complete epoch of this run; nil during the first epoch.
	Record *Record
	// History has the records of all epochs, including those before a resume.
	History *History
	// Err is the error of the run, for End; nil if the run is complete or a hook stopped it.
	Err error
	// Log is Loop.Log, or a logger that discards everything.
	Log *slog.Logger

	run *run
}

// Stop ends the run after the current hooks. Run then returns no error, and History.Stopped is
// the first reason. The current epoch gets no record, but a resumed run can complete it. The
// training does not count as complete; see Finish.
func (s *State) Stop(reason string) {
	if s.run.stop == "" {
		s.run.stop = cmp.Or(reason, "a hook asked for it")
	}
}

// Finish ends the run like Stop, and marks the training as complete (History.Done).
func (s *State) Finish(reason string) {
	s.Stop(reason)
	s.run.finished = true
}

// Event adds a name to Record.Events of the current epoch, once. If Hook.Epoch calls it, that is the
// epoch that has just ended.
func (s *State) Event(name string) {
	events := &s.run.tally.Events
	if s.run.phase == closing {
		events = &s.Record.Events
	}
	if !slices.Contains(*events, name) {
		*events = append(*events, name)
	}
}

// LastStep reports whether this step is known to be the last one of the run.
func (s *State) LastStep() bool {
	return s.run.stop != "" || s.Epoch >= s.Epochs && (s.EpochStep >= s.StepsPerEpoch || s.run.phase == closing)
}

// ResetBy records in the current epoch that a hook reset the session: the memory that the reset
// returned, the time that it took, and the event "reset". The hook must have a lower priority than
// Checkpoint.
func (s *State) ResetBy(returned memory.Reading, took time.Duration) {
	resets := &s.run.tally.Resets
	if s.run.phase == closing {
		resets = &s.Record.Resets
	}
	resets.add(Resets{1, returned, took.Seconds()})
	s.Event("reset")
}

// Running returns the metrics of the current epoch up to this step. It allocates, so do not
// call it after every step.
func (s *State) Running() Metrics {
	return s.run.train.means(s.sums, s.EpochSamples)
}

// LearningRate returns the learning rate of the last train step, or, before the first step, the
// rate of the first step. ok is false if Loop.LearningRate is nil.
func (s *State) LearningRate() (rate float64, ok bool) {
	return s.run.rate, s.run.loop.LearningRate != nil
}

func checkHooks(hooks []Hook) ([]Hook, error) {
	sorted := slices.Clone(hooks)
	slices.SortStableFunc(sorted, func(a, b Hook) int { return cmp.Compare(a.Priority, b.Priority) })
	seen := make(map[string]bool, len(hooks))
	for _, h := range sorted {
		if h.Name == "" {
			return nil, &option.Error{Option: "Hook.Name", Reason: "a hook has none",
				Fix: "set it; errors and checkpoints use it"}
		}
		if seen[h.Name] {
			return nil, &option.Error{Option: "Hook.Name", Value: h.Name, Reason: "two hooks have this name",
				Fix: "rename one; errors and checkpoints use the name"}
		}
		seen[h.Name] = true
	}
	return sorted, nil
}

// hookError wraps the error of a hook, except an *option.Error at the start. It returns nil for
// the error of a cancelled context, which the loop checks next.
func (r *run) hookError(ctx context.Context, name, phase string, err error) error {
	if err == nil || (ctx.Err() != nil && errors.Is(err, ctx.Err())) {
		return nil
	}
	// Only some of the hooks have been called, so a checkpoint would be inconsistent.
	r.sound = false
	if phase == "start" && errors.As(err, new(*option.Error)) {
		return err // an option.Error already names its cause
	}
	return &HookError{Hook: name, Phase: phase, Err: err}
}
