package fit

import (
	"fmt"

	"steadyfit/data"
)

// unstackedEvent is the event of a failed call of several steps, after which steps run one by
// one. Earlier versions wrote the same word to histories.
const unstackedEvent = "unfused"

// stacking collects the batches of calls that run several steps.
type stacking struct {
	session Stacker
	// steps is the number of steps of the next call. batches is the number of their batches
	// that the session already has.
	steps, batches int
	// loggedRate is true once the log said that the learning rate prevents calls of several
	// steps.
	loggedRate bool
}

// size returns the number of waiting batches.
func (k *stacking) size() int {
	if k == nil {
		return 0
	}
	return k.batches
}

// clear drops the waiting batches. The pass reads them again.
func (k *stacking) clear() {
	if k != nil {
		k.batches = 0
	}
}

// blocker is a dataset that can put consecutive batches into one block of memory, from which a
// call of several steps reads them without a copy; data.Prefetched is one.
type blocker interface{ SetBlock(n int) }

// prepareStack decides whether calls run several steps, and logs the reason if not.
func (r *run) prepareStack() {
	most := r.mostSteps()
	if b, ok := r.ds.(blocker); ok {
		b.SetBlock(most)
	}
}

// mostSteps returns the maximum number of steps of a call; 1 means one by one.
func (r *run) mostSteps() int {
	k, ok := r.state.Session.(Stacker)
	if !ok || k.StepsPerExecution() < 2 {
		return 1
	}
	logSingle := func(args ...any) { r.state.Log.Info("train steps run one by one", args...) }
	most := min(k.StepsPerExecution(), r.state.StepsPerEpoch, r.fullBatches())
	for _, h := range r.stepHooks {
		if h.StepEvery == 0 {
			r.state.Log.Warn("train steps run one by one", "hook", h.Name, "reason", "it has to be called after each step")
			return 1
		}
		if h.StepEvery > 0 {
			most = min(most, h.StepEvery)
		}
	}
	switch {
	case r.fullBatches() == 0:
		logSingle("reason", "no batch is full")
	case k.Stackable(k.StepsPerExecution(), r.loop.Batch) < 2:
		logSingle("reason", fmt.Sprintf("the session stacks no batches of %d: its model has no signature for them, or it splits batches", r.loop.Batch))
	default:
		r.stack = &stacking{session: k}
		return k.Stackable(most, r.loop.Batch)
	}
	return 1
}

// unstack makes the following steps run one by one. Waiting batches are read again.
func (r *run) unstack(why error) {
	r.state.Log.Warn("train steps run one by one from this step on", "step", r.state.Step, "reason", why)
	r.stack = nil
	if b, ok := r.ds.(blocker); ok {
		b.SetBlock(1)
	}
}

// gather returns the number of steps to run now: 1, or all steps of a call that batch b
// completes, or 0 if b waits for others.
func (r *run) gather(b data.Batch) (n int, err error) {
	k, s := r.stack, &r.state
	if k == nil {
		return 1, nil
	}
	if k.batches == 0 {
		if k.steps = r.callSteps(b); k.steps < 2 {
			return 1, nil
		}
	}
	if err := k.session.Stack(k.batches, k.steps, b); err != nil {
		// No step has run. Those before the step of this batch can still run.
		r.unstack(fmt.Errorf("one of the batches %d to %d of epoch %d: %w", s.PassBatch, b.Index, s.Epoch, err))
		return 0, errWentBack
	}
	if k.batches++; k.batches < k.steps {
		r.alive()
		return 0, nil
	}
	k.batches = 0
	return k.steps, nil
}

// callSteps returns the number of steps of the call that begins with batch b. It depends only
// on the position, so a resumed run makes the same calls.
func (r *run) callSteps(b data.Batch) int {
	s := &r.state
	// Steps that are trained again run one by one, because hooks may have changed the rate
	// between them.
	if s.Step < r.replay.trained || b.Size != r.loop.Batch {
		return 1
	}
	n := min(r.stack.session.StepsPerExecution(), s.StepsPerEpoch-s.EpochStep, r.fullBatches()-s.PassBatch)
	for i := range r.stepHooks {
		if every := int64(r.stepHooks[i].StepEvery); every > 0 {
			n = int(min(int64(n), every-s.Step%every))
		}
	}
	if n = r.withRate(n); n < 2 {
		return 1
	}
	return r.stack.session.Stackable(n, b.Size)
}

// withRate returns how many of the next n steps have the learning rate of the first.
func (r *run) withRate(n int) int {
	schedule, s := r.loop.LearningRate, &r.state
	if schedule == nil {
		return n
	}
	for i := 1; i < n; i++ {
		if schedule(s.Step+int64(i), s.EpochsDone)*s.RateScale == r.rate {
			continue
		}
		if i == 1 && !r.stack.loggedRate {
			r.stack.loggedRate = true
			s.Log.Info("train steps run one by one while the learning rate changes with each", "step", s.Step)
		}
		return i
	}
	return n
}
