package serve

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"unsafe"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/session"
)

// slot computes one run at a time. Its buffers are reused.
type slot struct {
	version *version
	step    *session.Step
	calls   []*call // those of the run
	in      []column
	batch   data.Batch   // views of in
	out     []data.Array // by output
}

func newSlot(v *version, step *session.Step) *slot {
	s := &slot{version: v, step: step, in: make([]column, len(v.inputs)), out: make([]data.Array, len(v.outputs))}
	for i, p := range v.inputs {
		s.in[i].kind = p.kind
		s.batch.Fields = append(s.batch.Fields, data.Field{Name: p.Name})
	}
	return s
}

// slot returns a slot that is not in use. There is one for each run that may begin. The caller has locked Predictor.mu.
func (v *version) slot() *slot {
	last := len(v.slots) - 1
	s := v.slots[last]
	v.slots = v.slots[:last]
	return s
}

// compute computes the calls of a run. If a run of several calls fails, each runs alone, so that only the call with the
// wrong values has the error.
func (s *slot) compute() {
	err := s.run(s.calls)
	for i, c := range s.calls {
		if c.err = err; err != nil && len(s.calls) > 1 {
			c.err = s.run(s.calls[i : i+1])
		}
	}
}

func (s *slot) run(calls []*call) error {
	if err := s.version.swap(calls[0].adapter); err != nil {
		return err
	}
	n, err := s.feed(calls)
	if err == nil {
		err = s.step.Run(context.Background())
	}
	for i := 0; i < len(s.out) && err == nil; i++ {
		err = s.step.Read(s.version.outputs[i].Name, &s.out[i])
	}
	from := 0
	for _, c := range calls {
		if err != nil {
			return err
		}
		err = s.deliver(c, from, n)
		from += c.n
	}
	return err
}

// feed sets the inputs. n is the number of samples.
func (s *slot) feed(calls []*call) (n int, err error) {
	if c := calls[0]; len(calls) == 1 && c.form == nil {
		return c.n, s.feedBatch(c.batch)
	}
	for i := range s.in {
		s.in[i].n = 0
	}
	for _, c := range calls {
		n += c.n
		for i := range s.in {
			if c.form == nil {
				_, first, values := dtype.Data(c.batch.Fields[c.fields[i]].Values)
				s.in[i].add(first, values)
				continue
			}
			for j := range c.n {
				s.in[i].add(c.form.fields[i].values(c.sample(j)))
			}
		}
	}
	s.batch.Size = n
	for i, p := range s.version.inputs {
		f := &s.batch.Fields[i]
		f.Values, f.Shape = s.in[i].view(), append(f.Shape[:0], n)
		for at, size := range p.Shape[1:] {
			if at+1 == p.open {
				size = int64(calls[0].sizes[i] / p.size)
			}
			f.Shape = append(f.Shape, int(size))
		}
	}
	return n, s.feedBatch(s.batch)
}

func (s *slot) feedBatch(b data.Batch) error {
	err := s.version.checkIndices(b)
	if err == nil {
		err = s.step.Feed(b)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	return nil
}

// checkIndices returns an error if a value of an input is not an index of its table; negative ones count from the end.
// Kernels on a CPU report it without the name of the input, and those of a GPU and of XLA compute with another row.
func (v *version) checkIndices(b data.Batch) error {
	m := v.model.Metadata
	for i := 0; m != nil && i < len(v.inputs); i++ {
		p := v.inputs[i]
		rows := m.Inputs[p.Name].Rows
		if rows <= 0 {
			continue
		}
		found, ok := int64(0), true
		f, _ := b.Field(p.Name)
		switch values := f.Values.(type) {
		case []int32:
			var at int32
			at, ok = firstOutside(values, rows)
			found = int64(at)
		case []int64:
			found, ok = firstOutside(values, rows)
		}
		if !ok {
			const text = "input %s: expected indices of a table of %d rows, %d to %d, got %d"
			return fmt.Errorf(text, p.Name, rows, -rows, rows-1, found)
		}
	}
	return nil
}

// firstOutside returns the first value that is no index of a table; ok is true if there is none.
func firstOutside[T int32 | int64](values []T, rows int64) (value T, ok bool) {
	for _, value := range values {
		if int64(value) < -rows || int64(value) >= rows {
			return value, false
		}
	}
	return 0, true
}

// deliver writes the results of a call, whose samples begin at from in a run of n samples.
func (s *slot) deliver(c *call, from, n int) error {
	if c.result != nil {
		c.result.Size = c.n
		c.result.Fields = slices.Grow(c.result.Fields[:0], len(s.out))[:len(s.out)]
	}
	for i, a := range s.out {
		p := s.version.outputs[i]
		if c.result == nil && c.outForm.fields[i].kind == nil {
			continue
		}
		perSample := p.rows && len(a.Shape) > 0 && a.Shape[0] == n
		if !perSample && (c.result == nil || c.n != n) {
			return fmt.Errorf("%w: output %s has the shape %v for %d samples, and not one row for each; take it with a "+
				"*data.Batch", ErrInput, p.Name, a.Shape, n)
		}
		kind, first, values := dtype.Data(a.Values)
		if c.result != nil {
			f := &c.result.Fields[i]
			f.Name, f.Shape = p.Name, append(f.Shape[:0], a.Shape...)
			rows := values
			if perSample {
				f.Shape[0], rows = c.n, values/n*c.n
			}
			f.Values = sized(f.Values, kind, rows)
			_, to, _ := dtype.Data(f.Values)
			move(kind, to, unsafe.Add(first, uintptr(from*(values/n)*kind.Size)), rows)
			continue
		}
		field := c.outForm.fields[i]
		rows := values / n
		for j := range c.n {
			base := unsafe.Add(c.outBase, uintptr(j)*c.outForm.stride)
			if field.n < 0 {
				field.resize(base, rows)
			} else if field.n != rows {
				return fmt.Errorf("%w: output %s has %d values for a sample, and the field has %d", ErrInput, p.Name, rows, field.n)
			}
			to, _ := field.values(base)
			move(kind, to, unsafe.Add(first, uintptr((from+j)*rows*kind.Size)), rows)
		}
	}
	return nil
}

// move copies n values.
func move(kind *dtype.Type, to, from unsafe.Pointer, n int) {
	if kind.Kind == dtype.StringKind {
		copy(unsafe.Slice((*string)(to), n), unsafe.Slice((*string)(from), n))
		return
	}
	copy(unsafe.Slice((*byte)(to), n*kind.Size), unsafe.Slice((*byte)(from), n*kind.Size))
}

// sized returns values with n elements of a kind, if possible in the same memory.
func sized(values any, kind *dtype.Type, n int) any {
	has, _, length := dtype.Data(values)
	switch {
	case has == kind && length == n:
		return values
	case has == kind && reflect.ValueOf(values).Cap() >= n:
		return reflect.ValueOf(values).Slice(0, n).Interface()
	}
	return kind.Make(n)
}

// column collects the values of an input.
type column struct {
	kind   *dtype.Type
	n      int
	values any // a slice that has room for more than n values
	// views has slices of values by their length, since a new one would have to be allocated.
	views map[int]any
}

func (c *column) add(from unsafe.Pointer, n int) {
	_, first, room := dtype.Data(c.values)
	if c.n+n > room {
		larger := c.kind.Make(2*room + n)
		_, to, _ := dtype.Data(larger)
		move(c.kind, to, first, c.n)
		c.values, c.views, first = larger, map[int]any{}, to
	}
	move(c.kind, unsafe.Add(first, uintptr(c.n*c.kind.Size)), from, n)
	c.n += n
}

// maxViews is the number of views that a column keeps.
const maxViews = 256

func (c *column) view() any {
	v, ok := c.views[c.n]
	if c.values == nil {
		v = c.kind.Make(0)
	} else if !ok {
		if len(c.views) == maxViews {
			clear(c.views)
		}
		v = reflect.ValueOf(c.values).Slice(0, c.n).Interface()
		c.views[c.n] = v
	}
	return v
}
