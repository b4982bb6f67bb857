package train

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
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
		ran(t, c)
		return weights(t, c.Out)
	}
	assert.Equal(t, train("png-grey"), train("jpeg"))
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
