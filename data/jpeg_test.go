package data

import (
	"bytes"
	"errors"
	"image"
	"image/jpeg"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// UseJPEG applies to all datasets that share the images of a folder or of records. It applies only to
// JPEG files, with any extension, and the fingerprint includes the decoder even if no file has a JPEG
// extension.
func TestUseJPEG(t *testing.T) {
	dir := t.TempDir()
	var file bytes.Buffer
	require.NoError(t, jpeg.Encode(&file, image.NewRGBA(image.Rect(0, 0, 2, 2)), nil))
	for _, name := range []string{"classes/a/1.png", "classes/a/2.png", "classes/b/3.png", "classes/b/4.png"} {
		put(t, dir, name, file.Bytes())
	}
	put(t, dir, "classes/b/5.png", pngOf(t, image.NewRGBA(image.Rect(0, 0, 2, 2))))
	picture := func(file []byte) []byte { return example(map[string]any{"picture": []string{string(file)}}) }
	put(t, dir, "flowers-0.tfrecord", recordsOf(picture(file.Bytes()), picture(file.Bytes()), picture(pngOf(t, noise(1)))))
	type row struct{ Picture []byte }
	put(t, dir, "flowers-0.parquet", parquetOf(t, row{file.Bytes()}, row{pngOf(t, noise(1))}))
	sevens := func(file []byte, channels int) ([]byte, int, int, error) {
		return bytes.Repeat([]byte{7}, 2*2*channels), 2, 2, nil
	}
	for path, want := range map[string][2]int{filepath.Join(dir, "classes"): {4, 5},
		filepath.Join(dir, "*.tfrecord"): {2, 3}, filepath.Join(dir, "*.parquet"): {1, 2}} {
		m := opened(t, path, Options{Images: ImageOptions{Size: 2}})
		field := imageFields(m)[0]
		scaled, err := m.Scale(field, 0, 255)
		require.NoError(t, err)
		ds := scaled.Shuffle(1)
		before, _, err := ds.Fingerprint()
		require.NoError(t, err)
		m.UseJPEG(sevens)
		require.Equal(t, want, countSevens(t, ds, field))
		after, _, err := ds.Fingerprint()
		require.NoError(t, err)
		require.NotEqual(t, before, after)

		ds.UseJPEG(func([]byte, int) ([]byte, int, int, error) { return nil, 0, 0, errors.New("no memory") })
		require.ErrorContains(t, firstError(ds), "no memory")
		ds.UseJPEG(func([]byte, int) ([]byte, int, int, error) { return []byte{1}, 2, 2, nil })
		require.ErrorContains(t, firstError(ds), "1 bytes of pixels, expected")
		ds.UseJPEG(nil)
		require.Zero(t, countSevens(t, ds, field)[0])
	}
}

func TestUseJPEGOfRecordsWithoutImages(t *testing.T) {
	m := openLabelled(t, numberedRecords(t, 4, 1))
	m.UseJPEG(func([]byte, int) ([]byte, int, int, error) { return nil, 0, 0, errors.New("called") })
	require.NoError(t, firstError(m))
}

// countSevens returns the number of samples that consist of sevens, and the number of all samples.
func countSevens(t *testing.T, ds Dataset, field string) (n [2]int) {
	t.Helper()
	for b, err := range ds.Batches(Pass{Batch: 1}) {
		require.NoError(t, err)
		for _, f := range b.Fields {
			if f.Name == field && f.Values.([]float32)[0] == 7 {
				n[0]++
			}
		}
		n[1]++
	}
	return n
}

func firstError(ds Dataset) error {
	for _, err := range ds.Batches(Pass{Batch: 1}) {
		if err != nil {
			return err
		}
	}
	return nil
}
