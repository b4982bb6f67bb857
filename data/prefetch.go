package data

import (
	"fmt"
	"iter"
	"sync/atomic"
)

// Prefetch returns the dataset with up to n batches of each pass read ahead, by
// one goroutine per pass, while the consumer works on an earlier one. Order,
// content and errors are those of ds; an error comes after the batches before
// it. With n below 1 it returns ds.
//
// Memory is bounded: a pass holds n+1 batches (n ready, one with the consumer)
// besides what ds itself needs. They are kept for the next pass.
//
// When the consumer leaves the loop, the goroutine ends before the loop does,
// as soon as ds has handed over the batch that it is reading.
func Prefetch(ds Dataset, n int) Dataset {
	if n < 1 {
		return ds
	}
	return &prefetched{Dataset: ds, n: n}
}

type prefetched struct {
	Dataset
	n    int
	idle atomic.Pointer[ring]
}

// ring is the memory of one pass.
type ring struct {
	samples int
	slabs   []*slab
}

// ahead is what the goroutine hands over: a batch in a slab, or an error.
type ahead struct {
	slab  *slab
	size  int
	index int
	err   error
}

func (d *prefetched) Batches(p Pass) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		r, err := d.ring(p)
		if err != nil {
			yield(Batch{}, err)
			return
		}
		free := make(chan *slab, len(r.slabs))
		for _, s := range r.slabs {
			free <- s
		}
		// Room for every slab and an error: sending never blocks, so the
		// goroutine waits in one place only, for a free slab.
		ready := make(chan ahead, len(r.slabs)+1)
		stop := make(chan struct{})
		go d.fill(p, free, ready, stop)
		defer func() {
			close(stop)
			for range ready {
			}
			d.idle.Store(r)
		}()
		for a := range ready {
			if a.err != nil {
				yield(Batch{}, a.err)
				return
			}
			if !yield(Batch{Fields: a.slab.fields(a.size), Size: a.size, Index: a.index}, nil) {
				return
			}
			free <- a.slab
		}
	}
}

func (d *prefetched) fill(p Pass, free <-chan *slab, ready chan<- ahead, stop <-chan struct{}) {
	defer close(ready)
	for b, err := range d.Dataset.Batches(p) {
		if err != nil {
			ready <- ahead{err: err}
			return
		}
		select {
		case <-stop:
			return
		case s := <-free:
			if err := s.load(b); err != nil {
				ready <- ahead{err: fmt.Errorf("%s: batch %d: %w", d.Name(), b.Index, err)}
				return
			}
			ready <- ahead{slab: s, size: b.Size, index: b.Index}
		}
	}
}

// ring returns the one left by an earlier pass, if it fits, or a new one.
func (d *prefetched) ring(p Pass) (*ring, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name(), err)
	}
	samples := min(p.Batch, d.Len())
	if r := d.idle.Swap(nil); r != nil && r.samples == samples {
		return r, nil
	}
	r := &ring{samples: samples}
	for range d.n + 1 {
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
		r.slabs = append(r.slabs, s)
	}
	return r, nil
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
