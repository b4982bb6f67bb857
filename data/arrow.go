package data

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/arrio"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	flatbuffers "github.com/google/flatbuffers/go"

	"steadyfit/data/internal/fault"
)

const (
	anArrowFile    = "an Arrow file"
	arrowMagic     = "ARROW1"
	arrowContinues = "\xff\xff\xff\xff" // begins each message
	arrowEnd       = arrowContinues + "\x00\x00\x00\x00"
	// maxArrowHeader is the maximum size of the header of a message in bytes.
	maxArrowHeader = 64 << 20
)

// openArrow opens an Arrow IPC file, which is also version 2 of Feather, or an IPC stream, of size bytes.
func openArrow(r io.ReaderAt, size int64, l *limit) (rows *typedRows, err error) {
	messages, err := arrowMessages(r, size)
	if err != nil {
		return nil, err
	}
	defer fault.Recovered(&err)
	if err := checkArrowSchema(messages); err != nil {
		return nil, err
	}
	values := newBoundedMemory(l)
	options := []ipc.Option{
		ipc.WithAllocator(values),
		ipc.WithMetadataSizeLimit(min(maxArrowHeader, size)),
		ipc.WithBodySizeLimit(size),
	}
	source := ipc.NewMessageReader(bufio.NewReaderSize(messages, 1<<20), options...)
	batches, err := ipc.NewReaderFromMessageReader(source, options...)
	if err != nil {
		return nil, err
	}
	metadata, _ := batches.Schema().Metadata().GetValue("huggingface") // "" if there is none
	if rows, err = newTypedRows(batches.Schema(), metadata, l); err == nil {
		rows.memory, rows.open = values, func([]bool) (arrio.Reader, error) { return batches, nil }
	}
	return rows, err
}

// arrowMessages returns the messages of a file or a stream. A file is a stream between a magic and a footer.
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

// The offsets of parts of messages and schemas (Message.fbs and Schema.fbs of Arrow).
const (
	messageHeader                = 8
	schemaFields, schemaMetadata = 6, 8
	fieldInside, fieldMetadata   = 14, 16
)

// checkArrowSchema returns an error if the schema of an Arrow file, which is its first message, states lists that do
// not fit in the message, because the library allocates a list with the length that the message states.
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
	content := flatbuffers.UOffsetT(root.Offset(messageHeader))
	if content == 0 {
		return nil // the library refuses it
	}
	schema := flatbuffers.Table{Bytes: raw, Pos: root.Indirect(root.Pos + content)}
	return cmp.Or(checkArrowList(schema, schemaMetadata, nil), checkArrowList(schema, schemaFields, checkArrowField))
}

func checkArrowField(field flatbuffers.Table) error {
	return cmp.Or(checkArrowList(field, fieldMetadata, nil), checkArrowList(field, fieldInside, checkArrowField))
}

// checkArrowList checks the length of a list, and its elements with each, if it is not nil.
func checkArrowList(t flatbuffers.Table, slot flatbuffers.VOffsetT, each func(flatbuffers.Table) error) error {
	offset := flatbuffers.UOffsetT(t.Offset(slot))
	if offset == 0 {
		return nil
	}
	n, at := t.VectorLen(offset), t.Vector(offset)
	if most := len(t.Bytes) / flatbuffers.SizeUOffsetT; n > most {
		return fmt.Errorf("a schema with a list of %d elements, expected at most %d: %w", n, most, ErrFormat)
	}
	for i := 0; i < n && each != nil; i++ {
		element := at + flatbuffers.UOffsetT(i*flatbuffers.SizeUOffsetT)
		if err := each(flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(element)}); err != nil {
			return err
		}
	}
	return nil
}
