package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
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
	text    []byte // the line
	pending bool   // whether the line has not been returned yet
	names   []string
	column  map[string]int
	ignored map[string]bool // names whose values are not read
	late    []string        // those that the first line lacks
	cells   []cell
	found   map[string]bool // the names in the line
	seen    []int           // the line of the last value of each column
}

func newJSONRows(text io.Reader) rowSource {
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxRow)
	return &jsonRows{lines: lines, column: map[string]int{}, found: map[string]bool{}}
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
	for object, all := range ignoredObjects(j.names, func(name string) bool { return j.ignored[name] }) {
		if _, isValue := j.column[object]; isValue {
			continue
		}
		if j.ignored[object] = all; all {
			j.column[object] = -1
		}
	}
}

// ignoredObjects returns the objects of values, such as outer of outer.class, and whether all their values are ignored.
func ignoredObjects(names []string, isIgnored func(name string) bool) map[string]bool {
	objects := map[string]bool{}
	for _, name := range names {
		for at, c := range name {
			if all, seen := objects[name[:at]]; c == '.' {
				objects[name[:at]] = isIgnored(name) && (all || !seen)
			}
		}
	}
	return objects
}

func (j *jsonRows) bad(name, found, expected, fix string) error {
	if name != "" {
		name = strconv.Quote(name)
	}
	return &RowError{Row: j.line, Column: name, Found: found, Expected: expected, Fix: fix, Err: ErrFormat}
}

// begin finds the names in the first line.
func (j *jsonRows) begin() (names []string, columns int, err error) {
	if err := j.advance(); err != nil {
		return nil, 0, err
	}
	j.pending = true
	err = j.members(j.text, "", func(name string, d *json.Decoder) error {
		if len(j.names) == maxFields {
			return wrongCell(fmt.Sprintf("more than %d names", maxFields), "an object with the inputs of a model",
				"remove unused names")
		}
		j.column[name] = len(j.names)
		j.names = append(j.names, name)
		return skipValue(d)
	})
	j.cells, j.seen = make([]cell, len(j.names)), make([]int, len(j.names))
	return j.names, len(j.names), err
}

// advance reads the next line that is not blank.
func (j *jsonRows) advance() error {
	for j.lines.Scan() {
		j.line++
		j.text = j.lines.Bytes()
		if len(bytes.TrimSpace(j.text)) > 0 {
			j.text = pythonNumbers(j.text)
			return j.checkText()
		}
	}
	if err := j.lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		j.line++
		j.lines = bufio.NewScanner(bytes.NewReader(nil)) // later lines cannot be found
		return j.bad("", fmt.Sprintf("more than %d bytes", maxRow), "the object of a sample",
			"put each sample on a line of its own")
	} else if err != nil {
		return err
	}
	return io.EOF
}

// checkText returns an error for a line that is not text in UTF-8.
func (j *jsonRows) checkText() error {
	switch {
	case bytes.IndexByte(j.text, 0) >= 0:
		return damaged(j.line)
	case !utf8.Valid(j.text): // the decoder replaces invalid bytes
		wrong := notUTF8(string(j.text))
		wrong.Row = j.line
		return wrong
	}
	return nil
}

func (j *jsonRows) next() ([]cell, error) {
	if !j.pending {
		if err := j.advance(); err != nil {
			return nil, err
		}
	}
	j.pending = false
	err := j.members(j.text, "", func(name string, d *json.Decoder) (err error) {
		i, known := j.column[name]
		switch {
		case j.ignored[name]:
			if !known && !slices.Contains(j.late, name) {
				j.late = append(j.late, name)
			}
			return skipValue(d)
		case !known:
			return wrongCell("an unknown name", "a name of the first line: "+texts.Some(j.names),
				"give all lines the same names")
		}
		j.seen[i] = j.line
		j.cells[i], err = readValue(d, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, name := range j.names {
		if j.seen[i] != j.line && !j.ignored[name] {
			return nil, j.bad(name, "no value", "a value, as in the first line", "give all lines the same names")
		}
	}
	return j.cells, nil
}

// members calls each for every value of the object in a text. The value class of an object outer has the name
// outer.class. An object that is empty or ignored is a value. each must read the value from d.
func (j *jsonRows) members(text []byte, object string, each func(name string, d *json.Decoder) error) error {
	wrong := j.bad("", quote(string(text)), "a JSON object", `write a line such as {"text": "...", "label": 1}`)
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return wrong
	}
	if object == "" {
		clear(j.found)
	}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return wrong
		}
		name = object + name
		if j.found[name] && !j.ignored[name] {
			return j.bad(name, "a repeated name", "unique names", lineFix)
		}
		j.found[name] = true
		value := text[d.InputOffset():]
		isObject := !j.ignored[name] && aJSONObject.Match(value) && !inBase64.Match(value) &&
			strings.Count(name, ".") < maxDepth
		if raw := (json.RawMessage{}); isObject && d.Decode(&raw) == nil {
			err = j.members(raw, name+".", each)
		} else if err = each(name, d); err != nil {
			if row := (*RowError)(nil); errors.As(err, &row) {
				row.Row, row.Column = j.line, strconv.Quote(name)
			}
		}
		if err != nil {
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

// aJSONObject matches what comes after a name: an object with values.
var aJSONObject = regexp.MustCompile(`^\s*:\s*\{\s*[^}\s]`)

// inBase64 matches what comes after a name: an object with a text in base64.
var inBase64 = regexp.MustCompile(`^\s*:\s*\{\s*"b64"\s*:\s*"[^"]*"\s*\}`)

// Python writes the numbers NaN and Infinity, which are not JSON. They are read as these numbers, whose texts no
// other value has.
const (
	jsonNaN      = "1e998"
	jsonInfinity = "1e999"
)

// pythonNumbers replaces NaN and Infinity outside of texts.
func pythonNumbers(line []byte) []byte {
	if !bytes.Contains(line, []byte("NaN")) && !bytes.Contains(line, []byte("Infinity")) {
		return line
	}
	parts := bytes.SplitAfter(line, []byte{'"'})
	inside := false
	for i, part := range parts {
		if !inside {
			part = bytes.ReplaceAll(part, []byte("NaN"), []byte(jsonNaN))
			parts[i] = bytes.ReplaceAll(part, []byte("Infinity"), []byte(jsonInfinity))
		}
		escapes := len(part) - 1 - len(bytes.TrimRight(bytes.TrimSuffix(part, []byte{'"'}), `\`))
		if !inside || escapes%2 == 0 { // the quote ends the text
			inside = !inside
		}
	}
	return bytes.Join(parts, nil)
}

func skipValue(d *json.Decoder) error {
	if err := d.Decode(new(json.RawMessage)); err != nil {
		return wrongJSON(err)
	}
	return nil
}

// wrongJSON returns the error for a value that the decoder refused.
func wrongJSON(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errors.New("the line ends")
	}
	return wrongCell("an invalid JSON value: "+err.Error(), aValue, lineFix)
}

// maxDepth limits nested arrays, as in NumPy, and nested objects.
const maxDepth = 64

// readValue reads a value that is nested in depth arrays.
func readValue(d *json.Decoder, depth int) (cell, error) {
	token, err := d.Token()
	if err != nil {
		return cell{}, wrongJSON(err)
	}
	switch v := token.(type) {
	case json.Number:
		text := strings.Replace(strings.Replace(v.String(), jsonNaN, "NaN", 1), jsonInfinity, "Infinity", 1)
		return cell{scalar: scalar{numberCell, text}}, nil
	case string:
		return cell{scalar: scalar{textCell, v}}, nil
	case bool:
		return cell{scalar: scalar{boolCell, strconv.FormatBool(v)}}, nil
	case nil:
		if depth > 0 {
			return cell{}, wrongCell("null", aValue, lineFix)
		}
		return cell{scalar: scalar{kind: nullCell}}, nil
	}
	if token == json.Delim('{') {
		return readBase64(d)
	}
	if token != json.Delim('[') {
		return cell{}, wrongCell(fmt.Sprint(token), aValue, lineFix)
	}
	return readList(d, depth)
}

// readBase64 reads {"b64": TEXT} after the brace.
func readBase64(d *json.Decoder) (c cell, err error) {
	var text []byte
	key, err := d.Token()
	if err == nil {
		err = d.Decode(&text)
	}
	if end, _ := d.Token(); err != nil || key != "b64" || end != json.Delim('}') {
		return c, wrongCell("an object", aValue+`, or {"b64": TEXT} in base64`, lineFix)
	}
	return cell{scalar: scalar{textCell, string(text)}, encoded: true}, nil
}

// readList reads an array whose elements are single values or arrays of one shape.
func readList(d *json.Decoder, depth int) (list cell, err error) {
	if depth == maxDepth {
		return cell{}, wrongCell("too many nested arrays", fmt.Sprintf("at most %d", maxDepth), lineFix)
	}
	list.kind = listCell
	var inner []int
	n := 0
	for ; d.More(); n++ {
		value, err := readValue(d, depth+1)
		if err != nil {
			return cell{}, err
		}
		if n == 0 {
			inner = value.shape
		}
		switch {
		case len(value.shape) > len(inner):
			return cell{}, wrongCell("an array", "a single value", lineFix)
		case !slices.Equal(value.shape, inner):
			return cell{}, wrongCell("an array of "+dimensions(value.shape), "an array of "+dimensions(inner), lineFix)
		case value.kind == listCell:
			list.items = append(list.items, value.items...)
		default:
			list.items = append(list.items, value.scalar)
		}
		if len(list.items) > maxColumns {
			return cell{}, wrongCell(fmt.Sprintf("more than %d values", maxColumns), "an array of the values of a sample",
				lineFix)
		}
	}
	if _, err := d.Token(); err != nil {
		return cell{}, wrongCell("an array without an end", "a JSON object", lineFix)
	}
	if n == 0 {
		return cell{}, wrongCell("an array of 0", "an array of 1", lineFix)
	}
	list.shape = append([]int{n}, inner...)
	return list, nil
}
