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

func twice(t *testing.T, step *tfbind.Step) []float32 {
	t.Helper()
	require.NoError(t, step.Run(t.Context()))
	out, err := step.Output(0)
	require.NoError(t, err)
	defer out.Close()
	v, err := tfbind.Values[float32](out)
	require.NoError(t, err)
	return v
}

func TestBorrowedInputIsReadInPlace(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{output(t, s, "x")}, Fetches: []tfbind.Output{output(t, s, "twice")}})
	require.NoError(t, err)
	defer step.Close()
	before := tfbind.Live().StepBytes
	values := make([]float32, borrowedValues)
	require.NoError(t, step.Borrow(0, tfbind.SliceOf(values), borrowedValues))
	values[0], values[borrowedValues-1] = 3, 4
	got := twice(t, step)
	assert.Equal(t, []float32{6, 8}, []float32{got[0], got[borrowedValues-1]})
	values[0] = 5
	assert.Equal(t, float32(10), twice(t, step)[0], "until Release")
	assert.Equal(t, before, tfbind.Live().StepBytes, "no buffer beside the values")

	other := make([]float32, borrowedValues)
	require.NoError(t, step.Borrow(0, tfbind.SliceOf(other), 2, borrowedValues/2))
	assert.Zero(t, twice(t, step)[0], "another slice takes its place")
	kept, err := step.Release()
	require.NoError(t, err)
	assert.False(t, kept)
	require.ErrorIs(t, step.Run(t.Context()), tfbind.ErrNotFed)

	require.NoError(t, step.Borrow(0, tfbind.SliceOf(values), borrowedValues))
	require.NoError(t, tfbind.Set(step, 0, []float32{7}, 1))
	assert.Equal(t, []float32{14}, twice(t, step), "what is set takes its place, too")
	require.NoError(t, step.Borrow(0, tfbind.SliceOf(values), borrowedValues))
	require.NoError(t, step.Close())
	_, err = step.Release()
	require.ErrorIs(t, err, tfbind.ErrClosed)
}

// A variable that was assigned an input shares the borrowed memory until the variable changes
// or the session is closed. The memory stays pinned until then.
func TestBorrowedInputThatTheModelKeeps(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{output(t, s, "x")}, Targets: []tfbind.Operation{operation(t, s, "assign")}})
	require.NoError(t, err)
	defer step.Close()
	borrow := func(first float32) weak.Pointer[float32] {
		values := make([]float32, borrowedValues)
		values[0] = first
		require.NoError(t, step.Borrow(0, tfbind.SliceOf(values), borrowedValues))
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

// TensorFlow would copy values that are not 64-byte aligned.
func TestBorrowUnaligned(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{output(t, s, "x")}, Fetches: []tfbind.Output{output(t, s, "twice")}})
	require.NoError(t, err)
	defer step.Close()
	values := make([]float32, borrowedValues)
	assert.True(t, tfbind.SliceOf(values).Aligned())
	assert.True(t, tfbind.SliceOf(values[16:]).Aligned())
	assert.False(t, tfbind.SliceOf(values[1:]).Aligned())
	assert.False(t, tfbind.SliceOf(values[:0]).Aligned())
	require.NoError(t, step.Borrow(0, tfbind.SliceOf(values[16:18]), 2))
	require.ErrorIs(t, step.Borrow(0, tfbind.SliceOf(values[1:3]), 2), tfbind.ErrInvalidArgument)
}

func TestBorrowErrors(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{output(t, s, "x")}, Fetches: []tfbind.Output{output(t, s, "twice")}})
	require.NoError(t, err)
	defer step.Close()
	values := make([]float32, borrowedValues)[:3]
	require.ErrorIs(t, step.Borrow(1, tfbind.SliceOf(values), 3), tfbind.ErrInvalidArgument)
	require.ErrorIs(t, step.Borrow(0, tfbind.SliceOf(values), 4), tfbind.ErrShape)
	require.ErrorIs(t, step.Borrow(0, tfbind.SliceOf(values), -3), tfbind.ErrShape)
	require.ErrorIs(t, step.Borrow(0, tfbind.SliceOf([]int32{1}), 1), tfbind.ErrType)
	require.ErrorIs(t, step.Borrow(0, tfbind.SliceOf([]float32{}), 0), tfbind.ErrInvalidArgument)
	// A slice inside a struct that also has pointers.
	mixed := &struct {
		values [borrowedValues]float32
		text   *string
	}{text: new(string)}
	mixed.values[0] = 1
	require.NoError(t, step.Borrow(0, tfbind.SliceOf(mixed.values[:]), borrowedValues))
	assert.Equal(t, float32(2), twice(t, step)[0])
	require.NoError(t, step.Close())
	require.ErrorIs(t, step.Borrow(0, tfbind.SliceOf(values), 3), tfbind.ErrClosed)
}
