package measure

import (
	"steadyfit/data"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// DefaultLimit is the number of classes if a model does not state it.
const DefaultLimit = 10

// maxSynthetic is the maximum number of values of an input, 1 GiB of float32.
const maxSynthetic = 1 << 28

// A generator is a linear congruential generator. Input number i, in the order of names, starts at i + 1.
type generator uint32

func (g *generator) next() uint32 {
	*g = *g*1664525 + 1013904223
	return uint32(*g)
}

// floats returns values in [0, 1) for input number i.
func floats(n, i int) []float32 {
	g := generator(i + 1)
	values := make([]float32, n)
	for k := range values {
		values[k] = float32(g.next()>>8) / (1 << 24)
	}
	return values
}

// integers returns values below limit for input number i.
func integers[T int32 | int64](n, i int, limit uint32) []T {
	g := generator(i + 1)
	values := make([]T, n)
	for k := range values {
		values[k] = T((g.next() >> 16) % limit)
	}
	return values
}

// Batch makes the batch of all programs of the benchmark for a signature. leading has values for the first
// sizes of an input that the signature leaves open; other open sizes become 1. Integers are below limit.
func Batch(sig *savedmodels.Signature, leading []int, limit uint32) (data.Batch, error) {
	b := data.Batch{Size: leading[len(leading)-1]}
	for i, in := range sig.DataInputs() {
		if in.UnknownRank {
			return b, option.Errorf("signature %s, input %s: its shape is unknown; give {Data.Path}", sig.Name, in.Name)
		}
		a, values := data.Array{}, 1
		for d, n := range in.Shape {
			switch {
			case d < len(leading) && n >= 0 && n != int64(leading[d]):
				return b, option.Errorf("signature %s takes batches of exactly %d: give {Loop.Batch} %[2]d", sig.Name, n)
			case d < len(leading):
				n = int64(leading[d])
			case n < 0:
				n = 1
			}
			a.Shape = append(a.Shape, int(n))
			if values > 0 && int(n) > maxSynthetic/values {
				return b, option.Errorf("signature %s, input %s: a batch of %v would have more than %d values; give a smaller "+
					"{Loop.Batch}", sig.Name, in.Name, leading, maxSynthetic)
			}
			values *= int(n)
		}
		switch in.DType {
		case tfbind.Int32:
			a.Values = integers[int32](values, i, limit)
		case tfbind.Int64:
			a.Values = integers[int64](values, i, limit)
		case tfbind.Float32, tfbind.Float64, tfbind.Float16, tfbind.BFloat16:
			a.Values = floats(values, i)
		default:
			return b, option.Errorf("signature %s, input %s: no synthetic values of %s; give {Data.Path}", sig.Name, in.Name,
				in.DType)
		}
		b.Fields = append(b.Fields, data.Field{Name: in.Name, Array: a})
	}
	return b, nil
}
