package fit

import (
	"context"
	"fmt"

	"steadyfit/data"
)

// unfusedEvent says in the history that a call of several steps failed, and that steps
// have run one by one since. Histories of earlier versions have the word, too.
const unfusedEvent = "unfused"

// stacking collects the batches of calls that run several steps.
type stacking struct {
	session Stacker
	// steps is the number of steps in the next call, and batches how many of their batches
	// the session has.
	steps, batches int
	// loggedRate is true once it was logged that the learning rate keeps steps from running
	// in one call.
	loggedRate bool
}

// size is the number of batches that wait for others.
func (k *stacking) size() int {
	if k == nil {
		return 0
	}
	return k.batches
}

// clear forgets batches that wait: a pass begins anew with the first of them.
func (k *stacking) clear() {
	if k != nil {
		k.batches = 0
	}
}

// blocker is a dataset that can put batches one after the other into the same memory, from
// which a call of several steps reads them; data.Prefetched does.
type blocker interface{ SetBlock(n int) }

// prepareStack decides whether the run puts several steps into a call, and logs why not. The
// dataset is told the most steps of a call.
func (r *run) prepareStack() {
	most := r.maxSteps()
	if b, ok := r.ds.(blocker); ok {
		b.SetBlock(most)
	}
}

// maxSteps is the most steps of a call; 1 if they run one by one.
func (r *run) maxSteps() int {
	k, ok := r.state.Session.(Stacker)
	if !ok || k.StepsPerExecution() < 2 {
		return 1
	}
	logSingle := func(args ...any) { r.log.Info("train steps run one by one", args...) }
	for _, h := range r.stepHooks {
		if h.StepEvery == 0 {
			logSingle("hook", h.Name, "reason", "it has to be called after each")
			return 1
		}
	}
	most := k.StepsPerExecution()
	switch {
	case r.fullBatches == 0:
		logSingle("reason", "no batch is full")
	case k.Stackable(most, r.loop.Batch) < 2:
		logSingle("reason", fmt.Sprintf("the session stacks no batches of %d: its model has no signature for them, or it splits batches", r.loop.Batch))
	default:
		r.stack = &stacking{session: k}
		most = min(most, r.state.StepsPerEpoch, r.fullBatches)
		for _, h := range r.stepHooks {
			if h.StepEvery > 0 {
				most = min(most, h.StepEvery)
			}
		}
		return k.Stackable(most, r.loop.Batch)
	}
	return 1
}

// unstack has the steps that follow run one by one. Batches that wait are read again.
func (r *run) unstack(why error) {
	r.log.Warn("train steps run one by one from here", "step", r.state.Step, "reason", why)
	r.stack = nil
	if b, ok := r.ds.(blocker); ok {
		b.SetBlock(1)
	}
}

// stackOrStep trains on a batch at once, or in one call with those that follow. In the
// steady state it does not allocate.
func (r *run) stackOrStep(ctx context.Context, b data.Batch) error {
	k, s := r.stack, &r.state
	if k.batches == 0 {
		if err := r.applyRate(); err != nil {
			return err
		}
		k.steps = r.callSteps(b)
	}
	if k.steps < 2 {
		return r.step(ctx, b)
	}
	if err := k.session.Stack(k.batches, k.steps, b); err != nil {
		// Nothing has run. The steps before the one whose batch this is still can.
		r.unstack(fmt.Errorf("one of the batches %d to %d of epoch %d: %w", s.PassBatch, b.Index, s.Epoch, err))
		return errBack
	}
	if k.batches++; k.batches < k.steps {
		r.alive()
		return nil
	}
	k.batches = 0
	if err := r.beforeStep(b); err != nil {
		return err
	}
	if err := k.session.TrainN(r.steady, s.Step, k.steps, r.train.values); err != nil {
		r.sound = false
		err = fmt.Errorf("train steps %d to %d (epoch %d, batches %d to %d), in one call: %w", s.Step+1, s.Step+int64(k.steps), s.Epoch, s.PassBatch, b.Index, err)
		if r.loop.Recover == nil {
			return err
		}
		// One by one they may go through, and if not, it is known which one fails.
		r.unstack(err)
		return r.back(unfusedEvent, err)
	}
	return r.afterStep(ctx, b, k.steps)
}

// callSteps is the number of steps in the call that begins with a batch. It depends on
// nothing but the position of the run, so that a resumed run has the same calls.
func (r *run) callSteps(b data.Batch) int {
	s := &r.state
	// Steps that are trained again run one by one: hooks have seen each of them.
	if s.Step < r.trained || b.Size != r.loop.Batch {
		return 1
	}
	n := min(r.stack.session.StepsPerExecution(), s.StepsPerEpoch-s.EpochStep, r.fullBatches-s.PassBatch)
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

// withRate is the number of the next n steps that have the learning rate of the first.
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
			r.log.Info("train steps run one by one while the learning rate changes with each", "step", s.Step)
		}
		return i
	}
	return n
}
