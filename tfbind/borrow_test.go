package tfbind_test

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

const borrowedValues = 16 << 10 // 64 KiB, which Go aligns to 64 bytes

func read(t *testing.T, s *tfbind.Session, name string, feeds tfbind.Feeds) []float32 {
	t.Helper()
	out, err := s.Run(t.Context(), feeds, []tfbind.Output{output(t, s, name)})
	require.NoError(t, err)
	defer out.Close()
	v, err := tfbind.Values[float32](out[0])
	require.NoError(t, err)
	return v
}

// mustBorrow makes the first input read the values in place.
func mustBorrow(t *testing.T, step *tfbind.Step, values []float32, shape ...int64) {
	t.Helper()
	borrowed, err := step.Borrow(0, values, shape...)
	require.NoError(t, err)
	require.True(t, borrowed)
}

func twice(t *testing.T, step *tfbind.Step) []float32 {
	t.Helper()
	require.NoError(t, step.Run(t.Context()))
	v, _, err := step.Read(0, nil)
	require.NoError(t, err)
	return v.([]float32)
}

func TestBorrowedInputIsReadInPlace(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	before := tfbind.Live().StepBytes
	values := make([]float32, borrowedValues)
	mustBorrow(t, step, values, borrowedValues)
	values[0], values[borrowedValues-1] = 3, 4
	got := twice(t, step)
	assert.Equal(t, []float32{6, 8}, []float32{got[0], got[borrowedValues-1]})
	values[0] = 5
	assert.Equal(t, float32(10), twice(t, step)[0], "until Release")
	assert.Equal(t, before, tfbind.Live().StepBytes, "no buffer beside the values")

	other := make([]float32, borrowedValues)
	mustBorrow(t, step, other, 2, borrowedValues/2)
	assert.Zero(t, twice(t, step)[0], "another slice takes its place")
	kept, err := step.Release()
	require.NoError(t, err)
	assert.False(t, kept)
	require.ErrorIs(t, step.Run(t.Context()), tfbind.ErrNotFed)

	mustBorrow(t, step, values, borrowedValues)
	require.NoError(t, step.Set(0, []float32{7}, 1))
	assert.Equal(t, []float32{14}, twice(t, step), "what is set takes its place, too")
	mustBorrow(t, step, values, borrowedValues)
	require.NoError(t, step.Close())
	_, err = step.Release()
	require.ErrorIs(t, err, tfbind.ErrClosed)
}

// A variable that was assigned an input shares the borrowed memory until the variable changes
// or the session is closed. The memory stays pinned until then.
func TestBorrowedInputThatTheModelKeeps(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, nil, tfbind.RunOptions{Targets: []string{"assign"}})
	require.NoError(t, err)
	defer step.Close()
	borrow := func(first float32) weak.Pointer[float32] {
		values := make([]float32, borrowedValues)
		values[0] = first
		mustBorrow(t, step, values, borrowedValues)
		require.NoError(t, step.Run(t.Context()))
		return weak.Make(&values[0])
	}
	first := borrow(1)
	second := borrow(2)
	kept, err := step.Release()
	require.NoError(t, err)
	assert.True(t, kept)
	kept, err = step.Release()
	require.NoError(t, err)
	assert.False(t, kept, "it is said once")
	runtime.GC()
	require.NotNil(t, second.Value(), "the variable has it")
	assert.Equal(t, float32(2), read(t, s, "read", nil)[0])

	require.NoError(t, s.Close())
	runtime.GC()
	assert.Nil(t, first.Value(), "nothing refers to it any more")
	assert.Nil(t, second.Value(), "nothing refers to it any more")
}

// Values that are not 64-byte aligned are copied.
func TestBorrowUnaligned(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	values := make([]float32, borrowedValues)
	mustBorrow(t, step, values, borrowedValues)
	mustBorrow(t, step, values[16:18], 2)
	for _, unaligned := range [][]float32{values[1:3], values[:0]} {
		borrowed, err := step.Borrow(0, unaligned, int64(len(unaligned)))
		require.NoError(t, err)
		assert.False(t, borrowed)
		values[1] = 3 // after the copy
		assert.Equal(t, make([]float32, len(unaligned)), twice(t, step))
		values[1] = 0
	}
}

func TestBorrowErrors(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	values := make([]float32, borrowedValues)[:3]
	_, err = step.Borrow(1, values, 3)
	require.ErrorIs(t, err, tfbind.ErrInvalidArgument)
	_, err = step.Borrow(0, values, 4)
	require.ErrorIs(t, err, tfbind.ErrShape)
	_, err = step.Borrow(0, values, -3)
	require.ErrorIs(t, err, tfbind.ErrShape)
	_, err = step.Borrow(0, make([]int32, borrowedValues), borrowedValues)
	require.ErrorIs(t, err, tfbind.ErrType)
	_, err = step.Borrow(0, nil, 0)
	require.ErrorIs(t, err, tfbind.ErrType)
	// A slice inside a struct that also has pointers can be borrowed.
	mixed := &struct {
		values [borrowedValues]float32
		text   *string
	}{text: new(string)}
	mixed.values[0] = 1
	mustBorrow(t, step, mixed.values[:], borrowedValues)
	assert.Equal(t, float32(2), twice(t, step)[0])
	require.NoError(t, step.Close())
	_, err = step.Borrow(0, values, 3)
	require.ErrorIs(t, err, tfbind.ErrClosed)
}
