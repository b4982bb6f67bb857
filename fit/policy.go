package fit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// ResetPolicy says when a training resets its session, and how deeply. Training goes
// on with the same state, so the numbers do not change. Resets come between steps,
// and each is in the history ([Record.Resets]). There is none after the last step, and
// none once a hook has stopped the run.
//
// A reset that fails ends the run with its error. Unless that is session.ErrLost, the
// session has the state that it had, and a Checkpoint hook writes it at the end.
type ResetPolicy struct {
	// Depth is how far each reset goes; empty means session.ResetReload.
	Depth session.Depth
	// EverySteps and EveryEpochs are how many lie between two resets, counted from
	// the beginning of training; 0 is never.
	EverySteps, EveryEpochs int
	// Limit asks for a reset when the process has nine tenths of it, or will have in
	// fewer than Within steps if it goes on growing as it does; 0 is never. Layer is
	// what is looked at, of those that a [memory.Gauge] reads; empty means memory.RSS.
	//
	// A reset that brings nothing back, leaves that much in use, or is needed again
	// within 16 steps, is of no use: the next one comes 16 steps later at the earliest,
	// and twice as many after each further one of no use. A process that begins with
	// that much already gives an error if Depth is session.ResetProcess.
	Limit  memory.Bytes
	Layer  memory.Layer
	Within int
	// Again is called for session.ResetProcess after the run was asked to stop: the caller of
	// Loop.Run then starts another process, as session.Supervised.Again does.
	Again func(reason string)
}

const (
	// near is the part of a limit that a level must not reach.
	near = 0.9
	// firstWait is how many steps a reset must be of use for, and the first wait after
	// one that was not.
	firstWait = 16
	// priorityReset is after the hooks that may stop the run, and before those that
	// report.
	priorityReset = PriorityReport - 100
)

// Hook is the policy as a hook of a loop that trains s.
func (p ResetPolicy) Hook(s *session.Session) Hook {
	return p.hook(inPlace{s}, func(l memory.Layer) (gauge, error) { return memory.NewGauge(l) })
}

func (p ResetPolicy) hook(s trainee, open func(memory.Layer) (gauge, error)) Hook {
	r := &resetter{ResetPolicy: p, session: s, open: open}
	every := AnyStep
	switch {
	case p.Limit != 0 && p.Depth != session.ResetNone:
		every = 0 // it looks after each step
	case p.EverySteps > 0:
		every = p.EverySteps
	}
	return Hook{Name: "reset", StepEvery: every, Priority: priorityReset, Load: r.load, Save: r.save, Start: r.start, Step: r.step, Epoch: r.epoch, End: r.end}
}

// gauge is what a memory.Gauge is.
type gauge interface {
	Read() memory.Reading
	Close() error
}

type resetter struct {
	ResetPolicy
	session  trainee
	open     func(memory.Layer) (gauge, error)
	gauge    gauge
	forecast memory.Forecast
	limit    memory.Bytes // what must not be reached
	last     int64        // the step of the last reset, or where the run began
	idle     int64        // no reset for the limit before this step
	failed   error        // of a reset that left the session as it was
	resetState
}

// resetState is what the hook remembers.
type resetState struct {
	// Wait is how many steps are waited after a reset for the limit, 0 if the last one
	// was of use. Near is true if the last reset was for the limit.
	Wait int64 `json:"wait"`
	Near bool  `json:"near"`
}

func (r *resetter) load(_ string, state json.RawMessage) error {
	r.resetState = resetState{}
	if state == nil {
		return nil
	}
	if err := json.Unmarshal(state, &r.resetState); err != nil {
		return fmt.Errorf("reading its state: %w", err)
	}
	return nil
}

func (r *resetter) save(string) (json.RawMessage, error) {
	if r.resetState == (resetState{}) {
		return nil, nil
	}
	return json.Marshal(r.resetState)
}

func (r *resetter) start(_ context.Context, s *State) error {
	if r.Depth == "" {
		r.Depth = session.ResetReload
	}
	if err := r.Check(); err != nil {
		return err
	}
	r.gauge, r.last, r.idle, r.failed = nil, s.Step, s.Step+r.Wait, nil
	r.forecast.Reset()
	if r.Limit == 0 {
		return nil
	}
	g, err := r.open(layerOr(r.Layer))
	if err != nil {
		return &option.Error{Option: "ResetPolicy.Layer", Value: layerOr(r.Layer), Reason: err.Error(), Fix: "use rss, or another layer that this machine reports"}
	}
	r.limit = memory.Bytes(near * float64(r.Limit))
	if base := g.Read(); r.Depth != session.ResetNone && base.OK && base.Bytes >= r.limit {
		const remedy = "raise the limit, or reset every so many steps or epochs"
		if r.Depth == session.ResetProcess {
			return errors.Join(&option.Error{Option: "ResetPolicy.Limit", Value: r.Limit, Fix: remedy,
				Reason: fmt.Sprintf("%v of %s are in use before the first step, and a new process is due at %v, 90%% of the limit", base, layerOr(r.Layer), r.limit)}, g.Close())
		}
		s.run.log.Warn("resets for the limit will come again and again, ever more seldom, to no use: the process has that much before the first step",
			"now", base, "reset_at", r.limit, "limit", r.Limit, "of", layerOr(r.Layer), "remedy", remedy)
	}
	r.gauge = g
	return nil
}

// Check returns an *option.Error if the policy cannot work. A loop with the hook of the
// policy checks it, too, at its start.
func (r ResetPolicy) Check() error {
	switch r.Depth {
	case "", session.ResetNone, session.ResetRestore, session.ResetReload:
	case session.ResetProcess:
		if r.Again == nil {
			return &option.Error{Option: "ResetPolicy.Again", Reason: "there is none, and something has to start the new process", Fix: "run the training under {session.Supervise}"}
		}
	default:
		return &option.Error{Option: "ResetPolicy.Depth", Value: r.Depth, Reason: fmt.Sprintf("expected %s, %s, %s or %s", session.ResetNone, session.ResetRestore, session.ResetReload, session.ResetProcess)}
	}
	for _, o := range []struct {
		name  string
		value int64
	}{{"EverySteps", int64(r.EverySteps)}, {"EveryEpochs", int64(r.EveryEpochs)}, {"Limit", int64(r.Limit)}, {"Within", int64(r.Within)}} {
		if o.value < 0 {
			return &option.Error{Option: "ResetPolicy." + o.name, Value: o.value, Reason: "expected at least 0, which is never"}
		}
	}
	if r.Within > 0 && r.Limit == 0 {
		return &option.Error{Option: "ResetPolicy.Within", Value: r.Within, Reason: "there is no limit to look ahead to", Fix: "set {ResetPolicy.Limit}"}
	}
	return nil
}

func layerOr(l memory.Layer) memory.Layer {
	if l == "" {
		return memory.RSS
	}
	return l
}

func (r *resetter) end(context.Context, *State) error {
	if r.gauge == nil {
		return r.failed
	}
	return errors.Join(r.failed, r.gauge.Close())
}

// lastStep reports whether no step follows, as far as is known.
func lastStep(s *State) bool {
	return s.run.stop != "" || s.Epoch >= s.Epochs && (s.EpochStep >= s.StepsPerEpoch || s.run.closing)
}

func (r *resetter) step(ctx context.Context, s *State) error {
	switch {
	case lastStep(s):
		return nil
	case r.EverySteps > 0 && s.Step%int64(r.EverySteps) == 0:
		return r.reset(ctx, s, fmt.Sprintf("after %d steps", r.EverySteps))
	case r.gauge != nil:
		return r.look(ctx, s)
	}
	return nil
}

func (r *resetter) epoch(ctx context.Context, s *State) error {
	if r.EveryEpochs > 0 && s.Epoch%r.EveryEpochs == 0 && r.last < s.Step && !lastStep(s) {
		return r.reset(ctx, s, fmt.Sprintf("after %d epochs", r.EveryEpochs))
	}
	return nil
}

// look resets if the limit is near.
func (r *resetter) look(ctx context.Context, s *State) error {
	level := r.gauge.Read()
	if !level.OK {
		return nil
	}
	r.forecast.Add(s.Step, level.Bytes)
	if s.Step < r.idle {
		return nil
	}
	reason := fmt.Sprintf("%v of %v in use", level, r.Limit)
	if level.Bytes < r.limit {
		steps, grows := r.forecast.StepsTo(r.limit)
		if !grows || steps >= int64(r.Within) {
			return nil
		}
		reason = fmt.Sprintf("%v of %v in use, and nine tenths are %d steps away", level, r.Limit, steps)
	}
	useless := r.Near && s.Step-r.last <= max(r.Wait, firstWait)
	if !useless {
		r.Wait = 0
	}
	if err := r.reset(ctx, s, reason); err != nil || r.failed != nil {
		return err
	}
	r.forecast.Reset()
	// What a new process brings is seen by whether it has to be done again.
	if after := r.gauge.Read(); r.Depth != session.ResetProcess && after.OK && (after.Bytes >= r.limit || after.Bytes >= level.Bytes) {
		useless = true
	}
	if useless {
		r.Wait = max(2*r.Wait, firstWait)
	}
	r.idle, r.Near = s.Step+r.Wait, true
	return nil
}

func (r *resetter) reset(ctx context.Context, s *State, reason string) error {
	if r.Depth == session.ResetNone {
		return nil
	}
	r.last, r.Near = s.Step, false
	if r.Depth == session.ResetProcess {
		s.ResetBy(r.Depth, memory.Reading{}, 0) // this process does not see what it brings
		s.Stop("a new process goes on: " + reason)
		r.Again(reason)
		return nil
	}
	// What is kept must survive the end of ctx: a step is not undone by Ctrl-C.
	did, err := r.session.reset(context.WithoutCancel(ctx), r.Depth)
	if err != nil {
		r.failed, err = keepForCheckpoint(s, err)
		return err
	}
	s.ResetBy(r.Depth, did.Returned(), did.Took)
	return nil
}

// keepForCheckpoint stops the run after a reset, or another measure, that failed. Unless
// the session is lost, its state is what it was (restoring writes the values that are
// there), and a checkpoint at the end of the run has it: then the error is for the hook's
// End, which comes after that checkpoint is written. An error that a hook returns earlier
// makes the state one of no checkpoint.
func keepForCheckpoint(s *State, err error) (atEnd, now error) {
	if errors.Is(err, session.ErrLost) {
		return nil, err
	}
	err = fmt.Errorf("after step %d: %w; the state of that step is not lost: the run ends with a checkpoint of it if it writes any, from which to resume", s.Step, err)
	s.Stop(err.Error())
	return err, nil
}

// inPlace is a session as resets and budgets see it.
type inPlace struct{ *session.Session }

func (p inPlace) reset(ctx context.Context, depth session.Depth) (session.Reset, error) {
	return resetInPlace(ctx, p.Session, depth)
}

func (p inPlace) variableBytes() memory.Bytes {
	var n int64
	for _, v := range p.Model().Variables {
		n += v.Bytes()
	}
	return memory.Bytes(n)
}

// resetInPlace resets and goes on with the same state.
func resetInPlace(ctx context.Context, s *session.Session, depth session.Depth) (session.Reset, error) {
	p, err := s.Snapshot(ctx)
	if err != nil {
		return session.Reset{}, fmt.Errorf("reset: %w", err)
	}
	r, err := s.Reset(ctx, depth, p)
	return r, errors.Join(err, p.Close())
}

// ErrSplit: a step ran out of memory, and its batch cannot be split any further.
var ErrSplit = errors.New("the batch cannot be split any further")

// OnOutOfMemory lets a training go on when TensorFlow runs out of memory in a step:
// the state before is brought back, and batches are split into twice as many parts
// (see session.Session.SetMicroBatches), for the rest of the run. batch is the size of the batches.
// Other errors, and a batch that cannot be split any further (ErrSplit), end the run.
//
// Between a snapshot and the next it holds the variables once more. Into how many parts
// batches are split is part of checkpoints.
func OnOutOfMemory(s *session.Session, batch int) *Recovery {
	return &Recovery{
		Keep: func(ctx context.Context) (func(context.Context) error, func() error, error) {
			p, err := s.Snapshot(ctx)
			if err != nil {
				return nil, nil, err
			}
			return func(ctx context.Context) error { return s.Revert(ctx, p) }, p.Close, nil
		},
		Decide: func(_ context.Context, _ *State, failed error) (string, error) {
			if !errors.Is(failed, session.ErrOutOfMemory) {
				return "", failed
			}
			parts := 2 * s.MicroBatches()
			if s.MicroBatches() >= batch {
				return "", fmt.Errorf("%w: a part has one sample: %w", ErrSplit, failed)
			}
			if err := s.SetMicroBatches(min(parts, batch)); err != nil {
				return "", fmt.Errorf("%w: %w: %w", ErrSplit, err, failed)
			}
			return "oom", nil
		},
		Save: func() (json.RawMessage, error) {
			if s.MicroBatches() == 1 {
				return nil, nil
			}
			return json.Marshal(splitState{s.MicroBatches()})
		},
		Load: func(state json.RawMessage) error {
			var loaded splitState
			if err := json.Unmarshal(state, &loaded); err != nil {
				return fmt.Errorf("reading into how many parts batches are split: %w", err)
			}
			return s.SetMicroBatches(loaded.Parts)
		},
	}
}

// SplitAfterDeaths returns a hook for OnOutOfMemory in a supervised process: after n
// processes that ran out of memory and died (session.Supervised.MemoryDeaths), a run begins
// with batches in 2^n times as many parts, or in parts of one sample. Where memory runs
// out, TensorFlow often crashes rather than reporting it, or the kernel kills the process.
// batch is the size of the batches. A model that cannot be split is ErrSplit.
func SplitAfterDeaths(s *session.Session, batch, n int) Hook {
	return Hook{Name: "split after out of memory", Start: func(_ context.Context, st *State) error {
		parts := s.MicroBatches()
		if n == 0 || parts >= batch {
			return nil
		}
		if err := s.SetMicroBatches(min(parts<<min(n, 30), batch)); err != nil {
			return fmt.Errorf("%w: %w: %w", ErrSplit, err, session.ErrOutOfMemory)
		}
		st.Event("oom")
		return nil
	}}
}

// splitState is what OnOutOfMemory remembers.
type splitState struct {
	Parts int `json:"parts"`
}
