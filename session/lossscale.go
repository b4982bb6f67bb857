package session

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"steadyfit/option"
	"steadyfit/savedmodels"
)

// LossScale is the value of the reserved input loss_scale. A model with that input multiplies
// its loss by it and divides the gradients by it, so that float16 does not round small
// gradients to zero. If the gradients are not finite, the model skips the step: the output
// grads_finite is false and the weights stay the same. A skipped step may still change state
// of the forward pass, such as the statistics of BatchNormalization.
//
// A model with grads_finite has a dynamic scale by default, which follows TensorFlow's
// LossScaleOptimizer: it is divided by Factor after a skipped step and multiplied by Factor
// after GrowthInterval steps without one. Checkpoints and snapshots include it. For other
// models the default is 1.
type LossScale struct {
	// Fixed is a scale that never changes; 0 means dynamic.
	Fixed float64
	// Initial is the first scale; 0 means 32768.
	Initial float64
	// GrowthInterval is a number of steps; 0 means 2000.
	GrowthInterval int
	// Factor must be above 1; 0 means 2.
	Factor float64
	// Min is the smallest scale; 0 means 1.
	Min float64
}

// DynamicLossScale is the dynamic scale with its defaults. In contrast to LossScale{}, it is
// an error for a model that does not support a dynamic scale.
var DynamicLossScale = LossScale{Initial: 1 << 15, GrowthInterval: 2000, Factor: 2, Min: 1}

// lossScaler is the loss scale of a session.
type lossScaler struct {
	LossScale
	scaleState
}

// scaleState is the part of a lossScaler that checkpoints contain.
type scaleState struct {
	Scale   float64 `json:"loss_scale"`
	Good    int     `json:"good_steps"` // consecutive steps that were applied
	Skipped int64   `json:"skipped_steps"`
}

// newLossScaler returns nil for a signature that does not take a loss scale.
func newLossScaler(o LossScale, sig *savedmodels.Signature) (*lossScaler, error) {
	refuse := func(kind error, fix, format string, args ...any) (*lossScaler, error) {
		return nil, &option.Error{Option: "Options.LossScale", Reason: fmt.Sprintf(format, args...), Fix: fix, Err: kind}
	}
	for _, v := range []struct {
		name         string
		value, above float64
	}{
		{"Fixed", o.Fixed, 0}, {"Initial", o.Initial, 0}, {"GrowthInterval", float64(o.GrowthInterval), 0},
		{"Factor", o.Factor, 1}, {"Min", o.Min, 0},
	} {
		if v.value != 0 && !(v.value > v.above && v.value <= math.MaxFloat32) {
			return refuse(nil, "", "%s is %v, expected a number above %v that float32 can represent", v.name, v.value, v.above)
		}
	}
	switch in := savedmodels.InputLossScale; {
	case o == LossScale{} && !scalable(sig):
		return nil, nil
	case sig.Reserved(in) == nil && sig.Output(savedmodels.MetricLossScale) != nil:
		return refuse(ErrNoSignature, "unset the loss scale, or export the model with loss_scale_input",
			"signature %s has no input %s: it scales the loss inside the graph", sig.Name, in)
	case sig.Reserved(in) == nil:
		return refuse(ErrNoSignature, "export it with loss_scale_input, or unset the loss scale", "signature %s has no input %s", sig.Name, in)
	case o.Fixed == 0 && gradsFinite(sig) == nil:
		return refuse(ErrNoSignature, "export it with that output, or set a fixed scale",
			"signature %s has no output %s, which a dynamic scale needs", sig.Name, savedmodels.OutputGradsFinite)
	}
	d := DynamicLossScale
	l := &lossScaler{LossScale: LossScale{
		Fixed: o.Fixed, Initial: cmp.Or(o.Initial, d.Initial), GrowthInterval: cmp.Or(o.GrowthInterval, d.GrowthInterval),
		Factor: cmp.Or(o.Factor, d.Factor), Min: cmp.Or(o.Min, d.Min),
	}}
	l.Scale = cmp.Or(l.Fixed, max(l.Initial, l.Min))
	return l, nil
}

// String returns the text that identifies the scale in a checkpoint.
func (l *lossScaler) String() string {
	if l.Fixed != 0 {
		return fmt.Sprint(l.Fixed)
	}
	return fmt.Sprintf("dynamic from %v, %v per %d steps, at least %v", l.Initial, l.Factor, l.GrowthInterval, l.Min)
}

// resume restores a state, except for a fixed scale.
func (l *lossScaler) resume(state scaleState) {
	l.scaleState = state
	if l.Fixed != 0 {
		l.Scale, l.Good = l.Fixed, 0
	}
}

// update adapts the scale after a step and reports whether it lowered the scale.
func (l *lossScaler) update(applied bool) (lowered bool) {
	if !applied {
		l.Skipped++
		l.Good = 0
		if l.Fixed != 0 || l.Scale <= l.Min {
			return false
		}
		l.Scale = max(l.Scale/l.Factor, l.Min)
		return true
	}
	if l.Fixed != 0 {
		return false
	}
	if l.Good++; l.Good >= l.GrowthInterval {
		l.Good = 0
		if higher := l.Scale * l.Factor; higher <= math.MaxFloat32 {
			l.Scale = higher
		}
	}
	return false
}

// gradsFinite returns the output that reports whether a step was applied; nil if there is
// none.
func gradsFinite(sig *savedmodels.Signature) *savedmodels.Tensor {
	return sig.Output(savedmodels.OutputGradsFinite)
}

// rescale adapts the loss scale after a train step. applied is false if the step was skipped.
func (s *Session) rescale(applied bool, out []float64) {
	switch l := s.scaler; {
	case l != nil:
		scale := l.Scale
		if s.skipped = l.update(applied); !applied && !s.skipped {
			s.stuck = scale
		}
		out[len(out)-2], out[len(out)-1] = l.Scale, float64(l.Skipped)
	case !applied:
		// In these cases the model adapts the scale itself, or does not scale the loss.
		switch i := slices.Index(s.trainNames, savedmodels.MetricLossScale); {
		case i < 0:
			s.stuck = 1
		case out[i] < DynamicLossScale.Min:
			s.stuck = out[i]
		case out[i] >= DynamicLossScale.Min: // not NaN
			s.skipped = true
		}
	}
}

// scalable reports whether a signature supports a dynamic scale.
func scalable(sig *savedmodels.Signature) bool {
	return sig.Reserved(savedmodels.InputLossScale) != nil && gradsFinite(sig) != nil
}

// Skipped reports whether the last train step was skipped because its gradients were not
// finite, and the scale was lowered. The loss of a skipped step is meaningless. Skipped is
// part of fit.LossScaler.
func (s *Session) Skipped() bool { return s.skipped }

// Stuck reports whether the last train step was skipped because its gradients were not finite,
// and the scale cannot be lowered because it is fixed or at its minimum. Stuck is part of
// fit.LossScaler.
func (s *Session) Stuck() (scale float64, stuck bool) { return s.stuck, !math.IsNaN(s.stuck) }

// State returns the session's state other than the variables, which is the loss scale. It is
// part of fit.Stateful.
func (s *Session) State() (json.RawMessage, error) {
	if s.scaler == nil {
		return nil, nil
	}
	return json.Marshal(s.scaler.scaleState)
}

// SetState restores the result of State; nil restores the initial state. A fixed scale does
// not change.
func (s *Session) SetState(text json.RawMessage) error {
	if s.scaler == nil {
		return nil // the state is of a session with other options, which Identity reports
	}
	state := s.lossScale.scaleState
	if text != nil {
		state = scaleState{}
		if err := json.Unmarshal(text, &state); err != nil {
			return fmt.Errorf("loss scale: %w", err)
		}
	}
	if !(state.Scale > 0 && state.Scale <= math.MaxFloat32) {
		return fmt.Errorf("loss scale: it is %v; expected a positive number that float32 can represent", state.Scale)
	}
	s.scaler.resume(state)
	return nil
}
