package program

import (
	"fmt"
	"iter"
	"math/bits"
	"reflect"

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

// Nested returns slices of slices that share the memory of a flat slice: a level per dimension, as in the documentation
// of other bindings.
func Nested(a data.Array) reflect.Value {
	flat, shape := reflect.ValueOf(a.Values), a.Shape
	if len(shape) == 1 {
		return flat
	}
	t := flat.Type()
	for range shape[1:] {
		t = reflect.SliceOf(t)
	}
	part := flat.Len() / shape[0]
	all := reflect.MakeSlice(t, shape[0], shape[0])
	for i := range shape[0] {
		values := flat.Slice3(i*part, (i+1)*part, (i+1)*part).Interface()
		all.Index(i).Set(Nested(data.Array{Values: values, Shape: shape[1:]}))
	}
	return all
}
