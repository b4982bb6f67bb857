package launch

import (
	"bytes"
	"io"
	"sync"
)

// output is written by several ranks at a time.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

// lines writes whole lines to an output, each after a prefix.
type lines struct {
	out    *output
	prefix string
	rest   []byte // the beginning of a line
}

// maxLine is the size above which a line without an end is written.
const maxLine = 64 << 10

// Write never fails, since a rank continues without a reader.
func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	if end := bytes.LastIndexByte(l.rest, '\n') + 1; end > 0 {
		l.write(l.rest[:end])
		l.rest = append(l.rest[:0], l.rest[end:]...)
	}
	if len(l.rest) > maxLine {
		l.flush()
	}
	return len(b), nil
}

// flush writes the rest, with the end of a line.
func (l *lines) flush() {
	if len(l.rest) > 0 {
		l.write(append(l.rest, '\n'))
		l.rest = l.rest[:0]
	}
}

func (l *lines) write(text []byte) {
	if l.prefix != "" {
		var prefixed []byte
		for line := range bytes.Lines(text) {
			prefixed = append(append(prefixed, l.prefix...), line...)
		}
		text = prefixed
	}
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	_, _ = l.out.w.Write(text)
}
