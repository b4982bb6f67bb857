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
// 16,384, and below 1 it disables reading ahead. SetAhead changes n later. The batches and errors are those
// of ds, in the same order.
//
// The workers of an InMemory write directly to the batches. For any other Dataset, one goroutine
// per pass copies batches.
//
// A pass allocates n+1 batches (whole blocks with SetBlock) for itself and later passes. When the
// consumer leaves the loop, the goroutines finish the read in progress and end before the loop ends.
func Prefetch(ds Dataset, n int) *Prefetched {
	return &Prefetched{Dataset: ds, ahead: min(max(n, 0), contract.MaxAhead)}
}

// fewAhead is the maximum number of batches ahead for which release wakes a goroutine at every batch.
const fewAhead = 8

// Prefetched is a dataset whose batches are read ahead. It is made by Prefetch and safe for
// concurrent use. Concurrent passes have separate buffers.
type Prefetched struct {
	Dataset

	// mu guards the fields below and all rings. It is not held during reading and allocation, so
	// SetAhead does not wait for them.
	mu    sync.Mutex
	ahead int
	block int
	rings []*ring // of passes in progress
	idle  *ring   // for the next pass
}

// ring is the memory of one pass. The consumer and the goroutines share it.
type ring struct {
	of      *Prefetched
	memory  *InMemory // the dataset; nil if it is not an InMemory
	samples int       // samples per batch
	block   int       // batches per slab
	slabs   []*slab   // all slabs of the pass
	making  int       // number of slabs being allocated, not yet in slabs
	free    []*slab
	queue   []*handed // batches that are ready or being read, in order
	left    bool      // whether the consumer has left the loop
	failed  bool      // whether an error prevents further batches
	err     error     // error of allocating a slab, returned after the batches in queue
	running int       // number of goroutines
	// work wakes goroutines that wait for a free slab or a chunk. ready wakes the consumer, which
	// waits for a batch or for the end of the goroutines.
	work, ready sync.Cond

	pass     Pass
	batches  int     // batches of the pass, including skipped batches
	upcoming int     // number of the next batch to begin
	current  *slab   // slab of the newest batch
	open     *handed // newest batch, while it has chunks to take
	order    order
	room     []uint32 // memory for order
	hands    []*hand
}

// handed is a batch in a slab: one that is being read, is ready, or is in use by the consumer.
type handed struct {
	slab    *slab
	at      int // index of the first sample in the slab
	size    int
	index   int
	last    bool // whether it is the last batch of the slab
	pending int  // chunks in progress; the batch is ready at 0
	chunk   int  // samples per chunk
	next    int  // first sample that no worker has taken
	err     error
	errAt   int // first sample of the chunk that returned err
}

// Ahead returns the number of batches that a pass reads ahead; 0 means none.
func (d *Prefetched) Ahead() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ahead
}

// SetBlock makes later passes over an InMemory store n consecutive batches contiguously, for
// Batch.Join. n below 2, the default, means no blocks. A pass then allocates whole blocks: at least
// two, and enough for the current batch and the batches ahead. A block is reused after the consumer
// has used all its batches.
func (d *Prefetched) SetBlock(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.block = max(n, 1)
}

// SetAhead changes how many batches are read ahead, also for passes in progress; n below 1 means 0.
// It does not wait, and may be called inside the loop over the batches.
//
// A lower n loses no batch: free buffers are dropped at once, and the others after their use. At 0,
// a pass in progress keeps one buffer (one block with SetBlock). A pass that began at 0 never reads
// ahead.
func (d *Prefetched) SetAhead(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ahead = max(n, 0)
	for _, r := range d.rings {
		r.trim()
		r.work.Broadcast()
	}
	if d.idle != nil {
		d.idle.keep()
	}
}

// batchBytes returns the size in bytes of a batch with batch samples; 0 if a field has an unknown type.
func (d *Prefetched) batchBytes(batch int) int64 {
	samples := min(max(batch, 0), d.Len())
	var total int64
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
	return total
}

// PassBytes returns the size in bytes of the batches that a pass over an InMemory stores: the
// current one and those that are read ahead. batch is the number of samples of each. A string counts as
// 16 bytes, since its text is not copied. The size is 0 for fields of unknown type.
func (d *Prefetched) PassBytes(batch int) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := ring{block: 1}
	if d.ahead > 0 && batch > 0 {
		r.block = max(min(d.block, d.Len()/batch), 1)
	}
	return int64(r.most(d.ahead)*r.block) * d.batchBytes(batch)
}

// Batches returns the batches of one pass.
func (d *Prefetched) Batches(p Pass) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if d.Ahead() == 0 {
			d.Dataset.Batches(p)(yield)
			return
		}
		r, err := d.begin(p)
		if err != nil {
			yield(Batch{}, err)
			return
		}
		defer r.leave()
		for {
			h, err := r.receive()
			if err != nil {
				yield(Batch{}, err)
				return
			}
			if h == nil {
				return
			}
			b := h.slab.batch(h.at, h.size, h.index)
			b.joins, b.turn = r.joins(h), h.slab.turn.Load()
			if !yield(b, nil) {
				return
			}
			r.release(h)
		}
	}
}

// begin starts a pass with the ring of an earlier pass if its size matches, or with a new ring. It
// allocates all slabs at once, so that the memory of a pass does not depend on the consumer's speed.
func (d *Prefetched) begin(p Pass) (*ring, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name(), err)
	}
	samples := min(p.Batch, d.Len())
	d.mu.Lock()
	r, ahead, block := d.idle, d.ahead, d.block
	d.idle = nil
	d.mu.Unlock()
	m, inMemory := d.Dataset.(*InMemory)
	if !inMemory {
		block = 1
	}
	block = max(min(block, p.batches(d.Len())), 1)
	if r == nil || r.samples != samples || r.block != block {
		r = &ring{of: d, memory: m, samples: samples, block: block}
		r.work.L, r.ready.L = &d.mu, &d.mu
	}
	for len(r.slabs) < r.most(ahead) {
		s, err := d.newSlab(r)
		if err != nil {
			return nil, err
		}
		r.slabs = append(r.slabs, s)
		r.free = append(r.free, s)
	}
	r.left, r.failed, r.err, r.pass, r.current = false, false, nil, p, nil
	r.upcoming, r.batches = p.Skip, math.MaxInt
	if inMemory {
		r.order, r.batches, r.hands = m.order(&r.room, p.Epoch), p.batches(m.n), m.hands(r.hands)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rings = append(d.rings, r)
	r.trim()
	if !inMemory {
		r.running = 1
		go r.pull(d.Dataset)
		return r, nil
	}
	for _, h := range r.hands {
		r.running++
		go r.fill(h)
	}
	return r, nil
}

func (r *ring) most(ahead int) int {
	return max((ahead+r.block)/r.block, min(ahead, 1)+1)
}

func (r *ring) joins(h *handed) int {
	return min(r.block-h.at/r.samples, r.of.Len()/r.pass.Batch-h.index)
}

func (d *Prefetched) newSlab(r *ring) (*slab, error) {
	s, err := newSlab(d, r.samples*r.block)
	if err == nil {
		s.handed = make([]handed, r.block)
	}
	return s, err
}

// fill is the goroutine of one worker of an InMemory.
func (r *ring) fill(h *hand) {
	defer r.end()
	for b, at, n := r.take(); b != nil; b, at, n = r.take() {
		from := b.index*r.pass.Batch + at
		r.done(b, at, r.memory.fill(h, b.slab, b.at+at, r.order, r.pass.Epoch, from, from+n))
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
				err = fmt.Errorf("%s: batch %d: %w", r.of.Name(), batch.Index, err)
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
func (r *ring) take() (b *handed, at, n int) {
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
		if (r.upcoming-r.pass.Skip)%r.block == 0 {
			if len(r.free) == 0 {
				r.waitForSlab()
				continue
			}
			// The first free slab has been unused for the longest time.
			r.current = r.free[0]
			r.free = slices.Delete(r.free, 0, 1)
			r.current.turn.Add(1)
		}
		r.open = r.next()
	}
	return nil, 0, 0
}

// next begins the next batch. The caller holds mu.
func (r *ring) next() *handed {
	place := (r.upcoming - r.pass.Skip) % r.block
	b := &r.current.handed[place]
	*b = handed{
		slab: r.current, at: place * r.samples, index: r.upcoming, last: place == r.block-1,
		size: r.samples, chunk: r.samples, pending: 1,
	}
	if m := r.memory; m != nil {
		b.size = min(r.pass.Batch, m.n-b.index*r.pass.Batch)
		b.chunk = m.chunk(b.size, len(r.hands))
		b.pending = (b.size + b.chunk - 1) / b.chunk
	}
	r.upcoming++
	r.queue = append(r.queue, b)
	r.work.Broadcast()
	return b
}

// done ends a chunk. The batch keeps the error of its first failed chunk, and is ready after all its
// chunks have ended.
func (r *ring) done(b *handed, at int, err error) {
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

// waitForSlab allocates a slab if the pass may have more, or waits for a free slab. The caller holds
// mu, which waitForSlab releases while it allocates.
func (r *ring) waitForSlab() {
	if len(r.slabs)+r.making >= r.most(r.of.ahead) {
		r.work.Wait()
		return
	}
	r.making++
	r.of.mu.Unlock()
	s, err := r.of.newSlab(r)
	r.of.mu.Lock()
	r.making--
	if err != nil {
		r.failed, r.err = true, err
	} else {
		r.slabs = append(r.slabs, s)
		r.free = append(r.free, s)
	}
	r.work.Broadcast()
}

func (r *ring) receive() (*handed, error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for {
		if len(r.queue) > 0 && r.queue[0].pending == 0 {
			h := r.queue[0]
			r.queue = slices.Delete(r.queue, 0, 1)
			return h, h.err
		}
		if r.running == 0 {
			return nil, r.err
		}
		r.ready.Wait()
	}
}

// release frees the slab of h after the consumer has used h, if h is the last batch in the slab. With
// more than fewAhead batches ahead, it wakes goroutines only when half of the slabs are free.
func (r *ring) release(h *handed) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	s := h.slab
	switch {
	case !h.last:
		return
	case s.kept:
		r.forget(s)
	default:
		r.free = append(r.free, s)
	}
	r.trim()
	if most := len(r.slabs); s.kept || most <= fewAhead+1 || len(r.free) >= most/2 {
		r.work.Broadcast()
	}
}

// leave ends the pass after its goroutines have ended, and keeps the ring for the next pass.
func (r *ring) leave() {
	d := r.of
	d.mu.Lock()
	defer d.mu.Unlock()
	r.left = true
	r.work.Broadcast()
	for r.running > 0 {
		r.ready.Wait()
	}
	clear(r.queue) // so that the array does not reference slabs
	r.queue, r.open, r.current = r.queue[:0], nil, nil
	r.slabs = slices.DeleteFunc(r.slabs, func(s *slab) bool { return s.kept })
	r.free = append(r.free[:0], r.slabs...)
	d.rings = slices.DeleteFunc(d.rings, func(other *ring) bool { return other == r })
	r.keep()
}

// keep makes the ring available to the next pass. All slabs are free, and the caller holds mu.
func (r *ring) keep() {
	if r.of.ahead == 0 {
		r.of.idle = nil
		return
	}
	r.trim()
	r.of.idle = r
}

// trim drops free slabs that the pass no longer needs. The caller holds mu.
func (r *ring) trim() {
	for len(r.free) > 0 && len(r.slabs) > r.most(r.of.ahead) {
		last := len(r.free) - 1
		s := r.free[last]
		r.free = slices.Delete(r.free, last, last+1)
		r.forget(s)
	}
}

// forget removes a slab, which is not in r.free, from r.slabs. The caller holds mu.
func (r *ring) forget(s *slab) {
	r.slabs = slices.DeleteFunc(r.slabs, func(other *slab) bool { return other == s })
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
