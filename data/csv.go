package data

import (
	"bufio"
	"bytes"
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

	"steadyfit/option"
)

// CSVOptions says how a text table is read. The zero value reads a table
// without labels, separated by commas.
type CSVOptions struct {
	// Label is the column that becomes the field y: its name in the header, or
	// its number from 1, where -1 is the last. Empty: every column is a feature.
	Label string
	// Classes are the names that labels are written as, in the order of their
	// numbers. Empty: labels are numbers, or names that get numbers in sorted
	// order. Give a validation file the ClassNames of the training file:
	// otherwise a class that it lacks shifts the numbers of those after it.
	Classes []string
	// Names are the class names of a model, in the order of their numbers: labels that
	// are no numbers have to be among them, unless Classes says otherwise.
	Names []string
	// Header says whether the first line names the columns.
	Header Header
	// Comma separates columns; 0 means ','.
	Comma rune
	// Exact keeps integers among the features that float32 would round, such as
	// identifiers: if there is one, below 2^53, x is float64.
	Exact bool
	// Columns become fields of their own, if the header has all of them: those of a model
	// with several inputs, or with one of strings. Other columns than these and the label
	// are fields of text then.
	Columns []Column
	// Text reads the features as text: x is []string [columns].
	Text bool
}

// Column is a column of a table that becomes a field, of one value per sample.
type Column struct {
	Name string
	// Text is false for numbers: float32, or float64 as CSVOptions.Exact says.
	Text bool
}

// Header says whether the first line of a table names the columns.
type Header int

const (
	// HeaderAuto: the first line is a header if it has the name of the label or of an
	// input (CSVOptions.Columns), or no number in it. For a model that takes text, a line
	// without such a name is ErrField: it may be either.
	HeaderAuto Header = iota
	// HeaderPresent: it is a header, even if it has numbers in it.
	HeaderPresent
	// HeaderAbsent: it is a row like the others.
	HeaderAbsent
)

// OpenCSV reads a table from a file, compressed with gzip or not.
//
// A column sample_weight becomes the field of that name, float32 [1]. All columns but that
// and the label become the field x, float32 [columns], or float64 as CSVOptions.Exact
// says; CSVOptions.Columns and CSVOptions.Text read others. The label
// becomes y: int64 if all labels are integers, float32 if all are numbers, and
// otherwise int64 class numbers of the names, which ClassNames returns.
//
// Rows that are longer or shorter than the first, cells that are empty, not
// numbers, NaN, infinite or beyond float32, and labels of mixed kinds are a
// *RowError that is ErrFormat and names the file, line and column. There is no
// dataset of the rows that were right.
func OpenCSV(path string, o CSVOptions) (*InMemory, error) {
	return openTable(path, o, nil, readCSV)
}

// openTable reads a file of rows, compressed or not.
func openTable(path string, o CSVOptions, l *limit, read func(string, io.Reader, CSVOptions, *limit) (*InMemory, error)) (*InMemory, error) {
	r, _, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return read(path, r, o, l)
}

// readCSV reads a table to its end.
func readCSV(name string, r io.Reader, o CSVOptions, l *limit) (*InMemory, error) {
	t := table{file: name, options: o, label: -1, values: l.again()}
	text, err := textReader(l.reader(r))
	if err != nil {
		return nil, t.failed(err)
	}
	t.lines = csv.NewReader(&rowLimit{r: text, comma: string(cmp.Or(o.Comma, ','))[0]})
	t.lines.ReuseRecord = true
	t.lines.FieldsPerRecord = -1 // the message about a ragged row is ours
	if c := o.Comma; c != 0 {
		if c == '"' || c == '\r' || c == '\n' || c == utf8.RuneError || !utf8.ValidRune(c) {
			return nil, t.failed(fmt.Errorf("%q cannot separate columns: %w", c, ErrField))
		}
		t.lines.Comma = c
	}
	for {
		record, err := t.lines.Read()
		if err == io.EOF {
			break
		}
		if err == nil && t.columns == 0 {
			err = t.start(record)
		} else if err == nil {
			err = t.row(record)
		}
		if err != nil {
			return nil, t.failed(err)
		}
	}
	return t.dataset()
}

// maxRow is the most bytes of a row, and maxColumns the most cells: the reader of
// encoding/csv holds a row, and some 40 bytes for each of its cells.
const (
	maxRow     = 16 << 20
	maxColumns = 1 << 20
)

// rowLimit refuses rows that are too large. A row is a line, or several where line breaks
// are in quotes.
type rowLimit struct {
	r     io.Reader
	comma byte

	line   int // line breaks so far
	from   int // those before the row
	bytes  int // of the row so far
	commas int
	quoted bool
}

func (l *rowLimit) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for _, c := range p[:n] {
		l.bytes++
		switch c {
		case '"':
			l.quoted = !l.quoted
		case l.comma:
			l.commas++
		case '\n':
			l.line++
			if !l.quoted {
				l.from, l.bytes, l.commas = l.line, 0, 0
			}
		}
		if l.bytes > maxRow {
			return 0, l.tooLarge(maxRow, "bytes")
		}
		if l.commas >= maxColumns {
			return 0, l.tooLarge(maxColumns, "columns")
		}
	}
	return n, err
}

func (l *rowLimit) tooLarge(most int, unit string) error {
	return &RowError{Unit: "line", Row: l.from + 1, Found: fmt.Sprintf("more than %d %s", most, unit),
		Expected: "a row of a table", Fix: "put each sample on a line of its own", Err: ErrFormat}
}

// textReader skips a byte order mark and refuses what is not text in UTF-8.
func textReader(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(512)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return nil, fmt.Errorf("UTF-16 text, which is %w; save it as UTF-8", ErrUnsupported)
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return nil, fmt.Errorf("a zip archive or a spreadsheet, not text; export it as CSV: %w", ErrFormat)
	case bytes.IndexByte(head, 0) >= 0:
		return nil, fmt.Errorf("binary, not text: %w", ErrFormat)
	}
	if mark := []byte("\xef\xbb\xbf"); bytes.HasPrefix(head, mark) {
		if _, err := b.Discard(len(mark)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// What a table keeps of a row beside its cells (its line and its label), of a cell, and of a
// class beside its name.
const (
	rowBytes   = 16
	cellBytes  = 4
	textBytes  = 16
	classBytes = 100
)

// table collects the rows of a file.
type table struct {
	file    string
	options CSVOptions
	lines   *csv.Reader

	columns   int
	firstLine int
	names     []string // nil without a header
	label     int      // the label's column from 0, or -1

	// values is what the fields, line, y and the classes may still take.
	values *limit

	fields []*features // by column, nil for the label; all columns have one, or their own
	line   []int       // of each row
	y      []int64
	real   []float32 // the labels, once one of them is not an integer
	kind   labelKind
	class  map[string]int64
	found  []string // class names by number
	listed []string // those that are known
}

// features are the values of one field that is not the label.
type features struct {
	name   string
	text   bool
	narrow []float32
	wide   []float64 // instead of narrow, once an integer needs it
	texts  []string
}

// labelKind is what the labels read so far are. Numbers may turn out not to be
// integers; otherwise the first row decides.
type labelKind int

const (
	noLabels labelKind = iota
	integerLabel
	realLabel
	nameLabel
)

// failed completes an error with the file's name.
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
			Expected: "a cell, or one in double quotes with its own quotes doubled",
			Fix:      fmt.Sprintf("the row starts on line %d", syntax.StartLine),
			Err:      ErrFormat,
		}
	}
	return fmt.Errorf("%s: %w", t.file, corrupt(err))
}

// bad is the error about a cell.
func (t *table) bad(column int, found, expected, fix string) error {
	line, _ := t.lines.FieldPos(column)
	return &RowError{
		File: t.file, Unit: "line", Row: line, Column: t.columnName(column),
		Found: found, Expected: expected, Fix: fix, Err: ErrFormat,
	}
}

func (t *table) columnName(column int) string {
	if t.names == nil {
		return strconv.Itoa(column + 1)
	}
	return fmt.Sprintf("%q (%d)", t.names[column], column+1)
}

// start reads the first line: a header, or a row.
func (t *table) start(record []string) error {
	t.columns = len(record)
	t.firstLine, _ = t.lines.FieldPos(0)
	trimmed := make([]string, len(record))
	for i, cell := range record {
		trimmed[i] = strings.TrimSpace(cell)
	}
	number, numberErr := strconv.Atoi(t.options.Label)
	header := t.options.Header == HeaderPresent
	if t.options.Header == HeaderAuto {
		isName := func(c Column) bool { return slices.Contains(trimmed, c.Name) }
		isText := func(c Column) bool { return c.Text }
		// A label like "3" is no evidence: a row may have a 3 in it.
		named := numberErr != nil && slices.Contains(trimmed, t.options.Label) || slices.ContainsFunc(t.options.Columns, isName)
		header = named || !slices.ContainsFunc(trimmed, isNumber)
		if text := t.options.Text || slices.ContainsFunc(t.options.Columns, isText); text && !named && header {
			return option.Errorf("the first line, %s, has neither the name of an input nor that of the label, and so may be a header or a row of text: name a column like the input of the model, or set {CSVOptions.Header}: %w",
				quote(strings.Join(trimmed, ",")), ErrField)
		}
	}
	if header {
		if err := t.header(trimmed); err != nil {
			return err
		}
	}
	if label := t.options.Label; label != "" {
		t.label = slices.Index(t.names, label)
		if t.label < 0 && numberErr == nil && number != 0 && number >= -t.columns && number <= t.columns {
			t.label = (number + t.columns) % t.columns
			if number > 0 {
				t.label = number - 1
			}
		}
		if t.label < 0 {
			return t.noLabel(trimmed)
		}
		if t.columns == 1 {
			return fmt.Errorf("the label is the only column, so there is nothing to learn it from: %w", ErrFormat)
		}
	}
	if err := t.layOut(); err != nil {
		return err
	}
	if err := t.list(t.options.Classes); err != nil {
		return err
	}
	if header {
		return nil
	}
	return t.row(record)
}

// maxFields is the most fields of a table, far more than a model has inputs.
const maxFields = 4096

// list has labels be names of classes that are known.
func (t *table) list(classes []string) error {
	if len(classes) == 0 {
		return nil
	}
	t.kind, t.listed = nameLabel, classes
	var err error
	t.class, err = numbered(classes)
	return err
}

// numbered gives each class its number.
func numbered(classes []string) (map[string]int64, error) {
	numbers := make(map[string]int64, len(classes))
	for i, name := range classes {
		if _, ok := numbers[name]; ok {
			return nil, fmt.Errorf("class %q is listed twice: %w", name, ErrField)
		}
		numbers[name] = int64(i)
	}
	return numbers, nil
}

// layOut decides which field the values of each column go to.
func (t *table) layOut() error {
	x := &features{name: "x", text: t.options.Text}
	t.fields = slices.Repeat([]*features{x}, t.columns)
	others := t.columns
	if t.label >= 0 {
		t.fields[t.label] = nil
		others--
	}
	if i := slices.Index(t.names, SampleWeight); i >= 0 && i != t.label {
		t.fields[i] = &features{name: SampleWeight}
		others--
	}
	text := make(map[string]bool)
	for _, c := range t.options.Columns {
		if i := slices.Index(t.names, c.Name); i < 0 || i == t.label {
			if t.names != nil && max(others, len(t.options.Columns)) > 1 {
				return fmt.Errorf("no column %q, which is an input of the model: add it, or name a column so: %w", c.Name, ErrFormat)
			}
			return nil
		}
		text[c.Name] = c.Text
	}
	if len(text) == 0 {
		return nil
	}
	if t.columns > maxFields {
		return fmt.Errorf("%d columns, where %d are the most of a table whose columns are fields of their own: leave out those that are not used: %w", t.columns, maxFields, ErrFormat)
	}
	for i, f := range t.fields {
		if f == x {
			isText, known := text[t.names[i]]
			t.fields[i] = &features{name: t.names[i], text: isText || !known}
		}
	}
	return nil
}

func (t *table) header(names []string) error {
	first := make(map[string]int, len(names))
	for i, name := range names {
		if name == "" {
			return t.bad(i, "no name", "a name for each column", `the row numbers that pandas writes are not data: save with index=False`)
		}
		if at, ok := first[name]; ok {
			return t.bad(i, quote(name), "a name of its own", fmt.Sprintf("column %d has it already; if line %d is not a header, say so", at+1, t.firstLine))
		}
		first[name] = i
	}
	t.names = names
	return nil
}

func (t *table) noLabel(first []string) error {
	if t.names == nil {
		return fmt.Errorf("no label column %s: the file has no header, and %d columns; give a number from 1, or -1 for the last: %w",
			quote(t.options.Label), t.columns, ErrField)
	}
	// The label is usually among the last columns.
	const most = 12
	shown := fmt.Sprintf("%q", first)
	if len(first) > most {
		shown = fmt.Sprintf("%q ... %q", first[:most/2], first[len(first)-most/2:])
	}
	hint := ""
	if len(first) == 1 && strings.Contains(first[0], ";") {
		hint = "the file seems to be separated by semicolons, where commas are expected; "
	}
	return fmt.Errorf("no label column %s among the %d columns %s; %sgive a name from the header, a number from 1, or -1 for the last: %w",
		quote(t.options.Label), t.columns, shown, hint, ErrField)
}

// row takes in one row, or nothing of it.
func (t *table) row(record []string) error {
	line, _ := t.lines.FieldPos(0)
	if err := t.values.take(rowBytes + cellBytes*int64(len(record))); err != nil {
		return err
	}
	if len(record) != t.columns {
		return &RowError{
			File: t.file, Unit: "line", Row: line,
			Found:    fmt.Sprintf("%d columns", len(record)),
			Expected: fmt.Sprintf("%d as in line %d", t.columns, t.firstLine),
			Fix:      "complete the row or remove it; cells with commas in them need double quotes",
			Err:      ErrFormat,
		}
	}
	for i, cell := range record {
		if f := t.fields[i]; f != nil && f.text {
			if err := t.values.take(textBytes); err != nil {
				return err
			}
			// Cells share memory with their whole row.
			f.texts = append(f.texts, strings.Clone(cell))
			continue
		}
		cell = strings.TrimSpace(cell)
		if i == t.label {
			if err := t.addLabel(i, cell); err != nil {
				return err
			}
			continue
		}
		v, err := t.number(i, cell)
		if err != nil {
			return err
		}
		t.fields[i].add(v, cell, t.options.Exact)
	}
	t.line = append(t.line, line)
	return nil
}

// add takes in a number.
func (f *features) add(v float32, cell string, keepExact bool) {
	exact := float64(v)
	if keepExact && math.Abs(exact) >= 1<<24 {
		if w, err := strconv.ParseFloat(cell, 64); err == nil && w == math.Trunc(w) && math.Abs(w) < 1<<53 {
			exact = w
		}
	}
	if f.wide == nil && exact == float64(v) {
		f.narrow = append(f.narrow, v)
		return
	}
	if f.wide == nil {
		f.wide = make([]float64, len(f.narrow), len(f.narrow)+len(f.narrow)/4+1)
		for i, v := range f.narrow {
			f.wide[i] = float64(v)
		}
		f.narrow = nil
	}
	f.wide = append(f.wide, exact)
}

// array is the values of n samples.
func (f *features) array(n int) Array {
	switch {
	case f.text:
		return Array{Shape: []int{n, len(f.texts) / n}, Values: f.texts}
	case f.wide != nil:
		return Array{Shape: []int{n, len(f.wide) / n}, Values: f.wide}
	}
	return Array{Shape: []int{n, len(f.narrow) / n}, Values: f.narrow}
}

// number parses a cell that has to be a finite float32.
func (t *table) number(column int, cell string) (float32, error) {
	v, err := strconv.ParseFloat(cell, 32)
	switch {
	case cell == "":
		return 0, t.bad(column, "an empty cell", "a number", "fill it in, or remove the row")
	case errors.Is(err, strconv.ErrRange):
		return 0, t.bad(column, quote(cell), fmt.Sprintf("a number within float32, up to %.2g", math.MaxFloat32), "scale the column down")
	case err == nil && (math.IsNaN(v) || math.IsInf(v, 0)):
		return 0, t.bad(column, quote(cell), "a finite number", "fill it in, or remove the row")
	case err != nil || !isDecimal(cell):
		fix := "correct it, or encode the column as numbers"
		if t.label < 0 {
			fix += "; if the column is the label, name it as such"
		}
		if len(t.line) == 0 && t.names == nil {
			fix += "; if this line is a header, say so"
		}
		return 0, t.bad(column, quote(cell), "a number", fix)
	}
	return float32(v), nil
}

// isNumber reports a decimal number. NaN and infinities count, so that they are
// complained about and not taken for names.
func isNumber(cell string) bool {
	v, err := strconv.ParseFloat(cell, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return false
	}
	return math.IsNaN(v) || math.IsInf(v, 0) || isDecimal(cell)
}

// isDecimal tells a decimal number from the others that ParseFloat reads:
// hexadecimal, perhaps with underscores, which in a table is something else gone
// wrong.
func isDecimal(number string) bool {
	return strings.Trim(number, "0123456789+-.eE") == ""
}

func (t *table) addLabel(column int, cell string) error {
	if cell == "" {
		return t.bad(column, "an empty cell", "a label", "fill it in, or remove the row")
	}
	numeric := isNumber(cell)
	if t.kind == noLabels && !numeric {
		if err := t.list(t.options.Names); err != nil {
			return err
		}
	}
	if t.listed != nil {
		class, ok := t.class[cell]
		if !ok {
			return t.bad(column, quote(cell), fmt.Sprintf("one of the %d classes, such as %s", len(t.class), quote(t.listed[0])), "correct it, or remove the row")
		}
		t.y = append(t.y, class)
		return nil
	}
	switch {
	case t.kind == noLabels && numeric:
		t.kind = integerLabel
	case t.kind == noLabels:
		t.kind, t.class = nameLabel, make(map[string]int64)
	case t.kind == nameLabel && numeric:
		return t.bad(column, quote(cell), fmt.Sprintf("a name like %s in line %d", quote(t.found[0]), t.line[0]), "correct it, or list all classes")
	case t.kind != nameLabel && !numeric:
		return t.bad(column, quote(cell), fmt.Sprintf("a number as in line %d", t.line[0]), "correct it, or list all classes if labels are names")
	}
	if t.kind == nameLabel {
		class, ok := t.class[cell]
		if !ok {
			// Records are reused and cells share memory with their whole row.
			name := strings.Clone(cell)
			if err := t.values.take(classBytes + int64(len(name))); err != nil {
				return err
			}
			class = int64(len(t.found))
			t.class[name] = class
			t.found = append(t.found, name)
		}
		t.y = append(t.y, class)
		return nil
	}
	return t.addNumber(column, cell)
}

func (t *table) addNumber(column int, cell string) error {
	if t.kind == integerLabel {
		v, err := strconv.ParseInt(cell, 10, 64)
		if err == nil {
			t.y = append(t.y, v)
			return nil
		}
		if errors.Is(err, strconv.ErrRange) {
			return t.bad(column, quote(cell), "an integer within int64", "use smaller class numbers, or write it as a float")
		}
		t.kind = realLabel
		for _, v := range t.y {
			t.real = append(t.real, float32(v))
		}
		t.y = nil
	}
	v, err := t.number(column, cell)
	if err != nil {
		return err
	}
	t.real = append(t.real, v)
	return nil
}

// dataset is made of all rows.
func (t *table) dataset() (*InMemory, error) {
	n := len(t.line)
	if n == 0 {
		return nil, t.failed(fmt.Errorf("no rows in it: %w", ErrFormat))
	}
	var fields []Field
	for i, f := range t.fields {
		if f != nil && !slices.Contains(t.fields[:i], f) {
			fields = append(fields, Field{f.name, f.array(n)})
		}
	}
	switch {
	case t.label < 0:
	case t.kind == realLabel:
		fields = append(fields, Field{"y", Array{Shape: []int{n}, Values: t.real}})
	default:
		fields = append(fields, Field{"y", Array{Shape: []int{n}, Values: t.y}})
	}
	classes := t.listed
	if t.found != nil {
		classes = t.sortClasses()
	}
	m, err := New(t.file, fields...)
	if err != nil {
		return nil, err
	}
	m.lines = t.line
	if t.label >= 0 {
		y := &m.columns[len(m.columns)-1]
		y.classes = slices.Clone(classes)
		y.origin = t.columnName(t.label)
	}
	return m, nil
}

// sortClasses numbers the classes in the order of their names, not in that of
// the rows, so that the rows may be in any order.
func (t *table) sortClasses() []string {
	sorted := slices.Sorted(slices.Values(t.found))
	number := make([]int64, len(sorted))
	for i, name := range sorted {
		number[t.class[name]] = int64(i)
	}
	for i, class := range t.y {
		t.y[i] = number[class]
	}
	return sorted
}
