package data

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"steadyfit/option"
)

// arrowMessages reads the messages of an Arrow file or stream. It checks and decompresses each message
// before the Arrow library decodes the message, since the library allocates any size that a message
// states. A file is a stream between a magic and a footer.
type arrowMessages struct {
	r            *bufio.Reader
	at, to       int64 // the offset of the last message that was read, and the end of all messages
	left         int64 // bytes of messages that were not read yet
	limit        *limit
	batches      int             // number of record batches that were read
	stated       int             // number of record batches in the footer; -1 for a stream
	dictionaries map[int64]int64 // the size of each dictionary in bytes, by its ID
	held         int64           // the total size of the dictionaries
	lz4          *lz4.Reader
	zstd         *zstd.Decoder
	batch        arrowBody // the body of the last record batch; its memory is reused
	err          error     // the error of the last message
}

// arrowBody is the body of a message: raw as in the file, and out decompressed.
type arrowBody struct {
	raw []byte
	out bytes.Buffer
}

const (
	anArrowFile    = "an Arrow file"
	arrowMagic     = "ARROW1"
	arrowContinues = "\xff\xff\xff\xff" // begins each message
	// maxArrowHeader is the maximum size of the header of a message in bytes.
	maxArrowHeader = 64 << 20
	// maxArrowDepth limits the levels of columns.
	maxArrowDepth = 32
	// pairBytes is the memory for a key and value of metadata besides their texts.
	pairBytes = 32
)

// The types of messages, the vtable offsets of the fields in headers and footers, and the numbers of
// compressions and of column types (Schema.fbs, Message.fbs and File.fbs).
const (
	arrowSchema     = 1
	arrowDictionary = 2
	arrowBatch      = 3

	messageType, messageHeader, messageBody, messageMetadata    = 6, 8, 10, 12
	schemaEndian, schemaFields, schemaMetadata                  = 4, 6, 8
	fieldName, fieldType, fieldOf, fieldParts, fieldMetadata    = 4, 8, 10, 14, 16
	batchRows, batchNodes, batchBuffers, batchCodec, batchViews = 4, 6, 8, 10, 12
	dictionaryID, dictionaryValues, dictionaryDelta             = 4, 6, 8
	pairKey, pairValue                                          = 4, 6
	codecKind, footerBatches                                    = 4, 10

	codecLZ4, codecZstd        = 0, 1
	arrowTimestamp, arrowUnion = 10, 14
)

func openArrow(r io.ReaderAt, size int64, memory *limit) (*arrowMessages, error) {
	var head [8]byte
	if size < int64(len(head)) {
		return nil, tooShort(size, anArrowFile)
	}
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return nil, readError(err)
	}
	m := &arrowMessages{to: size, limit: memory, stated: -1, lz4: lz4.NewReader(nil), dictionaries: map[int64]int64{}}
	switch begin := string(head[:]); {
	case strings.HasPrefix(begin, arrowContinues):
	case strings.HasPrefix(begin, "FEA1"):
		return nil, fmt.Errorf("version 1 of Feather is %w; write the file with version 2", ErrUnsupported)
	case !strings.HasPrefix(begin, arrowMagic):
		return nil, fmt.Errorf("no Arrow file or stream: it begins with %q: %w", begin, ErrFormat)
	default:
		footer, at, err := footerOf(r, size, anArrowFile, arrowMagic)
		if err != nil {
			return nil, err
		}
		m.to = at
		_, m.stated = arrowVector(rootTable(footer), footerBatches)
		for m.at = 8; m.at < 64; m.at += 8 { // writers may fill the first 64 bytes
			if _, err := r.ReadAt(head[:], m.at); err != nil {
				return nil, readError(err)
			}
			if head != [8]byte{} {
				break
			}
		}
	}
	m.left = max(0, m.to-m.at)
	m.r = bufio.NewReaderSize(io.NewSectionReader(r, m.at, m.left), 1<<20)
	return m, nil
}

// complete returns an error if the footer lists another number of record batches than were read.
func (m *arrowMessages) complete() error {
	if m.stated >= 0 && m.batches != m.stated {
		return fmt.Errorf("%d record batches, but the footer lists %d: %w", m.batches, m.stated, ErrFormat)
	}
	return nil
}

// failed returns the error to report if the Arrow library returned err. If a message caused err, this
// is the error of the message.
func (m *arrowMessages) failed(err error) error {
	if m.err != nil {
		return fmt.Errorf("the message at byte %d: %w", m.at, m.err)
	}
	return corrupt(err)
}

func (m *arrowMessages) close() {
	if m.zstd != nil {
		m.zstd.Close()
	}
}

// Message implements ipc.MessageReader.
func (m *arrowMessages) Message() (*ipc.Message, error) {
	m.at = m.to - m.left
	header, body, err := m.next()
	if err != nil {
		if err != io.EOF {
			m.err = corrupt(err)
		}
		return nil, err
	}
	return ipc.NewMessage(memory.NewBufferBytes(header), memory.NewBufferBytes(body)), nil
}

// Retain implements ipc.MessageReader. References are not counted.
func (m *arrowMessages) Retain() {}

// Release implements ipc.MessageReader.
func (m *arrowMessages) Release() {}

// next returns the header and the body of the next message.
func (m *arrowMessages) next() (header, body []byte, err error) {
	defer recovered(&err)
	var head [8]byte
	switch got, err := io.ReadFull(m.r, head[:]); {
	case err == io.EOF && m.stated >= 0: // the footer of a file replaces the mark of the end
		return nil, nil, io.EOF
	case err == io.EOF:
		return nil, nil, fmt.Errorf("truncated: the stream has no mark of its end; %s: %w", interrupted, ErrFormat)
	case err == io.ErrUnexpectedEOF:
		return nil, nil, fmt.Errorf("truncated: it has %d bytes; %s: %w", got, interrupted, ErrFormat)
	case err != nil:
		return nil, nil, readError(err)
	}
	if string(head[:4]) != arrowContinues {
		return nil, nil, fmt.Errorf("no message, but %q: %w", head, ErrFormat)
	}
	if m.left -= int64(len(head)); binary.LittleEndian.Uint32(head[4:]) == 0 {
		return nil, nil, io.EOF
	}
	if header, err = m.read("header", int64(int32(binary.LittleEndian.Uint32(head[4:]))), maxArrowHeader, nil); err != nil {
		return nil, nil, err
	}
	message := rootTable(header)
	outline, content, batch := outlineOf(message)
	into := &arrowBody{}
	if outline.kind == arrowBatch {
		into = &m.batch
	}
	if into.raw, err = m.read("body", message.GetInt64Slot(messageBody, 0), m.left, into.raw); err != nil {
		return nil, nil, err
	}
	copies := &arrowCopies{left: 4*len(header) + 4<<10}
	switch outline.kind {
	case arrowSchema:
		if content.GetInt16Slot(schemaEndian, 0) != 0 {
			return nil, nil, fmt.Errorf("numbers in big-endian order are %w; write the file on another machine", ErrUnsupported)
		}
		copies.fields(content, schemaFields, 0)
		copies.pairs(content, schemaMetadata)
	case arrowDictionary:
		if outline.delta {
			return nil, nil, fmt.Errorf("a dictionary that is written in parts is %w; write it as a whole", ErrUnsupported)
		}
		id := content.GetInt64Slot(dictionaryID, 0)
		m.held -= m.dictionaries[id] // this message replaces the dictionary
		body, err = m.content(batch, into)
		m.dictionaries[id] = int64(len(body))
		m.held += int64(len(body))
	case arrowBatch:
		m.batches++
		body, err = m.content(batch, into)
	default:
		err = fmt.Errorf("a message of type %d is %w", outline.kind, ErrUnsupported)
	}
	if err != nil {
		return nil, nil, err
	}
	if after, _, _ := outlineOf(message); after != outline {
		return nil, nil, fmt.Errorf("parts of its header overlap: %w", ErrFormat)
	}
	copies.pairs(message, messageMetadata)
	return header, body, copies.err()
}

// arrowOutline has the parts of a header on which its checks rely. The method content writes the
// positions of decompressed buffers to the header, which must not change these parts.
type arrowOutline struct {
	kind              byte
	content, batch    flatbuffers.UOffsetT
	at, buffers       int
	compressed, delta bool
}

// outlineOf returns the outline of a message, its content, and the record batch in it.
func outlineOf(message flatbuffers.Table) (o arrowOutline, content, batch flatbuffers.Table) {
	content, _ = arrowTable(message, messageHeader)
	o = arrowOutline{kind: message.GetByteSlot(messageType, 0), content: content.Pos}
	batch = content
	switch o.kind {
	case arrowDictionary:
		batch, _ = arrowTable(content, dictionaryValues)
		o.delta = content.GetBoolSlot(dictionaryDelta, false)
	case arrowBatch:
	default:
		return o, content, batch
	}
	o.batch = batch.Pos
	o.at, o.buffers = arrowVector(batch, batchBuffers)
	_, o.compressed = arrowTable(batch, batchCodec)
	return o, content, batch
}

// read reads n bytes of a message into the memory of raw. It returns an error if n is negative or above
// most. what names the bytes in the error.
func (m *arrowMessages) read(what string, n, most int64, raw []byte) ([]byte, error) {
	if most = min(most, m.left); n < 0 || n > most {
		return nil, fmt.Errorf("a %s of %d bytes, expected at most %d; %s: %w", what, n, most, interrupted, ErrFormat)
	}
	if err := m.fits(n); err != nil {
		return nil, err
	}
	raw = slices.Grow(raw[:0], int(n))[:n]
	if _, err := io.ReadFull(m.r, raw); err != nil {
		return nil, readError(err)
	}
	m.left -= n
	return raw, nil
}

// fits returns an error if n bytes and the dictionaries together exceed the limit.
func (m *arrowMessages) fits(n int64) error {
	if n += m.held; m.limit != nil && n > m.limit.max {
		return option.Errorf("%w: with the dictionaries, it has %d bytes when decompressed, and the limit is %d; write smaller record batches, or raise {Options.MaxBytes} if the data is meant to be that large", ErrTooLarge, n, m.limit.max)
	}
	return nil
}

// content checks a record batch or the values of a dictionary, and returns the body with its buffers
// decompressed. Each decompressed buffer begins with the size -1, which marks it as not compressed.
func (m *arrowMessages) content(batch flatbuffers.Table, from *arrowBody) ([]byte, error) {
	codec, compressed := arrowTable(batch, batchCodec)
	body, out := from.raw, &from.out
	out.Reset()
	at, buffers := arrowVector(batch, batchBuffers)
	for ; buffers > 0; at, buffers = at+16, buffers-1 {
		place := batch.Bytes[at : at+16]
		offset, length := int64(binary.LittleEndian.Uint64(place)), int64(binary.LittleEndian.Uint64(place[8:]))
		if offset < 0 || length < 0 || offset > int64(len(body))-length {
			return nil, fmt.Errorf("a buffer of %d bytes at byte %d of %d: %w", length, offset, len(body), ErrFormat)
		}
		if !compressed {
			continue
		}
		start := out.Len()
		if length > 0 {
			if err := m.decompress(out, codec.GetInt8Slot(codecKind, 0), body[offset:offset+length], int64(len(body))); err != nil {
				return nil, err
			}
		}
		binary.LittleEndian.PutUint64(place, uint64(start))
		binary.LittleEndian.PutUint64(place[8:], uint64(out.Len()-start))
		out.Write(make([]byte, -out.Len()&7))
	}
	if compressed {
		body = out.Bytes()
	}
	most := max(batch.GetInt64Slot(batchRows, 0), 8*int64(len(body)))
	at, nodes := arrowVector(batch, batchNodes)
	for ; nodes > 0; at, nodes = at+16, nodes-1 {
		if n := int64(binary.LittleEndian.Uint64(batch.Bytes[at:])); n < 0 || n > most {
			return nil, fmt.Errorf("%d values in %d bytes: %w", n, len(body), ErrFormat)
		}
	}
	at, views := arrowVector(batch, batchViews)
	for ; views > 0; at, views = at+8, views-1 {
		if n := binary.LittleEndian.Uint64(batch.Bytes[at:]); n > uint64(len(batch.Bytes)) {
			return nil, fmt.Errorf("%d buffers of a column: %w", n, ErrFormat)
		}
	}
	return body, nil
}

// decompress appends the content of the compressed buffer raw to out. held is the number of bytes that
// stay in memory besides out.
func (m *arrowMessages) decompress(out *bytes.Buffer, codec int8, raw []byte, held int64) (err error) {
	if len(raw) < 8 {
		return fmt.Errorf("a compressed buffer of %d bytes: %w", len(raw), ErrFormat)
	}
	size, raw := int64(binary.LittleEndian.Uint64(raw)), raw[8:]
	out.Write(binary.LittleEndian.AppendUint64(nil, math.MaxUint64))
	if size == -1 {
		out.Write(raw)
		return nil
	}
	const most = 1 << 48
	if size < 0 || size > most {
		return fmt.Errorf("a buffer of %d bytes: %w", size, ErrFormat)
	}
	if err := m.fits(held + int64(out.Len()) + size); err != nil {
		return err
	}
	var content io.Reader
	switch codec {
	case codecLZ4:
		m.lz4.Reset(bytes.NewReader(raw))
		content = m.lz4
	case codecZstd:
		m.zstd, err = m.limit.zstdReader(m.zstd, bytes.NewReader(raw))
		content = m.zstd
	default:
		err = fmt.Errorf("the compression %d is %w; write the file with lz4 or zstd", codec, ErrUnsupported)
	}
	if err != nil {
		return err
	}
	out.Grow(int(min(size, usualRatio*int64(len(raw)))))
	n, err := out.ReadFrom(io.LimitReader(content, size+1))
	if err == nil && n != size {
		err = otherSize(int(size))
	}
	return err
}

func rootTable(raw []byte) flatbuffers.Table {
	return flatbuffers.Table{Bytes: raw, Pos: flatbuffers.GetUOffsetT(raw)}
}

// arrowTable returns the table in a field of another table.
func arrowTable(t flatbuffers.Table, field flatbuffers.VOffsetT) (flatbuffers.Table, bool) {
	at := t.Offset(field)
	if at == 0 {
		return t, false
	}
	return flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(t.Pos + flatbuffers.UOffsetT(at))}, true
}

// arrowVector returns the position and the number of the elements of the list in a field of a table.
func arrowVector(t flatbuffers.Table, field flatbuffers.VOffsetT) (at, n int) {
	if at := flatbuffers.UOffsetT(t.Offset(field)); at != 0 {
		return int(t.Vector(at)), t.VectorLen(at)
	}
	return 0, 0
}

// arrowCopies counts what the library copies from the header of a message. Parts of the header may be
// shared, so the copies may take more memory than the header.
type arrowCopies struct {
	left    int // bytes that may still be copied
	columns int
	levels  int
}

func (c *arrowCopies) err() error {
	switch {
	case c.levels > maxArrowDepth:
		return fmt.Errorf("more than %d levels of columns: %w", maxArrowDepth, ErrFormat)
	case c.columns > maxFields:
		return fmt.Errorf("more than %d columns: remove unused columns: %w", maxFields, ErrFormat)
	case c.left < 0:
		return fmt.Errorf("lists and texts that exceed their message: %w", ErrFormat)
	}
	return nil
}

// fields counts columns and the columns inside them.
func (c *arrowCopies) fields(t flatbuffers.Table, field flatbuffers.VOffsetT, level int) {
	for part := range c.tables(t, field) {
		c.columns++
		c.levels = max(c.levels, level+1)
		c.take(part, fieldName, 1)
		c.pairs(part, fieldMetadata)
		// The second field of the type is the name of the time zone of a timestamp, or the list of type
		// numbers of a union.
		if of, ok := arrowTable(part, fieldOf); ok && slices.Contains([]byte{arrowTimestamp, arrowUnion}, part.GetByteSlot(fieldType, 0)) {
			c.take(of, 6, 4)
		}
		c.fields(part, fieldParts, level+1)
	}
}

// pairs counts the names and texts of metadata.
func (c *arrowCopies) pairs(t flatbuffers.Table, field flatbuffers.VOffsetT) {
	for pair := range c.tables(t, field) {
		c.left -= pairBytes
		c.take(pair, pairKey, 1)
		c.take(pair, pairValue, 1)
	}
}

// take counts the elements of a list, of size bytes each.
func (c *arrowCopies) take(t flatbuffers.Table, field flatbuffers.VOffsetT, size int) {
	_, n := arrowVector(t, field)
	c.left -= n * size
}

// tables iterates over the tables in a field of another table, until a limit is exceeded.
func (c *arrowCopies) tables(t flatbuffers.Table, field flatbuffers.VOffsetT) iter.Seq[flatbuffers.Table] {
	return func(yield func(flatbuffers.Table) bool) {
		at, n := arrowVector(t, field)
		c.left -= 4 * n
		for ; n > 0 && c.err() == nil; at, n = at+4, n-1 {
			if !yield(flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(flatbuffers.UOffsetT(at))}) {
				return
			}
		}
	}
}
