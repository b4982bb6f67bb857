package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/contract"
	tracing "steadyfit/internal/native" // native is also a type of this package
	"steadyfit/internal/resolved"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Resolved returns the settings that TensorFlow uses, as read back from TensorFlow. The result
// prints as one line, and its method Missing returns a warning for each option without effect. If b
// has samples, Resolved traces a train step on b and then restores all variables bit for bit. It
// traces none if training has state that cannot be restored (contract.CodeStateNotSaved,
// CodeNoSaver), or if the step fails in TensorFlow.
//
// The traced step takes the time and the memory of a train step and a Snapshot, and some
// hundred bytes per operation. With micro-batches, one of them is traced. If the variables
// cannot be restored, Resolved returns an error, and some of the variables may be updated.
func (s *Session) Resolved(ctx context.Context, b data.Batch) (r resolved.Settings, err error) {
	if r.Devices, err = s.devices(); err != nil {
		return r, err
	}
	info, err := tfbind.Load("")
	if err != nil {
		return r, err
	}
	r.TensorFlow = info.Version
	if b.Size == 0 || s.untraceable() {
		return r, nil
	}
	metadata, err := s.rehearse(ctx, b)
	if errors.As(err, new(*tfbind.Error)) && !errors.Is(err, errUndone) {
		return r, nil // the training reports it
	}
	if err != nil {
		return r, err
	}
	t, err := tracing.ReadTrace(metadata)
	if err != nil {
		return r, err
	}
	if s.compiledFor(b.Size) != nil && s.parts < 2 && t.XLAClusters == 0 {
		// The trace shows an XLA-compiled signature as a call of a function.
		t.XLAClusters = t.Calls
	}
	r.Step = &t
	return r, nil
}

// untraceable reports whether a step cannot be traced and undone.
func (s *Session) untraceable() bool {
	return s.train == nil || s.rank != nil || slices.ContainsFunc(s.model.Problems,
		func(p savedmodels.Problem) bool {
			return p.Code == contract.CodeStateNotSaved || p.Code == contract.CodeNoSaver && len(s.model.Variables) > 0
		})
}

// errUndone means that the variables could not be restored after a traced step.
var errUndone = errors.New("the variables could not be restored after the traced step, and their values are unknown")

// rehearse traces a train step and restores the variables.
func (s *Session) rehearse(ctx context.Context, b data.Batch) (metadata []byte, err error) {
	before, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, before.Close()) }()
	if math.IsNaN(s.rate) {
		s.rate = 0 // any rate is valid, because Revert restores NaN
	}
	traces, err := s.Trace(func() error { return s.Train(ctx, 0, b, make([]float64, len(s.trainNames))) })
	if err == nil {
		metadata = traces[0]
	}
	if undone := s.Revert(context.WithoutCancel(ctx), before); undone != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errUndone, undone))
	}
	return metadata, err
}
