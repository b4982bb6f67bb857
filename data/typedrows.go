package data

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/arrio"

	"steadyfit/data/internal/fault"
	"steadyfit/internal/dtype"
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
		categories, isCategory := of.(*arrow.DictionaryType)
		if isCategory {
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
			if isCategory && c.list {
				c.what = "lists of categories"
			} else if id == arrow.BOOL || id == arrow.FLOAT32 || id == arrow.FLOAT64 || arrow.IsInteger(id) {
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
	open func(wanted []bool) (arrio.Reader, error)

	wanted  []bool
	batches arrio.Reader
	values  []typedValues // of the record batch, by column
	row     int           // the next one in the record batch
	rows    int           // of the record batch
	number  int           // rows of the file that were returned
	cells   []cell
}

// newTypedRows returns a reader of the columns of a schema.
func newTypedRows(schema *arrow.Schema, open func(wanted []bool) (arrio.Reader, error)) *typedRows {
	columns, _ := typedColumns(schema.Fields(), "", nil)
	s := &typedRows{columns: columns, open: open, cells: make([]cell, len(columns))}
	for i, c := range columns {
		if s.wanted = append(s.wanted, c.kind != nil); c.kind == nil {
			s.cells[i] = cell{scalar: scalar{otherCell, c.what}}
		}
	}
	return s
}

func (s *typedRows) flat() bool { return false }

func (s *typedRows) begin() (names []string, columns int, err error) {
	for _, c := range s.columns {
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
		if s.cells[i], err = s.values[i].cell(s.row); err != nil {
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
	if err != nil {
		return err
	}
	s.row, s.rows, s.values = 0, int(batch.NumRows()), make([]typedValues, len(s.columns))
	columns, paths := typedColumns(batch.Schema().Fields(), "", nil)
	for at, c := range columns {
		i := slices.Index(s.columns, c)
		if i >= 0 && s.wanted[i] {
			s.values[i] = newTypedValues(c, batch, paths[at])
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

func newTypedValues(c typedColumn, batch arrow.RecordBatch, path []int) (v typedValues) {
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
	if categories, ok := v.elements.(*arrays.Dictionary); ok {
		v.texts = categories.Dictionary()
	}
	if c.kind.Kind >= dtype.BoolKind || v.texts.Len() == 0 {
		return v
	}
	first, n := v.texts.Data().Offset(), v.texts.Len()
	raw := v.texts.Data().Buffers()[1].Bytes()[first*c.kind.Size : (first+n)*c.kind.Size]
	v.numbers = makeVector(c.kind, n)
	copy(bytesOf(v.numbers, 0, n), raw)
	return v
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
		return cell{scalar: scalar{kind: numberCell}, values: v.numbers, at: at}
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
