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
	"strings"

	"steadyfit/data/internal/fault"
	"steadyfit/internal/cgroup"
	"steadyfit/internal/contract"
	"steadyfit/internal/files"
	"steadyfit/internal/texts"
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
	isTable := err == nil && (m.lines != nil || m.parts != nil && m.records == nil)
	if s := o.CSV.Schema; err == nil && s != nil && !s.Partial && !isTable {
		return m.opened(fmt.Errorf("%s: a schema is only for CSV, JSON lines, Parquet and Arrow: %w", path, ErrUnsupported))
	}
	return m, err
}

func open(path string, o Options) (*InMemory, error) {
	switch o.Split {
	case "", "train", "test", "validation":
	default:
		return nil, fmt.Errorf("%s: part %q: %w; the parts are train, test and validation", path, o.Split, ErrNoSplit)
	}
	o.CSV.ignore = o.Ignore
	if name, ok := strings.CutPrefix(path, contract.BuiltinPrefix); ok {
		return openBuiltin(name, o.part())
	}
	info, err := os.Stat(path)
	if err != nil && strings.ContainsAny(path, "*?[") {
		return openRecordGlob(path, o)
	}
	if err != nil {
		return nil, openError(path, err)
	}
	if info.IsDir() {
		return openFolder(path, o)
	}
	base := strings.ToLower(filepath.Base(path))
	ext, plain := filepath.Ext(base), plainExt(path)
	switch {
	case ext == ".npz":
		return openNPZ(path, o)
	case ext == ".npy", plain == ".csv", plain == ".tsv", plain == ".jsonl":
		if err := onePart(path, o.Split); err != nil {
			return nil, err
		}
		if ext == ".npy" {
			return openOneNPY(path, o)
		}
		return openText(path, o)
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

func openFolder(path string, o Options) (*InMemory, error) {
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
			return openIDX(path, o.part())
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
		return openNPY(path, arrays, o)
	case len(records) > 0 && !hasImages(path, false):
		return openRecordFolder(path, records, o)
	case part != "":
		o.Split = ""
		return openFolder(part, o)
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
	f, size, err := files.Open(path)
	if err != nil {
		return nil, 0, openError(path, err)
	}
	if size == 0 {
		return nil, 0, errors.Join(fmt.Errorf("%s is empty; %s: %w", path, interrupted, ErrFormat), f.Close())
	}
	return f, size, nil
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

// checkMemory returns an error if values of n bytes do not fit in the free memory. Few bytes always pass.
func checkMemory(n int64) error {
	if n < fewBytes {
		return nil
	}
	if free := cgroup.Available("self"); free.Known() && n > free.Bytes {
		return fmt.Errorf("%w: values of %s or more, and %s of memory are free; leave out fields, or write the data in a "+
			"format that stays on disk, such as TFRecord", ErrTooLarge, texts.FormatBytes(n), texts.FormatBytes(free.Bytes))
	}
	return nil
}

const fewBytes = 64 << 20

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
