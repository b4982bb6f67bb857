package loop

import (
	"math/bits"
	"slices"

	"steadyfit/internal/lab/worker"
	"steadyfit/savedmodels"
)

// Model opens the Spec's model, or that of the parameter model, without loading it.
func Model(c *worker.Child) *savedmodels.Model {
	name := c.Param("model", "")
	if name == "" {
		return worker.Must(savedmodels.Open(c.Spec.Model))
	}
	m, err := savedmodels.Builtin(name)
	if err != nil && !slices.Contains(savedmodels.BuiltinNames(), name) {
		err = &worker.ParameterError{Failure: worker.CouldNotApply, Name: "model", Value: name, Reason: err.Error()}
	}
	return worker.Must(m, err)
}

// Rounding returns the function of the parameter shapes, which changes a number of samples from 1
// to most.
func Rounding(c *worker.Child, most int) func(n int) int {
	shapes := c.Choice("shapes", "varying", "fixed", "pad", "bucket")
	return func(n int) int {
		switch shapes {
		case "fixed":
			return c.Spec.Batch
		case "pad":
			return most
		case "bucket":
			return min(1<<bits.Len(uint(n-1)), most)
		}
		return n
	}
}
