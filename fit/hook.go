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

// Priorities of the hooks of this package; the others have 0. Hooks that decide come before
// those that report, and Checkpoint, which saves the states of all hooks, comes last.
const (
	PriorityReport     = 500
	PriorityCheckpoint = 1000
)

// Hook is called by a Loop at certain moments. Every function is optional. A Loop calls its
// hooks from one goroutine, in ascending order of Priority, and those of the same priority in
// the order in which they were added; End is called in the reverse order.
//
// An error ends the run, as a HookError with the name of the hook. The error of a cancelled
// context does not: the other hooks are still called, and the run ends as cancelled.
type Hook struct {
	// Name tells hooks apart in errors and in checkpoints. Two hooks of a Loop
	// must not share one.
	Name     string
	Priority int

	// Load is called at the beginning of every run, before Start. If the run resumes from a
	// checkpoint, it gets what Save returned, and the folder with the files that Save wrote;
	// otherwise both are empty.
	Load func(dir string, state json.RawMessage) error
	// Save is called while a checkpoint is written. It returns the state of the hook, or nil,
	// and may write files to dir.
	Save func(dir string) (json.RawMessage, error)

	// Start is called before the first step.
	Start func(context.Context, *State) error
	// Step is called after every train step, or call of several steps. It should cost little.
	Step func(context.Context, *State) error
	// StepEvery is for a Loop that runs several steps in one call (Stacker). With n > 0, a
	// call ends at steps divisible by n; AnyStep does not end calls. With 0, Step has to be
	// called after every step, so they run one by one.
	StepEvery int
	// Replays calls Step also for steps that are trained again after a Recovery went back:
	// for hooks that look at the process rather than at what is learned.
	Replays bool
	// Epoch is called after every epoch, when State.Record is complete.
	Epoch func(context.Context, *State) error
	// End is called once at the end of a run, however it ended, if Start returned no error.
	// State.Err is the error of the run. The context is never cancelled. All hooks are
	// called, even if one of them fails.
	End func(context.Context, *State) error
}

// AnyStep is the Hook.StepEvery of a hook that need not be called after every step.
const AnyStep = -1

// State is the state of a run, for hooks, which do not change it. It is valid during the
// call.
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
	// Err is the error of the run, in End; nil if it is complete, or a hook stopped it.
	Err error
	// Log is Loop.Log, or a logger that discards everything; never nil.
	Log *slog.Logger

	run *run
}

// Stop ends the run once the hooks have been called. Run returns no error, and
// History.Stopped has the first reason. An epoch in progress gets no record; a checkpoint
// resumes it. The training is not complete with that; see Finish.
func (s *State) Stop(reason string) {
	if s.run.stop == "" {
		s.run.stop = cmp.Or(reason, "a hook asked for it")
	}
}

// Finish is Stop for a training that is complete although not all epochs are done, so that
// History.Done is true.
func (s *State) Finish(reason string) {
	s.Stop(reason)
	s.run.finished = true
}

// Event adds a word to the events of the epoch in progress, or, in Epoch hooks,
// of the epoch that has just ended.
func (s *State) Event(name string) {
	events := s.events()
	*events = append(*events, name)
}

// events are those of the epoch in progress, or that has just ended.
func (s *State) events() *[]string {
	if s.run.phase == closing {
		return &s.Record.Events
	}
	return &s.run.tally.Events
}

// CountEvent is Event, except that a word that was there n-1 times becomes "word*n".
func (s *State) CountEvent(name string) {
	for i, event := range *s.events() {
		word, times, _ := strings.Cut(event, "*")
		if word == name {
			n, _ := strconv.Atoi(times) // once has no number
			(*s.events())[i] = name + "*" + strconv.Itoa(max(n, 1)+1)
			return
		}
	}
	s.Event(name)
}

// LastStep reports whether no train step follows, as far as is known.
func (s *State) LastStep() bool {
	return s.run.stop != "" || s.Epoch >= s.Epochs && (s.EpochStep >= s.StepsPerEpoch || s.run.phase == closing)
}

// ResetBy adds a reset of the session to the record of the epoch, with the memory that it
// returned and the time that it took, and the event "reset".
//
// For session.ResetProcess both are ignored. The process that resumes from the checkpoint
// measures them at its first train step: the anonymous memory that it has less than this
// one, and the time since this call. The hook has to come before Checkpoint.
func (s *State) ResetBy(depth session.Depth, returned memory.Reading, took time.Duration) {
	if depth == session.ResetProcess {
		s.run.passOn()
		return
	}
	s.reset(Reset{Step: s.Step, Depth: depth, Returned: returned, Seconds: took.Seconds()})
}

// reset records a reset, and the event "reset" with the first one of an epoch.
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

// passedOn is a reset by restarting the process, before the next one has begun.
type passedOn struct {
	// At is when it was asked for, and Step after which step.
	At   time.Time `json:"at"`
	Step int64     `json:"step"`
	// Anon is the anonymous memory of the process, in bytes; nil if it was not known.
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

// Available names the metrics that records of this run have: those of the train
// signature, then those of the validation, which begin with "val_".
func (s *State) Available() []string { return slices.Concat(s.run.train.names, s.run.validation.names) }

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

// ScaleLearningRate multiplies the rates of Loop.LearningRate from the next step on, on top of
// earlier calls. Checkpoints have the scale. Without a Loop.LearningRate it has no effect. A
// hook with Replays must not call it for steps that are trained again.
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
			return nil, &option.Error{Option: "Hook.Name", Value: h.Name, Reason: "two hooks have this name", Fix: "give one of them another, so that errors and checkpoints tell them apart"}
		}
		seen[h.Name] = true
	}
	return sorted, nil
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
