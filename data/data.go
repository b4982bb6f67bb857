// Package data feeds training loops: it reads datasets from files, checks them, and returns
// them as flat typed batches.
//
// It does not depend on TensorFlow, sessions or native code. It is not a general dataframe: a
// dataset is a fixed set of named fields whose first dimension counts the samples.
//
// A reader (Open, OpenNPZ, OpenCSV, ...) checks a whole file and returns a dataset in memory.
// Split, Take, Select and Shuffle derive datasets that share its values. Prefetch wraps any
// Dataset, and Batches walks one pass. Reading a file takes memory for what the file holds,
// not for what its header claims.
//
// # Samples that are not in memory
//
// An InMemory may also know only where its samples are, or how to make them:
//
//   - OpenImages lists a folder, and decodes an image when a batch needs it.
//   - Options.Map maps the arrays of .npy and .npz files; a batch copies its samples out.
//   - Map, Scale and Augment put a function between a field and the batches.
//
// Images are checked when they are decoded (CheckImages decodes all of them beforehand). Of a
// mapped file, only the header and the size are checked.
//
// Several goroutines, the workers (InMemory.Workers), make samples. Each takes the next few
// samples in the order of the pass and writes them to their places in the batch. A sample
// depends on the seeds, its row in the file and the epoch alone, so the number of workers does
// not change the batches, and Pass.Epoch and Pass.Skip are all that a checkpoint has to store.
// If several samples of a batch fail, the error is that of the first.
//
// Without Prefetch, the workers share each batch, and have ended when the consumer gets it;
// with Prefetch, they work on as many batches as are read ahead.
//
// # Memory
//
// A pass has one buffer, or one more than the batches that are read ahead, which consumers
// borrow (see Batch) and later passes reuse. Each worker has room for one sample per function
// that the sample passes through, and the images that are being decoded take at most
// ImageOptions.DecodeBytes. Only the lists of files and positions grow with the samples.
//
// The goroutines of a pass end when it does: at its end, after an error, and when the consumer
// leaves the loop. Close unmaps files; it waits for the samples that are being copied, and
// later batches are fs.ErrClosed.
package data

import (
	"iter"
	"reflect"
)

// Array is a dense row-major array.
type Array struct {
	// Shape holds the size of each dimension; the first counts the samples.
	Shape []int
	// Values is a flat slice whose length is the product of Shape. It is one of []float32,
	// []float64, []int8, []int16, []int32, []int64, []uint8, []uint16, []uint32, []uint64,
	// []bool, []string.
	Values any
}

// Field is a named array of a batch or of a dataset in memory.
type Field struct {
	Name string
	Array
}

// FieldSpec describes a field of a dataset.
type FieldSpec struct {
	Name string
	// Shape is the shape of one sample; empty for a scalar per sample.
	Shape []int
	// Type is the name of the Go element type: "float32", "uint8", "string", ...
	Type string
}

// Batch is a sequence of samples. Its arrays are valid until the iterator that produced the
// batch advances or stops, unless Keep was called. The consumer may change the elements of
// Values, but not Fields and Shape.
type Batch struct {
	// Fields are in the order of Dataset.Fields. Every field has Size samples.
	Fields []Field
	// Size is the number of samples; the last batch of a pass may be smaller.
	Size int
	// Index is the number of the batch in the pass, from 0, including skipped batches.
	Index int

	slab  *slab // has the samples, starting at its sample at; nil if another dataset made them
	at    int
	joins int   // number of batches from this one to the end of the slab
	turn  int64 // the slab's turn when the batch was made
}

// Borrowable reports whether the values of field i may be used without a copy while the batch
// is valid, and longer after Keep. This is true for batches of an InMemory or a Prefetched
// unless the slice in Values was replaced.
func (b Batch) Borrowable(i int) bool {
	if b.slab == nil || i >= min(len(b.slab.vectors), len(b.Fields)) {
		return false
	}
	v := b.slab.vectors[i]
	return beginsAt(b.Fields[i].Values, v, b.at*(v.len()/b.slab.samples))
}

// Join returns this batch and the next n-1 as one batch if the dataset places them
// contiguously in memory (Prefetched.SetBlock); otherwise ok is false. All of them then stay
// valid until the iterator advances past the last one. The samples of later batches are
// undefined until the iterator reaches them.
func (b Batch) Join(n int) (joined Batch, ok bool) {
	if n < 1 || n > b.joins || !b.borrowable() {
		return Batch{}, false
	}
	joined = b.slab.batch(b.at, n*b.Size, b.Index)
	joined.turn = b.turn
	return joined, true
}

// Stale reports whether a Prefetched reuses, or is about to reuse, the memory of the batch for
// later batches. A batch after Keep is never stale.
func (b Batch) Stale() bool { return b.slab != nil && b.slab.turn.Load() != b.turn }

// borrowable reports whether all fields are Borrowable.
func (b Batch) borrowable() bool {
	for i := range b.Fields {
		if !b.Borrowable(i) {
			return false
		}
	}
	return b.slab != nil && len(b.Fields) == len(b.slab.vectors)
}

// IsPart reports whether the batch is part i, from 0, of a joined batch.
func (b Batch) IsPart(i int, joined Batch) bool {
	return b.slab == joined.slab && b.at == joined.at+i*b.Size && b.at+b.Size <= joined.at+joined.Size && b.borrowable()
}

// Keep transfers the memory of the batch to its borrowers. The dataset uses other memory for
// later batches, and the garbage collector frees this memory together with the block that the
// batch is in (Prefetched.SetBlock). Only the consumer of the pass may call Keep.
func (b Batch) Keep() {
	if b.slab != nil {
		b.slab.kept = true
	}
}

// Field returns the field with a name.
func (b Batch) Field(name string) (Array, bool) {
	for _, f := range b.Fields {
		if f.Name == name {
			return f.Array, true
		}
	}
	return Array{}, false
}

// Slice returns the samples from ... to-1 of the batch, in the same memory. Positions outside
// the batch are limited to it.
func (b Batch) Slice(from, to int) Batch {
	from = min(max(from, 0), b.Size)
	to = min(max(to, from), b.Size)
	part := Batch{Fields: make([]Field, len(b.Fields)), Size: to - from, Index: b.Index}
	for i, f := range b.Fields {
		width := 1
		for _, d := range f.Shape[1:] {
			width *= d
		}
		part.Fields[i] = Field{f.Name, Array{
			Shape:  append([]int{to - from}, f.Shape[1:]...),
			Values: reflect.ValueOf(f.Values).Slice(from*width, to*width).Interface(),
		}}
	}
	return part
}

// Pass describes one pass over a dataset.
type Pass struct {
	// Batch is the number of samples per batch; at least 1.
	Batch int
	// Epoch is the number of the pass, from 0. A shuffled dataset derives the order only from
	// its seed and Epoch, so any pass can be repeated at any time.
	Epoch int
	// Skip is the number of batches at the start to skip without reading them.
	Skip int
	// DropRemainder omits a last batch that is smaller than Batch.
	DropRemainder bool
}

// Dataset is a finite collection of samples that can be read any number of times.
// Implementations are safe for concurrent passes.
type Dataset interface {
	// Name describes the source of the samples, for messages.
	Name() string
	// Len returns the number of samples.
	Len() int
	// Fields describes the samples.
	Fields() []FieldSpec
	// Batches returns the batches of one pass. After an error it yields nothing more.
	Batches(Pass) iter.Seq2[Batch, error]
}
