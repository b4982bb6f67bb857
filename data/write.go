package data

import (
	"bufio"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"steadyfit/internal/dtype"
)

// Writer writes batches of named arrays to a file.
type Writer interface {
	// Write writes a batch. All batches must have the same fields.
	Write(fields ...Field) error
	// Flush writes buffered output. Call it after the last batch.
	Flush() error
}

// NewWriter returns a writer for a format, which is named by its extension:
//
//   - .csv is a table with a header and one row per sample. A field with several values per sample has one
//     column per element, such as name_0 or name_1_2.
//   - .jsonl has one JSON object per line and sample. A field is a value, or nested arrays in the shape of
//     the sample. NaN and infinities are the strings "NaN", "Infinity" and "-Infinity", as in the JSON of
//     protocol buffers.
//   - .npy has one field in the format of numpy.save, in C order and little-endian. Flush fails unless
//     exactly samples samples were written. Strings are ErrUnsupported, since NumPy stores text with a
//     fixed width.
//
// Floats that are written as text have enough digits to be read back exactly. Other formats are ErrUnsupported.
func NewWriter(w io.Writer, format string, samples int) (Writer, error) {
	switch format {
	case ".csv":
		return &csvWriter{w: csv.NewWriter(w)}, nil
	case ".jsonl":
		return &jsonlWriter{w: bufio.NewWriter(w)}, nil
	case ".npy":
		return &npyWriter{w: bufio.NewWriter(w), samples: samples}, nil
	}
	return nil, fmt.Errorf("writing the format %q is %w; expected .csv, .jsonl or .npy", format, ErrUnsupported)
}

type csvWriter struct {
	w       *csv.Writer
	columns []string
	row     []string
}

func (c *csvWriter) Write(fields ...Field) error {
	n, vectors, err := rows(fields)
	if err != nil {
		return err
	}
	var columns []string
	for i, f := range fields {
		for at := range vectors[i].len() / n {
			columns = append(columns, strings.Join(append([]string{f.Name}, indexes(at, f.Shape[1:])...), "_"))
		}
	}
	if c.columns == nil {
		c.columns = columns
		if err := c.w.Write(columns); err != nil {
			return err
		}
	}
	if !slices.Equal(c.columns, columns) {
		return fmt.Errorf("the batch has the columns %s, but the table has %s: %w", list(columns), list(c.columns), ErrFormat)
	}
	var text []byte
	for i := range n {
		c.row = c.row[:0]
		for _, v := range vectors {
			width := v.len() / n
			for at := range width {
				text = v.kind().AppendText(text[:0], v.element(i*width+at))
				c.row = append(c.row, string(text))
			}
		}
		if err := c.w.Write(c.row); err != nil {
			return err
		}
	}
	return nil
}

func (c *csvWriter) Flush() error {
	c.w.Flush()
	return c.w.Error()
}

type jsonlWriter struct {
	w    *bufio.Writer
	line []byte
}

func (j *jsonlWriter) Write(fields ...Field) error {
	n, vectors, err := rows(fields)
	if err != nil {
		return err
	}
	names := make([][]byte, len(fields))
	for i, f := range fields {
		if names[i], err = json.Marshal(f.Name); err != nil {
			return err
		}
	}
	for sample := range n {
		j.line = append(j.line[:0], '{')
		for i, f := range fields {
			if i > 0 {
				j.line = append(j.line, ',')
			}
			j.line = append(append(j.line, names[i]...), ':')
			width := vectors[i].len() / n
			if j.line, err = appendJSON(j.line, vectors[i], sample*width, width, f.Shape[1:]); err != nil {
				return err
			}
		}
		if _, err := j.w.Write(append(j.line, '}', '\n')); err != nil {
			return err
		}
	}
	return nil
}

func (j *jsonlWriter) Flush() error { return j.w.Flush() }

// appendJSON appends width elements, starting at index at, as nested arrays.
func appendJSON(line []byte, v vector, at, width int, shape []int) ([]byte, error) {
	if len(shape) == 0 {
		return appendJSONValue(line, v, at)
	}
	line = append(line, '[')
	part := width / shape[0]
	for i := range shape[0] {
		if i > 0 {
			line = append(line, ',')
		}
		var err error
		if line, err = appendJSON(line, v, at+i*part, part, shape[1:]); err != nil {
			return nil, err
		}
	}
	return append(line, ']'), nil
}

func appendJSONValue(line []byte, v vector, at int) ([]byte, error) {
	if v, ok := v.(vec[string]); ok {
		text, err := json.Marshal(v[at])
		return append(line, text...), err
	}
	switch f := v.kind().Float(v.element(at)); {
	case math.IsNaN(f):
		return append(line, `"NaN"`...), nil
	case math.IsInf(f, 1):
		return append(line, `"Infinity"`...), nil
	case math.IsInf(f, -1):
		return append(line, `"-Infinity"`...), nil
	}
	return v.kind().AppendText(line, v.element(at)), nil
}

type npyWriter struct {
	w                *bufio.Writer
	samples, written int
	shape            []int // of one sample
	kind             *dtype.Type
}

func (n *npyWriter) Write(fields ...Field) error {
	if len(fields) != 1 {
		return fmt.Errorf("a .npy file holds one array, got %d fields: %w", len(fields), ErrUnsupported)
	}
	count, vectors, err := rows(fields)
	if err != nil {
		return err
	}
	v, shape := vectors[0], fields[0].Shape[1:]
	if n.kind == nil {
		if err := writeNPYHeader(n.w, v.kind(), append([]int{n.samples}, shape...)); err != nil {
			return err
		}
		n.kind, n.shape = v.kind(), slices.Clone(shape)
	}
	if v.kind() != n.kind || !slices.Equal(shape, n.shape) {
		return fmt.Errorf("field %s: this batch has %s %v, but the array has %s %v: %w", fields[0].Name, v.kind().Name, shape,
			n.kind.Name, n.shape, ErrField)
	}
	n.written += count
	_, err = n.w.Write(bytesOf(v, 0, v.len()))
	return err
}

func (n *npyWriter) Flush() error {
	if n.written != n.samples {
		return fmt.Errorf("a .npy file for %d samples got %d: %w", n.samples, n.written, ErrFormat)
	}
	return n.w.Flush()
}

func writeNPYHeader(w io.Writer, kind *dtype.Type, shape []int) error {
	if kind.NumPy == "" {
		return fmt.Errorf("a .npy file of type %s: %w", kind.Name, ErrUnsupported)
	}
	mark := "<"
	if kind.Size == 1 {
		mark = "|"
	}
	tuple := strings.ReplaceAll(strings.Trim(fmt.Sprint(shape), "[]"), " ", ", ")
	if len(shape) == 1 {
		tuple += ","
	}
	header := fmt.Sprintf("{'descr': '%s%s', 'fortran_order': False, 'shape': (%s), }", mark, kind.NumPy, tuple)
	// Aligning the values to 64 bytes allows mapping them.
	const before = len(npyMagic) + 2 + 2
	header += strings.Repeat(" ", 63-(before+len(header))%64) + "\n"
	start := binary.LittleEndian.AppendUint16([]byte(npyMagic+"\x01\x00"), uint16(len(header)))
	_, err := w.Write(append(start, header...))
	return err
}

func rows(fields []Field) (int, []vector, error) {
	if len(fields) == 0 {
		return 0, nil, fmt.Errorf("nothing to write: %w", ErrField)
	}
	vectors := make([]vector, len(fields))
	for i, f := range fields {
		v, err := arrayVector(f.Array)
		if err != nil {
			return 0, nil, fmt.Errorf("field %q: %w", f.Name, err)
		}
		if len(f.Shape) == 0 || v.len() == 0 || f.Shape[0] != fields[0].Shape[0] {
			return 0, nil, fmt.Errorf("field %q of shape %v cannot be written as rows of the same number of samples: %w", f.Name,
				f.Shape, ErrFormat)
		}
		vectors[i] = v
	}
	return fields[0].Shape[0], vectors, nil
}
