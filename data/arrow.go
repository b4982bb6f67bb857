package data

import (
	"bufio"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/arrio"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"steadyfit/data/internal/fault"
)

const (
	arrowContinues = "\xff\xff\xff\xff" // begins each message
	arrowEnd       = arrowContinues + "\x00\x00\x00\x00"
)

// openArrow opens an Arrow IPC file, which is also version 2 of Feather, or an IPC stream, of size bytes.
func openArrow(r io.ReaderAt, size int64) (rows *typedRows, err error) {
	defer fault.Recovered(&err)
	content := io.NewSectionReader(r, 0, size)
	head, end := make([]byte, len(ipc.Magic)), make([]byte, len(arrowEnd))
	if _, err := content.ReadAt(head, 0); err != nil {
		return nil, err
	}
	options := []ipc.Option{ipc.WithMetadataSizeLimit(size), ipc.WithBodySizeLimit(size)}
	var batches interface {
		arrio.Reader
		Schema() *arrow.Schema
	}
	switch {
	case string(head) == string(ipc.Magic):
		batches, err = ipc.NewFileReader(content, options...)
	case string(head[:len(arrowContinues)]) != arrowContinues:
		return nil, fmt.Errorf("no Arrow file or stream: it begins with %q: %w", head, ErrFormat)
	default:
		if _, err := content.ReadAt(end, size-int64(len(end))); err != nil {
			return nil, err
		}
		if string(end) != arrowEnd {
			return nil, fmt.Errorf("truncated: the stream has no mark of its end; %s: %w", interrupted, ErrFormat)
		}
		messages := ipc.NewMessageReader(bufio.NewReaderSize(content, 1<<20), options...)
		batches, err = ipc.NewReaderFromMessageReader(messages, options...)
	}
	if err != nil {
		return nil, err
	}
	return newTypedRows(batches.Schema(), func([]bool) (arrio.Reader, error) { return batches, nil }), nil
}
