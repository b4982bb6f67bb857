package data

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"steadyfit/data/internal/fault"
	"steadyfit/internal/cgroup"
	"steadyfit/internal/contract"
	"steadyfit/internal/files"
	"steadyfit/option"
)

// Options configure Open. The zero value reads the training part.
type Options struct {
	// Split selects the part "train" (also for ""), "test" or "validation" of a source with parts: a builtin dataset, a
	// folder in MNIST's layout, .npy or .npz arrays named x_train, y_train, x_test and y_test, class folders or records
	// inside folders of parts, or records with a part in their names. These parts are called train or training, test or
	// testing, and validation, val or valid. If there is no part test, the part validation is read in its place, and vice
	// versa. Sources of other kinds do not distinguish test from validation. For a source with one part, any part except
	// "train" is ErrNoSplit.
	Split string
	// CSV configures .csv and .jsonl files and the label of records. Header applies only to .csv files.
	CSV CSVOptions
	// Images configures folders of images and images in records. ImageOptions.Size is required for them.
	Images ImageOptions
	// OnDisk leaves the arrays of .npy files and uncompressed .npz files on disk, where each batch reads its samples, so
	// data may exceed memory; close the dataset (InMemory.Close). Arrays of bools, of text, in foreign byte order, and
	// multidimensional arrays in Fortran order are read into memory.
	//
	// Checksums of .npz files are not verified. Changes to the file change the samples.
	OnDisk bool
	// Ignore lists values of records and JSON lines, and columns of tables with a header, to leave out. They
	// are not parsed, and may differ in length between records.
	Ignore []string
	// Unlabelled reads a folder of images without class folders, whose samples have no label. They are sorted by
	// name.
	Unlabelled bool
	// MaxBytes limits the decompressed size of a source and the memory for its values; a larger
	// source is ErrTooLarge. Negative means no limit. 0 means 64 MiB plus 50 times the file size,
	// but at most half of the free memory, or the file size if that is more.
	MaxBytes int64
}

const formats = ".npz, .npy, .csv, .tsv, .jsonl, .ndjson (also .gz), a folder in MNIST's layout (IDX), a folder of " +
	".npy files, a folder of images with a sub-folder per class, TFRecord, WebDataset (.tar), Parquet " +
	"(.parquet, .pq, .parq) or Arrow files (.arrow, .feather; one, a folder or a pattern), or builtin:NAME"

// Open reads the dataset at a path. The extension of a file selects the format: .npz, .npy, .csv,
// .csv.gz, .jsonl, .jsonl.gz, .tfrecord, .tar, .parquet, .arrow or .feather. A folder contains class folders of
// images (ImageOptions), .npy files, TFRecord, WebDataset, Parquet or Arrow files, or MNIST's files. builtin:NAME
// is a dataset of Builtin.
//
// The path of TFRecord, WebDataset, Parquet and Arrow files may be a pattern such as train-*.tfrecord. The samples of
// class folders are sorted by class and name, so shuffle them for training. docs/reference/data.md has the rules of
// each format.
//
// Other formats are ErrUnsupported. A path that does not exist is fs.ErrNotExist.
func Open(path string, o Options) (*InMemory, error) {
	m, err := open(path, o)
	if s := o.CSV.Schema; err == nil && s != nil && !s.Partial && !m.isTable() {
		return m.opened(fmt.Errorf("%s: a schema is only for CSV, JSON lines, Parquet and Arrow: %w", path, ErrUnsupported))
	}
	return m, err
}

// isTable reports whether the samples are rows of a table.
func (m *InMemory) isTable() bool {
	return m.lines != nil || m.parts != nil && m.records == nil
}

func open(path string, o Options) (*InMemory, error) {
	switch o.Split {
	case "", "train", "test", "validation":
	default:
		return nil, fmt.Errorf("%s: part %q: %w; the parts are train, test and validation", path, o.Split, ErrNoSplit)
	}
	o.CSV.ignore = o.Ignore
	if name, ok := strings.CutPrefix(path, contract.BuiltinPrefix); ok {
		return openBuiltin(name, o.part(), newLimit(o.MaxBytes))
	}
	info, err := os.Stat(path)
	if err != nil && strings.ContainsAny(path, "*?[") {
		return openRecordGlob(path, o)
	}
	if err != nil {
		return nil, openError(path, err)
	}
	limit := o.limit(sourceFiles(path, info)...)
	if info.IsDir() {
		return openFolder(path, o, limit)
	}
	base := strings.ToLower(filepath.Base(path))
	ext, plain := filepath.Ext(base), plainExt(path)
	switch {
	case ext == ".npz":
		return openNPZ(path, o, limit)
	case ext == ".npy", plain == ".csv", plain == ".tsv", plain == ".jsonl":
		if err := onePart(path, o.Split); err != nil {
			return nil, err
		}
		if ext == ".npy" {
			return openOneNPY(path, o, limit)
		}
		return openText(path, o, limit)
	}
	if recordKind(path) != "" {
		if err := onePart(path, o.Split); err != nil {
			return nil, err
		}
		return openRecordFiles(path, []string{path}, o)
	}
	if ext == ".gz" {
		ext = filepath.Ext(strings.TrimSuffix(base, ext)) + ext
	}
	return nil, fmt.Errorf("%s: the extension %q is %w; supported are %s. In Python, numpy.savez(\"data.npz\", x=..., "+
		"y=...) writes a supported file",
		path, ext, ErrUnsupported, formats)
}

// part returns the part to read from a source that does not distinguish validation from test.
func (o Options) part() string {
	if o.Split == "validation" {
		return "test"
	}
	return o.Split
}

// usualMaxBytes returns the default of Options.MaxBytes for a source of size bytes.
func usualMaxBytes(size int64, free cgroup.Amount) int64 {
	const (
		least = 64 << 20
		ratio = 50
	)
	most := least + ratio*size
	if free.Known() {
		most = max(min(most, free.Bytes/2), size)
	}
	return most
}

// limit returns the limit for a source that has these files.
func (o Options) limit(paths ...string) *limit {
	var size int64
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() { // openFile reports the error
			size += info.Size()
		}
	}
	return newLimit(cmp.Or(o.MaxBytes, usualMaxBytes(size, cgroup.Available())))
}

// sourceFiles returns the files of a source. A .npy file may belong to others in its folder.
func sourceFiles(path string, info fs.FileInfo) (paths []string) {
	if strings.EqualFold(filepath.Ext(path), ".npy") {
		path = filepath.Dir(path)
	} else if !info.IsDir() {
		return []string{path}
	}
	entries, _ := os.ReadDir(path) // openFolder reports the error
	for _, e := range entries {
		paths = append(paths, filepath.Join(path, e.Name()))
	}
	return paths
}

func openFolder(path string, o Options, l *limit) (*InMemory, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, openError(path, err)
	}
	var arrays, records, folders []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case ignored(name):
		case e.IsDir():
			folders = append(folders, name)
		case strings.Contains(name, "-images") && strings.Contains(name, "idx3-ubyte"):
			return openIDX(path, o.part(), l)
		case filepath.Ext(name) == ".npy":
			arrays = append(arrays, filepath.Join(path, name))
		case recordKind(name) != "" && !strings.HasPrefix(name, "cache-"): // such as Dataset.map of Hugging Face writes
			records = append(records, filepath.Join(path, name))
		}
	}
	switch part, err := partFolder(path, folders, o.Split); {
	case err != nil:
		return nil, err
	case len(arrays) > 0:
		return openNPY(path, arrays, o, l)
	case len(records) > 0 && !hasImages(path, false):
		return openRecordFolder(path, records, o)
	case part != "":
		o.Split = ""
		return openFolder(part, o, l)
	case slices.ContainsFunc(folders, func(name string) bool { return strings.Contains(name, "=") }):
		return nil, fmt.Errorf("%s: folders such as %s are partitions of a table (Hive), which is %w: write one file, or "+
			"give the pattern %s without the columns in the names of folders", path, folders[0], ErrUnsupported,
			filepath.Join(path, "*", "*.parquet"))
	}
	return openImageFolder(path, len(folders) == 0, o)
}

// onePart returns an error if the test or validation part of a source with one part is requested.
func onePart(path, split string) error {
	if split == "test" || split == "validation" {
		return fmt.Errorf("%s: part %q: %w: the file has only one part; use the file of the other part, or split off a "+
			"fraction", path, split, ErrNoSplit)
	}
	return nil
}

// interrupted is the likely cause of a truncated file.
const interrupted = "was the download or the export interrupted?"

func openFile(path string) (*os.File, int64, error) {
	// Opening a pipe would block, so the type is checked first.
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, openError(path, err)
	}
	switch {
	case info.IsDir():
		return nil, 0, fmt.Errorf("%s is a folder, not a file: %w", path, ErrFormat)
	case !info.Mode().IsRegular():
		return nil, 0, fmt.Errorf("%s is not a regular file; a dataset is read more than once, "+
			"so copy it to a file first: %w",
			path, ErrUnsupported)
	case info.Size() == 0:
		return nil, 0, fmt.Errorf("%s is empty; %s: %w", path, interrupted, ErrFormat)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, openError(path, err)
	}
	return f, info.Size(), nil
}

func openError(path string, err error) error {
	err = fault.WithoutPath(err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return files.Missing(path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %w; give the user of this process the right to read it (chmod a+r)", path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// limit counts the decompressed bytes that may still be read from a dataset. nil means no limit.
type limit struct {
	max, left int64
}

func newLimit(max int64) *limit {
	if max <= 0 {
		return nil
	}
	return &limit{max: max, left: max}
}

// expect returns an error if count values of size bytes each exceed the limit. Otherwise it returns the number of
// values to allocate in advance: all, or those in 64 KiB if there is no limit.
func (l *limit) expect(count, size int) (int, error) {
	switch {
	case count > maxInt/size:
		return 0, fmt.Errorf("%d elements of %d bytes exceed the address space of this machine: %w", count, size, ErrFormat)
	case l == nil:
		return min(count, 64<<10/size), nil
	case count > int(l.left)/size:
		return 0, l.tooLarge()
	}
	return count, nil
}

func (l *limit) tooLarge() error {
	return option.Errorf("%w: more than %d bytes when decompressed; raise {Options.MaxBytes} if the data is meant to "+
		"be that large", ErrTooLarge, l.max)
}

func (l *limit) reader(r io.Reader) io.Reader { return &limited{l, r} }

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

// gunzip decompresses r if its first bytes are those of gzip. File names are not examined, since browsers decompress
// downloads without renaming them.
func gunzip(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(2)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, corrupt(err)
	}
	return z, nil
}

// openPlain opens a file that may be compressed.
func openPlain(path string) (io.ReadCloser, error) {
	f, _, err := openFile(path)
	if err != nil {
		return nil, err
	}
	r, err := gunzip(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}

// corrupt adds ErrFormat to the error of a decompressor. Errors of this package and of the disk stay unchanged.
func corrupt(err error) error {
	for _, ours := range []error{ErrFormat, ErrUnsupported, ErrField, ErrTooLarge} {
		if errors.Is(err, ours) {
			return err
		}
	}
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return err
	}
	return fmt.Errorf("damaged or truncated: %w: %w", err, ErrFormat)
}

var errMore = fmt.Errorf("more bytes than the header states: %w", ErrFormat)

// parts selects the arrays of a part, and maps their names to field names: x_train to x. A source
// has parts only if all names end in _train or _test.
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
		return nil, fmt.Errorf("%s: part %q: %w: the fields are %q", path, want, ErrNoSplit, names)
	}
	return chosen, nil
}
