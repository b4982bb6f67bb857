package savedmodels

import (
	"slices"

	"steadyfit/tfbind"
)

// The reserved names of the inputs and outputs of a training signature.
const (
	InputSampleWeight = "sample_weight" // float, shape [batch] or [batch, ...]
	InputLearningRate = "learning_rate" // float scalar
	InputSeed         = "seed"          // two int64 for stateless random operations
	InputLossScale    = "loss_scale"    // float scalar: multiplies the loss and divides the gradients
	InputGroupSize    = "group_size"    // int32 scalar: the number of workers

	OutputLoss        = "loss"         // float scalar
	OutputGradsFinite = "grads_finite" // bool scalar: whether the step was applied
	outputGlobalStep  = "global_step"  // int64 scalar
)

// Metrics of training with loss scaling: the scale of the next step, and the number of skipped
// steps.
const (
	MetricLossScale    = "loss_scale"
	MetricSkippedSteps = "skipped_steps"
)

// form is the required type and shape of a reserved input or output.
type form struct {
	types []tfbind.DType
	shape []int64 // -1 is the batch size
	text  string
	more  bool // whether more dimensions may follow
}

var floats = []tfbind.DType{tfbind.Float32, tfbind.Float64, tfbind.Float16, tfbind.BFloat16}

var reservedInputs = map[string]form{
	InputSampleWeight: {types: floats, shape: []int64{-1}, text: "floats, by sample", more: true},
	InputLearningRate: {types: floats, shape: []int64{}, text: "a float scalar"},
	InputSeed:         {types: []tfbind.DType{tfbind.Int64}, shape: []int64{2}, text: "two int64"},
	InputLossScale:    {types: floats, shape: []int64{}, text: "a float scalar"},
	InputGroupSize:    {types: []tfbind.DType{tfbind.Int32}, shape: []int64{}, text: "an int32 scalar"},
}

var reservedOutputs = map[string]form{
	OutputLoss:        {types: floats, shape: []int64{}, text: "a float scalar"},
	OutputGradsFinite: {types: []tfbind.DType{tfbind.Bool}, shape: []int64{}, text: "a bool scalar"},
	outputGlobalStep:  {types: []tfbind.DType{tfbind.Int64}, shape: []int64{}, text: "an int64 scalar"},
}

// fits reports whether t has the form. An open size fits any size.
func (f form) fits(t Tensor) bool {
	if !slices.Contains(f.types, t.DType) {
		return false
	}
	if t.UnknownRank {
		return true
	}
	if len(t.Shape) != len(f.shape) && !(f.more && len(t.Shape) > len(f.shape)) {
		return false
	}
	for i, d := range f.shape {
		if d >= 0 && t.Shape[i] >= 0 && t.Shape[i] != d {
			return false
		}
	}
	return true
}

// IsReserved reports whether steadyfit can generate the value of the input.
func IsReserved(input string) bool { _, ok := reservedInputs[input]; return ok }

// Input returns the input with the given name; nil if there is none.
func (s *Signature) Input(name string) *Tensor { return find(s.Inputs, name) }

// Output returns the output with the given name; nil if there is none.
func (s *Signature) Output(name string) *Tensor { return find(s.Outputs, name) }

func find(ts []Tensor, name string) *Tensor {
	if i := slices.IndexFunc(ts, func(t Tensor) bool { return t.Name == name }); i >= 0 {
		return &ts[i]
	}
	return nil
}

// DataInputs returns the inputs that need data, which are all except the reserved ones.
func (s *Signature) DataInputs() []Tensor {
	return slices.DeleteFunc(slices.Clone(s.Inputs), func(t Tensor) bool { return IsReserved(t.Name) })
}

// ImageInput returns the data input of shape [batch height width channels] with 1, 3 or an open
// number of channels. It returns nil if there is not exactly one.
func (s *Signature) ImageInput() *Tensor {
	var found *Tensor
	for _, t := range s.DataInputs() {
		if t.UnknownRank || len(t.Shape) != 4 || t.Shape[3] != 1 && t.Shape[3] != 3 && t.Shape[3] >= 0 {
			continue
		}
		if found != nil {
			return nil
		}
		found = s.Input(t.Name)
	}
	return found
}

// Reserved returns the input with a reserved name; nil if there is none.
func (s *Signature) Reserved(name string) *Tensor {
	if !IsReserved(name) {
		return nil
	}
	return s.Input(name)
}

// Metrics returns the outputs that are recorded: loss first, then the other numeric scalars by
// name, without global_step.
func (s *Signature) Metrics() []Tensor {
	out := slices.DeleteFunc(slices.Clone(s.Outputs), func(t Tensor) bool { return t.Name == outputGlobalStep || !t.scalarNumber() })
	slices.SortStableFunc(out, func(a, b Tensor) int {
		switch {
		case a.Name == OutputLoss:
			return -1
		case b.Name == OutputLoss:
			return 1
		}
		return 0
	})
	return out
}

func (t Tensor) scalarNumber() bool {
	return !t.UnknownRank && len(t.Shape) == 0 && t.Op != "" &&
		t.DType.Supported() && t.DType != tfbind.String && t.DType != tfbind.Bool
}

// hasLoss reports whether the signature has an output loss that is a float scalar.
func (s *Signature) hasLoss() bool {
	loss := s.Output(OutputLoss)
	return loss != nil && loss.Op != "" && reservedOutputs[OutputLoss].fits(*loss)
}
