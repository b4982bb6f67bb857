package data

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// textFolder makes a folder with a file for each of the texts, by the path in the folder.
func textFolder(t testing.TB, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		put(t, dir, name, []byte(text))
	}
	return dir
}

func textsOf(t testing.TB, ds Dataset, p Pass) (texts []string, classes []int64) {
	t.Helper()
	for b, err := range ds.Batches(p) {
		require.NoError(t, err)
		texts = append(texts, b.Fields[0].Values.([]string)...)
		classes = append(classes, b.Fields[1].Values.([]int64)...)
	}
	return texts, classes
}

// Folders of texts have the same parts, classes and class numbers as folders of images. A text is the
// content of its file, as text_dataset_from_directory reads it.
func TestOpenTexts(t *testing.T) {
	dir := textFolder(t, map[string]string{
		"README": "about", "imdb.vocab": "a", "train/urls_pos.txt": "not a sample", "train/.keep.txt": "x",
		"train/pos/1_9.txt": "a good film,\r\nmostly\n", "train/pos/0_7.TXT": "\ufeffcafé\x00",
		"train/pos/more/x.txt": "deep",
		"train/neg/0_1.txt":    "", "test/neg/a.txt": "bad", "test/pos/b.txt": "good",
	})
	m, err := Open(dir, Options{})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "train")+": 4 samples; x string [], y int64 []", describe(m))
	require.Equal(t, []string{"neg", "pos"}, spec(m, "y").Classes)
	require.Nil(t, imageFields(m))
	require.Equal(t, "pos/more/x.txt", m.FilePath(3))
	require.True(t, m.Repeats())
	require.NoError(t, CheckImages(t.Context(), m))
	want := []string{"", "\ufeffcafé\x00", "a good film,\r\nmostly\n", "deep"}
	for _, ds := range []Dataset{m.Workers(1), m.Workers(3), Prefetch(m.Workers(2), 3)} {
		texts, classes := textsOf(t, ds, Pass{Batch: 3})
		require.Equal(t, want, texts)
		require.Equal(t, []int64{0, 1, 1, 1}, classes)
	}
	shuffled := m.Shuffle(3)
	texts, _ := textsOf(t, shuffled, Pass{Batch: 1, Epoch: 2})
	require.ElementsMatch(t, want, texts)
	rest, _ := textsOf(t, shuffled, Pass{Batch: 1, Epoch: 2, Skip: 3})
	require.Equal(t, texts[3:], rest, "a resumed pass reads the rest")

	for _, o := range []CSVOptions{{Classes: []string{"pos", "mixed", "neg"}}, {Names: []string{"pos", "mixed", "neg"}}} {
		test, err := Open(dir, Options{Split: "test", CSV: o})
		require.NoError(t, err)
		texts, classes := textsOf(t, test, Pass{Batch: 2})
		require.Equal(t, []string{"bad", "good"}, texts)
		require.Equal(t, []int64{2, 0}, classes)
	}

	first, ok, err := m.Fingerprint()
	require.NoError(t, err)
	require.True(t, ok)
	put(t, dir, "train/pos/1_9.txt", []byte("a film of another length"))
	again, err := Open(dir, Options{})
	require.NoError(t, err)
	second, _, err := again.Fingerprint()
	require.NoError(t, err)
	require.NotEqual(t, first, second)
}

func TestOpenTextsRefuses(t *testing.T) {
	small := string(pngOf(t, noise(1)))
	for _, c := range []struct {
		name  string
		files map[string]string
		kind  error
		says  string
	}{
		{"empty class", map[string]string{"pos/1.txt": "a", "neg/.keep": ""}, ErrFormat,
			"neg: the class folder has no texts"},
		{"no classes", map[string]string{"1.txt": "a", "2.txt": "b"}, ErrFormat, "it has no class folders"},
		{"images, too", map[string]string{"pos/1.txt": "a", "neg/1.png": small}, ErrUnsupported,
			"1.txt: the file is not supported as an image, and the folder has images"},
		{"images in a class, too", map[string]string{"pos/1.txt": "a", "pos/2.png": small}, ErrUnsupported,
			"1.txt: the file is not supported as an image, and the folder has images"},
		{"other file", map[string]string{"pos/1.txt": "a", "pos/1.md": "b"}, ErrUnsupported,
			"1.md: the file is not supported as a text, and the folder has texts (supported extensions: .txt)"},
		{"other class", map[string]string{"pos/1.txt": "a", "unsup/1.txt": "a"}, ErrLabel, `unsup: the folder is not one of the 2 classes ["neg" "pos"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := textFolder(t, c.files)
			o := Options{Images: ImageOptions{Size: 1}}
			if c.kind == ErrLabel {
				o.CSV.Names = []string{"neg", "pos"}
			}
			_, err := Open(dir, o)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, dir)
		})
	}
}

// A file that is not UTF-8 text ends the pass with an error that names the file and the line.
// CheckImages lists the file.
func TestTextsOfOtherEncodings(t *testing.T) {
	dir := textFolder(t, map[string]string{
		"neg/1.txt": "first\n" + strings.Repeat("long ", 20) + "caf\xe9\nlast", "neg/2.txt": "\xff\xfea\x00b\x00",
		"pos/3.txt": "good",
	})
	large := put(t, dir, "neg/3.txt", []byte("x"))
	require.NoError(t, os.Truncate(large, maxRow+1))
	m, err := Open(dir, Options{})
	require.NoError(t, err)
	gone := put(t, dir, "pos/3.txt", nil)
	require.NoError(t, os.Remove(gone))
	says := []string{
		filepath.Join(dir, "neg/1.txt") + `: line 2: found "\xe9\nlast", expected text in UTF-8; convert the file, for example with iconv -f latin1 -t utf-8`,
		filepath.Join(dir, "neg/2.txt") + `: line 1: found "\xff\xfea\x00b\x00", expected text in UTF-8; convert the file, for example with iconv -f latin1 -t utf-8`,
		large + ": larger than allowed: a text of 16777217 bytes",
		gone + ": no such file or directory; it existed when the folder was opened",
	}
	for i, kind := range []error{ErrFormat, ErrFormat, ErrTooLarge, fs.ErrNotExist} {
		var failed error
		for _, err := range m.Batches(Pass{Batch: 1, Skip: i}) {
			failed = err
			break
		}
		require.ErrorIs(t, failed, kind)
		require.True(t, strings.HasPrefix(failed.Error(), says[i]), failed)
	}
	err = CheckImages(t.Context(), m)
	require.ErrorContains(t, err, dir+": 4 problems:\n"+says[0])
	for _, line := range says {
		require.ErrorContains(t, err, "\n"+strings.TrimSuffix(line, "; convert the file, for example with iconv -f latin1 -t utf-8"))
	}
}

// Memory does not depend on the number of texts, except for their names.
func TestTextsStayOnDisk(t *testing.T) {
	const n, size = 64, 1 << 20
	dir := t.TempDir()
	for i := range n {
		path := put(t, dir, fmt.Sprintf("a/%d.txt", i), nil)
		require.NoError(t, os.Truncate(path, size)) // zeros are valid
	}
	m, err := Open(dir, Options{})
	require.NoError(t, err)
	require.Less(t, m.HeapBytes(), int64(16*n))
	live := func() int64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before, most := live(), int64(0)
	for b, err := range Prefetch(m.Workers(2), 2).Batches(Pass{Batch: 2}) {
		require.NoError(t, err)
		require.Len(t, b.Fields[0].Values.([]string)[1], size)
		most = max(most, live()-before)
	}
	require.Less(t, most, int64(16*size), "three batches of two texts, and one per worker")
}

// A folder of files without class folders can be read for predictions.
func TestFlatFolders(t *testing.T) {
	dir := textFolder(t, map[string]string{"b.txt": "second", "a.txt": "first", "c.TXT": "third", ".hidden.txt": "x"})
	_, err := Open(dir, Options{})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, dir+": it has no class folders: put the texts of each class in a sub-folder with the "+
		"name of the class (")
	require.ErrorContains(t, err, "; only a prediction needs no classes")
	m, err := Open(dir, Options{Unlabelled: true})
	require.NoError(t, err)
	require.Equal(t, dir+": 3 samples; x string []", describe(m))
	require.Equal(t, []string{"first", "second", "third"}, fieldsOf(t, m)["x"].Values)
	require.Equal(t, "c.TXT", m.FilePath(2))
	_, err = Open(dir, Options{Unlabelled: true, Split: "test"})
	require.ErrorIs(t, err, ErrNoSplit)

	// Files in __MACOSX are ignored.
	put(t, dir, "__MACOSX/._a.txt", []byte("x"))
	m, err = Open(dir, Options{Unlabelled: true})
	require.NoError(t, err)
	require.Equal(t, 3, m.Len())
	put(t, dir, "other/._a.txt", []byte("x"))
	_, err = Open(dir, Options{Unlabelled: true})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, dir+" is a folder without")

	images := t.TempDir()
	for i, name := range []string{"2.png", "10.jpeg", "notes.txt"} {
		put(t, images, name, pngOf(t, noise(i)))
	}
	_, err = Open(images, Options{Unlabelled: true})
	require.ErrorContains(t, err, "images need one size, and none is given")
	o := Options{Unlabelled: true, Images: ImageOptions{Size: 4}}
	_, err = Open(images, o)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, filepath.Join(images, "notes.txt")+": the file is not supported as an image")
	require.NoError(t, os.Remove(filepath.Join(images, "notes.txt")))
	m, err = Open(images, o)
	require.NoError(t, err)
	require.Equal(t, images+": 2 samples; x uint8 [4 4 3]", describe(m))
	require.Equal(t, []string{"10.jpeg", "2.png"}, []string{m.FilePath(0), m.FilePath(1)})
	require.Equal(t, []string{"x"}, imageFields(m))
	put(t, images, "cat/1.png", pngOf(t, noise(3)))
	_, err = Open(images, o)
	require.ErrorContains(t, err, "the image is not in a class folder")
}

// A folder with the name of a part is no class if it has class folders.
func TestPartIsNoClass(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"train/good/a.txt", "train/bad/b.txt", "notes/c.txt"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o600))
	}
	_, err := Open(dir, Options{})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, "the folder has the name of a part")
}
