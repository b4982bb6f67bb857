package fit

import (
	"context"
	"fmt"

	"steadyfit/data"
)

// unfusedEvent says in the history that a call of several steps failed, and that steps
// have run one by one since.
const unfusedEvent = "unfused"

// fuse decides whether the run puts steps into calls of several, and says why not. The
// dataset is told how many are in a call.
func (r *run) fuse() {
	most := r.mostInCall()
	if b, ok := r.ds.(blocker); ok {
		b.SetBlock(most)
	}
}

// mostInCall is how many steps a call has at the most; 1 if they run one by one.
func (r *run) mostInCall() int {
	if r.loop.FuseSteps < 2 {
		return 1
	}
	alone := func(args ...any) { r.log.Info("train steps run one by one", args...) }
	for _, h := range r.stepHooks {
		if h.StepEvery == 0 {
			alone("hook", h.Name, "reason", "it has to be called after each")
			return 1
		}
	}
	f, ok := r.state.Session.(Fuser)
	switch {
	case !ok:
		alone("reason", "the session runs no other")
	case r.fullBatches == 0:
		alone("reason", "no batch is full")
	case f.Fuses(r.loop.FuseSteps, r.loop.Batch) < 2:
		alone("reason", fmt.Sprintf("the session puts none into a call on batches of %d: its own options do not ask for that, its model has no signature for them, or it splits batches", r.loop.Batch))
	default:
		r.fuser = f
		most := min(r.loop.FuseSteps, r.state.StepsPerEpoch, r.fullBatches)
		for _, h := range r.stepHooks {
			if h.StepEvery > 0 {
				most = min(most, h.StepEvery)
			}
		}
		return f.Fuses(most, r.loop.Batch)
	}
	return 1
}

// blocker is a dataset that can put batches one after the other into the same memory, from
// which a call of several steps reads them; data.Prefetched does.
type blocker interface{ SetBlock(n int) }

// unfuse has the steps that follow run one by one. Batches that were gathered are read
// again.
func (r *run) unfuse(why error) {
	r.log.Warn("train steps run one by one from here", "step", r.state.Step, "reason", why)
	r.fuser, r.gathered = nil, 0
	if b, ok := r.ds.(blocker); ok {
		b.SetBlock(1)
	}
}

// take trains on a batch, at once or in one call with those that follow. In the steady
// state it does not allocate.
func (r *run) take(ctx context.Context, b data.Batch) error {
	if r.gathered == 0 {
		if err := r.applyRate(); err != nil {
			return err
		}
		r.together = r.callSteps(b)
	}
	if r.together < 2 {
		return r.step(ctx, b, 1)
	}
	if err := r.fuser.Gather(r.gathered, r.together, b); err != nil {
		// Nothing has run. The steps before the one whose batch this is still can.
		r.unfuse(fmt.Errorf("one of the batches %d to %d of epoch %d: %w", r.passBatch, b.Index, r.state.Epoch, err))
		return errBack
	}
	if r.gathered++; r.gathered < r.together {
		r.alive()
		return nil
	}
	r.gathered = 0
	return r.step(ctx, b, r.together)
}

// callSteps is how many steps run in the call that begins with a batch. It depends on
// nothing but the position of the run, so that a resumed run has the same calls.
func (r *run) callSteps(b data.Batch) int {
	s := &r.state
	// Steps that are trained again run one by one: hooks have seen each of them.
	if r.fuser == nil || s.Step < r.trained || b.Size != r.loop.Batch {
		return 1
	}
	n := min(r.loop.FuseSteps, s.StepsPerEpoch-s.EpochStep, r.fullBatches-r.passBatch)
	for i := range r.stepHooks {
		if every := int64(r.stepHooks[i].StepEvery); every > 0 {
			n = int(min(int64(n), every-s.Step%every))
		}
	}
	if n = r.withRate(n); n < 2 {
		return 1
	}
	return r.fuser.Fuses(n, b.Size)
}

// withRate is how many of n steps have the learning rate of the first.
func (r *run) withRate(n int) int {
	schedule := r.loop.LearningRate
	if schedule == nil {
		return n
	}
	for i := 1; i < n; i++ {
		if schedule(r.state.Step+int64(i), r.done)*r.scale == r.rate {
			continue
		}
		if i == 1 && !r.changing {
			r.changing = true
			r.log.Info("train steps run one by one while the learning rate changes with each", "step", r.state.Step)
		}
		return i
	}
	return n
}
