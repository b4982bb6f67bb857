package data

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/bounded"
)

// parquetParts describes a Parquet file with one column, whose pages a test makes byte by byte.
type parquetParts struct {
	want     string // in the error
	kind     format.Type
	length   int32 // of values of fixed length
	repeated format.FieldRepetitionType
	pages    []parquetPart
	change   func(meta *format.FileMetaData, starts []int)
}

type parquetPart struct {
	header  format.PageHeader
	content []byte
	size    int    // when decompressed; 0 if it is not compressed
	raw     []byte // the encoded header, if header is not used
}

func (p parquetParts) file(t testing.TB) []byte {
	t.Helper()
	file := []byte(parquetMagic)
	var starts []int
	for _, page := range p.pages {
		starts = append(starts, len(file))
		header := page.raw
		if header == nil {
			page.header.UncompressedPageSize, page.header.CompressedPageSize = int32(cmp.Or(page.size, len(page.content))), int32(len(page.content))
			raw, err := thrift.Marshal(&thrift.CompactProtocol{}, &page.header)
			require.NoError(t, err)
			header = raw
		}
		file = slices.Concat(file, header, page.content)
	}
	column := format.ColumnMetaData{
		Type: p.kind, Encoding: []format.Encoding{format.Plain}, PathInSchema: []string{"x"},
		NumValues: 1, DataPageOffset: 4, TotalCompressedSize: int64(len(file) - 4),
	}
	meta := &format.FileMetaData{
		Version: 1,
		NumRows: 1,
		Schema: []format.SchemaElement{
			{Name: "root", NumChildren: thrift.New(int32(1))},
			{Name: "x", Type: thrift.New(p.kind), TypeLength: thrift.New(p.length), RepetitionType: thrift.New(p.repeated)},
		},
		RowGroups: []format.RowGroup{{NumRows: 1, Columns: []format.ColumnChunk{{MetaData: column}}}},
	}
	if p.change != nil {
		p.change(meta, starts)
	}
	footer, err := thrift.Marshal(&thrift.CompactProtocol{}, meta)
	require.NoError(t, err)
	return withFooter(file, footer)
}

func withFooter(file, footer []byte) []byte {
	file = append(bytes.Clone(file), footer...)
	return append(binary.LittleEndian.AppendUint32(file, uint32(len(footer))), parquetMagic...)
}

func dataPage(n int32, encoding format.Encoding, content ...[]byte) parquetPart {
	h := format.DataPageHeader{NumValues: n, Encoding: encoding, DefinitionLevelEncoding: format.RLE, RepetitionLevelEncoding: format.RLE}
	return parquetPart{header: format.PageHeader{Type: format.DataPage, DataPageHeader: thrift.New(h)}, content: slices.Concat(content...)}
}

func dataPage2(n, nulls int32, levels []byte, content ...[]byte) parquetPart {
	h := format.DataPageHeaderV2{NumValues: n, NumNulls: nulls, NumRows: n, DefinitionLevelsByteLength: int32(len(levels))}
	return parquetPart{header: format.PageHeader{Type: format.DataPageV2, DataPageHeaderV2: thrift.New(h)}, content: slices.Concat(levels, slices.Concat(content...))}
}

func dictionaryPage(n int32, content ...[]byte) parquetPart {
	h := format.DictionaryPageHeader{NumValues: n}
	return parquetPart{header: format.PageHeader{Type: format.DictionaryPage, DictionaryPageHeader: thrift.New(h)}, content: slices.Concat(content...)}
}

// runOf returns a run of n values of one byte.
func runOf(n uint64, value byte) []byte { return append(binary.AppendUvarint(nil, n<<1), value) }

func prefixedBy4(content []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(content))), content...)
}

// deltaHead returns the header of n numbers with the encoding DELTA_BINARY_PACKED.
func deltaHead(block, parts, n uint64) []byte {
	return append(binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(nil, block), parts), n), 0)
}

func deltas(t testing.TB, numbers []int32) []byte {
	t.Helper()
	raw, err := parquet.DeltaBinaryPacked.EncodeInt32(nil, numbers)
	require.NoError(t, err)
	return raw
}

const manyValues = math.MaxInt32

// schemaOf returns a Parquet file with a schema and row groups that have no columns.
func schemaOf(t testing.TB, schema []format.SchemaElement, groups int) []byte {
	t.Helper()
	footer, err := thrift.Marshal(&thrift.CompactProtocol{}, &format.FileMetaData{Schema: schema, RowGroups: make([]format.RowGroup, groups)})
	require.NoError(t, err)
	return withFooter([]byte(parquetMagic), footer)
}

type hostileFile struct {
	raw  []byte
	want string // in the error
}

// hostileParquet returns small files that the library would decode to gigabytes, or whose nesting
// would crash the process.
func hostileParquet(t testing.TB) map[string]hostileFile {
	t.Helper()
	text := prefixedBy4([]byte("a"))
	shared := slices.Repeat([]int32{1 << 16}, 60000)
	shared[0] = 0
	own := make([]int32, len(shared))
	own[0] = 1 << 16
	hidden := dataPage(1, format.DeltaLengthByteArray, deltaHead(128, 4, manyValues))
	hiddenPage := parquetParts{kind: format.ByteArray, pages: []parquetPart{hidden}}.file(t)
	hiddenPage = hiddenPage[4 : bytes.Index(hiddenPage, hidden.content)+len(hidden.content)]
	z, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, z.Close()) }()
	small := dataPage(1, format.Plain, z.EncodeAll(text, nil))
	small.size = len(text)
	asBoth := dataPage(1, format.Plain, text)
	asBoth.header.DictionaryPageHeader = thrift.New(format.DictionaryPageHeader{NumValues: manyValues})
	sparse := small.header
	sparse.UncompressedPageSize, sparse.CompressedPageSize = 4, math.MaxInt32
	sparseHeader, err := thrift.Marshal(&thrift.CompactProtocol{}, &sparse)
	require.NoError(t, err)
	longRow := dataPage(1<<20, format.Plain, prefixedBy4(runOf(1<<20, 1)), prefixedBy4(runOf(1<<20, 0)))
	deep := bytes.Repeat([]byte{0x19}, 4<<20) // a list of a list, and so on
	long := []byte{0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 7}
	var longPages, shrinking []parquetPart
	large := prefixedBy4(make([]byte, 2<<20))
	for i := range 64 {
		list := slices.Concat(prefixedBy4(runOf(1, byte(min(i, 1)))), prefixedBy4(runOf(1, 1)), large)
		longPages = append(longPages, dataPage(1, format.Plain, z.EncodeAll(list, nil)))
		longPages[i].size = len(list)
		texts := slices.Concat(bytes.Repeat(text, 63-i), large)
		shrinking = append(shrinking, dataPage(int32(64-i), format.Plain, z.EncodeAll(texts, nil)))
		shrinking[i].size = len(texts)
	}
	asZstd := func(meta *format.FileMetaData, _ []int) { meta.RowGroups[0].Columns[0].MetaData.Codec = format.Zstd }
	parent, leaf := format.SchemaElement{Name: "x", NumChildren: thrift.New(int32(1))}, format.SchemaElement{Name: "x", Type: thrift.New(format.Int32)}
	made := map[string]parquetParts{
		"levels":             {want: "runs with more values than the 1 that its header states", kind: format.Int32, repeated: format.Optional, pages: []parquetPart{dataPage(1, format.Plain, prefixedBy4(runOf(manyValues, 1)), []byte{1, 0, 0, 0})}},
		"levels of pages 2":  {want: "runs with more values than the 1 that its header states", kind: format.Int32, repeated: format.Optional, pages: []parquetPart{dataPage2(1, 0, runOf(manyValues, 1), []byte{1, 0, 0, 0})}},
		"indexes":            {want: "runs with more values than the 1 that its header states", kind: format.ByteArray, pages: []parquetPart{dictionaryPage(1, text), dataPage(1, format.RLEDictionary, []byte{1}, runOf(manyValues, 0))}},
		"packed indexes":     {want: "runs with more values than the 1 that its header states", kind: format.ByteArray, pages: []parquetPart{dictionaryPage(1, text), dataPage(1, oldDictionary, []byte{0}, binary.AppendUvarint(nil, manyValues|1))}},
		"runs of booleans":   {want: "runs with more values than the 1 that its header states", kind: format.Boolean, pages: []parquetPart{dataPage(1, format.RLE, prefixedBy4(runOf(manyValues, 1)))}},
		"runs of integers":   {want: "the encoding RLE of INT32 is not supported", kind: format.Int32, pages: []parquetPart{dataPage(1, format.RLE, binary.AppendUvarint(nil, manyValues<<1))}},
		"cut run":            {want: "a run of values that ends early", kind: format.ByteArray, pages: []parquetPart{dictionaryPage(1, text), dataPage(8, format.RLEDictionary, []byte{8, 3, 0, 0})}},
		"cut deltas":         {want: "delta encoding: a block that ends early", kind: format.Int32, pages: []parquetPart{dataPage(34, format.DeltaBinaryPacked, deltaHead(128, 4, 34), []byte{0, 4, 32, 0, 0}, make([]byte, 16+3))}},
		"delta numbers":      {want: "2147483647 numbers instead of 1", kind: format.Int64, pages: []parquetPart{dataPage(1, format.DeltaBinaryPacked, deltaHead(128, 4, manyValues))}},
		"delta widths":       {want: "numbers of 255 bits", kind: format.Int32, pages: []parquetPart{dataPage(2, format.DeltaBinaryPacked, deltaHead(128, 4, 2), []byte{0, 255, 0, 0, 0})}},
		"delta lengths":      {want: "2147483647 numbers instead of 1", kind: format.ByteArray, pages: []parquetPart{dataPage(1, format.DeltaLengthByteArray, deltaHead(128, 4, manyValues))}},
		"shared beginnings":  {want: "larger than allowed: values of 3932160000 bytes; write smaller pages", kind: format.ByteArray, pages: []parquetPart{dataPage(60000, format.DeltaByteArray, deltas(t, shared), deltas(t, own), make([]byte, 1<<16))}},
		"dictionary":         {want: "0 values, but its header and levels state 8388608", kind: format.Int64, pages: []parquetPart{dictionaryPage(8<<20, nil), dataPage(1, format.RLEDictionary, []byte{1}, runOf(1, 0))}},
		"texts":              {want: "1 values, but its header and levels state 8388608", kind: format.ByteArray, pages: []parquetPart{dataPage(8<<20, format.Plain, text)}},
		"fixed length":       {want: "0 values, but its header and levels state 1000", kind: format.FixedLenByteArray, length: 1 << 30, pages: []parquetPart{dataPage(1000, format.ByteStreamSplit, make([]byte, 1000))}},
		"nulls":              {want: "0 nulls, but its header states 7", kind: format.Int32, repeated: format.Optional, pages: []parquetPart{dataPage2(8, 7, runOf(8, 1), make([]byte, 32))}},
		"data as dictionary": {want: "the page at byte 40: no dictionary before it", kind: format.ByteArray, pages: []parquetPart{asBoth, dataPage(1, format.RLEDictionary, []byte{1}, runOf(1, 0))}},
		"data before dictionary": {
			want: "the page at byte 4: it is no dictionary", kind: format.ByteArray, pages: []parquetPart{asBoth, dictionaryPage(1, text), dataPage(1, format.RLEDictionary, []byte{1}, runOf(1, 0))},
			change: func(meta *format.FileMetaData, starts []int) {
				c := &meta.RowGroups[0].Columns[0].MetaData
				c.DictionaryPageOffset, c.DataPageOffset = c.DataPageOffset, int64(starts[2])
			},
		},
		"page in a page": {
			want: "no page begins at byte 21, where its data begins", kind: format.ByteArray, pages: []parquetPart{dictionaryPage(1, prefixedBy4(hiddenPage)), dataPage(1, format.RLEDictionary, []byte{1}, runOf(1, 0))},
			change: func(meta *format.FileMetaData, starts []int) {
				c := &meta.RowGroups[0].Columns[0].MetaData
				c.DictionaryPageOffset, c.DataPageOffset = c.DataPageOffset, int64(starts[1]-len(hiddenPage))
			},
		},
		"compressed size":        {want: "larger than allowed: it has 2147483647 bytes, 4 when decompressed, and 1 values", kind: format.Int32, pages: []parquetPart{{raw: sparseHeader}}},
		"long row of pages":      {want: "larger than allowed: with the columns before it, its pages and its longest row have", kind: format.ByteArray, repeated: format.Repeated, pages: longPages, change: asZstd},
		"fewer and fewer values": {want: "larger than allowed: with the columns before it, its pages and its longest row have", kind: format.ByteArray, pages: shrinking, change: asZstd},
		"long row":               {want: "larger than allowed: with the columns before it, its pages and its longest row have", kind: format.Int32, repeated: format.Repeated, pages: slices.Repeat([]parquetPart{longRow}, 64)},
		"nested headers":         {want: "the page at byte 4: a header that is damaged or has more than 4096 bytes: more than 32 levels of nesting", kind: format.Int32, pages: []parquetPart{{raw: deep}}},
		"two compressions": {
			want: "the compression ZSTD in one row group and UNCOMPRESSED in another is not supported; write the file with one", kind: format.ByteArray, pages: []parquetPart{small, dataPage(1, format.Plain, z.EncodeAll(make([]byte, 48<<20), nil))},
			change: func(meta *format.FileMetaData, starts []int) {
				first := meta.RowGroups[0]
				second := format.RowGroup{NumRows: 1, Ordinal: 1, Columns: slices.Clone(first.Columns)}
				a, b := &first.Columns[0].MetaData, &second.Columns[0].MetaData
				end := a.DataPageOffset + a.TotalCompressedSize
				a.Codec, a.TotalCompressedSize = format.Zstd, int64(starts[1])-a.DataPageOffset
				b.DataPageOffset, b.TotalCompressedSize = int64(starts[1]), end-int64(starts[1])
				meta.RowGroups = []format.RowGroup{first, second}
			},
		},
	}
	files := map[string]hostileFile{
		"nested metadata": {withFooter([]byte(parquetMagic), deep), "the metadata is damaged: more than 32 levels of nesting"},
		"long metadata":   {withFooter([]byte(parquetMagic), long), "the metadata is damaged: it ends early"},
		"deep schema":     {schemaOf(t, slices.Repeat([]format.SchemaElement{parent}, 30000), 1), "more than 32 levels of columns"},
		"many columns":    {schemaOf(t, append([]format.SchemaElement{{Name: "root", NumChildren: thrift.New(int32(30000))}}, slices.Repeat([]format.SchemaElement{leaf}, 30000)...), 30000), "30000 columns, expected at most 4096"},
		"many row groups": {schemaOf(t, append([]format.SchemaElement{{Name: "root", NumChildren: thrift.New(int32(4096))}}, slices.Repeat([]format.SchemaElement{leaf}, 4096)...), 60000), "row group 0 has 0 columns, and the schema has 4096"},
		"long names": {schemaOf(t, append([]format.SchemaElement{{Name: strings.Repeat("a", 64<<10), NumChildren: thrift.New(int32(4096))}},
			slices.Repeat([]format.SchemaElement{leaf}, 4096)...), 0), "names of columns with more than 4194304 bytes"},
	}
	for name, parts := range made {
		files[name] = hostileFile{parts.file(t), parts.want}
	}
	return files
}

// The sizes in the headers of pages bound what the library decodes, and the limit bounds these sizes.
func TestHostileParquet(t *testing.T) {
	for name, file := range hostileParquet(t) {
		t.Run(name, func(t *testing.T) {
			path := put(t, t.TempDir(), "a.parquet", file.raw)
			bounded.Allocates(t, 24<<20, func() {
				_, err := Open(path, Options{})
				require.ErrorContains(t, err, path+": ")
				require.True(t, errors.Is(err, ErrFormat) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrTooLarge), "%v", err)
				require.ErrorContains(t, err, file.want)
			})
		})
	}
}

// Only a few rows with texts in large pages are read at a time, and the pages are freed afterwards.
func TestParquetRowsKeepPages(t *testing.T) {
	const n, size = 16, 1 << 20
	raw := parquetParts{
		kind: format.ByteArray, pages: slices.Repeat([]parquetPart{dataPage(1, format.Plain, prefixedBy4(make([]byte, size)))}, n),
		change: func(meta *format.FileMetaData, _ []int) {
			meta.NumRows, meta.RowGroups[0].NumRows, meta.RowGroups[0].Columns[0].MetaData.NumValues = n, n, n
		},
	}.file(t)
	f, err := parquet.OpenFile(bytes.NewReader(raw), int64(len(raw)))
	require.NoError(t, err)
	limit := newLimit(8 * size)
	rows, flags, err := newPageChecker(f, bytes.NewReader(raw), int64(len(raw)), limit).check(&f.Metadata().RowGroups[0])
	require.NoError(t, err)
	require.Equal(t, 3, rows, "each may refer to a page, and to the page that the library reads after it")
	read, buffer := 0, make([]parquet.Row, rows)
	p := &parquetRows{tableRows: tableRows{limit: limit}, flags: flags}
	p.columns, p.dates = parquetColumns(f.Schema())
	require.NoError(t, p.group(f.RowGroups()[0], buffer, new([]byte), func([]byte) error { read++; return nil }))
	require.Equal(t, n, read)
	for _, row := range buffer {
		for _, v := range row[:cap(row)] {
			require.Zero(t, len(v.ByteArray()))
		}
	}
}

// A row of many copies of one text is refused before all copies are in memory.
func TestHugeParquetRow(t *testing.T) {
	const n, size = 1000, 1 << 20
	levels := prefixedBy4(slices.Concat(runOf(1, 0), runOf(n-1, 1)))
	raw := parquetParts{kind: format.ByteArray, repeated: format.Repeated, pages: []parquetPart{
		dictionaryPage(1, prefixedBy4(make([]byte, size))),
		dataPage(n, format.RLEDictionary, levels, prefixedBy4(runOf(n, 1)), []byte{1}, runOf(n, 0)),
	}}.file(t)
	path := put(t, t.TempDir(), "a.parquet", raw)
	bounded.Allocates(t, 64<<20, func() {
		_, err := Open(path, Options{MaxBytes: 8 * size})
		require.ErrorIs(t, err, ErrTooLarge)
		require.ErrorContains(t, err, path)
	})
}

// Fewer long rows than short rows are in memory at the same time.
func TestLongParquetRows(t *testing.T) {
	const rows, n = 64, 1 << 14
	levels := slices.Repeat(slices.Concat(runOf(1, 0), runOf(n-1, 1)), rows)
	raw := parquetParts{kind: format.Int32, repeated: format.Repeated, pages: []parquetPart{
		dictionaryPage(1, []byte{7, 0, 0, 0}),
		dataPage(rows*n, format.RLEDictionary, prefixedBy4(levels), prefixedBy4(runOf(rows*n, 1)), []byte{1}, runOf(rows*n, 0)),
	}}.file(t)
	path := put(t, t.TempDir(), "a.parquet", raw)
	bounded.Allocates(t, 40<<20, func() {
		m, err := Open(path, Options{})
		require.NoError(t, err)
		require.Equal(t, rows, m.Len())
		require.NoError(t, m.Close())
	})
}

// The file has the encodings of version 2 and of today's writers (scripts/records.py).
func TestParquetEncodings(t *testing.T) {
	m, err := Open(filepath.Join("testdata", "records", "encodings.parquet"), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	f := fieldsOf(t, m)
	const n = 300
	var whole []int64
	var small []int32
	var flags, lists []bool
	var halves []float64
	var paths, names []string
	for i := range n {
		whole = append(whole, int64(i)*int64(i)-int64(i%7)<<40)
		small = append(small, int32(i/3))
		flags = append(flags, i%29 < 11)
		lists = append(lists, i%5 == 0, i%29 < 11)
		halves = append(halves, float64(i)/2)
		paths = append(paths, fmt.Sprintf("images/%04d.png", i))
		names = append(names, fmt.Sprintf("name %d", i%13))
	}
	require.Equal(t, whole, f["whole"].Values)
	require.Equal(t, small, f["small"].Values)
	require.Equal(t, flags, f["flag"].Values)
	require.Equal(t, flags, f["maybe"].Values)
	require.Equal(t, lists, f["flags"].Values)
	require.Equal(t, halves, f["half"].Values)
	require.Equal(t, paths, f["path"].Values)
	require.Equal(t, names, f["name"].Values)
}
