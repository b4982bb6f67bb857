package data

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"steadyfit/option"
)

// csvRows reads the rows of a CSV file.
type csvRows struct {
	lines   *csv.Reader
	header  string   // CSVOptions.Header
	known   []string // CSVOptions.Known
	names   []string
	columns int
	first   int      // the line of the first row or of the header
	pending []string // the first row, if the file has no header
	ended   bool     // after a syntax error; where the next row begins is unknown
	cells   []cell
}

func newCSVRows(text io.Reader, o CSVOptions, comma rune) rowSource {
	c := &csvRows{lines: csv.NewReader(text), header: o.Header, known: o.Known}
	c.lines.Comma = comma
	c.lines.ReuseRecord = true
	c.lines.FieldsPerRecord = -1 // next checks the number of cells
	return c
}

func (c *csvRows) flat() bool { return true }

func (c *csvRows) skip([]string) {}

func (c *csvRows) begin() ([]string, int, error) {
	if !slices.Contains([]string{"", "yes", "no"}, c.header) {
		return nil, 0, option.Errorf("{CSVOptions.Header} is %q, expected yes or no: %w", c.header, ErrField)
	}
	record, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	c.columns = len(record)
	c.first, _ = c.lines.FieldPos(0)
	var names []string
	for _, cell := range record {
		names = append(names, strings.TrimSpace(cell))
	}
	isOther := func(name string) bool { return !slices.Contains(names, name) }
	isKnown := len(c.known) > 0 && !slices.ContainsFunc(c.known, isOther)
	if c.header == "no" && !isKnown {
		c.pending = record
		return nil, c.columns, nil
	}
	if c.header == "" && !isKnown && !slices.ContainsFunc(names, func(name string) bool { return !isNumber(name) }) {
		return nil, 0, option.Errorf("the first line, %s, has numbers only: if it is a row, set {CSVOptions.Header no}; "+
			"if it has the names of the columns, set {CSVOptions.Header yes}: %w",
			quote(strings.Join(record, ",")), ErrField)
	}
	seen := make(map[string]int, c.columns)
	for i, name := range names {
		if err := c.checkName(i, name, seen); err != nil {
			return nil, 0, err
		}
		seen[name] = i + 1
	}
	c.names = names
	if at := strings.IndexAny(record[0], ";\t|,"); at >= 0 && c.columns == 1 {
		return nil, 0, fmt.Errorf("line %d has one column, %s: columns seem to be separated by %q instead of %q; write "+
			"the file with %[4]q between columns and a point in decimal numbers: %w",
			c.first, quote(record[0]), record[0][at], c.lines.Comma, ErrFormat)
	}
	return c.names, c.columns, nil
}

// checkName returns an error if the name of a column is empty, not text, or that of an earlier column. seen
// has the numbers of the earlier columns.
func (c *csvRows) checkName(column int, name string, seen map[string]int) error {
	bad := func(found, expected, fix string) error {
		return &RowError{Row: c.first, Column: strconv.Itoa(column + 1), Found: found, Expected: expected, Fix: fix,
			Err: ErrFormat}
	}
	switch {
	case !utf8.ValidString(name):
		wrong := notUTF8(name)
		return bad(wrong.Found, wrong.Expected, wrong.Fix)
	case name == "":
		return bad("no name", "a name for each column", "if these are the row numbers of pandas, save with index=False")
	case seen[name] > 0:
		return bad(quote(name), "a unique name", fmt.Sprintf("column %d has the same name; if line %d is a row, set "+
			"{CSVOptions.Header no}", seen[name], c.first))
	}
	return nil
}

// read returns the cells of the next row.
func (c *csvRows) read() ([]string, error) {
	if c.ended {
		return nil, io.EOF
	}
	record, err := c.lines.Read()
	if syntax := (*csv.ParseError)(nil); errors.As(err, &syntax) {
		c.ended = true
		return nil, &RowError{Row: syntax.Line, Found: syntax.Err.Error(),
			Expected: "a cell; in a quoted cell, each quote is doubled",
			Fix:      fmt.Sprintf("the row starts on line %d", syntax.StartLine), Err: ErrFormat}
	}
	return record, err
}

func (c *csvRows) next() (cells []cell, err error) {
	record := c.pending
	if c.pending = nil; record == nil {
		if record, err = c.read(); err != nil {
			return nil, err
		}
	}
	line, _ := c.lines.FieldPos(0)
	c.cells = c.cells[:0]
	for _, text := range record {
		c.cells = append(c.cells, cell{scalar: scalar{text: text}})
	}
	if len(record) != c.columns {
		return nil, &RowError{
			Row:      line,
			Found:    fmt.Sprintf("%d columns", len(record)),
			Expected: fmt.Sprintf("%d as in line %d", c.columns, c.first),
			Fix:      "complete the row or remove it; cells with commas in them need double quotes",
			Err:      ErrFormat,
		}
	}
	return c.cells, nil
}

func (c *csvRows) place(column int) (line int, name string) {
	name = strconv.Itoa(column + 1)
	if c.names != nil {
		name = fmt.Sprintf("%q (%s)", c.names[column], name)
	}
	if len(c.cells) > 0 {
		line, _ = c.lines.FieldPos(column)
	}
	return line, name
}

// maxFields limits the number of fields of a table. Models have far fewer inputs.
const maxFields = 4096
