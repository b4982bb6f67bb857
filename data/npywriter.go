package data

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"steadyfit/internal/dtype"
)

// NPYWriter writes one array as numpy.save does, batch by batch. The number of
// samples is part of the file's beginning, so it has to be known.
type NPYWriter struct {
	w                *bufio.Writer
	samples, written int
	shape            []int // of one sample
	kind             *dtype.Type
}

// NewNPYWriter writes an array of so many samples to w. Flush it in the end.
func NewNPYWriter(w io.Writer, samples int) *NPYWriter {
	return &NPYWriter{w: bufio.NewWriter(w), samples: samples}
}

// Write writes the samples of a batch of one field, which must have the same
// type and shape of a sample each time.
func (n *NPYWriter) Write(fields ...Field) error {
	if len(fields) != 1 {
		return fmt.Errorf("a .npy file holds one array, got %d fields: %w", len(fields), ErrUnsupported)
	}
	count, vectors, err := rows(fields)
	if err != nil {
		return err
	}
	v, shape := vectors[0], fields[0].Shape[1:]
	if n.kind == nil {
		if err := writeNPYHeader(n.w, v, append([]int{n.samples}, shape...)); err != nil {
			return err
		}
		n.kind, n.shape = v.kind(), slices.Clone(shape)
	}
	if v.kind() != n.kind || !slices.Equal(shape, n.shape) {
		return fmt.Errorf("field %s: %s %v after %s %v in the same array: %w", fields[0].Name, v.kind().Name, shape, n.kind.Name, n.shape, ErrField)
	}
	n.written += count
	return writeNumbers(n.w, v)
}

// Flush writes out what is buffered. It fails if more or fewer samples were
// written than announced.
func (n *NPYWriter) Flush() error {
	if n.written != n.samples {
		return fmt.Errorf("a .npy file of %d samples got %d: %w", n.samples, n.written, ErrFormat)
	}
	return n.w.Flush()
}
