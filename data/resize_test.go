package data

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Images of float32 (ImageOptions.Float) keep fractions and are scaled, and no check decodes them.
func TestImagesWithFractions(t *testing.T) {
	dir := imageFolder(t, 9)
	read := func(change func(*InMemory) (*InMemory, error)) (values any) {
		m := opened(t, dir, Options{Images: ImageOptions{Height: 7, Width: 10, Float: true}})
		m, err := change(m)
		require.NoError(t, err)
		require.Equal(t, []string{"x"}, imageFields(m))
		for b, err := range m.Batches(Pass{Batch: 9}) {
			require.NoError(t, err)
			return b.Fields[0].Values
		}
		return nil
	}
	plain := read(func(m *InMemory) (*InMemory, error) { return m, nil }).([]float32)
	fractions := 0
	for _, v := range plain {
		if v != float32(math.Trunc(float64(v))) {
			fractions++
		}
	}
	require.Greater(t, fractions, len(plain)/2)
	scaled := read(func(m *InMemory) (*InMemory, error) { return m.Scale("x", -1, 1) }).([]float32)
	for i, v := range plain {
		require.Equal(t, float32(-1+float64(v)/255*2), scaled[i])
	}

	m := opened(t, dir, Options{Images: ImageOptions{Size: 8, Float: true}})
	require.Equal(t, dir+": 9 samples; x float32 [8 8 3], y int64 []", describe(m))
	require.NoError(t, CheckImages(t.Context(), m))
	changed, err := m.Scale("x", 0, 1)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	for _, ds := range []*InMemory{m, changed} {
		require.NoError(t, Check(ds, "", finite))
	}
	_, err = changed.Scale("x", 0, 1)
	require.ErrorContains(t, err, "takes elements of uint8", "scaled twice")
}
