package data

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// parquetRows reads Parquet files. Their values are stored by column and compressed in pages, so a
// row cannot be read alone.
type parquetRows struct {
	tableRows
	dates []func(parquet.Value) string // by column: formats a date or time as text; nil for other types
	flags [][]byte                     // by column: the next booleans of the row group, if the library does not decode them
}

func (*parquetRows) name() string { return "Parquet" }

const parquetMagic = "PAR1"

func (*parquetRows) begins(head []byte) bool { return strings.HasPrefix(string(head), parquetMagic) }

func (*parquetRows) fresh(rows tableRows) recordFormat {
	return &parquetRows{tableRows: rows}
}

// rows implements tableFormat.
func (p *parquetRows) rows(r io.ReaderAt, size int64, each func([]byte) error) (err error) {
	defer recovered(&err)
	if err := checkMetadata(r, size, p.limit); err != nil {
		return err
	}
	f, err := parquet.OpenFile(r, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.OptimisticRead(false))
	if err != nil {
		return corrupt(err)
	}
	var columns []tableColumn
	columns, p.dates = parquetColumns(f.Schema())
	if err := p.use(columns); err != nil {
		return err
	}
	var raw []byte
	buffer := make([]parquet.Row, maxRows)
	pages := newPageChecker(f, r, size, p.limit)
	defer pages.close()
	if p.options.Schema.allTexts() {
		pages.ordered, pages.keepOrder = orderedByPandas(f), p.keepOrder
	}
	stated := f.Metadata().RowGroups
	for i, group := range f.RowGroups() {
		if stated[i].NumRows == 0 {
			continue // writers state odd offsets for its columns
		}
		n, flags, err := pages.check(&stated[i])
		if err != nil {
			return err
		}
		p.flags = flags
		if err := p.group(group, buffer[:n], &raw, each); err != nil {
			return err
		}
	}
	return nil
}

// orderedByPandas returns the names of the columns that were ordered categories in pandas, which writes
// a list of its columns to the metadata. The dictionaries of these columns have all categories in their
// order.
func orderedByPandas(f *parquet.File) []string {
	var list struct {
		Columns []struct {
			Name     string `json:"field_name"`
			Metadata struct{ Ordered bool }
		}
	}
	text, _ := f.Lookup("pandas")
	_ = json.Unmarshal([]byte(text), &list) // without the list, the order is that of the alphabet
	var names []string
	for _, c := range list.Columns {
		if c.Metadata.Ordered {
			names = append(names, c.Name)
		}
	}
	return names
}

// checkMetadata checks the footer, whose metadata the library reads into memory.
func checkMetadata(r io.ReaderAt, size int64, memory *limit) error {
	raw, _, err := footerOf(r, size, "a Parquet file", parquetMagic)
	if err != nil {
		return err
	}
	w := &thriftWalk{raw: raw}
	if err := w.walk(0); err != nil {
		return fmt.Errorf("the metadata is damaged: %w", err)
	}
	if memory != nil && w.structs > memory.max/structBytes {
		return option.Errorf("%w: its metadata has %d parts of columns and row groups, expected at most %d; write fewer and larger row groups, or raise {Options.MaxBytes} if the data is meant to be that large", ErrTooLarge, w.structs, memory.max/structBytes)
	}
	return checkSchema(raw)
}

// schemaOutline is the part of the metadata that determines the memory for the columns.
type schemaOutline struct {
	Schema thrift.Slice[struct {
		Type     thrift.Null[format.Type] `thrift:"1,optional"`
		Name     string                   `thrift:"4,required"`
		Children thrift.Null[int32]       `thrift:"5,optional"`
	}] `thrift:"2,required"`
	RowGroups thrift.Slice[struct {
		Columns thrift.Slice[struct{}] `thrift:"1,required"`
	}] `thrift:"4,required"`
}

// checkSchema checks the depth of the schema, and that row groups have the columns of the schema. The
// library allocates memory for the path of each part of the schema, and for each column in each row
// group.
func checkSchema(raw []byte) error {
	const (
		maxDepth = 32
		maxNames = 4 << 20
	)
	var outline schemaOutline
	if err := thrift.NewDecoder((&thrift.CompactProtocol{}).NewReaderFromBytes(raw)).Decode(&outline); err != nil {
		return corrupt(err)
	}
	type group struct {
		left  int32 // the children that follow
		names int   // the bytes of its path
	}
	var groups []group
	leaves, names := 0, 0
	for _, part := range outline.Schema {
		length := len(part.Name)
		if len(groups) > 0 {
			length += groups[len(groups)-1].names
		}
		if part.Type.Valid {
			leaves++
			names += length
		}
		if part.Children.V > 0 {
			groups = append(groups, group{part.Children.V, length})
		} else {
			for len(groups) > 0 {
				last := &groups[len(groups)-1]
				if last.left--; last.left > 0 {
					break
				}
				groups = groups[:len(groups)-1]
			}
		}
		switch {
		case len(groups) > maxDepth:
			return fmt.Errorf("more than %d levels of columns: %w", maxDepth, ErrFormat)
		case names > maxNames:
			return fmt.Errorf("names of columns with more than %d bytes: %w", maxNames, ErrFormat)
		}
	}
	if leaves > maxFields {
		return fmt.Errorf("%d columns, expected at most %d: remove unused columns: %w", leaves, maxFields, ErrFormat)
	}
	for i, group := range outline.RowGroups {
		if len(group.Columns) != leaves {
			return fmt.Errorf("row group %d has %d columns, and the schema has %d: %w", i, len(group.Columns), leaves, ErrFormat)
		}
	}
	return nil
}

func (p *parquetRows) group(group parquet.RowGroup, buffer []parquet.Row, raw *[]byte, each func([]byte) error) (err error) {
	rows := group.Rows()
	defer func() { err = errors.Join(err, rows.Close()) }()
	for {
		n, end := rows.ReadRows(buffer)
		for _, row := range buffer[:n] {
			if *raw, err = p.encode((*raw)[:0], row); err != nil {
				return err
			}
			if err := each(*raw); err != nil {
				return err
			}
			clear(row) // its texts keep their pages in memory
		}
		if end == io.EOF {
			return nil
		}
		if end != nil {
			return corrupt(end)
		}
		if n == 0 {
			return fmt.Errorf("a row group ends early: %w", ErrFormat)
		}
	}
}

// parquetColumns returns the columns of a schema, one for each leaf, and the functions that format
// dates (parquetRows.dates).
func parquetColumns(schema *parquet.Schema) (columns []tableColumn, dates []func(parquet.Value) string) {
	for _, path := range schema.Columns() {
		leaf, _ := schema.Lookup(path...)
		c := tableColumn{kind: parquetKind(leaf.Node.Type()), list: leaf.MaxRepetitionLevel > 0}
		if c.list { // the names inside a list are those of its encoding
			path = append(path[:1:1], slices.DeleteFunc(slices.Clone(path[1:]), func(name string) bool {
				return slices.Contains([]string{"list", "element", "item", "array", "bag", "array_element"}, name)
			})...)
		}
		c.name = strings.Join(path, ".")
		what := leaf.Node.Type().String()
		if leaf.MaxRepetitionLevel > 1 {
			c.kind, what = nil, "nested lists"
		}
		var date func(parquet.Value) string
		if c.kind == nil {
			if !c.list {
				date = parquetDate(leaf.Node.Type())
			}
			c = c.without(what, date != nil)
		}
		columns, dates = append(columns, c), append(dates, date)
	}
	return columns, dates
}

// parquetKind returns the element type of a column; nil if the type is not supported.
func parquetKind(t parquet.Type) *dtype.Type {
	logical := t.LogicalType()
	if logical == nil {
		logical = &format.LogicalType{}
	}
	switch l := logical.Value.(type) {
	case nil, *format.StringType, *format.EnumType, *format.JsonType:
	case *format.IntType:
		name := fmt.Sprintf("uint%d", l.BitWidth)
		if l.IsSigned {
			name = name[1:]
		}
		return dtype.ByName(name)
	default:
		return nil // dates, times, decimals and others
	}
	switch t.Kind() {
	case parquet.Boolean:
		return dtype.For[bool]()
	case parquet.Int32:
		return dtype.For[int32]()
	case parquet.Int64:
		return dtype.For[int64]()
	case parquet.Float:
		return dtype.For[float32]()
	case parquet.Double:
		return dtype.For[float64]()
	case parquet.ByteArray:
		return dtype.For[string]()
	}
	return nil
}

// parquetDate returns a function that formats dates or times as the text that rules read; nil for other
// columns.
func parquetDate(t parquet.Type) func(parquet.Value) string {
	logical := t.LogicalType()
	if logical == nil {
		return nil
	}
	at := func(v parquet.Value) time.Time { return time.Unix(0, v.Int64()) }
	switch l := logical.Value.(type) {
	case *format.DateType:
		return func(v parquet.Value) string { return time.Unix(day*int64(v.Int32()), 0).UTC().Format(time.DateOnly) }
	case *format.TimestampType:
		switch l.Unit.Value.(type) {
		case *format.MilliSeconds:
			at = func(v parquet.Value) time.Time { return time.UnixMilli(v.Int64()) }
		case *format.MicroSeconds:
			at = func(v parquet.Value) time.Time { return time.UnixMicro(v.Int64()) }
		}
		return func(v parquet.Value) string { return at(v).UTC().Format(tableTime) }
	}
	return nil
}

// encode appends a row to raw.
func (p *parquetRows) encode(raw []byte, row parquet.Row) ([]byte, error) {
	for i, c := range p.columns {
		n := 0
		for n < len(row) && row[n].Column() == i {
			n++
		}
		if n == 0 {
			return raw, fmt.Errorf("a row without column %q: %w", c.name, ErrFormat)
		}
		values := row[:n]
		row = row[n:]
		if values[0].IsNull() && n == 1 || c.omit {
			values = nil // null, or an empty list
		}
		raw = binary.AppendUvarint(raw, uint64(len(values)))
		for _, v := range values {
			if v.IsNull() {
				return raw, c.null()
			}
			if date := p.dates[i]; date != nil {
				v = parquet.ByteArrayValue([]byte(date(v)))
			}
			raw = appendParquet(raw, c.kind, v)
			if flags := p.flags[i]; len(flags) > 0 {
				raw[len(raw)-1], p.flags[i] = flags[0], flags[1:]
			}
			if err := p.checkRow(len(raw)); err != nil {
				return raw, err
			}
		}
	}
	return raw, nil
}

func appendParquet(raw []byte, kind *dtype.Type, v parquet.Value) []byte {
	order := binary.LittleEndian
	switch v.Kind() {
	case parquet.Boolean:
		if v.Boolean() {
			return append(raw, 1)
		}
		return append(raw, 0)
	case parquet.Float:
		return order.AppendUint32(raw, math.Float32bits(v.Float()))
	case parquet.Double:
		return order.AppendUint64(raw, math.Float64bits(v.Double()))
	case parquet.ByteArray:
		return appendString(raw, v.ByteArray())
	}
	n := uint64(v.Int64())
	if v.Kind() == parquet.Int32 {
		n = uint64(v.Int32())
	}
	return append(raw, order.AppendUint64(nil, n)[:kind.Size]...) // integers of 8 and 16 bits have 32 in the file
}
