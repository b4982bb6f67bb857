package data

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"steadyfit/internal/dtype"
)

// typedColumn is a column of a Parquet or Arrow file.
type typedColumn struct {
	name string
	kind *dtype.Type // nil if its values are not read
	list bool
	date bool   // whether its values are the texts of dates or times, which only rules read
	what string // the type in messages
}

// typedChunk has the values of a column in consecutive rows. The values of row i end at the index ends[i]. A
// row without values is null, or an empty list.
type typedChunk struct {
	values vector
	ends   []int
}

// typedFile reads the columns of a file. next returns the values of the wanted columns in the next rows, or
// io.EOF. They are valid until the next call.
type typedFile interface {
	next(wanted []bool) (chunks []typedChunk, rows int, err error)
}

// typedRows reads the rows of a file with typed columns.
type typedRows struct {
	file   typedFile
	of     []typedColumn
	wanted []bool
	chunks []typedChunk
	row    int // the next one in chunks
	rows   int // in chunks
	number int // rows of the file that were returned
	cells  []cell
	// classes are the names of classes that Hugging Face's datasets write into the metadata, by column.
	classes map[string][]string
}

// namedClasses returns the names of classes in the metadata "huggingface" of a schema, by column.
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

func newTypedRows(file typedFile, of []typedColumn) *typedRows {
	s := &typedRows{file: file, of: of, cells: make([]cell, len(of)), wanted: slices.Repeat([]bool{true}, len(of))}
	for i, c := range of {
		if c.kind == nil {
			s.wanted[i] = false
			s.cells[i] = cell{scalar: scalar{otherCell, c.what}}
		}
	}
	return s
}

func (s *typedRows) flat() bool { return false }

func (s *typedRows) begin() (names []string, columns int, err error) {
	for _, c := range s.of {
		if slices.Contains(names, c.name) {
			return nil, 0, fmt.Errorf("two columns have the name %q: rename one: %w", c.name, ErrFormat)
		}
		names = append(names, c.name)
	}
	return names, len(names), nil
}

func (s *typedRows) skip(names []string) {
	for i, c := range s.of {
		s.wanted[i] = s.wanted[i] && !slices.Contains(names, c.name)
	}
}

func (s *typedRows) place(column int) (record int, name string) {
	return s.number - 1, strconv.Quote(s.of[column].name)
}

func (s *typedRows) next() ([]cell, error) {
	for s.row == s.rows {
		var err error
		s.row = 0
		if s.chunks, s.rows, err = s.file.next(s.wanted); err != nil {
			return nil, err
		}
	}
	for i, c := range s.of {
		if s.wanted[i] {
			s.cells[i] = c.cell(s.chunks[i], s.row)
		}
	}
	s.row++
	s.number++
	return s.cells, nil
}

// cell returns the cell of a row of a chunk.
func (c typedColumn) cell(chunk typedChunk, row int) cell {
	from, to := 0, chunk.ends[row]
	if row > 0 {
		from = chunk.ends[row-1]
	}
	isNumber := c.kind.Kind < dtype.BoolKind
	switch {
	case !c.list && from == to:
		return cell{scalar: scalar{kind: nullCell}}
	case !c.list && isNumber:
		return cell{scalar: scalar{kind: numberCell}, values: chunk.values, at: from}
	case !c.list:
		return cell{scalar: c.scalar(chunk.values, from)}
	case isNumber:
		return cell{scalar: scalar{kind: listCell}, shape: []int{to - from}, values: chunk.values, at: from}
	}
	list := cell{scalar: scalar{kind: listCell}, shape: []int{to - from}}
	for i := from; i < to; i++ {
		list.items = append(list.items, c.scalar(chunk.values, i))
	}
	return list
}

// scalar returns a text, a date or a bool.
func (c typedColumn) scalar(values vector, at int) scalar {
	switch v := values.(type) {
	case vec[bool]:
		return scalar{boolCell, strconv.FormatBool(v[at])}
	case vec[string]:
		if c.date {
			return scalar{dateCell, v[at]}
		}
		return scalar{textCell, v[at]}
	}
	return scalar{kind: nullCell}
}

// nullInList returns the error for a null in a list of the column.
func (c typedColumn) nullInList() error {
	return fmt.Errorf("column %q has a null in a list: fill it in, or leave the column out: %w", c.name, ErrFormat)
}
