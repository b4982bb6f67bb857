package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"steadyfit/internal/dtype"
)

// arrowRows reads Arrow IPC files, which are also version 2 of Feather, and IPC streams. The dictionaries
// and one record batch at a time are in memory.
type arrowRows struct {
	tableRows
	paths [][]int // by column: the indexes of the column and of the struct fields that lead to the values
	raw   []byte  // the encoded row; its memory is reused
}

var arrowFormat = &arrowRows{}

func (*arrowRows) name() string { return "Arrow" }

func (*arrowRows) begins(head []byte) bool {
	return strings.HasPrefix(string(head), arrowMagic) || strings.HasPrefix(string(head), arrowContinues)
}

func (*arrowRows) fresh(rows tableRows) recordFormat {
	return &arrowRows{tableRows: rows}
}

// rows implements tableFormat.
func (a *arrowRows) rows(r io.ReaderAt, size int64, each func([]byte) error) (err error) {
	defer recovered(&err)
	messages, err := openArrow(r, size, a.limit)
	if err != nil {
		return err
	}
	defer messages.close()
	batches, err := ipc.NewReaderFromMessageReader(messages)
	if err != nil {
		return messages.failed(err)
	}
	defer batches.Release()
	var columns []tableColumn
	columns, a.paths = arrowColumns(batches.Schema().Fields(), "", nil)
	if err := a.use(columns); err != nil {
		return err
	}
	for {
		batch, err := batches.Read()
		if err == io.EOF {
			return messages.complete()
		}
		if err != nil {
			return messages.failed(err)
		}
		if err := a.batch(batch, each); err != nil {
			return err
		}
	}
}

// arrowColumns returns a column for each of the fields that is not a struct, including the fields of
// structs, and the paths of the columns (arrowRows.paths).
func arrowColumns(fields []arrow.Field, parent string, path []int) (columns []tableColumn, paths [][]int) {
	for i, field := range fields {
		name, to := parent+field.Name, append(slices.Clone(path), i)
		if parts, ok := field.Type.(*arrow.StructType); ok {
			more, at := arrowColumns(parts.Fields(), name+".", to)
			columns, paths = append(columns, more...), append(paths, at...)
			continue
		}
		c, of := tableColumn{name: name}, field.Type
		if list, ok := of.(arrow.ListLikeType); ok {
			c.list, of = true, list.Elem()
		}
		if categories, ok := of.(*arrow.DictionaryType); ok {
			of = categories.ValueType
		}
		if c.kind = arrowKind(of); c.kind == nil {
			what, date := of.Name(), of.ID() == arrow.DATE32 || of.ID() == arrow.DATE64 || of.ID() == arrow.TIMESTAMP
			if _, nested := of.(arrow.ListLikeType); nested {
				what = "nested lists"
			}
			c = c.without(what, date && !c.list)
		}
		columns, paths = append(columns, c), append(paths, to)
	}
	return columns, paths
}

// arrowKind returns the element type of values; nil if the type is not supported.
func arrowKind(t arrow.DataType) *dtype.Type {
	switch id := t.ID(); id {
	case arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW, arrow.BINARY, arrow.LARGE_BINARY, arrow.BINARY_VIEW:
		return dtype.For[string]()
	default:
		if id == arrow.BOOL || id == arrow.FLOAT32 || id == arrow.FLOAT64 || arrow.IsInteger(id) {
			return dtype.ByName(t.Name())
		}
	}
	return nil
}

// arrowValues has the values of a column in a record batch.
type arrowValues struct {
	arrow.Array
	parents []arrow.Array // the structs that contain Array
}

// batch calls each for the rows of a record batch.
func (a *arrowRows) batch(batch arrow.RecordBatch, each func([]byte) error) (err error) {
	columns := make([]arrowValues, len(a.paths))
	for i, path := range a.paths {
		v := arrowValues{Array: batch.Column(path[0])}
		for _, field := range path[1:] {
			v.parents = append(v.parents, v.Array)
			v.Array = v.Array.(*arrays.Struct).Field(field)
		}
		columns[i] = v
		a.keepDictionary(a.columns[i].name, v.Array)
	}
	for row := range int(batch.NumRows()) {
		a.raw = a.raw[:0]
		for i, c := range a.columns {
			if a.raw, err = a.encode(a.raw, c, columns[i], row); err != nil {
				return err
			}
		}
		if err := each(a.raw); err != nil {
			return err
		}
	}
	return nil
}

// keepDictionary keeps the categories of a column in their order, for InferSchema, if the column is an
// ordered category.
func (a *arrowRows) keepDictionary(column string, values arrow.Array) {
	categories, ok := values.(*arrays.Dictionary)
	if !ok || !a.options.Schema.allTexts() || !categories.DataType().(*arrow.DictionaryType).Ordered {
		return
	}
	values = categories.Dictionary()
	if values.Len() > maxCategories {
		return
	}
	texts := make([]string, values.Len())
	for i := range texts {
		texts[i] = strings.Clone(values.ValueStr(i))
	}
	a.keepOrder(column, texts)
}

// encode appends the value of a column in a row to raw.
func (a *arrowRows) encode(raw []byte, c tableColumn, v arrowValues, row int) ([]byte, error) {
	if c.omit || v.null(row) {
		return append(raw, 0), nil
	}
	values, from, to := v.Array, row, row+1
	if c.list {
		list := v.Array.(arrays.ListLike)
		start, end := list.ValueOffsets(row)
		values = list.ListValues()
		if start < 0 || end < start || end > int64(values.Len()) {
			return raw, fmt.Errorf("column %q: a list of the values %d to %d of %d: %w", c.name, start, end, values.Len(), ErrFormat)
		}
		from, to = int(start), int(end)
	}
	raw = binary.AppendUvarint(raw, uint64(to-from))
	if _, categories := values.(*arrays.Dictionary); !categories && c.kind.Kind < dtype.Bool && values.NullN() == 0 {
		raw = appendNumbers(raw, values, from, to, c.kind.Size)
		return raw, a.checkRow(len(raw))
	}
	for ; from < to; from++ {
		value, at := ofDictionary(values, from)
		if value.IsNull(at) {
			return raw, c.null()
		}
		raw = appendArrow(raw, value, at, c.kind.Size)
		if err := a.checkRow(len(raw)); err != nil {
			return raw, err
		}
	}
	return raw, nil
}

func (v arrowValues) null(row int) bool {
	value, at := ofDictionary(v.Array, row)
	return v.IsNull(row) || value.IsNull(at) || slices.ContainsFunc(v.parents, func(s arrow.Array) bool { return s.IsNull(row) })
}

// ofDictionary returns the dictionary to which element i of values refers, and the index in the
// dictionary. It returns values and i unchanged if values is not a dictionary or the element is null.
func ofDictionary(values arrow.Array, i int) (arrow.Array, int) {
	if categories, ok := values.(*arrays.Dictionary); ok && values.IsValid(i) {
		return categories.Dictionary(), categories.GetValueIndex(i)
	}
	return values, i
}

// appendNumbers appends the numbers with indices in [from, to). Arrow and the temporary file have
// the same byte order.
func appendNumbers(raw []byte, values arrow.Array, from, to, size int) []byte {
	if from == to {
		return raw
	}
	first := values.Data().Offset()
	return append(raw, values.Data().Buffers()[1].Bytes()[(first+from)*size:(first+to)*size]...)
}

func appendArrow(raw []byte, values arrow.Array, i, size int) []byte {
	switch v := values.(type) {
	case *arrays.Boolean:
		if v.Value(i) {
			return append(raw, 1)
		}
		return append(raw, 0)
	case interface{ Value(int) string }:
		return appendString(raw, v.Value(i))
	case interface{ Value(int) []byte }:
		return appendString(raw, v.Value(i))
	case *arrays.Date32:
		return appendString(raw, v.Value(i).ToTime().Format(time.DateOnly))
	case *arrays.Date64:
		return appendString(raw, v.Value(i).ToTime().Format(time.DateOnly))
	case *arrays.Timestamp:
		unit := v.DataType().(*arrow.TimestampType).Unit
		return appendString(raw, v.Value(i).ToTime(unit).UTC().Format(tableTime))
	}
	return appendNumbers(raw, values, i, i+1, size)
}
