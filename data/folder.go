package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/data/internal/fault"
	"steadyfit/option"
)

// extensions are those of images. The format of an image is detected from its content.
var extensions = []string{".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"}

// isImage reports whether a path has the extension of an image.
func isImage(path string) bool {
	return slices.Contains(extensions, strings.ToLower(filepath.Ext(path)))
}

// hasImages reports whether dir has images, beside its sub-folders if flat is true, and otherwise in them.
func hasImages(dir string, flat bool) bool {
	// WalkDir's own errors are ignored here: openImageFolder reports them.
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		isBeside := filepath.Dir(path) == filepath.Clean(dir)
		if err == nil && isImage(path) && !ignored(filepath.Base(path)) && isBeside == flat {
			return errFound
		}
		return nil
	}) == errFound
}

var errFound = errors.New("found")

// openImageFolder lists a folder of images, which are decoded when a batch needs them. If flat is false,
// each sub-folder is a class; its files may be in nested folders. The field y is the int64 number of the class in
// FieldSpec.Classes, and the samples are sorted by class and name. If flat is true, the folder has the files of a
// prediction.
//
// Names that begin with a dot, Thumbs.db, desktop.ini and __MACOSX are ignored, and so are files beside
// the class folders, except for images.
func openImageFolder(dir string, flat bool, o Options) (*InMemory, error) {
	if !hasImages(dir, flat) {
		return nil, fmt.Errorf("%s is a folder without MNIST's files (train-images-idx3-ubyte.gz ...), .npy files, "+
			"TFRecord, WebDataset, Parquet or Arrow files, or class folders of images; supported are %s: %w", dir, formats,
			ErrUnsupported)
	}
	images, err := newImageDecoder(o.Images)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	files, found := &classFiles{imageDecoder: images, dir: dir, names: o.Images.Classes}, &problems{source: dir}
	if flat && !o.Unlabelled {
		return nil, noClasses(dir)
	}
	if err := onePart(dir, o.Split); err != nil {
		return nil, err
	}
	if !flat {
		return files.classes(o, found)
	}
	if files.list("", found); found.all > 0 {
		return nil, found.err()
	}
	m := files.dataset()
	return m, checkSamples(m.n)
}

// classes returns the files in class folders as a dataset.
func (f *classFiles) classes(o Options, found *problems) (*InMemory, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, openError(f.dir, err)
	}
	classes := slices.Clone(f.names)
	var labels []int64
	for _, e := range entries {
		if ignored(e.Name()) || len(found.errs) == maxProblems {
			continue
		}
		isClass, err := f.isClass(e.Name())
		if err != nil {
			found.add(err)
		}
		if !isClass {
			continue
		}
		before, problems := len(f.files), found.all
		if f.list(e.Name(), found); len(f.files) == before && found.all == problems {
			found.add(fmt.Errorf("%s: the class folder has no images: add some, or remove the folder: %w",
				filepath.Join(f.dir, e.Name()), ErrFormat))
		}
		class := slices.Index(classes, e.Name())
		if class < 0 && o.CSV.Numbers != "" && !o.Unlabelled {
			if class, err = strconv.Atoi(e.Name()); err != nil {
				found.add(option.Errorf("%s: the name of the class folder is not a number, and labels are numbers, because %s: "+
					"list the names in the order of their numbers ({CSVOptions.Classes}): %w", filepath.Join(f.dir, e.Name()),
					o.CSV.Numbers, ErrLabel))
			}
		} else if class < 0 {
			class = len(classes)
			classes = append(classes, e.Name())
		}
		labels = append(labels, slices.Repeat([]int64{int64(class)}, len(f.files)-before)...)
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	if len(labels) == 0 {
		return nil, noClasses(f.dir)
	}
	m := f.dataset()
	if err := m.add("y", array{[]int{m.n}, vec[int64](labels)}, f.dir); err != nil {
		return nil, err
	}
	m.columns[1].classes = classes
	return m, nil
}

func noClasses(dir string) error {
	return fmt.Errorf("%s: it has no class folders: put the images of each class in a sub-folder with the name of the "+
		"class (%s, %s, ...); only a prediction needs no classes: %w",
		dir, filepath.Join(dir, "cat"), filepath.Join(dir, "dog"), ErrFormat)
}

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

// partFolder returns the sub-folder that holds the part split, such as "test". It returns "" if the sub-folders are
// not parts. They are parts if each has the name of a part, and one of them is the training part.
func partFolder(dir string, folders []string, split string) (string, error) {
	first := func(names []string) string {
		for _, name := range names {
			for _, folder := range folders {
				if strings.EqualFold(folder, name) {
					return filepath.Join(dir, folder)
				}
			}
		}
		return ""
	}
	isOther := func(folder string) bool {
		name := strings.ToLower(folder)
		return !slices.Contains(trained, name) && !slices.Contains(tested, name)
	}
	train, chosen := first(trained), first(partNames(split))
	switch {
	case train == "" || slices.ContainsFunc(folders, isOther):
		return "", nil
	case chosen == "":
		return "", fmt.Errorf("%s: part %q: %w: no folder %q beside %s", dir, split, ErrNoSplit, partNames(split),
			filepath.Base(train))
	}
	return chosen, nil
}

func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || slices.Contains([]string{"thumbs.db", "desktop.ini", "__macosx"},
		strings.ToLower(name))
}

// list quotes the first and the last names.
func list(names []string) string {
	const most = 12
	if n := len(names); n > most {
		return fmt.Sprintf("%q ... %q", names[:most/2], names[n-most/2:])
	}
	return fmt.Sprintf("%q", names)
}

// classFiles makes samples of the images in class folders, or of the images in a folder without classes.
type classFiles struct {
	fromFiles
	*imageDecoder
	dir   string
	names []string // of the classes; empty means all sub-folders
	files []classFile
}

// classFile is a file of classFiles. path is relative to classFiles.dir.
type classFile struct {
	path string
	size int64
}

// FilePath returns the file of a sample, counted from 0 in the order of an unshuffled pass, if the data is
// a folder of images. The path is relative to this folder, and has slashes. It is empty for other
// data, and for a sample that does not exist.
func (m *InMemory) FilePath(sample int) string {
	for i := range m.columns {
		if files := m.columns[i].files(); files != nil && sample >= 0 && sample < m.n {
			if m.rows != nil {
				sample = int(m.rows[sample])
			}
			return filepath.ToSlash(files.files[sample].path)
		}
	}
	return ""
}

// dataset returns the files as the field x.
func (f *classFiles) dataset() *InMemory {
	x := f.column()
	x.name, x.file, x.made = "x", f.dir, f
	return &InMemory{name: f.dir, n: len(f.files), columns: []column{x}}
}

// isClass reports whether an entry of the folder is a class folder.
func (f *classFiles) isClass(name string) (bool, error) {
	path := filepath.Join(f.dir, name)
	info, err := os.Stat(path) // follows links to folders
	switch classes := f.names; {
	case err != nil:
		return false, openError(path, err)
	case !info.IsDir() && isImage(path):
		return false, fmt.Errorf("%s: the image is not in a class folder: move it to the folder of its class: %w", path,
			ErrFormat)
	case info.IsDir() && len(classes) > 0 && !slices.Contains(classes, name):
		return false, option.Errorf("%s: the folder is not one of the %d classes %s: rename it, or move it elsewhere; a "+
			"class that the training data lacks needs a list of all ({CSVOptions.Classes}): %w", path, len(classes),
			list(classes), ErrLabel)
	}
	return info.IsDir(), f.checkPart(name)
}

// checkPart returns an error if an entry of the folder has the name of a part and contains class folders.
func (f *classFiles) checkPart(name string) error {
	path, part := filepath.Join(f.dir, name), strings.ToLower(name)
	isPart := slices.Contains(trained, part) || slices.Contains(tested, part)
	if len(f.names) > 0 || !isPart || !hasImages(path, false) {
		return nil
	}
	return fmt.Errorf("%s: the folder has the name of a part and contains folders of images, so it is not a class: open "+
		"it by itself, or leave only folders named %q and %q in %s: %w", path, trained, tested, f.dir, ErrFormat)
}

// list adds the images in a class folder, or in the folder itself.
func (f *classFiles) list(folder string, found *problems) {
	root := filepath.Join(f.dir, folder) + string(filepath.Separator)              // also of a link
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error { // found has the errors
		isHidden := err == nil && path != root && ignored(e.Name())
		switch {
		case len(found.errs) == maxProblems:
			return fs.SkipAll
		case err != nil:
			found.add(openError(path, err))
			return nil
		case isHidden && e.IsDir():
			return fs.SkipDir
		case isHidden, e.IsDir():
			return nil
		}
		switch info, err := os.Stat(path); {
		case err != nil:
			found.add(openError(path, err))
		case !isImage(path) || !info.Mode().IsRegular():
			found.add(fmt.Errorf("%s: the file is %w as an image (supported extensions: %s): "+
				"convert it, or move it out of the folder of images", path, ErrUnsupported, strings.Join(extensions, " ")))
		default:
			relative, _ := filepath.Rel(f.dir, path) // path is in dir
			f.files = append(f.files, classFile{relative, info.Size()})
		}
		return nil
	})
}

func (f *classFiles) make(w *scratch, dst vector, at, row int) error {
	path := filepath.Join(f.dir, f.files[row].path)
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w; it existed when the folder was opened: do not change data during training", path,
			fault.WithoutPath(err))
	}
	if err != nil {
		return openError(path, err)
	}
	defer file.Close() // the file was only read
	info, err := file.Stat()
	if err == nil {
		err = f.decode(w, dst, at, file, info.Size())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// files returns the class folders from which the values of c are made; nil for other columns.
func (c *column) files() *classFiles {
	files, _ := c.bottom().made.(*classFiles)
	return files
}

// bottom returns the column from which c is computed, by one or several functions; c itself if it is not computed.
func (c *column) bottom() *column {
	for c.made != nil && c.made.under() != nil {
		c = c.made.under()
	}
	return c
}
