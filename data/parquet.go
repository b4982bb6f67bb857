package data

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/arrio"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"steadyfit/data/internal/fault"
)

// parquetRows is the number of rows that are read at a time.
const parquetRows = 256

// openParquet opens a file of size bytes. One page of each column at a time is in memory.
func openParquet(r io.ReaderAt, size int64) (rows *typedRows, err error) {
	defer fault.Recovered(&err)
	properties := parquet.NewReaderProperties(nil)
	properties.BufferedStreamEnabled = true // otherwise all pages of a column would be in memory
	properties.MaxCompressedPageSize, properties.MaxUncompressedPageSize = size, min(math.MaxInt32, fewBytes+50*size)
	f, err := file.NewParquetReader(io.NewSectionReader(r, 0, size), file.WithReadProps(properties))
	if err != nil {
		return nil, err
	}
	reader, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{BatchSize: parquetRows}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	schema, err := reader.Schema()
	if err != nil {
		return nil, err
	}
	columns := f.MetaData().Schema
	rows = newTypedRows(schema, func(wanted []bool) (arrio.Reader, error) {
		var leaves []int
		for i := range columns.NumColumns() {
			leaf := columns.Column(i).Path() + "."
			isLeaf := func(c typedColumn) bool { return strings.HasPrefix(leaf, c.name+".") }
			if at := slices.IndexFunc(rows.columns, isLeaf); at >= 0 && wanted[at] {
				leaves = append(leaves, i)
			}
		}
		return openLeaves(reader, leaves)
	})
	return rows, nil
}

// openLeaves begins to read columns of a Parquet file.
func openLeaves(reader *pqarrow.FileReader, leaves []int) (arrio.Reader, error) {
	f, groups := reader.ParquetReader(), []int{}
	for i := range f.NumRowGroups() {
		if f.RowGroup(i).NumRows() > 0 { // writers state odd offsets for the columns of empty ones
			groups = append(groups, i)
		}
	}
	switch {
	case len(groups) == 0:
		return nil, io.EOF
	case len(leaves) == 0:
		return nil, fmt.Errorf("it has no column with values to read: %w", ErrField)
	}
	for _, leaf := range leaves {
		// The library does this again in goroutines, whose panics would end the process.
		if _, err := f.RowGroup(groups[0]).GetColumnPageReader(leaf); err != nil {
			return nil, err
		}
	}
	return reader.GetRecordReader(context.Background(), leaves, groups)
}
