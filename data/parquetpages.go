package data

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"steadyfit/option"
)

// pageChecker checks the pages of Parquet files before the Parquet library reads them, since the
// library allocates any size that a header, a run or a length states.
type pageChecker struct {
	file    io.ReaderAt
	size    int64
	limit   *limit // of the memory for the pages of a row group that are read at a time
	columns []*parquet.Column
	zstd    *zstd.Decoder
	// keepOrder is called with the dictionaries of the columns in the field ordered, which are
	// ordered categories.
	ordered   []string
	keepOrder func(column string, values []string)

	// The fields below are reused for each page.
	block, raw []byte // the page as in the file, and decompressed
	levels     []byte
	lengths    []int32
}

const (
	// valueBytes is the memory for a value of a page besides its encoded bytes: its levels and its
	// number in a dictionary.
	valueBytes = 6
	// rowValueBytes is the memory for a value of a row.
	rowValueBytes = 48
	// maxPageHeader limits the header of a page, whose statistics may have several of its values.
	maxPageHeader = 64 << 20
	// maxRows and maxRowValues limit the rows that are read at a time.
	maxRows      = 64
	maxRowValues = 1 << 17
	// maxKept limits the memory of the pages that the rows being read refer to.
	maxKept = 256 << 20
	// readValues is the number of values of a page that the library reads at a time.
	readValues = 170
	// spareBytes follow the bytes of a page, since decoders of the library read whole words.
	spareBytes = 16
)

func newPageChecker(f *parquet.File, r io.ReaderAt, size int64, memory *limit) *pageChecker {
	return &pageChecker{file: r, size: size, limit: memory, columns: leaves(f.Root())}
}

func leaves(c *parquet.Column) (all []*parquet.Column) {
	if c.Leaf() {
		return []*parquet.Column{c}
	}
	for _, child := range c.Columns() {
		all = append(all, leaves(child)...)
	}
	return all
}

func (p *pageChecker) close() {
	if p.zstd != nil {
		p.zstd.Close()
	}
}

// check checks the pages of a row group. It returns the number of rows to read at a time, and the values
// of columns of booleans that the library does not decode. In memory at a time are, for each column, the
// largest page, the largest dictionary and the longest row, and all pages of texts that the rows refer
// to.
func (p *pageChecker) check(group *format.RowGroup) (rows int, flags [][]byte, err error) {
	defer func() { p.block, p.raw, p.levels, p.lengths = nil, nil, nil, nil }()
	total, kept, values := int64(0), int64(0), 0
	for i := range group.Columns {
		c := &columnChunk{pageChecker: p, leaf: p.columns[i], meta: &group.Columns[i].MetaData}
		name := strings.Join(c.meta.PathInSchema, ".")
		if err := c.check(); err != nil {
			return 0, nil, fmt.Errorf("column %q: %w", name, err)
		}
		flags = append(flags, c.flags)
		values += c.longest
		kept += c.kept
		total += max(c.page, c.kept) + c.dictionary + rowValueBytes*int64(c.longest)
		if p.limit != nil && total > p.limit.max {
			return 0, nil, option.Errorf("column %q: %w: with the columns before it, its pages and its longest row have %d bytes when decompressed, and the limit is %d; write smaller pages or fewer columns, or raise {Options.MaxBytes} if the data is meant to be that large", name, ErrTooLarge, total, p.limit.max)
		}
	}
	free := int64(maxKept)
	if p.limit != nil {
		free = min(free, p.limit.max-total)
	}
	return max(1, min(maxRows, maxRowValues/max(1, values), int(1+free/max(1, kept)))), flags, nil
}

// columnChunk is a column in a row group.
type columnChunk struct {
	*pageChecker
	leaf *parquet.Column
	meta *format.ColumnMetaData

	page, dictionary int64 // memory for the largest page and the largest dictionary
	hasDictionary    bool
	row, longest     int    // values of the last row, which may continue in the next page, and of the longest row
	values           int    // number of values that are not null
	flags            []byte // booleans that the library does not decode

	kept    int64      // largest memory for the pages of texts to which a row and the library's buffer refer
	ofRow   int64      // memory for the pages to which the last row refers
	begins  bool       // whether a row begins in the last page
	latest  int        // number of values in the last page
	stale   []keptPage // pages with values that are still in the library's buffer
	ofReads int64      // memory for the pages in stale
}

type keptPage struct {
	values int
	memory int64
}

// check checks the pages, which the library reads from the offset of the data on, after the dictionary.
func (c *columnChunk) check() error {
	codec := c.leaf.Compression().CompressionCodec()
	if codec != c.meta.Codec {
		return fmt.Errorf("the compression %s in one row group and %s in another is %w; write the file with one compression", codec, c.meta.Codec, ErrUnsupported)
	}
	from, length := c.meta.DataPageOffset, c.meta.TotalCompressedSize
	if c.meta.DictionaryPageOffset != 0 {
		from = c.meta.DictionaryPageOffset
	}
	if from < 0 || length < 0 || from > c.size-length {
		return fmt.Errorf("its pages, %d bytes from byte %d on, exceed the file: %w", length, from, ErrFormat)
	}
	end, begins := from+length, false
	for first := from; from < end; {
		begins = begins || from == c.meta.DataPageOffset
		size, err := c.checkPage(from, end, from == first)
		if err != nil {
			return fmt.Errorf("the page at byte %d: %w", from, err)
		}
		from += size
	}
	if !begins && c.meta.DataPageOffset != end {
		return fmt.Errorf("no page begins at byte %d, where its data begins: %w", c.meta.DataPageOffset, ErrFormat)
	}
	if len(c.flags) > 0 && len(c.flags) != c.values {
		return fmt.Errorf("pages of booleans with several encodings are %w; write the file again with one", ErrUnsupported)
	}
	return nil
}

// checkPage checks the page that begins at byte from, and returns its size including its header.
func (c *columnChunk) checkPage(from, end int64, first bool) (int64, error) {
	h, size, err := c.header(from, end)
	if err != nil {
		return 0, err
	}
	memory, err := c.stated(h)
	if err != nil {
		return 0, err
	}
	if h.CompressedPageSize < 0 || int64(h.CompressedPageSize) > end-from-size {
		return 0, fmt.Errorf("%d bytes, but the column has %d: %w", h.CompressedPageSize, end-from-size, ErrFormat)
	}
	if first && c.meta.DictionaryPageOffset != 0 && h.Type != format.DictionaryPage {
		return 0, fmt.Errorf("it is no dictionary: %w", ErrFormat)
	}
	c.block = slices.Grow(c.block[:0], int(h.CompressedPageSize)+spareBytes)[:h.CompressedPageSize]
	if _, err := c.file.ReadAt(c.block, from+size); err != nil {
		return 0, readError(err)
	}
	more, err := c.content(h)
	if err != nil {
		return 0, corrupt(err)
	}
	if memory += more; c.limit != nil && memory > c.limit.max {
		return 0, option.Errorf("%w: its values have %d bytes when decoded, and the limit is %d bytes; write smaller pages, or raise {Options.MaxBytes} if the data is meant to be that large", ErrTooLarge, memory, c.limit.max)
	}
	if h.Type == format.DictionaryPage {
		c.dictionary = max(c.dictionary, memory)
	} else {
		c.page = max(c.page, memory)
		c.keep(memory)
	}
	return size + int64(h.CompressedPageSize), nil
}

// keep counts the pages that remain in memory since values refer to them. The library reads the values
// of a page to the beginning of a buffer, so values of an earlier page may remain in the buffer after
// those of a later page.
func (c *columnChunk) keep(memory int64) {
	switch c.leaf.Type().Kind() {
	case parquet.ByteArray, parquet.FixedLenByteArray:
	default:
		return
	}
	values := min(c.latest, readValues)
	for n := len(c.stale); n > 0 && c.stale[n-1].values <= values; n-- {
		c.ofReads -= c.stale[n-1].memory
		c.stale = c.stale[:n-1]
	}
	c.stale = append(c.stale, keptPage{values, memory})
	c.ofReads += memory
	c.kept = max(c.kept, c.ofRow+c.ofReads)
	if c.begins {
		c.ofRow = 0
	}
	c.ofRow += memory
}

// header decodes the header of a page and returns its size.
func (p *pageChecker) header(from, end int64) (h *format.PageHeader, size int64, err error) {
	for most := int64(4 << 10); ; most = min(16*most, maxPageHeader) {
		raw := make([]byte, min(most, end-from))
		if _, err := p.file.ReadAt(raw, from); err != nil {
			return nil, 0, readError(err)
		}
		w := &thriftWalk{raw: raw}
		h = &format.PageHeader{}
		if err = w.walk(0); err == nil {
			raw = raw[:len(raw)-len(w.raw)]
			if err = thrift.Unmarshal(&thrift.CompactProtocol{}, raw, h); err != nil {
				err = corrupt(err)
			}
			return h, int64(len(raw)), err
		}
		if !errors.Is(err, errThriftEnd) || most == maxPageHeader || most >= end-from {
			return nil, 0, fmt.Errorf("a header that is damaged or has more than %d bytes: %w", len(raw), err)
		}
	}
}

// stated returns the memory that a page takes according to its header.
func (p *pageChecker) stated(h *format.PageHeader) (int64, error) {
	values := h.DataPageHeader.V.NumValues
	switch h.Type {
	case format.DictionaryPage:
		values = h.DictionaryPageHeader.V.NumValues
	case format.DataPageV2:
		values = h.DataPageHeaderV2.V.NumValues
	}
	if h.UncompressedPageSize < 0 || values < 0 {
		return 0, fmt.Errorf("invalid page header: %d bytes, %d values: %w", h.UncompressedPageSize, values, ErrFormat)
	}
	stated := int64(h.UncompressedPageSize) + valueBytes*int64(values)
	if p.limit != nil && max(stated, int64(h.CompressedPageSize)) > p.limit.max {
		return 0, option.Errorf("%w: it has %d bytes, %d when decompressed, and %d values, and the limit is %d bytes; write smaller pages, or raise {Options.MaxBytes} if the data is meant to be that large", ErrTooLarge, h.CompressedPageSize, h.UncompressedPageSize, values, p.limit.max)
	}
	return stated, nil
}

// content decompresses a page, and checks what the library decodes from it. memory is the memory for
// decoded values that is not included in the sizes in the header.
func (c *columnChunk) content(h *format.PageHeader) (memory int64, err error) {
	levels, block, codec := []byte(nil), c.block, c.meta.Codec
	if v2 := &h.DataPageHeaderV2.V; h.Type == format.DataPageV2 {
		n := int64(v2.RepetitionLevelsByteLength) + int64(v2.DefinitionLevelsByteLength)
		if v2.RepetitionLevelsByteLength < 0 || v2.DefinitionLevelsByteLength < 0 || n > int64(min(h.UncompressedPageSize, h.CompressedPageSize)) {
			return 0, fmt.Errorf("%d bytes of levels in %d: %w", n, h.CompressedPageSize, ErrFormat)
		}
		if v2.IsCompressed.Valid && !v2.IsCompressed.V {
			codec = format.Uncompressed
		}
		levels, block = block[:n], block[n:]
	}
	size := int(h.UncompressedPageSize) - len(levels)
	raw, err := c.decompressed(codec, block, size)
	if err != nil {
		return 0, err
	}
	if len(raw) != size {
		return 0, otherSize(size)
	}
	if h.Type == format.DictionaryPage {
		return 0, c.checkDictionary(&h.DictionaryPageHeader.V, raw)
	}
	return c.checkData(h, levels, raw)
}

func otherSize(stated int) error {
	return fmt.Errorf("more or fewer bytes when decompressed than the %d that its header states: %w", stated, ErrFormat)
}

// decompressed returns the content of a page. If the content has more than size bytes, the result may
// end after size+1 bytes.
func (p *pageChecker) decompressed(codec format.CompressionCodec, block []byte, size int) ([]byte, error) {
	var content io.Reader
	var err error
	switch from := bytes.NewReader(block); codec {
	case format.Uncompressed:
		return block, nil
	case format.Snappy:
		return p.decompressedBlock(block, size)
	case format.Gzip:
		content, err = gzip.NewReader(from)
	case format.Brotli:
		content = brotli.NewReader(from)
	case format.Zstd:
		p.zstd, err = p.limit.zstdReader(p.zstd, from)
		content = p.zstd
	default: // the library reads wrong values with LZ4_RAW
		return nil, fmt.Errorf("the compression %s is %w; write the file with zstd or snappy", codec, ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	buffer := bytes.NewBuffer(p.raw[:0])
	_, err = buffer.ReadFrom(io.LimitReader(content, int64(size)+1))
	p.raw = buffer.Bytes()
	return p.raw, err
}

// decompressedBlock decompresses a block of Snappy as a whole, since Snappy cannot decompress only its
// beginning.
func (p *pageChecker) decompressedBlock(block []byte, size int) ([]byte, error) {
	const ratio = 256 // more than Snappy can compress
	n, err := snappy.DecodedLen(block)
	if err != nil || n != size || n > ratio*len(block) {
		return nil, cmp.Or(err, otherSize(size))
	}
	p.raw = slices.Grow(p.raw[:0], size+spareBytes)[:size]
	return snappy.Decode(p.raw, block)
}

// zstdReader returns a zstd reader of r, which refuses frames that state a window above the limit. It
// reuses the reader last, unless last is nil.
func (l *limit) zstdReader(last *zstd.Decoder, r io.Reader) (*zstd.Decoder, error) {
	if last != nil {
		return last, last.Reset(r)
	}
	window := uint64(maxRecord)
	if l != nil {
		window = min(window, uint64(max(l.max, zstd.MinWindowSize)))
	}
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
}
