package data

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"steadyfit/internal/dtype"
)

// Shuffle returns the dataset in a random order that depends only on the seed, the epoch and the
// number of samples. It needs 4 bytes per sample, and at most 4 MiB.
func (m *InMemory) Shuffle(seed uint64) *InMemory {
	v := m.view()
	v.shuffled, v.seed = true, seed
	return v
}

// Split divides the dataset at random into two datasets. The first has the given fraction of the
// samples, and both keep the order of the samples. They need 4 bytes per sample. An empty part is an error. For a
// validation part of 10%:
//
//	train, validation, err := all.Split(0.9, seed)
func (m *InMemory) Split(fraction float64, seed uint64) (first, second *InMemory, err error) {
	if !(fraction > 0 && fraction < 1) {
		return nil, nil, fmt.Errorf("%s: cannot split at %v: the fraction must be above 0 and below 1", m.name, fraction)
	}
	k := int(math.Round(fraction * float64(m.n)))
	if k == 0 || k == m.n {
		return nil, nil, fmt.Errorf("%s: cannot split %d samples at %v: one part would be empty", m.name, m.n, fraction)
	}
	var reused [2][]uint32
	rows := newOrder(m.n, m.rows, &reused[0], seed, splitStream).between(&reused[1], 0, m.n)
	slices.Sort(rows[:k])
	slices.Sort(rows[k:])
	first = m.pick(rows[:k], fmt.Sprintf("%d of %d samples", k, m.n))
	second = m.pick(rows[k:], fmt.Sprintf("the other %d of %d samples", m.n-k, m.n))
	return first, second, nil
}

// pick returns the samples at rows.
func (m *InMemory) pick(rows []uint32, what string) *InMemory {
	v := m.view()
	v.name = fmt.Sprintf("%s (%s)", m.name, what)
	v.rows, v.n = rows, len(rows)
	return v
}

func (m *InMemory) selected(fields ...string) (*InMemory, error) {
	if len(fields) == 0 {
		return nil, fmt.Errorf("%s: a dataset needs at least one field: %w", m.name, ErrField)
	}
	v := m.view()
	v.columns = nil
	for _, name := range fields {
		c, ok := m.column(name)
		if !ok {
			return nil, m.noField(name)
		}
		v.columns = append(v.columns, c)
	}
	return v, nil
}

// Drop returns the dataset without the named fields. Names in LeftOut may be missing.
func (m *InMemory) Drop(fields ...string) (*InMemory, error) {
	var left []string
	known := slices.Clone(m.out)
	for _, c := range m.columns {
		if !slices.Contains(fields, c.name) {
			left = append(left, c.name)
		}
		if known = append(known, c.columns...); c.columns == nil {
			known = append(known, strings.TrimPrefix(c.name, KeptPrefix))
		}
	}
	for _, name := range fields {
		if _, ok := m.column(name); !ok && !slices.Contains(m.out, name) {
			return nil, fmt.Errorf("%s: no field or column %q; the names are %s: %w", m.name, name, list(known), ErrField)
		}
	}
	return m.selected(left...)
}

// editable returns a view with a copy of the columns, and the index of a field.
func (m *InMemory) editable(field string) (v *InMemory, at int, err error) {
	at = slices.IndexFunc(m.columns, func(c column) bool { return c.name == field })
	if at < 0 {
		return nil, 0, m.noField(field)
	}
	v = m.view()
	v.columns = slices.Clone(m.columns)
	return v, at, nil
}

// oneHot is the name of the function of OneHot.
const oneHot = "one-hot"

// OneHot returns the dataset with each class number of a field replaced by a row of 1 for the class and 0 for the other
// classes. A last dimension of size 1 is removed before. A number that is no class is ErrLabel.
func (m *InMemory) OneHot(field string, classes int) (*InMemory, error) {
	v, at, err := m.editable(field)
	if err == nil {
		err = Check(m, field, Values{Classes: classes})
	}
	if err != nil {
		return nil, err
	}
	c := &v.columns[at]
	stored, err := c.stored()
	if err != nil {
		return nil, err
	}
	numbers, names, columns, shape := make(vec[int64], stored.len()), c.classes, c.columns, c.shape
	for i := range numbers {
		numbers[i], _ = c.kind.Int(stored.element(i)) // Check has read it
	}
	if n := len(shape); n > 0 && shape[n-1] == 1 {
		shape = shape[:n-1]
	}
	c.values, c.kind = numbers, numbers.kind()
	v, err = mapField(v, field, oneHot, append(slices.Clone(shape), classes), func(dst []float32, src []int64) {
		clear(dst)
		for i, class := range src {
			dst[i*classes+int(class)] = 1
		}
	})
	if err == nil {
		v.columns[at].classes, v.columns[at].columns = names, columns
	}
	return v, err
}

// sampleWeight is the field of WithSampleWeights, and the model input for weights.
const sampleWeight = "sample_weight"

// WithSampleWeights adds the field sample_weight, float32, with the weight of each sample's class. A class without an
// entry in weights has weight 1, as with Keras' class_weight. labelField must have one integer per sample. A weight
// that is negative or not finite is an error, and so is an existing field sample_weight.
func WithSampleWeights(m *InMemory, labelField string, weights map[int64]float64) (*InMemory, error) {
	c, ok := m.column(labelField)
	if !ok {
		return nil, m.noField(labelField)
	}
	if _, ok := m.column(sampleWeight); ok {
		return nil, fmt.Errorf("%s: class weights add the field %s, which already exists: %w", m.name, sampleWeight, ErrField)
	}
	if made, ok := c.made.(*mapped[float32, int64]); ok && made.name == oneHot {
		c = made.of
	}
	stored, err := c.stored()
	if err != nil {
		return nil, err
	}
	if c.kind.Kind == dtype.StringKind || c.width != 1 {
		return nil, fmt.Errorf("%s: field %q is %s; class weights need one integer label per sample: %w",
			m.name, labelField, describeField(c.kind.Name, c.shape), ErrField)
	}
	if err := Check(m, labelField, Values{Integers: &[2]int64{math.MinInt64, math.MaxInt64}}); err != nil {
		return nil, err
	}
	for class, w := range weights {
		if !(w >= 0 && w <= math.MaxFloat32) {
			return nil, fmt.Errorf("weight %v of class %d: a weight must be a finite number of 0 or more", w, class)
		}
	}
	values := make([]float32, stored.len())
	for i := range values {
		values[i] = 1
		class, _ := c.kind.Int(stored.element(i))
		if w, ok := weights[class]; ok {
			values[i] = float32(w)
		}
	}
	v := m.view()
	v.columns = append(slices.Clone(m.columns), column{
		name: sampleWeight, width: 1, kind: dtype.For[float32](), values: vec[float32](values), file: c.file,
	})
	return v, nil
}

func describeField(typeName string, shape []int) string {
	return fmt.Sprintf("%s %v", typeName, shape)
}
