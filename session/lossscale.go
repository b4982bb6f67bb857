package session

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"steadyfit/internal/contract"
	"steadyfit/savedmodels"
)

// A model may take the reserved input loss_scale. It multiplies its loss by the scale and divides its
// gradients by it, so that small float16 gradients do not become zero. If the gradients are not finite,
// the model skips the step: it does not change the weights and returns grads_finite = false. A skipped
// step can still change BatchNormalization statistics.
//
// The scale is dynamic, like that of TensorFlow's LossScaleOptimizer: a skipped step halves it, down to
// 1, and 2000 applied steps in a row double it. Checkpoints and snapshots include it. A model without
// the output grads_finite gets the scale 1.

const (
	initialScale  = 1 << 15
	scaleFactor   = 2
	minScale      = 1
	scaleInterval = 2000
)

// lossScaler is the loss scale of a session.
type lossScaler struct {
	Scale   float64 `json:"loss_scale"`
	Good    int     `json:"good_steps"` // consecutive applied steps
	Skipped int64   `json:"skipped_steps"`
}

// scaleIdentity describes the rule of the scale in the identity of a checkpoint.
var scaleIdentity = fmt.Sprintf("dynamic from %v, %v per %d steps, at least %v", initialScale, scaleFactor,
	scaleInterval, minScale)

// scalable reports whether a signature takes a dynamic scale.
func scalable(sig *savedmodels.Signature) bool {
	return sig.Takes(contract.InputLossScale) && gradsFinite(sig) != nil
}

// gradsFinite returns the output grads_finite; nil if there is none.
func gradsFinite(sig *savedmodels.Signature) *savedmodels.Tensor {
	return sig.Output(contract.OutputGradsFinite)
}

// update adapts the scale after a step. lowered reports whether the scale became smaller.
func (l *lossScaler) update(applied bool) (lowered bool) {
	if !applied {
		l.Skipped++
		l.Good = 0
		if l.Scale <= minScale {
			return false
		}
		l.Scale = max(l.Scale/scaleFactor, minScale)
		return true
	}
	if l.Good++; l.Good >= scaleInterval {
		l.Good = 0
		if higher := l.Scale * scaleFactor; higher <= math.MaxFloat32 {
			l.Scale = higher
		}
	}
	return false
}

// rescale adapts the loss scale after a train step. applied is false for a skipped step.
func (s *Session) rescale(applied bool, out []float64) {
	switch l := s.scaler; {
	case l != nil:
		scale := l.Scale
		if s.skipped = l.update(applied); !applied && !s.skipped {
			s.stuck = scale
		}
		out[len(out)-2], out[len(out)-1] = l.Scale, float64(l.Skipped)
	case !applied:
		// The model adapts the scale in its graph or does not scale the loss.
		switch i := slices.Index(s.trainNames, contract.MetricLossScale); {
		case i < 0:
			s.stuck = 1
		case out[i] < minScale:
			s.stuck = out[i]
		case out[i] >= minScale: // not NaN
			s.skipped = true
		}
	}
}

// Skipped reports whether a step of the last execution was skipped because of non-finite gradients,
// and the loss scale was lowered. The loss of a skipped step has no meaning.
//
// stuck reports whether a step was skipped although the loss scale cannot be lowered from the value
// scale.
func (s *Session) Skipped() (lowered, stuck bool, scale float64) {
	return s.skipped, !math.IsNaN(s.stuck), s.stuck
}

// State returns the state of the session that is not in variables: the loss scale. It is nil if there
// is none.
func (s *Session) State() (json.RawMessage, error) {
	if s.scaler == nil {
		return nil, nil
	}
	return json.Marshal(s.scaler)
}

// SetState restores the loss scale from a result of State, or the initial one if text is nil.
func (s *Session) SetState(text json.RawMessage) error {
	if s.scaler == nil {
		return nil // a checkpoint with a loss scale has another Identity
	}
	state := lossScaler{Scale: initialScale}
	if text != nil {
		state = lossScaler{}
		if err := json.Unmarshal(text, &state); err != nil {
			return fmt.Errorf("loss scale: %w", err)
		}
	}
	if !(state.Scale > 0 && state.Scale <= math.MaxFloat32) {
		return fmt.Errorf("loss scale: it is %v; expected a positive number that float32 can represent", state.Scale)
	}
	*s.scaler = state
	return nil
}
