package measure

import (
	"math/rand/v2"

	"steadyfit/data"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// DefaultLimit is the number of classes if a model does not state it.
const DefaultLimit = 10

// maxSynthetic is the maximum number of values of an input, 1 GiB of float32.
const maxSynthetic = 1 << 28

// Batch makes a batch for a signature, with values in [0, 1). leading has values for the first
// sizes of an input that the signature leaves open; other open sizes become 1. Integers are below limit.
func Batch(sig *savedmodels.Signature, leading []int, limit int32) (data.Batch, error) {
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
		random := rand.New(rand.NewPCG(1, uint64(i)))
		switch in.DType {
		case tfbind.Int32:
			a.Values = filled(values, func() int32 { return random.Int32N(limit) })
		case tfbind.Int64:
			a.Values = filled(values, func() int64 { return random.Int64N(int64(limit)) })
		case tfbind.Float32, tfbind.Float64, tfbind.Float16, tfbind.BFloat16:
			a.Values = filled(values, random.Float32)
		default:
			return b, option.Errorf("signature %s, input %s: no synthetic values of %s; give {Data.Path}", sig.Name, in.Name,
				in.DType)
		}
		b.Fields = append(b.Fields, data.Field{Name: in.Name, Array: a})
	}
	return b, nil
}

func filled[T any](n int, next func() T) []T {
	values := make([]T, n)
	for i := range values {
		values[i] = next()
	}
	return values
}
