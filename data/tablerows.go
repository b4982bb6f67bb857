package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// tableRows is the common part of the table formats. All rows are written once to a temporary file, one
// after the other. Each value of a row is the number of its elements (a varint) and the elements. The
// elements of text have their lengths before them.
type tableRows struct {
	columns []tableColumn // of the first file
	limit   *limit        // of the memory for what is decompressed at a time
	options *CSVOptions
	names   []string // of the columns
	out     []string // the names of the columns that are left out
	// ordered has the categories, in their order, of columns that are ordered categories, by column;
	// nil if the dictionaries of a column differ. It is set for InferSchema only.
	ordered map[string][]string
}

type tableColumn struct {
	name string
	kind *dtype.Type
	list bool
	date bool  // whether its values are texts of dates or times, which only rules read
	err  error // why the column cannot be used
	omit bool  // whether the rows of the temporary file have no values of the column
}

// without marks the column as one of an unsupported type, which what names. date reports whether its
// values become texts, which only rules read.
func (c tableColumn) without(what string, date bool) tableColumn {
	c.kind, c.date, c.omit = dtype.For[string](), date, !date
	c.err = &RowError{Unit: "record", Column: strconv.Quote(c.name), Found: what, Expected: "numbers, booleans, text, or lists of them",
		Fix: "convert the column, or leave it out", Err: ErrUnsupported}
	return c
}

func (*tableRows) usualLabel() string { return "" }

func (*tableRows) scan(io.Reader, int64, func(record, []byte) error) error {
	return fmt.Errorf("the rows of a table cannot be read one by one: %w", ErrUnsupported)
}

// footerOf returns the footer of a file and where it begins. The length of the footer and the magic
// follow it, and the file also begins with the magic. what describes the file in messages.
func footerOf(r io.ReaderAt, size int64, what, magic string) (raw []byte, at int64, err error) {
	const most = 64 << 20
	end := make([]byte, 4+len(magic))
	least := int64(len(end) + (len(magic)+3)&^3) // the first magic is filled to a multiple of four bytes
	if size < least {
		return nil, 0, tooShort(size, what)
	}
	if _, err := r.ReadAt(end, size-int64(len(end))); err != nil {
		return nil, 0, readError(err)
	}
	if string(end[4:]) != magic {
		return nil, 0, fmt.Errorf("truncated, or not %s: it ends with %q instead of %q; %s: %w", what, end[4:], magic, interrupted, ErrFormat)
	}
	n := int64(binary.LittleEndian.Uint32(end))
	if n > min(size-least, most) {
		return nil, 0, fmt.Errorf("a footer of %d bytes in a file of %d, expected at most %d: %w", n, size, min(size-least, most), ErrFormat)
	}
	raw, at = make([]byte, n), size-int64(len(end))-n
	if _, err := r.ReadAt(raw, at); err != nil {
		return nil, 0, readError(err)
	}
	return raw, at, nil
}

func tooShort(size int64, what string) error {
	return fmt.Errorf("%d bytes, too few for %s; %s: %w", size, what, interrupted, ErrFormat)
}

// use takes the columns of the first file. For a later file, it returns an error if the columns differ.
func (t *tableRows) use(columns []tableColumn) error {
	same := func(a, b tableColumn) bool {
		return a.name == b.name && a.kind == b.kind && a.list == b.list && a.date == b.date
	}
	var names []string
	known := map[string]bool{}
	for _, c := range columns {
		if known[c.name] {
			return fmt.Errorf("two columns have the name %q: rename one: %w", c.name, ErrFormat)
		}
		known[c.name], names = true, append(names, c.name)
	}
	if t.columns == nil {
		var err error
		if t.out, err = t.options.leaveOut(names, t.options.Label); err != nil {
			return err
		}
		for i, out := 0, positions(t.out); i < len(columns); i++ {
			_, leftOut := out[columns[i].name]
			columns[i].omit = columns[i].omit || leftOut
		}
		t.columns, t.names = columns, names
	}
	if !slices.EqualFunc(columns, t.columns, same) {
		return fmt.Errorf("its columns or their types differ from those of the first file: write all files with the same columns: %w", ErrFormat)
	}
	return nil
}

// chosen implements tableFormat.
func (t *tableRows) chosen() (names, out []string) { return t.names, t.out }

// order implements tableFormat.
func (t *tableRows) order(column string) []string { return t.ordered[column] }

// keepOrder keeps the categories in a dictionary of an ordered category. A later dictionary may have
// more categories.
func (t *tableRows) keepOrder(column string, values []string) {
	kept, known := t.ordered[column]
	both := min(len(kept), len(values))
	switch {
	case known && kept == nil || len(values) == 0:
		return
	case !slices.Equal(kept[:both], values[:both]):
		kept = nil
	case len(values) > len(kept):
		kept = values
	}
	t.ordered[column] = kept
}

// tableTime is the layout of times for rules. Times are in UTC.
const tableTime = "2006-01-02T15:04:05"

// appendString appends a text with its length before it.
func appendString[T string | []byte](raw []byte, text T) []byte {
	return append(binary.AppendUvarint(raw, uint64(len(text))), text...)
}

func (t *tableRows) checkRow(size int) error {
	switch {
	case size > maxRecord:
		return recordError(fmt.Sprintf("more than %d bytes", maxRecord), "a smaller row", "write smaller rows")
	case t.limit != nil && int64(size) > t.limit.max:
		return option.Errorf("%w: a row has more than %d bytes; raise {Options.MaxBytes} if the data is meant to be that large", ErrTooLarge, t.limit.max)
	}
	return nil
}

// nullFix is the advice for a null in a column that may have a rule.
const nullFix = "fill it in, set missing of a rule of a schema ({CSVOptions.Schema}) to a value, or leave the column out ({Options.Ignore})"

func (c tableColumn) null() error {
	fix := nullFix
	if c.list { // lists have no rules
		fix = "fill it in, or leave the column out ({Options.Ignore})"
	}
	return &RowError{Unit: "record", Column: strconv.Quote(c.name), Found: "null", Expected: "a value", Fix: fix, Err: ErrFormat}
}

func (t *tableRows) values(raw []byte, err *error) iter.Seq2[[]byte, value] {
	return func(yield func([]byte, value) bool) {
		for _, c := range t.columns {
			n, size := binary.Uvarint(raw)
			raw = raw[size:]
			v := value{kind: c.kind, count: int(n), date: c.date, err: c.err}
			length := int(n) * c.kind.Size
			if c.kind.Kind == dtype.String {
				length = 0
				for range n {
					text, size := binary.Uvarint(raw[length:])
					length += size + int(text)
				}
			}
			v.raw, raw = raw[:length], raw[length:]
			switch {
			case c.list:
				v.shape = []int{v.count}
			case n == 0 && v.err == nil:
				v.err = c.null()
			}
			if !yield([]byte(c.name), v) {
				return
			}
		}
	}
}

func (t *tableRows) decode(v value, dst vector, at int) error {
	texts, ok := dst.(vec[string])
	if !ok {
		to := bytesOf(dst, at, at+v.count)
		copy(to, v.raw)
		reorder(to, v.kind.Size, binary.LittleEndian)
		return nil
	}
	raw := v.raw
	for i := range v.count {
		n, size := binary.Uvarint(raw)
		texts[at+i] = string(raw[size : size+int(n)])
		raw = raw[size+int(n):]
	}
	return nil
}

func (t *tableRows) content(v value) []byte {
	_, size := binary.Uvarint(v.raw)
	return v.raw[size:]
}
