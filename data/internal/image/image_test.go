package image

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
	raw, err := os.ReadFile("../../testdata/resized.json")
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
		rounded := make([]uint8, len(to.Values))
		for i, v := range to.Values {
			rounded[i] = uint8(math.Floor(float64(v) + 0.5))
		}
		w := (&Decoder{Height: to.Height, Width: to.Width, Channels: to.Channels}).NewWorker()
		pictures := func() []image.Image { // converting to grey changes a picture
			rgba, others := image.NewRGBA(bounds), image.NewNRGBA(bounds)
			for i, v := range want.Picture {
				at := rgba.PixOffset(2+i/3%want.Width, 1+i/3/want.Width)
				rgba.Pix[at+i%3], others.Pix[at+i%3] = uint8(v), uint8(v)
				rgba.Pix[at+3], others.Pix[at+3] = 255, 255
			}
			return []image.Image{rgba.SubImage(inner), others.SubImage(inner)}
		}
		for i := range 2 {
			floats, bytes := make([]float32, len(to.Values)), make([]uint8, len(to.Values))
			write(w, floats, pictures()[i])
			write(w, bytes, pictures()[i])
			require.Equal(t, to.Values, floats, "%dx%dx%d, picture %d", to.Height, to.Width, to.Channels, i)
			require.Equal(t, rounded, bytes, "%dx%dx%d, picture %d", to.Height, to.Width, to.Channels, i)
		}
	}
}
