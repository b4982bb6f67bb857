package data

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

func (t *table) hasHeader(first []string) (bool, error) {
	switch t.options.Header {
	case "":
	case "yes", "no":
		return t.options.Header == "yes", nil
	default:
		return false, option.Errorf("{CSVOptions.Header} is %q, expected yes, no, or nothing: %w", t.options.Header, ErrField)
	}
	text := t.options.Text
	// If the label option is a number such as "3", a cell with this text does not indicate a
	// header, since a row may contain it.
	_, numberErr := strconv.Atoi(t.options.Label)
	named := numberErr != nil && slices.Contains(first, t.options.Label)
	for _, c := range t.options.Columns {
		text, named = text || c.Type == dtype.For[string]().Name, named || slices.Contains(first, c.Name)
	}
	for _, name := range slices.Concat(t.options.Features, t.options.ignore, t.options.Schema.names()) {
		named = named || !isNumber(name) && slices.Contains(first, name)
	}
	header := named || !slices.ContainsFunc(first, func(cell string) bool {
		_, isTruth := boolRule.convert(cell)
		return isNumber(cell) || t.options.Bool && isTruth
	})
	if text && !named && header {
		if hint := t.separator(first[0]); hint != "" && len(first) == 1 {
			return false, option.Errorf("line %d has one column, %s: %s; if it is a row of text, set {CSVOptions.Header no}: %w", t.firstLine, quote(first[0]), hint, ErrFormat)
		}
		return false, option.Errorf("the first line, %s, may be a header or a row of text; name a column like an input of the model or the label, or set {CSVOptions.Header}: %w",
			quote(strings.Join(first, ",")), ErrField)
	}
	if !header && fromZero(first) {
		return false, option.Errorf("the first line, %s, may be the names that pandas gives to columns without names, or a row; set {CSVOptions.Header} to yes or no: %w",
			quote(strings.Join(first, ",")), ErrField)
	}
	return header, nil
}

// fromZero reports whether cells are 0, 1, 2 and so on, at least three numbers. One cell may be a text, such
// as the name of a label.
func fromZero(cells []string) bool {
	n := 0
	for _, cell := range cells {
		if cell == strconv.Itoa(n) {
			n++
		} else if isNumber(cell) {
			return false
		}
	}
	return n >= 3 && n+1 >= len(cells)
}

// findLabel sets t.label to the column of the label, if the options name a label. If the options have
// the number of a column with a name, findLabel replaces the number by the name.
func (t *table) findLabel(first []string) (err error) {
	if t.options.Label == "" {
		return nil
	}
	if t.label, err = t.labelColumn(); err != nil {
		return err
	}
	if t.label < 0 {
		return t.noLabel(first)
	}
	if t.columns == 1 {
		return fmt.Errorf("the label is the only column, so there are no features: %w", ErrFormat)
	}
	if t.names != nil {
		t.options.Label = t.names[t.label]
	}
	return nil
}

// labelColumn returns the column of the label from 0, or -1. A text that is the name of one column and
// the number of another is an error.
func (t *table) labelColumn() (int, error) {
	label := t.options.Label
	named := slices.Index(t.names, label)
	number, err := strconv.Atoi(label)
	if err != nil || number == 0 || number < -t.columns || number > t.columns {
		return named, nil
	}
	numbered, other := number-1, -t.columns // an index plus other is the number of that column from the other end
	if number < 0 {
		numbered, other = number+t.columns, 1
	}
	if named >= 0 && named != numbered {
		return -1, fmt.Errorf("the label %s is the name of column %d and the number of column %s; rename a column, or count from the other end, %d for the name or %d for the number: %w",
			quote(label), named+1, t.columnName(numbered), named+other, numbered+other, ErrField)
	}
	return numbered, nil
}

func (t *table) header(names []string) error {
	first := make(map[string]int, len(names))
	for i, name := range names {
		if name == "" {
			return t.bad(i, "no name", "a name for each column", `if these are the row numbers of pandas, save with index=False`)
		}
		if at, ok := first[name]; ok {
			return t.bad(i, quote(name), "a unique name", fmt.Sprintf("column %d has the same name; if line %d is not a header, set {CSVOptions.Header no}", at+1, t.firstLine))
		}
		first[name] = i
	}
	t.names = names
	return nil
}

func (t *table) noLabel(first []string) error {
	if t.names == nil {
		return fmt.Errorf("no label column %s: the file has no header and has %d columns; give a number from 1, or -1 for the last: %w",
			quote(t.options.Label), t.columns, ErrField)
	}
	// The label is usually one of the last columns, so the message includes the last ones.
	const most = 12
	shown := fmt.Sprintf("%q", first)
	if len(first) > most {
		shown = fmt.Sprintf("%q ... %q", first[:most/2], first[len(first)-most/2:])
	}
	if hint := t.separator(first[0]); hint != "" && len(first) == 1 {
		return fmt.Errorf("no label column %s among the %d columns %s: %s: %w", quote(t.options.Label), t.columns, shown, hint, ErrField)
	}
	return fmt.Errorf("no label column %s among the %d columns %s; give a name from the header, a number from 1, or -1 for the last: %w",
		quote(t.options.Label), t.columns, shown, ErrField)
}

// separator returns what to do if a cell seems to contain several columns, with another separator
// between them than CSVOptions.Comma. It returns "" for other cells.
func (t *table) separator(cell string) string {
	for _, c := range ";\t" {
		if strings.ContainsRune(cell, c) && t.options.Comma != c {
			return fmt.Sprintf("columns seem to be separated by %q instead of %q; write the file with %[2]q between columns and a point in decimal numbers, "+
				`for example with pandas.read_csv(%q, sep="%s", decimal=",").to_csv("commas.csv", index=False)`,
				c, cmp.Or(t.options.Comma, ','), t.file, strings.Trim(strconv.QuoteRune(c), "'"))
		}
	}
	return ""
}
