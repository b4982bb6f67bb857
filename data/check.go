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
)

// CheckLabels reports the first label of a field that is not an integer from 0
// to classes-1, as a *RowError that is ErrLabel.
// TensorFlow itself does not name the sample: its sparse cross-entropy fails on a CPU,
// and on a GPU the loss becomes NaN (documented at
// tf.nn.sparse_softmax_cross_entropy_with_logits).
// Every element counts if the field has several per sample. The dataset is
// walked once, in its own order.
func CheckLabels(ds Dataset, field string, classes int) error {
	if classes < 1 {
		return fmt.Errorf("%s: cannot check labels against %d classes: at least 1 is needed", ds.Name(), classes)
	}
	return walk(ds, []string{field}, func(f Field, v vector) (int, *RowError, error) {
		label, ok := integersOf(v)
		if !ok {
			return 0, nil, fmt.Errorf("%s: field %q is of type %s; labels are integers: %w", ds.Name(), field, v.typeName(), ErrField)
		}
		for i := range v.len() {
			if class, ok := label(i); !ok || class < 0 || class >= int64(classes) {
				fix := "correct the label"
				if ok && class > 0 {
					fix = fmt.Sprintf("correct the label, or train a model with more than %d classes", classes)
				}
				return i, &RowError{
					Expected: fmt.Sprintf("a class from 0 to %d", classes-1),
					Fix:      fix,
					Err:      ErrLabel,
				}, nil
			}
		}
		return 0, nil, nil
	})
}

// CheckIntegers reports the first value of a field that is not an integer from low to
// high, as a *RowError that is ErrInteger. Floats with whole values below 2^53 are
// integers. The dataset is walked once, in its own order.
func CheckIntegers(ds Dataset, field string, low, high int64) error {
	return walk(ds, []string{field}, func(f Field, v vector) (int, *RowError, error) {
		integer, ok := integersOf(v)
		if !ok {
			return 0, nil, fmt.Errorf("%s: field %q is of type %s, expected integers: %w", ds.Name(), field, v.typeName(), ErrField)
		}
		for i := range v.len() {
			if n, ok := integer(i); !ok || n < low || n > high {
				expected := fmt.Sprintf("an integer from %d to %d", low, high)
				if low == math.MinInt64 && high == math.MaxInt64 {
					expected = "a signed integer of 64 bits"
				}
				if strings.HasPrefix(v.typeName(), "float") {
					expected += " (of floats, below 2^53)"
				}
				return i, &RowError{Expected: expected, Fix: "correct the value, or leave the sample out", Err: ErrInteger}, nil
			}
		}
		return 0, nil, nil
	})
}

// CheckFinite reports the first NaN or infinity in the fields of floating-point
// numbers, as a *RowError that is ErrNotFinite. The dataset is walked once, in
// its own order. Of fields that are made by Augment or Scale, what these get is
// looked at, and images are not.
func CheckFinite(ds Dataset) error {
	if m, ok := inMemory(ds); ok {
		ds = m.beforeTame()
	}
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

// CheckMagnitude reports the first value of a field of floating-point numbers that is limit
// or more, or -limit or less, as a *RowError that is ErrNotFinite. Fields of other types have
// none. The dataset is walked once, in its own order.
func CheckMagnitude(ds Dataset, field string, limit float64) error {
	if m, ok := inMemory(ds); ok {
		ds = m.beforeTame()
	}
	kind := ""
	for _, f := range ds.Fields() {
		if f.Name == field {
			kind = f.Type
		}
	}
	if kind != "float64" && (kind != "float32" || limit > math.MaxFloat32) {
		return nil
	}
	return walk(ds, []string{field}, func(f Field, v vector) (int, *RowError, error) {
		at := -1
		switch values := f.Values.(type) {
		case []float32:
			at = slices.IndexFunc(values, func(v float32) bool { return math.Abs(float64(v)) >= limit })
		case []float64:
			at = slices.IndexFunc(values, func(v float64) bool { return math.Abs(v) >= limit })
		}
		if at < 0 {
			return 0, nil, nil
		}
		return at, &RowError{
			Expected: fmt.Sprintf("a number below %.3g", limit),
			Fix:      "scale the field down, or leave the sample out",
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
	m, located := inMemory(ds)
	if located {
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
			if located {
				m.locate(bad, name)
			}
			bad.Found = string(v.appendText(nil, at))
			return bad
		}
		seen += b.Size
	}
	return nil
}

// inMemory is the InMemory that batches come from, whether it is read ahead or not.
func inMemory(ds Dataset) (*InMemory, bool) {
	if ahead, ok := ds.(*Prefetched); ok {
		ds = ahead.ds
	}
	m, ok := ds.(*InMemory)
	return m, ok
}

// beforeTame is the dataset without the stages at which no value stops being
// finite.
func (m *InMemory) beforeTame() *InMemory {
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

// CheckImages decodes every image of a dataset of OpenImages once, by its workers,
// and reports those that cannot be read or are damaged: the first eight of them in
// the order of the files, joined as by errors.Join, if there is more than one. It
// looks at nothing of other datasets. ctx is looked at before each image; the
// goroutines have ended when it returns.
func CheckImages(ctx context.Context, ds Dataset) error {
	if ctx == nil {
		return fmt.Errorf("checking images: the context is nil; give one, such as context.Background(): %w", ErrOption)
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

// files are those that a column is made of.
func (c *column) files() (*imageFiles, bool) {
	for c != nil && c.made != nil {
		if f, ok := c.made.(*imageFiles); ok {
			return f, true
		}
		c = c.made.under()
	}
	return nil, false
}

// checkFiles decodes the images of a dataset, and returns the errors in the order
// of the files.
func (m *InMemory) checkFiles(ctx context.Context, files *imageFiles) []error {
	type failure struct {
		row int
		err error
	}
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
	slices.SortFunc(failed, func(a, b failure) int { return cmp.Compare(a.row, b.row) })
	errs := make([]error, len(failed))
	for i, f := range failed {
		errs[i] = f.err
	}
	return errs
}

// locate replaces a position in the dataset by the place in the file that the
// sample was read from.
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

// integersOf reads a vector's elements as integers; false from the function it
// returns means that the element is not an integer. There is none for strings.
func integersOf(v vector) (func(i int) (int64, bool), bool) {
	switch v := v.(type) {
	case vec[int8]:
		return whole(v), true
	case vec[int16]:
		return whole(v), true
	case vec[int32]:
		return whole(v), true
	case vec[int64]:
		return whole(v), true
	case vec[uint8]:
		return whole(v), true
	case vec[uint16]:
		return whole(v), true
	case vec[uint32]:
		return whole(v), true
	case vec[uint64]:
		return func(i int) (int64, bool) { return int64(v[i]), v[i] <= math.MaxInt64 }, true
	case vec[float32]:
		return wholeFloats(v), true
	case vec[float64]:
		return wholeFloats(v), true
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

func whole[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](v []T) func(int) (int64, bool) {
	return func(i int) (int64, bool) { return int64(v[i]), true }
}

// wholeFloats takes floats with whole values, which is how pandas writes
// integers from a column that once had gaps.
func wholeFloats[T float32 | float64](v []T) func(int) (int64, bool) {
	return func(i int) (int64, bool) {
		f := float64(v[i])
		// From 2^53 on a float64 stands for several integers.
		if f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
			return 0, false
		}
		return int64(f), true
	}
}
