package fit

import (
	"context"
	"errors"
	"fmt"

	"steadyfit/memory"
	"steadyfit/session"
)

// ResetPolicy says when a training resets its session, and how deeply. Training goes
// on with the same state, so the numbers do not change. Resets come between steps,
// and each is in the history ([Record.Resets]).
type ResetPolicy struct {
	// Depth is how far each reset goes.
	Depth session.Depth
	// EverySteps and EveryEpochs are how many lie between two resets, counted from
	// the beginning of training; 0 is never.
	EverySteps, EveryEpochs int
	// Limit asks for a reset when the process has more than nine tenths of it, or
	// will have in fewer than Within steps if it goes on growing as it does. Layer is
	// what is looked at: memory.RSS, which empty means, memory.Anon or
	// memory.CgroupUsed. A reset that brings nothing back is tried again only after as
	// many steps as have been done.
	Limit  memory.Bytes
	Layer  memory.Layer
	Within int
	// Again is called for session.ResetProcess after the run was asked to stop: the caller of
	// Loop.Run then starts another process, as session.Supervised.Again does.
	Again func(reason string)
}

// near is the part of a limit that a level must not exceed.
const near = 0.9

// Hook is the policy as a hook of a loop that trains s.
func (p ResetPolicy) Hook(s *session.Session) Hook {
	r := &resetter{ResetPolicy: p, session: s}
	return Hook{Name: "reset", Start: r.start, Step: r.step, Epoch: r.epoch, End: r.end}
}

type resetter struct {
	ResetPolicy
	session  *session.Session
	gauge    *memory.Gauge
	forecast memory.Forecast
	idle     int64 // no look at the limit before this step
	done     int64 // the step of the last reset
}

func (r *resetter) start(_ context.Context, s *State) error {
	switch r.Depth {
	case session.ResetNone, session.ResetRestore, session.ResetReload:
	case session.ResetProcess:
		if r.Again == nil {
			return errors.New("reset: a new process needs somebody to start it: run the training under session.Supervise (--supervise)")
		}
	default:
		return fmt.Errorf("reset: %q: expected %s, %s, %s or %s", r.Depth, session.ResetNone, session.ResetRestore, session.ResetReload, session.ResetProcess)
	}
	if r.EverySteps < 0 || r.EveryEpochs < 0 || r.Within < 0 {
		return fmt.Errorf("reset: every %d steps, every %d epochs, within %d steps: expected 0 or more", r.EverySteps, r.EveryEpochs, r.Within)
	}
	r.done = s.Step
	if r.Limit == 0 {
		return nil
	}
	var err error
	r.gauge, err = memory.NewGauge(layerOr(r.Layer))
	return err
}

func layerOr(l memory.Layer) memory.Layer {
	if l == "" {
		return memory.RSS
	}
	return l
}

func (r *resetter) end(context.Context, *State) error {
	if r.gauge == nil {
		return nil
	}
	return r.gauge.Close()
}

func (r *resetter) step(ctx context.Context, s *State) error {
	switch {
	case r.EverySteps > 0 && s.Step%int64(r.EverySteps) == 0:
		return r.reset(ctx, s, fmt.Sprintf("after %d steps", r.EverySteps))
	case r.gauge != nil:
		return r.look(ctx, s)
	}
	return nil
}

func (r *resetter) epoch(ctx context.Context, s *State) error {
	// One after the last epoch would be for nothing.
	if r.EveryEpochs > 0 && s.Epoch%r.EveryEpochs == 0 && s.Epoch < s.Epochs && r.done < s.Step {
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
	limit := memory.Bytes(near * float64(r.Limit))
	reason := fmt.Sprintf("%v of %v in use", level, r.Limit)
	if level.Bytes < limit {
		steps, grows := r.forecast.StepsTo(limit)
		if !grows || steps >= int64(r.Within) {
			return nil
		}
		reason = fmt.Sprintf("%v of %v in use, and the limit is %d steps away", level, r.Limit, steps)
	}
	began := s.Step - r.done
	if err := r.reset(ctx, s, reason); err != nil {
		return err
	}
	r.forecast.Reset()
	if after := r.gauge.Read(); after.OK && after.Bytes >= limit {
		r.idle = s.Step + max(began, 1)
	}
	return nil
}

func (r *resetter) reset(ctx context.Context, s *State, reason string) error {
	r.done = s.Step
	switch r.Depth {
	case session.ResetNone:
		return nil
	case session.ResetProcess:
		s.Reset(memory.Reading{}, 0) // this process does not see what it brings
		s.Stop("a new process goes on: " + reason)
		r.Again(reason)
		return nil
	}
	// What is kept must survive the end of ctx: a step is not undone by Ctrl-C.
	did, err := resetInPlace(context.WithoutCancel(ctx), r.session, r.Depth)
	if err != nil {
		return err
	}
	s.Reset(did.Returned(), did.Took)
	return nil
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
// Between a snapshot and the next it holds the variables once more.
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
	}
}
