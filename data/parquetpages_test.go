package data

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/bounded"
)

// pageChange changes the header of a page, its content and the metadata of its column.
type pageChange func(h *format.PageHeader, page []byte, c *format.ColumnMetaData) []byte

// onePage returns a Parquet file whose only page has n zero bytes in rows of 1024 numbers, and a
// function that returns the same file with a change of the page.
func onePage(t testing.TB, codec compress.Codec, version, n int) (raw []byte, changed func(pageChange) []byte) {
	t.Helper()
	type row struct {
		X []int64 `parquet:"x,list,plain"`
	}
	var out bytes.Buffer
	w := parquet.NewGenericWriter[row](&out, parquet.Compression(codec), parquet.PageBufferSize(1<<30), parquet.DataPageVersion(version), parquet.DataPageStatistics(false))
	for range n / (8 << 10) {
		_, err := w.Write([]row{{make([]int64, 1<<10)}})
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	raw = out.Bytes()
	return raw, func(change pageChange) []byte {
		f, err := parquet.OpenFile(bytes.NewReader(raw), int64(len(raw)))
		require.NoError(t, err)
		meta := f.Metadata()
		c := &meta.RowGroups[0].Columns[0].MetaData
		require.Zero(t, c.DictionaryPageOffset)
		var p thrift.CompactProtocol
		h := &format.PageHeader{}
		r := p.NewReaderFromBytes(raw[c.DataPageOffset:])
		require.NoError(t, thrift.NewDecoder(r).Decode(h))
		at := int(c.DataPageOffset) + r.BytesRead()
		require.EqualValues(t, c.TotalCompressedSize, r.BytesRead()+int(h.CompressedPageSize), "one page")
		page := change(h, bytes.Clone(raw[at:at+int(h.CompressedPageSize)]), c)
		h.CRC, h.CompressedPageSize = 0, int32(len(page))
		header, err := thrift.Marshal(&p, h)
		require.NoError(t, err)
		c.DataPageOffset, c.TotalCompressedSize = 4, int64(len(header)+len(page))
		footer, err := thrift.Marshal(&p, meta)
		require.NoError(t, err)
		file := bytes.Join([][]byte{[]byte(parquetMagic), header, page, footer}, nil)
		return append(binary.LittleEndian.AppendUint32(file, uint32(len(footer))), parquetMagic...)
	}
}

// A page that takes more memory than the limit is refused before it is decompressed in full, whether
// its header states the true size or not.
func TestParquetPagesAreBounded(t *testing.T) {
	const n = 2 << 20
	for name, codec := range map[string]compress.Codec{
		"snappy": &parquet.Snappy, "gzip": &parquet.Gzip, "brotli": &parquet.Brotli, "zstd": &parquet.Zstd, "plain": &parquet.Uncompressed,
	} {
		for version := 1; version <= 2; version++ {
			open := func(raw []byte, limit int64) (err error) {
				path := put(t, t.TempDir(), "a.parquet", raw)
				m, err := Open(path, Options{MaxBytes: limit})
				if err != nil {
					require.ErrorContains(t, err, path)
					return err
				}
				require.Equal(t, n/(8<<10), m.Len())
				return m.Close()
			}
			honest, changed := onePage(t, codec, version, n)
			require.NoError(t, open(honest, 4*n), name)
			err := open(honest, n/2)
			require.ErrorIs(t, err, ErrTooLarge, name)
			require.ErrorContains(t, err, `column "x.list.element": the page at byte 4: larger than allowed`)
			require.ErrorContains(t, err, "raise Options.MaxBytes")
			if name == "plain" {
				continue
			}
			for _, size := range []int32{n / 4, -1} {
				lie := changed(func(h *format.PageHeader, page []byte, _ *format.ColumnMetaData) []byte {
					h.UncompressedPageSize = size
					return page
				})
				err := open(lie, 4*n)
				require.ErrorIs(t, err, ErrFormat, name)
				require.ErrorContains(t, err, `column "x.list.element": the page at byte 4: `)
			}
		}
	}
}

// The reader checks numbers of values and sizes of headers and of levels, and reports content that the
// decompressor refuses.
func TestBadParquetPages(t *testing.T) {
	const n = 1 << 20
	for name, c := range map[string]struct {
		codec   compress.Codec
		version int
		change  pageChange
	}{
		"values": {&parquet.Snappy, 1, func(h *format.PageHeader, page []byte, _ *format.ColumnMetaData) []byte {
			h.DataPageHeader.V.NumValues = math.MaxInt32
			return page
		}},
		"statistics": {&parquet.Snappy, 1, func(h *format.PageHeader, page []byte, _ *format.ColumnMetaData) []byte {
			h.DataPageHeader.V.Statistics.Max = bytes.Repeat([]byte("W"), 104)
			return page
		}},
		"levels": {&parquet.Snappy, 2, func(h *format.PageHeader, page []byte, _ *format.ColumnMetaData) []byte {
			h.DataPageHeaderV2.V.DefinitionLevelsByteLength = math.MaxInt32
			return page
		}},
		"snappy": {&parquet.Snappy, 1, func(_ *format.PageHeader, _ []byte, _ *format.ColumnMetaData) []byte {
			return []byte{0xff, 0xff, 0xff, 0xff, 7}
		}},
		"gzip": {&parquet.Gzip, 1, func(_ *format.PageHeader, page []byte, _ *format.ColumnMetaData) []byte { return page[:len(page)/2] }},
		"lz4": {&parquet.Lz4Raw, 1, func(_ *format.PageHeader, page []byte, _ *format.ColumnMetaData) []byte {
			return page
		}},
		"zstd frame": {&parquet.Zstd, 1, func(_ *format.PageHeader, _ []byte, _ *format.ColumnMetaData) []byte {
			// A frame of one segment with a content of 2^40 bytes, and its last block, which is empty.
			return []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0}
		}},
		"codec": {&parquet.Snappy, 1, func(_ *format.PageHeader, page []byte, c *format.ColumnMetaData) []byte {
			c.Codec = format.LZO
			return page
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, changed := onePage(t, c.codec, c.version, n)
			// A length of 104 bytes becomes one of 2^31-1.
			raw := bytes.Replace(changed(c.change), append([]byte{104}, "WWWW"...), []byte{0xff, 0xff, 0xff, 0xff, 7}, 1)
			path := put(t, t.TempDir(), "a.parquet", raw)
			bounded.Allocates(t, 16<<20, func() {
				_, err := Open(path, Options{})
				require.Error(t, err)
				require.ErrorContains(t, err, path+`: column "x.list.element": `)
			})
		})
	}
}

// The limit applies to the pages of all columns together, since they are in memory at the same time.
func TestParquetColumnsAreBounded(t *testing.T) {
	type row struct {
		A, B string
	}
	var out bytes.Buffer
	w := parquet.NewGenericWriter[row](&out, parquet.Compression(&parquet.Zstd), parquet.PageBufferSize(1<<20))
	text := strings.Repeat("a", 1<<20)
	_, err := w.Write([]row{{text, text}})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	path := put(t, t.TempDir(), "a.parquet", out.Bytes())
	_, err = Open(path, Options{MaxBytes: 3 << 19})
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, `column "B": larger than allowed: with the columns before it`)
	m, err := Open(path, Options{MaxBytes: 3 << 20})
	require.NoError(t, err)
	require.NoError(t, m.Close())
}
