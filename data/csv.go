package data

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/dtype"
)

// CSVOptions configure how a table of text is read.
//
// The label becomes y: int64 if all labels are integers, float32 if all are numbers, and otherwise
// the int64 number of the name in FieldSpec.Classes. A column sample_weight becomes a float32 field of that
// name. The other columns become x, float32 [columns], unless Exact, Columns or Text is set. Empty
// cells, NaN, infinities, text that is not UTF-8, and rows of different lengths are a *RowError
// (ErrFormat).
type CSVOptions struct {
	// Label is the column that becomes the field y: its name in the header, or its number from 1.
	// -1 means the last column. A text that is the name of one column and the number of another is
	// ErrField. Empty means that all columns are features.
	Label string
	// Classes are the names of the classes, in the order of their numbers. Empty means that
	// labels are numbers, or names numbered in sorted order. For a validation file, set the
	// FieldSpec.Classes of the training file, since some classes may be missing there.
	Classes []string
	// Names are the class names of a model, in the order of their numbers. Labels that are text
	// must be among them, unless Classes is set. A label that is the number of one class and the
	// name of another is a *RowError.
	Names []string
	// Header is "yes" if the first line contains column names, even if they are numbers, and "no"
	// if it is a row. By default, a first line without numbers, or with the name of the label or of
	// a column in Columns, is a header. For a text model, a first line without such a name is
	// ErrField, because text may be a name or a value. A first line 0,1,2 and so on, the names that
	// pandas writes for columns without names, is ErrField, too, even if one other name is among
	// them.
	Header string
	// Comma is the separator of columns; 0 means ','.
	Comma rune
	// Exact makes x float64 if an integer, such as an identifier, would be rounded by float32 but
	// not by float64.
	Exact bool
	// Columns become separate fields with one value per row if the header has all of them: the inputs of
	// a model with several inputs or with text inputs. Their Type is "string", "bool", or any other for
	// numbers (float32, or float64 with Exact). All other columns except the label become text fields.
	Columns []FieldSpec
	// Features are the columns of x in this order, if the table has names and Columns is empty.
	// Other columns are left out (InMemory.LeftOut), except the label and sample_weight.
	Features []string
	// Input is the only input of a model besides the label. If Input is set, the columns of JSON lines
	// and records become x, as the columns of a CSV file do, if each has one value per row and none has
	// the name Input (see Row). The order of the columns is that of the first JSON object, or that of
	// the Parquet or Arrow file. In other formats, the columns are sorted by name.
	Input string
	// Row means that the input takes several values, so that a column named Input is one of them.
	Row bool
	// Text reads the features as text: x has the type []string and the shape [columns].
	Text bool
	// Bool reads the features as bools: true, false, 1 or 0, in any case.
	Bool bool
	// Schema has rules for columns; nil means none.
	Schema *Schema

	ignore []string // Options.Ignore
	always bool     // whether columns become x even if Input is empty
	size   int64    // bytes of the text, or 0 if unknown
}

// takes reports whether a column becomes a separate field of a type.
func (o *CSVOptions) takes(name string, kind *dtype.Type) bool {
	return slices.ContainsFunc(o.Columns, func(c FieldSpec) bool { return c.Name == name && c.Type == kind.Name })
}

func readCSV(name string, r io.Reader, o CSVOptions, l *limit) (*InMemory, error) {
	o.always = true
	t := table{file: name, options: o, label: -1, values: l.again(), problems: problems{source: name}}
	text, err := textReader(l.reader(r))
	if err != nil {
		return nil, t.failed(err)
	}
	t.lines = csv.NewReader(&rowLimit{r: text, comma: string(cmp.Or(o.Comma, ','))[0]})
	t.lines.ReuseRecord = true
	t.lines.FieldsPerRecord = -1 // table.row checks the number of cells
	if c := o.Comma; c != 0 {
		if c == '"' || c == '\r' || c == '\n' || c == utf8.RuneError || !utf8.ValidRune(c) {
			return nil, t.failed(fmt.Errorf("%q cannot separate columns: %w", c, ErrField))
		}
		t.lines.Comma = c
	}
	if err := t.read(); err != nil {
		return nil, err
	}
	return t.dataset()
}

// read reads all rows. After a row that cannot be used, it reads on to find more such rows.
func (t *table) read() error {
	for {
		record, err := t.lines.Read()
		if err == io.EOF {
			return t.problems.err()
		}
		isRow := t.columns > 0
		if err == nil && !isRow {
			isRow, err = t.start(record)
		}
		var wrong []error
		if err == nil && isRow {
			wrong, err = t.row(record)
		}
		for _, err := range wrong {
			if !t.problems.addCell(t.failed(err)) {
				return t.problems.err()
			}
		}
		if err != nil {
			t.problems.add(t.failed(err))
			return t.problems.err()
		}
	}
}

type table struct {
	file    string
	options CSVOptions
	lines   *csv.Reader
	values  *limit // for the values in memory

	columns   int
	firstLine int
	names     []string // nil without a header
	label     int      // the label's column from 0, or -1
	labelLine int      // line of the first label; 0 before it

	fields []*features      // by column; several columns may share one; nil for the label and if left out
	rules  []*Rule          // by column; nil for one without a rule
	order  []int            // the columns to read
	out    []string         // the columns that are left out
	line   []int            // line of each row
	y      []int64          // the labels, or the numbers of their classes
	real   []float32        // replaces y once a label is not an integer
	class  map[string]int64 // class numbers; nil if labels are numbers
	listed []string         // class names from the options
	// ambiguous has the class names of the model that are also the numbers of other classes.
	ambiguous []string
	found     []string // class names in the rows, if the options have none
	problems  problems
}

func (t *table) failed(err error) error {
	var row *RowError
	if errors.As(err, &row) {
		row.File = t.file
		return row
	}
	var syntax *csv.ParseError
	if errors.As(err, &syntax) {
		return &RowError{
			File: t.file, Unit: "line", Row: syntax.Line,
			Found:    syntax.Err.Error(),
			Expected: "a cell; in a quoted cell, each quote is doubled",
			Fix:      fmt.Sprintf("the row starts on line %d", syntax.StartLine),
			Err:      ErrFormat,
		}
	}
	return fmt.Errorf("%s: %w", t.file, corrupt(err))
}

// bad returns an error for a cell.
func (t *table) bad(column int, found, expected, fix string) error {
	line, _ := t.lines.FieldPos(column)
	return &RowError{
		File: t.file, Unit: "line", Row: line, Column: t.columnName(column),
		Found: found, Expected: expected, Fix: fix, Err: ErrFormat,
	}
}

// checkText returns an error for text that is not UTF-8, whose words a model would not recognize.
func (t *table) checkText(column int, cell string) error {
	if utf8.ValidString(cell) {
		return nil
	}
	wrong := notUTF8(cell)
	return t.bad(column, wrong.Found, wrong.Expected, wrong.Fix)
}

func (t *table) columnName(column int) string {
	if t.names == nil {
		return strconv.Itoa(column + 1)
	}
	return fmt.Sprintf("%q (%d)", t.names[column], column+1)
}

// start reads the first line. isRow is false if it is a header.
func (t *table) start(record []string) (isRow bool, err error) {
	t.columns = len(record)
	t.firstLine, _ = t.lines.FieldPos(0)
	trimmed := make([]string, len(record))
	for i, cell := range record {
		trimmed[i] = strings.TrimSpace(cell)
		if err := t.checkText(i, cell); err != nil {
			return false, err
		}
	}
	header, err := t.hasHeader(trimmed)
	if err != nil {
		return false, err
	}
	if header {
		if err := t.header(trimmed); err != nil {
			return false, err
		}
	}
	if hint := t.separator(trimmed[0]); header && t.columns == 1 && hint != "" && (!t.options.Text || t.options.Schema.allTexts()) {
		return false, fmt.Errorf("line %d has one column, %s: %s: %w", t.firstLine, quote(trimmed[0]), hint, ErrFormat)
	}
	if err := t.findLabel(trimmed); err != nil {
		return false, err
	}
	if err := t.layOut(); err != nil {
		return false, err
	}
	if err := t.setRules(); err != nil {
		return false, err
	}
	if err := t.list(t.options.Classes); err != nil {
		return false, err
	}
	for class, name := range t.options.Names {
		if number, err := strconv.Atoi(name); err == nil && number != class {
			t.ambiguous = append(t.ambiguous, name)
		}
	}
	return !header, nil
}

// layOut decides which field each column belongs to, and the order in which columns are read.
func (t *table) layOut() (err error) {
	x := &features{name: "x", text: t.options.Text, bool: t.options.Bool}
	t.fields = slices.Repeat([]*features{x}, t.columns)
	if t.label >= 0 {
		t.fields[t.label] = nil
	}
	if t.out, err = t.options.leaveOut(t.names, t.options.Label); err != nil {
		return err
	}
	var inputs []string
	out, at := positions(t.out), positions(t.names)
	for i, name := range t.names {
		switch _, isOut := out[name]; {
		case i == t.label:
		case isOut:
			t.fields[i] = nil
		case name == sampleWeight && !t.options.Schema.allTexts():
			t.fields[i] = &features{name: sampleWeight}
		default:
			inputs = append(inputs, name)
		}
	}
	if t.names != nil {
		if err := t.separate(inputs, x); err != nil {
			return err
		}
	}
	selects := t.options.selects(t.names)
	for i, f := range t.fields {
		if i == t.label || f != nil && (f != x || !selects) {
			t.order = append(t.order, i)
		}
	}
	for _, name := range t.options.Features {
		if selects {
			t.order = append(t.order, at[name])
		}
	}
	return nil
}

// separate gives each column of x a field, if a model has inputs of these names.
func (t *table) separate(inputs []string, x *features) error {
	label := ""
	if t.label >= 0 {
		label = t.names[t.label]
	}
	byName, err := t.options.byName(inputs, label)
	if err != nil || !byName {
		return err
	}
	if t.columns > maxFields {
		return fmt.Errorf("%d columns, but a table whose columns become fields may have at most %d: remove unused columns: %w", t.columns, maxFields, ErrFormat)
	}
	for i, f := range t.fields {
		if f == x {
			name := t.names[i]
			isInput := slices.ContainsFunc(t.options.Columns, func(c FieldSpec) bool { return c.Name == name })
			t.fields[i] = &features{name: name, text: !isInput || t.options.takes(name, dtype.For[string]()), bool: t.options.takes(name, dtype.For[bool]())}
		}
	}
	return nil
}

// setRules sets the rules of the columns, and the classes of a label that is a category.
func (t *table) setRules() error {
	t.rules = make([]*Rule, t.columns)
	rules, err := t.options.rules()
	if err != nil {
		return err
	}
	if len(rules) > 0 && t.names == nil {
		return fmt.Errorf("the schema has rules for names of columns, and the file has no header: %w", ErrFormat)
	}
	if err := t.options.useSchema(rules, t.names, t.options.Label); err != nil {
		return err
	}
	for i := range t.rules {
		if t.names != nil {
			t.rules[i] = rules[t.names[i]]
		}
		if err := t.checkRule(i); err != nil {
			return err
		}
	}
	return nil
}

// checkRule returns an error if the values of a column's rule have a type that its field does not
// take.
func (t *table) checkRule(column int) error {
	rule, f := t.rules[column], t.fields[column]
	takes := "numbers"
	switch {
	case f == nil || f.text: // f is nil for the label and a column that is left out
		return nil
	case f.bool && rule == nil:
		t.rules[column] = boolRule
		return nil
	case f.bool:
		takes = "bools"
	}
	if rule == nil || rule.Type == "bool" || !f.bool && rule.Type != "text" {
		return nil
	}
	return fmt.Errorf("column %s is of type %s in the schema, and the model takes %s: give the column another type, or leave it out: %w", t.columnName(column), rule.Type, takes, ErrFormat)
}

// row adds a row. wrong has the errors of the cells.
func (t *table) row(record []string) (wrong []error, err error) {
	line, _ := t.lines.FieldPos(0)
	if err := t.values.take(rowBytes + cellBytes*int64(len(record))); err != nil {
		return nil, err
	}
	hasNUL := func(cell string) bool { return strings.IndexByte(cell, 0) >= 0 } // cells of text fields may have NUL bytes
	if len(record) != t.columns {
		if slices.ContainsFunc(record, hasNUL) {
			return []error{damaged(t.file, line)}, nil
		}
		return []error{&RowError{
			File: t.file, Unit: "line", Row: line,
			Found:    fmt.Sprintf("%d columns", len(record)),
			Expected: fmt.Sprintf("%d as in line %d", t.columns, t.firstLine),
			Fix:      "complete the row or remove it; cells with commas in them need double quotes",
			Err:      ErrFormat,
		}}, nil
	}
	for _, i := range t.order {
		if len(t.problems.columns) > 0 && t.problems.full(t.columnName(i)) {
			continue
		}
		err := t.cell(i, record[i])
		if (err != nil || i == t.label) && hasNUL(record[i]) {
			return []error{damaged(t.file, line)}, nil
		}
		if err != nil {
			if !errors.As(err, new(*RowError)) {
				return wrong, err
			}
			wrong = append(wrong, err)
		}
	}
	t.line = append(t.line, line)
	return wrong, nil
}

func (t *table) cell(i int, cell string) error {
	f := t.fields[i]
	if f == nil || f.text {
		if err := t.checkText(i, cell); err != nil {
			return err
		}
	}
	if rule := t.rules[i]; rule != nil {
		text, err := rule.read(cell)
		if row := (*RowError)(nil); errors.As(err, &row) {
			return t.bad(i, row.Found, row.Expected, row.Fix)
		}
		cell = text
	}
	if f != nil && f.text {
		if err := t.values.take(textBytes); err != nil {
			return err
		}
		// A cell shares the memory of its row, so a copy is stored.
		f.texts = added(t, f.texts, strings.Clone(cell))
		return nil
	}
	cell = strings.TrimSpace(cell)
	if i == t.label {
		return t.addLabel(i, cell)
	}
	if f.bool {
		f.bools = added(t, f.bools, cell == "1")
		return nil
	}
	v, err := t.number(i, cell)
	if err == nil {
		f.add(t, v, cell)
	}
	return err
}

// missingFix is the advice for a cell without a number.
const missingFix = "write a value, such as the mean of the column, give the column one by a rule of a schema, or remove the row; a model may also take the column as text and convert it"

func (t *table) number(column int, cell string) (float32, error) {
	v, err := strconv.ParseFloat(cell, 32)
	switch {
	case cell == "":
		return 0, t.bad(column, "an empty cell", "a number", missingFix)
	case errors.Is(err, strconv.ErrRange):
		return 0, t.bad(column, quote(cell), fmt.Sprintf("a number within float32, up to %.2g", math.MaxFloat32), "scale the column down")
	case err == nil && (math.IsNaN(v) || math.IsInf(v, 0)):
		return 0, t.bad(column, quote(cell), "a finite number", missingFix)
	case err != nil || !isDecimal(cell):
		fix := "correct it, encode the column by a rule of a schema ({CSVOptions.Schema}), or leave it out ({Options.Ignore})"
		if t.label < 0 {
			fix += "; if the column is the label, select it as the label"
		}
		if hint := t.separator(cell); hint != "" {
			fix = hint
		} else if line, _ := t.lines.FieldPos(column); line == t.firstLine && t.names == nil {
			fix += "; if this line is a header, set {CSVOptions.Header yes}"
		}
		return 0, t.bad(column, quote(cell), "a number", fix)
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

func (t *table) dataset() (*InMemory, error) {
	n := len(t.line)
	if n == 0 {
		return nil, t.failed(fmt.Errorf("it has no rows: %w", ErrFormat))
	}
	var fields []Field
	for i, f := range t.fields {
		if f != nil && !slices.Contains(t.fields[:i], f) {
			fields = append(fields, Field{f.name, f.array(n)})
		}
	}
	var y *Array
	var classes []string
	label := ""
	if t.label >= 0 {
		classes, label = t.listed, t.columnName(t.label)
		if t.found != nil {
			classes = t.sortClasses()
		}
		y = &Array{Shape: []int{n}, Values: compact(t.y)}
		if t.real != nil {
			y.Values = compact(t.real)
		}
	}
	m, err := newTable(t.file, compact(t.line), fields, t.out)
	if err == nil {
		err = m.addLabel(y, classes, label)
	}
	if err != nil || t.names == nil {
		return m, err
	}
	for _, i := range t.order {
		at := slices.IndexFunc(m.columns, func(c column) bool { return t.fields[i] != nil && t.fields[i].name == c.name })
		if at >= 0 {
			m.columns[at].columns = append(m.columns[at].columns, t.names[i])
		}
	}
	return m, nil
}
