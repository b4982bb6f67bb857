package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"steadyfit/internal/dtype"
)

// CheckLabels reports the first label of a field that is not an integer from 0 to classes-1,
// as a *RowError that is ErrLabel. If the field has several elements per sample, it checks all
// of them. It reads the dataset once, in its own order.
//
// TensorFlow does not name the sample: its sparse cross-entropy fails on a CPU, and on a GPU
// the loss becomes NaN (documented at tf.nn.sparse_softmax_cross_entropy_with_logits).
func CheckLabels(ds Dataset, field string, classes int) error {
	if classes < 1 {
		return fmt.Errorf("%s: cannot check labels against %d classes: at least 1 is needed", ds.Name(), classes)
	}
	if kind := kindOfField(ds, field); kind != nil && kind.Kind == dtype.String {
		return fmt.Errorf("%s: field %q is of type string; labels are integers: %w", ds.Name(), field, ErrField)
	}
	return walk(ds, []string{field}, outside(0, int64(classes)-1), func(v vector, at int) RowError {
		fix := "correct the label"
		if class, ok := v.kind().Int(v.element(at)); ok && class > 0 {
			fix = fmt.Sprintf("correct the label, or train a model with more than %d classes", classes)
		}
		return RowError{Expected: fmt.Sprintf("a class from 0 to %d", classes-1), Fix: fix, Err: ErrLabel}
	})
}

// CheckIntegers reports the first value of a field that is not an integer from low to high, as
// a *RowError that is ErrInteger. Floats with whole values below 2^53 count as integers. It
// reads the dataset once, in its own order.
func CheckIntegers(ds Dataset, field string, low, high int64) error {
	if kind := kindOfField(ds, field); kind != nil && kind.Kind == dtype.String {
		return fmt.Errorf("%s: field %q is of type string, expected integers: %w", ds.Name(), field, ErrField)
	}
	return walk(ds, []string{field}, outside(low, high), func(v vector, _ int) RowError {
		expected := fmt.Sprintf("an integer from %d to %d", low, high)
		if low == math.MinInt64 && high == math.MaxInt64 {
			expected = "a signed integer of 64 bits"
		}
		if v.kind().Kind == dtype.Float {
			expected += " (of floats, below 2^53)"
		}
		return RowError{Expected: expected, Fix: "correct the value, or leave the sample out", Err: ErrInteger}
	})
}

// CheckFinite reports the first NaN or infinity in the fields of floating-point numbers, as a
// *RowError that is ErrNotFinite. It reads the dataset once, in its own order. For a field
// made by Augment or Scale, it checks the original field; it does not check images.
func CheckFinite(ds Dataset) error {
	ds = beforeTame(ds)
	var floats []string
	for _, f := range ds.Fields() {
		if kind := dtype.ByName(f.Type); kind != nil && kind.Kind == dtype.Float {
			floats = append(floats, f.Name)
		}
	}
	if len(floats) == 0 {
		return nil
	}
	return walk(ds, floats, beyond(math.Inf(1), true), func(vector, int) RowError {
		return RowError{Expected: "a finite number", Fix: "fill the value in, or leave the sample out", Err: ErrNotFinite}
	})
}

// CheckMagnitude reports the first value of a field of floating-point numbers that is at least
// limit or at most -limit, as a *RowError that is ErrNotFinite. It accepts fields of other
// types. It reads the dataset once, in its own order.
func CheckMagnitude(ds Dataset, field string, limit float64) error {
	ds = beforeTame(ds)
	kind := kindOfField(ds, field)
	if kind == nil || kind.Kind != dtype.Float || kind.Size == 4 && limit > math.MaxFloat32 {
		return nil
	}
	return walk(ds, []string{field}, beyond(limit, false), func(vector, int) RowError {
		return RowError{Expected: fmt.Sprintf("a number below %.3g", limit), Fix: "scale the field down, or leave the sample out", Err: ErrNotFinite}
	})
}

// kindOfField returns the element type of a field; nil if there is no such field.
func kindOfField(ds Dataset, field string) *dtype.Type {
	for _, f := range ds.Fields() {
		if f.Name == field {
			return dtype.ByName(f.Type)
		}
	}
	return nil
}

// outside returns a function that finds the first element that is not an integer from low to
// high.
func outside(low, high int64) func(vector) int {
	return func(v vector) int {
		kind := v.kind()
		for i := range v.len() {
			if n, ok := kind.Int(v.element(i)); !ok || n < low || n > high {
				return i
			}
		}
		return -1
	}
}

// beyond returns a function that finds the first float whose magnitude is limit or more, or
// that is NaN.
func beyond(limit float64, orNaN bool) func(vector) int {
	return func(v vector) int {
		switch v := v.(type) {
		case vec[float32]:
			return firstBeyond(v, limit, orNaN)
		case vec[float64]:
			return firstBeyond(v, limit, orNaN)
		}
		return -1
	}
}

func firstBeyond[T float32 | float64](values []T, limit float64, orNaN bool) int {
	for i, v := range values {
		if f := float64(v); !(f > -limit && f < limit) && (orNaN || f == f) {
			return i
		}
	}
	return -1
}

// walk applies find to the named fields of each sample. find returns the index of a bad
// element, or -1. For the first one, walk returns the error of says, which has the expected
// value, and adds the value and its place.
func walk(ds Dataset, fields []string, find func(vector) int, says func(v vector, at int) RowError) error {
	m, located := inMemory(ds)
	if located {
		// Selecting the fields avoids copying the others. Positions are known only in the
		// order of the file.
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
			at := find(v)
			if at < 0 {
				continue
			}
			width := v.len() / b.Size
			bad := says(v, at)
			bad.File, bad.Unit, bad.Row = ds.Name(), "sample", seen+at/width
			bad.Column = name + elementIndex(at%width, a.Shape[1:])
			if located {
				m.locate(&bad, name)
			}
			bad.Found = string(appendText(nil, v, at))
			return &bad
		}
		seen += b.Size
	}
	return nil
}

// inMemory returns the InMemory that is the source of a dataset's batches, with or without
// prefetching.
func inMemory(ds Dataset) (*InMemory, bool) {
	if ahead, ok := ds.(*Prefetched); ok {
		ds = ahead.ds
	}
	m, ok := ds.(*InMemory)
	return m, ok
}

// beforeTame returns an InMemory without the functions that keep finite values finite, and any
// other dataset unchanged.
func beforeTame(ds Dataset) Dataset {
	m, ok := inMemory(ds)
	if !ok {
		return ds
	}
	v := m.view()
	v.columns = slices.Clone(m.columns)
	for i := range v.columns {
		for c := &v.columns[i]; c.made != nil && c.made.tame() && c.made.under() != nil; {
			name := c.name
			*c = *c.made.under()
			c.name = name
		}
	}
	return v
}

// locate replaces a position in the dataset by the place in the source file of the sample.
func (m *InMemory) locate(e *RowError, field string) {
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

// elementIndex returns the index of a sample's element, as in [1,2]; it is empty for a scalar.
func elementIndex(at int, shape []int) string {
	if len(shape) == 0 {
		return ""
	}
	return "[" + strings.Join(indexes(at, shape), ",") + "]"
}

// indexes returns the indexes of element at in an array of that shape.
func indexes(at int, shape []int) []string {
	index := make([]string, len(shape))
	for d, size := range slices.Backward(shape) {
		index[d] = strconv.Itoa(at % size)
		at /= size
	}
	return index
}

// CheckImages decodes every image of a dataset of OpenImages once, with the dataset's workers.
// It returns the errors of the first eight images that cannot be decoded, in the order of the
// files. It accepts other datasets. ctx is checked before each image. The goroutines have
// ended when CheckImages returns.
func CheckImages(ctx context.Context, ds Dataset) error {
	if ctx == nil {
		return fmt.Errorf("checking images: the context is nil; pass one, such as context.Background(): %w", ErrOption)
	}
	m, ok := inMemory(ds)
	if !ok {
		return nil
	}
	var failed []error
	for i := range m.columns {
		files, ok := m.columns[i].files()
		if !ok {
			continue
		}
		bad := m.checkFiles(ctx, files)
		if ctx.Err() != nil {
			return fmt.Errorf("%s: checking images: %w", m.name, context.Cause(ctx))
		}
		failed = append(failed, bad...)
	}
	const most = 8
	switch n := len(failed); {
	case n == 0:
		return nil
	case n == 1:
		return failed[0]
	case n > most:
		failed = append(failed[:most:most], fmt.Errorf("... and %d more", n-most))
	}
	return fmt.Errorf("%s: images that cannot be used:\n%w", m.name, errors.Join(failed...))
}

// files returns the image files of a column.
func (c *column) files() (*imageFiles, bool) {
	for c != nil && c.made != nil {
		if f, ok := c.made.(*imageFiles); ok {
			return f, true
		}
		c = c.made.under()
	}
	return nil, false
}

// checkFiles decodes the images of a dataset and returns the errors in the order of the files.
func (m *InMemory) checkFiles(ctx context.Context, files *imageFiles) []error {
	var mu sync.Mutex
	var failed []failure
	var next atomic.Int64
	var group sync.WaitGroup
	for range m.hands(nil) {
		group.Go(func() {
			p := newPainter(files.options)
			sample := make([]uint8, files.width())
			for ctx.Err() == nil {
				row := int(next.Add(1)) - 1
				if row >= m.n {
					return
				}
				if m.rows != nil {
					row = m.rows[row]
				}
				if err := files.read(p, sample, row); err != nil {
					mu.Lock()
					failed = append(failed, failure{row, err})
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	slices.SortFunc(failed, func(a, b failure) int { return cmp.Compare(a.at, b.at) })
	errs := make([]error, len(failed))
	for i, f := range failed {
		errs[i] = f.err
	}
	return errs
}
