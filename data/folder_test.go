package data

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A folder of images without class folders can be read for predictions.
func TestFlatFolders(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"2.png", "10.jpeg", "notes.txt", ".hidden.png", "__MACOSX/._2.png"} {
		put(t, dir, name, pngOf(t, noise(i)))
	}
	size := Options{Images: ImageOptions{Size: 4}}
	_, err := Open(dir, size)
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, dir+": it has no class folders: put the images of each class in a sub-folder with the "+
		"name of the class (")
	require.ErrorContains(t, err, "; only a prediction needs no classes")
	_, err = Open(dir, Options{Unlabelled: true})
	require.ErrorContains(t, err, "images need one size, and none is given")
	o := Options{Unlabelled: true, Images: size.Images}
	_, err = Open(dir, o)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, filepath.Join(dir, "notes.txt")+": the file is not supported as an image")
	require.NoError(t, os.Remove(filepath.Join(dir, "notes.txt")))
	m := opened(t, dir, o)
	require.Equal(t, dir+": 2 samples; x uint8 [4 4 3]", describe(m))
	require.Equal(t, []string{"10.jpeg", "2.png"}, []string{m.FilePath(0), m.FilePath(1)})
	require.Equal(t, []string{"x"}, imageFields(m))
	o.Split = "test"
	_, err = Open(dir, o)
	require.ErrorIs(t, err, ErrNoSplit)
	o.Split = ""
	put(t, dir, "cat/1.png", pngOf(t, noise(3)))
	_, err = Open(dir, o)
	require.ErrorContains(t, err, "the image is not in a class folder")
}

// A folder with the name of a part is no class if it has class folders.
func TestPartIsNoClass(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"train/good/a.png", "train/bad/b.png", "notes/c.png"} {
		put(t, dir, name, pngOf(t, noise(1)))
	}
	_, err := Open(dir, Options{Images: ImageOptions{Size: 4}})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, "the folder has the name of a part")
}

func TestFolderOfTexts(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "pos/1.txt", []byte("a text"))
	_, err := Open(dir, Options{})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, dir+" is a folder without")
}
