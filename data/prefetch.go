package data

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"

	"steadyfit/internal/contract"
)

// Prefetch returns the dataset with up to n batches of each pass read ahead; n is at most
// 16,384, and below 1 it disables reading ahead. The batches and errors are those of ds, in the same order.
//
// The workers of an InMemory write directly to the batches. For any other Dataset, one goroutine
// per pass copies batches.
//
// A pass allocates n+1 batches for itself and later passes. When the
// consumer leaves the loop, the goroutines finish the read in progress and end before the loop ends.
func Prefetch(ds Dataset, n int) *Prefetched {
	return &Prefetched{Dataset: ds, ahead: min(max(n, 0), contract.MaxAhead)}
}

// Prefetched is a dataset whose batches are read ahead. It is made by Prefetch and safe for
// concurrent use. Concurrent passes have separate buffers.
type Prefetched struct {
	Dataset
	ahead int
	idle  rings
}

// rings has the memory for the next pass over a dataset.
type rings struct {
	mu   sync.Mutex // guards next and the rings of all passes
	next *ring
}

// ring is the memory of one pass. The consumer and the goroutines share it.
type ring struct {
	of      *rings
	source  Dataset
	memory  *InMemory // the source; nil if it is not an InMemory
	ahead   int
	samples int     // samples per batch
	slabs   []*slab // all slabs of the pass, one for each batch
	free    []*slab
	queue   []*slabBatch // batches that are ready or being read, in order
	left    bool         // whether the consumer has left the loop
	failed  bool         // whether an error prevents further batches
	running int          // number of goroutines
	// work wakes goroutines that wait for a free slab or a chunk. ready wakes the consumer, which
	// waits for a batch or for the end of the goroutines.
	work, ready sync.Cond

	pass     Pass
	batches  int        // batches of the pass, including skipped batches
	upcoming int        // number of the next batch to begin
	open     *slabBatch // newest batch, while it has chunks to take
	order    order
	reused   []uint32 // memory of order
	workers  []*scratch
}

// slabBatch is a batch in a slab: one that is being read, is ready, or is in use by the consumer.
type slabBatch struct {
	slab    *slab
	size    int
	index   int
	pending int // chunks in progress; the batch is ready at 0
	chunk   int // samples per chunk
	next    int // first sample that no worker has taken
	err     error
	errAt   int // first sample of the chunk that returned err
}

// Ahead returns the number of batches that a pass reads ahead; 0 means none.
func (d *Prefetched) Ahead() int { return d.ahead }

// PassBytes returns the size in bytes of the batches that a pass over an InMemory stores: the current one and those
// that are read ahead. batch is the number of samples of each. A string counts as 16 bytes, since its text is not
// copied. The size is 0 for fields of unknown type.
func (d *Prefetched) PassBytes(batch int) (total int64) {
	samples := min(max(batch, 0), d.Len())
	for _, f := range d.Fields() {
		kind, err := kindOf(f.Type)
		if err != nil {
			return 0
		}
		n, err := elements(append([]int{samples, kind.Size}, f.Shape...))
		if err != nil {
			return 0
		}
		total += int64(n)
	}
	return int64(d.ahead+1) * total
}

// Batches returns the batches of one pass.
func (d *Prefetched) Batches(p Pass) iter.Seq2[Batch, error] {
	if d.ahead == 0 {
		return d.Dataset.Batches(p)
	}
	return d.idle.batches(d.Dataset, d.ahead, p)
}

// batches returns the batches of one pass, of which it reads some ahead.
func (rs *rings) batches(ds Dataset, ahead int, p Pass) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		r, err := rs.begin(ds, ahead, p)
		if err != nil {
			yield(Batch{}, err)
			return
		}
		defer r.leave()
		for {
			ready, err := r.receive()
			if err != nil {
				yield(Batch{}, err)
				return
			}
			if ready == nil {
				return
			}
			if !yield(ready.slab.batch(ready.size, ready.index), nil) {
				return
			}
			r.release(ready)
		}
	}
}

// begin starts a pass with the ring of an earlier pass if its size matches, or with a new ring. It
// allocates all slabs at once, so that the memory of a pass does not depend on the consumer's speed.
func (rs *rings) begin(ds Dataset, ahead int, p Pass) (*ring, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", ds.Name(), err)
	}
	samples := min(p.Batch, ds.Len())
	rs.mu.Lock()
	r := rs.next
	rs.next = nil
	rs.mu.Unlock()
	m, inMemory := ds.(*InMemory)
	if r == nil || r.samples != samples {
		r = &ring{of: rs, source: ds, memory: m, ahead: ahead, samples: samples}
		r.work.L, r.ready.L = &rs.mu, &rs.mu
	}
	for len(r.slabs) <= ahead {
		s, err := newSlab(ds, samples)
		if err != nil {
			return nil, err
		}
		r.slabs = append(r.slabs, s)
		r.free = append(r.free, s)
	}
	r.left, r.failed, r.pass = false, false, p
	r.upcoming, r.batches = p.Skip, math.MaxInt
	if inMemory {
		r.order, r.batches, r.workers = m.order(&r.reused, p.Epoch), p.batches(m.n), m.scratch(r.workers)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if !inMemory {
		r.running = 1
		go r.pull(ds)
		return r, nil
	}
	for _, w := range r.workers {
		r.running++
		go r.fill(w)
	}
	return r, nil
}

// fill is the goroutine of one worker of an InMemory.
func (r *ring) fill(w *scratch) {
	defer r.end()
	for b, at, n := r.take(); b != nil; b, at, n = r.take() {
		from := b.index*r.pass.Batch + at
		r.done(b, at, r.memory.fill(w, b.slab, at, r.order, from, from+n))
	}
}

// pull is the goroutine of a pass over any other dataset.
func (r *ring) pull(ds Dataset) {
	defer r.end()
	for batch, err := range ds.Batches(r.pass) {
		b, _, _ := r.take()
		if b == nil {
			return
		}
		if err == nil {
			b.size, b.index = batch.Size, batch.Index
			if err = b.slab.load(batch); err != nil {
				err = fmt.Errorf("%s: batch %d: %w", r.source.Name(), batch.Index, err)
			}
		}
		r.done(b, 0, err)
		if err != nil {
			return
		}
	}
}

func (r *ring) end() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.running--
	r.ready.Broadcast()
}

// take waits for a chunk to make: n samples of batch b, starting at index at. b is nil if no work
// is left. Goroutines wait only here.
func (r *ring) take() (b *slabBatch, at, n int) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for !r.left {
		if b := r.open; b != nil {
			at := b.next
			b.next = min(at+b.chunk, b.size)
			if b.next == b.size {
				r.open = nil
			}
			return b, at, b.next - at
		}
		if r.failed || r.upcoming >= r.batches {
			return nil, 0, 0
		}
		if len(r.free) == 0 && len(r.slabs) > r.ahead {
			r.work.Wait()
			continue
		}
		if len(r.free) == 0 { // the consumer has kept a slab
			s, _ := newSlab(r.source, r.samples) // which begin has done before
			r.slabs, r.free = append(r.slabs, s), append(r.free, s)
		}
		// The first free slab has been unused for the longest time.
		s := r.free[0]
		r.free = slices.Delete(r.free, 0, 1)
		s.turn.Add(1)
		r.open = r.next(s)
	}
	return nil, 0, 0
}

// next begins the next batch in a slab. The caller holds mu.
func (r *ring) next(s *slab) *slabBatch {
	b := &s.reading
	*b = slabBatch{slab: s, index: r.upcoming, size: r.samples, chunk: r.samples, pending: 1}
	if m := r.memory; m != nil {
		b.size = min(r.pass.Batch, m.n-b.index*r.pass.Batch)
		b.chunk = m.chunk(b.size, len(r.workers))
		b.pending = (b.size + b.chunk - 1) / b.chunk
	}
	r.upcoming++
	r.queue = append(r.queue, b)
	r.work.Broadcast()
	return b
}

// done ends a chunk. The batch keeps the error of its first failed chunk, and is ready after all its chunks have ended.
func (r *ring) done(b *slabBatch, at int, err error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if err != nil && (b.err == nil || at < b.errAt) {
		b.err, b.errAt = err, at
		r.failed = true
		r.work.Broadcast()
	}
	if b.pending--; b.pending == 0 {
		r.ready.Broadcast()
	}
}

func (r *ring) receive() (*slabBatch, error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for {
		if len(r.queue) > 0 && r.queue[0].pending == 0 {
			b := r.queue[0]
			r.queue = slices.Delete(r.queue, 0, 1)
			return b, b.err
		}
		if r.running == 0 {
			return nil, nil
		}
		r.ready.Wait()
	}
}

// release frees the slab of a batch that the consumer has used.
func (r *ring) release(b *slabBatch) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	s := b.slab
	if s.kept {
		r.slabs = slices.DeleteFunc(r.slabs, func(other *slab) bool { return other == s })
	} else {
		r.free = append(r.free, s)
	}
	r.work.Broadcast()
}

// leave ends the pass after its goroutines have ended, and keeps the ring for the next pass.
func (r *ring) leave() {
	rs := r.of
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.left = true
	r.work.Broadcast()
	for r.running > 0 {
		r.ready.Wait()
	}
	clear(r.queue) // so that the array does not reference slabs
	r.queue, r.open = r.queue[:0], nil
	r.slabs = slices.DeleteFunc(r.slabs, func(s *slab) bool { return s.kept })
	r.free = append(r.free[:0], r.slabs...)
	rs.next = r
}

// load copies a batch from a dataset of any implementation. A batch that contradicts the Fields of
// its dataset is an error.
func (s *slab) load(b Batch) error {
	if b.Size < 1 || b.Size > s.samples || len(b.Fields) != len(s.vectors) {
		return fmt.Errorf("%d samples of %d fields, but the dataset declared at most %d samples of %d fields: %w",
			b.Size, len(b.Fields), s.samples, len(s.vectors), ErrFormat)
	}
	for i, f := range b.Fields {
		width := s.vectors[i].len() / s.samples
		if f.Name != s.names[i] || !s.vectors[i].copyValues(f.Values, b.Size*width) {
			return fmt.Errorf("field %q is %T with shape %v, but the dataset declared %s %q with shape %v per sample: %w",
				f.Name, f.Values, f.Shape, s.vectors[i].kind().Name, s.names[i], s.shapes[i], ErrFormat)
		}
	}
	return nil
}
