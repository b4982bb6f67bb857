package data

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"steadyfit/internal/dtype"
)

// InMemory is a dataset whose samples can be read in any order: their values are in memory or
// in a mapped file, or are made when a batch needs them, such as decoded images. It is
// immutable and safe for concurrent use: Shuffle, Split, Take, Select, Rename, Augment and
// Workers return other datasets that share its values.
//
// A pass copies each batch into its own buffers, so a consumer may change a batch in place.
// One set of buffers is kept for the next pass, and batches do not allocate.
type InMemory struct {
	name    string
	columns []column
	// rows lists the samples of this dataset as indices in the columns; nil means all.
	rows []int
	n    int
	// lines has the line number of each stored sample in its text file; nil for other sources.
	lines []int
	// mappings are the mapped files of the columns; derived datasets share them.
	mappings []*mapping
	workers  int // see Workers

	shuffled bool
	seed     uint64

	idle atomic.Pointer[workspace]
}

// column is a field with all stored samples.
type column struct {
	name    string
	shape   []int // shape of one sample
	width   int   // number of elements of one sample
	kind    *dtype.Type
	values  origin // nil if they are made
	made    maker  // nil if they are stored
	file    string // the file of the values, for messages
	origin  string // the column of a table, for messages
	classes []string
}

// New makes a dataset of arrays in memory. It takes ownership of their values without a copy:
// the caller must not change them afterwards.
//
// Every field has the number of samples as its first dimension, which must be the same for all
// fields and at least one. Shapes that do not match the values are ErrFormat, element types
// that Array does not list are ErrUnsupported, and names that are empty or used twice are
// ErrField.
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

// add adds a field with values of a file to a dataset under construction.
func (m *InMemory) add(name string, a array, file string) error {
	if name == "" {
		return fmt.Errorf("%s: field %d has no name: %w", m.name, len(m.columns), ErrField)
	}
	if _, taken := m.column(name); taken {
		return fmt.Errorf("%s: field %q exists twice: %w", m.name, name, ErrField)
	}
	if len(a.shape) == 0 {
		return fmt.Errorf("%s: field %q is a single value; the first dimension of a field must be the number of samples: %w", m.name, name, ErrFormat)
	}
	if a.values.len() == 0 {
		return fmt.Errorf("%s: field %q of shape %v has no values: %w", m.name, name, a.shape, ErrFormat)
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

// Close unmaps the files of the dataset and of all datasets that share them. It waits for
// samples that are being copied; later batches are fs.ErrClosed. A dataset without mapped
// files stays usable. Closing twice is not an error. Without Close, files stay mapped until
// the process ends.
func (m *InMemory) Close() error {
	var err error
	for _, f := range m.mappings {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Name returns a description of the source of the samples.
func (m *InMemory) Name() string { return m.name }

// Len returns the number of samples; at least 1.
func (m *InMemory) Len() int { return m.n }

// Fields describes the samples, in the order of the fields of each batch.
func (m *InMemory) Fields() []FieldSpec {
	specs := make([]FieldSpec, len(m.columns))
	for i, c := range m.columns {
		specs[i] = FieldSpec{Name: c.name, Shape: slices.Clone(c.shape), Type: c.kind.Name}
	}
	return specs
}

// ClassNames returns the names of the classes for a field of class numbers; nil if the file
// has numbers.
func (m *InMemory) ClassNames(field string) []string {
	if c, ok := m.column(field); ok {
		return slices.Clone(c.classes)
	}
	return nil
}

// Batches returns the batches of one pass. See Dataset and Pass. A Pass with a Batch below 1
// or a negative value yields an error.
func (m *InMemory) Batches(p Pass) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if err := p.check(); err != nil {
			yield(Batch{}, fmt.Errorf("%s: %w", m.name, err))
			return
		}
		w, err := m.workspace(min(p.Batch, m.n))
		if err != nil {
			yield(Batch{}, err)
			return
		}
		// One workspace is kept for the next pass: that of the pass that ends last.
		defer m.idle.Store(w)
		order := m.order(&w.order, p.Epoch)
		batches := p.batches(m.n)
		for index := p.Skip; index < batches; index++ {
			if w.slab.kept {
				s, err := newSlab(m, w.slab.samples)
				if err != nil {
					yield(Batch{}, err)
					return
				}
				w.slab = s
			}
			from := index * p.Batch
			to := from + min(p.Batch, m.n-from)
			if err := m.share(w, order, p.Epoch, from, to); err != nil {
				yield(Batch{}, err)
				return
			}
			if !yield(w.slab.batch(0, to-from, index), nil) {
				return
			}
		}
	}
}

// order returns the stored samples in the order of a pass, using room for the list if it needs
// one; nil means the order in which they are stored.
func (m *InMemory) order(room *[]int, epoch int) []int {
	if !m.shuffled {
		return m.rows
	}
	if len(*room) != m.n {
		*room = make([]int, m.n)
	}
	order := *room
	shuffleOrder(order, m.seed, uint64(epoch))
	if m.rows != nil {
		for i, at := range order {
			order[i] = m.rows[at]
		}
	}
	return order
}

// fill writes the samples at positions from ... to-1 of a pass to the slab, starting at its
// sample at. It returns the error of the first sample that fails.
func (m *InMemory) fill(h *hand, s *slab, at int, order []int, epoch, from, to int) error {
	for i := range m.columns {
		c := &m.columns[i]
		var err error
		switch {
		case c.values == nil:
		case order == nil:
			err = c.values.copyTo(s.vectors[i], at*c.width, from*c.width, to*c.width)
		default:
			err = c.values.gatherTo(s.vectors[i], at*c.width, order[from:to], c.width)
		}
		if err != nil {
			return err
		}
	}
	if !m.makes() {
		return nil
	}
	for position := from; position < to; position++ {
		sample := Sample{Row: position, Epoch: epoch}
		if order != nil {
			sample.Row = order[position]
		}
		for i := range m.columns {
			c := &m.columns[i]
			if c.made == nil {
				continue
			}
			if err := c.made.make(h, s.vectors[i], (at+position-from)*c.width, sample); err != nil {
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

// noField returns the error for an unknown field.
func (m *InMemory) noField(name string) error {
	names := make([]string, len(m.columns))
	for i, c := range m.columns {
		names[i] = c.name
	}
	return fmt.Errorf("%s: no field %q; there are %q: %w", m.name, name, names, ErrField)
}

// view returns a copy of the dataset for the caller to change.
func (m *InMemory) view() *InMemory {
	return &InMemory{
		name: m.name, columns: m.columns, rows: m.rows, n: m.n, lines: m.lines,
		mappings: m.mappings, workers: m.workers,
		shuffled: m.shuffled, seed: m.seed,
	}
}

// check returns an error for an invalid pass.
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

// batches returns the number of batches of a pass over n samples, including skipped ones.
func (p Pass) batches(n int) int {
	count := n / p.Batch
	if n%p.Batch != 0 && !p.DropRemainder {
		count++
	}
	return count
}

// workspace is the memory of one pass.
type workspace struct {
	slab  *slab
	order []int
	hands []*hand
}

// workspace returns the workspace of an earlier pass if it has the right size, or a new one.
func (m *InMemory) workspace(samples int) (*workspace, error) {
	if w := m.idle.Swap(nil); w != nil && w.slab.samples == samples {
		return w, nil
	}
	s, err := newSlab(m, samples)
	return &workspace{slab: s, hands: m.hands(nil)}, err
}

// slab has the values of one batch or of several consecutive ones, and the Fields that refer
// to them. Fields are cached, since an interface with a slice costs an allocation. A pass has
// batches of at most two sizes, apart from joined ones.
type slab struct {
	samples int // capacity
	names   []string
	shapes  [][]int
	vectors []vector
	kept    bool         // see Batch.Keep
	turn    atomic.Int64 // number of uses by Prefetched
	shown   map[part][]Field
	handed  []handed // the ring's batches in this slab
}

// part is a range of samples of a slab.
type part struct{ at, size int }

// batch returns size samples, starting at sample at.
func (s *slab) batch(at, size, index int) Batch {
	return Batch{Fields: s.fields(at, size), Size: size, Index: index, slab: s, at: at}
}

// fields returns the fields for size samples, starting at sample at.
func (s *slab) fields(at, size int) []Field {
	if fields, ok := s.shown[part{at, size}]; ok {
		return fields
	}
	fields := make([]Field, len(s.vectors))
	for i, v := range s.vectors {
		width := v.len() / s.samples
		fields[i] = Field{
			Name: s.names[i],
			Array: Array{
				Shape:  append([]int{size}, s.shapes[i]...),
				Values: v.values(at*width, (at+size)*width),
			},
		}
	}
	if s.shown == nil {
		s.shown = map[part][]Field{}
	}
	s.shown[part{at, size}] = fields
	return fields
}

// newSlab makes a slab for samples of a dataset.
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
