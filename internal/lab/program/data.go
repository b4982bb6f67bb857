package program

import (
	"fmt"
	"iter"
	"math/bits"

	"steadyfit/data"
	"steadyfit/savedmodels"
)

// OpenModel opens the model without loading it.
func (p *Program) OpenModel() *savedmodels.Model { return Must(savedmodels.Open(p.Model)) }

// Rounding returns the function that the option shapes selects. It rounds up a number of samples between 1 and most.
func (p *Program) Rounding(most int) func(n int) int {
	shapes := p.Choice("shapes", "varying", "pad", "bucket")
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

// Passes iterates over the batches of a dataset, pass after pass without end. It begins with the given pass.
func Passes(ds data.Dataset, pass data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		for ; ; pass.Epoch, pass.Skip = pass.Epoch+1, 0 {
			empty := pass.Skip == 0
			for b, err := range ds.Batches(pass) {
				if empty = false; !yield(b, err) || err != nil {
					return
				}
			}
			if empty {
				yield(data.Batch{}, fmt.Errorf("%s has fewer samples than a batch of %d", ds.Name(), pass.Batch))
				return
			}
		}
	}
}
