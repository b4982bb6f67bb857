package workload

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"

	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// synth makes samples for the train signature of a model, out of nothing but a
// seed. They can be learnt: a sample of class k has larger values at every
// position that is k modulo the number of classes, and k is its label.
type synth struct {
	fields  []synthField
	classes int
	seed    uint64
}

type synthField struct {
	name  string
	shape []int // of one sample
	width int
	dtype tfbind.DType
	label bool
}

// openSize is the size of a dimension that the model leaves open, but the batch.
const openSize = 16

func newSynth(model *savedmodels.Model, signature string, seed int64) (*synth, error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return nil, err
	}
	predict, err := model.Signature(model.Roles.Predict)
	if err != nil {
		predict = &savedmodels.Signature{}
	}
	s := &synth{classes: 2, seed: uint64(seed)}
	for _, t := range sig.DataInputs() {
		f := synthField{name: t.Name, dtype: t.DType, width: 1, label: predict.Input(t.Name) == nil}
		if t.UnknownRank || len(t.Shape) == 0 {
			return nil, fmt.Errorf("input %s of signature %s: no data can be made up for it: its shape is open or a scalar", t.Name, sig.Name)
		}
		for _, d := range t.Shape[1:] {
			if d < 0 {
				d = openSize
			}
			f.shape = append(f.shape, int(d))
			f.width *= int(d)
		}
		if f.array(0).Values == nil {
			return nil, fmt.Errorf("input %s of signature %s: no data of type %s can be made up", t.Name, sig.Name, t.DType)
		}
		if f.label && (t.DType == tfbind.Int64 || t.DType == tfbind.Int32) {
			s.classes = max(s.classes, classesOf(predict))
		}
		s.fields = append(s.fields, f)
	}
	return s, nil
}

// classesOf is the number of classes of a classifier, as far as its outputs tell.
func classesOf(predict *savedmodels.Signature) int {
	for _, t := range predict.Outputs {
		if n := len(t.Shape); t.DType == tfbind.Float32 && n == 2 && t.Shape[n-1] > 1 {
			return int(t.Shape[n-1])
		}
	}
	return 2
}

// array has room for n samples.
func (f *synthField) array(n int) data.Array {
	a := data.Array{Shape: append([]int{n}, f.shape...)}
	switch f.dtype {
	case tfbind.Float32:
		a.Values = make([]float32, n*f.width)
	case tfbind.Int64:
		a.Values = make([]int64, n*f.width)
	case tfbind.Int32:
		a.Values = make([]int32, n*f.width)
	case tfbind.Uint8:
		a.Values = make([]uint8, n*f.width)
	}
	return a
}

// batch has room for n samples.
func (s *synth) batch(n int) data.Batch {
	b := data.Batch{Size: n}
	for i := range s.fields {
		b.Fields = append(b.Fields, data.Field{Name: s.fields[i].name, Array: s.fields[i].array(n)})
	}
	return b
}

// fill writes samples into a batch that this synth has made room for. The same key
// gives the same samples.
func (s *synth) fill(b data.Batch, key uint64) {
	var source rand.PCG // on the stack
	source.Seed(s.seed, key)
	for i := range b.Size {
		class := int(source.Uint64() % uint64(s.classes))
		for j := range s.fields {
			f := &s.fields[j]
			from, to := i*f.width, (i+1)*f.width
			switch v := b.Fields[j].Values.(type) {
			case []float32:
				if f.label {
					fillWith(v[from:to], float32(class))
				} else {
					s.floats(&source, v[from:to], class)
				}
			case []int64:
				fillInts(s, f, &source, v[from:to], class)
			case []int32:
				fillInts(s, f, &source, v[from:to], class)
			case []uint8:
				fillInts(s, f, &source, v[from:to], class)
			}
		}
	}
}

// chunk is how many samples of a large set are made with one key.
const chunk = 1024

// fillAll is fill for a large set: the same samples wherever they are written to.
func (s *synth) fillAll(b data.Batch, key uint64) {
	for from := 0; from < b.Size; from += chunk {
		s.fill(b.Slice(from, min(from+chunk, b.Size)), key+uint64(from))
	}
}

// floats are in [0, 1), and one more where the class shows.
func (s *synth) floats(source *rand.PCG, to []float32, class int) {
	const scale = 1.0 / (1 << 24)
	for i := range to {
		to[i] = float32(source.Uint64()>>40) * scale
	}
	for i := class; i < len(to); i += s.classes {
		to[i]++
	}
}

func fillInts[T int64 | int32 | uint8](s *synth, f *synthField, source *rand.PCG, to []T, class int) {
	if f.label {
		fillWith(to, T(class))
		return
	}
	for i := range to {
		to[i] = T(source.Uint64() % uint64(s.classes))
	}
}

func fillWith[T any](to []T, v T) {
	for i := range to {
		to[i] = v
	}
}

// memory is a dataset of n samples.
func (s *synth) memory(n int, key uint64) (*data.InMemory, error) {
	b := s.batch(n)
	s.fillAll(b, key)
	return data.New("synthetic", b.Fields...)
}

// generated is a dataset whose batches are made when they are due, into one buffer
// per pass.
type generated struct {
	*synth
	samples int
	// size is how many samples the batch of that key has; nil for all of one size.
	size func(key uint64) int
	// change works on the samples of a batch; nil for none.
	change func(b data.Batch, key uint64)
}

func (g *generated) Name() string { return "generated" }
func (g *generated) Len() int     { return g.samples }

func (g *generated) Fields() []data.FieldSpec {
	specs := make([]data.FieldSpec, len(g.fields))
	for i, f := range g.fields {
		specs[i] = data.FieldSpec{Name: f.name, Shape: slices.Clone(f.shape), Type: goType(f.dtype)}
	}
	return specs
}

func goType(d tfbind.DType) string {
	switch d {
	case tfbind.Int64:
		return "int64"
	case tfbind.Int32:
		return "int32"
	case tfbind.Uint8:
		return "uint8"
	}
	return "float32"
}

func (g *generated) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		whole := g.batch(p.Batch)
		count := g.samples / p.Batch
		for i := p.Skip; i < count; i++ {
			b, key := whole, uint64(p.Epoch*count+i)
			if g.size != nil {
				b = whole.Slice(0, g.size(key))
			}
			b.Index = i
			g.fill(b, key)
			if g.change != nil {
				g.change(b, key)
			}
			if !yield(b, nil) {
				return
			}
		}
	}
}
