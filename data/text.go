package data

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// openText reads a CSV file or JSON lines.
func openText(path string, o Options, l *limit) (*InMemory, error) {
	r, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readTextTable(path, r, o, l)
}

// Parse reads the content of a CSV file or of JSON lines, whose name has the extension of such a file.
func Parse(name string, content []byte, o Options) (*InMemory, error) {
	if ext := plainExt(name); ext != ".csv" && ext != ".tsv" && ext != ".jsonl" {
		return nil, fmt.Errorf("%s: the extension is %w; expected .csv, .tsv, .jsonl or .ndjson", name, ErrUnsupported)
	}
	o.CSV.ignore = o.Ignore
	return readTextTable(name, bytes.NewReader(content), o, newLimit(o.MaxBytes))
}

// readTextTable reads a table from the content of a file.
func readTextTable(path string, r io.Reader, o Options, l *limit) (*InMemory, error) {
	size := 64 << 10
	if content, ok := r.(*bytes.Reader); ok {
		size = min(max(content.Len(), 512), size)
	}
	text, err := textReader(bufio.NewReaderSize(l.reader(r), size))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, corrupt(err))
	}
	source := newJSONRows(text)
	if ext := plainExt(path); ext != ".jsonl" {
		source = newCSVRows(text, o.CSV, map[string]rune{".csv": ',', ".tsv": '\t'}[ext])
	}
	t := newTable(path, o)
	if l != nil {
		t.values = newLimit(l.max)
	}
	return t.readText(source)
}

// plainExt returns the extension of a file that may be compressed, in lower case; .jsonl stands for .ndjson.
func plainExt(path string) string {
	ext := filepath.Ext(strings.TrimSuffix(strings.ToLower(filepath.Base(path)), ".gz"))
	return strings.Replace(ext, ".ndjson", ".jsonl", 1)
}

// textReader skips a byte order mark. Binary files and UTF-16 are errors.
func textReader(b *bufio.Reader) (io.Reader, error) {
	head, err := b.Peek(512)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return nil, fmt.Errorf("UTF-16 text, which is %w; save it as UTF-8", ErrUnsupported)
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return nil, fmt.Errorf("a zip archive or a spreadsheet, not text; export it as CSV: %w", ErrFormat)
	case bytes.IndexByte(head, '\n') < 0 && bytes.IndexByte(bytes.TrimRight(head, "\r"), '\r') >= 0:
		return nil, fmt.Errorf("lines that end with CR only, which is %w; write them with LF, as with tr '\\r' '\\n'",
			ErrUnsupported)
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
func damaged(line int) error {
	return &RowError{Row: line, Found: "NUL bytes", Expected: "text",
		Fix: "the file is damaged or binary; copy or export it again", Err: ErrFormat}
}

// notUTF8 describes text that is not UTF-8. The error has the number of the line in the text. Of a long
// text, it shows the part from the first invalid byte.
func notUTF8(text string) *RowError {
	at := 0
	for r, size := utf8.DecodeRuneInString(text); r != utf8.RuneError || size > 1; {
		at += size
		r, size = utf8.DecodeRuneInString(text[at:])
	}
	wrong := &RowError{Unit: "line", Row: 1 + strings.Count(text[:at], "\n"), Expected: "text in UTF-8", Err: ErrFormat,
		Found: quote(text), Fix: "convert the file, for example with iconv -f latin1 -t utf-8"}
	if len(text) > maxQuoted {
		wrong.Found = quote(text[at:])
	}
	return wrong
}
