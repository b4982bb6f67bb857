package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/testkit"
)

func rawIDX(code byte, dims []uint32, values ...byte) []byte {
	raw := []byte{0, 0, code, byte(len(dims))}
	for _, d := range dims {
		raw = binary.BigEndian.AppendUint32(raw, d)
	}
	return append(raw, values...)
}

// mnist writes a folder in MNIST's layout. changes replaces the content of files; nil omits a file.
func mnist(t testing.TB, changes map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string][]byte{
		"train-images-idx3-ubyte.gz": compressed(t, rawIDX(8, []uint32{3, 2, 2}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)),
		"train-labels-idx1-ubyte.gz": compressed(t, rawIDX(8, []uint32{3}, 7, 0, 9)),
		"t10k-images-idx3-ubyte":     rawIDX(8, []uint32{1, 2, 2}, 21, 22, 23, 24),
		"t10k-labels-idx1-ubyte":     rawIDX(8, []uint32{1}, 4),
	}
	for name, raw := range changes {
		files[name] = raw
	}
	for name, raw := range files {
		if raw != nil {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o644))
		}
	}
	return dir
}

func TestOpenIDX(t *testing.T) {
	dir := mnist(t, nil)
	for _, split := range []string{"", "train"} {
		m, err := openIDX(dir, split)
		require.NoError(t, err)
		require.Equal(t, dir+": 3 samples; x uint8 [2 2], y int64 []", describe(m))
		got := fieldsOf(t, m)
		require.Equal(t, Array{[]int{3, 2, 2}, []uint8{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, got["x"])
		require.Equal(t, Array{[]int{3}, []int64{7, 0, 9}}, got["y"])
	}
	test := opened(t, dir, Options{Split: "test"})
	require.Equal(t, Array{[]int{1}, []int64{4}}, fieldsOf(t, test)["y"])

	// Some mirrors use these names.
	dir = mnist(t, map[string][]byte{
		"train-images-idx3-ubyte.gz": nil, "train-labels-idx1-ubyte.gz": nil,
		"train-images.idx3-ubyte": rawIDX(8, []uint32{1, 1, 1}, 3),
		"train-labels.idx1-ubyte": rawIDX(8, []uint32{1}, 255),
	})
	m, err := openIDX(dir, "train")
	require.NoError(t, err)
	require.Equal(t, map[string]Array{"x": {[]int{1, 1, 1}, []uint8{3}}, "y": {[]int{1}, []int64{255}}}, fieldsOf(t, m))
}

func TestIDXRefuses(t *testing.T) {
	const images, labelled = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
	sound := rawIDX(8, []uint32{3}, 7, 0, 9)
	packed := compressed(t, sound)
	broken := bytes.Clone(packed)
	broken[len(broken)/2] ^= 0xff
	for _, c := range []struct {
		name string
		file string
		raw  []byte
		kind error
		says string
	}{
		{"no images", images, nil, fs.ErrNotExist, "train-images-idx3-ubyte"},
		{"no labels", labelled, nil, fs.ErrNotExist, "train-labels-idx1-ubyte"},
		{"empty", labelled, []byte{}, ErrFormat, "is empty"},
		{"cut in magic", labelled, compressed(t, sound[:3]), ErrFormat, "3 bytes, too few"},
		{"cut in header", labelled, compressed(t, sound[:6]), ErrFormat, "truncated in the header"},
		{"cut in values", labelled, compressed(t, sound[:9]), ErrFormat, "states 3 values of 1 bytes, the file has 1 bytes"},
		{"more", labelled, compressed(t, append(bytes.Clone(sound), 1)), ErrFormat, "more bytes than the header states"},
		{"magic", labelled, compressed(t, append([]byte{1}, sound[1:]...)), ErrFormat, "not an IDX file"},
		{"type", labelled, compressed(t, rawIDX(0x0a, []uint32{1}, 1)), ErrFormat, "not an IDX file"},
		{"no dimensions", labelled, compressed(t, rawIDX(8, nil, 1)), ErrFormat, "without dimensions"},
		{"counts", labelled, compressed(t, rawIDX(8, []uint32{2}, 1, 2)), ErrFormat, "has 2 samples, but"},
		{"images as labels", labelled, compressed(t, rawIDX(8, []uint32{3, 1}, 1, 2, 3)), ErrFormat,
			"labels have 2 dimensions, expected 1"},
		{"labels as images", images, packed, ErrFormat, "images have 1 dimensions, expected at least 2"},
		{"gzip cut", labelled, packed[:len(packed)-6], ErrFormat, "damaged or truncated"},
		{"gzip broken", labelled, broken, ErrFormat, labelled},
		{"gzip header", labelled, packed[:4], ErrFormat, "damaged or truncated"},
		{"claims", images, compressed(t, rawIDX(8, []uint32{3, 1 << 31, 1 << 28}, 1)), ErrFormat, "the file has 1"},
		{"overflow", images, compressed(t, rawIDX(8, []uint32{3, 1 << 31, 1 << 31, 1 << 31}, 1)), ErrFormat, "address"},
		{"no samples", images, compressed(t, rawIDX(8, []uint32{3, 0, 0})), ErrFormat, "no values"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := openIDX(mnist(t, map[string][]byte{c.file: c.raw}), "train")
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func FuzzIDX(f *testing.F) {
	f.Add(rawIDX(8, []uint32{3}, 1, 2, 3))
	f.Add(rawIDX(0x0b, []uint32{1, 2}, 1, 2, 3, 4))
	f.Add(rawIDX(0x0e, []uint32{1 << 31, 1 << 31}, 1))
	f.Add(compressed(f, rawIDX(8, []uint32{1}, 1)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := gunzip(bytes.NewReader(raw))
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			return
		}
		var a Array
		testkit.Allocates(t, 8<<20, func() { a, err = readIDX(r) })
		if err != nil {
			require.True(t, errors.Is(err, ErrFormat) || errors.Is(err, ErrTooLarge), "%v", err)
			return
		}
		_, err = arrayVector(a)
		require.NoError(t, err)
	})
}
