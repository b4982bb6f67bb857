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
	// Values is a flat slice of len = product of Shape: one of []float32,
	// []float64, []int8, []int16, []int32, []int64, []uint8, []uint16,
	// []uint32, []uint64, []bool, []string.
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
	// Type is the Go element type's name: "float32", "uint8", "string", ...
	Type string
}

// Batch is a run of samples. Its arrays are valid until the iterator that produced the batch
// advances or stops, unless Keep was called. The elements of Values may be changed meanwhile;
// Fields and Shape may not.
type Batch struct {
	// Fields are in the order of Dataset.Fields. Every field has Size samples.
	Fields []Field
	// Size is the number of samples; the last batch of a pass may be smaller.
	Size int
	// Index counts batches in the pass from 0, skipped ones included.
	Index int

	slab  *slab // holds the samples, from its sample at on; nil if another dataset made them
	at    int
	joins int   // the batches from this one to the end of the slab
	turn  int64 // of the slab
}

// Borrowable reports whether another owner may refer to the values of field i without a copy
// while the batch is valid, and after Keep for longer. Batches of an InMemory or a Prefetched
// are, unless the slice in Values was replaced.
func (b Batch) Borrowable(i int) bool {
	if b.slab == nil || i >= min(len(b.slab.vectors), len(b.Fields)) {
		return false
	}
	v := b.slab.vectors[i]
	return beginsAt(b.Fields[i].Values, v, b.at*(v.len()/b.slab.samples))
}

// Join returns this batch and the next n-1 as one, if the dataset places them one after the
// other in memory (Prefetched.SetBlock); otherwise ok is false. All of them then stay valid
// until the iterator advances past the last one. Samples of a batch that has not come yet are
// undefined until it does.
func (b Batch) Join(n int) (joined Batch, ok bool) {
	if n < 1 || n > b.joins || !b.borrowable() {
		return Batch{}, false
	}
	joined = b.slab.batch(b.at, n*b.Size, b.Index)
	joined.turn = b.turn
	return joined, true
}

// Stale reports whether a Prefetched reuses, or is about to reuse, the memory of the batch
// for later ones. A batch that was kept is never stale.
func (b Batch) Stale() bool { return b.slab != nil && b.slab.turn.Load() != b.turn }

// borrowable reports whether all fields are as the dataset made them.
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

// Keep gives the memory of the batch to its borrowers: the dataset uses other memory for
// later batches, and the garbage collector frees this, with the block that the batch is in
// (Prefetched.SetBlock). Only the consumer of the pass may call it.
func (b Batch) Keep() {
	if b.slab != nil {
		b.slab.kept = true
	}
}

// Field returns the field of that name.
func (b Batch) Field(name string) (Array, bool) {
	for _, f := range b.Fields {
		if f.Name == name {
			return f.Array, true
		}
	}
	return Array{}, false
}

// Slice returns the samples from ... to-1 of the batch, in the same memory. Positions outside the
// batch are moved to its ends.
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

// Pass says how to walk a dataset once.
type Pass struct {
	// Batch is the number of samples per batch; at least 1.
	Batch int
	// Epoch numbers the pass from 0. A shuffled dataset derives the order from
	// its seed and Epoch alone, so any pass can be repeated at any time.
	Epoch int
	// Skip leaves out that many batches at the start without reading them.
	Skip int
	// DropRemainder leaves out a last batch smaller than Batch.
	DropRemainder bool
}

// Dataset is a finite collection of samples that can be walked any number of
// times. Implementations are safe for concurrent passes.
type Dataset interface {
	// Name says where the samples come from, for messages.
	Name() string
	// Len is the number of samples.
	Len() int
	// Fields describes the samples.
	Fields() []FieldSpec
	// Batches walks one pass. After an error it yields nothing more.
	Batches(Pass) iter.Seq2[Batch, error]
}
