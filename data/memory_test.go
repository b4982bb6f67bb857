package data

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// counted returns a dataset of n samples: x is [10i, 10i+1] and y is i.
func counted(t testing.TB, n int) *InMemory {
	t.Helper()
	x, y := make([]float32, 0, 2*n), make([]int64, n)
	for i := range n {
		x = append(x, float32(i*10), float32(i*10+1))
		y[i] = int64(i)
	}
	m := dataset(t, "counted",
		Field{"x", Array{[]int{n, 2}, x}},
		Field{"y", Array{[]int{n}, y}})
	return m
}

// dataset returns a dataset of arrays.
func dataset(t testing.TB, name string, fields ...Field) *InMemory {
	t.Helper()
	m, err := New(name, fields...)
	require.NoError(t, err)
	return m
}

// split returns the parts of a dataset.
func split(t testing.TB, m *InMemory, fraction float64, seed uint64) (first, second *InMemory) {
	t.Helper()
	first, second, err := m.Split(fraction, seed)
	require.NoError(t, err)
	return first, second
}

// samples runs a pass, checks each batch, and returns the samples in order.
func samples(t testing.TB, ds Dataset, p Pass) []int64 {
	t.Helper()
	var all []int64
	index := p.Skip
	for b, err := range ds.Batches(p) {
		require.NoError(t, err)
		require.Equal(t, index, b.Index)
		index++
		x, ok := b.Field("x")
		require.True(t, ok)
		y, ok := b.Field("y")
		require.True(t, ok)
		require.Equal(t, []int{b.Size, 2}, x.Shape)
		require.Equal(t, []int{b.Size}, y.Shape)
		require.LessOrEqual(t, b.Size, p.Batch)
		labels := y.Values.([]int64)
		require.Len(t, labels, b.Size)
		for i, l := range labels {
			require.Equal(t, []float32{float32(l * 10), float32(l*10 + 1)}, x.Values.([]float32)[2*i:2*i+2])
		}
		all = append(all, labels...)
	}
	return all
}

// finite describes values that are neither NaN nor infinite.
var finite = Values{Finite: true}

// spec returns the description of a field.
func spec(ds Dataset, field string) FieldSpec {
	for _, f := range ds.Fields() {
		if f.Name == field {
			return f
		}
	}
	return FieldSpec{}
}

func imageFields(ds Dataset) (names []string) {
	for _, f := range ds.Fields() {
		if f.Image {
			names = append(names, f.Name)
		}
	}
	return names
}

func upTo(n int) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = int64(i)
	}
	return all
}

func TestNewRefuses(t *testing.T) {
	one := Array{[]int{1}, []float32{1}}
	for _, c := range []struct {
		name   string
		fields []Field
		kind   error
		says   string
	}{
		{"no field", nil, ErrField, "at least one field"},
		{"no name", []Field{{"", one}}, ErrField, "no name"},
		{"same name", []Field{{"x", one}, {"x", one}}, ErrField, `"x" exists twice`},
		{"type", []Field{{"x", Array{[]int{1}, []int{1}}}}, ErrUnsupported, "type []int"},
		{"no values", []Field{{"x", Array{[]int{1}, nil}}}, ErrUnsupported, "type <nil>"},
		{"shape", []Field{{"x", Array{[]int{2, 2}, []int8{1, 2, 3}}}}, ErrFormat,
			"shape [2 2] has 4 elements, but there are 3"},
		{"negative", []Field{{"x", Array{[]int{-1}, []int8{}}}}, ErrFormat, "negative"},
		{"overflow", []Field{{"x", Array{[]int{1 << 40, 1 << 40}, []int8{}}}}, ErrFormat, "address"},
		{"scalar", []Field{{"x", Array{nil, []int8{1}}}}, ErrFormat, "single value"},
		{"empty", []Field{{"x", Array{[]int{0, 4}, []int8{}}}}, ErrFormat, "no values"},
		{"empty samples", []Field{{"x", Array{[]int{4, 0}, []int8{}}}}, ErrFormat, "no values"},
		{"counts", []Field{{"x", one}, {"y", Array{[]int{2}, []bool{true, false}}}}, ErrFormat, `"y" has 2 samples, but "x" has 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := New("set", c.fields...)
			require.Nil(t, m)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestEveryElementType(t *testing.T) {
	all := []any{
		[]float32{1, 2, 3}, []float64{1, 2, 3}, []int8{1, 2, 3}, []int16{1, 2, 3}, []int32{1, 2, 3}, []int64{1, 2, 3},
		[]uint8{1, 2, 3}, []uint16{1, 2, 3}, []uint32{1, 2, 3}, []uint64{1, 2, 3}, []bool{true, false, true},
		[]string{"a", "b", "c"},
	}
	var fields []Field
	for i, v := range all {
		fields = append(fields, Field{fmt.Sprint(i), Array{[]int{3}, v}})
	}
	m := dataset(t, "types", fields...)
	for _, ds := range []Dataset{m, Prefetch(m, 1)} {
		for b, err := range ds.Batches(Pass{Batch: 3}) {
			require.NoError(t, err)
			for i, f := range b.Fields {
				require.Equal(t, all[i], f.Values)
				require.Equal(t, fmt.Sprintf("[]%s", m.Fields()[i].Type), fmt.Sprintf("%T", f.Values))
			}
		}
	}
}

func TestBatches(t *testing.T) {
	m := counted(t, 10)
	for _, c := range []struct {
		pass Pass
		want []int64
	}{
		{Pass{Batch: 1}, upTo(10)},
		{Pass{Batch: 4}, upTo(10)},
		{Pass{Batch: 5}, upTo(10)},
		{Pass{Batch: 10}, upTo(10)},
		{Pass{Batch: math.MaxInt}, upTo(10)},
		{Pass{Batch: 4, DropRemainder: true}, upTo(8)},
		{Pass{Batch: 11, DropRemainder: true}, nil},
		{Pass{Batch: 4, Skip: 1}, upTo(10)[4:]},
		{Pass{Batch: 4, Skip: 2}, upTo(10)[8:]},
		{Pass{Batch: 4, Skip: 3}, nil},
		{Pass{Batch: 4, Skip: 2, DropRemainder: true}, nil},
		{Pass{Batch: math.MaxInt, Skip: math.MaxInt}, nil},
	} {
		require.Equal(t, c.want, samples(t, m, c.pass), "%+v", c.pass)
		require.Equal(t, c.want, samples(t, Prefetch(m, 2), c.pass), "prefetched, %+v", c.pass)
	}
	for _, p := range []Pass{{}, {Batch: -1}, {Batch: 1, Epoch: -1}, {Batch: 1, Skip: -1}} {
		for _, ds := range []Dataset{m, Prefetch(m, 2)} {
			calls := 0
			for _, err := range ds.Batches(p) {
				require.ErrorIs(t, err, errPass)
				calls++
			}
			require.Equal(t, 1, calls)
		}
	}
}

// Changing a batch in place, for example to normalise it, must not change the dataset.
func TestBatchMayBeChanged(t *testing.T) {
	m := counted(t, 8)
	for b, err := range m.Batches(Pass{Batch: 4}) {
		require.NoError(t, err)
		clear(b.Fields[0].Values.([]float32))
		clear(b.Fields[1].Values.([]int64))
	}
	require.Equal(t, upTo(8), samples(t, m, Pass{Batch: 4}))
}

// The number of allocations does not depend on the number of batches and passes.
func TestNoAllocationPerBatch(t *testing.T) {
	m := counted(t, 4099)
	view, _ := split(t, m, 0.5, 1)
	made, err := mapField(m, "x", "copy", []int{2}, func(dst, src []float32) { copy(dst, src) })
	require.NoError(t, err)
	walk := func(ds Dataset, batch int) float64 {
		epoch := 0
		return testing.AllocsPerRun(5, func() {
			for _, err := range ds.Batches(Pass{Batch: batch, Epoch: epoch}) {
				if err != nil {
					t.Error(err)
				}
			}
			epoch++
		})
	}
	for name, ds := range map[string]Dataset{
		"memory": m, "shuffled": m.Shuffle(1), "part": view, "shuffled part": view.Shuffle(1),
	} {
		require.LessOrEqual(t, walk(ds, 4), 5.0, name)
		require.Equal(t, walk(ds, 2000), walk(ds, 4), name)
		// A pass allocates its goroutine and closures; a batch allocates nothing.
		ahead := Prefetch(ds, 3)
		require.LessOrEqual(t, walk(ahead, 4), 30.0, "prefetched %s", name)
	}
	workers := Prefetch(made.Workers(3), 2)
	require.Less(t, walk(workers, 16)-walk(workers, 2000), 24.0, "samples that workers make")
}

// The expected orders come from a second implementation of order.go, in Python. Resumed and repeated
// trainings depend on them.
func TestOrderGolden(t *testing.T) {
	for _, c := range []struct {
		seed, stream uint64
		want         []uint32
	}{
		{0, 0, []uint32{11, 0, 3, 9, 1, 2, 6, 5, 7, 8, 10, 4}},
		{0, 1, []uint32{2, 0, 9, 1, 6, 10, 11, 7, 3, 4, 8, 5}},
		{1, 0, []uint32{1, 9, 4, 2, 10, 0, 7, 6, 5, 8, 11, 3}},
		{1, 1, []uint32{2, 8, 7, 3, 11, 6, 0, 4, 9, 1, 5, 10}},
		{1 << 63, 2, []uint32{0, 7, 11, 6, 3, 1, 9, 10, 8, 4, 2, 5}},
		{1, splitStream, []uint32{2, 3, 7, 9, 1, 11, 4, 6, 0, 5, 10, 8}},
	} {
		order := make([]uint32, 12)
		shuffleOrder(order, c.seed, c.stream)
		require.Equal(t, c.want, order, "seed %d, stream %d", c.seed, c.stream)
	}
}

func TestShuffle(t *testing.T) {
	m := counted(t, 100)
	s := m.Shuffle(5)
	first, again, next := samples(t, s, Pass{Batch: 7}), samples(t, s, Pass{Batch: 9}),
		samples(t, s, Pass{Batch: 7, Epoch: 1})
	require.Equal(t, first, again, "the order does not depend on the batch size")
	require.NotEqual(t, first, next)
	require.NotEqual(t, first, samples(t, m.Shuffle(6), Pass{Batch: 7}))
	require.Equal(t, upTo(100), samples(t, m, Pass{Batch: 7}), "the original is as it was")
	for _, order := range [][]int64{first, next} {
		slices.Sort(order)
		require.Equal(t, upTo(100), order)
	}
}

func TestSplit(t *testing.T) {
	m := counted(t, 100)
	a, b := split(t, m, 0.9, 1)
	require.Equal(t, 90, a.Len())
	require.Equal(t, 10, b.Len())
	inA, inB := samples(t, a, Pass{Batch: 8}), samples(t, b, Pass{Batch: 8})
	require.True(t, slices.IsSorted(inA) && slices.IsSorted(inB))
	both := slices.Concat(inA, inB)
	slices.Sort(both)
	require.Equal(t, upTo(100), both, "disjoint and exhaustive")

	a2, b2 := split(t, m, 0.9, 1)
	require.Equal(t, inA, samples(t, a2, Pass{Batch: 8}))
	require.Equal(t, inB, samples(t, b2, Pass{Batch: 8}))
	_, b3 := split(t, m, 0.9, 2)
	require.NotEqual(t, inB, samples(t, b3, Pass{Batch: 8}))

	// Parts of a shuffled part contain only samples of that part.
	c, d := split(t, b, 0.5, 3)
	both = slices.Concat(samples(t, c.Shuffle(1), Pass{Batch: 3}), samples(t, d, Pass{Batch: 3}))
	slices.Sort(both)
	require.Equal(t, inB, both)

	require.Equal(t, "counted (90 of 100 samples)", a.Name())
	require.Equal(t, "counted (the other 10 of 100 samples)", b.Name())
	for _, bad := range []float64{0, 1, -0.5, 1.5, math.NaN(), 0.001, 0.999} {
		_, _, err := m.Split(bad, 1)
		require.Error(t, err, "%v", bad)
	}
}

// Class numbers become one-hot vectors, and class weights are those of the numbers.
func TestOneHot(t *testing.T) {
	m := dataset(t, "set", Field{"x", Array{[]int{3}, []int8{1, 2, 3}}}, Field{"y", Array{[]int{3, 1}, []float32{2, 0, 1}}},
		Field{"mask", Array{[]int{3, 2}, []uint8{0, 1, 1, 1, 0, 0}}}, Field{"text", Array{[]int{3}, make([]string, 3)}})
	hot, err := m.OneHot("y", 3)
	require.NoError(t, err)
	hot, err = hot.OneHot("mask", 2)
	require.NoError(t, err)
	f := fieldsOf(t, hot)
	require.Equal(t, Array{[]int{3, 3}, []float32{0, 0, 1, 1, 0, 0, 0, 1, 0}}, f["y"])
	require.Equal(t, Array{[]int{3, 2, 2}, []float32{1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0}}, f["mask"])
	weighted, err := WithSampleWeights(hot, "y", map[int64]float64{2: 5})
	require.NoError(t, err)
	require.Equal(t, []float32{5, 1, 1}, fieldsOf(t, weighted)[sampleWeight].Values)
	_, err = m.OneHot("y", 2)
	require.ErrorIs(t, err, ErrLabel)
	require.ErrorContains(t, err, "set: sample 0, column y[0]: found 2, expected a class from 0 to 1")
	_, err = m.OneHot("text", 2)
	require.ErrorIs(t, err, ErrField)
	_, err = m.OneHot("z", 2)
	require.ErrorIs(t, err, ErrField)
}

func TestWithSampleWeights(t *testing.T) {
	m := dataset(t, "set",
		Field{"y", Array{[]int{5}, []uint8{0, 1, 2, 1, 9}}},
		Field{"wide", Array{[]int{5, 2}, make([]int8, 10)}},
		Field{"text", Array{[]int{5}, make([]string, 5)}})
	w, err := WithSampleWeights(m, "y", map[int64]float64{0: 0, 1: 2.5, 9: 0.5})
	require.NoError(t, err)
	for b, err := range w.Batches(Pass{Batch: 5}) {
		require.NoError(t, err)
		a, ok := b.Field(sampleWeight)
		require.True(t, ok)
		require.Equal(t, Array{[]int{5}, []float32{0, 2.5, 1, 2.5, 0.5}}, a)
	}
	for _, c := range []struct {
		from    *InMemory
		field   string
		weights map[int64]float64
	}{
		{m, "z", nil}, {m, "wide", nil}, {m, "text", nil}, {w, "y", nil},
		{m, "y", map[int64]float64{1: -1}}, {m, "y", map[int64]float64{1: math.NaN()}},
		{m, "y", map[int64]float64{1: math.Inf(1)}},
	} {
		_, err := WithSampleWeights(c.from, c.field, c.weights)
		require.Error(t, err)
	}
}

func TestBatchSlice(t *testing.T) {
	m := dataset(t, "m",
		Field{"x", Array{[]int{4, 2}, []float32{0, 1, 2, 3, 4, 5, 6, 7}}},
		Field{"y", Array{[]int{4}, []int64{10, 11, 12, 13}}})
	for b, err := range m.Batches(Pass{Batch: 4}) {
		require.NoError(t, err)
		part := b.Slice(1, 3)
		require.Equal(t, 2, part.Size)
		x, _ := part.Field("x")
		require.Equal(t, Array{[]int{2, 2}, []float32{2, 3, 4, 5}}, x)
		y, _ := part.Field("y")
		require.Equal(t, Array{[]int{2}, []int64{11, 12}}, y)
		require.Equal(t, 4, b.Size)
		require.Equal(t, 4, b.Slice(-1, 9).Size)
		require.Equal(t, 0, b.Slice(3, 2).Size)
		require.Equal(t, 0, b.Slice(9, 12).Size)
	}
}

// describe returns a dataset in one line, such as "digits: 1438 samples; x uint8 [64], y int64 []".
func describe(ds Dataset) string {
	var fields []string
	for _, f := range ds.Fields() {
		fields = append(fields, f.Name+" "+describeField(f.Type, f.Shape))
	}
	return fmt.Sprintf("%s: %d samples; %s", ds.Name(), ds.Len(), strings.Join(fields, ", "))
}
