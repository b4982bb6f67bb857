package data

import (
	"encoding/binary"
	"fmt"
	"io"

	flatbuffers "github.com/google/flatbuffers/go"

	"steadyfit/data/internal/fault"
)

const (
	// The offsets of parts of messages and schemas (Message.fbs and Schema.fbs of Arrow).
	messageHeader                                             = 8
	schemaFields, schemaMetadata                              = 6, 8
	fieldName, fieldKind, fieldOf, fieldInside, fieldMetadata = 4, 8, 10, 14, 16
	pairKey, pairValue                                        = 4, 6
	kindTimestamp, kindUnion, kindDetails                     = 10, 14, 6

	// maxArrowDepth limits the levels of columns.
	maxArrowDepth = 32
	// fieldBytes and pairBytes are the approximate sizes of a column and of a pair of metadata in a message.
	fieldBytes, pairBytes = 64, 32
	// schemaRatio limits the memory for each byte of the message.
	schemaRatio = 4
)

// checkArrowSchema returns an error if the schema of an Arrow file, which is its first message, states lists
// and texts that do not fit in the message. The library allocates a list with the length that the message
// states. Lists and texts may also share bytes of the message, so their total size is limited.
func checkArrowSchema(messages *io.SectionReader) error {
	var head [8]byte
	if _, err := messages.ReadAt(head[:], 0); err != nil {
		return fault.Read(err)
	}
	at, size := int64(8), head[4:]
	if string(head[:4]) != arrowContinues { // old writers begin a message with its size
		at, size = 4, head[:4]
	}
	n := int64(binary.LittleEndian.Uint32(size))
	if most := min(maxArrowHeader, messages.Size()-at); n > most {
		return fmt.Errorf("a message of %d bytes, expected at most %d; %s: %w", n, most, interrupted, ErrFormat)
	}
	raw := make([]byte, n)
	if _, err := messages.ReadAt(raw, at); err != nil {
		return fault.Read(err)
	}
	root := flatbuffers.Table{Bytes: raw, Pos: flatbuffers.GetUOffsetT(raw)}
	schema := schemaSize{left: schemaRatio*n + 4<<10}
	if content, ok := arrowTable(root, messageHeader); ok {
		schema.fields(content, schemaFields, 0)
		schema.pairs(content, schemaMetadata)
	}
	if schema.left < 0 {
		return fmt.Errorf("a schema whose lists and texts exceed its message of %d bytes: %w", n, ErrFormat)
	}
	return nil
}

// schemaSize counts the bytes that the lists and texts of a schema take in memory.
type schemaSize struct{ left int64 } // negative if they take too many

// list counts a list or text of elements of size bytes each, and returns its place and length. The length
// is 0 if too many bytes were counted.
func (s *schemaSize) list(t flatbuffers.Table, field flatbuffers.VOffsetT, size int64) (at flatbuffers.UOffsetT,
	n int) {
	offset := flatbuffers.UOffsetT(t.Offset(field))
	if offset == 0 {
		return 0, 0
	}
	n = t.VectorLen(offset)
	if s.left -= int64(n) * size; s.left < 0 {
		return 0, 0
	}
	return t.Vector(offset), n
}

// fields counts columns and the columns inside them.
func (s *schemaSize) fields(t flatbuffers.Table, field flatbuffers.VOffsetT, depth int) {
	at, n := s.list(t, field, fieldBytes)
	if n > 0 && depth == maxArrowDepth {
		s.left = -1
	}
	for ; n > 0 && s.left >= 0; at, n = at+flatbuffers.SizeUOffsetT, n-1 {
		column := flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(at)}
		s.list(column, fieldName, 1)
		s.pairs(column, fieldMetadata)
		if of, ok := arrowTable(column, fieldOf); ok {
			// The details are the time zone of a timestamp, or the numbers of the types of a union.
			if kind := column.GetByteSlot(fieldKind, 0); kind == kindTimestamp || kind == kindUnion {
				s.list(of, kindDetails, 4)
			}
		}
		s.fields(column, fieldInside, depth+1)
	}
}

// pairs counts metadata.
func (s *schemaSize) pairs(t flatbuffers.Table, field flatbuffers.VOffsetT) {
	at, n := s.list(t, field, pairBytes)
	for ; n > 0 && s.left >= 0; at, n = at+flatbuffers.SizeUOffsetT, n-1 {
		pair := flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(at)}
		s.list(pair, pairKey, 1)
		s.list(pair, pairValue, 1)
	}
}

// arrowTable returns the table in a field of another table.
func arrowTable(t flatbuffers.Table, field flatbuffers.VOffsetT) (flatbuffers.Table, bool) {
	at := flatbuffers.UOffsetT(t.Offset(field))
	if at == 0 {
		return t, false
	}
	return flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(t.Pos + at)}, true
}
