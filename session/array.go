package session

import (
	"steadyfit/data"
	"steadyfit/tfbind"
)

// Array copies a tensor into Go memory. Half-precision values become float32, without rounding.
func Array(t *tfbind.Tensor) (data.Array, error) {
	values, err := t.Slice(nil)
	if err != nil {
		return data.Array{}, err
	}
	a := data.Array{Values: values}
	for _, d := range t.Shape() {
		a.Shape = append(a.Shape, int(d))
	}
	return a, nil
}
