package budget

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"steadyfit/fit"
	"steadyfit/fit/internal/gauge"
	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// ResetPolicy resets the session at intervals, or when memory is near a limit. The state is
// preserved, so results do not change. Resets occur between steps, except after the last step,
// and are recorded in the history ([fit.Record]).
//
// A failed reset ends the run with its error. Unless the error is session.ErrLost, the session
// still has its state, and a Checkpoint hook saves it.
type ResetPolicy struct {
	// Depth is the depth of each reset: one of session.Session.Reset, or "process", which ends the
	// process after a checkpoint, so that a supervisor continues in a new one. Empty means "reload".
	Depth string
	// EverySteps and EveryEpochs are the intervals between resets, counted from the beginning
	// of training; 0 means never.
	EverySteps, EveryEpochs int
	// Limit causes a reset when memory reaches 90% of it, or is predicted to do so in fewer
	// than Within steps; 0 means never. Layer is the layer that is measured; empty means
	// memory.RSS.
	//
	// A reset does not help if it releases nothing, leaves the memory at 90%, or is needed
	// again within 16 steps. The next reset then waits for 16 steps. The wait doubles with each
	// further reset that does not help.
	Limit  memory.Bytes
	Layer  memory.Layer
	Within int
	// Restart is called if Depth is "process", after the run was asked to stop. The caller of
	// Loop.Run then starts another process.
	Restart func(reason string)
}

const (
	// near is the fraction of a limit at which a reset is due.
	near = 0.9
	// firstWait is the number of steps for which the effect of a reset must last, and the first
	// wait after a reset that did not help.
	firstWait = 16
	// priority places the hook after hooks that may stop the run, and before hooks that report.
	priority = 400
)

// Hook returns the policy as a hook of a loop that trains s.
func (p ResetPolicy) Hook(s *session.Session) fit.Hook {
	return p.hook(trainable{s}, func(l memory.Layer) (layerGauge, error) { return gauge.New(l) })
}

func (p ResetPolicy) hook(s trainee, open func(memory.Layer) (layerGauge, error)) fit.Hook {
	r := &resetter{ResetPolicy: p, session: s, open: open}
	every := fit.AnyStep
	switch {
	case p.Limit != 0 && p.Depth != contract.ResetNone:
		every = 0 // a limit requires reading memory after each step
	case p.EverySteps > 0:
		every = p.EverySteps
	}
	return fit.Hook{Name: "reset", StepEvery: every, Priority: priority, Load: r.load, Save: r.save, NoFiles: true, Start: r.start, Step: r.step, Epoch: r.epoch, End: r.end}
}

// Check returns an *option.Error if the policy cannot work.
func (p ResetPolicy) Check() error {
	switch p.Depth {
	case "", contract.ResetNone, contract.ResetRestore, contract.ResetReload:
	case contract.ResetProcess:
		if p.Restart == nil {
			return &option.Error{Option: "ResetPolicy.Restart", Reason: "missing; a reset of the process needs it", Fix: "run the training under {supervise.Run}"}
		}
	default:
		return &option.Error{Option: "ResetPolicy.Depth", Value: p.Depth, Reason: "expected none, restore, reload or process"}
	}
	for _, o := range []struct {
		name  string
		value int64
	}{{"EverySteps", int64(p.EverySteps)}, {"EveryEpochs", int64(p.EveryEpochs)}, {"Limit", int64(p.Limit)}, {"Within", int64(p.Within)}} {
		if o.value < 0 {
			return &option.Error{Option: "ResetPolicy." + o.name, Value: o.value, Reason: "expected at least 0 (0 means never)"}
		}
	}
	if p.Within > 0 && p.Limit == 0 {
		return &option.Error{Option: "ResetPolicy.Within", Value: p.Within, Reason: "there is no limit to forecast", Fix: "set {ResetPolicy.Limit}"}
	}
	return nil
}

// layerGauge is the part of a gauge.Gauge that this package uses. Tests replace it.
type layerGauge interface {
	Read() memory.Reading
	Close() error
}

type resetter struct {
	ResetPolicy
	session  trainee
	open     func(memory.Layer) (layerGauge, error)
	gauge    layerGauge // nil if there is no limit
	forecast forecast
	limit    memory.Bytes // 90% of Limit
	last     int64        // step of the last reset or of the start of the run
	idle     int64        // first step at which a reset for the limit may happen
	failed   error        // error of a reset that left the session unchanged
	state    resetState
}

type resetState struct {
	// Wait is the number of steps to wait after a reset near the limit; 0 if that reset helped.
	// Near is true if the last reset was near the limit.
	Wait int64 `json:"wait"`
	Near bool  `json:"near"`
}

func (r *resetter) load(_ string, state json.RawMessage) error {
	loaded, err := load[resetState](state)
	r.state = resetState{}
	if loaded != nil {
		r.state = *loaded
	}
	return err
}

func (r *resetter) save(string) (json.RawMessage, error) {
	if r.state == (resetState{}) {
		return nil, nil
	}
	return json.Marshal(r.state)
}

func (r *resetter) start(_ context.Context, s *fit.State) error {
	r.Depth, r.Layer = cmp.Or(r.Depth, contract.ResetReload), cmp.Or(r.Layer, memory.RSS)
	if err := r.Check(); err != nil {
		return err
	}
	r.gauge, r.last, r.idle, r.failed = nil, s.Step, s.Step+r.state.Wait, nil
	r.forecast.reset()
	if r.Limit == 0 {
		return nil
	}
	g, err := r.open(r.Layer)
	if err != nil {
		return &option.Error{Option: "ResetPolicy.Layer", Value: r.Layer, Reason: err.Error(), Fix: "use rss, or another layer that this machine reports"}
	}
	r.limit = memory.Bytes(near * float64(r.Limit))
	if base := g.Read(); r.Depth != contract.ResetNone && base.OK && base.Bytes >= r.limit {
		const remedy = "raise the limit, or reset at intervals of steps or epochs"
		if r.Depth == contract.ResetProcess {
			return errors.Join(&option.Error{Option: "ResetPolicy.Limit", Value: r.Limit, Fix: remedy,
				Reason: fmt.Sprintf("%v of %s are in use before the first step, and a new process is due at %v, 90%% of the limit", base, r.Layer, r.limit)}, g.Close())
		}
		s.Log.Warn("resets for the limit will not help: the process is above 90% of the limit before the first step",
			"now", base, "reset_at", r.limit, "limit", r.Limit, "of", r.Layer, "remedy", remedy)
	}
	r.gauge = g
	return nil
}

func (r *resetter) end(context.Context, *fit.State) error {
	if r.gauge == nil {
		return r.failed
	}
	return errors.Join(r.failed, r.gauge.Close())
}

func (r *resetter) step(ctx context.Context, s *fit.State) error {
	switch {
	case s.LastStep():
		return nil
	case r.EverySteps > 0 && s.Step%int64(r.EverySteps) == 0:
		return r.reset(ctx, s, fmt.Sprintf("after %d steps", r.EverySteps))
	case r.gauge != nil:
		return r.look(ctx, s)
	}
	return nil
}

func (r *resetter) epoch(ctx context.Context, s *fit.State) error {
	if r.EveryEpochs > 0 && s.Epoch%r.EveryEpochs == 0 && r.last < s.Step && !s.LastStep() {
		return r.reset(ctx, s, fmt.Sprintf("after %d epochs", r.EveryEpochs))
	}
	return nil
}

func (r *resetter) look(ctx context.Context, s *fit.State) error {
	level := r.gauge.Read()
	if !level.OK {
		return nil
	}
	r.forecast.add(s.Step, level.Bytes)
	if s.Step < r.idle {
		return nil
	}
	reason := fmt.Sprintf("%v of %v in use", level, r.Limit)
	if level.Bytes < r.limit {
		steps, grows := r.forecast.stepsTo(r.limit)
		if !grows || steps >= int64(r.Within) {
			return nil
		}
		reason = fmt.Sprintf("%v of %v in use, and 90%% are %d steps away", level, r.Limit, steps)
	}
	useless := r.state.Near && s.Step-r.last <= max(r.state.Wait, firstWait)
	if !useless {
		r.state.Wait = 0
	}
	if err := r.reset(ctx, s, reason); err != nil || r.failed != nil {
		return err
	}
	r.forecast.reset()
	// Only the next process can measure whether a restart helped.
	if after := r.gauge.Read(); r.Depth != contract.ResetProcess && after.OK && (after.Bytes >= r.limit || after.Bytes >= level.Bytes) {
		useless = true
	}
	if useless {
		r.state.Wait = max(2*r.state.Wait, firstWait)
	}
	r.idle, r.state.Near = s.Step+r.state.Wait, true
	return nil
}

func (r *resetter) reset(ctx context.Context, s *fit.State, reason string) error {
	if r.Depth == contract.ResetNone {
		return nil
	}
	r.last, r.state.Near = s.Step, false
	if r.Depth == contract.ResetProcess {
		s.ResetBy(r.Depth, memory.Reading{}, 0) // the next process measures the effect
		s.Stop("resuming in a new process: " + reason)
		r.Restart(reason)
		return nil
	}
	s.AwaitCheckpoint()                                              // returns its memory, too
	did, err := r.session.reset(context.WithoutCancel(ctx), r.Depth) // an interrupt must not lose a step
	if err != nil {
		r.failed, err = stopWithCheckpoint(s, err)
		return err
	}
	s.ResetBy(r.Depth, did.Returned, did.Took)
	return nil
}

// stopWithCheckpoint stops the run after a failed reset or measure. A hook error at this step
// would prevent a checkpoint, so the hook returns atEnd from End instead, unless the session is
// lost.
func stopWithCheckpoint(s *fit.State, err error) (atEnd, now error) {
	if errors.Is(err, session.ErrLost) {
		return nil, err
	}
	err = fmt.Errorf("after step %d: %w; the state after that step is intact, and a Checkpoint hook saves it", s.Step, err)
	s.Stop(err.Error())
	return err, nil
}

type trainable struct{ *session.Session }

func (t trainable) reset(ctx context.Context, depth string) (session.Reset, error) {
	p, err := t.Snapshot(ctx)
	if err != nil {
		return session.Reset{}, fmt.Errorf("reset: %w", err)
	}
	r, err := t.Reset(ctx, depth, p)
	return r, errors.Join(err, p.Close())
}

func (t trainable) variableBytes() memory.Bytes {
	var n int64
	for _, v := range t.Model().Variables {
		n += v.Bytes()
	}
	return memory.Bytes(n)
}
