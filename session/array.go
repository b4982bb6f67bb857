package session

import (
	"fmt"

	"steadyfit/data"
	"steadyfit/tfbind"
)

// Array copies a tensor into Go memory. Half-precision numbers become float32,
// which holds them exactly.
func Array(t *tfbind.Tensor) (data.Array, error) {
	a := data.Array{}
	for _, d := range t.Shape() {
		a.Shape = append(a.Shape, int(d))
	}
	var err error
	switch t.DType() {
	case tfbind.Float32:
		a.Values, err = tfbind.Values[float32](t)
	case tfbind.Float64:
		a.Values, err = tfbind.Values[float64](t)
	case tfbind.Float16:
		a.Values, err = widen[tfbind.Half](t)
	case tfbind.BFloat16:
		a.Values, err = widen[tfbind.Brain](t)
	case tfbind.Int8:
		a.Values, err = tfbind.Values[int8](t)
	case tfbind.Int16:
		a.Values, err = tfbind.Values[int16](t)
	case tfbind.Int32:
		a.Values, err = tfbind.Values[int32](t)
	case tfbind.Int64:
		a.Values, err = tfbind.Values[int64](t)
	case tfbind.Uint8:
		a.Values, err = tfbind.Values[uint8](t)
	case tfbind.Uint16:
		a.Values, err = tfbind.Values[uint16](t)
	case tfbind.Uint32:
		a.Values, err = tfbind.Values[uint32](t)
	case tfbind.Uint64:
		a.Values, err = tfbind.Values[uint64](t)
	case tfbind.Bool:
		a.Values, err = tfbind.Values[bool](t)
	case tfbind.String:
		a.Values, err = tfbind.Values[string](t)
	default:
		return data.Array{}, fmt.Errorf("%w: a tensor of %s cannot be read", tfbind.ErrType, t.DType())
	}
	return a, err
}

func widen[T interface {
	tfbind.Half | tfbind.Brain
	Float32() float32
}](t *tfbind.Tensor) ([]float32, error) {
	narrow, err := tfbind.Values[T](t)
	if err != nil {
		return nil, err
	}
	wide := make([]float32, len(narrow))
	for i, v := range narrow {
		wide[i] = v.Float32()
	}
	return wide, nil
}
