package data

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"steadyfit/data/internal/fault"
	"steadyfit/internal/dtype"
	"steadyfit/option"
)

const (
	parquetMagic = "PAR1"
	// parquetRows is the number of rows that are read at a time.
	parquetRows = 256
	// metadataRatio is the approximate memory for a byte of the metadata of a Parquet file.
	metadataRatio = 50
)

// parquetFile reads the columns of a Parquet file one after the other, all in the goroutine of the caller. (The
// package pqarrow of the library reads structs in goroutines, whose panics would end the process.) One row
// group at a time is open, and one page of each column is in memory.
type parquetFile struct {
	*file.Reader
	of    []typedColumn
	limit *limit
	group int   // number of row groups that were opened
	left  int64 // rows of the open row group that were not read
	open  []parquetColumn
}

// parquetColumn reads a column of a row group.
type parquetColumn interface {
	// rows returns the values of the next n rows.
	rows(n int) (typedChunk, error)
}

// openParquet opens a file of size bytes.
func openParquet(r io.ReaderAt, size int64, l *limit) (rows *typedRows, err error) {
	defer fault.Recovered(&err)
	at, err := footerOf(r, size, "a Parquet file", parquetMagic)
	if err != nil {
		return nil, err
	}
	most := int64(math.MaxInt32)
	if l != nil {
		most = min(most, l.max)
	}
	if size-at > most/metadataRatio {
		return nil, option.Errorf("%w: its metadata has %d bytes, expected at most %d; write fewer and larger row groups, "+
			"or raise {Options.MaxBytes} if the data is meant to be that large", ErrTooLarge, size-at, most/metadataRatio)
	}
	properties := parquet.NewReaderProperties(memory.NewGoAllocator())
	properties.BufferedStreamEnabled = true // otherwise all pages of a column would be in memory
	properties.MaxCompressedPageSize, properties.MaxUncompressedPageSize = size, most
	f, err := file.NewParquetReader(io.NewSectionReader(r, 0, size), file.WithReadProps(properties))
	if err != nil {
		return nil, err
	}
	columns := f.MetaData().Schema
	if n := columns.NumColumns(); n > maxFields {
		return nil, fmt.Errorf("%d columns, expected at most %d: remove unused columns: %w", n, maxFields, ErrFormat)
	}
	p := &parquetFile{Reader: f, limit: l}
	for i, name := range parquetNames(columns.Root(), "") {
		p.of = append(p.of, typedColumnOf(name, columns.Column(i)))
	}
	rows = newTypedRows(p, p.of)
	if text := f.MetaData().KeyValueMetadata().FindValue("huggingface"); text != nil {
		rows.classes = namedClasses(*text)
	}
	return rows, nil
}

// parquetNames returns the names of the columns below a node of the schema. The levels of a list have no names.
func parquetNames(node schema.Node, name string) (names []string) {
	group, ok := node.(*schema.GroupNode)
	if !ok {
		return []string{name}
	}
	for i := range group.NumFields() {
		field, inner := group.Field(i), name
		inList := node.RepetitionType() == parquet.Repetitions.Repeated && group.NumFields() == 1
		switch repeated := field.RepetitionType() == parquet.Repetitions.Repeated; {
		case name == "":
			inner = field.Name()
		case !inList && !(repeated && group.NumFields() == 1):
			inner += "." + field.Name()
		}
		names = append(names, parquetNames(field, inner)...)
	}
	return names
}

// typedColumnOf returns the type of the values of a column.
func typedColumnOf(name string, c *schema.Column) typedColumn {
	of := typedColumn{name: name, list: c.MaxRepetitionLevel() == 1}
	logical, isNone := c.LogicalType(), c.LogicalType().IsNone()
	_, of.date = logical.(schema.TimestampLogicalType)
	_, isDay := logical.(schema.DateLogicalType)
	integer, isInt := logical.(schema.IntLogicalType)
	_, isDecimal := logical.(schema.DecimalLogicalType)
	of.date = of.date || isDay || c.PhysicalType() == parquet.Types.Int96
	if of.what = logical.String(); isNone {
		of.what = c.PhysicalType().String()
	}
	switch t := c.PhysicalType(); {
	case c.MaxRepetitionLevel() > 1:
		of.what = "nested lists"
	case of.date && !of.list:
		of.what, of.kind = "a date or time", dtype.For[string]()
	case isInt:
		unsigned := map[bool]string{false: "u"}[integer.IsSigned()]
		of.kind = dtype.ByName(fmt.Sprintf("%sint%d", unsigned, integer.BitWidth()))
	case t == parquet.Types.ByteArray && !isDecimal:
		of.kind = dtype.For[string]()
	case isNone && t == parquet.Types.Boolean:
		of.kind = dtype.For[bool]()
	case isNone && t == parquet.Types.Int32:
		of.kind = dtype.For[int32]()
	case isNone && t == parquet.Types.Int64:
		of.kind = dtype.For[int64]()
	case isNone && t == parquet.Types.Float:
		of.kind = dtype.For[float32]()
	case isNone && t == parquet.Types.Double:
		of.kind = dtype.For[float64]()
	}
	return of
}

func (p *parquetFile) next(wanted []bool) (chunks []typedChunk, rows int, err error) {
	defer fault.Recovered(&err)
	for p.left == 0 {
		if p.group == p.NumRowGroups() {
			return nil, 0, io.EOF
		}
		if err := p.openGroup(wanted); err != nil {
			return nil, 0, fmt.Errorf("row group %d: %w", p.group, err)
		}
		p.group++
	}
	n := int(min(p.left, parquetRows))
	p.left -= int64(n)
	chunks = make([]typedChunk, len(p.of))
	for i, c := range p.open {
		if c == nil {
			continue
		}
		rows = n
		if chunks[i], err = c.rows(n); err == nil {
			err = p.limit.take(bytesIn(chunks[i].values))
		}
		if err != nil {
			return nil, 0, fmt.Errorf("row group %d: column %q: %w", p.group-1, p.of[i].name, err)
		}
	}
	if rows == 0 {
		return nil, 0, fmt.Errorf("it has no column with values to read: %w", ErrField)
	}
	return chunks, rows, nil
}

// openGroup opens the wanted columns of the next row group.
func (p *parquetFile) openGroup(wanted []bool) error {
	group := p.RowGroup(p.group)
	p.left, p.open = max(0, group.NumRows()), make([]parquetColumn, len(p.of))
	if p.left == 0 {
		return nil // writers state odd offsets for its columns
	}
	for i, c := range p.of {
		if !wanted[i] {
			continue
		}
		pages, err := group.GetColumnPageReader(i)
		if err != nil {
			return err
		}
		descr := p.MetaData().Schema.Column(i)
		//nolint:staticcheck // The library has no other way to check a page before it is decoded.
		values := file.NewColumnReader(descr, &checkedPages{PageReader: pages}, memory.NewGoAllocator(), p.BufferPool())
		if p.open[i] = newParquetColumn(c, values); p.open[i] == nil {
			return fmt.Errorf("column %q: %s is %w", c.name, c.what, ErrUnsupported)
		}
	}
	return nil
}

// checkedPages returns an error for pages from which the library would allocate memory without regard to their
// size: a dictionary with more values than bytes, and the delta encodings, whose headers state the size of a
// block.
type checkedPages struct {
	file.PageReader
	err error
}

func (p *checkedPages) Next() bool {
	if !p.PageReader.Next() {
		return false
	}
	p.err = checkPage(p.Page())
	return p.err == nil
}

func (p *checkedPages) Err() error { return cmp.Or(p.err, p.PageReader.Err()) }

func (p *checkedPages) GetDictionaryPage() (*file.DictionaryPage, error) {
	page, err := p.PageReader.GetDictionaryPage()
	if err == nil && page != nil {
		err = checkPage(page)
	}
	return page, err
}

func checkPage(page file.Page) error {
	_, isDictionary := page.(*file.DictionaryPage)
	if n := int(page.NumValues()); isDictionary && n > len(page.Data()) {
		return fmt.Errorf("a dictionary of %d values in %d bytes: %w", n, len(page.Data()), ErrFormat)
	}
	switch e := parquet.Encoding(page.Encoding()); e {
	case parquet.Encodings.DeltaBinaryPacked, parquet.Encodings.DeltaByteArray, parquet.Encodings.DeltaLengthByteArray:
		return fmt.Errorf("the encoding %s is %w; write the file with plain or dictionary encoding", e, ErrUnsupported)
	}
	return nil
}

// newParquetColumn returns a reader of a column; nil if its physical type does not fit its type.
func newParquetColumn(c typedColumn, values file.ColumnChunkReader) parquetColumn {
	switch r := values.(type) {
	case *file.BooleanColumnChunkReader:
		return newLevels(c, r, r.ReadBatch, func(v bool) bool { return v })
	case *file.Float32ColumnChunkReader:
		return newLevels(c, r, r.ReadBatch, func(v float32) float32 { return v })
	case *file.Float64ColumnChunkReader:
		return newLevels(c, r, r.ReadBatch, func(v float64) float64 { return v })
	case *file.ByteArrayColumnChunkReader:
		return newLevels(c, r, r.ReadBatch, func(v parquet.ByteArray) string { return string(v) })
	case *file.Int96ColumnChunkReader:
		return newLevels(c, r, r.ReadBatch, func(v parquet.Int96) string { return v.ToTime().Format(tableTime) })
	case *file.Int32ColumnChunkReader:
		switch c.kind.Name {
		case "string":
			return newLevels(c, r, r.ReadBatch, func(v int32) string {
				return time.Unix(int64(v)*day, 0).UTC().Format(time.DateOnly)
			})
		case "int8":
			return newLevels(c, r, r.ReadBatch, func(v int32) int8 { return int8(v) })
		case "int16":
			return newLevels(c, r, r.ReadBatch, func(v int32) int16 { return int16(v) })
		case "uint8":
			return newLevels(c, r, r.ReadBatch, func(v int32) uint8 { return uint8(v) })
		case "uint16":
			return newLevels(c, r, r.ReadBatch, func(v int32) uint16 { return uint16(v) })
		case "uint32":
			return newLevels(c, r, r.ReadBatch, func(v int32) uint32 { return uint32(v) })
		}
		return newLevels(c, r, r.ReadBatch, func(v int32) int32 { return v })
	case *file.Int64ColumnChunkReader:
		times, isTime := r.Descriptor().LogicalType().(schema.TimestampLogicalType)
		switch {
		case isTime:
			return newLevels(c, r, r.ReadBatch, func(v int64) string {
				return parquetTime(v, times.TimeUnit()).UTC().Format(tableTime)
			})
		case c.kind == dtype.For[uint64]():
			return newLevels(c, r, r.ReadBatch, func(v int64) uint64 { return uint64(v) })
		}
		return newLevels(c, r, r.ReadBatch, func(v int64) int64 { return v })
	}
	return nil
}

// tableTime is the layout of times for rules. Times are in UTC.
const tableTime = "2006-01-02T15:04:05"

func parquetTime(v int64, unit schema.TimeUnitType) time.Time {
	switch unit {
	case schema.TimeUnitMillis:
		return time.UnixMilli(v)
	case schema.TimeUnitMicros:
		return time.UnixMicro(v)
	}
	return time.Unix(0, v)
}

// levels reads the values of a column, which are between levels: a definition level below the maximum means null
// or an empty list, and the repetition level 0 begins a row.
type levels[S any, D element] struct {
	typedColumn
	from       file.ColumnChunkReader
	read       func(n int64, values []S, definitions, repetitions []int16) (int64, int, error)
	convert    func(S) D
	most       int16 // definition level of a value
	optional   bool  // whether an element of a list may be null
	values     []S
	defs, reps []int16
	have, at   int // levels that were read, and the next one
	value      int // the next value
}

func newLevels[S any, D element](c typedColumn, from file.ColumnChunkReader,
	read func(int64, []S, []int16, []int16) (int64, int, error), convert func(S) D) parquetColumn {
	if c.kind != dtype.For[D]() {
		return nil
	}
	descr := from.Descriptor()
	return &levels[S, D]{typedColumn: c, from: from, read: read, convert: convert, most: descr.MaxDefinitionLevel(),
		optional: descr.SchemaNode().RepetitionType() == parquet.Repetitions.Optional,
		values:   make([]S, parquetRows), defs: make([]int16, parquetRows), reps: make([]int16, parquetRows)}
}

func (l *levels[S, D]) rows(n int) (typedChunk, error) {
	var values vec[D]
	ends := make([]int, 0, n)
	for {
		if l.at == l.have {
			have, _, err := l.read(parquetRows, l.values, l.defs, l.reps)
			if err = cmp.Or(err, l.from.Err()); err != nil {
				return typedChunk{}, err
			}
			if l.have, l.at, l.value = int(have), 0, 0; have == 0 {
				break
			}
		}
		if !l.list || l.reps[l.at] == 0 {
			if len(ends) == n {
				break
			}
			ends = append(ends, len(values))
		}
		switch {
		case len(ends) == 0:
			return typedChunk{}, fmt.Errorf("a list without a beginning: %w", ErrFormat)
		case l.most == 0 || l.defs[l.at] == l.most:
			values = append(values, l.convert(l.values[l.value]))
			l.value++
		case l.list && l.optional && l.defs[l.at] == l.most-1:
			return typedChunk{}, l.nullInList()
		}
		ends[len(ends)-1] = len(values)
		l.at++
	}
	if len(ends) < n {
		return typedChunk{}, fmt.Errorf("fewer rows than the metadata states: %w", ErrFormat)
	}
	return typedChunk{values, ends}, nil
}

// bytesIn returns the size of values in memory.
func bytesIn(v vector) (size int64) {
	if v == nil {
		return 0
	}
	if texts, ok := v.(vec[string]); ok {
		for _, text := range texts {
			size += int64(len(text))
		}
	}
	return size + int64(v.len())*int64(v.kind().Size)
}

// footerOf returns where the footer of a file begins. The length of the footer and the magic follow it,
// and the file also begins with the magic. what describes the file in messages.
func footerOf(r io.ReaderAt, size int64, what, magic string) (int64, error) {
	const most = 64 << 20
	end := make([]byte, 4+len(magic))
	least := int64(len(end) + (len(magic)+3)&^3) // the magic at the start is padded to four bytes
	if size < least {
		return 0, tooShort(size, what)
	}
	if _, err := r.ReadAt(end, size-int64(len(end))); err != nil {
		return 0, fault.Read(err)
	}
	if string(end[4:]) != magic {
		return 0, fmt.Errorf("truncated, or not %s: it ends with %q instead of %q; %s: %w",
			what, end[4:], magic, interrupted, ErrFormat)
	}
	n := int64(binary.LittleEndian.Uint32(end))
	if n > min(size-least, most) {
		return 0, fmt.Errorf("a footer of %d bytes in a file of %d, expected at most %d: %w",
			n, size, min(size-least, most), ErrFormat)
	}
	return size - int64(len(end)) - n, nil
}

func tooShort(size int64, what string) error {
	return fmt.Errorf("%d bytes, too few for %s; %s: %w", size, what, interrupted, ErrFormat)
}
