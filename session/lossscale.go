package session

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"steadyfit/internal/contract"
	"steadyfit/option"
	"steadyfit/savedmodels"
)

// LossScale is the value of the reserved input loss_scale. The model multiplies its loss by the
// scale and divides its gradients by it, so that small float16 gradients do not become zero. If
// the gradients are not finite, the model skips the step: it does not change the weights and
// returns grads_finite = false. A skipped step can still change BatchNormalization statistics.
//
// The default for a model with grads_finite is a dynamic scale, like TensorFlow's
// LossScaleOptimizer. A skipped step divides the scale by Factor, and GrowthInterval applied
// steps in a row multiply it by Factor. Checkpoints and snapshots include the scale. The
// default for other models is 1. A dynamic scale with any field set is an error for a model that
// does not support it.
type LossScale struct {
	// Fixed is a constant scale; 0 means dynamic.
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

// defaultScale is the dynamic scale with its defaults.
var defaultScale = LossScale{Initial: 1 << 15, GrowthInterval: 2000, Factor: 2, Min: 1}

// lossScaler is the loss scale of a session.
type lossScaler struct {
	LossScale
	scaleState
}

// scaleState is the part of lossScaler that checkpoints contain.
type scaleState struct {
	Scale   float64 `json:"loss_scale"`
	Good    int     `json:"good_steps"` // consecutive applied steps
	Skipped int64   `json:"skipped_steps"`
}

// newLossScaler returns nil if the options and the signature need no loss scale.
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
	switch in := contract.InputLossScale; {
	case o == LossScale{} && !scalable(sig):
		return nil, nil
	case sig.Input(in) == nil && sig.Output(contract.MetricLossScale) != nil:
		return refuse(errNoSignature, "unset the loss scale, or export the model with loss_scale_input",
			"signature %s has no input %s: it scales the loss inside the graph", sig.Name, in)
	case sig.Input(in) == nil:
		return refuse(errNoSignature, "export it with loss_scale_input, or unset the loss scale", "signature %s has no input %s", sig.Name, in)
	case o.Fixed == 0 && gradsFinite(sig) == nil:
		return refuse(errNoSignature, "export it with that output, or set a fixed scale",
			"signature %s has no output %s, which a dynamic scale needs", sig.Name, contract.OutputGradsFinite)
	}
	d := defaultScale
	l := &lossScaler{LossScale: LossScale{
		Fixed: o.Fixed, Initial: cmp.Or(o.Initial, d.Initial), GrowthInterval: cmp.Or(o.GrowthInterval, d.GrowthInterval),
		Factor: cmp.Or(o.Factor, d.Factor), Min: cmp.Or(o.Min, d.Min),
	}}
	l.Scale = cmp.Or(l.Fixed, max(l.Initial, l.Min))
	return l, nil
}

// String describes the scale in the identity of a checkpoint.
func (l *lossScaler) String() string {
	if l.Fixed != 0 {
		return fmt.Sprint(l.Fixed)
	}
	return fmt.Sprintf("dynamic from %v, %v per %d steps, at least %v", l.Initial, l.Factor, l.GrowthInterval, l.Min)
}

// resume restores a state. It does not change a fixed scale.
func (l *lossScaler) resume(state scaleState) {
	l.scaleState = state
	if l.Fixed != 0 {
		l.Scale, l.Good = l.Fixed, 0
	}
}

// update adapts the scale after a step. lowered reports whether the scale became smaller.
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

// gradsFinite returns the output grads_finite; nil if there is none.
func gradsFinite(sig *savedmodels.Signature) *savedmodels.Tensor {
	return sig.Output(contract.OutputGradsFinite)
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
		case out[i] < defaultScale.Min:
			s.stuck = out[i]
		case out[i] >= defaultScale.Min: // not NaN
			s.skipped = true
		}
	}
}

func scalable(sig *savedmodels.Signature) bool {
	return sig.Input(contract.InputLossScale) != nil && gradsFinite(sig) != nil
}

func (s capable) Skipped() (lowered, stuck bool, scale float64) {
	return s.skipped, !math.IsNaN(s.stuck), s.stuck
}

// State returns the loss scale, which is the only state outside of variables.
func (s capable) State() (json.RawMessage, error) {
	if s.scaler == nil {
		return nil, nil
	}
	return json.Marshal(s.scaler.scaleState)
}

// SetState restores the loss scale from a result of State, or the initial one if text is nil. It
// does not change a fixed scale.
func (s capable) SetState(text json.RawMessage) error {
	if s.scaler == nil {
		return nil // a checkpoint with a loss scale has another Identity
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
