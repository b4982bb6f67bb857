package data

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"steadyfit/internal/dtype"
	"steadyfit/internal/files"
)

// Schema has rules for columns of a table by name: CSV with a header, JSON lines, Parquet or Arrow. A
// column without a rule is read as if there were no schema.
type Schema struct {
	Columns map[string]Rule `json:"columns" yaml:"columns"`
	// Partial allows rules for columns that a table does not have.
	Partial bool `json:"-" yaml:"-"`

	texts bool // all columns are read as text, for InferSchema
}

// Rule determines how the cells of a column become values. Spaces around a cell do not count, except
// in text. An input of text gets the cell unchanged, if the rule allows the cell.
type Rule struct {
	// Type is float, int, text, bool, category or date.
	Type string `json:"type" yaml:"type"`
	// Missing is the text that is read in place of a missing cell: one that is empty, null or in NAValues, or NaN in a
	// column of floats or ints. If Missing is nil, a missing cell is an error, or the text "" in a column of text.
	Missing  *string  `json:"missing,omitempty" yaml:"missing,omitempty"`
	NAValues []string `json:"na_values,omitempty" yaml:"na_values,omitempty,flow"`
	// Strip lists texts that are removed from a float or int, such as "$". Thousands and Decimal are its
	// separators, as in pandas.read_csv; the default is none and a point.
	Strip     []string `json:"strip,omitempty" yaml:"strip,omitempty,flow"`
	Thousands string   `json:"thousands,omitempty" yaml:"thousands,omitempty"`
	Decimal   string   `json:"decimal,omitempty" yaml:"decimal,omitempty"`
	// Values are the categories with their numbers. For a label, these are the numbers of the classes.
	Values map[string]int64 `json:"values,omitempty" yaml:"values,omitempty,flow"`
	// TrueValues and FalseValues are the words of bools, in any case. The default is true and 1, and false and 0.
	TrueValues  []string `json:"true_values,omitempty" yaml:"true_values,omitempty,flow"`
	FalseValues []string `json:"false_values,omitempty" yaml:"false_values,omitempty,flow"`
	// Format has the directives of strftime; the default is %Y-%m-%d. A date becomes the number of
	// days (the default) or seconds since 1970, as Unit says.
	Format string `json:"format,omitempty" yaml:"format,omitempty"`
	Unit   string `json:"unit,omitempty" yaml:"unit,omitempty"`

	layout string // of package time
	asText bool   // whether values are the texts of cells
	asBool bool   // whether values are bools
}

var ruleKeys = []string{"type", "missing", "na_values", "strip", "thousands", "decimal", "values", "true_values",
	"false_values", "format", "unit"}

var ruleTypes = []string{"float", "int", "text", "bool", "category", "date"}

const (
	missingIsError = "error" // in a schema, "missing: error" refuses missing cells
	usualDate      = "%Y-%m-%d"
	maxSchema      = 1 << 20
	day            = 24 * 60 * 60
)

// directives are the directives of strftime in layouts of package time. A date is read with or without
// zeros before its numbers.
var directives = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "1", 'B': "January", 'b': "Jan", 'd': "2", 'A': "Monday", 'a': "Mon",
	'H': "15", 'I': "3", 'p': "PM", 'M': "4", 'S': "5", 'z': "-0700",
}

// layoutOf translates a format of strftime; ok is false if it has other characters than directives and separators.
func layoutOf(format string) (layout string, ok bool) {
	for i := 0; i < len(format); i++ {
		c := format[i]
		if c != '%' && !strings.ContainsRune("-/.:, TZ", rune(c)) {
			return "", false
		}
		if c != '%' {
			layout += string(c)
			continue
		}
		if i++; i == len(format) || directives[format[i]] == "" {
			return "", false
		}
		part := directives[format[i]]
		// without a separator after it, a number has two digits
		if len(part) == 1 && strings.HasPrefix(format[i+1:], "%") {
			part = "0" + part
		}
		layout += part
	}
	return layout, true
}

// boolRule reads the bools of a column without a rule.
var boolRule = &Rule{Type: "bool", asBool: true}

// ReadSchema reads a schema from a YAML file, which has the mapping columns with a rule for each name.
func ReadSchema(path string) (*Schema, error) {
	content, err := files.Read(path, maxSchema)
	if err != nil {
		return nil, err
	}
	s := &Schema{}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(s); err != nil {
		text := strings.NewReplacer("yaml: unmarshal errors:\n  ", "", "field ", "key ", "type data.", "a ", "data.",
			"").Replace(err.Error())
		return nil, fmt.Errorf("%s: %s; a rule has the keys %s: %w", path, text, strings.Join(ruleKeys, ", "), ErrFormat)
	}
	// The decoder truncates fractions without an error, so the numbers of categories are read again as text.
	var numbers struct {
		Columns map[string]struct{ Values map[string]yaml.Node }
	}
	if err := yaml.Unmarshal(content, &numbers); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, err, ErrFormat)
	}
	for name, rule := range numbers.Columns {
		for category, number := range rule.Values {
			if number.Kind == yaml.ScalarNode && number.ShortTag() != "!!int" {
				return nil, fmt.Errorf("%s: line %d: the rule of column %q: category %s has the number %s, expected an integer: %w",
					path, number.Line, name, quote(category), number.Value, ErrFormat)
			}
		}
	}
	if len(s.Columns) == 0 {
		return nil, fmt.Errorf("%s: no rules, expected columns with a rule for each name: %w", path, ErrFormat)
	}
	if _, err := (CSVOptions{Schema: s}).rules(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// complete checks a rule and sets its layout.
func (r *Rule) complete() error {
	if !slices.Contains(ruleTypes, r.Type) {
		return fmt.Errorf("type: found %s, expected %s: %w", quote(r.Type), strings.Join(ruleTypes, ", "), ErrFormat)
	}
	known := false
	r.layout, known = layoutOf(cmp.Or(r.Format, usualDate))
	switch {
	case (r.Type == "category") != (len(r.Values) > 0):
		return fmt.Errorf("values: only a category has values, and it needs their numbers, as in {female: 0, male: 1}: %w",
			ErrFormat)
	case !known:
		return fmt.Errorf("format: found %s, expected %%Y, %%m, %%d, %%H, %%M, %%S, %%I, %%p, %%y, %%b, %%B, %%a, %%A or "+
			"%%z, and separators: %w", quote(r.Format), ErrFormat)
	case r.Type == "date" && !strings.Contains(r.layout, "06"): // %Y becomes 2006, which contains 06
		return fmt.Errorf("format: found %s, expected a year, %%Y or %%y: %w", quote(r.Format), ErrFormat)
	case !slices.Contains([]string{"", "days", "seconds"}, r.Unit):
		return fmt.Errorf("unit: found %s, expected days or seconds: %w", quote(r.Unit), ErrFormat)
	case (r.TrueValues == nil) != (r.FalseValues == nil):
		return fmt.Errorf("true_values and false_values belong together: %w", ErrFormat)
	}
	if err := r.checkSeparators(); err != nil {
		return err
	}
	if r.Missing != nil && *r.Missing == missingIsError {
		r.Missing = nil
	}
	if r.Missing == nil {
		return nil
	}
	if _, ok := r.convert(*r.Missing); !ok {
		return fmt.Errorf("missing: found %s, expected %s, or %s: %w", quote(*r.Missing), r.expected(), missingIsError,
			ErrFormat)
	}
	return nil
}

func (r *Rule) checkSeparators() error {
	decimal := cmp.Or(r.Decimal, ".")
	switch {
	case r.Type != "float" && r.Type != "int" && (r.Strip != nil || r.Thousands+r.Decimal != ""):
		return fmt.Errorf("strip, thousands and decimal: only a float and an int have them, and the type is %s: %w", r.Type,
			ErrFormat)
	case decimal != "." && decimal != ",", !strings.Contains(",. '", r.Thousands), r.Thousands == decimal:
		return fmt.Errorf("thousands and decimal: found %s and %s, expected different separators, decimal . or , and "+
			"thousands , . ' or a space: %w", quote(r.Thousands), quote(decimal), ErrFormat)
	}
	return nil
}

// rules returns the completed rules for a table.
func (o CSVOptions) rules() (map[string]*Rule, error) {
	if o.Schema == nil {
		return nil, nil
	}
	rules := map[string]*Rule{}
	for _, name := range o.Schema.names() {
		r := o.Schema.Columns[name]
		if err := r.complete(); err != nil {
			return nil, fmt.Errorf("the rule of column %q: %w", name, err)
		}
		r.asText = r.Type == "text" || o.takes(name, dtype.For[string]())
		r.asBool = r.Type == "bool" && o.takes(name, dtype.For[bool]())
		if name == o.Label {
			r.asText, r.asBool = r.Type == "text" || r.Type == "category", false
		}
		rules[name] = &r
	}
	return rules, nil
}

func (s *Schema) allTexts() bool { return s != nil && s.texts }

// names returns the columns that have rules.
func (s *Schema) names() []string {
	if s == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.Columns))
}

// useSchema checks that a table has the columns of the rules. If the label is a category, useSchema
// sets o.Classes to the categories in the order of their numbers.
func (o *CSVOptions) useSchema(rules map[string]*Rule, columns []string, label string) error {
	for _, name := range o.Schema.names() {
		if !o.Schema.Partial && !slices.Contains(columns, name) {
			return fmt.Errorf("the schema has a rule for column %s, and the columns are %s; correct the name, or remove the "+
				"rule: %w", quote(name), list(columns), ErrFormat)
		}
	}
	r := rules[label]
	if r == nil || r.Type != "category" {
		return nil
	}
	classes := slices.SortedFunc(maps.Keys(r.Values),
		func(a, b string) int { return cmp.Compare(r.Values[a], r.Values[b]) })
	for i, class := range classes {
		if r.Values[class] != int64(i) {
			return fmt.Errorf("the classes of label %s in the schema have the numbers %v, expected 0 to %d: %w",
				quote(label), slices.Sorted(maps.Values(r.Values)), len(classes)-1, ErrFormat)
		}
	}
	if len(o.Classes) > 0 && !slices.Equal(o.Classes, classes) {
		return fmt.Errorf("the schema has the classes %s for label %s, and the model has %s; give both the same numbers: %w",
			list(classes), quote(label), list(o.Classes), ErrFormat)
	}
	o.Classes = classes
	return nil
}

// read returns the value of a cell as the text of a number, or the text of the cell if asText is set.
// The error is a *RowError without a position.
func (r *Rule) read(cell string) (string, error) {
	if r.Type != "text" {
		cell = strings.TrimSpace(cell)
	}
	switch missing := r.isMissing(cell); {
	case missing && r.Missing != nil:
		cell = *r.Missing
	case missing && r.Type == "text":
		return "", nil
	case missing:
		return "", r.invalid(cell, "set missing of the rule in the schema to a value, or remove the row")
	}
	value, ok := r.convert(cell)
	switch {
	case !ok:
		return "", r.invalid(cell, "correct it, or change the rule in the schema")
	case r.asText:
		return cell, nil
	}
	return value, nil
}

func (r *Rule) invalid(cell, fix string) error {
	found := quote(cell)
	if cell == "" {
		found = "an empty cell"
	}
	if r == boolRule {
		fix = "correct it, or remove the row"
	}
	return &RowError{Found: found, Expected: r.expected(), Fix: fix, Err: ErrFormat}
}

func (r *Rule) isMissing(cell string) bool {
	return cell == "" || slices.Contains(r.NAValues, cell) || (r.Type == "float" || r.Type == "int") &&
		strings.EqualFold(cell, "nan")
}

// convert returns the number of a cell as text, and whether the rule allows the cell. Cells of type text do not change.
func (r *Rule) convert(cell string) (string, bool) {
	switch r.Type {
	case "text":
		return cell, true
	case "float":
		cell = r.plain(cell)
		return cell, isNumber(cell) && isDecimal(cell)
	case "int":
		v, ok := wholeNumber(r.plain(cell))
		return strconv.FormatInt(v, 10), ok
	case "bool":
		switch {
		case r.TrueValues == nil && strings.EqualFold(cell, "true"), r.TrueValues == nil && cell == "1",
			contains(r.TrueValues, cell):
			return "1", true
		case r.FalseValues == nil && strings.EqualFold(cell, "false"), r.FalseValues == nil && cell == "0",
			contains(r.FalseValues, cell):
			return "0", true
		}
		return "", false
	case "category":
		number, ok := r.Values[cell]
		return strconv.FormatInt(number, 10), ok
	}
	at, err := time.Parse(r.layout, cell)
	if err != nil && strings.Contains(r.layout, directives['z']) {
		at, err = time.Parse(strings.Replace(r.layout, directives['z'], "Z07:00", 1), cell)
	}
	seconds := at.Unix()
	if r.Unit != "seconds" {
		seconds = int64(math.Floor(float64(seconds) / day))
	}
	return strconv.FormatInt(seconds, 10), err == nil
}

// Renumbers returns a cell that r and a later rule read as different numbers, and these numbers; "" if none is known.
// Besides values, words and a missing cell, it compares a date and numbers with separators.
func (r Rule) Renumbers(now Rule) (cell, before, after string) {
	if r.Type == "text" || now.Type == "text" || cmp.Or(r.complete(), now.complete()) != nil {
		return "", "", ""
	}
	var texts []string
	for _, rule := range []Rule{r, now} {
		date := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC).Format(rule.layout)
		texts = slices.Concat(texts, slices.Sorted(maps.Keys(rule.Values)), rule.TrueValues, rule.FalseValues, rule.NAValues,
			[]string{date})
	}
	for _, text := range append(texts, "true", "false", "1", "0", "1,234", "1.234", "") {
		was, refused := r.read(text)
		is, unknown := now.read(text)
		a, _ := strconv.ParseFloat(was, 64)
		if b, _ := strconv.ParseFloat(is, 64); cmp.Or(refused, unknown) == nil && a != b {
			return cmp.Or(strings.TrimPrefix(strconv.Quote(text), `""`), "an empty cell"), was, is
		}
	}
	return "", "", ""
}

// plain returns a number without Strip and Thousands and with a decimal point, or "" if its separators are not
// those of the rule.
func (r *Rule) plain(cell string) string {
	if r.Strip == nil && r.Thousands+r.Decimal == "" {
		return cell
	}
	for _, text := range r.Strip {
		cell = strings.ReplaceAll(cell, text, "")
	}
	whole, fraction, _ := strings.Cut(strings.TrimSpace(cell), cmp.Or(r.Decimal, "."))
	if r.Thousands != "" {
		groups := strings.Split(whole, r.Thousands)
		for _, group := range groups[1:] {
			first := strings.TrimLeft(groups[0], "+-")
			if len(group) != 3 || len(first) > 3 || strings.HasPrefix(first, "0") { // 0,802 has a decimal comma
				return ""
			}
		}
		whole = strings.Join(groups, "")
	}
	if strings.ContainsAny(whole+fraction, ",.") {
		return ""
	}
	return strings.TrimSuffix(whole+"."+fraction, ".")
}

func contains(words []string, cell string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.EqualFold(word, cell) })
}

// expected describes the cells that the rule allows.
func (r *Rule) expected() string {
	switch r.Type {
	case "float":
		return "a number"
	case "int":
		return "an integer"
	case "bool":
		if r.TrueValues == nil {
			return "true, false, 1 or 0"
		}
		return "one of " + list(slices.Concat(r.TrueValues, r.FalseValues))
	case "category":
		return "one of " + list(slices.Sorted(maps.Keys(r.Values)))
	case "date":
		return "a date in the format " + cmp.Or(r.Format, usualDate)
	}
	return "text"
}

// apply replaces a cell by the value that the rule r of its column gives it. r is nil for a column without a rule.
func (s *Schema) apply(r *Rule, c *cell) error {
	switch {
	case s.allTexts() && c.kind != listCell:
		c.kind = textCell
		return nil
	case r == nil || s.allTexts():
		return nil
	case c.kind == listCell:
		return wrongCell("an array", "a single value, because the schema has a rule for the column", lineFix)
	}
	text, err := r.read(c.text)
	if c.text, c.kind = text, numberCell; r.asText {
		c.kind = textCell
	} else if r.asBool {
		c.kind = boolCell
	}
	return err
}
