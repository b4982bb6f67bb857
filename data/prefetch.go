package data

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
)

// Prefetch returns the dataset with up to n batches of each pass read ahead, by
// one goroutine per pass, while the consumer works on an earlier one. Order,
// content and errors are those of ds; an error comes after the batches before
// it. With n below 1 nothing is read ahead: the batches are those of ds itself,
// not copies, and there is no goroutine. SetAhead changes n later.
//
// Memory is bounded: a pass holds n+1 batches (n ready, one with the consumer)
// besides what ds itself needs. They are kept for the next pass.
//
// When the consumer leaves the loop, the goroutine ends before the loop does,
// as soon as ds has handed over the batch that it is reading.
func Prefetch(ds Dataset, n int) *Prefetched {
	return &Prefetched{ds: ds, ahead: max(n, 0)}
}

// Prefetched is a dataset whose batches are read ahead; Prefetch makes it. It is
// safe for concurrent use. Concurrent passes have buffers of their own.
type Prefetched struct {
	ds Dataset

	// mu guards what follows and every ring. No batch is read or copied and no
	// buffer made under it, so that SetAhead never waits for one.
	mu    sync.Mutex
	ahead int
	rings []*ring // of the passes under way
	idle  *ring   // left by a pass for the next one
}

// ring is the memory of one pass, and where its consumer and its goroutine hand
// that to each other.
type ring struct {
	of      *Prefetched
	samples int
	slabs   []*slab // all that the pass has
	free    []*slab
	ready   []handed
	left    bool // the consumer takes nothing more
	ended   bool // the goroutine reads nothing more
	// changed is for who waits for a free slab, a ready batch, or the end.
	changed sync.Cond
}

// handed is what the goroutine hands over: a batch in a slab, or an error.
type handed struct {
	slab  *slab
	size  int
	index int
	err   error
}

// Name says where the samples come from.
func (d *Prefetched) Name() string { return d.ds.Name() }

// Len is the number of samples.
func (d *Prefetched) Len() int { return d.ds.Len() }

// Fields describes the samples.
func (d *Prefetched) Fields() []FieldSpec { return d.ds.Fields() }

// Ahead is the number of batches that a pass reads ahead; 0 for none.
func (d *Prefetched) Ahead() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ahead
}

// SetAhead changes how many batches are read ahead from now on, in passes under
// way, too. Below 1 is 0. It never waits for a batch, and may be called inside of
// the loop over the batches as well as by others.
//
// Lowering loses no batch: buffers that are free are let go at once, the others as
// the consumer is done with the batches in them. The garbage collector frees them
// later. Raising makes buffers as the goroutine has use for them.
//
// A pass under way goes on with one buffer at 0, in which a batch is put when the
// consumer is done with the one before. A pass that began at 0 has no goroutine
// and gets none.
func (d *Prefetched) SetAhead(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ahead = max(n, 0)
	for _, r := range d.rings {
		r.trim()
		r.changed.Broadcast()
	}
	if d.idle != nil {
		d.idle.keep()
	}
}

// BatchBytes is the size in bytes of one batch read ahead, in a pass of that many
// samples per batch. A pass that reads n batches ahead holds n+1 of them, one that
// reads none ahead holds none.
//
// A string counts as 16 bytes; its text is not copied. Fields that no pass could
// read give 0.
func (d *Prefetched) BatchBytes(batch int) int64 {
	samples := min(max(batch, 0), d.Len())
	var total int64
	for _, f := range d.Fields() {
		v, err := emptyOf(f.Type)
		if err != nil {
			return 0
		}
		n, err := elements(append([]int{samples, v.elementSize()}, f.Shape...))
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
		go r.fill(p)
		defer r.leave()
		for {
			h, ok := r.next()
			if !ok {
				return
			}
			if h.err != nil {
				yield(Batch{}, h.err)
				return
			}
			if !yield(Batch{Fields: h.slab.fields(h.size), Size: h.size, Index: h.index}, nil) {
				return
			}
			r.release(h.slab)
		}
	}
}

// begin returns the ring of a pass: the one left by an earlier pass, if it fits,
// or a new one. It makes all slabs at once, so that a pass has its memory from the
// start, and not from the first time that the consumer is late.
func (d *Prefetched) begin(p Pass) (*ring, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name(), err)
	}
	samples := min(p.Batch, d.Len())
	d.mu.Lock()
	r, ahead := d.idle, d.ahead
	d.idle = nil
	d.mu.Unlock()
	if r == nil || r.samples != samples {
		r = &ring{of: d, samples: samples}
		r.changed.L = &d.mu
	}
	for len(r.slabs) <= ahead {
		s, err := d.slab(samples)
		if err != nil {
			return nil, err
		}
		r.slabs = append(r.slabs, s)
		r.free = append(r.free, s)
	}
	r.left, r.ended = false, false
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rings = append(d.rings, r)
	r.trim()
	return r, nil
}

// slab makes room for one batch.
func (d *Prefetched) slab(samples int) (*slab, error) {
	s := &slab{samples: samples}
	for _, f := range d.Fields() {
		n, err := elements(append([]int{samples}, f.Shape...))
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", d.Name(), f.Name, err)
		}
		v, err := emptyOf(f.Type)
		if err != nil {
			return nil, fmt.Errorf("%s: field %q: %w", d.Name(), f.Name, err)
		}
		s.add(f.Name, f.Shape, v.same(n))
	}
	return s, nil
}

// fill is the goroutine of a pass. It waits in one place only, for a free slab.
func (r *ring) fill(p Pass) {
	defer r.end()
	for b, err := range r.of.ds.Batches(p) {
		h := handed{err: err}
		if err == nil {
			h = r.load(b)
		}
		r.hand(h)
		if h.err != nil {
			return
		}
	}
}

func (r *ring) load(b Batch) handed {
	s, err := r.take()
	if err != nil {
		return handed{err: err}
	}
	if err := s.load(b); err != nil {
		return handed{err: fmt.Errorf("%s: batch %d: %w", r.of.Name(), b.Index, err)}
	}
	return handed{slab: s, size: b.Size, index: b.Index}
}

// errLeft ends the goroutine; nobody is there any more to see it.
var errLeft = errors.New("the consumer has left")

// take waits for a free slab, or makes one where the pass may have more.
func (r *ring) take() (*slab, error) {
	s, err := r.wait()
	if s != nil || err != nil {
		return s, err
	}
	if s, err = r.of.slab(r.samples); err != nil {
		return nil, err
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.slabs = append(r.slabs, s)
	return s, nil
}

// wait waits for a free slab. It returns none where the pass may have more.
func (r *ring) wait() (*slab, error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for !r.left && len(r.free) == 0 && len(r.slabs) > r.of.ahead {
		r.changed.Wait()
	}
	if r.left {
		return nil, errLeft
	}
	if len(r.free) == 0 {
		return nil, nil
	}
	s := r.free[0]
	r.free = slices.Delete(r.free, 0, 1)
	return s, nil
}

func (r *ring) hand(h handed) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.ready = append(r.ready, h)
	r.changed.Broadcast()
}

func (r *ring) end() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.ended = true
	r.changed.Broadcast()
}

// next waits for what the goroutine hands over; false if there is nothing more.
func (r *ring) next() (handed, bool) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for len(r.ready) == 0 && !r.ended {
		r.changed.Wait()
	}
	if len(r.ready) == 0 {
		return handed{}, false
	}
	h := r.ready[0]
	r.ready = slices.Delete(r.ready, 0, 1)
	return h, true
}

// release takes back the slab of a batch that the consumer is done with.
func (r *ring) release(s *slab) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.free = append(r.free, s)
	r.trim()
	r.changed.Broadcast()
}

// leave ends the pass: it waits for the goroutine to end, and keeps the ring,
// whoever had its slabs.
func (r *ring) leave() {
	d := r.of
	d.mu.Lock()
	defer d.mu.Unlock()
	r.left = true
	r.changed.Broadcast()
	for !r.ended {
		r.changed.Wait()
	}
	clear(r.ready)
	r.ready = r.ready[:0]
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
	for len(r.free) > 0 && len(r.slabs)-1 > r.of.ahead {
		last := len(r.free) - 1
		s := r.free[last]
		r.free = slices.Delete(r.free, last, last+1)
		r.slabs = slices.DeleteFunc(r.slabs, func(other *slab) bool { return other == s })
	}
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
				f.Name, f.Values, f.Shape, s.vectors[i].typeName(), s.names[i], s.shapes[i], ErrFormat)
		}
	}
	return nil
}
