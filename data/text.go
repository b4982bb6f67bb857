package data

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
)

// openTable opens a file, which may be compressed, and calls read.
func openTable(path string, o CSVOptions, l *limit, read func(string, io.Reader, CSVOptions, *limit) (*InMemory, error)) (*InMemory, error) {
	r, _, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return read(path, r, o, l)
}

// maxFields limits the fields of a table; models have far fewer inputs.
const maxFields = 4096

// maxRow limits the bytes of a row, and maxColumns its cells: encoding/csv holds a whole row,
// and some 40 bytes for each of its cells.
const (
	maxRow     = 16 << 20
	maxColumns = 1 << 20
)

// rowLimit returns an error for rows that are too large. A row is a line, or several lines if
// it has line breaks in quotes.
type rowLimit struct {
	r     io.Reader
	comma byte

	line   int // line breaks so far
	from   int // line breaks before the row
	bytes  int // bytes of the row so far
	commas int
	quoted bool
}

func (l *rowLimit) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for _, c := range p[:n] {
		l.bytes++
		switch c {
		case '"':
			l.quoted = !l.quoted
		case l.comma:
			l.commas++
		case '\n':
			l.line++
			if !l.quoted {
				l.from, l.bytes, l.commas = l.line, 0, 0
			}
		}
		if l.bytes > maxRow {
			return 0, l.tooLarge(maxRow, "bytes")
		}
		if l.commas >= maxColumns {
			return 0, l.tooLarge(maxColumns, "columns")
		}
	}
	return n, err
}

func (l *rowLimit) tooLarge(most int, unit string) error {
	return &RowError{Unit: "line", Row: l.from + 1, Found: fmt.Sprintf("more than %d %s", most, unit),
		Expected: "a row of a table", Fix: "put each sample on a line of its own", Err: ErrFormat}
}

// textReader skips a byte order mark, and returns an error for binary files and UTF-16.
func textReader(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(512)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return nil, fmt.Errorf("UTF-16 text, which is %w; save it as UTF-8", ErrUnsupported)
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return nil, fmt.Errorf("a zip archive or a spreadsheet, not text; export it as CSV: %w", ErrFormat)
	case bytes.IndexByte(head, 0) >= 0:
		return nil, fmt.Errorf("binary, not text: %w", ErrFormat)
	}
	if mark := []byte("\xef\xbb\xbf"); bytes.HasPrefix(head, mark) {
		if _, err := b.Discard(len(mark)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// The memory that a table needs in addition to the cells of a row, the number in a cell, the
// text of a cell, and the name of a class.
const (
	rowBytes   = 16
	cellBytes  = 4
	textBytes  = 16
	classBytes = 100
)

// numbered returns the number of each class.
func numbered(classes []string) (map[string]int64, error) {
	numbers := make(map[string]int64, len(classes))
	for i, name := range classes {
		if _, ok := numbers[name]; ok {
			return nil, fmt.Errorf("class %q is listed twice: %w", name, ErrField)
		}
		numbers[name] = int64(i)
	}
	return numbers, nil
}

// newTable makes a dataset of the samples at some lines of a file. y is nil without a label.
func newTable(file string, lines []int, fields []Field, y *Array, classes []string, label string) (*InMemory, error) {
	if y != nil {
		fields = append(fields, Field{"y", *y})
	}
	m, err := New(file, fields...)
	if err != nil {
		return nil, err
	}
	m.lines = lines
	if y != nil {
		last := &m.columns[len(m.columns)-1]
		last.classes, last.origin = slices.Clone(classes), label
	}
	return m, nil
}
