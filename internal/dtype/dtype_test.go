package dtype

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	for _, want := range types {
		assert.Same(t, want, ByName(want.Name))
		assert.Same(t, want, ByCode(want.Code))
		if want.Slice != nil {
			assert.Same(t, want, Of(want.Make(2)))
			assert.Equal(t, want.Name, want.Slice.Elem().Name())
		}
		if want.NumPy != "" {
			assert.Same(t, want, ByNumPy(want.NumPy))
		}
	}
	assert.Equal(t, Type{Name: "float64", Kind: FloatKind, Size: 8, Code: 2, NumPy: "f8"}, plain(*For[float64]()))
	assert.Equal(t, Type{Name: "int16", Kind: IntKind, Size: 2, Code: 5, NumPy: "i2"}, plain(*For[int16]()))
	assert.Equal(t, Type{Name: "uint32", Kind: UintKind, Size: 4, Code: 22, NumPy: "u4"}, plain(*For[uint32]()))
	type named uint16
	for _, values := range []any{nil, 1, []int{1}, []named{1}, [1]int8{}, [][]int8{}, []any{}} {
		assert.Nil(t, Of(values), "%T", values)
	}
	assert.Nil(t, For[named]())
	for _, code := range []int32{-1, 0, 8, 24, math.MaxInt32} {
		assert.Nil(t, ByCode(code))
	}
	floats := []float32{1, 2, 3}
	kind, first, n := Data(floats)
	assert.Same(t, For[float32](), kind)
	assert.Equal(t, unsafe.Pointer(&floats[0]), first)
	assert.Equal(t, 3, n)
	kind, first, n = Data([]string(nil))
	assert.Same(t, For[string](), kind)
	assert.Nil(t, first)
	assert.Zero(t, n)
	kind, _, _ = Data(7)
	assert.Nil(t, kind)
	assert.Zero(t, testing.AllocsPerRun(10, func() { Data(floats) }))
}

func plain(t Type) Type {
	t.Slice, t.float, t.int, t.append = nil, nil, nil, nil
	return t
}

func TestElements(t *testing.T) {
	check(t, float32(0.1), float64(float32(0.1)), 0, false, "0.1")
	check(t, float32(-3), -3, -3, true, "-3")
	check(t, 1e21, 1e21, 0, false, "1e+21")
	check(t, 1<<53-1.0, 1<<53-1, 1<<53-1, true, "9.007199254740991e+15")
	check(t, 1<<53+0.0, 1<<53, 0, false, "9.007199254740992e+15")
	check(t, -1<<63+0.0, -1<<63, 0, false, "-9.223372036854776e+18")
	check(t, math.Inf(1), math.Inf(1), 0, false, "+Inf")
	check(t, int8(-128), -128, -128, true, "-128")
	check(t, int64(math.MinInt64), math.MinInt64, math.MinInt64, true, "-9223372036854775808")
	check(t, uint8(255), 255, 255, true, "255")
	check(t, uint64(math.MaxInt64), math.MaxInt64, math.MaxInt64, true, "9223372036854775807")
	check(t, uint64(math.MaxInt64+1), math.MaxInt64+1, 0, false, "9223372036854775808")
	check(t, true, 1, 1, true, "true")
	check(t, false, 0, 0, true, "false")
	text, nan := "a,b", math.NaN()
	assert.Equal(t, "a,b", string(For[string]().AppendText(nil, unsafe.Pointer(&text))))
	_, ok := For[string]().Int(unsafe.Pointer(&text))
	assert.False(t, ok)
	_, ok = For[float64]().Int(unsafe.Pointer(&nan))
	assert.False(t, ok)
}

func check[T any](t *testing.T, v T, float float64, n int64, ok bool, text string) {
	t.Helper()
	p, kind := unsafe.Pointer(&v), For[T]()
	require.NotNil(t, kind)
	assert.Equal(t, float, kind.Float(p))
	got, gotOK := kind.Int(p)
	assert.Equal(t, ok, gotOK, "%v", v)
	if ok {
		assert.Equal(t, n, got)
	}
	assert.Equal(t, text, string(kind.AppendText(nil, p)))
}
