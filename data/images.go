package data

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// ImageOptions configure how a folder of images is read. Only Size, or Height and Width, is
// required.
type ImageOptions struct {
	// Size is the height and width of the samples in pixels, unless Height and Width are set.
	Size          int
	Height, Width int
	// Channels is 3 for red, green and blue (also for 0), or 1 for grey.
	Channels int
	// KeepAspect crops each image around its centre to the proportions of the samples. The default
	// is to stretch images, as Keras' image_dataset_from_directory does.
	KeepAspect bool
	// Smooth averages all pixels that one pixel of the sample covers, with a triangle filter like
	// Pillow's BILINEAR, and rounds; it is slower for large images. The default is to interpolate
	// between the nearest four pixels, as Keras does.
	Smooth bool
	// Float makes the samples float32, from 0 to 255 with the fractions of resized pixels, as in Keras.
	// The default is uint8, rounded, with a quarter of the memory.
	Float bool
	// Classes are the names of the class folders, in the order of their numbers. Empty means all
	// sub-folders, sorted. For a validation folder, set the ClassNames of the training folder.
	Classes []string
	// MaxPixels is the maximum number of pixels of an image; 0 means 100 million. A larger image
	// is ErrTooLarge.
	MaxPixels int
	// DecodeBytes limits the estimated memory for decoding by all workers together; 0 means
	// 256 MiB. A worker waits while its image does not fit. An image above the limit is decoded
	// while all other workers wait.
	DecodeBytes int64
	jpeg        *jpegDecoder
}

func (o ImageOptions) complete() (ImageOptions, error) {
	o.Height, o.Width = cmp.Or(o.Height, o.Size), cmp.Or(o.Width, o.Size)
	o.Channels = cmp.Or(o.Channels, 3)
	o.MaxPixels = cmp.Or(o.MaxPixels, 100_000_000)
	o.DecodeBytes = cmp.Or(o.DecodeBytes, 256<<20)
	o.jpeg = new(jpegDecoder)
	const most = 1 << 14
	switch {
	case o.Height == 0 || o.Width == 0:
		return o, &option.Error{Option: "ImageOptions.Size", Reason: "the images in a folder differ in size", Fix: "set the height and width that the model takes", Err: errOption}
	case o.Height < 1 || o.Width < 1 || o.Height > most || o.Width > most:
		return o, &option.Error{Option: "ImageOptions.Size", Value: fmt.Sprintf("%dx%d", o.Height, o.Width), Reason: fmt.Sprintf("expected 1 to %d pixels each", most), Err: errOption}
	case o.Channels != 1 && o.Channels != 3:
		return o, fmt.Errorf("%d channels, expected 1 (grey) or 3 (colour): %w", o.Channels, errOption)
	case o.MaxPixels < 0 || o.DecodeBytes < 0:
		return o, fmt.Errorf("limits of %d pixels and %d bytes, expected numbers above 0, or 0 for the default: %w", o.MaxPixels, o.DecodeBytes, errOption)
	}
	return o, nil
}

// imageExtensions are the extensions of image files. The format is detected from the content.
var imageExtensions = []string{".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff"}

// openImages lists a folder of images. Each sub-folder is a class; its images may be in nested
// folders. The workers of the dataset (InMemory.Workers) decode an image when a batch needs it.
//
// The field x is [height width channels] from 0 to 255, uint8 or with ImageOptions.Float float32, and y
// is the int64 number of the class in ClassNames. Samples are sorted by class and name, so shuffle them for training.
//
// Formats are PNG, JPEG, GIF (the first picture), WebP, BMP and TIFF. Grey and paletted images are
// converted to colour, 16-bit channels are reduced to their upper 8 bits, transparency is dropped,
// and the orientation in EXIF data is ignored, as in Keras. Names that begin with a dot, Thumbs.db
// and desktop.ini are ignored, and so are files beside the class folders that are not images.
//
// Other files inside a class folder are ErrUnsupported. A class folder that is not in
// ImageOptions.Classes is ErrLabel. An empty file, a class without images and a folder without
// classes are ErrFormat. An error has up to ten such problems. A damaged image ends the pass that needs
// it with an error that names the file.
//
// JPEG files have other pixels than with tf.io.decode_jpeg, unless InMemory.UseJPEG sets its decoder.
// Resizing may round differently on another processor architecture, and decoders may change with
// Go's version.
func openImages(dir string, o ImageOptions) (*InMemory, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, openError(dir, err)
	}
	files := &imageFiles{dir: dir, options: o, decoding: gate{limit: o.DecodeBytes}}
	classes := slices.Clone(o.Classes)
	var labels []int64
	found := &problems{source: dir}
	for _, e := range entries {
		if ignored(e.Name()) || len(found.errs) == maxProblems {
			continue
		}
		isClass, err := files.isClass(e.Name())
		if err != nil {
			found.add(err)
		}
		if !isClass {
			continue
		}
		before := len(files.files)
		files.list(e.Name(), found)
		class := slices.Index(classes, e.Name())
		if class < 0 {
			class = len(classes)
			classes = append(classes, e.Name())
		}
		labels = append(labels, slices.Repeat([]int64{int64(class)}, len(files.files)-before)...)
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	n := len(labels)
	if n == 0 {
		return nil, fmt.Errorf("%s: it has no class folders: put the images of each class in a sub-folder with the name of the class (%s, %s, ...): %w",
			dir, filepath.Join(dir, "cat"), filepath.Join(dir, "dog"), ErrFormat)
	}
	m := &InMemory{name: dir, n: n}
	m.columns = []column{{
		name: "x", shape: []int{o.Height, o.Width, o.Channels}, width: o.Height * o.Width * o.Channels,
		kind: o.kind(), made: files, pixels: true, file: dir,
	}}
	if err := m.add("y", array{[]int{n}, vec[int64](labels)}, dir); err != nil {
		return nil, err
	}
	m.columns[1].classes = classes
	return m, nil
}

func isImage(path string) bool {
	return slices.Contains(imageExtensions, strings.ToLower(filepath.Ext(path)))
}

func holdsImages(dir string) bool {
	// WalkDir's own errors are ignored here: openImages reports them.
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && isImage(path) && filepath.Dir(path) != filepath.Clean(dir) {
			return errFound
		}
		return nil
	}) == errFound
}

var errFound = errors.New("found")

// trained, tested and validated list the possible names of folders and files with a part, without regard
// to case, in the order in which they are chosen.
var (
	trained   = []string{"train", "training"}
	tested    = []string{"test", "testing", "validation", "val", "valid"}
	validated = []string{"validation", "val", "valid", "test", "testing"}
)

// partNames returns the names of a part.
func partNames(split string) []string {
	switch split {
	case "test":
		return tested
	case "validation":
		return validated
	}
	return trained
}

// openImagePart opens the part split of a folder of images. The folder has parts if all its
// sub-folders have names of parts and contain class folders; "train" may also be a class.
func openImagePart(dir, split string, o ImageOptions) (*InMemory, error) {
	found, part, divided, err := partFolders(dir, o.Classes)
	if err != nil {
		return nil, err
	}
	first := func(names []string) string {
		i := slices.IndexFunc(names, func(name string) bool { return found[name] != "" })
		if i < 0 {
			return ""
		}
		return found[names[i]]
	}
	switch train, chosen := first(trained), first(partNames(split)); {
	case divided && train != "" && chosen != "":
		return openImages(chosen, o)
	case divided && train != "":
		return nil, fmt.Errorf("%s: part %q: %w: no folder %q beside %s", dir, split, ErrNoSplit, partNames(split), filepath.Base(train))
	case part != "":
		return nil, fmt.Errorf("%s: the folder has the name of a part and contains folders of images, so it is not a class: open it by itself, or leave only folders named %q and %q in %s: %w",
			part, trained, tested, dir, ErrFormat)
	}
	if err := onePart(dir, split); err != nil {
		return nil, err
	}
	return openImages(dir, o)
}

// partFolders returns the sub-folders of a folder by their names in lower case. part is one that
// has the name and the class folders of a part and is no class. divided reports whether all of
// them are parts.
func partFolders(dir string, classes []string) (found map[string]string, part string, divided bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, "", false, openError(dir, err)
	}
	found, divided = map[string]string{}, true
	for _, e := range entries {
		if ignored(e.Name()) || !e.IsDir() {
			continue
		}
		name := strings.ToLower(e.Name())
		path := filepath.Join(dir, e.Name())
		isPart := (slices.Contains(trained, name) || slices.Contains(tested, name)) && holdsImages(path)
		divided = divided && isPart && found[name] == ""
		found[name] = path
		if isPart && !slices.Contains(classes, e.Name()) {
			part = path
		}
	}
	return found, part, divided, nil
}

func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || strings.EqualFold(name, "Thumbs.db") || strings.EqualFold(name, "desktop.ini")
}

func list(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%q ...", names[:most])
	}
	return fmt.Sprintf("%q", names)
}

type imageFiles struct {
	dir      string
	files    []imageFile
	options  ImageOptions
	decoding gate
}

// imageFile is a file. Its path is relative to the folder of the dataset.
type imageFile struct {
	path string
	size int64
}

// ImagePath returns the file of a sample, counted from 0 in the order of an unshuffled pass, if its images
// are in a folder. The path is relative to the folder with the class folders, and has slashes. It is
// empty for other data.
func (m *InMemory) ImagePath(sample int) string {
	for i := range m.columns {
		c := m.columns[i].decoded()
		if c == nil {
			continue
		}
		if files, ok := c.made.(*imageFiles); ok {
			if m.rows != nil {
				sample = int(m.rows[sample])
			}
			return filepath.ToSlash(files.files[sample].path)
		}
	}
	return ""
}

// isClass reports whether an entry of the folder is a class folder.
func (f *imageFiles) isClass(name string) (bool, error) {
	path := filepath.Join(f.dir, name)
	info, err := os.Stat(path) // follows links to folders
	switch classes := f.options.Classes; {
	case err != nil:
		return false, openError(path, err)
	case !info.IsDir() && isImage(path):
		return false, fmt.Errorf("%s: the image is not in a class folder: move it to the folder of its class: %w", path, ErrFormat)
	case info.IsDir() && len(classes) > 0 && !slices.Contains(classes, name):
		return false, fmt.Errorf("%s: the folder is not one of the %d classes %s: rename it, or move it elsewhere: %w", path, len(classes), list(classes), ErrLabel)
	}
	return info.IsDir(), nil
}

// list adds the files in a class folder.
func (f *imageFiles) list(class string, found *problems) {
	files, errs := len(f.files), len(found.errs)
	f.walk(class, found)
	if path := filepath.Join(f.dir, class); len(f.files) == files && len(found.errs) == errs {
		found.add(fmt.Errorf("%s: the class folder has no images: add some, or remove the folder: %w", path, ErrFormat))
	}
}

func (f *imageFiles) walk(relative string, found *problems) {
	path := filepath.Join(f.dir, relative)
	entries, err := os.ReadDir(path)
	if err != nil {
		found.add(openError(path, err))
	}
	for _, e := range entries {
		if ignored(e.Name()) || len(found.errs) == maxProblems {
			continue
		}
		from := filepath.Join(relative, e.Name())
		switch size, isDir, err := checkFile(filepath.Join(path, e.Name()), e); {
		case err != nil:
			found.add(err)
		case isDir:
			f.walk(from, found)
		default:
			f.files = append(f.files, imageFile{from, size})
		}
	}
}

// checkFile returns the size of an image file, or that an entry of a class folder is a folder.
func checkFile(path string, e fs.DirEntry) (size int64, isDir bool, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return 0, false, openError(path, err)
	case info.IsDir() && e.Type()&fs.ModeSymlink != 0:
		err = fmt.Errorf("%s: a link to a folder inside a class folder may form a loop: put the images themselves there: %w", path, ErrUnsupported)
	case info.IsDir():
	case !isImage(path):
		err = fmt.Errorf("%s: the file is %w as an image (supported extensions: %s): convert it, or move it out of the folder",
			path, ErrUnsupported, strings.Join(imageExtensions, " "))
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file: move it out of the folder: %w", path, ErrUnsupported)
	case info.Size() == 0:
		err = fmt.Errorf("%s is empty; was the download interrupted? Replace or remove it: %w", path, ErrFormat)
	}
	return info.Size(), info.IsDir(), err
}

func (f *imageFiles) under() *column { return nil }

func (f *imageFiles) tame() bool { return true }

func (f *imageFiles) repeats() bool { return true }

func (f *imageFiles) describe() string { return f.options.describe() }

// kind returns the element type of the samples.
func (o ImageOptions) kind() *dtype.Type {
	if o.Float {
		return dtype.For[float32]()
	}
	return dtype.For[uint8]()
}

func (o ImageOptions) describe() string {
	text := fmt.Sprintf("images %dx%dx%d, keep aspect %v, smooth %v, rounded %v", o.Height, o.Width, o.Channels, o.KeepAspect, o.Smooth, !o.Float)
	if o.jpeg.Load() != nil {
		text += ", JPEG files by another decoder than Go's"
	}
	return text
}

func (f *imageFiles) make(h *hand, dst vector, at int, s Sample) error {
	p, ok := h.kept[f].(*painter)
	if !ok {
		p = newPainter(f.options)
		h.kept[f] = p
	}
	path := filepath.Join(f.dir, f.files[s.Row].path)
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w; it existed when the folder was opened: do not change data during training", path, withoutPath(err))
	}
	if err != nil {
		return openError(path, err)
	}
	defer file.Close() // the file was only read
	info, err := file.Stat()
	if err == nil {
		err = p.paint(dst, at, file, info.Size(), &f.decoding)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
