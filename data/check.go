package data

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// CheckLabels reports the first label of a field that is not an integer from 0
// to classes-1, as a *RowError that is ErrLabel. TensorFlow itself does not name
// the sample: its sparse cross-entropy fails on a CPU, and on a GPU the loss
// becomes NaN (documented at tf.nn.sparse_softmax_cross_entropy_with_logits).
// Every element counts if the field has several per sample. The dataset is
// walked once, in its own order.
func CheckLabels(ds Dataset, field string, classes int) error {
	if classes < 1 {
		return fmt.Errorf("%s: cannot check labels against %d classes: at least 1 is needed", ds.Name(), classes)
	}
	return walk(ds, []string{field}, func(f Field, v vector) (int, *RowError, error) {
		label, ok := labels(v)
		if !ok {
			return 0, nil, fmt.Errorf("%s: field %q is of type %s; labels are integers: %w", ds.Name(), field, v.typeName(), ErrField)
		}
		for i := range v.len() {
			if class, ok := label(i); !ok || class < 0 || class >= int64(classes) {
				return i, &RowError{
					Expected: fmt.Sprintf("a class from 0 to %d", classes-1),
					Fix:      fmt.Sprintf("correct the label, or train a model with more than %d classes", classes),
					Err:      ErrLabel,
				}, nil
			}
		}
		return 0, nil, nil
	})
}

// CheckFinite reports the first NaN or infinity in the fields of floating-point
// numbers, as a *RowError that is ErrNotFinite. The dataset is walked once, in
// its own order.
func CheckFinite(ds Dataset) error {
	var floats []string
	for _, f := range ds.Fields() {
		if f.Type == "float32" || f.Type == "float64" {
			floats = append(floats, f.Name)
		}
	}
	if len(floats) == 0 {
		return nil
	}
	return walk(ds, floats, func(f Field, v vector) (int, *RowError, error) {
		at := -1
		switch values := f.Values.(type) {
		case []float32:
			at = firstNotFinite(values)
		case []float64:
			at = firstNotFinite(values)
		}
		if at < 0 {
			return 0, nil, nil
		}
		return at, &RowError{
			Expected: "a finite number",
			Fix:      "fill the value in, or leave the sample out",
			Err:      ErrNotFinite,
		}, nil
	})
}

func firstNotFinite[T float32 | float64](values []T) int {
	for i, v := range values {
		// v-v is 0 unless v is infinite or NaN.
		if v-v != 0 {
			return i
		}
	}
	return -1
}

// walk calls find for the named fields of each batch until it returns an error:
// a plain one, or a RowError about an element, to which walk adds where the
// element is and what it is.
func walk(ds Dataset, fields []string, find func(Field, vector) (int, *RowError, error)) error {
	if ahead, ok := ds.(*Prefetched); ok {
		ds = ahead.ds
	}
	m, inMemory := ds.(*Memory)
	if inMemory {
		// Fields that nobody asked for need not be copied, and positions are
		// only known in the order of the file.
		narrow, err := m.Select(fields...)
		if err != nil {
			return err
		}
		narrow.shuffled = false
		m, ds = narrow, narrow
	}
	seen := 0
	for b, err := range ds.Batches(Pass{Batch: 16}) {
		if err != nil {
			return err
		}
		for _, name := range fields {
			a, ok := b.Field(name)
			if !ok {
				return fmt.Errorf("%s: no field %q: %w", ds.Name(), name, ErrField)
			}
			v, err := arrayVector(a)
			if err != nil {
				return fmt.Errorf("%s: field %q: %w", ds.Name(), name, err)
			}
			at, bad, err := find(Field{Name: name, Array: a}, v)
			if err != nil {
				return err
			}
			if bad == nil {
				continue
			}
			width := v.len() / b.Size
			bad.File, bad.Unit, bad.Row = ds.Name(), "sample", seen+at/width
			bad.Column = name + elementIndex(at%width, a.Shape[1:])
			if inMemory {
				m.locate(bad, name)
			}
			bad.Found = string(v.appendText(nil, at))
			return bad
		}
		seen += b.Size
	}
	return nil
}

// locate replaces a position in the dataset by the place in the file that the
// sample was read from.
func (m *Memory) locate(e *RowError, field string) {
	if c, ok := m.column(field); ok {
		e.File = c.file
		if c.origin != "" {
			e.Column = c.origin
		}
	}
	if m.rows != nil {
		e.Row = m.rows[e.Row]
	}
	if m.lines != nil {
		e.Unit, e.Row = "line", m.lines[e.Row]
	}
}

// elementIndex is the index of a sample's element, as [1,2]; nothing for a
// scalar.
func elementIndex(at int, shape []int) string {
	if len(shape) == 0 {
		return ""
	}
	index := make([]string, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		index[d] = strconv.Itoa(at % shape[d])
		at /= shape[d]
	}
	return "[" + strings.Join(index, ",") + "]"
}

// labels reads a vector's elements as classes; false from the function it
// returns means that the element is not an integer. There is none for strings.
func labels(v vector) (func(i int) (int64, bool), bool) {
	switch v := v.(type) {
	case vec[int8]:
		return integerLabels(v), true
	case vec[int16]:
		return integerLabels(v), true
	case vec[int32]:
		return integerLabels(v), true
	case vec[int64]:
		return integerLabels(v), true
	case vec[uint8]:
		return integerLabels(v), true
	case vec[uint16]:
		return integerLabels(v), true
	case vec[uint32]:
		return integerLabels(v), true
	case vec[uint64]:
		return func(i int) (int64, bool) { return int64(v[i]), v[i] <= math.MaxInt64 }, true
	case vec[float32]:
		return floatLabels(v), true
	case vec[float64]:
		return floatLabels(v), true
	case vec[bool]:
		return func(i int) (int64, bool) {
			if v[i] {
				return 1, true
			}
			return 0, true
		}, true
	}
	return nil, false
}

func integerLabels[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](v []T) func(int) (int64, bool) {
	return func(i int) (int64, bool) { return int64(v[i]), true }
}

// floatLabels takes floats with whole values, which is how pandas writes
// integers from a column that once had gaps.
func floatLabels[T float32 | float64](v []T) func(int) (int64, bool) {
	return func(i int) (int64, bool) {
		f := float64(v[i])
		// Beyond 2^53 not every integer is a float64, and none is a class.
		whole := f == math.Trunc(f) && math.Abs(f) <= 1<<53
		if !whole {
			return 0, false
		}
		return int64(f), true
	}
}
