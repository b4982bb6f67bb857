package loop

import (
	"math/bits"

	"steadyfit/internal/lab/worker"
	"steadyfit/savedmodels"
)

// Model opens the Spec's model without loading it.
func Model(c *worker.Child) *savedmodels.Model { return worker.Must(savedmodels.Open(c.Spec.Model)) }

// Rounding returns the function of the parameter shapes, which changes a number of samples from 1
// to most.
func Rounding(c *worker.Child, most int) func(n int) int {
	shapes := c.Choice("shapes", "varying", "pad", "bucket")
	return func(n int) int {
		switch shapes {
		case "pad":
			return most
		case "bucket":
			return min(1<<bits.Len(uint(n-1)), most)
		}
		return n
	}
}
