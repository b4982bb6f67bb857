// Package synth generates data for workloads from a seed: in memory, batch by batch, or
// streamed from disk.
package synth

import (
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/files"
	"steadyfit/savedmodels"
)

// Synth generates samples for a signature. A model can learn them: a sample with label k has
// larger values at every position that is k modulo the number of classes.
type Synth struct {
	Fields  []Field
	classes int
	seed    uint64
}

type Field struct {
	Name  string
	Shape []int // of one sample
	Width int   // values of one sample
	DType dtype.DType
	Label bool
}

// openSize replaces an unknown dimension other than the batch.
const openSize = 16

// New returns a generator for a signature. Inputs that the predict signature lacks are labels. open replaces unknown
// dimensions of a sample, from the first one.
func New(model *savedmodels.Model, signature string, seed int64, open ...int) (*Synth, error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return nil, err
	}
	predict, err := model.Signature(model.Roles.Predict)
	if err != nil {
		predict = &savedmodels.Signature{}
	}
	s := &Synth{classes: 2, seed: uint64(seed)}
	for _, t := range sig.DataInputs() {
		f := Field{Name: t.Name, DType: t.DType, Width: 1, Label: predict.Input(t.Name) == nil}
		if t.UnknownRank || len(t.Shape) == 0 {
			return nil, fmt.Errorf("input %s of signature %s: cannot generate data for a scalar or an unknown shape", t.Name,
				sig.Name)
		}
		for i, d := range t.Shape[1:] {
			switch {
			case d < 0 && i < len(open):
				d = int64(open[i])
			case d < 0:
				d = openSize
			}
			f.Shape = append(f.Shape, int(d))
			f.Width *= int(d)
		}
		if f.array(0).Values == nil {
			return nil, fmt.Errorf("input %s of signature %s: cannot generate data of type %s", t.Name, sig.Name, t.DType)
		}
		if f.Label && (t.DType == dtype.Int64 || t.DType == dtype.Int32) {
			s.classes = max(s.classes, classesOf(predict))
		}
		s.Fields = append(s.Fields, f)
	}
	return s, nil
}

// classesOf returns the number of classes of a classifier, or 2 for other models.
func classesOf(predict *savedmodels.Signature) int {
	for _, t := range predict.Outputs {
		if n := len(t.Shape); t.DType == dtype.Float32 && n == 2 && t.Shape[n-1] > 1 {
			return int(t.Shape[n-1])
		}
	}
	return 2
}

func (f *Field) array(n int) data.Array {
	a := data.Array{Shape: append([]int{n}, f.Shape...)}
	if slices.Contains([]dtype.DType{dtype.Float32, dtype.Int64, dtype.Int32, dtype.Uint8}, f.DType) {
		a.Values = dtype.ByCode(int32(f.DType)).Make(n * f.Width)
	}
	return a
}

func (s *Synth) Batch(n int) data.Batch {
	b := data.Batch{Size: n}
	for i := range s.Fields {
		b.Fields = append(b.Fields, data.Field{Name: s.Fields[i].Name, Array: s.Fields[i].array(n)})
	}
	return b
}

// Fill writes samples into a batch from Batch. Equal keys give equal samples.
func (s *Synth) Fill(b data.Batch, key uint64) {
	var source rand.PCG // on the stack
	source.Seed(s.seed, key)
	for i := range b.Size {
		class := int(source.Uint64() % uint64(s.classes))
		for j := range s.Fields {
			f := &s.Fields[j]
			from, to := i*f.Width, (i+1)*f.Width
			switch v := b.Fields[j].Values.(type) {
			case []float32:
				if f.Label {
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

// chunk is the number of samples with the same key.
const chunk = 1024

// FillAll fills a large batch with the samples that Stream writes.
func (s *Synth) FillAll(b data.Batch, key uint64) {
	for from := 0; from < b.Size; from += chunk {
		s.Fill(b.Slice(from, min(from+chunk, b.Size)), key+uint64(from))
	}
}

// floats fills values with numbers in [0, 1), plus 1 at the positions of the class.
func (s *Synth) floats(source *rand.PCG, to []float32, class int) {
	const scale = 1.0 / (1 << 24)
	for i := range to {
		to[i] = float32(source.Uint64()>>40) * scale
	}
	for i := class; i < len(to); i += s.classes {
		to[i]++
	}
}

func fillInts[T int64 | int32 | uint8](s *Synth, f *Field, source *rand.PCG, to []T, class int) {
	if f.Label {
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

// InMemory returns a dataset of n samples.
func (s *Synth) InMemory(n int, key uint64) (*data.InMemory, error) {
	b := s.Batch(n)
	s.FillAll(b, key)
	return data.New("synthetic", b.Fields...)
}

// Stream writes n samples to files in dir, chunk by chunk, and opens them without reading them.
func (s *Synth) Stream(n int, dir string) (*data.InMemory, error) {
	room := s.Batch(chunk)
	for i, f := range s.Fields {
		if err := files.Stream(filepath.Join(dir, f.Name+".npy"), func(out io.Writer) error {
			w, err := data.NewWriter(out, ".npy", n)
			for from := 0; err == nil && from < n; from += chunk {
				part := room.Slice(0, min(chunk, n-from))
				s.Fill(part, uint64(from))
				err = w.Write(part.Fields[i])
			}
			if err != nil {
				return err
			}
			return w.Flush()
		}); err != nil {
			return nil, err
		}
	}
	return data.Open(filepath.Join(dir, "x.npy"), data.Options{OnDisk: true})
}

// Generated is a dataset that generates each batch on demand, in one buffer per pass.
type Generated struct {
	*Synth
	Samples int
	// Size returns the number of samples of the batch with a key; nil means a fixed size.
	Size func(key uint64) int
	// Change changes the samples of a batch. It may be nil.
	Change func(b data.Batch, key uint64)
}

func (g *Generated) Name() string { return "generated" }
func (g *Generated) Len() int     { return g.Samples }

func (g *Generated) Fields() []data.FieldSpec {
	specs := make([]data.FieldSpec, len(g.Synth.Fields))
	for i, f := range g.Synth.Fields {
		specs[i] = data.FieldSpec{Name: f.Name, Shape: slices.Clone(f.Shape), Type: f.DType.String()}
	}
	return specs
}

func (g *Generated) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		whole := g.Batch(p.Batch)
		count := g.Samples / p.Batch
		for i := p.Skip; i < count; i++ {
			b, key := whole, uint64(p.Epoch*count+i)
			if g.Size != nil {
				b = whole.Slice(0, g.Size(key))
			}
			b.Index = i
			g.Fill(b, key)
			if g.Change != nil {
				g.Change(b, key)
			}
			if !yield(b, nil) {
				return
			}
		}
	}
}
