package measure

import (
	"steadyfit/data"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// maxSynthetic is the maximum number of values of an input, 1 GiB of float32.
const maxSynthetic = 1 << 28

// Batch makes the batch of all programs of the benchmark for a signature. leading has values for the first
// sizes of an input that the signature leaves open; other open sizes become 1. Integers are below limit.
func Batch(sig *savedmodels.Signature, leading []int, limit uint32) (data.Batch, error) {
	b := data.Batch{Size: leading[len(leading)-1]}
	for i, in := range sig.DataInputs() {
		if in.UnknownRank {
			return b, option.Errorf("signature %s, input %s: its shape is unknown; give {Data.Path}", sig.Name, in.Name)
		}
		f, left := Feed{Limit: limit}, int64(maxSynthetic)
		a := data.Array{}
		for d, n := range in.Shape {
			switch {
			case d < len(leading) && n >= 0 && n != int64(leading[d]):
				return b, option.Errorf("signature %s takes batches of exactly %d: give {Loop.Batch} %[2]d", sig.Name, n)
			case d < len(leading):
				n = int64(leading[d])
			case n < 0:
				n = 1
			}
			f.Shape = append(f.Shape, n)
			a.Shape = append(a.Shape, int(n))
			if left /= max(n, 1); left == 0 {
				return b, option.Errorf("signature %s, input %s: a batch of %v would have more than %d values; give a smaller "+
					"{Loop.Batch}", sig.Name, in.Name, leading, maxSynthetic)
			}
		}
		switch in.DType {
		case tfbind.Int32:
			a.Values = Integers[int32](f, i)
		case tfbind.Int64:
			a.Values = Integers[int64](f, i)
		case tfbind.Float32, tfbind.Float64, tfbind.Float16, tfbind.BFloat16:
			a.Values = f.Floats(i)
		default:
			return b, option.Errorf("signature %s, input %s: no synthetic values of %s; give {Data.Path}", sig.Name, in.Name,
				in.DType)
		}
		b.Fields = append(b.Fields, data.Field{Name: in.Name, Array: a})
	}
	return b, nil
}
