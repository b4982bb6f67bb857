package cgroup

import (
	"bytes"
	"errors"
	"io"
	"os"
)

// FileSize exceeds the size of every known /proc/PID/status.
const FileSize = 8 << 10

// ReadFile reads the start of a file into the buffer, without allocating, so that files of /proc can be
// read after each step of a training. A nil file is an error.
func ReadFile(file *os.File, buffer []byte) ([]byte, error) {
	n, err := file.ReadAt(buffer, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return buffer[:n], err
}

// Number parses digits. ok is false for other texts, such as "max".
func Number(text []byte) (n int64, ok bool) {
	for _, c := range text {
		if c < '0' || c > '9' || n > 1<<58 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, len(text) > 0
}

// Line returns the rest of the line that starts with name.
func Line(text []byte, name string) []byte {
	for rest := text; ; {
		at := bytes.Index(rest, []byte(name))
		if at < 0 {
			return nil
		}
		start := len(text) - len(rest) + at
		rest = rest[at+len(name):]
		if start == 0 || text[start-1] == '\n' {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			return line
		}
	}
}
