package data

import (
	"encoding/json"
	"image"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Resized pixels are those of tf.image.resize (TensorFlow 2.21) as whole numbers. The file has its values
// for a picture of random colours: picture has bytes in rows of width pixels of 3 values.
func TestResizedLikeTensorFlow(t *testing.T) {
	raw, err := os.ReadFile("testdata/resized.json")
	require.NoError(t, err)
	var want struct {
		Picture       []int
		Height, Width int
		Resized       []struct {
			Height, Width int
			Values        []float64
		}
	}
	require.NoError(t, json.Unmarshal(raw, &want))
	rgba := image.NewRGBA(image.Rect(0, 0, want.Width+2, want.Height+1))
	inner := image.Rect(2, 1, want.Width+2, want.Height+1)
	others := image.NewNRGBA(rgba.Rect)
	for i := range want.Width * want.Height {
		for c := range 4 {
			value := uint8(255)
			if c < 3 {
				value = uint8(want.Picture[3*i+c])
			}
			at := rgba.PixOffset(2+i%want.Width, 1+i/want.Width) + c
			rgba.Pix[at], others.Pix[at] = value, value
		}
	}
	var z resizer
	for _, to := range want.Resized {
		for _, picture := range []image.Image{rgba, others} {
			got := image.NewRGBA(image.Rect(0, 0, to.Width, to.Height))
			z.scale(got, picture, inner)
			for i, value := range to.Values {
				require.Equal(t, uint8(math.Floor(value+0.5)), got.Pix[i/3*4+i%3], "%dx%d, value %d of %T", to.Height, to.Width, i, picture)
			}
		}
	}
}
