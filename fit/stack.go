package fit

import (
	"fmt"

	"steadyfit/data"
)

// unstackedEvent is the event of a failed execution of several steps, after which steps run one by
// one. The text is part of the history format.
const unstackedEvent = "unstacked"

// stacking collects the batches of executions of several steps.
type stacking struct {
	// steps is the number of steps of the next execution. batches is the number of its batches
	// that are stacked.
	steps, batches int
	// loggedRate is true once the run has logged that the learning rate prevents executions of
	// several steps.
	loggedRate bool
}

func (k *stacking) size() int {
	if k == nil {
		return 0
	}
	return k.batches
}

// clear drops the stacked batches. The next pass reads them again.
func (k *stacking) clear() {
	if k != nil {
		k.batches = 0
	}
}

// prepareStack decides whether executions run several steps. If not, it logs the reason. An execution
// ends at the end of an epoch or a pass over the data, before the learning rate changes, and where
// Hook.StepEvery requires it. A smaller last batch runs alone. After a failed execution, steps run one
// by one.
func (r *run) prepareStack() {
	k := r.state.Session
	if k.StepsPerExecution() < 2 {
		return
	}
	logSingle := func(args ...any) { r.state.Log.Info("train steps run one by one", args...) }
	for _, h := range r.stepHooks {
		if h.StepEvery == 0 {
			r.state.Log.Warn("train steps run one by one", "hook", h.Name, "reason", "it must be called after each step")
			return
		}
	}
	switch {
	case r.fullBatches() == 0:
		logSingle("reason", "no batch is full")
	case k.Stackable(k.StepsPerExecution(), r.loop.Batch) < 2:
		logSingle("reason", fmt.Sprintf("the session cannot stack batches of %d: the model has no signature for them, or "+
			"batches are split", r.loop.Batch))
	default:
		r.stack = &stacking{}
	}
}

// unstack makes later steps run one by one. The next pass reads the stacked batches again.
func (r *run) unstack(why error) {
	r.state.Log.Warn("train steps run one by one from this step on", "step", r.state.Step, "reason", why)
	r.stack = nil
}

// gather stacks batch b. It returns the number of steps to run: 1, or all steps of an execution
// if b is its last batch, or 0 if the execution needs more batches.
func (r *run) gather(b data.Batch) (n int, err error) {
	k, s := r.stack, &r.state
	if k == nil {
		return 1, nil
	}
	if k.batches == 0 {
		if k.steps = r.executionSteps(b); k.steps < 2 {
			return 1, nil
		}
	}
	if err := r.state.Session.Stack(k.batches, k.steps, b); err != nil {
		// The batches before this one are valid, so single steps can still train on them.
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

// executionSteps returns the number of steps of the execution that begins with batch b. It depends
// only on the position, so a resumed run has the same executions.
func (r *run) executionSteps(b data.Batch) int {
	s := &r.state
	// Hooks may have changed the rate between steps that are trained again.
	if s.Step < r.trained || b.Size != r.loop.Batch {
		return 1
	}
	n := min(r.state.Session.StepsPerExecution(), s.StepsPerEpoch-s.EpochStep, r.fullBatches()-s.PassBatch)
	for i := range r.stepHooks {
		if every := int64(r.stepHooks[i].StepEvery); every > 0 {
			n = int(min(int64(n), every-s.Step%every))
		}
	}
	if n = r.withRate(n); n < 2 {
		return 1
	}
	return r.state.Session.Stackable(n, b.Size)
}

// withRate returns how many of the next n steps have the same learning rate as the first.
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
			s.Log.Info("train steps run one by one while the learning rate changes at each step", "step", s.Step)
		}
		return i
	}
	return n
}
