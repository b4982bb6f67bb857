package train

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
		_, err := Run(t.Context(), c)
		require.NoError(t, err)
		return weights(t, c.Out)
	}
	assert.Equal(t, train("png-grey"), train("jpeg"))
}
