package session_test

import (
	"fmt"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/session"
	"steadyfit/tfbind"
)

// The pixels equal those of tf.io.decode_jpeg.
func TestDecodeJPEG(t *testing.T) {
	s := open(t, "digits", session.Options{})
	files, err := filepath.Glob("testdata/jpeg/jpeg/*/*.jpg")
	require.NoError(t, err)
	require.Len(t, files, 4)
	var several sync.WaitGroup
	for _, path := range files {
		several.Go(func() {
			for channels, folder := range map[int]string{3: "png", 1: "png-grey"} {
				want := strings.NewReplacer("jpeg/jpeg/", "jpeg/"+folder+"/", ".jpg", ".png").Replace(path)
				assert.NoError(t, samePixels(s, path, want, channels))
			}
		})
	}
	several.Wait()

	file, err := os.ReadFile(files[0])
	require.NoError(t, err)
	_, _, _, err = s.DecodeJPEG(file[:len(file)/2], 3)
	require.ErrorContains(t, err, "TensorFlow: ")
	assert.ErrorContains(t, err, "JPEG")
	assert.NotContains(t, err.Error(), "node")
	_, _, _, err = s.DecodeJPEG(file, 2)
	assert.ErrorContains(t, err, "expected 1 or 3")
	require.NoError(t, s.Close())
	_, _, _, err = s.DecodeJPEG(file, 3)
	assert.ErrorIs(t, err, tfbind.ErrClosed)
}

// samePixels compares a decoded JPEG file with a PNG file of 30x24 pixels.
func samePixels(s *session.Session, path, want string, channels int) error {
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	right, err := os.Open(want)
	if err != nil {
		return err
	}
	defer right.Close()
	picture, err := png.Decode(right)
	if err != nil {
		return err
	}
	pixels, width, height, err := s.DecodeJPEG(file, channels)
	if err != nil {
		return err
	}
	if width != 30 || height != 24 {
		return fmt.Errorf("%s: %dx%d pixels, expected 30x24", path, width, height)
	}
	var rows []byte
	for y := range height {
		for x := range width {
			c := color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)
			rows = append(rows, []byte{c.R, c.G, c.B}[:channels]...)
		}
	}
	if !slices.Equal(rows, pixels) {
		return fmt.Errorf("%s: other pixels than in %s", path, want)
	}
	return nil
}
