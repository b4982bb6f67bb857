package data

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync/atomic"

	"steadyfit/internal/dtype"
)

// InMemory is a dataset with random access to its samples, which are in memory, in a file, or
// made on demand, such as decoded images. It is immutable and safe for concurrent use. Shuffle,
// Split, Drop and Scale return datasets that share its values.
//
// A pass copies samples to buffers that later passes reuse, so a consumer may change a batch in place.
type InMemory struct {
	name    string
	columns []column
	// rows selects the rows of the columns that are in this dataset; nil selects the first n.
	rows []uint32
	n    int
	// lines are the line numbers of all rows in a text file; nil for other sources.
	lines []int
	// parts are the files of records or of a table of typed columns; nil for other sources.
	parts []filePart
	// files are the open files. Derived datasets share them.
	files   []io.Closer
	records *recordSet // nil for other sources
	out     []string   // names of the columns, or of the values of records, that were left out
	workers int        // of a pass that makes samples; 0 means GOMAXPROCS

	shuffled bool
	seed     uint64

	idle rings
}

type column struct {
	name    string
	shape   []int // of one sample
	width   int   // elements of one sample
	kind    *dtype.Type
	values  origin // nil if made is set
	made    maker  // nil if values is set
	pixels  bool   // of decoded images, from 0 to 255
	file    string // source file, for messages
	origin  string // table column, for messages
	classes []string
	columns []string // table columns of the values of one sample
}

// New makes a dataset of arrays in memory. It takes ownership of their values: the caller must not
// change them afterwards.
//
// The first dimension of each field is the number of samples. It must be equal for all fields and
// at least 1. A shape that does not match its values is ErrFormat, an element type that Array does
// not support is ErrUnsupported, and an empty or repeated name is ErrField.
func New(name string, fields ...Field) (*InMemory, error) {
	if len(fields) == 0 {
		return nil, fmt.Errorf("%s: a dataset needs at least one field: %w", name, ErrField)
	}
	m := &InMemory{name: name}
	for _, f := range fields {
		if err := m.addArray(f.Name, f.Array, name); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *InMemory) addArray(name string, a Array, file string) error {
	v, err := arrayVector(a)
	if err != nil {
		return fmt.Errorf("%s: field %q: %w", m.name, name, err)
	}
	return m.add(name, array{a.Shape, v}, file)
}

func (m *InMemory) add(name string, a array, file string) error {
	if name == "" {
		return fmt.Errorf("%s: field %d has no name: %w", m.name, len(m.columns), ErrField)
	}
	if _, taken := m.column(name); taken {
		return fmt.Errorf("%s: field %q exists twice: %w", m.name, name, ErrField)
	}
	if len(a.shape) == 0 {
		return fmt.Errorf("%s: field %q is a single value; the first dimension of a field must be the number of samples: %w",
			m.name, name, ErrFormat)
	}
	if a.values.len() == 0 {
		return fmt.Errorf("%s: field %q of shape %v has no values: %w", m.name, name, a.shape, ErrFormat)
	}
	if err := checkSamples(a.shape[0]); err != nil {
		return fmt.Errorf("%s: field %q: %w", m.name, name, err)
	}
	if len(m.columns) == 0 {
		m.n = a.shape[0]
	} else if a.shape[0] != m.n {
		return fmt.Errorf("%s: field %q has %d samples, but %q has %d; every field needs one entry per sample: %w",
			m.name, name, a.shape[0], m.columns[0].name, m.n, ErrFormat)
	}
	m.columns = append(m.columns, column{
		name:   name,
		shape:  slices.Clone(a.shape[1:]),
		width:  a.values.len() / a.shape[0],
		kind:   a.values.kind(),
		values: a.values,
		file:   file,
	})
	return nil
}

// Close closes the files of the dataset and of all datasets derived from the same source, and removes
// its temporary files. Later batches of values in files are fs.ErrClosed. Closing again has no effect.
// A dataset that is not closed keeps its files until the process ends.
func (m *InMemory) Close() error {
	var err error
	for _, f := range m.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Name describes the source of the samples.
func (m *InMemory) Name() string { return m.name }

// Len returns the number of samples; at least 1.
func (m *InMemory) Len() int { return m.n }

// HeapBytes returns the size of the arrays in the Go heap, without arrays that stay on disk and samples
// that are made on demand. A string counts as 16 bytes plus its text. The index of records counts.
func (m *InMemory) HeapBytes() (sum int64) {
	if m.records != nil {
		sum = int64(len(m.records.records)) * recordBytes
	}
	for _, c := range m.columns {
		if v, ok := c.values.(vector); ok {
			sum += bytesIn(v)
		}
	}
	return sum
}

// Fields describes the samples.
func (m *InMemory) Fields() []FieldSpec {
	specs := make([]FieldSpec, len(m.columns))
	for i, c := range m.columns {
		specs[i] = FieldSpec{
			Name: c.name, Shape: slices.Clone(c.shape), Type: c.kind.Name,
			Image: c.bottom().pixels, Classes: slices.Clone(c.classes), Columns: slices.Clone(c.columns),
		}
	}
	return specs
}

// LeftOut returns the names of the columns of a table, or of the values of records, that Options.Ignore
// or CSVOptions.InputsOnly left out.
func (m *InMemory) LeftOut() []string { return slices.Clone(m.out) }

// Batches returns the batches of one pass. An invalid Pass yields an error.
func (m *InMemory) Batches(p Pass) iter.Seq2[Batch, error] { return m.idle.batches(m, 0, p) }

// order returns the rows in the order of a pass. It reuses the memory of a slice.
func (m *InMemory) order(reused *[]uint32, epoch int) order {
	if !m.shuffled {
		return order{of: m.rows}
	}
	return newOrder(m.n, m.rows, reused, m.seed, uint64(epoch))
}

// fill writes the samples at positions [from, to) of a pass to the slab, starting at index at.
func (m *InMemory) fill(w *scratch, s *slab, at int, order order, from, to int) error {
	rows := order.between(&w.rows, from, to)
	for i := range m.columns {
		c := &m.columns[i]
		if c.values == nil {
			continue
		}
		var err error
		if rows == nil {
			err = c.values.copyTo(s.vectors[i], at*c.width, from*c.width, to*c.width)
		}
		for k, row := range rows {
			err = cmp.Or(err, c.values.copyTo(s.vectors[i], (at+k)*c.width, int(row)*c.width, int(row+1)*c.width))
		}
		if on, ok := c.values.(diskArray); ok {
			err = cmp.Or(err, on.file.unchanged())
		}
		if err != nil {
			return err
		}
	}
	if !m.makes() {
		return nil
	}
	for position := from; position < to; position++ {
		row := position
		if rows != nil {
			row = int(rows[position-from])
		}
		for i := range m.columns {
			c := &m.columns[i]
			if c.made == nil {
				continue
			}
			if err := c.made.make(w, s.vectors[i], (at+position-from)*c.width, row); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *InMemory) column(name string) (column, bool) {
	for _, c := range m.columns {
		if c.name == name {
			return c, true
		}
	}
	return column{}, false
}

func (m *InMemory) noField(name string) error {
	names := make([]string, len(m.columns))
	for i, c := range m.columns {
		names[i] = c.name
	}
	return fmt.Errorf("%s: no field %q; the names are %q: %w", m.name, name, names, ErrField)
}

func (m *InMemory) view() *InMemory {
	return &InMemory{
		name: m.name, columns: m.columns, rows: m.rows, n: m.n, lines: m.lines, parts: m.parts,
		files: m.files, records: m.records, out: m.out, workers: m.workers,
		shuffled: m.shuffled, seed: m.seed,
	}
}

func (p Pass) check() error {
	if p.Batch < 1 {
		return fmt.Errorf("batch size %d: %w", p.Batch, errPass)
	}
	if p.Epoch < 0 || p.Skip < 0 {
		return fmt.Errorf("epoch %d, skip %d: %w", p.Epoch, p.Skip, errPass)
	}
	return nil
}

var errPass = errors.New("a pass needs a batch size of at least 1, and an epoch and a skip of at least 0")

// batches returns the number of batches in a pass over n samples, including skipped batches.
func (p Pass) batches(n int) int {
	count := n / p.Batch
	if n%p.Batch != 0 && !p.DropRemainder {
		count++
	}
	return count
}

// slab contains the values of a batch. It caches their Fields, since storing a slice in an interface allocates.
type slab struct {
	samples int // capacity
	names   []string
	shapes  [][]int
	vectors []vector
	kept    bool            // set by Batch.Keep
	turn    atomic.Int64    // incremented when Prefetched reuses the slab
	shown   map[int][]Field // by size
	reading slabBatch       // the batch in this slab, if a ring uses it
}

func (s *slab) batch(size, index int) Batch {
	return Batch{Fields: s.fields(size), Size: size, Index: index, slab: s, turn: s.turn.Load()}
}

func (s *slab) fields(size int) []Field {
	if fields, ok := s.shown[size]; ok {
		return fields
	}
	fields := make([]Field, len(s.vectors))
	for i, v := range s.vectors {
		width := v.len() / s.samples
		fields[i] = Field{
			Name: s.names[i],
			Array: Array{
				Shape:  append([]int{size}, s.shapes[i]...),
				Values: v.values(0, size*width),
			},
		}
	}
	if s.shown == nil {
		s.shown = map[int][]Field{}
	}
	s.shown[size] = fields
	return fields
}

func newSlab(ds Dataset, samples int) (*slab, error) {
	s := &slab{samples: samples}
	for _, f := range ds.Fields() {
		n, err := elements(append([]int{samples}, f.Shape...))
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", ds.Name(), f.Name, err)
		}
		kind, err := kindOf(f.Type)
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", ds.Name(), f.Name, err)
		}
		s.names = append(s.names, f.Name)
		s.shapes = append(s.shapes, f.Shape)
		s.vectors = append(s.vectors, makeVector(kind, n))
	}
	return s, nil
}
