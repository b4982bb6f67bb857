package data

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"steadyfit/data/internal/fault"
	"steadyfit/internal/dtype"
)

// diskFile is an open file whose arrays stay on disk. Each batch reads its samples from the file. The
// file is not mapped, so that its pages do not count as memory of this process.
type diskFile struct {
	path    string
	r       *os.File
	changed time.Time // before the file was opened
}

func newDiskFile(path string, f *os.File) *diskFile {
	d := &diskFile{path: path, r: f}
	if info, err := f.Stat(); err == nil {
		d.changed = info.ModTime()
	}
	return d
}

func (f *diskFile) unchanged() error {
	info, err := f.r.Stat()
	switch {
	case errors.Is(err, fs.ErrClosed):
		return fmt.Errorf("%s: %w", f.path, errClosed)
	case err == nil && info.ModTime().Equal(f.changed):
		return nil
	}
	return fmt.Errorf("%s: the file changed since it was opened; leave data alone during training: %w", f.path, ErrFormat)
}

// readAt fills dst with bytes of a file that was checked before, starting at offset at.
func readAt(r io.ReaderAt, dst []byte, at int64) error {
	n, err := r.ReadAt(dst, at)
	switch {
	case n == len(dst):
		return nil
	case errors.Is(err, fs.ErrClosed):
		return errClosed
	case err == io.EOF:
		return fmt.Errorf("the file ends within %d bytes from byte %d on, since it was truncated while it was in use; do "+
			"not change data during training: %w", len(dst), at, ErrFormat)
	}
	return fault.Read(err)
}

var errClosed = fmt.Errorf("%w: the dataset was closed", fs.ErrClosed)

// Close closes the file. It may be called again.
func (f *diskFile) Close() error {
	if err := f.r.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return fmt.Errorf("%s: closing the file: %w", f.path, err)
	}
	return nil
}

// array locates a .npy array that occupies size bytes of the file from offset on. ok is false for
// values that need conversion: foreign byte order, column-major order, text, and bools, whose bytes
// may differ from 0 and 1 in a file.
func (f *diskFile) array(offset, size int64) (a array, ok bool, err error) {
	section := io.NewSectionReader(f.r, offset, size)
	h, err := readHeader(section)
	if err != nil {
		return array{}, false, corrupt(err)
	}
	t, err := npyType(h.descr)
	if err != nil {
		return array{}, false, err
	}
	n, err := elements(h.shape)
	start, unread := section.Seek(0, io.SeekCurrent)
	if err := cmp.Or(err, unread, t.fits(n, size)); err != nil {
		return array{}, false, err
	}
	switch want, have := int64(n*t.size), size-start; {
	case have < want:
		return array{}, false, fmt.Errorf("truncated: the header states %d bytes of values, the file has %d: %w", want, have,
			ErrFormat)
	case have > want:
		return array{}, false, errMore
	case t.kind.Kind >= dtype.BoolKind, t.size > 1 && t.order != binary.LittleEndian, h.fortran && len(h.shape) > 1:
		return array{}, false, nil
	}
	return array{h.shape, diskArray{f, t.kind, offset + start, n}}, true, nil
}

// diskArray is a range of elements of a diskFile.
type diskArray struct {
	file   *diskFile
	of     *dtype.Type
	offset int64 // in bytes
	n      int
}

func (v diskArray) len() int { return v.n }

func (v diskArray) kind() *dtype.Type { return v.of }

func (v diskArray) copyTo(dst vector, at, from, to int) error {
	err := readAt(v.file.r, bytesOf(dst, at, at+to-from), v.offset+int64(from)*int64(v.of.Size))
	if err != nil {
		return fmt.Errorf("%s: %w", v.file.path, err)
	}
	return nil
}
