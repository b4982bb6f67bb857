package files

import (
	"bytes"
	"compress/gzip"
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

// ReadGzip is like Read, for a file that may be compressed with gzip. The limit applies to the
// decompressed size.
func ReadGzip(path string, most int64) ([]byte, error) {
	text, err := Read(path, most)
	if err != nil || !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		return text, err
	}
	r, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	text, err = io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if size := int64(len(text)); size > most {
		return nil, tooLarge(path, size, most)
	}
	return text, nil
}

// FindStrings sets found[name] if the reader has the name as a C string, with a zero byte after
// it. It holds a window of 4 MiB in memory; windows overlap by the longest name.
//
// The text before a name is ignored, since compilers store a string that is the end of another one only
// once. A name that is found wrongly does less harm to callers than a name that is not found.
func FindStrings(found map[string]bool, from io.Reader, names []string) error {
	overlap := 0
	for _, n := range names {
		overlap = max(overlap, len(n))
	}
	window := make([]byte, 0, max(4<<20, 2*overlap))
	for {
		n, err := io.ReadFull(from, window[len(window):cap(window)])
		window = window[:len(window)+n]
		for _, name := range names {
			if !found[name] && bytes.Contains(window, append([]byte(name), 0)) {
				found[name] = true
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		copy(window, window[len(window)-overlap:])
		window = window[:overlap]
	}
}
