package data

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"steadyfit/internal/dtype"
)

// Sample identifies a sample of a pass.
type Sample struct {
	// Row is the number of the sample in its file or folder, from 0. It does not depend on the
	// order of the pass.
	Row int
	// Epoch is the epoch of the Pass.
	Epoch int
}

// Random returns random numbers that depend only on the seed, the row and the epoch. Its raw
// output is the same on every machine and with every version of Go.
func (s Sample) Random(seed uint64) *rand.PCG {
	high := mix(mix(seed^sampleStream) + uint64(s.Epoch))
	return rand.NewPCG(high, mix(high+uint64(s.Row)))
}

// sampleStream separates the numbers of Random from those of Shuffle with the same seed.
const sampleStream = 0x5a3d1e5eed

// maker makes the values of a column when a batch needs them. Its methods are safe for
// concurrent use; a hand has the state for one worker.
type maker interface {
	// make writes a sample to dst, starting at element at.
	make(h *hand, dst vector, at int, s Sample) error
	// under returns the column from which the values are made; nil for files.
	under() *column
	// describe returns a text that identifies how the values are made.
	describe() string
	// tame reports whether finite values stay finite.
	tame() bool
}

// hand is the memory of one worker: space for the samples between two functions, and the state
// that makers keep between samples.
type hand struct {
	between map[maker]vector
	kept    map[maker]any
}

// hands returns one hand per worker, starting with the given ones.
func (m *InMemory) hands(have []*hand) []*hand {
	n := 1
	if m.makes() {
		if n = m.workers; n < 1 {
			n = runtime.GOMAXPROCS(0)
		}
	}
	for len(have) < n {
		have = append(have, &hand{between: make(map[maker]vector), kept: make(map[maker]any)})
	}
	return have[:n]
}

// makes reports whether any field is made when a batch needs it.
func (m *InMemory) makes() bool {
	return slices.ContainsFunc(m.columns, func(c column) bool { return c.made != nil })
}

// Workers returns the dataset with n goroutines to make the samples of a pass (decode,
// augment, map). n below 1, the default, means one per core (GOMAXPROCS). The number does not
// change the batches. Stored samples are copied by one goroutine.
func (m *InMemory) Workers(n int) *InMemory {
	v := m.view()
	v.workers = min(max(n, 0), MaxWorkers)
	return v
}

// MaxWorkers is the maximum number of goroutines that Workers sets.
const MaxWorkers = 1024

// Map returns the dataset with a field whose samples are made by f from the samples of the
// existing field. They have the element type D and the given shape; S is the element type of
// the existing field. Scale is an example.
//
// f writes all of dst and must not change src, which may be the dataset's own memory; both are
// valid only during the call. Several goroutines call f at the same time. The result may
// depend only on f's arguments (including random numbers of Sample.Random), since a resumed
// run repeats it. An error ends the pass.
//
// name identifies f in messages and in checkpoints, which compare it: change it when f
// changes.
func Map[D, S element](m *InMemory, field, name string, shape []int, f func(s Sample, dst []D, src []S) error) (*InMemory, error) {
	return mapField(m, field, name, shape, false, f)
}

// mapField implements Map; tame has the meaning of maker.tame.
func mapField[D, S element](m *InMemory, field, name string, shape []int, tame bool, f func(s Sample, dst []D, src []S) error) (*InMemory, error) {
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
	if width == 0 {
		return nil, fmt.Errorf("%s: field %q: %s: shape %v has no values: %w", m.name, field, name, shape, ErrFormat)
	}
	v.columns[at] = column{
		name: c.name, shape: slices.Clone(shape), width: width, kind: dtype.For[D](),
		made: &stage[D, S]{of: c, name: name, width: width, keeps: tame, f: f},
		file: c.file, origin: c.origin,
	}
	return v, nil
}

// stage makes samples from those of another column.
type stage[D, S element] struct {
	of    column
	name  string
	width int
	keeps bool
	f     func(s Sample, dst []D, src []S) error
}

func (g *stage[D, S]) under() *column { return &g.of }

func (g *stage[D, S]) describe() string { return g.name }

func (g *stage[D, S]) tame() bool { return g.keeps }

func (g *stage[D, S]) make(h *hand, dst vector, at int, s Sample) error {
	src, err := g.source(h, s)
	if err != nil {
		return err
	}
	if err := g.f(s, dst.(vec[D])[at:at+g.width:at+g.width], src); err != nil {
		return fmt.Errorf("%s: sample %d: field %q: %s: %w", g.of.file, s.Row, g.of.name, g.name, err)
	}
	return nil
}

// source returns the sample that the stage reads: either in place, or from the worker's
// memory.
func (g *stage[D, S]) source(h *hand, s Sample) ([]S, error) {
	c := &g.of
	from := s.Row * c.width
	if v, ok := c.values.(vec[S]); ok {
		return v[from : from+c.width : from+c.width], nil
	}
	room, ok := h.between[g]
	if !ok {
		room = makeVector(c.kind, c.width)
		h.between[g] = room
	}
	if c.values != nil {
		return room.(vec[S]), c.values.copyTo(room, 0, from, from+c.width)
	}
	return room.(vec[S]), c.made.make(h, room, 0, s)
}

// Scale returns the dataset with a uint8 field converted to float32: 0 becomes low, 255
// becomes high, and other values are interpolated. Scale("x", 0, 1) divides by 255. Call it
// after Augment, which needs uint8.
func (m *InMemory) Scale(field string, low, high float32) (*InMemory, error) {
	c, ok := m.column(field)
	if !ok {
		return nil, m.noField(field)
	}
	if low-low != 0 || high-high != 0 {
		return nil, fmt.Errorf("%s: cannot scale field %q to %v ... %v: both limits must be finite", m.name, field, low, high)
	}
	var values [256]float32
	for i := range values {
		// The conversion prevents a fused multiply-add, which rounds differently.
		values[i] = float32(float64(low) + float64(float64(i)/255*(float64(high)-float64(low))))
	}
	name := fmt.Sprintf("scale %v,%v", low, high)
	return mapField(m, field, name, c.shape, true, func(_ Sample, dst []float32, src []uint8) error {
		for i, v := range src {
			dst[i] = values[v]
		}
		return nil
	})
}

// stored returns the column as a vector. For a mapped file it is a copy; for a column that is
// made on demand it is an error.
func (c *column) stored() (vector, error) {
	switch v := c.values.(type) {
	case nil:
		return nil, fmt.Errorf("%s: field %q is made when a batch needs it; this operation needs stored values: %w", c.file, c.name, ErrField)
	case vector:
		return v, nil
	default:
		all := makeVector(v.kind(), v.len())
		return all, v.copyTo(all, 0, 0, v.len())
	}
}

// chunkBytes is the approximate part of a batch that a worker takes at a time: large enough to
// make taking cheap, and at most one image of usual size.
const chunkBytes = 64 << 10

// chunk returns the number of samples of a batch that a worker takes at a time. If possible, a
// batch has at least four chunks per worker.
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

// share makes all workers write the samples at positions from ... to-1 of a pass to the
// workspace. The workers have ended when it returns.
func (m *InMemory) share(w *workspace, order []int, epoch, from, to int) error {
	n := to - from
	size := m.chunk(n, len(w.hands))
	if size == n {
		return m.fill(w.hands[0], w.slab, 0, order, epoch, from, to)
	}
	var next atomic.Int64
	var group sync.WaitGroup
	var mu sync.Mutex
	failed := failure{at: n}
	for _, h := range w.hands[:min(len(w.hands), n)] {
		group.Go(func() {
			for {
				at := int(next.Add(int64(size))) - size
				if at >= n {
					return
				}
				if err := m.fill(h, w.slab, at, order, epoch, from+at, from+min(at+size, n)); err != nil {
					mu.Lock()
					if at < failed.at {
						failed = failure{at, err}
					}
					mu.Unlock()
					next.Store(int64(n)) // the earlier chunks are already taken
				}
			}
		})
	}
	group.Wait()
	return failed.err
}

// failure is the error of the sample at a position.
type failure struct {
	at  int
	err error
}
