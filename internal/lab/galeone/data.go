//go:build galeone

package main

import (
	"fmt"
	"reflect"

	"steadyfit/tfbind"
)

// rows are samples for each input of a function: nested slices, one level per
// dimension, as the binding's documentation has it.
type rows struct {
	columns []reflect.Value
	n       int
}

// rows makes up n samples for a signature. They can be learnt: each is of a class,
// which is its label, and has larger values at every position that is the class
// modulo the number of classes.
func (m *model) rows(f *function, n int) (rows, error) {
	predict, err := m.info.Signature(m.info.Roles.Predict)
	if err != nil {
		return rows{}, err
	}
	classes := 2
	for _, t := range predict.Outputs {
		if k := len(t.Shape); k == 2 && t.Shape[1] > 1 {
			classes = int(t.Shape[1])
		}
	}
	class := make([]int, n)
	for i := range class {
		class[i] = m.random.IntN(classes)
	}
	r := rows{n: n}
	for _, t := range f.types {
		if t.UnknownRank || len(t.Shape) == 0 {
			return rows{}, fmt.Errorf("input %s has no batch dimension", t.Name)
		}
		shape, width := []int{n}, 1
		for _, d := range t.Shape[1:] {
			if d < 0 {
				return rows{}, fmt.Errorf("input %s: %v has another unknown size than the batch", t.Name, t.Shape)
			}
			shape, width = append(shape, int(d)), width*int(d)
		}
		label := predict.Input(t.Name) == nil
		var flat any
		switch t.DType {
		case tfbind.Float32:
			flat = samples(class, classes, width, label, func(own bool) float32 {
				v := m.random.Float32()
				if own {
					v++
				}
				return v
			})
		case tfbind.Int64:
			flat = samples(class, classes, width, label, func(bool) int64 { return m.random.Int64N(int64(classes)) })
		case tfbind.Uint8:
			flat = samples(class, classes, width, label, func(bool) uint8 { return uint8(m.random.Uint32()) })
		default:
			return rows{}, fmt.Errorf("input %s: no data of type %s is made up here", t.Name, t.DType)
		}
		r.columns = append(r.columns, nest(reflect.ValueOf(flat), shape))
	}
	return r, nil
}

// samples are so many values for each sample, one after the other: its class if
// they are labels, else drawn.
func samples[T float32 | int64 | uint8](class []int, classes, width int, label bool, draw func(own bool) T) []T {
	values := make([]T, len(class)*width)
	for i := range values {
		if k := class[i/width]; label {
			values[i] = T(k)
		} else {
			values[i] = draw(i%width%classes == k)
		}
	}
	return values
}

// nest turns a flat slice into slices of slices that share its memory.
func nest(flat reflect.Value, shape []int) reflect.Value {
	if len(shape) == 1 {
		return flat
	}
	part := flat.Len() / shape[0]
	t := flat.Type()
	for range shape[1:] {
		t = reflect.SliceOf(t)
	}
	all := reflect.MakeSlice(t, shape[0], shape[0])
	for i := range shape[0] {
		all.Index(i).Set(nest(flat.Slice3(i*part, (i+1)*part, (i+1)*part), shape[1:]))
	}
	return all
}

// batch is the samples from..to, which are not copied.
func (r rows) batch(from, to int) []any {
	values := make([]any, len(r.columns))
	for i, c := range r.columns {
		values[i] = c.Slice(from, to).Interface()
	}
	return values
}

// at is the batch of a step that counts from 1, when the epochs follow on each
// other; the last of an epoch may be smaller.
func (r rows) at(step, batch int) []any {
	per := (r.n + batch - 1) / batch
	from := (step - 1) % per * batch
	return r.batch(from, min(from+batch, r.n))
}
