//go:build galeone

package main

import (
	"reflect"

	"steadyfit/data"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/synth"
)

// rows are samples for each input: nested slices with a level per dimension, as in the
// binding's documentation.
type rows struct {
	columns []reflect.Value
	n       int
}

func (m *model) synth(f *function) *synth.Synth {
	return program.Must(synth.New(m.info, f.signature.Name, m.Seed))
}

func (m *model) rows(f *function, n int, key uint64) rows {
	s := m.synth(f)
	b := s.Batch(n)
	s.FillAll(b, key)
	return f.nested(b)
}

func (f *function) nested(b data.Batch) rows {
	r := rows{n: b.Size}
	for _, t := range f.types {
		a, _ := b.Field(t.Name)
		r.columns = append(r.columns, program.Nested(a))
	}
	return r
}

// batch returns the samples from..to without a copy.
func (r rows) batch(from, to int) []any {
	values := make([]any, len(r.columns))
	for i, c := range r.columns {
		values[i] = c.Slice(from, to).Interface()
	}
	return values
}

// at returns the batch of step n, which starts at 1. The last batch of a pass may be smaller.
func (r rows) at(n, batch int) []any {
	per := (r.n + batch - 1) / batch
	from := (n - 1) % per * batch
	return r.batch(from, min(from+batch, r.n))
}
