package data

import (
	"encoding/binary"
	"fmt"
)

// thriftWalk walks over a struct in Thrift's compact protocol before the Parquet library decodes the
// struct. The library allocates lists with the lengths that they state, and calls itself for each level
// of nesting.
type thriftWalk struct {
	raw     []byte // the bytes that were not walked over yet
	structs int64  // number of structs in lists
}

const (
	// structBytes is the approximate memory for the largest struct of the metadata, which describes a
	// column in a row group.
	structBytes = 1 << 10
	// maxThriftDepth limits the nesting; the format has at most ten levels.
	maxThriftDepth = 32
)

// The types of Thrift's compact protocol.
const (
	thriftTrue = iota + 1
	thriftFalse
	thriftByte
	thriftInt16
	thriftInt32
	thriftInt64
	thriftDouble
	thriftBinary
	thriftList
	thriftSet
	thriftMap
	thriftStruct
)

// walk skips the fields of a struct.
func (w *thriftWalk) walk(depth int) error {
	for {
		head, err := w.byte()
		if err != nil || head == 0 {
			return err
		}
		if head>>4 == 0 { // the number of the field follows
			if _, err := w.number(); err != nil {
				return err
			}
		}
		if kind := head & 15; kind != thriftTrue && kind != thriftFalse {
			if err := w.skip(kind, depth); err != nil {
				return err
			}
		}
	}
}

// skip skips a value that is not the boolean of a field, which has no bytes.
func (w *thriftWalk) skip(kind byte, depth int) (err error) {
	if depth > maxThriftDepth {
		return fmt.Errorf("more than %d levels of nesting: %w", maxThriftDepth, ErrFormat)
	}
	length := uint64(0)
	switch kind {
	case thriftTrue, thriftFalse, thriftByte:
		length = 1
	case thriftInt16, thriftInt32, thriftInt64:
		_, err = w.number()
	case thriftDouble:
		length = 8
	case thriftBinary:
		length, err = w.number()
	case thriftList, thriftSet:
		err = w.list(depth + 1)
	case thriftStruct:
		err = w.walk(depth + 1)
	default:
		return fmt.Errorf("a value of type %d: %w", kind, ErrFormat)
	}
	if err == nil && length > uint64(len(w.raw)) {
		err = errThriftEnd
	}
	if err == nil {
		w.raw = w.raw[length:]
	}
	return err
}

func (w *thriftWalk) list(depth int) error {
	head, err := w.byte()
	if err != nil {
		return err
	}
	n, kind := uint64(head>>4), head&15
	if n == 15 {
		if n, err = w.number(); err != nil {
			return err
		}
	}
	if kind == thriftStruct {
		w.structs += int64(min(n, uint64(len(w.raw))))
	}
	for ; n > 0; n-- {
		if err := w.skip(kind, depth); err != nil {
			return err
		}
	}
	return nil
}

var errThriftEnd = fmt.Errorf("it ends early: %w", ErrFormat)

func (w *thriftWalk) byte() (byte, error) {
	if len(w.raw) == 0 {
		return 0, errThriftEnd
	}
	b := w.raw[0]
	w.raw = w.raw[1:]
	return b, nil
}

func (w *thriftWalk) number() (uint64, error) {
	n, size := binary.Uvarint(w.raw)
	if size <= 0 {
		return 0, errThriftEnd
	}
	w.raw = w.raw[size:]
	return n, nil
}
