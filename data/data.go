// Package data reads datasets from files, checks them, and returns flat typed batches for
// training loops. It uses neither TensorFlow nor native code. A dataset is a fixed set of named
// fields whose first dimension counts the samples; there are no other operations on tables.
//
// Open checks a file or folder and returns an InMemory. Split, Drop and Shuffle derive datasets
// that share its values. Prefetch reads batches ahead. Batches iterates over one pass. Values that
// exceed the free memory are ErrTooLarge.
//
// # Samples made on demand
//
// Some datasets make a sample only when a batch needs it:
//
//   - Images in class folders, and images in columns of Parquet and Arrow files.
//   - Records of TFRecord files. Opening such files reads them once, checks them and makes an index.
//   - With Options.OnDisk, samples of .npy and .npz files.
//   - The results of Scale and OneHot.
//
// Several goroutines, the workers, make the samples of a batch. A sample depends only on its row in the
// file, so the number of workers does not change the batches, and a checkpoint needs only Pass.Epoch and
// Pass.Skip. If several samples of a batch fail, the error of the first is returned.
//
// # Memory
//
// A pass without Prefetch has one batch buffer; a pass that reads n batches ahead has n+1. Later
// passes reuse them. Each worker has memory for one sample per function. Decoding takes at most
// 256 MiB. Only the lists of files and row numbers, and the index of records, grow with the dataset.
//
// A pass ends its goroutines before the loop over it ends, however it ends. InMemory.Close closes
// files; later batches fail with fs.ErrClosed.
package data

import (
	"iter"
	"reflect"

	"steadyfit/internal/dtype"
)

// Array is a dense row-major array.
type Array struct {
	// Shape is the size of each dimension. The first dimension counts the samples.
	Shape []int
	// Values is a slice of Shape's product of elements: []float32, []float64, []int8, []int16,
	// []int32, []int64, []uint8, []uint16, []uint32, []uint64, []bool or []string.
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
	// Shape is the shape of one sample; empty for one value per sample.
	Shape []int
	// Type is the name of the Go element type: "float32", "uint8", "string", ...
	Type string
	// Image reports whether the values come from decoded images.
	Image bool
	// Classes[i] is the name of class i of a label; nil if the source has numbers.
	Classes []string
	// Columns are the names of the columns of a table in the order of the values of a sample. In a
	// dataset, they are nil unless the table has names, and the field has several columns or another name, or is the only
	// input of a model, of text.
	Columns []string
}

// Batch is a sequence of samples. Its arrays are valid until the iterator advances or stops, or
// longer after Keep. The consumer may change the elements of Values, but not Fields and Shape.
type Batch struct {
	// Fields are in the order of Dataset.Fields. Every field has Size samples.
	Fields []Field
	// Size is the number of samples; the last batch of a pass may be smaller.
	Size int
	// Index is the number of the batch in the pass, from 0. Skipped batches are counted, too.
	Index int

	slab *slab // memory of the samples; nil for batches of a dataset outside this package
	turn int64 // slab.turn when the batch was made
}

// Borrowable reports whether the values of field i may be used without a copy as long as the
// batch is valid. This is the case for batches of InMemory and Prefetched whose slices were not
// replaced, unless a Prefetched may already overwrite their memory.
func (b Batch) Borrowable(i int) bool {
	if b.slab == nil || i >= min(len(b.slab.vectors), len(b.Fields)) || b.slab.turn.Load() != b.turn {
		return false
	}
	kind, first, n := dtype.Data(b.Fields[i].Values)
	v := b.slab.vectors[i]
	return kind == v.kind() && n > 0 && first == v.element(0)
}

// Keep makes the batch valid for as long as it is referenced: the dataset uses other memory for
// later batches. Only the consumer of the pass may call Keep.
func (b Batch) Keep() {
	if b.slab != nil {
		b.slab.kept = true
	}
}

// Field returns the array of the field with this name.
func (b Batch) Field(name string) (Array, bool) {
	for _, f := range b.Fields {
		if f.Name == name {
			return f.Array, true
		}
	}
	return Array{}, false
}

// Slice returns the samples in [from, to) of the batch, in the same memory. Indices outside the batch are clamped.
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
	// Epoch is the number of the pass, from 0. The order of a shuffled dataset depends only on its
	// seed, its length and Epoch.
	Epoch int
	// Skip is the number of batches to skip at the start. They are not read.
	Skip int
	// DropRemainder omits a last batch that is smaller than Batch.
	DropRemainder bool
}

// Dataset is a finite collection of samples. It can be read repeatedly, and passes may run concurrently.
type Dataset interface {
	// Name describes the source of the samples in messages.
	Name() string
	// Len returns the number of samples.
	Len() int
	// Fields describes the samples.
	Fields() []FieldSpec
	// Batches returns the batches of one pass. An error ends the pass.
	Batches(Pass) iter.Seq2[Batch, error]
}
