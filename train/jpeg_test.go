package train

import (
	"encoding/json"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
)

// A training on JPEG files equals one on PNG files with the pixels that TensorFlow decodes from them.
func TestJPEGIsDecodedAsByTensorFlow(t *testing.T) {
	dir := t.TempDir()
	train := func(folder string) []byte {
		t.Helper()
		c := Config{
			Model: "builtin:digits-cnn", Seed: 3, Out: filepath.Join(dir, folder), Shuffle: true,
			Data: Data{Path: filepath.Join("../session/testdata/jpeg", folder), Height: 8, Width: 8},
			Loop: fit.Loop{Batch: 2, Epochs: 2},
		}
		_, err := Run(t.Context(), c)
		require.NoError(t, err)
		return weights(t, c.Out)
	}
	assert.Equal(t, train("png-grey"), train("jpeg"))
}

// Resized pixels are not rounded: the model gets those of Keras.
func TestResizedImagesKeepFractions(t *testing.T) {
	raw, err := os.ReadFile("../data/testdata/resized.json")
	require.NoError(t, err)
	var made struct {
		Picture       []int
		Height, Width int
		Resized       []struct {
			Height, Width, Channels int
			Values                  []float64
		}
	}
	require.NoError(t, json.Unmarshal(raw, &made))
	picture := image.NewNRGBA(image.Rect(0, 0, made.Width, made.Height))
	for i, v := range made.Picture {
		picture.Pix[i/3*4+i%3], picture.Pix[i/3*4+3] = uint8(v), 255
	}
	folder := t.TempDir()
	for _, class := range []string{"0", "1"} {
		require.NoError(t, os.Mkdir(filepath.Join(folder, class), 0o755))
		file, err := os.Create(filepath.Join(folder, class, "1.png"))
		require.NoError(t, err)
		require.NoError(t, png.Encode(file, picture))
		require.NoError(t, file.Close())
	}
	var x []float32 // as the model takes it, from 0 to 16
	for _, r := range made.Resized {
		if r.Height != 8 || r.Width != 8 || r.Channels != 1 {
			continue
		}
		for _, v := range append(r.Values, r.Values...) {
			x = append(x, float32(v/255*16))
		}
	}
	require.Len(t, x, 2*64)
	model, err := savedmodels.Builtin("digits-cnn")
	require.NoError(t, err)
	ds, err := opened(t, model, Data{Path: folder, Height: 8, Width: 8})
	require.NoError(t, err)
	assert.Equal(t, x, values[float32](t, ds, "x"))
}

// The check of images uses the decoder of the training. testdata/cmyk.jpg has four channels, which Go's
// decoder makes grey and TensorFlow's does not.
func TestImagesAreCheckedAsByTensorFlow(t *testing.T) {
	file, err := os.ReadFile("testdata/cmyk.jpg")
	require.NoError(t, err)
	dir := t.TempDir()
	for _, class := range []string{"0", "1"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, class), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, class, "1.jpg"), file, 0o644))
	}
	ds, err := data.Open(dir, data.Options{Images: data.ImageOptions{Size: 8, Channels: 1}})
	require.NoError(t, err)
	defer ds.Close()
	require.NoError(t, data.CheckImages(t.Context(), ds), "by Go")
	c := Config{
		Model: "builtin:digits-cnn", Data: Data{Path: dir, Height: 8, Width: 8},
		Loop: fit.Loop{Batch: 2, Epochs: 1},
	}
	_, err = Run(t.Context(), c)
	require.ErrorContains(t, err, "2 problems")
	assert.ErrorContains(t, err, filepath.Join("1", "1.jpg")+": not supported: a JPEG image in CMYK, which TensorFlow "+
		"does not convert to grey: convert it")
	assert.Equal(t, exitUsage, ExitCode(err))
}
