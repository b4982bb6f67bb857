package data

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
)

// Values describes the values that a field of a dataset may have. Set one of the fields of Values.
type Values struct {
	// Classes means labels, which are integers from 0 to Classes-1. Any other label is ErrLabel.
	//
	// TensorFlow's own error does not name the sample: its sparse cross-entropy fails on a CPU, and on
	// a GPU the loss becomes NaN (documented at tf.nn.sparse_softmax_cross_entropy_with_logits).
	Classes int
	// Probabilities means numbers from 0 to 1, as binary cross-entropy needs them, because its loss has
	// no minimum for other numbers. Another number is ErrLabel.
	Probabilities bool
	// Integers has the least and the greatest allowed integer. Another value is ErrValue. A float counts
	// as an integer if it is whole and below 2^53.
	Integers *[2]int64
	// Finite means floats that are neither NaN nor infinite; another float is ErrValue. Fields of other types
	// pass. For a field made by a function, such as Scale, Check looks at the original values.
	Finite bool
}

// Check reads a field of a dataset, or all fields if field is empty. It returns an error with a
// *RowError for each of the first elements whose values are not as want describes.
func Check(m *InMemory, field string, want Values) error {
	if want.Finite {
		m = m.original()
	} else if want.Classes < 1 && !want.Probabilities && want.Integers == nil {
		return fmt.Errorf("%s: %+v describes no values; set one of its fields: %w", m.name, want, errOption)
	}
	if _, known := m.column(field); !known && field != "" {
		return m.noField(field)
	}
	var fields []string
	for _, c := range m.columns {
		switch {
		case field != "" && c.name != field, want.Finite && c.kind.Kind != dtype.FloatKind:
		case !want.Finite && c.kind.Kind == dtype.StringKind:
			return fmt.Errorf("%s: field %q is of type string, expected numbers: %w", m.name, c.name, ErrField)
		case !c.bottom().pixels: // decoded images have pixels from 0 to 255
			fields = append(fields, c.name)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return want.walk(m, fields)
}

// integers returns the least and the greatest allowed integer.
func (w Values) integers() (low, high int64) {
	if w.Integers != nil {
		return w.Integers[0], w.Integers[1]
	}
	return 0, int64(w.Classes) - 1
}

// find returns the index of the first element of v, from an index on, that is not as w describes, or -1.
func (w Values) find(v vector, from int) int {
	kind := v.kind()
	low, high := w.integers()
	switch v := v.(type) {
	case vec[float32]:
		if w.Finite {
			return firstInfinite(v, from)
		}
	case vec[float64]:
		if w.Finite {
			return firstInfinite(v, from)
		}
	}
	for i := from; i < v.len(); i++ {
		if w.Probabilities {
			if p := kind.Float(v.element(i)); !(p >= 0 && p <= 1) {
				return i
			}
		} else if n, ok := kind.Int(v.element(i)); !ok || n < low || n > high {
			return i
		}
	}
	return -1
}

func firstInfinite[T float32 | float64](values []T, from int) int {
	for i, v := range values[from:] {
		if v-v != 0 { // NaN or infinite
			return from + i
		}
	}
	return -1
}

// wrong returns the error for element at of v, which is not as w describes.
func (w Values) wrong(v vector, at int) RowError {
	low, high := w.integers()
	switch {
	case w.Finite:
		return RowError{Expected: "a finite number", Fix: "fill the value in, or leave the sample out", Err: ErrValue}
	case w.Probabilities:
		return RowError{Expected: "a class from 0 to 1, or a probability", Fix: "number the two classes 0 and 1",
			Err: ErrLabel}
	case w.Integers == nil:
		fix := "correct the label"
		if class, ok := v.kind().Int(v.element(at)); ok && class > 0 {
			fix = fmt.Sprintf("correct the label, or train a model with more than %d classes", w.Classes)
		}
		return RowError{Expected: fmt.Sprintf("a class from 0 to %d", high), Fix: fix, Err: ErrLabel}
	}
	expected := fmt.Sprintf("an integer from %d to %d", low, high)
	if low == math.MinInt64 && high == math.MaxInt64 {
		expected = "a signed integer of 64 bits"
	}
	if v.kind().Kind == dtype.FloatKind {
		expected += " (of floats, below 2^53)"
	}
	return RowError{Expected: expected, Fix: "correct the value, or leave the sample out", Err: ErrValue}
}

// walk returns an error with the first invalid elements of the named fields, at most one for each sample.
func (w Values) walk(m *InMemory, fields []string) error {
	// Selecting the fields avoids copying other fields. The view is in file order, so that a position identifies a row.
	m, err := m.selected(fields...)
	if err != nil {
		return err
	}
	m.shuffled = false
	seen, invalid := 0, problems{source: m.name}
	for b, err := range m.Batches(Pass{Batch: 16}) {
		if err != nil {
			return err
		}
		for _, f := range b.Fields {
			v, err := arrayVector(f.Array)
			if err != nil {
				return fmt.Errorf("%s: field %q: %w", m.name, f.Name, err)
			}
			width := v.len() / b.Size
			for at := w.find(v, 0); at >= 0; at = w.find(v, (at/width+1)*width) {
				bad := w.wrong(v, at)
				bad.Found = textOf(v, at)
				bad.File, bad.Unit, bad.Row = m.name, "sample", seen+at/width
				if bad.Column = f.Name; len(f.Shape) > 1 {
					bad.Column += "[" + strings.Join(indexes(at%width, f.Shape[1:]), ",") + "]"
				}
				m.locate(&bad, f.Name, at%width)
				if !invalid.add(&bad) {
					return invalid.err()
				}
			}
		}
		seen += b.Size
	}
	return invalid.err()
}

// original returns the dataset with the fields as they are before functions.
func (m *InMemory) original() *InMemory {
	v := m.view()
	v.columns = slices.Clone(m.columns)
	for i := range v.columns {
		c := &v.columns[i]
		name := c.name
		*c = *c.bottom()
		c.name = name
	}
	return v
}

// locate sets the file, the row and the column of e, the error for an element of a field in a sample.
// Before the call, e.Row is the position of the sample in the dataset.
func (m *InMemory) locate(e *RowError, field string, element int) {
	if c, ok := m.column(field); ok {
		e.File = c.file
		if c.origin != "" {
			e.Column = c.origin
		} else if len(c.columns) == c.width {
			e.Column = strconv.Quote(c.columns[element])
		}
	}
	if m.rows != nil {
		e.Row = int(m.rows[e.Row])
	}
	if m.lines != nil {
		e.Unit, e.Row = "line", m.lines[e.Row]
	}
	if m.parts != nil {
		e.Unit = "record"
		_, e.File, e.Row = partOf(m.parts, e.Row)
	}
}

func indexes(at int, shape []int) []string {
	index := make([]string, len(shape))
	for d, size := range slices.Backward(shape) {
		index[d] = strconv.Itoa(at % size)
		at /= size
	}
	return index
}

// CheckImages decodes each image of a dataset once, with the dataset's workers. It returns the errors of the first ten
// images that cannot be used, in file order. A dataset without images passes. CheckImages stops when ctx is done.
func CheckImages(ctx context.Context, m *InMemory) error {
	if ctx == nil {
		return fmt.Errorf("checking images: the context is nil; pass a context such as context.Background(): %w", errOption)
	}
	m = m.original()
	var fields []string
	for _, c := range m.columns {
		if c.pixels {
			fields = append(fields, c.name)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	images, err := m.selected(fields...)
	if err != nil {
		return err
	}
	images.shuffled = false
	failed := problems{source: m.name}
	for at := 0; at < m.n; { // a pass ends after an error
		for _, err := range Prefetch(images, 2*runtime.GOMAXPROCS(0)).Batches(Pass{Batch: 1, Skip: at}) {
			at++
			if ctx.Err() != nil {
				return fmt.Errorf("%s: checking images: %w", m.name, context.Cause(ctx))
			}
			if err != nil && !failed.add(err) {
				return failed.err()
			} else if err != nil {
				break
			}
		}
	}
	return failed.err()
}
