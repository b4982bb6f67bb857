package data

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"

	"steadyfit/internal/dtype"
)

// mapping is a file mapped into memory. Bytes leave it only through copy, so Close never unmaps
// memory that is in use.
type mapping struct {
	path string
	// mu makes Close wait for copies in progress.
	mu  sync.RWMutex
	raw []byte // nil after Close
}

// openMapping maps a whole file. The caller can read the file instead if it cannot be mapped.
func openMapping(f *os.File, path string, size int64) (*mapping, error) {
	if size != int64(int(size)) {
		return nil, fmt.Errorf("%s: %d bytes exceed the address space of this machine: %w", path, size, ErrUnsupported)
	}
	raw, err := mapFile(f, int(size))
	if err != nil {
		return nil, fmt.Errorf("%s: mapping the file: %w", path, err)
	}
	return &mapping{path: path, raw: raw}, nil
}

// copy fills dst with bytes of the file, starting at offset at. If the file was truncated or its
// disk fails, the access is a fault, which SetPanicOnFault turns into a panic.
func (m *mapping) copy(dst []byte, at int) (err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.raw == nil {
		return fmt.Errorf("%s: %w: the dataset was closed", m.path, fs.ErrClosed)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s: %d bytes from byte %d on can no longer be read (%v): the file was truncated or replaced while it was in use, or its disk failed; do not change data during training: %w",
				m.path, len(dst), at, fault, ErrFormat)
		}
	}()
	copy(dst, m.raw[at:at+len(dst)])
	return nil
}

func (m *mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.raw == nil {
		return nil
	}
	err := unmapFile(m.raw)
	m.raw = nil
	if err != nil {
		return fmt.Errorf("%s: unmapping the file: %w", m.path, err)
	}
	return nil
}

// array locates a .npy array that occupies size bytes of the file from offset on. r reads the file.
// ok is false for values that need conversion: foreign byte order, column-major order, text, and
// bools, whose bytes may differ from 0 and 1 in a file. The array counts against the limit.
func (m *mapping) array(r io.ReaderAt, offset, size int64, l *limit) (a array, ok bool, err error) {
	section := io.NewSectionReader(r, offset, size)
	h, err := readHeader(section)
	if err != nil {
		return array{}, false, corrupt(err)
	}
	t, err := npyType(h.descr)
	if err != nil {
		return array{}, false, err
	}
	n, err := elements(h.shape)
	if err != nil {
		return array{}, false, err
	}
	if _, err := (*limit)(nil).expect(n, t.size, 1, 0); err != nil {
		return array{}, false, err
	}
	start, err := section.Seek(0, io.SeekCurrent)
	if err != nil {
		return array{}, false, err
	}
	switch want, have := int64(n*t.size), size-start; {
	case have < want:
		return array{}, false, fmt.Errorf("truncated: the header states %d bytes of values, the file has %d: %w", want, have, ErrFormat)
	case have > want:
		return array{}, false, errMore
	case t.kind.Kind == dtype.Bool, t.kind.Kind == dtype.String, t.size > 1 && !native(t.order), h.fortran && len(h.shape) > 1:
		return array{}, false, nil
	}
	if err := l.take(size); err != nil {
		return array{}, false, err
	}
	return array{h.shape, mapped{m, t.kind, int(offset + start), n}}, true, nil
}

// mapped is a range of elements in a mapped file. Elements may be unaligned, as in .npz files.
type mapped struct {
	file      *mapping
	of        *dtype.Type
	offset, n int
}

func (c column) isMapped() bool {
	_, ok := c.values.(mapped)
	return ok
}

func (v mapped) len() int { return v.n }

func (v mapped) kind() *dtype.Type { return v.of }

func (v mapped) copyTo(dst vector, at, from, to int) error {
	return v.file.copy(bytesOf(dst, at, at+to-from), v.offset+from*v.of.Size)
}

func (v mapped) gatherTo(dst vector, at int, rows []uint32, width int) error {
	for i, r := range rows {
		if err := v.copyTo(dst, at+i*width, int(r)*width, (int(r)+1)*width); err != nil {
			return err
		}
	}
	return nil
}
