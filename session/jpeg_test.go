package session_test

import (
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/session"
	"steadyfit/tfbind"
)

// The pixels are those of tf.io.decode_jpeg.
func TestDecodeJPEG(t *testing.T) {
	s := open(t, "digits", session.Options{})
	files, err := filepath.Glob("testdata/jpeg/jpeg/*/*.jpg")
	require.NoError(t, err)
	require.Len(t, files, 4)
	var several sync.WaitGroup
	for _, path := range files {
		several.Go(func() {
			file, err := os.ReadFile(path)
			require.NoError(t, err)
			for channels, folder := range map[int]string{3: "png", 1: "png-grey"} {
				want, err := os.Open(strings.NewReplacer("jpeg/jpeg/", "jpeg/"+folder+"/", ".jpg", ".png").Replace(path))
				require.NoError(t, err)
				defer want.Close()
				picture, err := png.Decode(want)
				require.NoError(t, err)
				pixels, width, height, err := s.DecodeJPEG(file, channels)
				require.NoError(t, err)
				require.Equal(t, [2]int{30, 24}, [2]int{width, height})
				for y := range height {
					for x := range width {
						c := color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)
						require.Equal(t, []uint8{c.R, c.G, c.B}[:channels], pixels[channels*(y*width+x):][:channels], "%s at %d, %d", path, x, y)
					}
				}
			}
		})
	}
	several.Wait()

	file, err := os.ReadFile(files[0])
	require.NoError(t, err)
	_, _, _, err = s.DecodeJPEG(file[:len(file)/2], 3)
	assert.ErrorContains(t, err, "JPEG")
	_, _, _, err = s.DecodeJPEG(file, 2)
	assert.ErrorContains(t, err, "expected 1 or 3")
	require.NoError(t, s.Close())
	_, _, _, err = s.DecodeJPEG(file, 3)
	assert.ErrorIs(t, err, tfbind.ErrClosed)
}
