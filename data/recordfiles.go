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
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/english"
	"steadyfit/internal/files"
)

// recordBytes is the size of a row of an index with a label of 8 bytes.
const recordBytes = entryBytes + 8

// maxOpenFiles is the maximum number of files of a set that stay open. Files of a larger set are
// opened for each record.
const maxOpenFiles = 256

// recordFiles are the files of a recordSet with their index.
type recordFiles struct {
	all    []*recordFile
	closed atomic.Bool

	// scratch has the content of compressed files and the rows of tables, one file after the other.
	scratch *os.File
	used    int64 // bytes in scratch
	// temporary are the open files in dir, the folder for temporary files. remove removes dir.
	temporary []*os.File
	dir       string
	remove    func() error

	// given is the limit of Options.MaxBytes for all files together; nil if there is none.
	given *limit
}

type recordFile struct {
	path    string
	set     *recordFiles
	from    *os.File // nil if the file is opened for each record
	start   int64    // position of the content in from
	first   int      // row of the first record
	records int
	// identity is compared with the identity in a kept index.
	identity keptFile
}

func (s *recordFiles) last() *recordFile { return s.all[len(s.all)-1] }

// addFile reads a file and calls add for each record. Compressed files, and the rows of tables, are
// copied to a temporary file. files is the number of files of the set.
func (s *recordFiles) addFile(file *recordFile, files int, maxBytes int64, format recordFormat, add func(record, []byte) error) (err error) {
	f, size, err := openFile(file.path)
	if err != nil {
		return err
	}
	defer func() {
		if file.from != f {
			err = errors.Join(err, f.Close())
		}
	}()
	if file.identity, err = identityOf(f); err != nil {
		return readError(err)
	}
	r := bufio.NewReaderSize(f, 1<<20)
	head, err := r.Peek(512)
	if err != nil && err != io.EOF {
		return err
	}
	if s.given == nil {
		s.given = newLimit(maxBytes)
	}
	most := s.given
	if most == nil { // the content goes to the disk, so free memory does not matter
		most = newLimit(usualMaxBytes(size, cgroup.Amount{}))
	}
	table, isTable := format.(tableFormat)
	switch zipped := bytes.HasPrefix(head, []byte{0x1f, 0x8b}) && !format.begins(head); {
	case zipped && isTable:
		return fmt.Errorf("%s compressed by gzip is %w: decompress the file", format.name(), ErrUnsupported)
	case isTable:
		return s.copyRows(file, f, size, most, table, add)
	case zipped:
		return s.decompress(file, r, most, format, add)
	case files <= maxOpenFiles:
		file.from = f
	}
	return format.scan(r, size, add)
}

// openScratch makes the temporary file for content, unless it exists. The content of file begins at the
// end of the temporary file.
func (s *recordFiles) openScratch(file *recordFile) error {
	if s.scratch == nil {
		f, err := s.scratchFile("content")
		if err != nil {
			return err
		}
		s.scratch = f
	}
	file.from, file.start = s.scratch, s.used
	return nil
}

// scratchFile makes a file that Close removes.
func (s *recordFiles) scratchFile(name string) (f *os.File, err error) {
	if s.remove == nil {
		if s.dir, s.remove, err = files.Scratch("steadyfit-data-"); err != nil {
			return nil, scratchError(err)
		}
	}
	if f, err = os.Create(filepath.Join(s.dir, name)); err != nil {
		return nil, scratchError(err)
	}
	s.temporary = append(s.temporary, f)
	return f, nil
}

// decompress copies the content of a file to the temporary file, and scans it.
func (s *recordFiles) decompress(file *recordFile, r io.Reader, l *limit, format recordFormat, each func(record, []byte) error) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return corrupt(err)
	}
	if err := s.openScratch(file); err != nil {
		return err
	}
	content := io.TeeReader(l.reader(z), scratchWriter{s})
	if err := format.scan(bufio.NewReaderSize(content, 1<<20), -1, each); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, content); err != nil { // also verifies the checksum
		return corrupt(err)
	}
	return nil
}

// copyRows copies the rows of a table to the temporary file.
func (s *recordFiles) copyRows(file *recordFile, r io.ReaderAt, size int64, l *limit, table tableFormat, each func(record, []byte) error) error {
	if err := s.openScratch(file); err != nil {
		return err
	}
	w := bufio.NewWriterSize(scratchWriter{s}, 1<<20)
	at := int64(0)
	err := table.rows(r, size, func(raw []byte) error {
		if err := l.take(int64(len(raw)) + recordBytes); err != nil {
			return err
		}
		found := recordAt(at, raw)
		at += int64(len(raw))
		if _, err := w.Write(raw); err != nil {
			return err
		}
		return each(found, raw)
	})
	return cmp.Or(err, w.Flush())
}

type scratchWriter struct{ *recordFiles }

func (s scratchWriter) Write(b []byte) (int, error) {
	n, err := s.scratch.Write(b)
	if s.used += int64(n); err != nil {
		return n, scratchError(err)
	}
	return n, nil
}

func scratchError(err error) error {
	return fmt.Errorf("the content cannot be written to a temporary file: %w; %s, or set the variable TMPDIR to a folder on a disk with enough space",
		err, files.Remedy(err, ""))
}

// Close closes the files and removes the temporary files.
func (s *recordFiles) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, f := range s.all {
		if f.from != nil && f.from != s.scratch {
			errs = append(errs, f.from.Close())
		}
	}
	for _, f := range s.temporary {
		errs = append(errs, f.Close())
	}
	if s.remove != nil {
		errs = append(errs, s.remove())
	}
	return errors.Join(errs...)
}

// read fills b with bytes of the file, starting at offset at.
func (f *recordFile) read(b []byte, at int64) (err error) {
	if f.set.closed.Load() {
		return errClosed
	}
	from := f.from
	if from == nil {
		if from, _, err = openFile(f.path); err != nil {
			return err
		}
		defer from.Close() // the file was only read
	}
	return readAt(from, b, f.start+at)
}

// recordFormats are the formats by the extension of a file.
var recordFormats = map[string]recordFormat{
	".tfrecord": tfRecord{}, ".tfrecords": tfRecord{}, ".tfrec": tfRecord{}, ".tar": tarRecords{}, ".parquet": &parquetRows{},
	".arrow": arrowFormat, ".feather": arrowFormat,
}

// shard matches the name of a file of a set, such as train-00003-of-00010.tfrecord. Earlier versions of
// Hugging Face's package datasets add a hash of the file, as in
// train-00000-of-00002-0123456789abcdef.parquet.
var shard = regexp.MustCompile(`^(.+)-([0-9]+)-of-([0-9]+)(?:-[0-9a-f]{16})?(.*)$`)

// recordName is the name of a file of records.
type recordName struct {
	path   string
	set    string // the name without the number
	number int
	of     int // number of files in the set; 0 for a single file
	format recordFormat
}

// describe names a file and the size of its set.
func (n recordName) describe() string {
	if n.of == 0 {
		return filepath.Base(n.path)
	}
	return fmt.Sprintf("%s (a set of %s)", filepath.Base(n.path), english.Count(n.of, "file"))
}

// recordNameOf returns the format of a file by its extension or, if the name has the form of a shard,
// by its first bytes. ok is false for other files.
func recordNameOf(path string) (n recordName, ok bool) {
	n = recordName{path: path, set: filepath.Base(path)}
	found := shard.FindStringSubmatch(n.set)
	if found != nil {
		number, err := strconv.Atoi(found[2])
		of, err2 := strconv.Atoi(found[3])
		if err == nil && err2 == nil && number < of {
			n.set, n.number, n.of = found[1]+found[4], number, of
		}
	}
	ext := filepath.Ext(strings.TrimSuffix(strings.ToLower(n.set), ".gz"))
	if n.format = recordFormats[ext]; n.format == nil && n.of > 0 && ext == "" {
		n.format = sniffed(path)
	}
	return n, n.format != nil
}

func sniffed(path string) recordFormat {
	f, _, err := openFile(path)
	if err != nil {
		return nil // the file counts as one of an unknown format
	}
	defer f.Close()
	r, _, err := gunzip(f, 0)
	if err != nil {
		return nil
	}
	head := make([]byte, 512)
	n, _ := io.ReadFull(r, head)
	for _, format := range recordFormats {
		if format.begins(head[:n]) {
			return format
		}
	}
	return nil
}

// openRecordFile opens a file of records together with the other files of its set. found is nil for a
// file of another kind.
func openRecordFile(path string, o Options) (found *InMemory, err error) {
	n, ok := recordNameOf(path)
	if !ok {
		return nil, nil
	}
	if err := onePart(path, o.Split); err != nil {
		return nil, err
	}
	names := []recordName{n}
	if n.of > 0 {
		all, err := recordsIn(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		names = slices.DeleteFunc(all, func(other recordName) bool { return other.set != n.set || other.of != n.of })
	}
	return openNames(path, names, o)
}

// openRecordGlob opens the files of records that match a pattern.
func openRecordGlob(pattern string, o Options) (*InMemory, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("%s: %w: no file matches the pattern; check it, and quote it in a shell", pattern, fs.ErrNotExist)
	}
	if err := onePart(pattern, o.Split); err != nil {
		return nil, err
	}
	var names []recordName
	for _, path := range paths {
		n, ok := recordNameOf(path)
		if !ok {
			return nil, fmt.Errorf("%s: a pattern is %w for this format, only for TFRecord, WebDataset (.tar), Parquet and Arrow files", path, ErrUnsupported)
		}
		n.of = 0 // a pattern may select files of a set
		names = append(names, n)
	}
	return openNames(pattern, names, o)
}

// recordsIn returns the files of records in a folder, sorted.
func recordsIn(dir string) (names []recordName, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, openError(dir, err)
	}
	for _, e := range entries {
		if e.IsDir() || ignored(e.Name()) {
			continue
		}
		if n, ok := recordNameOf(filepath.Join(dir, e.Name())); ok {
			names = append(names, n)
		}
	}
	return names, nil
}

// openRecordPart opens a part of a folder of records. The folder has parts if the names of
// all files contain the name of a part, as in flowers-train.tfrecord. found is nil for other folders.
func openRecordPart(dir string, o Options) (found *InMemory, err error) {
	names, err := savedFiles(dir)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	byPart := map[string][]recordName{}
	for _, n := range names {
		part := ""
		for _, word := range strings.FieldsFunc(strings.ToLower(n.set), func(c rune) bool { return strings.ContainsRune("-_. ", c) }) {
			if slices.Contains(trained, word) || slices.Contains(tested, word) {
				part = word
			}
		}
		byPart[part] = append(byPart[part], n)
	}
	if byPart[""] != nil || len(byPart) == 1 {
		if err := onePart(dir, o.Split); err != nil {
			return nil, err
		}
		return openNames(dir, names, o)
	}
	parts := partNames(o.Split)
	for _, part := range parts {
		if byPart[part] != nil {
			return openNames(filepath.Join(dir, "*"+part+"*"), byPart[part], o)
		}
	}
	return nil, fmt.Errorf("%s: part %q: %w: no file has one of %q in its name", dir, cmp.Or(o.Split, "train"), ErrNoSplit, parts)
}

// openNames opens files of one format as a dataset. Sets must be complete.
func openNames(name string, all []recordName, o Options) (*InMemory, error) {
	here, once, sets := map[string][]bool{}, map[string]string{}, map[string]recordName{}
	paths := make([]string, len(all))
	var bytes int64
	for i, n := range all {
		if info, err := os.Stat(n.path); err == nil { // addFile reports the error
			bytes += info.Size()
		}
		if n.format != all[0].format {
			return nil, fmt.Errorf("%s: %s and %s have different formats; use files of one format: %w", name, all[0].path, n.path, ErrFormat)
		}
		paths[i] = n.path
		set := filepath.Join(filepath.Dir(n.path), strings.TrimSuffix(n.set, ".gz"))
		if other, known := sets[set]; !known {
			sets[set] = n
		} else if other.of != n.of {
			return nil, fmt.Errorf("%s: two sets of files with the same name: %s and %s; remove one, or give the name of a file, which stands for its set: %w", name, other.describe(), n.describe(), ErrFormat)
		}
		same := fmt.Sprintf("%s %d of %d", set, n.number, n.of)
		if first, twice := once[same]; twice {
			return nil, fmt.Errorf("%s: %s and %s have the same name except for zeros, a hash or .gz; remove one of them, or use a pattern of names: %w", name, first, n.path, ErrFormat)
		}
		if once[same] = n.path; n.of == 0 {
			continue
		}
		const most = 1 << 20
		if n.of > most {
			return nil, fmt.Errorf("%s: a set of %d files, expected at most %d: %w", n.path, n.of, most, ErrFormat)
		}
		key := fmt.Sprintf("%s of %d", n.set, n.of)
		if here[key] == nil {
			here[key] = make([]bool, n.of)
		}
		here[key][n.number] = true
	}
	for _, set := range slices.Sorted(maps.Keys(here)) {
		if missing := slices.Index(here[set], false); missing >= 0 {
			return nil, fmt.Errorf("%s: file %d (from 0) of the set %s is missing; was the download interrupted? To read only some files, use a pattern of names: %w", name, missing, set, ErrFormat)
		}
	}
	limit := newLimit(cmp.Or(o.MaxBytes, usualMaxBytes(bytes, cgroup.Available())))
	return openRecords(name, paths, bytes, all[0].format, o, limit)
}
