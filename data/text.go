package data

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/dtype"
)

func openTable(path string, o CSVOptions, l *limit, read func(string, io.Reader, CSVOptions, *limit) (*InMemory, error)) (*InMemory, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, likely, err := gunzip(f, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if likely == size {
		o.size = size
	}
	return read(path, r, o, l)
}

// maxFields limits the number of fields of a table. Models have far fewer inputs.
const maxFields = 4096

// maxRow limits the bytes of a row, and maxColumns its cells: encoding/csv stores a whole row, and
// about 40 bytes per cell.
const (
	maxRow     = 16 << 20
	maxColumns = 1 << 20
)

// rowLimit returns an error for a row that is too large. A row with line breaks in quotes spans
// several lines.
type rowLimit struct {
	r     io.Reader
	comma byte

	line   int // line breaks read
	from   int // line breaks before the current row
	bytes  int // bytes of the current row
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

// textReader skips a byte order mark. Binary files and UTF-16 are errors.
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

// damaged returns the error for a line of text with NUL bytes. A file has them if a block of it is lost.
func damaged(file string, line int) error {
	return &RowError{File: file, Unit: "line", Row: line, Found: "NUL bytes", Expected: "text", Fix: "the file is damaged or binary; copy or export it again", Err: ErrFormat}
}

// notUTF8 describes text that is not UTF-8. The error has the number of the line in the text. Of a long
// text, it shows the part from the character before the first invalid byte.
func notUTF8(text string) *RowError {
	from, at := 0, 0
	for at < len(text) {
		r, size := utf8.DecodeRuneInString(text[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		from, at = at, at+size
	}
	wrong := &RowError{Unit: "line", Row: 1 + strings.Count(text[:at], "\n"), Expected: "text in UTF-8", Err: ErrFormat}
	if len(text) <= maxQuoted {
		from = 0
	}
	wrong.Found = quote(text[from:])
	encoding := "latin1"
	if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") {
		encoding = "utf-16"
	}
	wrong.Fix = "convert the file, for example with iconv -f " + encoding + " -t utf-8"
	return wrong
}

// textDecoder reads the texts of class folders, byte for byte.
type textDecoder struct{}

func (textDecoder) kind() *fileKind { return textKind }

func (textDecoder) column() column { return column{width: 1, kind: dtype.For[string]()} }

func (textDecoder) describe() string { return textKind.many }

func (textDecoder) decode(_ *hand, dst vector, at int, file *os.File, size int64) error {
	if size > maxRow {
		return fmt.Errorf("%w: a text of %d bytes, more than the limit of %d: divide or remove it", ErrTooLarge, size, maxRow)
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(file, raw); err != nil {
		return readError(err)
	}
	if !utf8.Valid(raw) {
		return notUTF8(string(raw))
	}
	dst.(vec[string])[at] = string(raw)
	return nil
}

// Bytes of memory that count against the limit in addition to the text.
const (
	rowBytes   = 16
	cellBytes  = 4
	textBytes  = 16
	classBytes = 100
)

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

// newTable makes a dataset of the rows of a file. lines are the line numbers of the rows, and out the
// names of the columns that are left out.
func newTable(file string, lines []int, fields []Field, out []string) (*InMemory, error) {
	m := &InMemory{name: file, n: len(lines), lines: lines, out: out}
	for _, f := range fields {
		if err := m.addArray(f.Name, f.Array, file); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// addLabel adds the label of a table, if y is not nil, as the field y. column names its column in
// messages.
func (m *InMemory) addLabel(y *Array, classes []string, column string) error {
	if y == nil && len(m.columns) == 0 {
		return fmt.Errorf("%s: a dataset needs at least one field: %w", m.name, ErrField)
	}
	if y == nil {
		return nil
	}
	if err := m.addArray("y", *y, m.name); err != nil {
		return err
	}
	last := &m.columns[len(m.columns)-1]
	last.classes, last.origin = slices.Clone(classes), column
	return nil
}
