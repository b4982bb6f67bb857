package data

import (
	"fmt"
	"runtime"
	"slices"

	"steadyfit/internal/dtype"
)

// maker makes the values of a column when a batch needs them. Its methods are safe for concurrent use.
type maker interface {
	// make writes the values of a sample to dst, starting at index at. row is its number in its file or folder, from 0,
	// which does not depend on the order of the pass.
	make(w *scratch, dst vector, at, row int) error
	// under returns the column that the values are computed from; nil for files.
	under() *column
	// describe identifies the computation in fingerprints.
	describe() string
}

// fromFiles has the method that all makers of samples from files share.
type fromFiles struct{}

func (fromFiles) under() *column { return nil }

// scratch is the memory of one worker: row numbers, and what makers keep.
type scratch struct {
	rows  []uint32
	state map[any]any
}

// scratch returns the memory of the workers of a pass. It reuses that of an earlier pass, but not its records, since
// the files may have been closed.
func (m *InMemory) scratch(have []*scratch) []*scratch {
	for _, w := range have {
		if last, ok := w.state[m.records].(*lastRecord); ok {
			last.row = -1
		}
	}
	n := 1
	if m.makes() {
		if n = m.workers; n < 1 {
			n = runtime.GOMAXPROCS(0)
		}
	}
	for len(have) < n {
		have = append(have, &scratch{state: make(map[any]any)})
	}
	return have[:n]
}

// Repeats reports whether every epoch has the same order. This is false after Shuffle.
func (m *InMemory) Repeats() bool { return !m.shuffled }

func (m *InMemory) makes() bool {
	return slices.ContainsFunc(m.columns, func(c column) bool { return c.made != nil })
}

// mapField returns the dataset with f applied to the samples of a field. name describes f in messages and fingerprints,
// and shape is that of the result. f must fill dst, and must not change src.
func mapField[D, S element](m *InMemory, field, name string, shape []int, f func(dst []D, src []S)) (*InMemory, error) {
	v, at, err := m.editable(field)
	if err != nil {
		return nil, err
	}
	c := v.columns[at]
	if c.kind != dtype.For[S]() {
		return nil, fmt.Errorf("%s: field %q is %s; %s takes elements of %s: %w",
			m.name, field, describeField(c.kind.Name, c.shape), name, dtype.For[S]().Name, ErrField)
	}
	width, err := elements(shape)
	if err != nil {
		return nil, fmt.Errorf("%s: field %q: %s: %w", m.name, field, name, err)
	}
	v.columns[at] = column{
		name: c.name, shape: slices.Clone(shape), width: width, kind: dtype.For[D](),
		made: &mapped[D, S]{of: c, name: name, width: width, f: f}, file: c.file, origin: c.origin,
	}
	return v, nil
}

type mapped[D, S element] struct {
	of    column
	name  string
	width int
	f     func(dst []D, src []S)
}

func (g *mapped[D, S]) under() *column { return &g.of }

func (g *mapped[D, S]) describe() string { return g.name }

func (g *mapped[D, S]) make(w *scratch, dst vector, at, row int) error {
	src, err := g.source(w, row)
	if err == nil {
		g.f(dst.(vec[D])[at:at+g.width], src)
	}
	return err
}

// source returns the input of the function: stored memory, or a copy in the worker's memory.
func (g *mapped[D, S]) source(w *scratch, row int) ([]S, error) {
	c := &g.of
	from := row * c.width
	if v, ok := c.values.(vec[S]); ok {
		return v[from : from+c.width : from+c.width], nil
	}
	input, ok := w.state[g].(vector)
	if !ok {
		input = makeVector(c.kind, c.width)
		w.state[g] = input
	}
	if c.values != nil {
		return input.(vec[S]), c.values.copyTo(input, 0, from, from+c.width)
	}
	return input.(vec[S]), c.made.make(w, input, 0, row)
}

// Scale returns the dataset with a field of uint8, or of images as float32 (ImageOptions.Float),
// converted linearly to float32, so that 0 becomes low and 255 becomes high. Scale("x", 0, 1) divides
// by 255.
func (m *InMemory) Scale(field string, low, high float32) (*InMemory, error) {
	c, ok := m.column(field)
	if !ok {
		return nil, m.noField(field)
	}
	if low-low != 0 || high-high != 0 {
		return nil, fmt.Errorf("%s: cannot scale field %q to %v ... %v: both limits must be finite", m.name, field, low, high)
	}
	// The conversion to float64 prevents a fused multiply-add, which rounds differently.
	scale := func(v float64) float32 { return float32(float64(low) + float64(v/255*(float64(high)-float64(low)))) }
	name := fmt.Sprintf("scale %v,%v", low, high)
	if c.pixels && c.kind == dtype.For[float32]() {
		return mapField(m, field, name, c.shape, func(dst, src []float32) {
			for i, v := range src {
				dst[i] = scale(float64(v))
			}
		})
	}
	var values [256]float32
	for i := range values {
		values[i] = scale(float64(i))
	}
	return mapField(m, field, name, c.shape, func(dst []float32, src []uint8) {
		for i, v := range src {
			dst[i] = values[v]
		}
	})
}

// stored returns the values of a column. Values on disk are read. A column made on demand is an error.
func (c *column) stored() (vector, error) {
	switch v := c.values.(type) {
	case nil:
		return nil, fmt.Errorf("%s: field %q is made when a batch needs it; this operation needs stored values: %w", c.file,
			c.name, ErrField)
	case vector:
		return v, nil
	default:
		all := makeVector(v.kind(), v.len())
		return all, v.copyTo(all, 0, 0, v.len())
	}
}

// chunkBytes is the approximate size of a chunk, the samples that a worker takes at a time. It is about
// the size of one usual image, and large enough to make the overhead of taking a chunk small.
const chunkBytes = 64 << 10

// chunk returns the number of samples in a chunk. A batch that is large enough has at least four chunks per worker.
func (m *InMemory) chunk(batch, workers int) int {
	if workers == 1 {
		return batch
	}
	bytes := 0
	for i := range m.columns {
		bytes += m.columns[i].width * m.columns[i].kind.Size
	}
	return max(1, min(chunkBytes/max(bytes, 1), batch/(4*workers)))
}
