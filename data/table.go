package data

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"

	"steadyfit/data/internal/image"
	"steadyfit/internal/dtype"
)

// CSVOptions configure how a table is read, and which values of records are the label and the inputs.
//
// The label becomes the field y: int64 if all labels are integers, float32 if all are numbers, and
// otherwise the int64 number of the name in FieldSpec.Classes. A column sample_weight becomes a float32
// field of that name. The other columns become the inputs of the model (Inputs). Empty cells, NaN,
// infinities, text that is not UTF-8, and rows of different lengths are a *RowError (ErrFormat).
type CSVOptions struct {
	// Label is the column that becomes the field y: its name or, in a CSV file, its number from 1. -1 means the last
	// column. A text that is the name of a column is not a number. Empty means that all columns are features.
	Label string
	// Classes are the names of the classes, in the order of their numbers. Empty means that
	// labels are numbers, or names numbered in sorted order. For a validation file, set the
	// FieldSpec.Classes of the training file, since some classes may be missing there.
	Classes []string
	// Names are the class names of a model, in the order of their numbers. Labels that are text must be among them, unless
	// Classes is set.
	Names []string
	// Numbers is why labels are numbers, such as "the loss of the model is mse", so that a text label is a
	// *RowError, unless Classes or Names is set. Empty means that labels may be names.
	Numbers string
	// Header is "no" if the first line of a CSV file is a row. Otherwise, it has the names of the columns.
	// A first line of numbers only is an error, unless Header is "yes" or the line has the names in Known.
	Header string
	// Known are columns of the training. A first line of a CSV file that has them in any order is a header.
	Known []string
	// Inputs are the inputs of the model, without the label: their names, their types, and the shapes of
	// their samples. A dimension of any size is -1. FieldSpec.Columns names the columns that feed an input, in
	// the order of its values; docs/reference/data.md has the rules for an input without them. Columns that feed no
	// input become fields, of text in CSV files.
	//
	// A field has the type string or bool if its input has. Numbers are float32, or float64 if the input has another type
	// than a float of 32 bits or fewer, and an integer below 2^53, such as an identifier, would be rounded by float32.
	Inputs []FieldSpec
	// InputsOnly leaves out columns that feed no input (InMemory.LeftOut), except the label and sample_weight.
	InputsOnly bool
	// Keep are columns that become fields of text, or of their type if they have lists, with KeptPrefix before their
	// names, unchanged and without a rule. In records, they are fields with their own names. A kept column also is the
	// label or part of an input, but a row of values takes only those in FieldSpec.Columns.
	Keep []string
	// Schema has rules for columns; nil means none.
	Schema *Schema

	ignore []string // Options.Ignore
	flat   bool     // whether the table is a CSV file
}

// KeptPrefix begins the names of the fields of CSVOptions.Keep.
const KeptPrefix = "kept column: "

// rowSource reads the rows of a table from a file of text.
type rowSource interface {
	// begin returns the number of columns and their names. names is nil if the columns have no names.
	begin() (names []string, columns int, err error)
	// flat reports whether every cell is one value, so that the columns are those of a plain table.
	flat() bool
	// skip names the columns that are left out. Their cells may be of any kind.
	skip(names []string)
	// next returns the cells of the next row by column, or io.EOF. They are valid until the next call.
	// After a *RowError, the caller may read on.
	next() ([]cell, error)
	// place returns the line of a cell of the last row, and what names its column in messages.
	place(column int) (line int, name string)
}

type cellKind uint8

const (
	rawCell cellKind = iota // text, and the column decides what it is
	numberCell
	textCell
	boolCell
	nullCell
	listCell
	dateCell  // text that only a rule reads
	otherCell // of a type that is not read, which text names
)

// String describes a kind in messages.
func (k cellKind) String() string {
	return [...]string{"a cell", "a number", "text", "true or false", "null", "an array", "a date or time", "a value"}[k]
}

// cell is a cell of a table. A number, or the numbers of a list, of a typed column are in values, from the index at on.
type cell struct {
	scalar
	shape  []int    // of a list
	items  []scalar // the values of a list
	values vector   // nil for the cells of a file of text
	at     int
	// encoded is true for text that was in base64, which may be an image.
	encoded bool
}

// bytes returns the approximate size of the values in memory.
func (c *cell) bytes() int64 {
	if c.values != nil && c.shape != nil {
		return int64(c.shape[0] * c.values.kind().Size)
	}
	n := 4 + len(c.text) + 16*len(c.items)
	for _, item := range c.items {
		n += len(item.text)
	}
	return int64(n)
}

// scalar is a single value.
type scalar struct {
	kind cellKind
	text string
}

// table collects the values of the rows of a table, in memory. It serves all formats.
type table struct {
	file    string // the one that is read
	options CSVOptions
	images  ImageOptions
	source  rowSource
	found   problems

	names   []string // nil if the columns have no names
	label   int      // the index of the column of the label, or -1
	out     []string // the columns that are left out
	rules   []*Rule  // by column; nil for a column without a rule
	fields  []*tableField
	n       int
	bytes   int64      // approximate size of the values
	checked int64      // the size for which the free memory is checked next
	lines   []int      // line of each row; nil for typed columns
	parts   []filePart // the files, for typed columns
}

// filePart is a file of a dataset of several files.
type filePart struct {
	path  string
	first int // row of its first record
}

// partOf returns the file of a row, and the number of its record in the file.
func partOf(parts []filePart, row int) (i int, path string, record int) {
	i = sort.Search(len(parts), func(i int) bool { return parts[i].first > row }) - 1
	return i, parts[i].path, row - parts[i].first
}

func newTable(name string, o Options) *table {
	return &table{file: name, options: o.CSV, images: o.Images, label: -1, found: problems{source: name},
		checked: fewBytes}
}

// readText reads the rows of a file of text as a dataset.
func (t *table) readText(source rowSource) (*InMemory, error) {
	t.lines = []int{}
	if err := t.read(source); err != nil {
		return nil, err
	}
	return t.dataset(t.file)
}

// readTyped reads the rows of files with typed columns as a dataset.
func (t *table) readTyped(paths []string, open func(io.ReaderAt, int64) (*typedRows, error)) (*InMemory, error) {
	name := t.file
	var first []typedColumn
	for _, path := range paths {
		t.file, t.parts = path, append(t.parts, filePart{path, t.n})
		f, size, err := openFile(path)
		if err != nil {
			return nil, err
		}
		source, err := open(f, size)
		if err == nil && first == nil {
			first = source.columns
		}
		switch {
		case err != nil:
			err = t.failed(err)
		case !slices.Equal(first, source.columns):
			err = fmt.Errorf("%s: its columns or their types differ from those of the first file: write all files with the "+
				"same columns: %w", path, ErrFormat)
		default:
			err = t.read(source)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return t.dataset(name)
}

// read adds the rows of a file.
func (t *table) read(source rowSource) error {
	t.source, t.options.flat = source, source.flat()
	if err := t.start(); err != nil {
		return t.failed(err)
	}
	for {
		cells, err := source.next()
		if err == io.EOF {
			break
		}
		if err != nil && !t.fail(err) || err == nil && !t.row(cells) {
			break
		}
	}
	if j, ok := source.(*jsonRows); ok {
		t.out = append(t.out, j.late...)
	}
	return t.found.err()
}

// fail keeps an error. It returns false if reading has to stop.
func (t *table) fail(err error) bool {
	return t.found.add(t.failed(err)) && errors.As(err, new(*RowError))
}

// failed adds the name of the file to an error.
func (t *table) failed(err error) error {
	if row := (*RowError)(nil); errors.As(err, &row) {
		row.File, row.Unit = t.file, "line"
		if t.parts != nil {
			row.Unit = "record"
		}
		return row
	}
	return fmt.Errorf("%s: %w", t.file, corrupt(err))
}

// start reads the names of the columns, and finds the label and the rules.
func (t *table) start() error {
	names, columns, err := t.source.begin()
	if err == io.EOF {
		return errNoRows
	}
	if err != nil {
		return err
	}
	t.names, t.rules = names, make([]*Rule, columns)
	if err := t.findLabel(columns); err != nil {
		return err
	}
	t.out = t.options.leaveOut(names, t.options.Label)
	isRead := func(name string) bool { return name == t.options.Label || t.options.keeps(name) }
	t.source.skip(slices.DeleteFunc(slices.Concat(t.out, t.options.ignore), isRead))
	rules, err := t.options.rules()
	if err != nil {
		return err
	}
	if len(rules) > 0 && names == nil {
		return fmt.Errorf("the schema has rules for names of columns, and the file has no header: %w", ErrFormat)
	}
	for i, name := range names {
		t.rules[i] = rules[name]
	}
	return t.options.useSchema(rules, names, t.options.Label)
}

var errNoRows = fmt.Errorf("it has no rows: %w", ErrFormat)

// findLabel finds the column of the label. It replaces the number of a column with a name by the name.
func (t *table) findLabel(columns int) error {
	label := t.options.Label
	if label == "" {
		return nil
	}
	t.label = slices.Index(t.names, label)
	if number, err := strconv.Atoi(label); err == nil && t.label < 0 && t.options.flat {
		if number < 0 {
			number += columns + 1
		}
		if number >= 1 && number <= columns {
			t.label = number - 1
		}
	}
	switch {
	case t.label >= 0 && columns == 1:
		return fmt.Errorf("the label is the only column, so there are no features: %w", ErrFormat)
	case t.label >= 0 && t.names != nil:
		t.options.Label = t.names[t.label]
	case t.label < 0 && t.names == nil:
		return fmt.Errorf("no label column %s: the file has no header and has %d columns; give a number from 1, or -1 for "+
			"the last: %w", quote(label), columns, ErrField)
	case t.label < 0:
		return fmt.Errorf("no label column %s among the %d columns %s; give a name from the header, a number from 1, or "+
			"-1 for the last: %w", quote(label), columns, list(t.names), ErrField)
	}
	return nil
}

// layOut makes the fields. first is the first row, which decides which columns have lists.
func (t *table) layOut(first []cell) error {
	features, at, weights := t.features(first)
	inputs, err := t.options.layOut(features)
	if err != nil {
		return err
	}
	if len(inputs) > maxFields {
		return fmt.Errorf("%d columns, but a table whose columns become fields may have at most %d: "+
			"remove unused columns: %w",
			len(inputs), maxFields, ErrFormat)
	}
	for _, in := range inputs {
		f := &tableField{name: in.name, kind: in.kind, joined: in.joined, whole: !in.joined,
			integer: in.of.is(dtype.IntKind, dtype.UintKind), exact: in.of != nil && in.of.Type == dtype.For[float64]().Name}
		for _, i := range in.columns {
			f.columns = append(f.columns, at[i])
		}
		t.fields = append(t.fields, f)
	}
	if weights != nil {
		t.fields = append(t.fields, weights)
	}
	if t.label >= 0 {
		y := &tableField{name: "y", columns: []int{t.label}, whole: true}
		if y.labels, err = newLabels(t.options); err != nil {
			return err
		}
		t.fields = append(t.fields, y)
	}
	if len(t.fields) == 0 {
		return fmt.Errorf("no column is read: it has %d, and %d are left out: %w", len(first), len(t.out), ErrFormat)
	}
	return t.checkRules()
}

// features returns the columns that become inputs, their indexes, and the field of the weights; nil for none. It makes
// the fields of kept columns.
func (t *table) features(first []cell) (features tableColumns, at []int, weights *tableField) {
	features = tableColumns{single: true, unnamed: t.names == nil}
	out := positions(t.out)
	for i := range first {
		name := ""
		if t.names != nil {
			name = t.names[i]
		}
		_, isOut := out[name]
		isPlain := first[i].kind != listCell && !t.isImage(i, first[i])
		if t.options.keeps(name) {
			kept := &tableField{name: KeptPrefix + name, columns: []int{i}, kept: true}
			if t.fields = append(t.fields, kept); first[i].kind != listCell {
				kept.kind = dtype.For[string]()
			}
		}
		switch {
		case i == t.label || isOut || !isPlain && t.options.keeps(name) && t.options.input(name) == nil:
		case name == sampleWeight && t.options.input(name) == nil && !t.options.Schema.allTexts():
			weights = &tableField{name: name, columns: []int{i}, kind: dtype.For[float32](), real: true}
		default:
			at, features.names = append(at, i), append(features.names, name)
			features.single = features.single && isPlain
		}
	}
	return features, at, weights
}

// checkRules returns an error if the values of a rule have a type that the field of the column does not
// take. Columns of bools without a rule get the usual one.
func (t *table) checkRules() error {
	for _, f := range t.fields {
		for _, i := range f.columns {
			rule, isBool := t.rules[i], f.kind == dtype.For[bool]()
			switch {
			case rule == nil && isBool:
				t.rules[i] = boolRule
			case rule == nil || f.kind == nil || f.kind.Kind == dtype.StringKind || rule.Type == "bool":
			case isBool || rule.Type == "text":
				takes := map[bool]string{true: "bools", false: "numbers"}[isBool]
				_, column := t.source.place(i)
				return fmt.Errorf("column %s is of type %s in the schema, and the model takes %s: give the column another type, "+
					"or leave it out: %w",
					column, rule.Type, takes, ErrFormat)
			}
			f.real = f.real || rule != nil && rule.Type == "float" && !f.joined
		}
	}
	return nil
}

// row adds the values of a row to the fields. It returns false if reading has to stop.
func (t *table) row(cells []cell) bool {
	if t.fields == nil {
		if err := t.layOut(cells); err != nil {
			return t.fail(err)
		}
	}
	if t.n++; t.lines != nil {
		line, _ := t.source.place(0)
		t.lines = append(t.lines, line)
	}
	for i := range cells {
		t.bytes += cells[i].bytes()
	}
	if t.bytes > t.checked {
		t.checked = 2 * t.bytes
		if err := checkMemory(t.bytes); err != nil { // as much again
			return t.fail(err)
		}
	}
	for _, f := range t.fields {
		for _, i := range f.columns {
			if err := t.add(f, i, &cells[i]); err != nil && !t.fail(err) {
				return false
			}
		}
	}
	return true
}

// add adds the values of a cell to a field.
func (t *table) add(f *tableField, column int, c *cell) error {
	isNumber := c.values != nil && c.kind != listCell
	switch isText := f.kind == dtype.For[string]() || t.options.Schema.allTexts(); {
	case f.kept && isNumber:
		return f.addText(scalar{text: textOf(c.values, c.at)})
	case f.kept && c.kind != listCell:
		return f.addText(scalar{text: c.text})
	case isNumber && (t.rules[column] != nil || isText):
		c.text, c.values = textOf(c.values, c.at), nil
	}
	if f.empty() && !f.joined && t.isImage(column, *c) {
		var err error
		if f.images, err = newImageDecoder(t.images); err != nil {
			return err
		}
	}
	err := t.options.Schema.apply(t.rules[column], c)
	if err == nil {
		err = f.add(*c)
	}
	if row := (*RowError)(nil); errors.As(err, &row) {
		row.Row, row.Column = t.source.place(column)
		if row.Fix == numberFix && t.label < 0 && len(t.options.Inputs) < 2 {
			row.Fix += "; if the column is the label, select it as the label"
		}
	}
	return err
}

// isImage reports whether a cell of a typed column, or of bytes, is an image to decode, which begins like one, unless
// the model takes it as text.
func (t *table) isImage(column int, c cell) bool {
	text := dtype.For[string]()
	return (t.parts != nil || c.encoded) && c.kind == textCell && column != t.label && t.rules[column] == nil &&
		!t.options.takes(t.names[column], text) &&
		image.IsImage([]byte(c.text[:min(len(c.text), 16)]))
}

func (t *table) dataset(name string) (*InMemory, error) {
	if t.n == 0 {
		return nil, fmt.Errorf("%s: %w", name, errNoRows)
	}
	m := &InMemory{name: name, n: t.n, lines: t.lines, parts: t.parts, out: t.out}
	for _, f := range t.fields {
		var classes []string
		if f.labels != nil {
			classes = slices.Clone(f.classes())
		}
		if err := m.addArray(f.name, f.array(t.n), name); err != nil {
			return nil, err
		}
		c := &m.columns[len(m.columns)-1]
		if f.labels != nil {
			c.classes = classes
			_, c.origin = t.source.place(t.label)
		}
		if f.images != nil {
			texts := c.values.(vec[string])
			made := f.images.column()
			made.name, made.file = c.name, c.file
			made.made = &imageTexts{images: f.images, name: c.name, parts: t.parts, texts: texts}
			*c = made
			continue
		}
		isText := t.options.only(dtype.For[string]()) && f.name == t.options.Inputs[0].Name
		if t.names != nil && !f.kept && (f.joined || isText || nameKey(t.names[f.columns[0]]) != nameKey(f.name)) {
			for _, i := range f.columns {
				c.columns = append(c.columns, t.names[i])
			}
		}
	}
	if len(m.columns) == 0 {
		return nil, fmt.Errorf("%s: a dataset needs at least one field: %w", name, ErrField)
	}
	return m, nil
}
