package data

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"steadyfit/memory"
	"steadyfit/option"
)

// Options says how Open reads. The zero value reads the training part.
type Options struct {
	// Split chooses a part, "train" or "test", of a source that has both:
	// builtin datasets, MNIST's layout, .npz files or folders of .npy files whose
	// fields are named x_train, y_train, x_test, y_test, and folders of images in
	// which the class folders are in folders named train, and test, validation or
	// val. Empty means "train". Asking a source that has one part only for "test" is ErrNoSplit.
	Split string
	// CSV is for .csv files, and but for Header and Comma for .jsonl files.
	CSV CSVOptions
	// Images is for folders of images; it has to have a size for them.
	Images ImageOptions
	// Map leaves the arrays of .npy files, and those of .npz files that are not
	// compressed, in their files, and maps these, so that data may be larger than
	// memory. Arrays that cannot be mapped are read: those of the other byte order,
	// of more than one dimension in Fortran order, and of bools, and all where the
	// system does not map files. The dataset has to be closed then (InMemory.Close).
	//
	// The header and the size of a file are checked when it is opened, as when it is
	// read; the checksums of a .npz file are not. A file that changes while it is
	// mapped changes the samples; one that is cut off ends the pass that asks for
	// what is missing with an error. That rests on the system reporting the fault,
	// as Linux and macOS do.
	Map bool
	// MaxBytes refuses, with ErrTooLarge, a source that holds more than so many
	// bytes when decompressed, or whose values take more memory. A compressed file can
	// hold a thousand times its size, so 0 means 64 MiB and 50 times the size of the
	// files, but at most half of the memory that is free where that is more than the size
	// of the files; less than 0 means no limit.
	MaxBytes int64
}

// formats is what the error messages offer.
const formats = ".npz, .npy, .csv, .jsonl (both also .gz), a folder in MNIST's layout (IDX), a folder of .npy files, a folder of images with a sub-folder per class, or builtin:NAME"

// known are the formats that people have, which this version does not read.
var known = map[string]string{
	".tfrecord":  "TFRecord",
	".tfrecords": "TFRecord",
	".parquet":   "Parquet",
	".arrow":     "Arrow",
	".feather":   "Arrow",
	".h5":        "HDF5",
	".hdf5":      "HDF5",
	".mat":       "MATLAB",
	".pkl":       "Python pickle",
	".pickle":    "Python pickle",
	".zip":       "zip",
	".tar":       "tar",
	".tgz":       "tar",
	".tsv":       "tab-separated",
	".json":      "JSON",
}

// Open reads the dataset at a path, by its extension: .npz, .npy (with the file
// y.npy beside it if it is x.npy, and as the field x otherwise), .csv, .jsonl, and
// both with .gz; a folder in MNIST's layout, of .npy files, or of images (OpenImages);
// builtin:NAME.
//
// Formats that are known but not read are ErrUnsupported; the message says what
// to do instead. A path that is not there gives fs.ErrNotExist.
func Open(path string, o Options) (*InMemory, error) {
	switch o.Split {
	case "", "train", "test":
	default:
		return nil, fmt.Errorf("%s: part %q: parts are named train and test: %w", path, o.Split, ErrNoSplit)
	}
	if name, ok := strings.CutPrefix(path, "builtin:"); ok {
		return openBuiltin(name, o.Split, newLimit(o.MaxBytes))
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, openError(path, err)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = usualMaxBytes(sizeOf(path, info), memory.Available())
	}
	limit := newLimit(o.MaxBytes)
	how := reading{limit, o.Map}
	if info.IsDir() {
		return openFolder(path, o, how)
	}
	lower := strings.ToLower(path)
	switch ext := filepath.Ext(strings.TrimSuffix(lower, ".gz")); {
	case filepath.Ext(lower) == ".npz":
		return openNPZ(path, o.Split, how)
	case filepath.Ext(lower) == ".npy":
		if err := onePart(path, o.Split); err != nil {
			return nil, err
		}
		return openOneNPY(path, how)
	case ext == ".csv":
		if err := onePart(path, o.Split); err != nil {
			return nil, err
		}
		return openTable(path, o.CSV, limit, readCSV)
	case ext == ".jsonl":
		if err := onePart(path, o.Split); err != nil {
			return nil, err
		}
		return openTable(path, o.CSV, limit, readJSONL)
	case strings.Contains(filepath.Base(lower), "idx1-ubyte"), strings.Contains(filepath.Base(lower), "idx3-ubyte"):
		return nil, fmt.Errorf("%s: IDX images and labels are a pair of files; give the folder that holds both, %s: %w", path, filepath.Dir(path), ErrUnsupported)
	case slices.Contains(imageExtensions, ext):
		return nil, fmt.Errorf("%s is one image; give the folder that holds a sub-folder per class: %w", path, ErrUnsupported)
	case known[ext] != "":
		return nil, unsupported(path, known[ext]+" files are")
	default:
		return nil, fmt.Errorf("%s: a file with extension %q is none of %s: %w", path, filepath.Ext(path), formats, ErrUnsupported)
	}
}

// usualMaxBytes is the default of Options.MaxBytes for files of that size.
func usualMaxBytes(size int64, free memory.Reading) int64 {
	const (
		least = 64 << 20
		ratio = 50
	)
	most := least + ratio*size
	if free.OK {
		most = max(min(most, int64(free.Bytes)/2), size)
	}
	return most
}

// sizeOf is the size of a file, or of the files right in a folder. Of a .npy file it is
// that of its folder: others beside it may belong to it.
func sizeOf(path string, info fs.FileInfo) (size int64) {
	switch {
	case info.IsDir():
	case strings.EqualFold(filepath.Ext(path), ".npy"):
		path = filepath.Dir(path)
	default:
		return info.Size()
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return 0 // whoever reads the folder says so
	}
	for _, e := range entries {
		if file, err := os.Stat(filepath.Join(path, e.Name())); err == nil && file.Mode().IsRegular() {
			size += file.Size()
		}
	}
	return size
}

// openFolder decides by the names in a folder what it is.
func openFolder(path string, o Options, how reading) (*InMemory, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, openError(path, err)
	}
	var arrays []string
	folders := false
	for _, e := range entries {
		name := e.Name()
		switch {
		case e.IsDir():
			folders = true
		case strings.Contains(name, "-images") && strings.Contains(name, "idx3-ubyte"):
			return openIDX(path, o.Split, how.limit)
		case filepath.Ext(name) == ".npy":
			arrays = append(arrays, filepath.Join(path, name))
		}
	}
	switch {
	case len(arrays) > 0:
		return openNPY(path, arrays, o.Split, how)
	case folders && holdsImages(path):
		return openImagePart(path, o.Split, o.Images)
	}
	return nil, fmt.Errorf("%s is a folder with neither MNIST's files (train-images-idx3-ubyte.gz ...) nor .npy files nor class folders of images; a dataset is %s: %w", path, formats, ErrUnsupported)
}

func unsupported(path, what string) error {
	return fmt.Errorf("%s: %s %w; it reads %s. In Python, numpy.savez(\"data.npz\", x=..., y=...) writes a file that it reads", path, what, ErrUnsupported, formats)
}

// onePart refuses the test part of a source that has one part only.
func onePart(path, split string) error {
	if split == "test" {
		return fmt.Errorf("%s: %w as %q: the file has one part only; give the file of the other, or a fraction to split off", path, ErrNoSplit, split)
	}
	return nil
}

// openFile opens a regular file with something in it.
func openFile(path string) (*os.File, int64, error) {
	// Opening a pipe would wait for its other end, so look before.
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, openError(path, err)
	}
	switch {
	case info.IsDir():
		return nil, 0, fmt.Errorf("%s is a folder, not a file: %w", path, ErrFormat)
	case !info.Mode().IsRegular():
		return nil, 0, fmt.Errorf("%s is not a regular file; a dataset is walked more than once, so copy it to a file first: %w", path, ErrUnsupported)
	case info.Size() == 0:
		return nil, 0, fmt.Errorf("%s is empty; was the download or the export interrupted?: %w", path, ErrFormat)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, openError(path, err)
	}
	return f, info.Size(), nil
}

func openError(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err // the path is in the message already
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w; check the path, which is relative to the working directory", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %w; the user of this process may not read it (chmod a+r)", path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// limit is how many decompressed bytes may still be read of a dataset.
type limit struct {
	max, left int64
}

// newLimit returns nil, which is no limit, for 0 and less.
func newLimit(max int64) *limit {
	if max <= 0 {
		return nil
	}
	return &limit{max: max, left: max}
}

// again is a limit of the same size.
func (l *limit) again() *limit {
	if l == nil {
		return nil
	}
	return newLimit(l.max)
}

// expect refuses count values of size bytes before they are read, if they are too many to
// hold so many copies of them. It returns the bytes to take for them at once, which
// without a limit are likely.
func (l *limit) expect(count, size, copies int, likely int64) (int64, error) {
	switch {
	case count > maxInt/size:
		return 0, fmt.Errorf("%d elements of %d bytes are more than this machine can address: %w", count, size, ErrFormat)
	case l == nil:
		return likely, nil
	case count > int(l.left)/size/copies:
		return 0, l.tooLarge()
	}
	return int64(count) * int64(size), nil
}

func (l *limit) tooLarge() error {
	return option.Errorf("%w: more than %d bytes when decompressed; raise {Options.MaxBytes} if that is what the data should hold", ErrTooLarge, l.max)
}

func (l *limit) reader(r io.Reader) io.Reader {
	if l == nil {
		return r
	}
	return &limited{l, r}
}

// take counts bytes that stay in their file.
func (l *limit) take(n int64) error {
	if l == nil {
		return nil
	}
	if l.left -= n; l.left < 0 {
		return l.tooLarge()
	}
	return nil
}

type limited struct {
	*limit
	r io.Reader
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if over := l.take(int64(n)); over != nil {
		return 0, over
	}
	return n, err
}

// usualRatio is how much data in a compressed file is taken for likely, and given
// memory in one piece. Beyond it, memory grows with the bytes that come.
const usualRatio = 16

// gunzip returns the content of a file of some size, decompressed if it is compressed with
// gzip, and how many bytes that likely is. It looks at the first bytes and not at the name:
// browsers decompress what they download without renaming it.
func gunzip(r io.Reader, size int64) (io.Reader, int64, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(2)
	if err != nil && err != io.EOF {
		return nil, 0, err
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return b, size, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, 0, corrupt(err)
	}
	return z, usualRatio * size, nil
}

// openPlain opens a regular file with something in it, and decompresses it as gunzip does.
func openPlain(path string) (io.ReadCloser, int64, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, 0, err
	}
	r, likely, err := gunzip(f, size)
	if err != nil {
		return nil, 0, join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, likely, nil
}

// corrupt marks an error of a decompressor as ErrFormat; our own and one from
// the disk stay as they are.
func corrupt(err error) error {
	for _, ours := range []error{ErrFormat, ErrUnsupported, ErrField, ErrTooLarge} {
		if errors.Is(err, ours) {
			return err
		}
	}
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return err
	}
	return fmt.Errorf("damaged or cut off: %w: %w", err, ErrFormat)
}

var errMore = fmt.Errorf("more bytes than the header promises: %w", ErrFormat)

// atEnd reports bytes after what the headers promised. Reading to the end also
// makes a decompressor compare its checksum.
func atEnd(r io.Reader) error {
	var b [1]byte
	switch _, err := io.ReadFull(r, b[:]); err {
	case io.EOF:
		return nil
	case nil:
		return errMore
	default:
		return corrupt(err)
	}
}

// parts chooses among the fields of a source: it maps the names of those to be
// read to the names that they get. Where all are named like x_train and x_test,
// one part is chosen, and its fields are named x; any other source is one part.
func parts(path, split string, names []string) (map[string]string, error) {
	want := split
	if want == "" {
		want = "train"
	}
	all, chosen := make(map[string]string), make(map[string]string)
	divided := true
	for _, n := range names {
		all[n] = n
		if base, ok := strings.CutSuffix(n, "_"+want); ok {
			chosen[n] = base
		} else if !strings.HasSuffix(n, "_train") && !strings.HasSuffix(n, "_test") {
			divided = false
		}
	}
	if !divided {
		return all, onePart(path, split)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%s: %w as %q: its fields are %q", path, ErrNoSplit, want, names)
	}
	return chosen, nil
}
