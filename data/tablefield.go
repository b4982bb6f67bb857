package data

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/dtype"
)

// tableField collects the values of a field of a table.
type tableField struct {
	name    string
	columns []int         // the columns of its values, in their order
	joined  bool          // whether a sample is a row of values, one of each column
	kind    *dtype.Type   // string, bool, or float32 for all numbers; nil until the first value decides
	exact   bool          // whether numbers may need float64
	whole   bool          // whether numbers are int64 until one of them is not an integer, also if joined
	integer bool          // whether all numbers are integers, for an input of integers
	real    bool          // whether all numbers are floats
	kept    bool          // whether it has the texts of cells of CSVOptions.Keep
	labels  *labels       // nil unless the field is the label
	images  *imageDecoder // nil unless the values are images

	shape  []int    // of a list
	typed  vector   // the numbers of a typed column that is a field of its own
	first  cellKind // of the first value, if it decides about the kind
	texts  []string
	bools  []bool
	ints   []int64
	narrow []float32
	wide   []float64 // in place of narrow if exact is true
}

const (
	aValue  = "a number, text, true, false, or an array"
	lineFix = "correct the line, or remove it"
	// someValues are those of a column without a rule.
	someValues = "numbers, booleans, text, or lists of them"
	// missingFix is the advice for a cell without a number.
	missingFix = "write a value, such as the mean of the column, give the column one by a rule of a schema, or remove " +
		"the row; a model may also take the column as text and convert it"
	// numberFix is the advice for a cell of text in a column of numbers.
	numberFix = "correct it, encode the column by a rule of a schema ({CSVOptions.Schema}), or leave it out " +
		"({Options.Ignore})"
	// dateFix is the advice for a date or time without a rule.
	dateFix = "read the column by a rule of a schema ({CSVOptions.Schema}), or leave it out ({Options.Ignore})"
)

// labelFix is the advice for a text label where labels are numbers.
const labelFix = "read the column by a rule of a schema ({CSVOptions.Schema}), or list the names of the classes in " +
	"the order of their numbers ({CSVOptions.Classes})"

// nullFix is the advice for a null in a column that may have a rule.
const nullFix = "fill it in, set missing of a rule of a schema ({CSVOptions.Schema}) to a value, or leave the column " +
	"out ({Options.Ignore})"

// wrongCell returns an error for a cell. The table adds the place of the cell.
func wrongCell(found, expected, fix string) error {
	return &RowError{Found: found, Expected: expected, Fix: fix, Err: ErrFormat}
}

func (f *tableField) empty() bool {
	return f.typed == nil && len(f.texts)+len(f.bools)+len(f.ints)+len(f.narrow)+len(f.wide) == 0
}

// add adds the values of a cell.
func (f *tableField) add(c cell) error {
	if err := f.checkShape(c); err != nil {
		return err
	}
	f.shape = c.shape
	switch isNumber := f.kind == nil || f.kind.Kind < dtype.BoolKind; {
	case c.values != nil && f.joined && isNumber:
		return f.addNumber(textOf(c.values, c.at))
	case c.values != nil && isNumber:
		return f.addTyped(c)
	case c.kind != listCell:
		return f.addValue(c.scalar)
	}
	for _, item := range c.items {
		if err := f.addValue(item); err != nil {
			return err
		}
	}
	return nil
}

// checkShape returns an error for a cell without values, or of another shape than the cells before.
func (f *tableField) checkShape(c cell) error {
	switch {
	case c.kind == nullCell:
		return wrongCell("null", aValue, nullFix)
	case c.kind == dateCell:
		return &RowError{Found: c.kind.String(), Expected: someValues, Fix: dateFix, Err: ErrUnsupported}
	case c.kind == otherCell:
		return &RowError{Found: c.text, Expected: someValues, Fix: "convert the column, or leave it out", Err: ErrUnsupported}
	case c.kind == listCell && c.shape[0] == 0:
		return wrongCell("an array of 0", "an array of 1", lineFix)
	case c.kind != listCell && f.shape != nil:
		return wrongCell(c.kind.String(), "an array, as in the first line", lineFix)
	case c.kind == listCell && (f.joined || f.shape == nil && !f.empty()):
		return wrongCell("an array", "a single value", lineFix)
	case f.shape != nil && !slices.Equal(f.shape, c.shape):
		return wrongCell("an array of "+dimensions(c.shape), "an array of "+dimensions(f.shape)+", as in the first line",
			lineFix)
	}
	return nil
}

// addTyped adds the numbers of a cell with their type.
func (f *tableField) addTyped(c cell) error {
	n, err := elements(c.shape)
	if f.typed == nil {
		f.kind = c.values.kind()
		f.typed = makeVector(f.kind, 0)
	}
	at := f.typed.len()
	f.typed = f.typed.extend(n)
	return cmp.Or(err, c.values.copyTo(f.typed, at, c.at, c.at+n))
}

// dimensions describes the shape of an array, such as 2x3.
func dimensions(shape []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", "x"), "[]")
}

// addValue adds a single value.
func (f *tableField) addValue(c scalar) error {
	if f.labels != nil && f.shape == nil {
		return f.addLabel(c)
	}
	if f.kind == nil {
		f.first = c.kind
		switch c.kind {
		case textCell:
			f.kind = dtype.For[string]()
		case boolCell:
			f.kind = dtype.For[bool]()
		default:
			f.kind = dtype.For[float32]()
		}
	}
	if f.first != rawCell && c.kind != f.first {
		return wrongCell(c.kind.String(), f.first.String()+", as in the first line", lineFix)
	}
	switch f.kind.Kind {
	case dtype.StringKind:
		if c.kind == numberCell || c.kind == boolCell {
			return wrongCell(c.text, "text", lineFix)
		}
		return f.addText(c)
	case dtype.BoolKind:
		f.bools = append(f.bools, c.text == "1" || c.text == "true")
		return nil
	}
	if c.kind == textCell || c.kind == boolCell {
		return wrongCell(quote(c.text), "a number", numberFix)
	}
	return f.addNumber(strings.TrimSpace(c.text))
}

func (f *tableField) addText(c scalar) error {
	if c.kind == rawCell {
		if !utf8.ValidString(c.text) {
			return notUTF8(c.text)
		}
		c.text = strings.Clone(c.text) // a cell shares the memory of its row
	}
	f.texts = append(f.texts, c.text)
	return nil
}

// addNumber adds a number.
func (f *tableField) addNumber(text string) error {
	if f.integer {
		if v, ok := wholeNumber(text); ok {
			f.ints = append(f.ints, v)
			return nil
		}
	} else if v, err := strconv.ParseInt(text, 10, 64); err == nil && f.whole && !f.real {
		f.ints = append(f.ints, v)
		return nil
	}
	v, err := parseNumber(text)
	if err == nil && f.integer {
		err = wrongCell(quote(text), "an integer up to 9223372036854775807",
			"correct it, or leave the column out ({Options.Ignore})")
	}
	if err != nil {
		return err
	}
	f.floats()
	exact := float64(v)
	if f.exact {
		w, err := strconv.ParseFloat(text, 64)
		if err == nil && (!f.joined || w == math.Trunc(w) && math.Abs(w) < 1<<53) {
			exact = w
		}
	}
	f.addFloat(v, exact)
	return nil
}

// wholeNumber returns an integer of 64 bits, which may be written as a float below 2^53, such as 3.0 or 1e3.
func wholeNumber(text string) (int64, bool) {
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return v, true
	}
	v, err := strconv.ParseFloat(text, 64)
	return int64(v), err == nil && isDecimal(text) && v == math.Trunc(v) && math.Abs(v) < 1<<53
}

// floats makes floats of the numbers.
func (f *tableField) floats() {
	f.real = true
	for _, v := range f.ints {
		f.addFloat(float32(v), float64(v))
	}
	f.ints = nil
}

// addFloat adds a number that is rounded to float32, or exact in float64.
func (f *tableField) addFloat(rounded float32, exact float64) {
	if f.exact {
		f.wide = append(f.wide, exact)
	} else {
		f.narrow = append(f.narrow, rounded)
	}
}

// narrowed returns numbers as float32 if they stay the same.
func narrowed(wide []float64) any {
	narrow := make([]float32, len(wide))
	for i, v := range wide {
		if narrow[i] = float32(v); float64(narrow[i]) != v {
			return slices.Clone(wide)
		}
	}
	return narrow
}

func parseNumber(text string) (float32, error) {
	v, err := strconv.ParseFloat(text, 32)
	switch {
	case text == "":
		return 0, wrongCell("an empty cell", "a number", missingFix)
	case errors.Is(err, strconv.ErrRange):
		return 0, wrongCell(quote(text), fmt.Sprintf("a number within float32, up to %.2g", math.MaxFloat32),
			"scale the column down")
	case err == nil && (math.IsNaN(v) || math.IsInf(v, 0)):
		return 0, wrongCell(quote(text), "a finite number", missingFix)
	case err != nil || !isDecimal(text):
		return 0, wrongCell(quote(text), "a number", numberFix)
	}
	return float32(v), nil
}

// isNumber reports whether a cell is a decimal number, NaN or an infinity. NaN and infinities count as
// numbers, so that they are rejected later instead of becoming class names.
func isNumber(cell string) bool {
	v, err := strconv.ParseFloat(cell, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return false
	}
	return math.IsNaN(v) || math.IsInf(v, 0) || isDecimal(cell)
}

// isDecimal reports whether a number has only decimal digits, signs, a point and an exponent.
// ParseFloat also accepts hexadecimal digits and underscores.
func isDecimal(number string) bool {
	return strings.Trim(number, "0123456789+-.eE") == ""
}

// array returns the values of n rows.
func (f *tableField) array(n int) Array {
	a := Array{Shape: append([]int{n}, f.shape...)}
	if f.joined {
		a.Shape = []int{n, len(f.columns)}
	}
	switch {
	case f.typed != nil:
		v := makeVector(f.kind, f.typed.len())
		_ = f.typed.copyTo(v, 0, 0, v.len()) // copying in memory cannot fail
		if labels, ok := v.(vec[float64]); ok && f.labels != nil && f.shape == nil {
			v = wholeLabels(labels)
		}
		a.Values = v.values(0, v.len())
	case f.texts != nil:
		a.Values = slices.Clone(f.texts)
	case f.bools != nil:
		a.Values = slices.Clone(f.bools)
	case f.ints != nil:
		a.Values = slices.Clone(f.ints)
	case f.wide != nil:
		a.Values = narrowed(f.wide)
	default:
		a.Values = slices.Clone(f.narrow)
	}
	return a
}

// wholeLabels returns labels as integers if all of them are.
func wholeLabels(labels vec[float64]) vector {
	whole := make(vec[int64], len(labels))
	for i := range labels {
		var ok bool
		if whole[i], ok = labels.kind().Int(labels.element(i)); !ok {
			return labels
		}
	}
	return whole
}

// labels numbers the classes of a label.
type labels struct {
	class   map[string]int64 // numbers of the classes; nil while labels are numbers
	numbers string           // why text labels without listed classes are errors; empty if they are names
	listed  []string         // class names from the options
	model   []string         // class names of the model, which text labels have
	found   []string         // class names in the rows, if the options have none
}

func newLabels(o CSVOptions) (*labels, error) {
	l := &labels{model: o.Names, numbers: o.Numbers}
	return l, l.list(o.Classes)
}

// list sets the names of the classes in the order of their numbers, unless classes is empty.
func (l *labels) list(classes []string) error {
	if len(classes) > 0 {
		l.listed, l.class = classes, make(map[string]int64, len(classes))
	}
	for i, name := range classes {
		if _, ok := l.class[name]; ok {
			return fmt.Errorf("class %q is listed twice: %w", name, ErrField)
		}
		l.class[name] = int64(i)
	}
	return nil
}

// addLabel adds a label. The first one decides whether labels are numbers or names.
func (f *tableField) addLabel(c scalar) error {
	l, text := f.labels, strings.TrimSpace(c.text)
	if text == "" {
		return wrongCell("an empty cell", "a label", "fill it in, or remove the row")
	}
	numeric := isNumber(text)
	if _, err := strconv.ParseInt(text, 10, 64); c.kind == textCell && err != nil {
		numeric = false // a text with a fraction is a name
	}
	isText := c.kind == textCell && len(l.model) > 0 || !numeric && c.kind != boolCell
	if isText && !utf8.ValidString(text) {
		return notUTF8(text)
	}
	if l.class == nil && isText && len(l.model) == 0 && l.numbers != "" {
		return &RowError{Found: quote(text), Expected: "a number, because " + l.numbers, Fix: labelFix, Err: ErrLabel}
	}
	if f.empty() && l.class == nil && isText {
		if err := l.list(l.model); err != nil {
			return err
		}
		if l.class == nil {
			l.class = map[string]int64{}
		}
	}
	if l.class == nil {
		return f.addNumericLabel(c, text, isText)
	}
	class, err := f.classOf(text, numeric)
	if err == nil {
		f.ints = append(f.ints, class)
	}
	return err
}

// addNumericLabel adds a label where the first one was a number.
func (f *tableField) addNumericLabel(c scalar, text string, isText bool) error {
	switch {
	case c.kind == boolCell:
		f.ints = append(f.ints, map[string]int64{"true": 1}[text])
		return nil
	case isText:
		return wrongCell(quote(text), "a number as in the first row", "correct it, or list all classes if labels are names")
	}
	return f.addNumber(text)
}

// classOf returns the number of the class with a name, which may be a new class.
func (f *tableField) classOf(text string, numeric bool) (int64, error) {
	l := f.labels
	class, known := l.class[text]
	switch {
	case known:
		return class, nil
	case l.listed != nil:
		return 0, wrongCell(quote(text), fmt.Sprintf("one of the %d classes, such as %s", len(l.class), quote(l.listed[0])),
			"correct it, or remove the row; a class that the training data lacks needs a list of all ({CSVOptions.Classes})")
	case numeric:
		return 0, wrongCell(quote(text), fmt.Sprintf("a name like %s in the first row", quote(l.found[0])),
			"correct it, or list all classes")
	}
	name := strings.Clone(text) // a cell shares the memory of its row
	class = int64(len(l.found))
	l.class[name] = class
	l.found = append(l.found, name)
	return class, nil
}

// classes returns the names of the classes of the label; nil if labels are numbers. Classes that the options do not
// list are numbered in sorted order, so that the numbers do not depend on the order of the rows.
func (f *tableField) classes() []string {
	if f.labels.found == nil {
		return f.labels.listed
	}
	sorted := slices.Sorted(slices.Values(f.labels.found))
	number := make([]int64, len(sorted))
	for i, name := range sorted {
		number[f.labels.class[name]] = int64(i)
	}
	for i, class := range f.ints {
		f.ints[i] = number[class]
	}
	return sorted
}
