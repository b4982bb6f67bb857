package data

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
)

// Prefetch returns the dataset with up to n batches of each pass read ahead while
// the consumer works on an earlier one. Order, content and errors are those of ds;
// an error comes after the batches before it. With n below 1 nothing is read ahead:
// the batches are those of ds itself, not copies. SetAhead changes n later.
//
// A InMemory is read by its workers (InMemory.Workers), which write to the batches
// that the consumer gets, and of which each goes on with the next batch while
// others are still at the one before. Batches of any other Dataset are copied, by
// one goroutine per pass.
//
// InMemory is bounded: a pass holds n+1 batches (n ready or being made, one with the
// consumer; with SetBlock, whole blocks) besides what ds or its workers need. They are kept
// for the next pass.
//
// When the consumer leaves the loop, the goroutines end before the loop does, as
// soon as they are done with what they are reading: a few samples, or a batch of
// another Dataset.
//
// n is at most MaxAhead.
func Prefetch(ds Dataset, n int) *Prefetched {
	return &Prefetched{ds: ds, ahead: min(max(n, 0), MaxAhead)}
}

// MaxAhead is the most batches that Prefetch reads ahead.
const MaxAhead = 1 << 14

const (
	// aheadBytes is the most that the batches take that AheadFor would have read ahead,
	// unless they are leastAhead. fewAhead is for release.
	aheadBytes            = 4 << 20
	leastAhead, mostAhead = 2, 64
	fewAhead              = 8
)

// AheadFor is how many batches of that many samples are worth reading ahead: as many as
// take 4 MiB, but at least 2 and at most 64. To hand over a batch, and to wake who waits for
// it, takes some microseconds, as long as a short step; the fewer batches there is room for,
// the more often that is.
func AheadFor(ds Dataset, batch int) int {
	bytes := max(Prefetch(ds, 0).BatchBytes(batch), 1)
	return int(min(max(aheadBytes/bytes, leastAhead), mostAhead))
}

// Prefetched is a dataset whose batches are read ahead; Prefetch makes it. It is
// safe for concurrent use. Concurrent passes have buffers of their own.
type Prefetched struct {
	ds Dataset

	// mu guards what follows and every ring. No batch is read or copied and no
	// buffer made under it, so that SetAhead never waits for one.
	mu    sync.Mutex
	ahead int
	block int
	rings []*ring // of the passes under way
	idle  *ring   // left by a pass for the next one
}

// ring is the memory of one pass, and where its consumer and its goroutines hand
// that to each other.
type ring struct {
	of      *Prefetched
	samples int     // of a batch
	block   int     // batches in a slab
	slabs   []*slab // all that the pass has
	making  int     // slabs that are being made, beside these
	free    []*slab
	queue   []*handed // batches that are ready or being made, in order
	spare   []*handed
	left    bool // the consumer takes nothing more
	running int  // goroutines
	// work is for goroutines that wait for a free slab or for something to do, ready for
	// the consumer, who waits for a batch or for the end of the goroutines.
	work, ready sync.Cond
	pass        Pass

	// The workers of a InMemory share what follows.
	order    []int // of the stored samples; nil is as they are stored
	room     []int // for order
	hands    []*hand
	upcoming int     // the batch to begin next
	current  *slab   // the one that the batch before it went to
	batches  int     // those of the pass
	open     *handed // the batch of which there are chunks to take; nil if there is none
	failed   bool    // no batch is begun any more
}

// handed is a batch in a slab, or an error.
type handed struct {
	slab  *slab
	at    int // in the slab, in samples
	size  int
	index int
	last  bool // of the slab
	err   error
	// pending is the number of chunks that are not done; the batch is ready at 0.
	pending int
	chunk   int // samples of a chunk
	next    int // the first sample that nobody has taken
	errAt   int // the sample at which the chunk of err begins
}

// Name says where the samples come from.
func (d *Prefetched) Name() string { return d.ds.Name() }

// Len is the number of samples.
func (d *Prefetched) Len() int { return d.ds.Len() }

// Fields describes the samples.
func (d *Prefetched) Fields() []FieldSpec { return d.ds.Fields() }

// Source is the dataset that is read ahead.
func (d *Prefetched) Source() Dataset { return d.ds }

// Ahead is the number of batches that a pass reads ahead; 0 for none.
func (d *Prefetched) Ahead() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ahead
}

// SetBlock has the passes over a InMemory that begin later put up to n batches in a row one
// after the other into the same memory, so that they can be joined (Batch.Join). A pass then
// holds whole blocks: as many as have room for the batches that are read ahead and the one
// with the consumer, but at least two, and each is free when the consumer is done with
// all of it. Below 2 each batch has memory of its own, as it has at first.
func (d *Prefetched) SetBlock(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.block = max(n, 1)
}

// SetAhead changes how many batches are read ahead from now on, in passes under
// way, too. Below 1 is 0. It never waits for a batch, and may be called inside of
// the loop over the batches as well as by others.
//
// Lowering loses no batch: buffers that are free are let go at once, the others as
// the consumer is done with the batches in them. The garbage collector frees them
// later. Raising makes buffers as the goroutine has use for them.
//
// With SetBlock, a buffer is one of a block. A pass under way goes on with one buffer at
// 0, in which a batch, or a block, is put when the consumer is done with the one before. A pass that began at 0 has no goroutine
// and gets none.
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

// BatchBytes is the size in bytes of one batch read ahead, in a pass of that many
// samples per batch. A pass that reads n batches ahead holds n+1 of them (SetBlock: of
// whole blocks), one that reads none ahead holds none.
//
// A string counts as 16 bytes; its text is not copied. Fields that no pass could
// read give 0.
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

// Batches walks one pass. See Dataset and Pass.
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
			h, ok := r.take()
			if !ok {
				return
			}
			if h.err != nil {
				yield(Batch{}, h.err)
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

// begin starts a pass in the ring left by an earlier one, if it fits, or in a new
// one. It makes all slabs at once, so that a pass has its memory from the start,
// and not from the first time that the consumer is late.
func (d *Prefetched) begin(p Pass) (*ring, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name(), err)
	}
	samples := min(p.Batch, d.Len())
	d.mu.Lock()
	r, ahead, block := d.idle, d.ahead, max(d.block, 1)
	d.idle = nil
	d.mu.Unlock()
	m, inMemory := d.ds.(*InMemory)
	if !inMemory {
		block = 1
	}
	block = min(block, max(p.batches(d.Len()), 1))
	if r == nil || r.samples != samples || r.block != block {
		r = &ring{of: d, samples: samples, block: block}
		r.work.L, r.ready.L = &d.mu, &d.mu
	}
	for len(r.slabs) < r.most(ahead) {
		s, err := d.slab(samples * block)
		if err != nil {
			return nil, err
		}
		r.slabs = append(r.slabs, s)
		r.free = append(r.free, s)
	}
	r.left, r.failed, r.pass, r.current = false, false, p, nil
	if inMemory {
		r.order = m.order(&r.room, p.Epoch)
		r.upcoming, r.batches = p.Skip, p.batches(m.n)
		r.hands = m.hands(r.hands)
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
		go r.fill(m, h)
	}
	return r, nil
}

// most is how many slabs a pass holds that reads so many batches ahead.
func (r *ring) most(ahead int) int {
	if r.block == 1 {
		return ahead + 1
	}
	return max((ahead+r.block)/r.block, min(ahead, 1)+1)
}

// joins is how many batches lie in the slab from one on, with it.
func (r *ring) joins(h *handed) int {
	return min(r.block-h.at/r.samples, r.of.Len()/r.pass.Batch-h.index)
}

// slab makes room for samples.
func (d *Prefetched) slab(samples int) (*slab, error) {
	s := &slab{samples: samples}
	for _, f := range d.Fields() {
		n, err := elements(append([]int{samples}, f.Shape...))
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", d.Name(), f.Name, err)
		}
		kind, err := kindOf(f.Type)
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", d.Name(), f.Name, err)
		}
		s.add(f.Name, f.Shape, makeVector(kind, n))
	}
	return s, nil
}

// fill is a worker of a InMemory. It waits in one place only, for a chunk.
func (r *ring) fill(m *InMemory, h *hand) {
	defer r.end()
	for {
		b, at, n := r.chunk(m)
		if b == nil {
			return
		}
		from := b.index*r.pass.Batch + at
		r.done(b, at, m.fill(h, b.slab, b.at+at, r.order, r.pass.Epoch, from, from+n))
	}
}

// chunk waits for something to do: n samples of a batch, from its sample at on.
// There is no batch if nothing is left.
func (r *ring) chunk(m *InMemory) (b *handed, at, n int) {
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
		if !r.more() {
			return nil, 0, 0
		}
		if (r.upcoming-r.pass.Skip)%r.block == 0 {
			found, err := r.findSlab()
			if err != nil {
				r.failed = true
				b := r.blank()
				b.err = err
				r.queue = append(r.queue, b)
				r.ready.Broadcast()
				r.work.Broadcast()
			}
			if err != nil || !found {
				continue
			}
			r.current = r.takeSlab()
		}
		r.begin(m)
	}
	return nil, 0, 0
}

// more reports whether there are batches to begin. The caller holds mu.
func (r *ring) more() bool { return !r.failed && r.upcoming < r.batches }

// begin begins the next batch. The caller holds mu.
func (r *ring) begin(m *InMemory) {
	b := r.blank()
	b.slab, b.index = r.current, r.upcoming
	place := (b.index - r.pass.Skip) % r.block
	b.at, b.last = place*r.samples, place == r.block-1
	b.size = min(r.pass.Batch, m.n-b.index*r.pass.Batch)
	b.chunk = m.chunk(b.size, len(r.hands))
	b.pending = (b.size + b.chunk - 1) / b.chunk
	r.upcoming++
	r.queue = append(r.queue, b)
	r.open = b
	r.work.Broadcast()
}

// blank is room for what is handed over. The caller holds mu.
func (r *ring) blank() *handed {
	last := len(r.spare) - 1
	if last < 0 {
		return &handed{}
	}
	h := r.spare[last]
	r.spare = r.spare[:last]
	return h
}

// drop keeps the room for what was handed over, and not the slab. The caller holds
// mu.
func (r *ring) drop(h *handed) {
	*h = handed{}
	r.spare = append(r.spare, h)
}

// done takes back a chunk. Of several that failed, the first in the batch counts;
// those before one that was taken were taken, too, and are waited for.
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

// pull is the goroutine of a pass over any other dataset. It waits in one place
// only, for a free slab.
func (r *ring) pull(ds Dataset) {
	defer r.end()
	for b, err := range ds.Batches(r.pass) {
		if err == nil {
			err = r.load(b)
		}
		if err != nil {
			r.hand(nil, Batch{}, err)
			return
		}
	}
}

func (r *ring) load(b Batch) error {
	s, err := r.waitForSlab()
	if err != nil {
		return err
	}
	if err := s.load(b); err != nil {
		return fmt.Errorf("%s: batch %d: %w", r.of.Name(), b.Index, err)
	}
	r.hand(s, b, nil)
	return nil
}

// errLeft ends the goroutine; nobody is there any more to see it.
var errLeft = errors.New("the consumer has left")

// waitForSlab waits for a free slab, or makes one where the pass may have more.
func (r *ring) waitForSlab() (*slab, error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for !r.left {
		if found, err := r.findSlab(); err != nil {
			return nil, err
		} else if found {
			return r.takeSlab(), nil
		}
	}
	return nil, errLeft
}

// findSlab reports whether there is a free slab. If not, it makes one where the pass may have
// more, or waits, without mu meanwhile, and what held before may hold no more. The caller
// holds mu.
func (r *ring) findSlab() (bool, error) {
	if len(r.free) > 0 {
		return true, nil
	}
	if len(r.slabs)+r.making >= r.most(r.of.ahead) {
		r.work.Wait()
		return false, nil
	}
	r.making++
	r.of.mu.Unlock()
	s, err := r.of.slab(r.samples * r.block)
	r.of.mu.Lock()
	r.making--
	if err != nil {
		return false, err
	}
	r.slabs = append(r.slabs, s)
	r.free = append(r.free, s)
	r.work.Broadcast()
	return false, nil
}

// takeSlab takes the slab that has been free for the longest time. The caller holds mu.
func (r *ring) takeSlab() *slab {
	s := r.free[0]
	r.free = slices.Delete(r.free, 0, 1)
	s.turn.Add(1)
	return s
}

// hand hands over a batch that is ready.
func (r *ring) hand(s *slab, b Batch, err error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	h := r.blank()
	h.slab, h.size, h.index, h.last, h.err = s, b.Size, b.Index, true, err
	r.queue = append(r.queue, h)
	r.ready.Broadcast()
}

// end is the end of a goroutine.
func (r *ring) end() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.running--
	r.ready.Broadcast()
}

// take waits until the next batch is ready; false if there is none.
func (r *ring) take() (*handed, bool) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for {
		if len(r.queue) > 0 && r.queue[0].pending == 0 {
			h := r.queue[0]
			r.queue = slices.Delete(r.queue, 0, 1)
			return h, true
		}
		if r.running == 0 {
			return nil, false
		}
		r.ready.Wait()
	}
}

// release takes back the slab of a batch that the consumer is done with. Where more than
// fewAhead are read ahead, goroutines that wait for one are woken once half of them may be
// made, and not for each.
func (r *ring) release(h *handed) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	s, last := h.slab, h.last
	r.drop(h)
	switch {
	case !last:
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

// leave ends the pass: it waits for the goroutines to end, and keeps the ring,
// whoever had its slabs.
func (r *ring) leave() {
	d := r.of
	d.mu.Lock()
	defer d.mu.Unlock()
	r.left = true
	r.work.Broadcast()
	for r.running > 0 {
		r.ready.Wait()
	}
	for _, h := range r.queue {
		r.drop(h)
	}
	clear(r.queue)
	r.queue, r.open, r.current = r.queue[:0], nil, nil
	r.slabs = slices.DeleteFunc(r.slabs, func(s *slab) bool { return s.kept })
	r.free = append(r.free[:0], r.slabs...)
	d.rings = slices.DeleteFunc(d.rings, func(other *ring) bool { return other == r })
	r.keep()
}

// keep leaves the ring, of which all slabs are free, to the next pass. The caller
// holds mu.
func (r *ring) keep() {
	if r.of.ahead == 0 {
		r.of.idle = nil
		return
	}
	r.trim()
	r.of.idle = r
}

// trim lets go of free slabs while the pass has more than it may. The caller holds
// mu.
func (r *ring) trim() {
	for len(r.free) > 0 && len(r.slabs) > r.most(r.of.ahead) {
		last := len(r.free) - 1
		s := r.free[last]
		r.free = slices.Delete(r.free, last, last+1)
		r.forget(s)
	}
}

// forget lets go of a slab that is not free. The caller holds mu.
func (r *ring) forget(s *slab) {
	r.slabs = slices.DeleteFunc(r.slabs, func(other *slab) bool { return other == s })
}

// load copies a batch of some dataset, which need not be one of ours: a batch
// that is not what Fields promised is an error.
func (s *slab) load(b Batch) error {
	if b.Size < 1 || b.Size > s.samples || len(b.Fields) != len(s.vectors) {
		return fmt.Errorf("%d samples of %d fields, where at most %d samples of %d fields were promised: %w",
			b.Size, len(b.Fields), s.samples, len(s.vectors), ErrFormat)
	}
	for i, f := range b.Fields {
		width := s.vectors[i].len() / s.samples
		if f.Name != s.names[i] || !s.vectors[i].copyValues(f.Values, b.Size*width) {
			return fmt.Errorf("field %q is %T with shape %v, where %s %q with shape %v per sample was promised: %w",
				f.Name, f.Values, f.Shape, s.vectors[i].kind().Name, s.names[i], s.shapes[i], ErrFormat)
		}
	}
	return nil
}
