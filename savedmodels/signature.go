package savedmodels

import (
	"slices"

	"steadyfit/tfbind"
)

// The reserved names of the inputs and outputs of a training signature.
const (
	InputSampleWeight = "sample_weight" // [B] or [B, ...] float
	InputLearningRate = "learning_rate" // [] float
	InputSeed         = "seed"          // [2] int64: for stateless random operations
	InputLossScale    = "loss_scale"    // [] float: factor of the loss, divided out of the gradients
	InputGroupSize    = "group_size"    // [] int32: the number of workers

	OutputLoss        = "loss"         // [] float
	OutputGradsFinite = "grads_finite" // [] bool: whether the step was applied
	outputGlobalStep  = "global_step"  // [] int64
)

// The metrics of training with loss scaling: the scale of the next step, and the number of
// steps skipped so far.
const (
	MetricLossScale    = "loss_scale"
	MetricSkippedSteps = "skipped_steps"
)

// form is the type and shape of a reserved input or output.
type form struct {
	types []tfbind.DType
	shape []int64 // -1 is the batch size
	text  string
	more  bool // more dimensions may follow
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

// fits reports whether t has the form. An open shape fits.
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

// IsReserved reports whether steadyfit generates the value of an input with that name.
func IsReserved(input string) bool { _, ok := reservedInputs[input]; return ok }

// Input returns the input with that name; nil if there is none.
func (s *Signature) Input(name string) *Tensor { return find(s.Inputs, name) }

// Output returns the output with that name; nil if there is none.
func (s *Signature) Output(name string) *Tensor { return find(s.Outputs, name) }

func find(ts []Tensor, name string) *Tensor {
	if i := slices.IndexFunc(ts, func(t Tensor) bool { return t.Name == name }); i >= 0 {
		return &ts[i]
	}
	return nil
}

// DataInputs returns the inputs that a dataset provides, which are all but the reserved ones.
func (s *Signature) DataInputs() []Tensor {
	return slices.DeleteFunc(slices.Clone(s.Inputs), func(t Tensor) bool { return IsReserved(t.Name) })
}

// ImageInput returns the data input with the shape [batch height width channels] and 1, 3 or
// any number of channels. It returns nil unless there is exactly one.
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

// Reserved returns a reserved input, one of the Input constants; nil if the signature does not
// have it.
func (s *Signature) Reserved(name string) *Tensor {
	if !IsReserved(name) {
		return nil
	}
	return s.Input(name)
}

// Metrics returns the outputs to record, which are the numeric scalars other than global_step:
// "loss" first, the others sorted by name.
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

// hasLoss reports whether the signature returns a loss that can be recorded.
func (s *Signature) hasLoss() bool {
	loss := s.Output(OutputLoss)
	return loss != nil && loss.Op != "" && reservedOutputs[OutputLoss].fits(*loss)
}
