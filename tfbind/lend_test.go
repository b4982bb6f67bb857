package tfbind_test

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

const lentValues = 16 << 10 // 64 KiB, which Go begins at a multiple of 64 bytes

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

func TestLentInputIsReadInPlace(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{output(t, s, "x")}, Fetches: []tfbind.Output{output(t, s, "twice")}})
	require.NoError(t, err)
	defer step.Close()
	before := tfbind.Live().StepBytes
	values := make([]float32, lentValues)
	require.NoError(t, tfbind.Lend(step, 0, values, lentValues))
	values[0], values[lentValues-1] = 3, 4
	got := twice(t, step)
	assert.Equal(t, []float32{6, 8}, []float32{got[0], got[lentValues-1]})
	values[0] = 5
	assert.Equal(t, float32(10), twice(t, step)[0], "a loan lasts until it is taken back")
	assert.Equal(t, before, tfbind.Live().StepBytes, "no buffer beside the values")

	other := make([]float32, lentValues)
	require.NoError(t, tfbind.Lend(step, 0, other, 2, lentValues/2))
	assert.Zero(t, twice(t, step)[0], "another loan takes its place")
	kept, err := step.TakeBack()
	require.NoError(t, err)
	assert.False(t, kept)
	require.ErrorIs(t, step.Run(t.Context()), tfbind.ErrNotFed)

	require.NoError(t, tfbind.Lend(step, 0, values, lentValues))
	require.NoError(t, tfbind.Set(step, 0, []float32{7}, 1))
	assert.Equal(t, []float32{14}, twice(t, step), "what is set takes its place, too")
	require.NoError(t, tfbind.Lend(step, 0, values, lentValues))
	require.NoError(t, step.Close())
	_, err = step.TakeBack()
	require.ErrorIs(t, err, tfbind.ErrClosed)
}

// A variable that was assigned an input shares the memory that was lent, until another value
// takes its place or the session is closed. The memory is not Go's to free before that.
func TestLentInputThatTheModelKeeps(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{output(t, s, "x")}, Targets: []tfbind.Operation{operation(t, s, "assign")}})
	require.NoError(t, err)
	defer step.Close()
	lend := func(first float32) weak.Pointer[float32] {
		values := make([]float32, lentValues)
		values[0] = first
		require.NoError(t, tfbind.Lend(step, 0, values, lentValues))
		require.NoError(t, step.Run(t.Context()))
		return weak.Make(&values[0])
	}
	first := lend(1)
	second := lend(2)
	kept, err := step.TakeBack()
	require.NoError(t, err)
	assert.True(t, kept)
	kept, err = step.TakeBack()
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

// TensorFlow would copy what does not begin at a multiple of 64 bytes.
func TestLendOutOfLine(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{output(t, s, "x")}, Fetches: []tfbind.Output{output(t, s, "twice")}})
	require.NoError(t, err)
	defer step.Close()
	values := make([]float32, lentValues)
	assert.True(t, tfbind.Lendable(values))
	assert.True(t, tfbind.Lendable(values[16:]))
	assert.False(t, tfbind.Lendable(values[1:]))
	assert.False(t, tfbind.Lendable(values[:0]))
	require.NoError(t, tfbind.Lend(step, 0, values[16:18], 2))
	require.ErrorIs(t, tfbind.Lend(step, 0, values[1:3], 2), tfbind.ErrInvalidArgument)
}

func TestLendErrors(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{output(t, s, "x")}, Fetches: []tfbind.Output{output(t, s, "twice")}})
	require.NoError(t, err)
	defer step.Close()
	values := make([]float32, lentValues)[:3]
	require.ErrorIs(t, tfbind.Lend(step, 1, values, 3), tfbind.ErrInvalidArgument)
	require.ErrorIs(t, tfbind.Lend(step, 0, values, 4), tfbind.ErrShape)
	require.ErrorIs(t, tfbind.Lend(step, 0, values, -3), tfbind.ErrShape)
	require.ErrorIs(t, tfbind.Lend(step, 0, []int32{1}, 1), tfbind.ErrType)
	require.ErrorIs(t, tfbind.Lend(step, 0, []float32{}, 0), tfbind.ErrInvalidArgument)
	// Part of something that has pointers.
	mixed := &struct {
		values [lentValues]float32
		text   *string
	}{text: new(string)}
	mixed.values[0] = 1
	require.NoError(t, tfbind.Lend(step, 0, mixed.values[:], lentValues))
	assert.Equal(t, float32(2), twice(t, step)[0])
	require.NoError(t, step.Close())
	require.ErrorIs(t, tfbind.Lend(step, 0, values, 3), tfbind.ErrClosed)
}
