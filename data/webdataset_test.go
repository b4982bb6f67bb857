package data

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/testkit"
)

// tarOf returns an archive of files given as name, content, name, content ...
func tarOf(t testing.TB, files ...string) []byte {
	t.Helper()
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	for file := range slices.Chunk(files, 2) {
		h := &tar.Header{Name: file[0], Size: int64(len(file[1])), Mode: 0o644}
		if file[0][len(file[0])-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		require.NoError(t, w.WriteHeader(h))
		_, err := w.Write([]byte(file[1]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return raw.Bytes()
}

// The archive is written by Python's tarfile (scripts/records.py).
func TestWebDatasetOfPython(t *testing.T) {
	want := recordValues(t).Flowers
	dir := t.TempDir()
	raw := contentOf(t, filepath.Join("testdata", "records", "flowers.tar"))
	put(t, dir, "train-0.tar", raw)
	for _, pattern := range []string{"train-*.tar", "train-0.tar"} {
		m := opened(t, filepath.Join(dir, pattern), Options{Images: ImageOptions{Height: 6, Width: 8},
			CSV: CSVOptions{Label: "label"}})
		require.Equal(t, m.Name()+": 7 samples; jpg uint8 [6 8 3], name string [], score float64 [], side.npy float32 [3 "+
			"2], y int64 []", describe(m))
		fields := fieldsOf(t, m)
		require.Equal(t, want.Y, fields["y"].Values)
		require.Equal(t, want.Names, fields["name"].Values)
		require.Equal(t, []float64{0, 0.5, 1, 1.5, 2, 2.5, 3}, fields["score"].Values)
		require.Equal(t, slices.Concat(want.Side...), fields["side.npy"].Values)
		checkFlowers(t, want.X, fields["jpg"].Values.([]uint8))
		require.Len(t, copied(t, m.Shuffle(1).Workers(3), Pass{Batch: 2, Skip: 1}), 3)
	}
}

// Folders and hidden files are ignored, and the numbers of JSON have one type in all records.
func TestWebDataset(t *testing.T) {
	raw := tarOf(t,
		"a/", "", "./a/1.txt", "one", "./a/1.cls", "7\n", "a/", "", "a/1.json", `{"score": 1, "label": 3, "b": true, "t": ["u", "v"]}`,
		"__meta__.txt", "", ".hidden", "", "a/2.CLS", " -1", "a/2.txt", "two", "a/2.json", `{"score": 0.5, "label": 4, "b": false, "t": ["", "w"]}`, "b/", "")
	path := put(t, t.TempDir(), "a.tar", raw)
	m := opened(t, path, Options{Ignore: []string{"t"}, CSV: CSVOptions{Label: "label"}})
	require.Equal(t, path+": 2 samples; b bool [], cls int64 [], score float64 [], txt string [], y int64 []", describe(m))
	require.Equal(t, map[string]Array{
		"b": {[]int{2}, []bool{true, false}}, "cls": {[]int{2}, []int64{7, -1}}, "score": {[]int{2}, []float64{1, 0.5}},
		"txt": {[]int{2}, []string{"one", "two"}}, "y": {[]int{2}, []int64{3, 4}},
	}, fieldsOf(t, m))
}

func TestBadWebDatasets(t *testing.T) {
	good := []string{"1.cls", "1", "1.txt", "a", "2.cls", "2", "2.txt", "b"}
	file := tarOf(t, good...)
	changed := slices.Clone(file)
	changed[2*512+100] ^= 1 // a header
	hole := bytes.Clone(tarOf(t, "1.txt", "a"))
	for name, c := range map[string]struct {
		raw  []byte
		want string
		err  error
	}{
		"cut":      {file[:len(file)-1024-100], "the archive near byte", ErrFormat},
		"no end":   {file[:len(file)-1024], "damaged or truncated", ErrFormat},
		"header":   {changed, "the archive near byte", ErrFormat},
		"no cls":   {tarOf(t, "1.cls", "1", "1.txt", "a", "2.txt", "b"), `record 1, column "cls": found no elements`, ErrFormat},
		"class":    {tarOf(t, "1.cls", "rose"), `record 0, column "cls": found "rose", expected an integer`, ErrFormat},
		"other":    {tarOf(t, "1.cls", "1", "2.cls", "1", "2.seg", "b"), `record 1, column "seg": found a value that the first record lacks`, ErrFormat},
		"json":     {tarOf(t, "1.json", "{"), "record 0", ErrFormat},
		"null":     {tarOf(t, "1.json", `{"a": null}`), `record 0, column "a": found null`, ErrFormat},
		"npy":      {tarOf(t, "1.npy", "\x93NUMPY"), "file .npy", ErrFormat},
		"pickle":   {tarOf(t, "1.npy", "\x80\x04 and more bytes"), "a Python pickle", ErrUnsupported},
		"empty":    {tarOf(t, "a/", ""), "it has no records", ErrFormat},
		"foreign":  {bytes.Repeat([]byte("text "), 200), "the archive near byte 0", ErrFormat},
		"huge":     {claimSize(hole, 1<<40), "record 0: found more than", ErrFormat},
		"too long": {claimSize(hole, maxRecord-4096), "the archive near byte", ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			path := put(t, t.TempDir(), "bad.tar", c.raw)
			var err error
			testkit.Allocates(t, 8<<20, func() { _, err = Open(path, Options{}) })
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// claimSize changes the size in the first header of an archive.
func claimSize(raw []byte, size int64) []byte {
	raw = slices.Clone(raw)
	if size < 1<<33 {
		copy(raw[124:], fmt.Sprintf("%011o\x00", size))
	} else {
		field := []byte{0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		for i := range 8 {
			field[11-i] = byte(size >> (8 * i))
		}
		copy(raw[124:], field)
	}
	copy(raw[148:], "        ")
	sum := 0
	for _, b := range raw[:512] {
		sum += int(b)
	}
	copy(raw[148:], fmt.Sprintf("%06o\x00 ", sum))
	return raw
}

func FuzzWebDataset(f *testing.F) {
	f.Add(tarOf(f, "1.cls", "1", "1.json", `{"a": [1, 2]}`, "2.cls", "2", "2.json", `{"a": [1.5, 2]}`))
	f.Add(claimSize(tarOf(f, "1.txt", "a"), math.MaxInt64))
	raw := contentOf(f, filepath.Join("testdata", "records", "flowers.tar"))
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) { readHostile(t, "f.tar", raw, 32<<20+64*len(raw)) })
}
