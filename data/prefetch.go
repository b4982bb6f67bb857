package data

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
)

// Prefetch returns the dataset with up to n batches of each pass read ahead while the consumer
// works on an earlier one; n is at most MaxAhead. Order, content and errors are those of ds;
// an error comes after the batches before it. With n below 1, nothing is read ahead. SetAhead
// changes n later.
//
// The workers of an InMemory (InMemory.Workers) write directly to the batches that the
// consumer gets. Batches of any other Dataset are copied by one goroutine per pass.
//
// A pass has n+1 batches (whole blocks with SetBlock) in addition to the memory of ds and its
// workers, and leaves them to the next pass. When the consumer leaves the loop, the goroutines
// first finish what they are reading, a few samples or a batch of another Dataset, and end
// before the loop does.
func Prefetch(ds Dataset, n int) *Prefetched {
	return &Prefetched{ds: ds, ahead: min(max(n, 0), MaxAhead)}
}

// MaxAhead is the maximum number of batches that Prefetch reads ahead.
const MaxAhead = 1 << 14

const (
	// aheadBytes is the size of the batches that AheadFor reads ahead, unless this is below
	// leastAhead or above mostAhead batches.
	aheadBytes            = 4 << 20
	leastAhead, mostAhead = 2, 64
	// fewAhead is the number of batches up to which release wakes goroutines for each batch.
	fewAhead = 8
)

// AheadFor returns how many batches of that many samples to read ahead: 4 MiB of them, but at
// least 2 and at most 64. Passing a batch and waking its consumer takes some microseconds, as
// long as a short step; with more batches it is less frequent.
func AheadFor(ds Dataset, batch int) int {
	bytes := max(Prefetch(ds, 0).BatchBytes(batch), 1)
	return int(min(max(aheadBytes/bytes, leastAhead), mostAhead))
}

// Prefetched is a dataset whose batches are read ahead; Prefetch makes it. It is safe for
// concurrent use. Concurrent passes have separate buffers.
type Prefetched struct {
	ds Dataset

	// mu guards the fields below and every ring. It is not held while a batch is read or a
	// buffer is made, so SetAhead never waits for one.
	mu    sync.Mutex
	ahead int
	block int
	rings []*ring // of the passes in progress
	idle  *ring   // left by a pass for the next one
}

// ring is the memory of one pass, shared by its consumer and its goroutines.
type ring struct {
	of      *Prefetched
	memory  *InMemory // the dataset, if it is one
	samples int       // samples of a batch
	block   int       // batches in a slab
	slabs   []*slab   // all slabs of the pass
	making  int       // number of slabs being made, not in slabs
	free    []*slab
	queue   []*handed // batches that are ready or being made, in order
	left    bool      // the consumer has left the loop
	failed  bool      // no more batches are begun
	err     error     // error of making a slab; it comes after the batches in queue
	running int       // number of goroutines
	// work wakes goroutines that wait for a free slab or a chunk. ready wakes the consumer
	// that waits for a batch or for the end of the goroutines.
	work, ready sync.Cond

	pass     Pass
	batches  int     // batches of the pass, including skipped ones
	upcoming int     // the batch to begin next
	current  *slab   // slab of the batch begun last
	open     *handed // the batch with chunks to take; nil if there is none
	order    []int   // order of the stored samples; nil is as they are stored
	room     []int   // memory for order
	hands    []*hand
}

// handed is a batch in a slab.
type handed struct {
	slab    *slab
	at      int // index of its first sample in the slab
	size    int
	index   int
	last    bool // the last batch of the slab
	pending int  // chunks that are not done; the batch is ready at 0
	chunk   int  // samples of a chunk
	next    int  // the first sample that is not taken
	err     error
	errAt   int // the first sample of the chunk that returned err
}

// Name returns a description of the source of the samples.
func (d *Prefetched) Name() string { return d.ds.Name() }

// Len returns the number of samples.
func (d *Prefetched) Len() int { return d.ds.Len() }

// Fields describes the samples.
func (d *Prefetched) Fields() []FieldSpec { return d.ds.Fields() }

// Source returns the underlying dataset.
func (d *Prefetched) Source() Dataset { return d.ds }

// Ahead returns the number of batches that a pass reads ahead; 0 means none.
func (d *Prefetched) Ahead() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ahead
}

// SetBlock makes later passes over an InMemory place up to n consecutive batches contiguously
// in memory, so that they can be joined (Batch.Join). A pass then has whole blocks: enough for
// the batches that are read ahead and the one in use by the consumer, and at least two. A
// block is free once the consumer is done with all of it. With n below 2, the default, each
// batch has separate memory.
func (d *Prefetched) SetBlock(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.block = max(n, 1)
}

// SetAhead changes how many batches are read ahead, also for passes in progress; n below 1
// means 0. It never waits for a batch, and may be called inside the loop over the batches.
//
// Lowering the number loses no batch: free buffers are dropped at once, the others when the
// consumer is done with them. At 0, a pass in progress keeps one buffer (a block, with
// SetBlock), which is filled when the consumer is done with the batch in it. A pass that began
// at 0 has no goroutine and does not get one.
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

// BatchBytes returns the size of one batch of that many samples. A string counts as 16 bytes,
// since its text is not copied. A pass that reads n batches ahead has n+1 of them (with
// SetBlock, whole blocks), and none if n is 0. The result is 0 for fields that cannot be read.
func (d *Prefetched) BatchBytes(batch int) int64 {
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

// Batches returns the batches of one pass. See Dataset and Pass.
func (d *Prefetched) Batches(p Pass) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if d.Ahead() == 0 {
			d.ds.Batches(p)(yield)
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

// begin starts a pass in the ring left by an earlier pass, if it has the right size, or in a
// new one. It makes all slabs at once, so that the memory of a pass does not depend on how
// slow its consumer is.
func (d *Prefetched) begin(p Pass) (*ring, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name(), err)
	}
	samples := min(p.Batch, d.Len())
	d.mu.Lock()
	r, ahead, block := d.idle, d.ahead, d.block
	d.idle = nil
	d.mu.Unlock()
	m, inMemory := d.ds.(*InMemory)
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
		go r.pull(d.ds)
		return r, nil
	}
	for _, h := range r.hands {
		r.running++
		go r.fill(h)
	}
	return r, nil
}

// most returns the maximum number of slabs of a pass that reads that many batches ahead.
func (r *ring) most(ahead int) int {
	if r.block == 1 {
		return ahead + 1
	}
	return max((ahead+r.block)/r.block, min(ahead, 1)+1)
}

// joins returns the number of batches from h to the end of its slab.
func (r *ring) joins(h *handed) int {
	return min(r.block-h.at/r.samples, r.of.Len()/r.pass.Batch-h.index)
}

// newSlab makes a slab for the batches of a ring.
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

// end ends a goroutine.
func (r *ring) end() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.running--
	r.ready.Broadcast()
}

// take waits for a chunk: n samples of a batch, starting at its sample at. It is the only
// place where goroutines wait. The batch is nil if no work is left.
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
			// This is the slab that has been free for the longest time.
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

// done ends a chunk. If several chunks failed, the first one in the batch counts. All chunks
// before a failed one were taken as well, and the batch waits for all of them.
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

// waitForSlab makes a slab if the pass may have more, and waits otherwise. The caller holds
// mu; waitForSlab unlocks it in the meantime.
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

// receive waits until the next batch is ready. It returns nil at the end, with an error if
// there was one.
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

// release frees the slab of a batch that the consumer is done with. If more than fewAhead
// batches are read ahead, it wakes waiting goroutines only once half of the slabs are free.
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

// leave ends the pass: it waits for the goroutines to end, and keeps the ring.
func (r *ring) leave() {
	d := r.of
	d.mu.Lock()
	defer d.mu.Unlock()
	r.left = true
	r.work.Broadcast()
	for r.running > 0 {
		r.ready.Wait()
	}
	clear(r.queue) // what it points to keeps slabs in memory
	r.queue, r.open, r.current = r.queue[:0], nil, nil
	r.slabs = slices.DeleteFunc(r.slabs, func(s *slab) bool { return s.kept })
	r.free = append(r.free[:0], r.slabs...)
	d.rings = slices.DeleteFunc(d.rings, func(other *ring) bool { return other == r })
	r.keep()
}

// keep leaves the ring, whose slabs are all free, to the next pass. The caller holds mu.
func (r *ring) keep() {
	if r.of.ahead == 0 {
		r.of.idle = nil
		return
	}
	r.trim()
	r.of.idle = r
}

// trim drops free slabs while the pass has too many. The caller holds mu.
func (r *ring) trim() {
	for len(r.free) > 0 && len(r.slabs) > r.most(r.of.ahead) {
		last := len(r.free) - 1
		s := r.free[last]
		r.free = slices.Delete(r.free, last, last+1)
		r.forget(s)
	}
}

// forget drops a slab that is not free. The caller holds mu.
func (r *ring) forget(s *slab) {
	r.slabs = slices.DeleteFunc(r.slabs, func(other *slab) bool { return other == s })
}

// load copies a batch of a dataset that may be from another package. A batch that does not
// match the Fields of its dataset is an error.
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
