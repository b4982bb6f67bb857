package data

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Images of float32 (ImageOptions.Float) are augmented and scaled like images of uint8, and no check
// decodes them.
func TestImagesWithFractions(t *testing.T) {
	dir := imageFolder(t, 9)
	read := func(float bool, change func(*InMemory) (*InMemory, error)) (values any) {
		m, err := openImages(dir, ImageOptions{Height: 7, Width: 10, Float: float})
		require.NoError(t, err)
		m, err = change(m)
		require.NoError(t, err)
		require.Equal(t, []string{"x"}, imageFields(m))
		for b, err := range m.Batches(Pass{Batch: 9}) {
			require.NoError(t, err)
			return b.Fields[0].Values
		}
		return nil
	}
	jittered := func(m *InMemory) (*InMemory, error) {
		return m.Augment("x", Augmentation{Flip: true, Crop: 2, Jitter: 1, Seed: 3})
	}
	bytes, floats := read(false, jittered).([]uint8), read(true, jittered).([]float32)
	black, white, fractions := 0, 0, 0
	for i, v := range floats {
		require.InDelta(t, v, bytes[i], 6) // the pixel is rounded, and multiplied by up to 8
		switch {
		case v == 0:
			black++
		case v == 255:
			white++
		case v != float32(math.Trunc(float64(v))):
			fractions++
		}
	}
	require.Positive(t, black)
	require.Positive(t, white)
	require.Greater(t, fractions, len(floats)/2)

	plain := read(true, func(m *InMemory) (*InMemory, error) { return m, nil }).([]float32)
	scaled := read(true, func(m *InMemory) (*InMemory, error) { return m.Scale("x", -1, 1) }).([]float32)
	for i, v := range plain {
		require.Equal(t, float32(-1+float64(v)/255*2), scaled[i])
	}

	m, err := openImages(dir, ImageOptions{Size: 8, Float: true})
	require.NoError(t, err)
	require.Equal(t, dir+": 9 samples; x float32 [8 8 3], y int64 []", describe(m))
	require.NoError(t, CheckImages(t.Context(), m))
	changed, err := jittered(m)
	require.NoError(t, err)
	changed, err = changed.Scale("x", 0, 1)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	for _, ds := range []Dataset{m, changed} {
		require.NoError(t, Check(ds, "", finite))
		require.NoError(t, Check(ds, "x", Values{Below: 65520}))
	}
	_, err = changed.Scale("x", 0, 1)
	require.ErrorContains(t, err, "takes elements of uint8", "scaled twice")
}
