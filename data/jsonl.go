package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/english"
)

// readJSONL reads JSON lines. Each line is an object with the same names. A name becomes a field whose
// values are numbers, text, bools or (nested) arrays of one shape.
//
// CSVOptions.Label becomes y. Text labels are class names, which are numbered as in a CSV file. If all
// of them are integers and the options have no class names, they are numbers. InMemory.layOut assigns
// the other names to fields. Names that are left out may have any values. A field is int64 if all its
// numbers are integers, which must be below 2^53. Otherwise it is float32, or float64 with
// CSVOptions.Exact; sample_weight is always float32.
//
// An invalid line is a *RowError (ErrFormat): a line that is not an object or not UTF-8, names or shapes that
// differ from the first line, null, or a number too large for float32.
func readJSONL(name string, r io.Reader, o CSVOptions, l *limit) (*InMemory, error) {
	t := objects{file: name, values: l.again(), options: o, found: problems{source: name}}
	var err error
	if t.rules, err = o.rules(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	text, err := textReader(l.reader(r))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, corrupt(err))
	}
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxRow)
	found := &t.found
	line := 1
	for ; lines.Scan(); line++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		err := t.add(lines.Bytes(), line)
		if err == nil {
			continue
		}
		if !found.addCell(err) || !errors.As(err, new(*RowError)) {
			return nil, found.err()
		}
	}
	if err := lines.Err(); err == bufio.ErrTooLong {
		found.add(t.bad(line, "", fmt.Sprintf("more than %d bytes", maxRow), "the object of a sample", "put each sample on a line of its own"))
	} else if err != nil {
		found.add(fmt.Errorf("%s: %w", name, corrupt(err)))
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	if len(t.lines) == 0 {
		return nil, fmt.Errorf("%s: it has no objects: %w", name, ErrFormat)
	}
	if err := o.useSchema(t.rules, slices.Concat(t.names, t.out), o.Label); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t.dataset(o)
}

type objects struct {
	file    string
	values  *limit // for the values in memory
	options CSVOptions
	rules   map[string]*Rule
	names   []string              // in the order of the first line
	out     []string              // the names that are left out
	fields  map[string]*jsonField // nil for a name that is left out
	lines   []int                 // line of each sample
	found   problems
}

type jsonField struct {
	line    int    // line of the last value
	shape   []int  // of one sample
	kind    string // type of the values, for messages
	numbers []float64
	real    bool // whether a number is not an integer
	texts   []string
	bools   []bool
	rule    *Rule // may be nil
}

func (t *objects) bad(line int, name, found, expected, fix string) error {
	return &RowError{File: t.file, Unit: "line", Row: line, Column: name, Found: found, Expected: expected, Fix: fix, Err: ErrFormat}
}

// checkText returns an error for a line that is not text in UTF-8.
func (t *objects) checkText(text []byte, line int) error {
	switch {
	case bytes.IndexByte(text, 0) >= 0:
		return damaged(t.file, line)
	case !utf8.Valid(text): // the decoder replaces invalid bytes
		wrong := notUTF8(string(text))
		return t.bad(line, "", wrong.Found, wrong.Expected, wrong.Fix)
	}
	return nil
}

func (t *objects) add(text []byte, line int) error {
	if err := t.checkText(text, line); err != nil {
		return err
	}
	if len(t.lines) == 0 { // the first line defines the names and shapes
		if err := t.start(text, line); err != nil {
			return err
		}
	}
	seen := 0
	err := t.members(text, line, func(name string, d *json.Decoder) error {
		f, known := t.fields[name]
		if known && f == nil {
			return skipValue(d)
		}
		if len(t.found.columns) > 0 && t.found.full(strconv.Quote(name)) {
			return skipValue(d)
		}
		if f == nil && len(t.names) == maxFields {
			return t.bad(line, "", fmt.Sprintf("more than %d names", maxFields), "an object with the inputs of a model", "remove unused names")
		}
		if f == nil && len(t.lines) > 0 {
			return t.bad(line, strconv.Quote(name), "an unknown name", "a name of the first line: "+english.Some(t.names), "give all lines the same names")
		}
		if f == nil {
			f = t.addField(name)
		}
		repeated := f.line == line
		f.line = line
		err := t.value(d, f, 0)
		if err == nil && repeated {
			err = wrong("a repeated name", "unique names")
		}
		seen++
		return err
	})
	if err != nil {
		return err
	}
	if err := t.values.take(rowBytes); err != nil {
		return fmt.Errorf("%s: %w", t.file, err)
	}
	missing := -1
	if seen != len(t.names) {
		missing = slices.IndexFunc(t.names, func(name string) bool { return t.fields[name].line != line && !t.found.full(strconv.Quote(name)) })
	}
	if missing >= 0 {
		return t.bad(line, strconv.Quote(t.names[missing]), "no value", "a value, as in the first line", "give all lines the same names")
	}
	t.lines = append(t.lines, line)
	return nil
}

// start finds the names in the first line that are left out.
func (t *objects) start(text []byte, line int) error {
	t.names, t.fields = nil, make(map[string]*jsonField)
	var names []string
	err := t.members(text, line, func(name string, d *json.Decoder) error {
		names = append(names, name)
		return skipValue(d)
	})
	if err != nil {
		return err
	}
	if t.out, err = t.options.leaveOut(names, t.options.Label); err != nil {
		return fmt.Errorf("%s: %w", t.file, err)
	}
	for _, name := range t.out {
		t.fields[name] = nil
	}
	return nil
}

func skipValue(d *json.Decoder) error {
	if err := d.Decode(new(json.RawMessage)); err != nil {
		return wrongJSON(err)
	}
	return nil
}

// members calls each for every name of the JSON object in text. each must read the value from d.
// members adds the file, the line and the name to the errors that each returns.
func (t *objects) members(text []byte, line int, each func(name string, d *json.Decoder) error) error {
	const fix = `write a line such as {"text": "...", "label": 1}`
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	token, err := d.Token()
	if err != nil || token != json.Delim('{') {
		return t.bad(line, "", quote(string(text)), "a JSON object", fix)
	}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return t.bad(line, "", quote(string(text)), "a JSON object", fix)
		}
		err = each(name, d)
		if row := (*RowError)(nil); errors.As(err, &row) {
			row.File, row.Unit, row.Row, row.Column = t.file, "line", line, strconv.Quote(name)
			return row
		} else if err != nil {
			return fmt.Errorf("%s: %w", t.file, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return t.bad(line, "", quote(string(text)), "a JSON object", fix)
	}
	if _, err := d.Token(); err != io.EOF {
		return t.bad(line, "", "more after the object", "one JSON object", "put each sample on a line of its own")
	}
	return nil
}

func (t *objects) addField(name string) *jsonField {
	rule := t.options.Schema.ruleOf(t.rules, name)
	f := &jsonField{rule: rule, real: name == sampleWeight || rule != nil && rule.Type == "float"}
	t.fields[name] = f
	t.names = append(t.names, name)
	return f
}

// wrong returns an error for a value. objects.members completes it with the line and name.
func wrong(found, expected string) error {
	return &RowError{Found: found, Expected: expected, Fix: "correct the line, or remove it", Err: ErrFormat}
}

// wrongJSON returns the error for a value that the decoder refused.
func wrongJSON(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errors.New("the line ends")
	}
	return wrong("an invalid JSON value: "+err.Error(), aValue)
}

// wrongNull returns an error for a null nested in depth arrays. A rule cannot replace a null in an
// array.
func wrongNull(depth int) error {
	err := &RowError{Found: "null", Expected: aValue, Fix: nullFix, Err: ErrFormat}
	if depth > 0 {
		err.Fix = "correct the line, or remove it"
	}
	return err
}

const aValue = "a number, text, true, false, or an array"

// value appends the next value of a line to f. The value is nested in depth arrays.
func (t *objects) value(d *json.Decoder, f *jsonField, depth int) error {
	token, err := d.Token()
	if err != nil {
		return wrongJSON(err)
	}
	if f.rule != nil && depth == 0 {
		if token, err = f.rule.token(token); err != nil {
			return err
		}
	}
	var kind string
	switch token := token.(type) {
	case nil:
		return wrongNull(depth)
	case json.Number:
		kind = "a number"
	case string:
		kind = "text"
	case bool:
		kind = "true or false"
	case json.Delim:
		if token != '[' {
			return wrong(token.String(), aValue)
		}
		return t.array(d, f, depth)
	}
	switch {
	case depth != len(f.shape):
		return wrong(kind, "an array, as in the first line")
	case f.kind == "":
		f.kind = kind
	case f.kind != kind:
		return wrong(kind, f.kind+", as in the first line")
	}
	if err := t.values.take(textBytes); err != nil {
		return err
	}
	switch v := token.(type) {
	case string:
		f.texts = append(f.texts, v)
	case bool:
		f.bools = append(f.bools, v)
	case json.Number:
		return f.number(v.String(), t.options.Exact)
	}
	return nil
}

// array appends the elements of an array, which is itself nested in depth arrays, to f.
func (t *objects) array(d *json.Decoder, f *jsonField, depth int) error {
	const most = 64 // dimensions, as in NumPy
	if depth == most {
		return wrong("too many nested arrays", fmt.Sprintf("at most %d", most))
	}
	if first := len(t.lines) == 0 && f.kind == ""; first && depth == len(f.shape) {
		f.shape = append(f.shape, -1)
	} else if depth >= len(f.shape) {
		return wrong("an array", "a single value")
	}
	n := 0
	for ; d.More(); n++ {
		if err := t.value(d, f, depth+1); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return wrong("an array without an end", "a JSON object")
	}
	if f.shape[depth] < 0 {
		f.shape[depth] = n
	}
	if n != f.shape[depth] || n == 0 {
		return wrong(fmt.Sprintf("an array of %d", n), fmt.Sprintf("an array of %d", max(1, f.shape[depth])))
	}
	return nil
}

func (f *jsonField) number(text string, exact bool) error {
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.Abs(v) > math.MaxFloat32:
		return wrong(quote(text), fmt.Sprintf("a number within float32, up to %.2g", math.MaxFloat32))
	case strings.ContainsAny(text, ".eE"):
		if f.real = true; !exact {
			v, _ = strconv.ParseFloat(text, 32) // rounding twice may give another number
		}
	case math.Abs(v) >= 1<<53:
		return wrong(quote(text), "an integer below 2^53")
	}
	f.numbers = append(f.numbers, v)
	return nil
}

func (t *objects) dataset(o CSVOptions) (*InMemory, error) {
	label := t.fields[o.Label]
	if label == nil && o.Label != "" {
		return nil, fmt.Errorf("%s: the objects have no name %s; their names are %s: %w", t.file, quote(o.Label), strings.Join(t.names, ", "), ErrField)
	}
	var fields []Field
	for _, name := range t.names {
		if o.Label == "" || name != o.Label {
			fields = append(fields, Field{name, t.fields[name].array(len(t.lines), o.Exact && name != sampleWeight)})
		}
	}
	m, err := newTable(t.file, t.lines, fields, t.out)
	if err != nil {
		return nil, err
	}
	if err := m.layOut(t.names, o.Label, &o); err != nil {
		return nil, fmt.Errorf("%s: %w", t.file, err)
	}
	if o.Label == "" {
		return m, m.addLabel(nil, nil, "")
	}
	classes, y := o.Classes, label.array(len(t.lines), false)
	if names, ok := y.Values.([]string); ok {
		y.Values, classes, err = classNumbers(t.file, names, o, func(i int, found, expected string) error {
			return t.bad(t.lines[i*len(t.lines)/len(names)], strconv.Quote(o.Label), found, expected, "correct it, or remove the line")
		})
		if err != nil {
			return nil, err
		}
	}
	return m, m.addLabel(&y, classes, strconv.Quote(o.Label))
}

// classNumbers returns the numbers of text labels, and the names of their classes, which are nil if
// the texts are integers. bad returns the error for label i.
func classNumbers(file string, names []string, o CSVOptions, bad func(i int, found, expected string) error) (numbers []int64, classes []string, err error) {
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
	}
	if classes = o.Classes; len(classes) == 0 {
		classes = o.Names
	}
	if len(classes) == 0 {
		if integers := parsedIntegers(names); integers != nil {
			return integers, nil, nil
		}
		classes = slices.Compact(slices.Sorted(slices.Values(names)))
	}
	number, err := numbered(classes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	numbers = make([]int64, len(names))
	unknown := problems{source: file}
	for i, name := range names {
		class, ok := number[name]
		if !ok && !unknown.add(bad(i, quote(name), fmt.Sprintf("one of the %d classes, such as %s", len(classes), quote(classes[0])))) {
			break
		}
		numbers[i] = class
	}
	return numbers, classes, unknown.err()
}

// parsedIntegers returns the texts as integers, or nil if one is not an integer.
func parsedIntegers(texts []string) []int64 {
	integers := make([]int64, len(texts))
	for i, text := range texts {
		var err error
		if integers[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil
		}
	}
	return integers
}

func (f *jsonField) array(n int, exact bool) Array {
	a := Array{Shape: append([]int{n}, f.shape...)}
	switch {
	case f.texts != nil:
		a.Values = f.texts
	case f.bools != nil:
		a.Values = f.bools
	case f.real && exact:
		a.Values = f.numbers
	case f.real:
		a.Values = converted[float32](f.numbers)
	default:
		a.Values = converted[int64](f.numbers)
	}
	return a
}

func converted[T float32 | int64](numbers []float64) []T {
	out := make([]T, len(numbers))
	for i, v := range numbers {
		out[i] = T(v)
	}
	return out
}
