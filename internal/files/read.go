package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrTooLarge means that a file has more bytes than allowed.
var ErrTooLarge = errors.New("the file is too large")

// Open opens a regular file for reading, and returns its size.
func Open(path string) (f *os.File, size int64, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, 0, err
	case info.IsDir():
		return nil, 0, &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	case !info.Mode().IsRegular(): // opening a named pipe would block
		return nil, 0, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err = os.Open(path)
	return f, info.Size(), err
}

// Read reads a regular file. A file of more than most bytes is ErrTooLarge.
func Read(path string, most int64) ([]byte, error) {
	f, size, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > most {
		return nil, tooLarge(path, size, most)
	}
	// The file may grow during reading, and its reported size may be wrong.
	buf := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := buf.ReadFrom(io.LimitReader(f, most+1)); err != nil {
		return nil, err
	}
	if size = int64(buf.Len()); size > most {
		return nil, tooLarge(path, size, most)
	}
	return buf.Bytes(), nil
}

func tooLarge(path string, size, most int64) error {
	return fmt.Errorf("%s: %w: it has %d bytes, the limit is %d", path, ErrTooLarge, size, most)
}
