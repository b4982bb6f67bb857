package data

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/arrio"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"steadyfit/data/internal/fault"
	"steadyfit/option"
)

const (
	parquetMagic = "PAR1"
	// parquetRows is the number of rows that are read at a time.
	parquetRows = 256
	// metadataRatio is the approximate memory for a byte of the metadata of a Parquet file.
	metadataRatio = 50
)

// openParquet opens a file of size bytes. One page of each column at a time is in memory. The limit applies to
// the sizes of pages that their headers state.
func openParquet(r io.ReaderAt, size int64, l *limit) (rows *typedRows, err error) {
	defer fault.Recovered(&err)
	at, err := footerOf(r, size, "a Parquet file", parquetMagic)
	if err != nil {
		return nil, err
	}
	values := newBoundedMemory(l)
	most := min(math.MaxInt32, values.most)
	if size-at > most/metadataRatio {
		return nil, option.Errorf("%w: its metadata has %d bytes, expected at most %d; write fewer and larger row groups, "+
			"or raise {Options.MaxBytes} if the data is meant to be that large", ErrTooLarge, size-at, most/metadataRatio)
	}
	properties := parquet.NewReaderProperties(values)
	properties.BufferedStreamEnabled = true // otherwise all pages of a column would be in memory
	properties.MaxCompressedPageSize, properties.MaxUncompressedPageSize = size, most
	f, err := file.NewParquetReader(io.NewSectionReader(r, 0, size), file.WithReadProps(properties))
	if err != nil {
		return nil, err
	}
	reader, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{BatchSize: parquetRows}, values)
	if err != nil {
		return nil, err
	}
	schema, err := reader.Schema()
	if err != nil {
		return nil, err
	}
	metadata := ""
	if text := f.MetaData().KeyValueMetadata().FindValue("huggingface"); text != nil {
		metadata = *text
	}
	if rows, err = newTypedRows(schema, metadata, l); err != nil {
		return nil, err
	}
	rows.memory, rows.total = values, f.NumRows()
	rows.open = func(wanted []bool) (arrio.Reader, error) {
		var leaves []int
		for i := range f.MetaData().Schema.NumColumns() {
			leaf := f.MetaData().Schema.Column(i).Path()
			for at, c := range rows.columns {
				if wanted[at] && strings.HasPrefix(leaf+".", c.name+".") {
					leaves = append(leaves, i)
					break
				}
			}
		}
		return openLeaves(reader, leaves)
	}
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

// bytesIn returns the size of values in memory.
func bytesIn(v vector) (size int64) {
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
