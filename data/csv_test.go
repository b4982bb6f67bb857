package data

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/testkit"
	"steadyfit/option"
)

// opened opens a file, and closes it at the end of the test.
func opened(t testing.TB, path string, o Options) *InMemory {
	t.Helper()
	m, err := Open(path, o)
	require.NoError(t, err, path)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// fieldsOf returns the values of each field.
func fieldsOf(t testing.TB, m *InMemory) map[string]Array {
	t.Helper()
	all := make(map[string]Array)
	for b, err := range m.Batches(Pass{Batch: m.Len()}) {
		require.NoError(t, err)
		for _, f := range b.Fields {
			all[f.Name] = f.Array
		}
	}
	return all
}

// The inputs of models with one input.
var (
	denseInputs = []FieldSpec{{Name: "dense", Type: "float32"}}
	exactInputs = []FieldSpec{{Name: "dense", Type: "float64"}}
	boolInputs  = []FieldSpec{{Name: "x", Type: "bool", Shape: []int{-1}}}
	textInputs  = []FieldSpec{{Name: "x", Type: "string", Shape: []int{-1}}}
)

// columnInputs returns an input that takes columns.
func columnInputs(columns ...string) []FieldSpec {
	return []FieldSpec{{Name: "dense", Type: "float32", Columns: columns}}
}

func readCSV(name string, r io.Reader, o CSVOptions) (*InMemory, error) {
	return readTextTable(name, r, Options{CSV: o})
}

// csvOf returns the table in the text of a CSV file.
func csvOf(t testing.TB, text string, o CSVOptions) *InMemory {
	t.Helper()
	m, err := readCSV("t.csv", strings.NewReader(text), o)
	require.NoError(t, err, text)
	return m
}

func TestCSV(t *testing.T) {
	x2 := Array{[]int{2, 2}, []float32{1, 2, 3, 4}}
	for _, c := range []struct {
		name    string
		text    string
		options CSVOptions
		x       Array
		y       Array
		classes []string
	}{
		{"no label, no header", "1,2\n3,4\n", CSVOptions{Header: "no"}, x2, Array{}, nil},
		{"header seen", "a,b\n1,2\n3,4\n", CSVOptions{}, x2, Array{}, nil},
		{"no end of line, blank lines, CRLF", "a,b\r\n\r\n1,2\r\n3,4", CSVOptions{}, x2, Array{}, nil},
		{"byte order mark", "\xef\xbb\xbf1,2\n3,4\n", CSVOptions{Header: "no"}, x2, Array{}, nil},
		{"spaces and quotes", "\" 1 \", 2\n3 ,\"4\"\n", CSVOptions{Header: "no"}, x2, Array{}, nil},
		{"numbers as header", "0,1\n1,2\n3,4\n", CSVOptions{Header: "yes"}, x2, Array{}, nil},
		{"no header though asked", "1,2\n3,4\n", CSVOptions{Header: "no"}, x2, Array{}, nil},
		{"a row of two numbers", "0,1\n3,4\n", CSVOptions{Header: "no"}, Array{[]int{2, 2}, []float32{0, 1, 3, 4}}, Array{},
			nil},
		{"a row of two numbers and a name", "0,1,dog\n3,4,cat\n", CSVOptions{Header: "no", Label: "3"},
			Array{[]int{2, 2}, []float32{0, 1, 3, 4}}, Array{[]int{2}, []int64{1, 0}}, []string{"cat", "dog"}},
		{"a row 0,1,2", "0,1,2\n3,4,8\n", CSVOptions{Label: "3", Header: "no"}, Array{[]int{2, 2}, []float32{0, 1, 3, 4}},
			Array{[]int{2}, []int64{2, 8}}, nil},
		{"label by name", "a,label,b\n1,7,2\n3,-8,4\n", CSVOptions{Label: "label"}, x2, Array{[]int{2}, []int64{7, -8}}, nil},
		{"label by name among numbers", "0,1,label\n1,2,7\n3,4,8\n", CSVOptions{Label: "label"}, x2,
			Array{[]int{2}, []int64{7, 8}}, nil},
		{"label by number", "7,1,2\n8,3,4\n", CSVOptions{Header: "no", Label: "1"}, x2, Array{[]int{2}, []int64{7, 8}}, nil},
		{"label by number that is in the row", "1,2,3\n3,4,8\n", CSVOptions{Header: "no", Label: "3"}, x2,
			Array{[]int{2}, []int64{3, 8}}, nil},
		{"last label", "1,2,7\n3,4,8\n", CSVOptions{Header: "no", Label: "-1"}, x2, Array{[]int{2}, []int64{7, 8}}, nil},
		{"first label from the end", "7,1,2\n8,3,4\n", CSVOptions{Header: "no", Label: "-3"}, x2,
			Array{[]int{2}, []int64{7, 8}}, nil},
		{"label named like a number", "1,2,0\n1,2,7\n3,4,8\n", CSVOptions{Label: "0", Header: "yes"}, x2,
			Array{[]int{2}, []int64{7, 8}}, nil},
		{"label by name and the same number", "1,b,3\n1,2,7\n3,4,8\n", CSVOptions{Label: "3", Header: "yes"}, x2,
			Array{[]int{2}, []int64{7, 8}}, nil},
		{"float labels", "1,2,7\n3,4,0.5\n", CSVOptions{Header: "no", Label: "3"}, x2, Array{[]int{2}, []float32{7, 0.5}},
			nil},
		{"named labels", "1,2,dog\n3,4,cat\n", CSVOptions{Header: "no", Label: "3"}, x2, Array{[]int{2}, []int64{1, 0}},
			[]string{"cat", "dog"}},
		{"listed labels", "1,2,dog\n3,4,7\n", CSVOptions{Header: "no", Label: "3", Classes: []string{"7", "cat", "dog"}}, x2,
			Array{[]int{2}, []int64{2, 0}}, []string{"7", "cat", "dog"}},
		{"forms of numbers", "+1,2.\n.3e1,400E-2\n", CSVOptions{Header: "no"}, x2, Array{}, nil},
		{"integers beyond float32", "0.1,2\n16777217,4\n5.5,-9007199254740991.0\n9007199254740993,16777216\n",
			CSVOptions{Header: "no", Inputs: exactInputs}, Array{[]int{4, 2},
				[]float64{float64(float32(0.1)), 2, 16777217, 4, 5.5, 1 - 1<<53, 1 << 53, 1 << 24}}, Array{}, nil},
		{"integers that are rounded", "16777217,2\n", CSVOptions{Header: "no"}, Array{[]int{1, 2}, []float32{1 << 24, 2}},
			Array{}, nil},
		{"large ones that it holds", "16777216,2\n33554432,4\n", CSVOptions{Header: "no", Inputs: exactInputs},
			Array{[]int{2, 2}, []float32{1 << 24, 2, 1 << 25, 4}}, Array{}, nil},
		{"all of float32", "3.4028235e38,1e-45\n-0,1e-400\n", CSVOptions{Header: "no"},
			Array{[]int{2, 2}, []float32{math.MaxFloat32, math.SmallestNonzeroFloat32, 0, 0}}, Array{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := csvOf(t, c.text, c.options)
			got := fieldsOf(t, m)
			require.Equal(t, c.x.Shape, got["x"].Shape)
			require.InDeltaSlice(t, c.x.Values, got["x"].Values, 0)
			require.Equal(t, c.y, got["y"])
			require.Equal(t, c.classes, spec(m, "y").Classes)
		})
	}
}

func TestCSVRowErrors(t *testing.T) {
	for _, c := range []struct {
		name    string
		text    string
		options CSVOptions
		row     int
		column  string
		says    string
	}{
		{"not a number", "a,b\n1,2\n3,x\n", CSVOptions{}, 3, `"b" (2)`, `t.csv: line 3, column "b" (2): found "x", expected a number; correct it`},
		{"empty cell", "1,2\n3,\n", CSVOptions{Header: "no"}, 2, "2",
			"found an empty cell, expected a number; write a value, such as the mean of the column, give the column one by a " +
				"rule of a schema, or remove the row; a model may also take the column as text"},
		{"blank cell", "1,2\n3,  \n", CSVOptions{Header: "no"}, 2, "2", "found an empty cell"},
		{"NaN", "1,2\n3,nan\n", CSVOptions{Header: "no"}, 2, "2", `found "nan", expected a finite number`},
		{"infinity", "1,2\n-Infinity,1\n", CSVOptions{Header: "no"}, 2, "1", "expected a finite number"},
		{"NaN in the first line", "NaN,3\n1,2\n", CSVOptions{Header: "no"}, 1, "1", "expected a finite number"},
		{"overflow", "1,2\n3,1e39\n", CSVOptions{Header: "no"}, 2, "2", "within float32"},
		{"hexadecimal", "1,2\n3,0x10\n", CSVOptions{Header: "no"}, 2, "2", "expected a number"},
		{"underscores", "1,2\n3,0x_1p4\n", CSVOptions{Header: "no"}, 2, "2", "expected a number"},
		{"short row", "1,2\n3\n", CSVOptions{Header: "no"}, 2, "", "found 1 columns, expected 2 as in line 1"},
		{"long row", "a,b\n1,2\n\n3,4,5\n", CSVOptions{}, 4, "", "found 3 columns, expected 2 as in line 1"},
		{"stray quote", "1,2\n3,4\"\n", CSVOptions{Header: "no"}, 2, "",
			"found bare \" in non-quoted-field, expected a cell"},
		{"open quote", "1,2\n3,\"4\n5,6\n", CSVOptions{Header: "no"}, 3, "", "the row starts on line 2"},
		{"label not named", "1,2,cat\n", CSVOptions{Header: "no"}, 1, "3", "if the column is the label, select it"},
		{"lines in quotes", "1,2\n\"\n3\",4\n5,x\n", CSVOptions{Header: "no"}, 4, "2", `found "x"`},
		{"names twice", "a,a\n1,2\n", CSVOptions{}, 1, `2`, `found "a", expected a unique name; column 1 has the same name`},
		{"no name", ",a\n0,2\n", CSVOptions{}, 1, `1`, "index=False"},
		{"name among numbers", "1,2\n3,x\n", CSVOptions{Header: "no", Label: "2"}, 2, "2", `found "x", expected a number as in the first row`},
		{"number among names", "1,x\n3,2\n", CSVOptions{Header: "no", Label: "2"}, 2, "2", `found "2", expected a name like "x" in the first row`},
		{"empty label", "1,x\n3,\n", CSVOptions{Header: "no", Label: "2"}, 2, "2", "expected a label"},
		{"label NaN", "1,0.5\n3,NaN\n", CSVOptions{Header: "no", Label: "2"}, 2, "2", "expected a finite number"},
		{"label NaN first", "1,NaN\n3,1\n", CSVOptions{Header: "no", Label: "2"}, 1, "2", "expected a finite number"},
		{"label beyond float32", "1,0.5\n3,1e39\n", CSVOptions{Header: "no", Label: "2"}, 2, "2", "within float32"},
		{"unlisted label", "1,x\n3,y\n", CSVOptions{Header: "no", Label: "2", Classes: []string{"x"}}, 2, "2", `found "y", expected one of the 1 classes`},
		{"not a bool", "a,b\n1,2\n", CSVOptions{Inputs: boolInputs}, 2, `"b" (2)`, `found "2", expected true, false, 1 or 0`},
		{"Latin-1 in text", "a,b\nK\xf6ln,2\n", CSVOptions{Inputs: textInputs, Header: "yes"}, 2, `"a" (1)`, `found "K\xf6ln", expected text in UTF-8; convert the file, for example with iconv -f latin1 -t utf-8`},
		{"Latin-1 in long text", "a\n" + strings.Repeat("x", 50) + "ö\xf6ln\n", CSVOptions{Inputs: textInputs, Header: "yes"}, 2, `"a" (1)`, `found "\xf6ln", expected text in UTF-8`},
		{"Latin-1 in a label", "a,b\n1,Bern\n2,K\xf6ln\n", CSVOptions{Label: "b"}, 3, `"b" (2)`, `found "K\xf6ln", expected text in UTF-8`},
		{"Latin-1 in the header", "a,gr\xf6\xdfe\n1,2\n", CSVOptions{Inputs: textInputs}, 1, "2", `found "gr\xf6\xdfe", expected text in UTF-8`},
		{"long cell", "1,2\n3," + strings.Repeat("x", 1000) + "\n", CSVOptions{Header: "no"}, 2, "2", `xxx"...`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := readCSV("t.csv", strings.NewReader(c.text), c.options)
			require.Nil(t, m)
			var row *RowError
			require.ErrorAs(t, err, &row)
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorContains(t, err, c.says)
			require.Less(t, len(err.Error()), 300)
			require.Equal(t, []any{"t.csv", "line", c.row, c.column}, []any{row.File, row.Unit, row.Row, row.Column})
		})
	}
}

func TestCSVBools(t *testing.T) {
	for text, want := range map[string][]bool{
		"a,b\nTrue,1\nfalse, 0 \n":  {true, true, false, false},
		"a,b\nTRUE,False\n1,true\n": {true, false, true, true},
	} {
		m := csvOf(t, text, CSVOptions{Inputs: boolInputs})
		require.Equal(t, Array{[]int{2, 2}, want}, fieldsOf(t, m)["x"], text)
	}
	columns := []FieldSpec{{Name: "age", Type: "float32"}, {Name: "member", Type: "bool"}}
	m := csvOf(t, "member,age,label\nTrue,3,1\n0,4,0\n",
		CSVOptions{Label: "label", Inputs: columns})
	require.Equal(t, Array{[]int{2}, []bool{true, false}}, fieldsOf(t, m)["member"])
	require.Equal(t, Array{[]int{2}, []int64{3, 4}}, fieldsOf(t, m)["age"])
}

// Columns that hold text can be left out, since they are not parsed.
func TestCSVLeavesOutColumns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.csv")
	require.NoError(t, os.WriteFile(path, []byte("id,fare,name,age,label\n7,2,Ann,1,0\n8,4,,3,1\n"), 0o666))
	x := Array{[]int{2, 2}, []float32{1, 2, 3, 4}}
	o := Options{CSV: CSVOptions{Label: "label", InputsOnly: true, Inputs: columnInputs("age", "fare")}}
	selected := opened(t, path, o)
	require.Equal(t, x, fieldsOf(t, selected)["x"], "in the order of FieldSpec.Columns")
	require.Equal(t, []string{"age", "fare"}, spec(selected, "x").Columns)
	require.Equal(t, []string{"id", "name"}, selected.LeftOut())

	o.CSV.Inputs, o.CSV.InputsOnly, o.Ignore = nil, false, []string{"name", "id"}
	ignored := opened(t, path, o)
	require.Equal(t, []float32{2, 1, 4, 3}, fieldsOf(t, ignored)["x"].Values)
	require.Equal(t, []int64{0, 1}, fieldsOf(t, ignored)["y"].Values)
	require.Equal(t, []string{"fare", "age"}, spec(ignored, "x").Columns)
	dropped, err := ignored.Drop(o.Ignore...)
	require.NoError(t, err)
	require.Equal(t, fieldsOf(t, ignored), fieldsOf(t, dropped))
	_, err = ignored.Drop("cabin")
	require.ErrorIs(t, err, ErrField)

	o.CSV.Inputs = columnInputs("fare", "id")
	_, err = Open(path, o)
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, `no column "id", which input dense of the model takes`)
}

func TestCSVRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		text    string
		options CSVOptions
		kind    error
		says    string
	}{
		{"nothing", "", CSVOptions{}, ErrFormat, "no rows"},
		{"blank", "\n\n", CSVOptions{}, ErrFormat, "no rows"},
		{"header only", "a,b\n", CSVOptions{}, ErrFormat, "no rows"},
		{"no such label", "a,b\n1,2\n", CSVOptions{Label: "c"}, ErrField, `no label column "c" among the 2 columns ["a" "b"]`},
		{"no such number", "1,2\n", CSVOptions{Header: "no", Label: "3"}, ErrField, `the file has no header and has 2 columns`},
		{"column 0", "1,2\n", CSVOptions{Header: "no", Label: "0"}, ErrField, "give a number from 1"},
		{"name without header", "a,b\n1,2\n", CSVOptions{Label: "a", Header: "no"}, ErrField, "the file has no header"},
		{"unknown header", "a,b\n1,2\n", CSVOptions{Header: "maybe"}, ErrField, "expected yes or no"},
		{"only a label", "a\n1\n", CSVOptions{Label: "a"}, ErrFormat, "only column"},
		{"class twice", "1,2\n", CSVOptions{Header: "no", Label: "2", Classes: []string{"a", "a"}}, ErrField, "twice"},
		{"UTF-16", "\xff\xfe1\x00", CSVOptions{Header: "no"}, ErrUnsupported, "UTF-8"},
		{"semicolons", "a;b;label\n1,5;2;0\n", CSVOptions{Label: "label"}, ErrFormat, `columns seem to be separated by ';' instead of ','; write the file with ',' between columns and a point in decimal numbers`},
		{"semicolons between texts", "text;label\na good, long film;1\n", CSVOptions{Label: "label", Inputs: textInputs}, ErrFormat, `line 1 has one column, "text;label": columns seem to be separated by ';' instead of ','`},
		{"numbers only", "0,1,2\n3,4,5\n", CSVOptions{}, ErrField, `the first line, "0,1,2", has numbers only: if it is a row, set CSVOptions.Header no; if it has the names of the columns, set CSVOptions.Header yes`},
		{"binary", "1,2\n\x00", CSVOptions{Header: "no"}, ErrFormat, "binary"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readCSV("t.csv", strings.NewReader(c.text), c.options)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "t.csv")
		})
	}
}

// An error has up to ten problems, each with its line, and the file is read once. All bad cells of a row
// count.
func TestCSVProblems(t *testing.T) {
	read := func(text string) (string, error) {
		_, err := readCSV("t.csv", strings.NewReader(text), CSVOptions{Label: "y"})
		require.ErrorIs(t, err, ErrFormat)
		return err.Error(), err
	}
	text, _ := read("y,a,b\n1,?,2\n2,3\n3,4,5\n4,,6\n5,6,nan\n")
	require.Equal(t, []string{
		"t.csv: 4 problems:",
		`t.csv: line 2, column "a" (2): found "?", expected a number; correct it, encode the column by a rule of a schema (CSVOptions.Schema), or leave it out (Options.Ignore)`,
		"t.csv: line 3: found 2 columns, expected 3 as in line 1; complete the row or remove it; cells with commas in " +
			"them need double quotes",
		`t.csv: line 5, column "a" (2): found an empty cell, expected a number; ` + missingFix,
		`t.csv: line 6, column "b" (3): found "nan", expected a finite number`,
	}, strings.Split(text, "\n"))

	text, _ = read("y,a\n" + strings.Repeat("1\n", 30))
	lines := strings.Split(text, "\n")
	require.Len(t, lines, 1+maxProblems)
	require.Equal(t, "t.csv: the first problems:", lines[0])
	require.Contains(t, lines[maxProblems], "line 11: ")

	_, err := read("y,a,b,c\n" + strings.Repeat("1,male,x,2\n", 30))
	flags := option.Text(err, func(name, _ string) string { return "--" + name })
	require.Contains(t, flags, "(--CSVOptions.Schema), or leave it out (--Options.Ignore)")

	_, err = read("y,a\n1,?\n2,3\n")
	require.IsType(t, &RowError{}, err)
	// Cells before the problem in a row are used. Reading stops at a wrong quote, since the next row
	// cannot be found.
	text, _ = read("y,a\ncat,?\n3,1\n\"x\"y,1\n4,1\n")
	require.Equal(t, 4, len(strings.Split(text, "\n")))
	require.Contains(t, text, `line 3, column "y" (1): found "3", expected a name like "cat" in the first row`)
	require.Contains(t, text, "t.csv: line 4: found")
}

//lane:skip race (one goroutine)
func TestCSVOfManyColumns(t *testing.T) {
	const columns = 300_000
	var text strings.Builder
	for i := range columns {
		fmt.Fprintf(&text, "c%d,", i)
	}
	text.WriteString("y\n" + strings.Repeat("1,", columns) + "0\n")
	m := csvOf(t, text.String(), CSVOptions{Label: "y"})
	require.Equal(t, []int{columns}, m.Fields()[0].Shape)
}

// The columns of a model with several inputs, or with a text input, become separate fields.
func TestCSVFields(t *testing.T) {
	columns := []FieldSpec{{Name: "city", Type: "string"}, {Name: "age"}}
	text := "age,city,id,sample_weight,label\n3,\" Bern\",x1,0.5,yes\n4.5,,x2,2,no\n"
	m := csvOf(t, text, CSVOptions{Label: "label", Inputs: columns})
	require.Equal(t, map[string]Array{
		"age":           {[]int{2}, []float32{3, 4.5}},
		"city":          {[]int{2}, []string{" Bern", ""}},
		"id":            {[]int{2}, []string{"x1", "x2"}},
		"sample_weight": {[]int{2}, []float32{0.5, 2}},
		"y":             {[]int{2}, []int64{1, 0}},
	}, fieldsOf(t, m))
	require.Equal(t, []string{"no", "yes"}, spec(m, "y").Classes)

	_, err := readCSV("t.csv", strings.NewReader("city,text,label\na,b,1\n"), CSVOptions{Label: "label", Inputs: columns})
	require.ErrorContains(t, err, `no column "age", which input age of the model takes`)
	for _, label := range []string{"age", "1"} {
		_, err := readCSV("t.csv", strings.NewReader(text), CSVOptions{Label: label, Inputs: columns})
		require.EqualError(t, err, `t.csv: column "age" is an input of the model and cannot also be the label: choose another column as the label (CSVOptions.Label): malformed data`)
	}

	// One of several columns is the text input.
	one := CSVOptions{Label: "label", Inputs: []FieldSpec{{Name: "x", Type: "string"}}}
	_, err = readCSV("t.csv", strings.NewReader("review,label,age\ngood,1,2\n"), one)
	require.ErrorContains(t, err, `no column "x", which input x of the model takes`)
	words := []FieldSpec{{Name: "words", Type: "string"}}
	good := Array{[]int{1, 1}, []string{"good"}}
	// Text labels get the class numbers of the model.
	named := CSVOptions{Label: "y", Names: []string{"yes", "no"}}
	x := func(values ...float32) Array { return Array{[]int{len(values), 1}, values} }
	for text, c := range map[string]struct {
		o    CSVOptions
		want map[string]Array
	}{
		// Weights are not features, even for a model with one input.
		"review,label,sample_weight\ngood,1,2\n": {one, map[string]Array{"x": good, "y": {[]int{1}, []int64{1}},
			"sample_weight": {[]int{1}, []float32{2}}}},
		"review,label\ngood,1\n": {one, map[string]Array{"x": good, "y": {[]int{1}, []int64{1}}}},
		"words\na\nb\n":          {CSVOptions{Inputs: words}, map[string]Array{"words": {[]int{2}, []string{"a", "b"}}}},
		"a good film\ntoo long\n": {CSVOptions{Inputs: words, Header: "no"},
			map[string]Array{"x": {[]int{2, 1}, []string{"a good film", "too long"}}}},
		"a,y\n1,no\n2,no\n": {named, map[string]Array{"x": x(1, 2), "y": {[]int{2}, []int64{1, 1}}}},
		"a,y\n1,0\n2,1\n":   {named, map[string]Array{"x": x(1, 2), "y": {[]int{2}, []int64{0, 1}}}},
		"a,y\n3,0\n2,1\n": {CSVOptions{Label: "y", Names: []string{"0", "1"}},
			map[string]Array{"x": x(3, 2), "y": {[]int{2}, []int64{0, 1}}}},
		"city,text,label\na,b,1\n": {CSVOptions{Label: "label", Inputs: textInputs},
			map[string]Array{"x": {[]int{1, 2}, []string{"a", "b"}}, "y": {[]int{1}, []int64{1}}}},
	} {
		require.Equal(t, c.want, fieldsOf(t, csvOf(t, text, c.o)), text)
	}
	_, err = readCSV("t.csv", strings.NewReader("a,y\n1,no\n2,maybe\n"), named)
	require.ErrorContains(t, err, `line 3, column "y" (2): found "maybe", expected one of the 2 classes, such as "yes"`)

	_, err = readCSV("t.csv", strings.NewReader("age,city\nold,Bern\n"), CSVOptions{Inputs: columns})
	require.ErrorContains(t, err, `column "age" (1): found "old", expected a number`)
	wide := "age,city" + strings.Repeat(",c", maxFields)
	_, err = readCSV("t.csv", strings.NewReader(wide+"\n"), CSVOptions{Inputs: columns})
	require.ErrorIs(t, err, ErrFormat)
}

func compressed(t testing.TB, raw []byte) []byte {
	t.Helper()
	var file bytes.Buffer
	z := gzip.NewWriter(&file)
	_, err := z.Write(raw)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return file.Bytes()
}

func TestCSVFiles(t *testing.T) {
	text := []byte("a,b,y\n1,2,0\n3,4,1\n")
	packed := compressed(t, text)
	options := Options{CSV: CSVOptions{Label: "y"}}
	// Compression is detected by the content, not by the name.
	for name, raw := range map[string][]byte{"a.csv": text, "a.csv.gz": packed, "A.CSV": packed, "b.csv.gz": text} {
		m := opened(t, write(t, name, raw), options)
		require.Equal(t, Array{[]int{2}, []int64{0, 1}}, fieldsOf(t, m)["y"])
	}
	_, err := Open(write(t, "a.csv", text), Options{Split: "test"})
	require.ErrorIs(t, err, ErrNoSplit)

	wrong := bytes.Clone(packed)
	wrong[len(wrong)-5] ^= 1 // a byte of the checksum
	for _, raw := range [][]byte{packed[:len(packed)-4], packed[:len(packed)/2], packed[:5], wrong,
		append(bytes.Clone(packed), "more"...)} {
		_, err := Open(write(t, "a.csv.gz", raw), options)
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, "a.csv.gz: damaged or truncated")
	}
}

// Messages contain positions in the file, also for derived datasets.
func TestChecksNameTheLine(t *testing.T) {
	m := csvOf(t, "a,y\n\n1,0\n2,1\n\n3,7\n4,0\n", CSVOptions{Label: "y"})
	require.NoError(t, Check(m, "y", Values{Classes: 8}))
	require.NoError(t, Check(m, "", finite))
	last, _ := split(t, m, 0.75, 1)
	require.Contains(t, fieldsOf(t, last)["y"].Values, int64(7))
	for _, ds := range []*InMemory{m, m.Shuffle(3), last} {
		err := Check(ds, "y", Values{Classes: 3})
		var row *RowError
		require.ErrorAs(t, err, &row)
		require.ErrorIs(t, err, ErrLabel)
		require.EqualError(t, err, "t.csv: line 6, column \"y\" (2): found 7, expected a class from 0 to 2; correct the "+
			"label, or train a model with more than 3 classes")
	}
}

func FuzzCSV(f *testing.F) {
	for _, text := range []string{"a,b,y\n1,2,cat\n3,4,dog\n", "1;2\n", "\"1\n\",2", "1,nan,0x1p-2\n",
		"\xef\xbb\xbf1,1e400", "a,a\n", "a,y\n1,\xff\n2,3\n"} {
		f.Add(text, "3", byte(0))
		f.Add(text, "y", byte(1))
		f.Add(text, "", byte(2))
	}
	f.Fuzz(func(t *testing.T, text, label string, header byte) {
		var m *InMemory
		var err error
		testkit.Allocates(t, 4<<20+1024*len(text), func() {
			m, err = readCSV("t.csv", strings.NewReader(text),
				CSVOptions{Label: label, Header: []string{"", "yes", "no"}[header%3]})
		})
		if err != nil {
			require.True(t, errors.Is(err, ErrFormat) || errors.Is(err, ErrField) || errors.Is(err, ErrUnsupported) ||
				errors.Is(err, ErrTooLarge), "%v", err)
			require.ErrorContains(t, err, "t.csv")
			return
		}
		require.LessOrEqual(t, m.Len(), strings.Count(text, "\n")+strings.Count(text, "\r")+1)
		require.NoError(t, Check(m, "", finite))
		if classes := spec(m, "y").Classes; classes != nil {
			require.NoError(t, Check(m, "y", Values{Classes: len(classes)}))
		}
	})
}
