package data

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"steadyfit/data/internal/fault"
	"steadyfit/internal/dtype"
	"steadyfit/option"
)

const (
	anArrowFile    = "an Arrow file"
	arrowMagic     = "ARROW1"
	arrowContinues = "\xff\xff\xff\xff" // begins each message
	arrowEnd       = arrowContinues + "\x00\x00\x00\x00"
	// maxArrowHeader is the maximum size of the header of a message in bytes.
	maxArrowHeader = 64 << 20
)

// arrowBatches reads the record batches of an Arrow IPC file, which is also version 2 of Feather, or of an IPC
// stream. The dictionaries and one record batch at a time are in memory.
type arrowBatches struct {
	batches *ipc.Reader
	of      []typedColumn
	paths   [][]int // the indexes of each column and of the struct fields that lead to it
	limit   *limit
	memory  *boundedMemory
}

// openArrow opens a file of size bytes.
func openArrow(r io.ReaderAt, size int64, l *limit) (rows *typedRows, err error) {
	messages, err := arrowMessages(r, size)
	if err != nil {
		return nil, err
	}
	defer fault.Recovered(&err)
	if err := checkArrowSchema(messages); err != nil {
		return nil, err
	}
	f := &arrowBatches{limit: l, memory: &boundedMemory{most: math.MaxInt64}}
	if l != nil {
		f.memory.most = l.max
	}
	options := []ipc.Option{
		ipc.WithAllocator(f.memory),
		ipc.WithMetadataSizeLimit(min(maxArrowHeader, size)),
		ipc.WithBodySizeLimit(size),
	}
	source := ipc.NewMessageReader(bufio.NewReaderSize(messages, 1<<20), options...)
	if f.batches, err = ipc.NewReaderFromMessageReader(source, options...); err != nil {
		return nil, err
	}
	fields := f.batches.Schema().Fields()
	if n := len(fields); n > maxFields {
		return nil, fmt.Errorf("%d columns, expected at most %d: remove unused columns: %w", n, maxFields, ErrFormat)
	}
	f.addColumns(fields, "", nil)
	text, _ := f.batches.Schema().Metadata().GetValue("huggingface") // "" if there is none
	rows = newTypedRows(f, f.of)
	rows.classes = namedClasses(text)
	return rows, nil
}

func (f *arrowBatches) next(wanted []bool) (chunks []typedChunk, rows int, err error) {
	defer func() {
		if f.memory.err != nil {
			err = f.memory.err
		}
	}()
	defer fault.Recovered(&err)
	batch, err := f.batches.Read()
	if err != nil {
		return nil, 0, err
	}
	chunks = make([]typedChunk, len(f.of))
	for i, c := range f.of {
		if !wanted[i] {
			continue
		}
		if chunks[i], err = f.chunk(c, batch, f.paths[i]); err == nil {
			err = f.limit.take(bytesIn(chunks[i].values))
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return chunks, int(batch.NumRows()), nil
}

// chunk returns the values of a column in a record batch.
func (f *arrowBatches) chunk(c typedColumn, batch arrow.RecordBatch, path []int) (typedChunk, error) {
	values, parents := batch.Column(path[0]), []arrow.Array(nil)
	for _, field := range path[1:] {
		parents = append(parents, values)
		values = values.(*arrays.Struct).Field(field)
	}
	elements, list := values, arrays.ListLike(nil)
	if c.list {
		list = values.(arrays.ListLike)
		elements = list.ListValues()
	}
	if values.Len() > bitsOf(values)+bitsOf(elements) || c.list && elements.Len() > bitsOf(elements) {
		return typedChunk{}, fmt.Errorf("column %q: more values than fit in its %d bits: %w", c.name,
			bitsOf(elements), ErrFormat)
	}
	var at, ends []int // the elements that are values
	for row := range values.Len() {
		isNull := func(a arrow.Array) bool { return a.IsNull(row) }
		switch {
		case values.IsNull(row) || slices.ContainsFunc(parents, isNull):
		case c.list:
			from, to := list.ValueOffsets(row)
			if from < 0 || to < from || to > int64(elements.Len()) {
				return typedChunk{}, fmt.Errorf("column %q: a list of the values %d to %d of %d: %w", c.name, from, to,
					elements.Len(), ErrFormat)
			}
			for i := int(from); i < int(to); i++ {
				if elements.IsNull(i) {
					return typedChunk{}, c.nullInList()
				}
				at = append(at, i)
			}
		default:
			at = append(at, row)
		}
		ends = append(ends, len(at))
	}
	if categories, ok := elements.(*arrays.Dictionary); ok {
		elements = categories.Dictionary()
		for i := range at {
			at[i] = categories.GetValueIndex(at[i])
		}
		if slices.ContainsFunc(at, elements.IsNull) {
			return typedChunk{}, fmt.Errorf("column %q has a null in its categories: %w", c.name, ErrFormat)
		}
	}
	return typedChunk{arrowVector(elements, at, c.kind), ends}, nil
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

// arrowVector returns the elements of an array with the indexes in at.
func arrowVector(from arrow.Array, at []int, kind *dtype.Type) vector {
	values := makeVector(kind, len(at))
	switch to := values.(type) {
	case vec[string]:
		for i, from := 0, arrowTexts(from); i < len(at); i++ {
			to[i] = from(at[i])
		}
	case vec[bool]:
		for i := range at {
			to[i] = from.(*arrays.Boolean).Value(at[i])
		}
	default:
		raw, size := bytesOf(values, 0, len(at)), kind.Size
		data, first := from.Data().Buffers()[1].Bytes(), from.Data().Offset()
		for i := range at {
			copy(raw[i*size:(i+1)*size], data[(first+at[i])*size:(first+at[i]+1)*size])
		}
	}
	return values
}

// arrowTexts returns a function that copies the texts of an array. Dates and times become texts, too.
func arrowTexts(values arrow.Array) func(i int) string {
	switch v := values.(type) {
	case interface{ Value(int) string }:
		return func(i int) string { return strings.Clone(v.Value(i)) }
	case interface{ Value(int) []byte }:
		return func(i int) string { return string(v.Value(i)) }
	case *arrays.Date32:
		return func(i int) string { return v.Value(i).ToTime().Format(time.DateOnly) }
	case *arrays.Date64:
		return func(i int) string { return v.Value(i).ToTime().Format(time.DateOnly) }
	}
	v := values.(*arrays.Timestamp)
	unit := v.DataType().(*arrow.TimestampType).Unit
	return func(i int) string { return v.Value(i).ToTime(unit).UTC().Format(tableTime) }
}

// arrowMessages returns the messages of a file or a stream. A file is a stream between a magic and a
// footer.
func arrowMessages(r io.ReaderAt, size int64) (*io.SectionReader, error) {
	var head, end [8]byte
	if size < int64(len(head)) {
		return nil, tooShort(size, anArrowFile)
	}
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return nil, fault.Read(err)
	}
	from, to := int64(0), size
	switch begin := string(head[:]); {
	case strings.HasPrefix(begin, arrowContinues):
		if _, err := r.ReadAt(end[:], size-int64(len(end))); err != nil {
			return nil, fault.Read(err)
		}
		if string(end[:]) != arrowEnd {
			return nil, fmt.Errorf("truncated: the stream has no mark of its end; %s: %w", interrupted, ErrFormat)
		}
	case strings.HasPrefix(begin, "FEA1"):
		return nil, fmt.Errorf("version 1 of Feather is %w; write the file with version 2", ErrUnsupported)
	case !strings.HasPrefix(begin, arrowMagic):
		return nil, fmt.Errorf("no Arrow file or stream: it begins with %q: %w", begin, ErrFormat)
	default:
		var err error
		if to, err = footerOf(r, size, anArrowFile, arrowMagic); err != nil {
			return nil, err
		}
		for from = 8; from < 64; from += 8 { // writers may fill the first 64 bytes
			if _, err := r.ReadAt(head[:], from); err != nil {
				return nil, fault.Read(err)
			}
			if head != [8]byte{} {
				break
			}
		}
	}
	return io.NewSectionReader(r, from, max(0, to-from)), nil
}

// addColumns adds a column for each of the fields that is not a struct, including the fields of structs. The
// path of a column starts with the given path.
func (f *arrowBatches) addColumns(fields []arrow.Field, parent string, path []int) {
	for i, field := range fields {
		name, to := parent+field.Name, append(slices.Clone(path), i)
		if parts, ok := field.Type.(*arrow.StructType); ok {
			f.addColumns(parts.Fields(), name+".", to)
			continue
		}
		c, of := typedColumn{name: name}, field.Type
		if list, ok := of.(arrow.ListLikeType); ok {
			c.list, of = true, list.Elem()
		}
		if categories, ok := of.(*arrow.DictionaryType); ok {
			of = categories.ValueType
		}
		c.what, c.kind = of.Name(), arrowKind(of)
		if _, nested := of.(arrow.ListLikeType); nested {
			c.what = "nested lists"
		}
		if id := of.ID(); !c.list && (id == arrow.DATE32 || id == arrow.DATE64 || id == arrow.TIMESTAMP) {
			c.what, c.date, c.kind = "a date or time", true, dtype.For[string]()
		}
		f.of, f.paths = append(f.of, c), append(f.paths, to)
	}
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

// boundedMemory is the memory that the Arrow library uses for the values of a file.
type boundedMemory struct {
	memory.GoAllocator
	most int64
	used int64
	err  error // why the library stopped; nil as long as used is at most most
}

// take counts n bytes. It panics if they exceed the limit, since the library expects that an allocation
// succeeds.
func (m *boundedMemory) take(n int) {
	if m.used += int64(n); m.used > m.most {
		m.err = option.Errorf("%w: a record batch has %d bytes or more when decompressed, and the limit is %d; write "+
			"smaller record batches, or raise {Options.MaxBytes} if the data is meant to be that large",
			ErrTooLarge, m.used, m.most)
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
func (m *boundedMemory) Free(b []byte) { m.used -= int64(len(b)) }
