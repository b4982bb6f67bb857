package savedmodels

import (
	"slices"

	"steadyfit/tfbind"
)

// The names that have a meaning of their own in a training signature.
const (
	InputSampleWeight = "sample_weight" // [B] or [B, ...] float: weight of each sample's loss, or of each element's
	InputLearningRate = "learning_rate" // [] float
	InputSeed         = "seed"          // [2] int64: for stateless random operations
	InputLossScale    = "loss_scale"    // [] float: multiplied into the loss, divided out of the gradients
	InputGroupSize    = "group_size"    // [] int32: the number of workers

	OutputLoss        = "loss"         // [] float
	OutputGradsFinite = "grads_finite" // [] bool: whether the step was applied
	OutputGlobalStep  = "global_step"  // [] int64
)

// The metrics of a training that scales its loss, be it inside the graph or outside: the
// scale of the next step, and the number of steps skipped so far.
const (
	MetricLossScale    = "loss_scale"
	MetricSkippedSteps = "skipped_steps"
)

// form is what a reserved input or output must look like.
type form struct {
	types []tfbind.DType
	// shape is what is needed; -1 stands for the batch.
	shape []int64
	text  string
	// more says that other dimensions may follow.
	more bool
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
	OutputGlobalStep:  {types: []tfbind.DType{tfbind.Int64}, shape: []int64{}, text: "an int64 scalar"},
}

// fits reports whether t has the form. A shape that the model leaves open fits.
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

// IsReserved reports whether an input of that name is fed by steadyfit itself
// rather than from a dataset.
func IsReserved(input string) bool { _, ok := reservedInputs[input]; return ok }

// Input finds an input by its name; nil if there is none.
func (s *Signature) Input(name string) *Tensor { return find(s.Inputs, name) }

// Output finds an output by its name; nil if there is none.
func (s *Signature) Output(name string) *Tensor { return find(s.Outputs, name) }

func find(ts []Tensor, name string) *Tensor {
	for i := range ts {
		if ts[i].Name == name {
			return &ts[i]
		}
	}
	return nil
}

// DataInputs are the inputs that a dataset provides: all but the reserved
// ones, sorted by name.
func (s *Signature) DataInputs() []Tensor {
	var out []Tensor
	for _, t := range s.Inputs {
		if !IsReserved(t.Name) {
			out = append(out, t)
		}
	}
	return out
}

// ImageInput is the data input that takes images, in the shape [batch height width
// channels] with 1 or 3 channels, or a number that may vary; nil unless there is
// exactly one.
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

// Reserved finds a reserved input, one of the Input constants; nil if the
// signature does not take it, or if the name is not reserved.
func (s *Signature) Reserved(name string) *Tensor {
	if !IsReserved(name) {
		return nil
	}
	return s.Input(name)
}

// Metrics are the outputs that are numbers to record: numeric scalars, "loss"
// first if it is there, then sorted by name. grads_finite (a bool) and
// global_step are not metrics.
func (s *Signature) Metrics() []Tensor {
	var out []Tensor
	if loss := s.Output(OutputLoss); loss != nil && loss.scalarNumber() {
		out = append(out, *loss)
	}
	for _, t := range s.Outputs {
		if t.Name != OutputLoss && t.Name != OutputGlobalStep && t.scalarNumber() {
			out = append(out, t)
		}
	}
	return out
}

func (t Tensor) scalarNumber() bool {
	return !t.UnknownRank && len(t.Shape) == 0 && t.Op != "" &&
		t.DType.Supported() && t.DType != tfbind.String && t.DType != tfbind.Bool
}

// hasLoss reports whether the signature gives a loss that can be recorded.
func (s *Signature) hasLoss() bool {
	loss := s.Output(OutputLoss)
	return loss != nil && loss.Op != "" && reservedOutputs[OutputLoss].fits(*loss)
}

// Static reports whether every size of the shape is fixed.
func (t Tensor) Static() bool {
	return !t.UnknownRank && !slices.ContainsFunc(t.Shape, func(d int64) bool { return d < 0 })
}
