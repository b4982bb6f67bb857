package data

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"

	"steadyfit/option"
)

// pageChecker checks the pages of Parquet files before the library reads them. The library allocates
// what a header states and what a decompressor gives, whatever it is.
type pageChecker struct {
	file  io.ReaderAt
	size  int64
	limit *limit // of the memory for the pages of a row group that are read at a time
	zstd  *zstd.Decoder
	raw   []byte
}

// valueBytes is the memory for a value of a page besides its encoded bytes: its levels and its number
// in a dictionary.
const valueBytes = 6

// maxPageHeader limits the header of a page, whose statistics may have several of its values.
const maxPageHeader = 64 << 20

func (p *pageChecker) close() {
	if p.zstd != nil {
		p.zstd.Close()
	}
}

// check checks the pages of a row group. Of each column, the largest page and the largest dictionary
// are in memory at a time.
func (p *pageChecker) check(group *format.RowGroup) error {
	total := int64(0)
	for i := range group.Columns {
		c := &group.Columns[i].MetaData
		name := strings.Join(c.PathInSchema, ".")
		most, err := p.column(c)
		if err != nil {
			return fmt.Errorf("column %q: %w", name, err)
		}
		if total += most; p.limit != nil && total > p.limit.max {
			return option.Errorf("column %q: %w: with the columns before it, its pages have %d bytes when decompressed, and the limit is %d; write smaller pages or fewer columns, or raise {Options.MaxBytes} if the data is meant to be that large", name, ErrTooLarge, total, p.limit.max)
		}
	}
	return nil
}

// column returns the memory for the largest page and the largest dictionary of a column.
func (p *pageChecker) column(c *format.ColumnMetaData) (memory int64, err error) {
	from, length := c.DataPageOffset, c.TotalCompressedSize
	if c.DictionaryPageOffset != 0 {
		from = c.DictionaryPageOffset
	}
	if from < 0 || length < 0 || from > p.size-length {
		return 0, fmt.Errorf("its pages, %d bytes from byte %d on, exceed the file: %w", length, from, ErrFormat)
	}
	var page, dictionary int64
	for end := from + length; from < end; {
		h, size, err := p.header(from, end)
		if err != nil {
			return 0, fmt.Errorf("the page at byte %d: %w", from, err)
		}
		from += size
		stated, err := p.stated(h)
		if err == nil && (h.CompressedPageSize < 0 || int64(h.CompressedPageSize) > end-from) {
			err = fmt.Errorf("%d bytes, but the column has %d: %w", h.CompressedPageSize, end-from, ErrFormat)
		}
		if err == nil {
			err = p.content(c.Codec, h, io.NewSectionReader(p.file, from, int64(h.CompressedPageSize)))
		}
		if err != nil {
			return 0, fmt.Errorf("the page at byte %d: %w", from-size, err)
		}
		if from += int64(h.CompressedPageSize); h.Type == format.DictionaryPage {
			dictionary = max(dictionary, stated)
		} else {
			page = max(page, stated)
		}
	}
	return page + dictionary, nil
}

// header decodes the header of a page and returns its size. The library would allocate the length of
// its statistics, whatever it is.
func (p *pageChecker) header(from, end int64) (h *format.PageHeader, size int64, err error) {
	for most := int64(4 << 10); ; most = min(16*most, maxPageHeader) {
		raw := make([]byte, min(most, end-from))
		if _, err := p.file.ReadAt(raw, from); err != nil {
			return nil, 0, onDisk(err)
		}
		r := (&thrift.CompactProtocol{}).NewReaderFromBytes(raw)
		h = &format.PageHeader{}
		if err = thrift.NewDecoder(r).Decode(h); err == nil {
			return h, int64(r.BytesRead()), nil
		}
		if most == maxPageHeader || most >= end-from {
			return nil, 0, fmt.Errorf("a header that is damaged or has more than %d bytes: %w: %w", len(raw), err, ErrFormat)
		}
	}
}

// stated returns the memory that a page takes by its header.
func (p *pageChecker) stated(h *format.PageHeader) (int64, error) {
	values := h.DataPageHeader.V.NumValues
	switch h.Type {
	case format.DictionaryPage:
		values = h.DictionaryPageHeader.V.NumValues
	case format.DataPageV2:
		values = h.DataPageHeaderV2.V.NumValues
	}
	if h.UncompressedPageSize < 0 || values < 0 {
		return 0, fmt.Errorf("%d bytes and %d values: %w", h.UncompressedPageSize, values, ErrFormat)
	}
	stated := int64(h.UncompressedPageSize) + valueBytes*int64(values)
	if p.limit != nil && stated > p.limit.max {
		return 0, option.Errorf("%w: it has %d bytes when decompressed and %d values, and the limit is %d bytes; write smaller pages, or raise {Options.MaxBytes} if the data is meant to be that large", ErrTooLarge, h.UncompressedPageSize, values, p.limit.max)
	}
	return stated, nil
}

// content returns an error if the content of a page has more bytes than its header states.
func (p *pageChecker) content(codec format.CompressionCodec, h *format.PageHeader, r *io.SectionReader) error {
	most := int64(h.UncompressedPageSize)
	if v2 := &h.DataPageHeaderV2.V; h.Type == format.DataPageV2 {
		levels := int64(v2.RepetitionLevelsByteLength) + int64(v2.DefinitionLevelsByteLength)
		if v2.RepetitionLevelsByteLength < 0 || v2.DefinitionLevelsByteLength < 0 || levels > min(most, r.Size()) {
			return fmt.Errorf("%d bytes of levels in %d: %w", levels, r.Size(), ErrFormat)
		}
		if v2.IsCompressed.Valid && !v2.IsCompressed.V {
			codec = format.Uncompressed
		}
		r, most = io.NewSectionReader(r, levels, r.Size()-levels), most-levels
	}
	have, err := p.decompressed(codec, r, most)
	switch {
	case errors.Is(err, ErrUnsupported):
		return err
	case err != nil:
		return corrupt(err)
	case have > most:
		return fmt.Errorf("more bytes when decompressed than the %d that its header states: %w", most, ErrFormat)
	}
	return nil
}

// decompressed returns the size of the decompressed content, or more than most.
func (p *pageChecker) decompressed(codec format.CompressionCodec, r *io.SectionReader, most int64) (int64, error) {
	var content io.Reader
	var err error
	switch codec {
	case format.Uncompressed:
		return r.Size(), nil
	case format.Snappy:
		head := make([]byte, min(r.Size(), 10))
		if _, err := r.ReadAt(head, 0); err != nil {
			return 0, err
		}
		n, err := snappy.DecodedLen(head)
		return int64(n), err
	case format.Lz4Raw:
		return p.lz4(r, most)
	case format.Gzip:
		content, err = gzip.NewReader(r)
	case format.Brotli:
		content = brotli.NewReader(r)
	case format.Zstd:
		content, err = p.zstdReader(r)
	default:
		return 0, fmt.Errorf("the compression %s is %w; write the file with zstd or snappy", codec, ErrUnsupported)
	}
	if err != nil {
		return 0, err
	}
	return io.Copy(io.Discard, io.LimitReader(content, most+1))
}

// zstdReader returns the reader of zstd, which checks the sizes that frames state.
func (p *pageChecker) zstdReader(r io.Reader) (_ io.Reader, err error) {
	if p.zstd != nil {
		return p.zstd, p.zstd.Reset(r)
	}
	window := uint64(maxRecord)
	if p.limit != nil {
		window = min(window, uint64(max(p.limit.max, zstd.MinWindowSize)))
	}
	p.zstd, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
	return p.zstd, err
}

// lz4 decompresses a block, which cannot be done by parts. The library doubles its memory after every
// error, also that of a damaged block.
func (p *pageChecker) lz4(r *io.SectionReader, most int64) (int64, error) {
	block := make([]byte, r.Size())
	if _, err := io.ReadFull(r, block); err != nil {
		return 0, err
	}
	p.raw = slices.Grow(p.raw[:0], int(most))[:most]
	n, err := lz4.UncompressBlock(block, p.raw)
	return int64(n), err
}
