package savedmodels

import (
	"slices"

	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
)

const outputGlobalStep = "global_step" // an int64 scalar

// form is the required type and shape of a reserved input or output.
type form struct {
	types []dtype.DType
	shape []int64 // -1 is the batch size
	text  string
	more  bool // whether more dimensions may follow
}

var floats = []dtype.DType{dtype.Float32, dtype.Float64, dtype.Float16, dtype.BFloat16}

var reservedInputs = map[string]form{
	contract.InputSampleWeight: {types: floats, shape: []int64{-1}, text: "floats, by sample", more: true},
	contract.InputLearningRate: {types: floats, shape: []int64{}, text: "a float scalar"},
	contract.InputSeed:         {types: []dtype.DType{dtype.Int64}, shape: []int64{2}, text: "two int64"},
	contract.InputLossScale:    {types: floats, shape: []int64{}, text: "a float scalar"},
	contract.InputGroupSize:    {types: []dtype.DType{dtype.Int32}, shape: []int64{}, text: "an int32 scalar"},
}

var reservedOutputs = map[string]form{
	contract.OutputLoss:        {types: floats, shape: []int64{}, text: "a float scalar"},
	contract.OutputGradsFinite: {types: []dtype.DType{dtype.Bool}, shape: []int64{}, text: "a bool scalar"},
	outputGlobalStep:           {types: []dtype.DType{dtype.Int64}, shape: []int64{}, text: "an int64 scalar"},
}

// fits reports whether t has the form. An unknown dimension of t or a batch dimension of f fits any
// size.
func (f form) fits(t Tensor) bool {
	if !slices.Contains(f.types, t.DType) {
		return false
	}
	if t.UnknownRank {
		return true
	}
	n := len(f.shape)
	return (len(t.Shape) == n || f.more && len(t.Shape) > n) && slices.EqualFunc(f.shape, t.Shape[:n],
		func(want, have int64) bool { return want < 0 || have < 0 || want == have })
}

// Input returns the input with the given name; nil if there is none.
func (s *Signature) Input(name string) *Tensor { return find(s.Inputs, name) }

// Takes reports whether the signature takes a reserved input.
func (s *Signature) Takes(reserved string) bool {
	return slices.ContainsFunc(s.Inputs, func(t Tensor) bool { return t.Name == reserved && t.IsReserved() })
}

// IsReserved reports whether steadyfit can generate the value of an input. An input of another key needs data.
func (t Tensor) IsReserved() bool { return t.Key == "" && reservedInputs[t.Name].types != nil }

// Output returns the output with the given name; nil if there is none.
func (s *Signature) Output(name string) *Tensor { return find(s.Outputs, name) }

func find(ts []Tensor, name string) *Tensor {
	if i := slices.IndexFunc(ts, func(t Tensor) bool { return t.Name == name }); i >= 0 {
		return &ts[i]
	}
	return nil
}

// DataInputs returns the inputs that need data, which are all except the reserved ones and constants.
func (s *Signature) DataInputs() []Tensor {
	return slices.DeleteFunc(slices.Clone(s.Inputs),
		func(t Tensor) bool { return t.IsReserved() || t.Constant != nil })
}

// Metrics returns the outputs that are recorded: loss first, then the other numeric scalars by
// name, without global_step.
func (s *Signature) Metrics() []Tensor {
	out := slices.DeleteFunc(slices.Clone(s.Outputs),
		func(t Tensor) bool { return t.Name == outputGlobalStep && t.Key == "" || !t.scalarNumber() })
	if i := slices.IndexFunc(out, func(t Tensor) bool { return t.Name == contract.OutputLoss }); i > 0 {
		loss := out[i]
		copy(out[1:], out[:i])
		out[0] = loss
	}
	return out
}

func (t Tensor) scalarNumber() bool {
	return !t.UnknownRank && len(t.Shape) == 0 && t.Op != "" &&
		t.DType.Size() > 0 && t.DType != dtype.Bool
}

// HasLoss reports whether the signature has an output loss that is a float scalar.
func (s *Signature) HasLoss() bool {
	loss := s.Output(contract.OutputLoss)
	return loss != nil && loss.Op != "" && reservedOutputs[contract.OutputLoss].fits(*loss)
}
