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
func openText(path string, o Options) (*InMemory, error) {
	r, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readTextTable(path, r, o)
}

// Parse reads the content of a CSV file or of JSON lines, whose name has the extension of such a file.
func Parse(name string, content []byte, o Options) (*InMemory, error) {
	if ext := plainExt(name); ext != ".csv" && ext != ".tsv" && ext != ".jsonl" {
		return nil, fmt.Errorf("%s: the extension is %w; expected .csv, .tsv, .jsonl or .ndjson", name, ErrUnsupported)
	}
	o.CSV.ignore = o.Ignore
	return readTextTable(name, bytes.NewReader(content), o)
}

// readTextTable reads a table from the content of a file.
func readTextTable(path string, r io.Reader, o Options) (*InMemory, error) {
	size := 64 << 10
	if content, ok := r.(*bytes.Reader); ok {
		size = min(max(content.Len(), 512), size)
	}
	text, err := textReader(bufio.NewReaderSize(r, size))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, corrupt(err))
	}
	source := newJSONRows(text)
	if ext := plainExt(path); ext != ".jsonl" {
		source = newCSVRows(text, o.CSV, map[string]rune{".csv": ',', ".tsv": '\t'}[ext])
	}
	return newTable(path, o).readText(source)
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
	case bytes.IndexByte(head, 0) >= 0:
		return nil, fmt.Errorf("binary, not text; export a spreadsheet as CSV: %w", ErrFormat)
	}
	if mark := []byte("\xef\xbb\xbf"); bytes.HasPrefix(head, mark) {
		if _, err := b.Discard(len(mark)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// notUTF8 describes text that is not UTF-8. Of a long text, it shows the part from the first invalid byte.
func notUTF8(text string) *RowError {
	if at := strings.IndexFunc(text, func(r rune) bool { return r == utf8.RuneError }); len(text) > maxQuoted {
		text = text[at:]
	}
	return &RowError{Found: quote(text), Expected: "text in UTF-8", Err: ErrFormat,
		Fix: "convert the file, for example with iconv -f latin1 -t utf-8"}
}
