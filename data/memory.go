package data

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
)

// Memory is a dataset whose samples are in memory. It is immutable and safe for
// concurrent use: Shuffle, Split, Take, Select and Rename return others that
// share its values.
//
// A pass copies each batch into buffers of its own. So a consumer may change a
// batch in place without harm to the dataset, and a pass allocates nothing per
// batch. One set of buffers is kept from pass to pass: training for many epochs
// allocates no more than training for one.
type Memory struct {
	name    string
	columns []column
	// rows lists the samples of this dataset in the columns; nil means all.
	rows []int
	n    int
	// lines has the line of each stored sample in the text file that it came
	// from; nil for other sources.
	lines []int

	shuffled bool
	seed     uint64

	idle atomic.Pointer[workspace]
}

// column is a field of all stored samples.
type column struct {
	name    string
	shape   []int // of one sample
	width   int   // elements of one sample
	vector  vector
	file    string // for messages: what the values were read from
	origin  string // for messages: the column of a table, if it was one
	classes []string
}

// New makes a dataset of arrays in memory. It takes ownership of their values,
// without copying: they must not change afterwards.
//
// Every field has the same number of samples, at least one, as its first
// dimension. Shapes that do not fit the values give ErrFormat, element types
// outside of those listed at Array give ErrUnsupported, names that are empty or
// used twice ErrField.
func New(name string, fields ...Field) (*Memory, error) {
	if len(fields) == 0 {
		return nil, fmt.Errorf("%s: a dataset needs at least one field: %w", name, ErrField)
	}
	m := &Memory{name: name}
	for i, f := range fields {
		if f.Name == "" {
			return nil, fmt.Errorf("%s: field %d has no name: %w", name, i, ErrField)
		}
		if slices.ContainsFunc(m.columns, func(c column) bool { return c.name == f.Name }) {
			return nil, fmt.Errorf("%s: field %q is there twice: %w", name, f.Name, ErrField)
		}
		v, err := arrayVector(f.Array)
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", name, f.Name, err)
		}
		if len(f.Shape) == 0 {
			return nil, fmt.Errorf("%s: field %q is a single value; the first dimension of a field counts samples: %w", name, f.Name, ErrFormat)
		}
		if v.len() == 0 {
			return nil, fmt.Errorf("%s: field %q of shape %v has no values: %w", name, f.Name, f.Shape, ErrFormat)
		}
		if i == 0 {
			m.n = f.Shape[0]
		} else if f.Shape[0] != m.n {
			return nil, fmt.Errorf("%s: field %q has %d samples, but %q has %d; every field needs one entry per sample: %w",
				name, f.Name, f.Shape[0], fields[0].Name, m.n, ErrFormat)
		}
		m.columns = append(m.columns, column{
			name:   f.Name,
			shape:  slices.Clone(f.Shape[1:]),
			width:  v.len() / f.Shape[0],
			vector: v,
			file:   name,
		})
	}
	return m, nil
}

// Name says where the samples come from.
func (m *Memory) Name() string { return m.name }

// Len is the number of samples; at least 1.
func (m *Memory) Len() int { return m.n }

// Fields describes the samples, in the order of the fields of each batch.
func (m *Memory) Fields() []FieldSpec {
	specs := make([]FieldSpec, len(m.columns))
	for i, c := range m.columns {
		specs[i] = FieldSpec{Name: c.name, Shape: slices.Clone(c.shape), Type: c.vector.typeName()}
	}
	return specs
}

// ClassNames has the names of the classes that a field's integers stand for, by
// integer; nil if they were integers in the file already.
func (m *Memory) ClassNames(field string) []string {
	if c, ok := m.column(field); ok {
		return slices.Clone(c.classes)
	}
	return nil
}

// Batches walks one pass. See Dataset and Pass; a Pass with a Batch below 1 or
// anything negative yields an error and nothing else.
func (m *Memory) Batches(p Pass) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if err := p.check(); err != nil {
			yield(Batch{}, fmt.Errorf("%s: %w", m.name, err))
			return
		}
		w := m.workspace(min(p.Batch, m.n))
		// Only one workspace waits for the next pass. A second, concurrent pass
		// makes its own, and whichever ends last is kept.
		defer m.idle.Store(w)
		order := m.order(w, p.Epoch)
		batches := p.batches(m.n)
		for index := p.Skip; index < batches; index++ {
			from := index * p.Batch
			to := from + min(p.Batch, m.n-from)
			m.copySamples(w.slab, order, from, to)
			if !yield(Batch{Fields: w.slab.fields(to - from), Size: to - from, Index: index}, nil) {
				return
			}
		}
	}
}

// order lists the stored samples in the order of a pass; nil if that is the
// order in which they are stored.
func (m *Memory) order(w *workspace, epoch int) []int {
	if !m.shuffled {
		return m.rows
	}
	if w.order == nil {
		w.order = make([]int, m.n)
	}
	shuffleOrder(w.order, m.seed, uint64(epoch))
	if m.rows != nil {
		for i, at := range w.order {
			w.order[i] = m.rows[at]
		}
	}
	return w.order
}

// copySamples copies the samples at positions from ... to-1 of the order.
func (m *Memory) copySamples(s *slab, order []int, from, to int) {
	for i, c := range m.columns {
		if order == nil {
			s.vectors[i].copyRange(c.vector, from*c.width, to*c.width)
		} else {
			s.vectors[i].gather(c.vector, order[from:to], c.width)
		}
	}
}

func (m *Memory) column(name string) (column, bool) {
	for _, c := range m.columns {
		if c.name == name {
			return c, true
		}
	}
	return column{}, false
}

// noField is the error for a name that column does not find.
func (m *Memory) noField(name string) error {
	names := make([]string, len(m.columns))
	for i, c := range m.columns {
		names[i] = c.name
	}
	return fmt.Errorf("%s: no field %q; there are %q: %w", m.name, name, names, ErrField)
}

// view is a dataset of the same samples, to be narrowed by the caller.
func (m *Memory) view() *Memory {
	return &Memory{
		name: m.name, columns: m.columns, rows: m.rows, n: m.n, lines: m.lines,
		shuffled: m.shuffled, seed: m.seed,
	}
}

// check reports a pass that cannot be walked.
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

// batches is the number of batches of a pass over n samples, skipped ones
// included.
func (p Pass) batches(n int) int {
	count := n / p.Batch
	if n%p.Batch != 0 && !p.DropRemainder {
		count++
	}
	return count
}

// workspace is what one pass writes to.
type workspace struct {
	slab  *slab
	order []int
}

// workspace returns the one left by an earlier pass, if it fits, or a new one.
func (m *Memory) workspace(samples int) *workspace {
	if w := m.idle.Swap(nil); w != nil && w.slab.samples == samples {
		return w
	}
	s := &slab{samples: samples}
	for _, c := range m.columns {
		s.add(c.name, c.shape, c.vector.same(samples*c.width))
	}
	return &workspace{slab: s}
}

// slab holds the values of one batch, and the Fields that show them. A pass has
// batches of at most two sizes, the full one and the last; the Fields of both
// are kept, since an interface that holds a slice costs an allocation to make.
type slab struct {
	samples int // room for that many
	names   []string
	shapes  [][]int
	vectors []vector
	shown   [2]struct {
		size   int
		fields []Field
	}
}

func (s *slab) add(name string, shape []int, v vector) {
	s.names = append(s.names, name)
	s.shapes = append(s.shapes, shape)
	s.vectors = append(s.vectors, v)
}

// fields shows the first size samples.
func (s *slab) fields(size int) []Field {
	which := 0
	if size != s.samples {
		which = 1
	}
	shown := &s.shown[which]
	if shown.fields != nil && shown.size == size {
		return shown.fields
	}
	fields := make([]Field, len(s.vectors))
	for i, v := range s.vectors {
		width := v.len() / s.samples
		fields[i] = Field{
			Name: s.names[i],
			Array: Array{
				Shape:  append([]int{size}, s.shapes[i]...),
				Values: v.values(size * width),
			},
		}
	}
	shown.size, shown.fields = size, fields
	return fields
}
