package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/texts"
)

// jsonRows reads the objects of JSON lines. Each line is an object with the names of the first one. A value
// is a number, a text, a bool, an array of them, which may be nested and has one shape, or an object of values. The
// object {"b64": TEXT} is a text or an image in base64.
type jsonRows struct {
	lines   *bufio.Scanner
	line    int
	names   []string
	known   map[string]bool            // whether a name is in names
	values  map[string]json.RawMessage // of the line
	inLine  []string                   // the names in the line
	pending bool                       // whether the line has not been returned yet
	ignored map[string]bool            // names whose values are not read
	late    []string                   // those that the first line lacks
	cells   []cell
}

// maxLine is the maximum number of bytes of a line.
const maxLine = 16 << 20

func newJSONRows(text io.Reader) rowSource {
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxLine)
	return &jsonRows{lines: lines}
}

func (j *jsonRows) flat() bool { return false }

func (j *jsonRows) place(column int) (line int, name string) {
	return j.line, strconv.Quote(j.names[column])
}

func (j *jsonRows) skip(names []string) {
	j.ignored = map[string]bool{}
	for _, name := range names {
		j.ignored[name] = true
	}
}

func (j *jsonRows) bad(name, found, expected, fix string) error {
	if name != "" {
		name = strconv.Quote(name)
	}
	return &RowError{Row: j.line, Column: name, Found: found, Expected: expected, Fix: fix, Err: ErrFormat}
}

// begin finds the names in the first line.
func (j *jsonRows) begin() (names []string, columns int, err error) {
	err = j.advance()
	j.pending, j.names, j.cells, j.known = true, j.inLine, make([]cell, len(j.inLine)), map[string]bool{}
	for _, name := range j.names {
		j.known[name] = true
	}
	return j.names, len(j.names), err
}

// advance reads the next line that is not blank.
func (j *jsonRows) advance() error {
	for j.lines.Scan() {
		j.line++
		if text := j.lines.Bytes(); len(bytes.TrimSpace(text)) > 0 {
			return j.read(text)
		}
	}
	if err := j.lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		j.line++
		j.lines = bufio.NewScanner(bytes.NewReader(nil)) // later lines cannot be found
		return j.bad("", fmt.Sprintf("more than %d bytes", maxLine), "the object of a sample",
			"put each sample on a line of its own")
	} else if err != nil {
		return err
	}
	return io.EOF
}

// read finds the names and values of an object.
func (j *jsonRows) read(text []byte) error {
	j.values, j.inLine = map[string]json.RawMessage{}, nil
	if !utf8.Valid(text) { // the decoder replaces invalid bytes
		wrong := notUTF8(string(text))
		wrong.Row = j.line
		return wrong
	}
	return j.members(text, "")
}

// members adds the values of an object. The value class of an object outer has the name outer.class. An object that is
// empty or ignored is a value.
func (j *jsonRows) members(text []byte, object string) error {
	wrong := j.bad("", quote(string(text)), "a JSON object", `write a line such as {"text": "...", "label": 1}`)
	d := json.NewDecoder(bytes.NewReader(text))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return wrong
	}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return wrong
		}
		name = object + name
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return j.bad(name, "an invalid JSON value: "+wrongJSON(err), aValue, lineFix)
		}
		if _, twice := j.values[name]; twice && !j.ignored[name] {
			return j.bad(name, "a repeated name", "unique names", lineFix)
		}
		j.values[name] = value
		isObject := value[0] == '{' && len(bytes.Trim(value, "{} \t\r\n")) > 0 && !isBase64(value)
		if !isObject || j.ignored[name] {
			j.inLine = append(j.inLine, name)
		} else if err := j.members(value, name+"."); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return wrong
	}
	if _, err := d.Token(); err != io.EOF {
		return j.bad("", "more after the object", "one JSON object", "put each sample on a line of its own")
	}
	return nil
}

// wrongJSON describes an error of the decoder.
func wrongJSON(err error) string {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return "the line ends"
	}
	return err.Error()
}

func (j *jsonRows) next() ([]cell, error) {
	if !j.pending {
		if err := j.advance(); err != nil {
			return nil, err
		}
	}
	j.pending = false
	for _, name := range j.inLine {
		switch {
		case j.known[name]:
		case !j.ignored[name]:
			return nil, j.bad(name, "an unknown name", "a name of the first line: "+texts.Some(j.names),
				"give all lines the same names")
		case !slices.Contains(j.late, name):
			j.late = append(j.late, name)
		}
	}
	for i, name := range j.names {
		value, ok := j.values[name]
		if j.ignored[name] {
			continue
		}
		if !ok {
			return nil, j.bad(name, "no value", "a value, as in the first line", "give all lines the same names")
		}
		var err error
		if j.cells[i], err = readValue(value); err != nil {
			if row := (*RowError)(nil); errors.As(err, &row) {
				row.Row, row.Column = j.line, strconv.Quote(name)
			}
			return nil, err
		}
	}
	return j.cells, nil
}

// maxDepth limits the dimensions of an array, as in NumPy.
const maxDepth = 64

// readValue reads a value, which is valid JSON.
func readValue(value json.RawMessage) (c cell, err error) {
	switch value[0] {
	case '"':
		c.kind, err = textCell, json.Unmarshal(value, &c.text)
	case 't', 'f':
		c.scalar = scalar{boolCell, string(value)}
	case 'n':
		c.kind = nullCell
	case '[':
		return readList(value)
	case '{':
		var object struct{ B64 []byte }
		if !isBase64(value) || json.Unmarshal(value, &object) != nil {
			return c, wrongCell("an object", aValue+`, or {"b64": TEXT} in base64`, lineFix)
		}
		return cell{scalar: scalar{textCell, string(object.B64)}, encoded: true}, nil
	default:
		c.scalar = scalar{numberCell, string(value)}
	}
	return c, err
}

// isBase64 reports whether a value is an object {"b64": TEXT}.
func isBase64(value json.RawMessage) bool {
	var object map[string]json.RawMessage
	return strings.HasPrefix(string(bytes.TrimLeft(value[1:], " ")), `"b64"`) && json.Unmarshal(value, &object) == nil &&
		len(object) == 1 && object["b64"][0] == '"'
}

// readList reads an array whose elements are single values or arrays of one shape.
func readList(value json.RawMessage) (list cell, err error) {
	var values []json.RawMessage
	if err := json.Unmarshal(value, &values); err != nil {
		return list, err
	}
	list.kind, list.shape = listCell, []int{len(values)}
	for i, value := range values {
		item, err := readValue(value)
		switch {
		case err != nil:
			return list, err
		case item.kind == nullCell:
			return list, wrongCell("null", aValue, lineFix)
		case i == 0:
			list.shape = append(list.shape, item.shape...)
		case len(item.shape) > len(list.shape[1:]):
			return list, wrongCell("an array", "a single value", lineFix)
		case !slices.Equal(item.shape, list.shape[1:]):
			return list, wrongCell("an array of "+dimensions(item.shape), "an array of "+dimensions(list.shape[1:]), lineFix)
		}
		if item.kind == listCell {
			list.items = append(list.items, item.items...)
		} else {
			list.items = append(list.items, item.scalar)
		}
	}
	return list, nil
}
