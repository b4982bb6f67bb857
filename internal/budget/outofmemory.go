package budget

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"steadyfit/fit"
	"steadyfit/session"
)

// errSplit means that a step ran out of memory and its batch cannot be split any further.
var errSplit = errors.New("the batch cannot be split any further")

// OnOutOfMemory continues a run after TensorFlow ran out of memory in a step. It restores the
// state before the step and doubles the number of micro-batches for the rest of the run
// (session.Session.SetMicroBatches). batch is the number of samples of a batch. If a batch
// cannot be split any further, the run ends with an error.
//
// The snapshot is a second copy of the variables. Checkpoints store the number of
// micro-batches.
func OnOutOfMemory(s *session.Session, batch int) *fit.Recovery {
	return &fit.Recovery{
		Snapshot: func(ctx context.Context) (func(context.Context) error, func() error, error) {
			p, err := s.Snapshot(ctx)
			if err != nil {
				return nil, nil, err
			}
			return func(ctx context.Context) error { return s.Revert(ctx, p) }, p.Close, nil
		},
		Decide: func(_ context.Context, _ *fit.State, failed error) (string, error) {
			if !errors.Is(failed, session.ErrOutOfMemory) {
				return "", failed
			}
			if s.MicroBatches() >= batch {
				return "", fmt.Errorf("%w: a micro-batch has one sample: %w", errSplit, failed)
			}
			if err := s.SetMicroBatches(min(2*s.MicroBatches(), batch)); err != nil {
				return "", fmt.Errorf("%w: %w: %w", errSplit, err, failed)
			}
			return outOfMemoryEvent, nil
		},
		Save: func() (json.RawMessage, error) {
			if s.MicroBatches() == 1 {
				return nil, nil
			}
			return json.Marshal(splitState{s.MicroBatches()})
		},
		Load: func(state json.RawMessage) error {
			loaded, err := load[splitState](state)
			if err != nil || loaded == nil {
				return err
			}
			return s.SetMicroBatches(loaded.Parts)
		},
	}
}

const outOfMemoryEvent = "oom"

type splitState struct {
	Parts int `json:"parts"`
}

// SplitAfterCrashes is a hook for OnOutOfMemory in a supervised process. When memory runs out,
// TensorFlow often crashes, or the kernel kills the process, without an error. After n such
// crashes, a run begins with 2^n times as many micro-batches, at most one per sample. batch is
// the number of samples of a batch. If the model cannot be split, it returns an error.
func SplitAfterCrashes(s *session.Session, batch, n int) fit.Hook {
	return fit.Hook{Name: "split after out of memory", Start: func(_ context.Context, st *fit.State) error {
		parts := s.MicroBatches()
		if n == 0 || parts >= batch {
			return nil
		}
		if err := s.SetMicroBatches(min(parts<<min(n, 30), batch)); err != nil {
			return fmt.Errorf("%w: %w: %w", errSplit, err, session.ErrOutOfMemory)
		}
		st.Event(outOfMemoryEvent)
		return nil
	}}
}
