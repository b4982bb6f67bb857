package data

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// noise returns an image of random colours.
func noise(seed int) *image.RGBA {
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	m := image.NewRGBA(image.Rect(0, 0, 9+seed%7, 12-seed%5))
	for i := range m.Pix {
		m.Pix[i] = byte(rng.Uint32())
		if i%4 == 3 {
			m.Pix[i] = 0xff
		}
	}
	return m
}

// imageFolder makes a folder of n PNG images in three classes.
func imageFolder(t testing.TB, n int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		path := filepath.Join(dir, []string{"ant", "bee", "cow"}[i%3], fmt.Sprintf("%03d.png", i))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		var file bytes.Buffer
		require.NoError(t, png.Encode(&file, noise(i)))
		require.NoError(t, os.WriteFile(path, file.Bytes(), 0o644))
	}
	return dir
}

// put writes a file and creates its parent folders.
func put(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, content, 0o644))
	return path
}

// contentOf returns the content of a file.
func contentOf(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return raw
}

func pngOf(t testing.TB, m image.Image) []byte {
	t.Helper()
	var file bytes.Buffer
	require.NoError(t, png.Encode(&file, m))
	return file.Bytes()
}

// openImages opens a folder of images that has no parts.
func openImages(dir string, o ImageOptions) (*InMemory, error) {
	return Open(dir, Options{Images: o})
}

// painted decodes an image in memory to a sample.
func painted(raw []byte, o ImageOptions) ([]uint8, error) {
	d, err := newImageDecoder(o)
	if err != nil {
		return nil, err
	}
	dst := make([]uint8, d.column().width)
	return dst, d.decode(&scratch{state: map[any]any{}}, vec[uint8](dst), 0, bytes.NewReader(raw), int64(len(raw)))
}

func TestOpenImages(t *testing.T) {
	dir := t.TempDir()
	red, blue := image.NewUniform(color.RGBA{200, 0, 0, 255}), image.NewUniform(color.RGBA{0, 0, 100, 255})
	fill := func(u *image.Uniform) image.Image {
		m := image.NewRGBA(image.Rect(0, 0, 2, 2))
		for i := range 4 {
			m.Set(i%2, i/2, u.C)
		}
		return m
	}
	put(t, dir, "rose/b.PNG", pngOf(t, fill(blue)))
	put(t, dir, "rose/a.jpg", pngOf(t, fill(red))) // a PNG file with a wrong extension
	put(t, dir, "lily/white/x.png", pngOf(t, fill(red)))
	for _, passed := range []string{".git/config", "rose/.DS_Store", "rose/._a.jpg", "lily/Thumbs.db", "LICENSE.txt",
		"__MACOSX/rose/._a.jpg"} {
		put(t, dir, passed, []byte("no image"))
	}
	m := opened(t, dir, Options{Images: ImageOptions{Size: 1}})
	require.Equal(t, dir+": 3 samples; x uint8 [1 1 3], y int64 []", describe(m))
	require.Equal(t, []string{"lily", "rose"}, spec(m, "y").Classes)
	for b, err := range m.Batches(Pass{Batch: 3}) {
		require.NoError(t, err)
		require.Equal(t, []uint8{200, 0, 0, 200, 0, 0, 0, 0, 100}, b.Fields[0].Values)
		require.Equal(t, []int64{0, 1, 1}, b.Fields[1].Values)
	}
	rest, _ := split(t, m, 0.7, 1)
	_, rest = split(t, rest, 0.5, 1)
	require.Equal(t, "lily/white/x.png", m.FilePath(0))
	require.Equal(t, "rose/b.PNG", m.FilePath(2))
	require.Equal(t, m.FilePath(int(rest.rows[0])), rest.FilePath(0))
	require.Empty(t, counted(t, 1).FilePath(0))
	opened := opened(t, dir, Options{Images: ImageOptions{Height: 2, Width: 3, Channels: 1,
		Classes: []string{"rose", "tulip", "lily"}}})
	require.Equal(t, []string{"rose", "tulip", "lily"}, spec(opened, "y").Classes)
	for b, err := range opened.Batches(Pass{Batch: 3}) {
		require.NoError(t, err)
		require.Equal(t, []int{3, 2, 3, 1}, b.Fields[0].Shape)
		require.Equal(t, []int64{2, 0, 0}, b.Fields[1].Values)
	}
}

func TestOpenImagesInParts(t *testing.T) {
	dir := t.TempDir()
	small := pngOf(t, noise(1))
	for _, name := range []string{"train/ant/1.png", "train/bee/2.png", "train/bee/3.png", "val/ant/1.png"} {
		put(t, dir, name, small)
	}
	o := Options{Images: ImageOptions{Size: 4}}
	for split, want := range map[string]int{"": 3, "train": 3, "test": 1} {
		o.Split = split
		m := opened(t, dir, o)
		require.Equal(t, want, m.Len(), split)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "val")))
	o.Split = "test"
	_, err := Open(dir, o)
	require.ErrorIs(t, err, ErrNoSplit)

	// Archives from the web have various names for the parts.
	for _, c := range []struct{ train, test string }{{"train", "valid"}, {"Training", "Testing"}, {"TRAIN", "Val"}} {
		dir := t.TempDir()
		put(t, dir, c.train+"/ant/1.png", small)
		put(t, dir, c.train+"/bee/2.png", small)
		put(t, dir, c.test+"/ant/1.png", small)
		for split, want := range map[string]int{"": 2, "test": 1} {
			o.Split = split
			m := opened(t, dir, o)
			require.Equal(t, want, m.Len(), c)
		}
	}
	// If a folder has a test and a validation part, each can be read by its name.
	three := t.TempDir()
	for i, part := range []string{"test", "train", "valid"} {
		for n := range i + 1 {
			put(t, three, fmt.Sprintf("%s/ant/%d.png", part, n), small)
		}
	}
	for split, want := range map[string]int{"": 2, "train": 2, "test": 1, "validation": 3} {
		o.Split = split
		m := opened(t, three, o)
		require.Equal(t, want, m.Len(), split)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(three, "valid")))
	o.Split = "validation"
	m := opened(t, three, o)
	require.Equal(t, filepath.Join(three, "test"), m.Name())
}

func TestOpenImagesRefuses(t *testing.T) {
	small := pngOf(t, noise(1))
	for _, c := range []struct {
		name    string
		files   map[string][]byte
		options ImageOptions
		kind    error
		says    string
	}{
		{"no size", map[string][]byte{"a/1.png": small}, ImageOptions{}, errOption, "ImageOptions.Size"},
		{"half a size", map[string][]byte{"a/1.png": small}, ImageOptions{Height: 3}, errOption, "ImageOptions.Size"},
		{"negative", map[string][]byte{"a/1.png": small}, ImageOptions{Size: -1}, errOption, "-1x-1"},
		{"huge", map[string][]byte{"a/1.png": small}, ImageOptions{Size: 1 << 20}, errOption, "1 to 16384"},
		{"channels", map[string][]byte{"a/1.png": small}, ImageOptions{Size: 1, Channels: 4}, errOption, "4 channels"},
		{"no classes", map[string][]byte{"1.png": small}, ImageOptions{Size: 1}, ErrFormat,
			"put the images of each class in a sub-folder"},
		{"beside", map[string][]byte{"a/1.png": small, "2.png": small}, ImageOptions{Size: 1}, ErrFormat,
			"2.png: the image is not in a class folder"},
		{"empty class", map[string][]byte{"a/1.png": small, "b/.keep": {}}, ImageOptions{Size: 1}, ErrFormat,
			"b: the class folder has no images"},
		{"other file", map[string][]byte{"a/1.png": small, "a/1.heic": small}, ImageOptions{Size: 1}, ErrUnsupported,
			"1.heic: the file is not supported as an image"},
		{"other class", map[string][]byte{"a/1.png": small, "b/1.png": small}, ImageOptions{Size: 1, Classes: []string{"a", "c"}}, ErrLabel, `b: the folder is not one of the 2 classes ["a" "c"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range c.files {
				put(t, dir, name, content)
			}
			m, err := openImages(dir, c.options)
			require.Nil(t, m)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, dir)
		})
	}
	_, err := openImages(filepath.Join(t.TempDir(), "gone"), ImageOptions{Size: 1})
	require.ErrorIs(t, err, fs.ErrNotExist)
	link := filepath.Join(t.TempDir(), "a", "2.png")
	put(t, filepath.Dir(link), "1.png", small)
	require.NoError(t, os.Symlink("gone.png", link))
	_, err = openImages(filepath.Dir(filepath.Dir(link)), ImageOptions{Size: 1})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, link+": a symbolic link to gone.png: no such file or directory; correct the link, or "+
		"remove it")

	// An error names all problems, but at most ten.
	many := t.TempDir()
	for _, name := range []string{"a/1.md", "a/deep/1.txt", "b/.keep", "c.png", "d/1.md", "d/1.png"} {
		put(t, many, name, nil)
	}
	for _, more := range []int{0, 30} {
		for i := range more {
			put(t, many, fmt.Sprintf("d/%d.md", i), nil)
		}
		_, err = openImages(many, ImageOptions{Size: 1, Classes: []string{"a", "b", "d"}})
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorIs(t, err, ErrUnsupported)
		lines := strings.Split(err.Error(), "\n")
		require.Equal(t, many+": "+[]string{"5 problems:", "the first problems:"}[min(more, 1)], lines[0])
		require.Len(t, lines, 1+min(5+more, maxProblems))
		for i, says := range []string{"a/1.md: the file is not supported", "a/deep/1.txt: the file is not supported",
			"b: the class folder has no images", "c.png: the image is not in a class folder", ".md: the file is not supported"} {
			require.ErrorContains(t, err, says)
			require.Contains(t, lines[i+1], says)
		}
	}

	dir := imageFolder(t, 3)
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "ant", "loop")))
	_, err = openImages(dir, ImageOptions{Size: 1})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "is not supported as an image")
}

// The files written by Pillow have 8x6 pixels (see testdata/pillow_images.py).
func TestImageFormats(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "images", "*.*"))
	require.NoError(t, err)
	require.Len(t, files, 18)
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			raw := contentOf(t, path)
			got, err := painted(raw, ImageOptions{Height: 6, Width: 8})
			require.NoError(t, err)
			name := filepath.Base(path)
			tolerance := 0.0
			switch {
			case strings.HasSuffix(name, ".jpg"):
				tolerance = 4
			case strings.Contains(name, "lossy"):
				tolerance = 40 // colours have half the resolution
			}
			for i := range 48 {
				x, y := i%8, i/8
				want := []int{30 * x, 40 * y, 120}
				if strings.HasPrefix(name, "grey") {
					want = []int{30*x + y, 30*x + y, 30*x + y}
				}
				for c := range 3 {
					require.InDelta(t, want[c], int(got[3*i+c]), tolerance, "pixel %d,%d channel %d", x, y, c)
				}
			}
			if strings.HasPrefix(name, "grey") {
				grey, err := painted(raw, ImageOptions{Height: 6, Width: 8, Channels: 1})
				require.NoError(t, err)
				for i, v := range grey {
					require.Equal(t, got[3*i], v)
				}
			}
		})
	}
}

// Images with 16 bits per channel, with and without transparency.
func TestImagesOf16Bits(t *testing.T) {
	deep := image.NewNRGBA64(image.Rect(0, 0, 4, 4))
	for i := range 16 {
		deep.SetNRGBA64(i%4, i/4, color.NRGBA64{uint16(i)<<8 | 0x7f, 0xffff, 0x1234, uint16(i * 4000)})
	}
	got, err := painted(pngOf(t, deep), ImageOptions{Size: 4})
	require.NoError(t, err)
	for i := range 16 {
		require.Equal(t, []uint8{uint8(i), 0xff, 0x12}, got[3*i:3*i+3])
	}
}

// claim changes the size in the header of a .png file.
func claim(raw []byte, width, height uint32) []byte {
	lie := bytes.Clone(raw)
	binary.BigEndian.PutUint32(lie[16:], width)
	binary.BigEndian.PutUint32(lie[20:], height)
	binary.BigEndian.PutUint32(lie[29:], crc32.ChecksumIEEE(lie[12:29]))
	return lie
}

func TestDamagedImages(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "images", "*.*"))
	require.NoError(t, err)
	for _, path := range files {
		raw := contentOf(t, path)
		for _, part := range []int{len(raw) / 3, len(raw) / 2} {
			_, err = painted(raw[:part], ImageOptions{Size: 8})
			require.ErrorIs(t, err, ErrFormat, "%d bytes of %s", part, path)
			require.ErrorContains(t, err, "replace or remove it")
		}
	}
	small := pngOf(t, noise(1))
	for _, c := range []struct {
		name string
		raw  []byte
		kind error
		says string
	}{
		{"text", []byte("<html>not found</html>"), ErrUnsupported, `starts with "<html>no"`},
		{"short", []byte("x"), ErrUnsupported, `starts with "x"`},
		{"huge", claim(small, 50_000, 50_000), ErrTooLarge, "more than the limit of 100000000: make it smaller"},
		{"no width", claim(small, 0, 10), ErrFormat, "PNG"},
	} {
		before := allocated()
		_, err := painted(c.raw, ImageOptions{Size: 8})
		require.ErrorIs(t, err, c.kind, c.name)
		require.ErrorContains(t, err, c.says, c.name)
		require.Less(t, allocated()-before, uint64(4<<20), c.name)
	}
}

func allocated() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.TotalAlloc
}

// A damaged image ends the pass, after the batches before it, with an error that names the file.
func TestPassesWithADamagedImage(t *testing.T) {
	dir := imageFolder(t, 30)
	m := opened(t, dir, Options{Images: ImageOptions{Size: 8}})
	bad := filepath.Join(dir, "bee", "013.png")
	require.NoError(t, os.Truncate(bad, 60))
	gone := filepath.Join(dir, "cow", "002.png")
	require.NoError(t, os.Remove(gone))
	for _, workers := range []int{1, 2, 7} {
		for _, ahead := range []int{0, 1, 4} {
			good := 0
			var failed error
			for b, err := range Prefetch(m.Workers(workers), ahead).Batches(Pass{Batch: 4}) {
				if failed = err; err != nil {
					continue
				}
				require.Equal(t, good, b.Index)
				good++
			}
			require.ErrorIs(t, failed, ErrFormat)
			require.ErrorContains(t, failed, bad+": a damaged PNG image (")
			require.Equal(t, 3, good, "bee/013 is sample 14: there are 10 ants, and 1, 4, 7 and 10 before it")
		}
	}
	empty, page := filepath.Join(dir, "ant", "000.png"), filepath.Join(dir, "ant", "003.png")
	require.NoError(t, os.Truncate(empty, 0))
	require.NoError(t, os.WriteFile(page, []byte("<html>"), 0o644))
	err := CheckImages(t.Context(), m.Shuffle(1))
	require.ErrorContains(t, err, "4 problems")
	require.ErrorContains(t, err, empty+": malformed data: it is empty; was the download interrupted?")
	require.ErrorContains(t, err, page+": not supported: it starts with")
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Less(t, strings.Index(err.Error(), bad), strings.Index(err.Error(), gone))
	require.ErrorContains(t, err, "do not change data during training")
	for i := range 10 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ant", fmt.Sprintf("%03d.png", 3*i)), []byte("text"), 0o644))
	}
	require.ErrorContains(t, CheckImages(t.Context(), m), ": the first problems:\n")

	dir = imageFolder(t, 9)
	sound := opened(t, dir, Options{Images: ImageOptions{Size: 8}})
	if os.Geteuid() != 0 { // root may read every file
		require.NoError(t, os.Chmod(filepath.Join(dir, "bee", "001.png"), 0))
		err := CheckImages(t.Context(), sound)
		require.ErrorIs(t, err, fs.ErrPermission)
		require.ErrorContains(t, err, "give the user of this process the right to read it")
		require.NoError(t, os.Chmod(filepath.Join(dir, "bee", "001.png"), 0o644))
	}
	scaled, err := sound.Scale("x", 0, 1)
	require.NoError(t, err)
	require.NoError(t, CheckImages(t.Context(), scaled))
	require.NoError(t, CheckImages(t.Context(), counted(t, 3)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, CheckImages(ctx, sound), context.Canceled)
}

// Checks of labels and of finite values decode no images.
func TestChecksDecodeNothing(t *testing.T) {
	dir := imageFolder(t, 9)
	m := opened(t, dir, Options{Images: ImageOptions{Size: 8}})
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "bee")))
	scaled, err := m.Scale("x", -1, 1)
	require.NoError(t, err)
	for _, ds := range []*InMemory{m, scaled, scaled.Shuffle(1)} {
		require.NoError(t, Check(ds, "y", Values{Classes: 3}))
		require.ErrorIs(t, Check(ds, "y", Values{Classes: 2}), ErrLabel)
		require.NoError(t, Check(ds, "", finite))
	}
	weighted, err := WithSampleWeights(scaled, "y", map[int64]float64{1: 3})
	require.NoError(t, err)
	only, err := weighted.selected(sampleWeight)
	require.NoError(t, err)
	for b, err := range only.Batches(Pass{Batch: 9}) {
		require.NoError(t, err)
		require.Equal(t, []float32{1, 1, 1, 3, 3, 3, 1, 1, 1}, b.Fields[0].Values)
	}
	_, err = WithSampleWeights(m, "x", nil)
	require.ErrorIs(t, err, ErrField)

	parts := dataset(t, "parts", Field{Name: "y", Array: Array{Shape: []int{2}, Values: []float32{1, 0.9}}})
	_, err = WithSampleWeights(parts, "y", map[int64]float64{1: 3})
	require.ErrorIs(t, err, ErrValue)
	require.ErrorContains(t, err, "sample 1, column y: found 0.9")
}

func TestFingerprint(t *testing.T) {
	dir := imageFolder(t, 9)
	open := func(dir string, o ImageOptions) *InMemory {
		m, err := openImages(dir, o)
		require.NoError(t, err)
		return m
	}
	of := func(ds interface {
		Fingerprint() (string, bool, error)
	}) string {
		text, ok, err := ds.Fingerprint()
		require.NoError(t, err)
		require.True(t, ok)
		return text
	}
	m := open(dir, ImageOptions{Size: 8})
	first := of(m)
	require.Regexp(t, `^9 samples \(files sha256 [0-9a-f]{16}\)$`, first)
	moved := filepath.Join(t.TempDir(), "moved")
	require.NoError(t, os.CopyFS(moved, os.DirFS(dir)))
	require.Equal(t, first, of(open(moved, ImageOptions{Height: 8, Width: 8, Channels: 3})))
	require.Equal(t, first, of(m.Workers(5)))

	seen := map[string]string{first: "as it is"}
	differs := func(what string, ds *InMemory, err error) {
		t.Helper()
		require.NoError(t, err)
		text := of(ds)
		require.NotContains(t, seen, text, what)
		seen[text] = what
	}
	differs("shuffled", m.Shuffle(1), nil)
	differs("shuffled otherwise", m.Shuffle(2), nil)
	half, other, err := m.Split(0.5, 1)
	differs("one half", half, err)
	differs("the other half", other, err)
	differs("grey", open(dir, ImageOptions{Size: 8, Channels: 1}), nil)
	differs("smaller", open(dir, ImageOptions{Size: 4}), nil)
	differs("with fractions", open(dir, ImageOptions{Size: 8, Float: true}), nil)
	differs("other class numbers", open(dir, ImageOptions{Size: 8, Classes: []string{"cow", "bee", "ant"}}), nil)
	differs("inverted", inverted(t, m), nil)
	scaled, err := m.Scale("x", 0, 1)
	differs("scaled", scaled, err)
	put(t, moved, "ant/000.png", []byte("another size"))
	differs("another file", open(moved, ImageOptions{Size: 8}), nil)

	_, ok, err := counted(t, 3).Fingerprint()
	require.NoError(t, err)
	require.False(t, ok)
}

func FuzzImage(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "images", "*.*"))
	require.NoError(f, err)
	for _, path := range files {
		raw := contentOf(f, path)
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
	}
	f.Add(claim(pngOf(f, noise(1)), 1<<31-1, 1<<31-1))
	f.Add([]byte("\xff\xd8\xff\xff\xff\xff\xff\xc2"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dst, err := painted(raw, ImageOptions{Height: 3, Width: 5, Channels: 1})
		require.Len(t, dst, 15)
		if err == nil {
			return
		}
		for _, kind := range []error{ErrFormat, ErrUnsupported, ErrTooLarge} {
			if errors.Is(err, kind) {
				return
			}
		}
		t.Fatalf("an error of no kind: %v", err)
	})
}

// BenchmarkImages decodes photographs of 500x375 pixels to 224x224.
func BenchmarkImages(b *testing.B) {
	photo := image.NewRGBA(image.Rect(0, 0, 500, 375))
	rng := rand.New(rand.NewPCG(1, 0))
	for y := range 375 {
		for x := range 500 {
			// Smooth gradients with noise compress about as well as photographs.
			photo.SetRGBA(x, y, color.RGBA{uint8(x/2 + rng.IntN(16)), uint8(y/2 + rng.IntN(16)), uint8((x+y)/4 + rng.IntN(16)),
				255})
		}
	}
	var file bytes.Buffer
	require.NoError(b, jpeg.Encode(&file, photo, &jpeg.Options{Quality: 85}))
	dir := b.TempDir()
	for i := range 64 {
		put(b, dir, fmt.Sprintf("a/%02d.jpg", i), file.Bytes())
	}
	m, err := openImages(dir, ImageOptions{Size: 224})
	require.NoError(b, err)
	for _, workers := range []int{1, 2, 4, 8} {
		if workers > runtime.GOMAXPROCS(0) {
			continue
		}
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			b.ReportAllocs()
			ds := Prefetch(m.Workers(workers), 2)
			images := 0
			for epoch := 0; b.Loop(); epoch++ {
				for batch, err := range ds.Batches(Pass{Batch: 16, Epoch: epoch}) {
					if err != nil {
						b.Fatal(err)
					}
					images += batch.Size
				}
			}
			b.ReportMetric(float64(images)/b.Elapsed().Seconds()/float64(workers), "images/s/worker")
			b.ReportMetric(float64(images)/b.Elapsed().Seconds(), "images/s")
		})
	}
}
