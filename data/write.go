package data

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
)

// CSVWriter writes named arrays as a table, batch by batch, one row per sample:
// a field of one value per sample is a column of its name, and of a larger
// field each element is a column, name_0 or name_1_2. Floats have as many
// digits as it takes to read the same value back.
type CSVWriter struct {
	w       *csv.Writer
	columns []string
	row     []string
}

// NewCSVWriter writes to w. Flush it in the end.
func NewCSVWriter(w io.Writer) *CSVWriter { return &CSVWriter{w: csv.NewWriter(w)} }

// Write writes the samples of a batch; the first call writes the header too,
// and later calls need the same columns.
func (c *CSVWriter) Write(fields ...Field) error {
	n, vectors, err := rows(fields)
	if err != nil {
		return err
	}
	var columns []string
	for i, f := range fields {
		for at := range vectors[i].len() / n {
			columns = append(columns, columnOf(f.Name, at, f.Shape[1:]))
		}
	}
	if c.columns == nil {
		c.columns = columns
		if err := c.w.Write(columns); err != nil {
			return err
		}
	}
	if err := sameColumns(c.columns, columns); err != nil {
		return err
	}
	var text []byte
	for i := range n {
		c.row = c.row[:0]
		for _, v := range vectors {
			width := v.len() / n
			for at := range width {
				text = appendText(text[:0], v, i*width+at)
				c.row = append(c.row, string(text))
			}
		}
		if err := c.w.Write(c.row); err != nil {
			return err
		}
	}
	return nil
}

// Flush writes out what is buffered.
func (c *CSVWriter) Flush() error {
	c.w.Flush()
	return c.w.Error()
}

func sameColumns(have, got []string) error {
	if len(have) != len(got) {
		return fmt.Errorf("a batch of %d columns in a table of %d: %w", len(got), len(have), ErrFormat)
	}
	for i := range have {
		if have[i] != got[i] {
			return fmt.Errorf("column %d is %q, but %q in the batch: %w", i+1, have[i], got[i], ErrFormat)
		}
	}
	return nil
}

func columnOf(name string, at int, shape []int) string {
	return strings.Join(append([]string{name}, indexes(at, shape)...), "_")
}

// JSONLWriter writes named arrays as JSON lines, batch by batch: one object per
// sample, with a number, or nested arrays in the sample's shape, per field.
// Floats have as many digits as it takes to read the same value back. NaN and
// infinities, which JSON does not have, are the strings "NaN", "Infinity" and
// "-Infinity", as in the JSON of protocol buffers.
type JSONLWriter struct {
	w    *bufio.Writer
	line []byte
}

// NewJSONLWriter writes to w. Flush it in the end.
func NewJSONLWriter(w io.Writer) *JSONLWriter { return &JSONLWriter{w: bufio.NewWriter(w)} }

// Write writes the samples of a batch.
func (j *JSONLWriter) Write(fields ...Field) error {
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

// Flush writes out what is buffered.
func (j *JSONLWriter) Flush() error { return j.w.Flush() }

// appendJSON appends the width elements from at on as arrays of a shape.
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
	f := v.kind().Float(v.element(at))
	switch {
	case math.IsNaN(f):
		return append(line, `"NaN"`...), nil
	case math.IsInf(f, 1):
		return append(line, `"Infinity"`...), nil
	case math.IsInf(f, -1):
		return append(line, `"-Infinity"`...), nil
	}
	return appendText(line, v, at), nil
}

// rows checks that fields are arrays of the same number of samples, which it
// returns.
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
			return 0, nil, fmt.Errorf("field %q of shape %v cannot be written as rows of the same number of samples: %w", f.Name, f.Shape, ErrFormat)
		}
		vectors[i] = v
	}
	return fields[0].Shape[0], vectors, nil
}
