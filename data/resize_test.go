package data

import (
	"encoding/json"
	"image"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Resized pixels equal those of tf.image.resize (TensorFlow 2.21), rounded to the nearest whole number if
// they are bytes. The file has TensorFlow's values for a picture of random colours (see
// testdata/resized.py).
func TestResizedLikeTensorFlow(t *testing.T) {
	raw, err := os.ReadFile("testdata/resized.json")
	require.NoError(t, err)
	var want struct {
		Picture       []int
		Height, Width int
		Resized       []struct {
			Height, Width, Channels int
			Values                  []float32
		}
	}
	require.NoError(t, json.Unmarshal(raw, &want))
	bounds := image.Rect(0, 0, want.Width+2, want.Height+1)
	inner := image.Rect(2, 1, want.Width+2, want.Height+1)
	for _, to := range want.Resized {
		rounded := make(vec[uint8], len(to.Values))
		for i, v := range to.Values {
			rounded[i] = uint8(math.Floor(float64(v) + 0.5))
		}
		for _, float := range []bool{false, true} {
			o, err := ImageOptions{Height: to.Height, Width: to.Width, Channels: to.Channels, Float: float}.complete()
			require.NoError(t, err)
			p := newPainter(o)
			rgba, others := image.NewRGBA(bounds), image.NewNRGBA(bounds)
			for i, v := range want.Picture {
				at := rgba.PixOffset(2+i/3%want.Width, 1+i/3/want.Width)
				rgba.Pix[at+i%3], others.Pix[at+i%3] = uint8(v), uint8(v)
				rgba.Pix[at+3], others.Pix[at+3] = 255, 255
			}
			for _, picture := range []image.Image{rgba.SubImage(inner), others.SubImage(inner)} {
				got := makeVector(o.kind(), len(to.Values)+1)
				p.draw(got, 1, picture)
				if float {
					require.Equal(t, append([]float32{0}, to.Values...), got.values(0, got.len()), "%dx%dx%d of %T", to.Height, to.Width, to.Channels, picture)
				} else {
					require.Equal(t, append([]uint8{0}, rounded...), got.values(0, got.len()), "%dx%dx%d of %T", to.Height, to.Width, to.Channels, picture)
				}
			}
		}
	}
}

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
