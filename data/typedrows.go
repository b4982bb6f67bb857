package data

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/arrio"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"steadyfit/data/internal/fault"
	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// typedColumn is a column of a Parquet or Arrow file.
type typedColumn struct {
	name string
	kind *dtype.Type // nil if its values are not read
	list bool
	date bool   // whether its values are dates or times, which only rules read
	what string // the type in messages
}

// tableTime is the layout of times for rules. Times are in UTC.
const tableTime = "2006-01-02T15:04:05"

// typedColumns returns a column for each field that is not a struct, including the fields of structs. A path has the
// indexes of a column and of the structs that it is in.
func typedColumns(fields []arrow.Field, parent string, path []int) (columns []typedColumn, paths [][]int) {
	for i, field := range fields {
		name, to := parent+field.Name, append(slices.Clone(path), i)
		if parts, ok := field.Type.(*arrow.StructType); ok {
			inner, at := typedColumns(parts.Fields(), name+".", to)
			columns, paths = append(columns, inner...), append(paths, at...)
			continue
		}
		c, of := typedColumn{name: name}, field.Type
		if list, ok := of.(arrow.ListLikeType); ok {
			c.list, of = true, list.Elem()
		}
		if categories, ok := of.(*arrow.DictionaryType); ok {
			of = categories.ValueType
		}
		c.what = of.Name()
		switch id := of.ID(); id {
		case arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW, arrow.BINARY, arrow.LARGE_BINARY, arrow.BINARY_VIEW:
			c.kind = dtype.For[string]()
		case arrow.DATE32, arrow.DATE64, arrow.TIMESTAMP:
			if c.what = "a date or time"; !c.list {
				c.date, c.kind = true, dtype.For[string]()
			}
		case arrow.LIST, arrow.LARGE_LIST, arrow.FIXED_SIZE_LIST:
			c.what = "nested lists"
		default:
			if id == arrow.BOOL || id == arrow.FLOAT32 || id == arrow.FLOAT64 || arrow.IsInteger(id) {
				c.kind = dtype.ByName(of.Name())
			}
		}
		columns, paths = append(columns, c), append(paths, to)
	}
	return columns, paths
}

// typedRows reads the rows of a Parquet or Arrow file. One record batch at a time is in memory.
type typedRows struct {
	columns []typedColumn
	// open begins to read the columns that are wanted.
	open    func(wanted []bool) (arrio.Reader, error)
	limit   *limit
	memory  *boundedMemory
	total   int64 // rows that the metadata states; -1 if it states none
	classes map[string][]string

	wanted  []bool
	batches arrio.Reader
	values  []typedValues // of the record batch, by column
	row     int           // the next one in the record batch
	rows    int           // of the record batch
	number  int           // rows of the file that were returned
	cells   []cell
}

// newTypedRows returns a reader of the columns of a schema. metadata is that of the key "huggingface".
func newTypedRows(schema *arrow.Schema, metadata string, l *limit) (*typedRows, error) {
	columns, _ := typedColumns(schema.Fields(), "", nil)
	if n := len(columns); n > maxFields {
		return nil, fmt.Errorf("%d columns, expected at most %d: remove unused columns: %w", n, maxFields, ErrFormat)
	}
	s := &typedRows{columns: columns, limit: l, total: -1,
		classes: namedClasses(metadata), cells: make([]cell, len(columns))}
	for i, c := range columns {
		if s.wanted = append(s.wanted, c.kind != nil); c.kind == nil {
			s.cells[i] = cell{scalar: scalar{otherCell, c.what}}
		}
	}
	return s, nil
}

// namedClasses returns the names of classes that Hugging Face's datasets write into the metadata, by column.
func namedClasses(metadata string) map[string][]string {
	var content struct {
		Info struct{ Features map[string]json.RawMessage }
	}
	classes := map[string][]string{}
	_ = json.Unmarshal([]byte(metadata), &content) // other metadata names no classes
	for column, raw := range content.Info.Features {
		var feature struct{ Names []string }
		if json.Unmarshal(raw, &feature) == nil && len(feature.Names) > 0 {
			classes[column] = feature.Names
		}
	}
	return classes
}

func (s *typedRows) flat() bool { return false }

func (s *typedRows) begin() (names []string, columns int, err error) {
	for _, c := range s.columns {
		if slices.Contains(names, c.name) {
			return nil, 0, fmt.Errorf("two columns have the name %q: rename one: %w", c.name, ErrFormat)
		}
		names = append(names, c.name)
	}
	return names, len(names), nil
}

func (s *typedRows) skip(names []string) {
	for i, c := range s.columns {
		s.wanted[i] = s.wanted[i] && !slices.Contains(names, c.name)
	}
}

func (s *typedRows) place(column int) (record int, name string) {
	return s.number - 1, strconv.Quote(s.columns[column].name)
}

func (s *typedRows) next() (cells []cell, err error) {
	defer func() {
		if s.memory.err != nil {
			err = s.memory.err
		}
	}()
	defer fault.Recovered(&err)
	for s.row == s.rows {
		if err := s.advance(); err != nil {
			return nil, err
		}
	}
	for i, c := range s.columns {
		if !s.wanted[i] {
			continue
		}
		if s.cells[i], err = s.values[i].cell(s.row); err == nil {
			err = s.limit.take(s.cells[i].bytes())
		}
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", c.name, err)
		}
	}
	s.row++
	s.number++
	return s.cells, nil
}

// advance reads the next record batch.
func (s *typedRows) advance() (err error) {
	if s.batches == nil {
		if s.batches, err = s.open(s.wanted); err != nil {
			return err
		}
	}
	batch, err := s.batches.Read()
	if err == io.EOF && s.total >= 0 && int64(s.number) != s.total {
		return fmt.Errorf("%d rows, and the metadata states %d: %w", s.number, s.total, ErrFormat)
	}
	if err != nil {
		return err
	}
	s.row, s.rows, s.values = 0, int(batch.NumRows()), make([]typedValues, len(s.columns))
	columns, paths := typedColumns(batch.Schema().Fields(), "", nil)
	for at, c := range columns {
		i := slices.Index(s.columns, c)
		if i < 0 || !s.wanted[i] {
			continue
		}
		if s.values[i], err = newTypedValues(c, batch, paths[at]); err != nil {
			return fmt.Errorf("column %q: %w", c.name, err)
		}
	}
	return nil
}

// typedValues are the values of a column in a record batch.
type typedValues struct {
	around   []arrow.Array   // the structs that the column is in
	rows     arrow.Array     // one element per row
	list     arrays.ListLike // nil if each row has one value
	elements arrow.Array     // the values, or their categories
	texts    arrow.Array     // the texts or bools, also of categories
	numbers  vector          // nil for texts and bools
	date     bool
}

func newTypedValues(c typedColumn, batch arrow.RecordBatch, path []int) (v typedValues, err error) {
	v.rows, v.date = batch.Column(path[0]), c.date
	for _, field := range path[1:] {
		v.around = append(v.around, v.rows)
		v.rows = v.rows.(*arrays.Struct).Field(field)
	}
	if v.elements = v.rows; c.list {
		v.list = v.rows.(arrays.ListLike)
		v.elements = v.list.ListValues()
	}
	v.texts = v.elements
	categories, isCategory := v.elements.(*arrays.Dictionary)
	if isCategory {
		v.texts = categories.Dictionary()
	}
	for _, values := range []arrow.Array{v.rows, v.elements, v.texts} {
		if bits := bitsOf(values) + bitsOf(v.elements); values.Len() > bits {
			return v, fmt.Errorf("%d values, more than fit in its %d bits: %w", values.Len(), bits, ErrFormat)
		}
	}
	if c.kind.Kind >= dtype.BoolKind || v.texts.Len() == 0 {
		return v, nil
	}
	first, n := v.texts.Data().Offset(), v.texts.Len()
	raw := v.texts.Data().Buffers()[1].Bytes()[first*c.kind.Size : (first+n)*c.kind.Size]
	v.numbers = makeVector(c.kind, n)
	copy(bytesOf(v.numbers, 0, n), raw)
	if isCategory {
		all := makeVector(c.kind, categories.Len())
		for i := range categories.Len() {
			if at := categories.GetValueIndex(i); categories.IsValid(i) {
				_ = v.numbers.copyTo(all, i, at, at+1) // copying in memory cannot fail
			}
		}
		v.numbers = all
	}
	return v, nil
}

// bitsOf returns the size of the buffers of an array. Each value takes at least one bit of them.
func bitsOf(values arrow.Array) (bits int) {
	for _, b := range values.Data().Buffers() {
		if b != nil {
			bits += 8 * b.Len()
		}
	}
	return bits
}

// cell returns the cell of a row.
func (v *typedValues) cell(row int) (cell, error) {
	isNull := func(a arrow.Array) bool { return a.IsNull(row) }
	switch {
	case v.rows.IsNull(row) || slices.ContainsFunc(v.around, isNull):
		return cell{scalar: scalar{kind: nullCell}}, nil
	case v.list == nil:
		return v.element(row), nil
	}
	from, to := v.list.ValueOffsets(row)
	if from < 0 || to < from || to > int64(v.elements.Len()) {
		return cell{}, fmt.Errorf("a list of the values %d to %d of %d: %w", from, to, v.elements.Len(), ErrFormat)
	}
	list := cell{scalar: scalar{kind: listCell}, shape: []int{int(to - from)}, values: v.numbers, at: int(from)}
	for i := int(from); i < int(to); i++ {
		item := v.element(i)
		if item.kind == nullCell {
			return cell{}, fmt.Errorf("a null in a list: fill it in, or leave the column out: %w", ErrFormat)
		}
		if v.numbers == nil {
			list.items = append(list.items, item.scalar)
		}
	}
	return list, nil
}

// element returns a single value.
func (v *typedValues) element(i int) cell {
	at := i
	if categories, ok := v.elements.(*arrays.Dictionary); ok && v.elements.IsValid(i) {
		at = categories.GetValueIndex(i)
	}
	if v.elements.IsNull(i) || v.texts.IsNull(at) {
		return cell{scalar: scalar{kind: nullCell}}
	}
	if v.numbers != nil {
		return cell{scalar: scalar{kind: numberCell}, values: v.numbers, at: i}
	}
	kind, text := textCell, ""
	if v.date {
		kind = dateCell
	}
	switch values := v.texts.(type) {
	case interface{ Value(int) string }:
		text = strings.Clone(values.Value(at))
	case interface{ Value(int) []byte }:
		text = string(values.Value(at))
	case *arrays.Boolean:
		kind, text = boolCell, strconv.FormatBool(values.Value(at))
	case *arrays.Date32:
		text = values.Value(at).ToTime().Format(time.DateOnly)
	case *arrays.Date64:
		text = values.Value(at).ToTime().Format(time.DateOnly)
	case *arrays.Timestamp:
		text = values.Value(at).ToTime(values.DataType().(*arrow.TimestampType).Unit).UTC().Format(tableTime)
	}
	return cell{scalar: scalar{kind, text}}
}

// bytes returns the approximate size of the values in memory.
func (c *cell) bytes() int64 {
	n := int64(len(c.text))
	for _, item := range c.items {
		n += 16 + int64(len(item.text))
	}
	if c.values != nil && c.shape != nil {
		return int64(c.shape[0] * c.values.kind().Size)
	}
	return 16 + n
}

// boundedMemory is the memory that the Arrow library uses for the values of a file.
type boundedMemory struct {
	memory.GoAllocator
	most int64
	used atomic.Int64 // the library also frees memory in finalizers
	err  error        // why the library stopped; nil as long as used is at most most
}

func newBoundedMemory(l *limit) *boundedMemory {
	if l == nil {
		return &boundedMemory{most: math.MaxInt64}
	}
	return &boundedMemory{most: l.max}
}

// take counts n bytes. It panics if they exceed the limit, since the library expects that an allocation succeeds.
func (m *boundedMemory) take(n int) {
	if used := m.used.Add(int64(n)); used > m.most {
		m.err = cmp.Or(m.err, option.Errorf("%w: values of %d bytes or more are needed at a time when decompressed, and the "+
			"limit is %d; write smaller record batches or pages, or raise {Options.MaxBytes} if the data is meant to be that "+
			"large", ErrTooLarge, used, m.most))
		panic(m.err) //nolint:forbidigo // The library has no error for an allocation; the reader recovers.
	}
}

// Allocate implements memory.Allocator.
func (m *boundedMemory) Allocate(size int) []byte {
	m.take(size)
	return m.GoAllocator.Allocate(size)
}

// Reallocate implements memory.Allocator.
func (m *boundedMemory) Reallocate(size int, b []byte) []byte {
	m.take(size - len(b))
	return m.GoAllocator.Reallocate(size, b)
}

// Free implements memory.Allocator.
func (m *boundedMemory) Free(b []byte) { m.used.Add(-int64(len(b))) }
