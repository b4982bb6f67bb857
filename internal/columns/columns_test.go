package columns

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
)

func batch(t *testing.T, names ...string) data.Batch {
	t.Helper()
	b := data.Batch{Size: 2}
	for _, name := range names {
		b.Fields = append(b.Fields, data.Field{Name: name, Array: data.Array{Shape: []int{2}, Values: []float32{1, 2}}})
	}
	return b
}

func TestWriter(t *testing.T) {
	dir := t.TempDir()
	w := NewWriter(dir, 4)
	require.NoError(t, w.Write(batch(t, "../a", "b")))
	for _, names := range [][]string{{"b", "../a"}, {"../a"}, {"../a", "b", "c"}} {
		require.ErrorIs(t, w.Write(batch(t, names...)), data.ErrField)
	}
	require.NoError(t, w.Write(batch(t, "../a", "b")))
	require.NoError(t, w.Finish(nil))
	ds, err := Open(dir, w.Fields, false)
	require.NoError(t, err)
	require.Equal(t, 4, ds.Len())
	require.Equal(t, []data.FieldSpec{{Name: "../a", Type: "float32", Shape: []int{}}, {Name: "b", Type: "float32", Shape: []int{}}}, ds.Fields())
	require.NoError(t, ds.Close())
}

// Texts have any bytes and lengths, also with other fields on disk.
func TestTexts(t *testing.T) {
	dir := t.TempDir()
	w := NewWriter(dir, 4)
	for i, texts := range [][]string{{"a", "", "\xff\x00", "é"}, {"", "", "\r\n", "long"}} {
		b := batch(t, "x")
		b.Index = i
		b.Fields = append(b.Fields, data.Field{Name: "text", Array: data.Array{Shape: []int{2, 2}, Values: texts}})
		require.NoError(t, w.Write(b))
	}
	require.NoError(t, w.Finish(nil))
	for _, onDisk := range []bool{false, true} {
		ds, err := Open(dir, w.Fields, onDisk)
		require.NoError(t, err)
		require.Equal(t, []data.FieldSpec{{Name: "x", Type: "float32", Shape: []int{}}, {Name: "text", Type: "string", Shape: []int{2}}}, ds.Fields())
		for b, err := range ds.Batches(data.Pass{Batch: 4}) {
			require.NoError(t, err)
			require.Equal(t, []float32{1, 2, 1, 2}, b.Fields[0].Values)
			require.Equal(t, []string{"a", "", "\xff\x00", "é", "", "", "\r\n", "long"}, b.Fields[1].Values)
		}
		require.NoError(t, ds.Close())
	}
}

// Finish with the error of a failed pass returns only this error, and no errors about missing samples.
func TestWriterOfAFailedPass(t *testing.T) {
	w := NewWriter(t.TempDir(), 4)
	require.NoError(t, w.Write(batch(t, "a", "b")))
	require.EqualError(t, w.Finish(context.Canceled), context.Canceled.Error())
	require.Error(t, w.files[1].Close(), "it is closed")

	w = NewWriter(t.TempDir(), 4)
	require.NoError(t, w.Write(batch(t, "a")))
	require.ErrorIs(t, w.Finish(nil), data.ErrFormat, "samples are missing")
}
