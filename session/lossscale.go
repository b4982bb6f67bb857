package session

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"steadyfit/option"
	"steadyfit/savedmodels"
)

// LossScale says what the reserved input loss_scale is fed. A model that has it
// multiplies its loss with it and divides the gradients by it, so that gradients which
// float16 would round to zero survive, and leaves its weights as they are where the
// gradients are not finite: then the output grads_finite is false, and the step was
// skipped. What the forward pass writes, such as the moving statistics of
// BatchNormalization, a skipped step may have changed.
//
// The scale is dynamic by default for a model with that output, by the rule of
// TensorFlow's LossScaleOptimizer: it begins high, is divided by Factor after each
// skipped step, and multiplied with it after GrowthInterval steps in a row that were
// not skipped. It is then part of checkpoints and of snapshots. For a model without
// grads_finite, it is 1 by default.
type LossScale struct {
	// Fixed is a scale that never changes; 0 means that it is dynamic.
	Fixed float64
	// Initial is the first scale; 0 means 32768.
	Initial float64
	// GrowthInterval is in steps; 0 means 2000.
	GrowthInterval int
	// Factor is above 1; 0 means 2.
	Factor float64
	// Min is the smallest scale; 0 means 1.
	Min float64
}

// DynamicLossScale is the dynamic scale with its defaults. Unlike LossScale{} it is an
// error for a model that cannot have it.
var DynamicLossScale = LossScale{Initial: scaleInitial, GrowthInterval: scaleInterval, Factor: scaleFactor, Min: scaleMin}

// Defaults of LossScale.
const (
	scaleInitial  = 1 << 15
	scaleInterval = 2000
	scaleFactor   = 2
	scaleMin      = 1
)

// lossScaler is the scale of a session and how it changes.
type lossScaler struct {
	LossScale
	scaleState
}

// scaleState is what a checkpoint has of it.
type scaleState struct {
	Scale   float64 `json:"loss_scale"`
	Good    int     `json:"good_steps"` // in a row
	Skipped int64   `json:"skipped_steps"`
}

func scaleError(kind error, reason, fix string) error {
	return &option.Error{Option: "Options.LossScale", Reason: reason, Fix: fix, Err: kind}
}

// newLossScaler is nil for a signature that takes no scale.
func newLossScaler(o LossScale, sig *savedmodels.Signature) (*lossScaler, error) {
	takes, tells := sig.Reserved(savedmodels.InputLossScale) != nil, gradsFinite(sig) != nil
	for _, v := range []struct {
		name   string
		value  float64
		beyond float64
	}{
		{"Fixed", o.Fixed, 0}, {"Initial", o.Initial, 0}, {"GrowthInterval", float64(o.GrowthInterval), 0},
		{"Factor", o.Factor, 1}, {"Min", o.Min, 0},
	} {
		if v.value != 0 && !(v.value > v.beyond && v.value <= math.MaxFloat32) {
			return nil, scaleError(nil, fmt.Sprintf("%s is %v, expected a number above %v that float32 has", v.name, v.value, v.beyond), "")
		}
	}
	switch {
	case o == LossScale{} && !scalable(sig):
		return nil, nil
	case !takes:
		if sig.Output(savedmodels.MetricLossScale) != nil {
			return nil, scaleError(ErrNoSignature, fmt.Sprintf("signature %s has no input %s, since it scales the loss inside the graph", sig.Name, savedmodels.InputLossScale),
				"leave the scale to it, or export the model with loss_scale_input")
		}
		return nil, scaleError(ErrNoSignature, fmt.Sprintf("signature %s has no input %s", sig.Name, savedmodels.InputLossScale), "export it with loss_scale_input, or leave the scale out")
	case o.Fixed == 0 && !tells:
		return nil, scaleError(ErrNoSignature, fmt.Sprintf("signature %s has no output %s, which a dynamic scale goes by", sig.Name, savedmodels.OutputGradsFinite),
			"export it with one, or fix the scale")
	}
	l := &lossScaler{LossScale: o}
	for value, usual := range map[*float64]float64{&l.Initial: scaleInitial, &l.Factor: scaleFactor, &l.Min: scaleMin} {
		if *value == 0 {
			*value = usual
		}
	}
	if l.GrowthInterval == 0 {
		l.GrowthInterval = scaleInterval
	}
	l.Scale = max(l.Initial, l.Min)
	if l.Fixed != 0 {
		l.Scale = l.Fixed
	}
	return l, nil
}

// String is what makes one scale another.
func (l *lossScaler) String() string {
	if l.Fixed != 0 {
		return fmt.Sprint(l.Fixed)
	}
	return fmt.Sprintf("dynamic from %v, %v per %d steps, at least %v", l.Initial, l.Factor, l.GrowthInterval, l.Min)
}

// goOn takes over a state, but for what the options fix.
func (l *lossScaler) goOn(state scaleState) {
	l.scaleState = state
	if l.Fixed != 0 {
		l.Scale, l.Good = l.Fixed, 0
	}
}

// update is called after each step. lower reports that the scale was lowered.
func (l *lossScaler) update(finite bool) (lower bool) {
	if !finite {
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

// gradsFinite is the output that says whether a step was applied; nil if there is none.
func gradsFinite(sig *savedmodels.Signature) *savedmodels.Tensor {
	return sig.Output(savedmodels.OutputGradsFinite)
}

// rescale is called after train steps; finite is false if any of them was skipped.
func (s *Session) rescale(finite bool, out []float64) {
	if l := s.scaler; l != nil {
		scale := l.Scale
		s.skipped = l.update(finite)
		if !finite && !s.skipped {
			s.stuck = scale
		}
		out[len(out)-2], out[len(out)-1] = l.Scale, float64(l.Skipped)
	} else if !finite {
		s.stuck = 1 // the model scales nothing, and says that it changed nothing
		if i := slices.Index(s.trainNames, savedmodels.MetricLossScale); i >= 0 {
			// Scaled inside the graph, where the scale is already lowered.
			if s.skipped = out[i] >= scaleMin; s.skipped {
				s.stuck = math.NaN()
			} else {
				s.stuck = out[i]
			}
		}
	}
}

// scalable reports whether a dynamic scale can be fed to a signature.
func scalable(sig *savedmodels.Signature) bool {
	return sig.Reserved(savedmodels.InputLossScale) != nil && gradsFinite(sig) != nil
}

// Skipped reports whether the last train step changed no weights because its gradients
// were not finite, and the loss is scaled less from then on; so its loss, finite or not,
// says nothing about the training. It is false where the scale cannot be lowered any
// more. It is part of fit.Skipper.
func (s *Session) Skipped() bool { return s.skipped }

// Stuck reports whether the last train step changed no weights because its gradients
// were not finite, and the scale of the loss, which is scale, cannot be lowered: it is
// fixed, or at its least. It is part of fit.Skipper.
func (s *Session) Stuck() (scale float64, stuck bool) { return s.stuck, !math.IsNaN(s.stuck) }

// State is what the session has beside the variables: how the loss is scaled. It is
// part of fit.Stateful.
func (s *Session) State() (json.RawMessage, error) {
	if s.scaler == nil {
		return nil, nil
	}
	return json.Marshal(s.scaler.scaleState)
}

// SetState brings back what State returned; nil brings back the beginning. A fixed scale
// stays as it is.
func (s *Session) SetState(text json.RawMessage) error {
	if s.scaler == nil {
		return nil // only another session has any, which Identity tells
	}
	if text == nil {
		s.scaler.scaleState = s.begin
		return nil
	}
	var state scaleState
	if err := json.Unmarshal(text, &state); err != nil {
		return fmt.Errorf("loss scale: %w", err)
	}
	if !(state.Scale > 0 && state.Scale <= math.MaxFloat32) {
		return fmt.Errorf("loss scale: it is %v; expected a number above 0 that float32 has", state.Scale)
	}
	s.scaler.goOn(state)
	return nil
}
