package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"unsafe"
)

// mapping is a file in the address space of the process. Its bytes are only
// ever copied out of it, by copy: nobody keeps a slice of them, so that unmapping
// cannot pull memory away from under a reader.
type mapping struct {
	path string
	// mu lets Close wait for those who copy.
	mu  sync.RWMutex
	raw []byte // nil once it is closed
}

// openMapping maps a whole file. The error is errors.ErrUnsupported, or that of
// the system, where files cannot be mapped; the file can be read then.
func openMapping(f *os.File, path string, size int64) (*mapping, error) {
	if size != int64(int(size)) {
		return nil, fmt.Errorf("%s: %d bytes are more than this machine can address: %w", path, size, ErrUnsupported)
	}
	raw, err := mapFile(f, int(size))
	if err != nil {
		return nil, fmt.Errorf("%s: mapping it: %w", path, err)
	}
	return &mapping{path: path, raw: raw}, nil
}

// copy fills dst with the bytes of the file from at on.
//
// The file may have been cut off since it was mapped, or its disk may fail.
// Reading such a page is a fault that ends a process, unless it is asked for as a
// panic (runtime/debug.SetPanicOnFault), which becomes an error here.
func (m *mapping) copy(dst []byte, at int) (err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.raw == nil {
		return fmt.Errorf("%s: %w: the dataset that maps it has been closed", m.path, fs.ErrClosed)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s: %d bytes from byte %d on cannot be read any more (%v): the file was cut off or replaced while it was in use, or its disk fails; do not change data that is trained on: %w",
				m.path, len(dst), at, fault, ErrFormat)
		}
	}()
	copy(dst, m.raw[at:at+len(dst)])
	return nil
}

// Close unmaps the file. Closing twice is no error.
func (m *mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.raw == nil {
		return nil
	}
	err := unmapFile(m.raw)
	m.raw = nil
	if err != nil {
		return fmt.Errorf("%s: unmapping it: %w", m.path, err)
	}
	return nil
}

// array is the array in .npy format that lies in size bytes of the file from
// offset on; r reads the file. ok is false if its values are no Go values where
// they lie: those of another byte order, in column-major order, and bools, which
// may be more than 0 and 1 there. Its size is checked as that of a file that is read.
func (m *mapping) array(r io.ReaderAt, offset, size int64) (a array, ok bool, err error) {
	section := io.NewSectionReader(r, offset, size)
	h, err := readHeader(section)
	if err != nil {
		return array{}, false, corrupt(err)
	}
	t, order, err := dtype(h.descr)
	if err != nil {
		return array{}, false, err
	}
	n, err := elements(h.shape)
	if err != nil {
		return array{}, false, err
	}
	if n > maxInt/t.size {
		return array{}, false, fmt.Errorf("%d elements of %d bytes are more than this machine can address: %w", n, t.size, ErrFormat)
	}
	start, err := section.Seek(0, io.SeekCurrent)
	if err != nil {
		return array{}, false, err
	}
	switch want, have := int64(n*t.size), size-start; {
	case have < want:
		return array{}, false, fmt.Errorf("truncated: the header promises %d bytes of values, the file has %d: %w", want, have, ErrFormat)
	case have > want:
		return array{}, false, fmt.Errorf("more bytes than the header promises: %w", ErrFormat)
	case t.mapped == nil, t.size > 1 && !native(order), h.fortran && len(h.shape) > 1:
		return array{}, false, nil
	}
	return array{h.shape, t.mapped(m, int(offset+start), n)}, true, nil
}

// native tells whether this machine has that byte order.
func native(order binary.ByteOrder) bool {
	probe := []byte{1, 0}
	return order.Uint16(probe) == binary.NativeEndian.Uint16(probe)
}

// mapped are elements in a mapped file. They need not be aligned there, as those
// in a .npz file are not.
type mapped[T element] struct {
	file      *mapping
	offset, n int
}

func mapVector[T element](m *mapping, offset, count int) origin { return mapped[T]{m, offset, count} }

func (v mapped[T]) len() int { return v.n }

func (v mapped[T]) typeName() string { return vec[T]{}.typeName() }

func (v mapped[T]) elementSize() int { return vec[T]{}.elementSize() }

func (v mapped[T]) same(n int) vector { return make(vec[T], n) }

func (v mapped[T]) copyTo(dst vector, at, from, to int) error {
	return v.copyOut(dst.(vec[T])[at:at+to-from], from)
}

func (v mapped[T]) gatherTo(dst vector, at int, rows []int, width int) error {
	to := dst.(vec[T])[at : at+len(rows)*width]
	for i, r := range rows {
		if err := v.copyOut(to[i*width:(i+1)*width], r*width); err != nil {
			return err
		}
	}
	return nil
}

// copyOut copies elements from the one at from on, as the bytes that they are.
func (v mapped[T]) copyOut(dst []T, from int) error {
	var zero T
	size := int(unsafe.Sizeof(zero))
	return v.file.copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)*size), v.offset+from*size)
}
