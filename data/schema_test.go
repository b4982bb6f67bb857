package data

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/testkit"
)

const passengers = `Survived,Sex,Age,Alone,Born,Name
yes,female,22,no,1912-04-15,"Braund, Mr"
no,male,,yes,1970-01-02,Ann
no, male ,30.5,No,1969-12-31,Bob
yes,female,?,YES,2000-01-01,Eve
`

const rules = `
columns:
  Survived: {type: category, values: {no: 0, yes: 1}}
  Sex: {type: category, values: {female: 0, male: 1}}
  Age: {type: float, missing: 26.25, na_values: ["?"]}
  Alone: {type: bool, true_values: [yes], false_values: [no]}
  Born: {type: date}
`

func rulesOf(t testing.TB, text string) *Schema {
	t.Helper()
	s, err := ReadSchema(put(t, t.TempDir(), "schema.yaml", []byte(text)))
	require.NoError(t, err)
	return s
}

// With a schema, tables can be read that have missing cells, words for numbers or bools, or dates.
func TestSchema(t *testing.T) {
	dir := t.TempDir()
	native := rulesOf(t, strings.NewReplacer(", true_values: [yes], false_values: [no]", "", "Born: {type: date}",
		"Born: {type: date, format: '%Y-%m-%dT%H:%M:%S', unit: seconds}\n  Day: {type: date}").Replace(rules))
	lines := `{"Survived": "yes", "Sex": "female", "Age": null, "Alone": false, "Born": "1970-01-02T00:00:01", "Day": "1970-01-02", "Name": ["a", "b"]}
{"Survived": "no", "Sex": "male", "Age": 30.5, "Alone": true, "Born": "1912-04-15T00:00:00", "Day": "1969-12-31", "Name": ["c", "d"]}`
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "Survived", Type: arrow.BinaryTypes.String}, {Name: "Sex", Type: arrow.BinaryTypes.String},
		{Name: "Age", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "Alone", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "Born", Type: &arrow.TimestampType{Unit: arrow.Microsecond}},
		{Name: "Day", Type: arrow.FixedWidthTypes.Date32},
		{Name: "Name", Type: arrow.ListOf(arrow.BinaryTypes.String)},
	}, nil)
	record, _, err := arrays.RecordFromJSON(memory.DefaultAllocator, schema,
		strings.NewReader("["+strings.ReplaceAll(lines, "\n", ",")+"]"))
	require.NoError(t, err)
	for name, raw := range map[string][]byte{"t.jsonl": []byte(lines), "t.parquet": parquetOfBatches(t, nil, record)} {
		path := put(t, dir, name, raw)
		m := opened(t, path, Options{CSV: CSVOptions{Label: "Survived", Schema: native}})
		f := fieldsOf(t, m)
		require.Equal(t, []int64{1, 0}, f["y"].Values, name)
		require.Equal(t, []string{"no", "yes"}, spec(m, "y").Classes, name)
		require.Equal(t, []int64{0, 1}, f["Sex"].Values, name)
		require.Equal(t, []float32{26.25, 30.5}, f["Age"].Values, name)
		require.Equal(t, []int64{0, 1}, f["Alone"].Values, name)
		require.Equal(t, []int64{86401, -1821312000}, f["Born"].Values, name)
		require.Equal(t, []int64{1, -1}, f["Day"].Values, name)
		// The model may take texts and bools.
		o := CSVOptions{Schema: native, Inputs: []FieldSpec{{Name: "Sex", Type: "string"}, {Name: "Age", Type: "string"},
			{Name: "Alone", Type: "bool"}}}
		m = opened(t, path, Options{CSV: o})
		f = fieldsOf(t, m)
		require.Equal(t, []string{"female", "male"}, f["Sex"].Values, name)
		require.Equal(t, []string{"26.25", "30.5"}, f["Age"].Values, name)
		require.Equal(t, []bool{false, true}, f["Alone"].Values, name)
	}

	path := put(t, dir, "t.csv", []byte(passengers))
	o := Options{CSV: CSVOptions{Label: "Survived", Schema: rulesOf(t, rules)}, Ignore: []string{"Name"}}
	m := opened(t, path, o)
	f := fieldsOf(t, m)
	require.Equal(t, Array{[]int{4, 4}, []float32{0, 22, 0, -21080, 1, 26.25, 1, 1, 1, 30.5, 0, -1, 0, 26.25, 1, 10957}},
		f["x"])
	require.Equal(t, Array{[]int{4}, []int64{1, 0, 0, 1}}, f["y"])
	require.Equal(t, []string{"no", "yes"}, spec(m, "y").Classes)
	require.Equal(t, []string{"Sex", "Age", "Alone", "Born"}, spec(m, "x").Columns)
	// A label may be a bool, and a table for predictions needs no label.
	o.CSV.Schema = rulesOf(t, strings.Replace(rules, "category, values: {no: 0, yes: 1}",
		"bool, true_values: [yes], false_values: [no]", 1))
	m = opened(t, path, o)
	require.Equal(t, []int64{1, 0, 0, 1}, fieldsOf(t, m)["y"].Values)
	o.CSV.Label, o.CSV.Schema.Partial = "", true
	opened(t, put(t, dir, "p.csv", []byte("Sex,Age,Alone,Born\nmale,1,no,2000-01-01\n")), o)
}

func TestSchemaRefusesCells(t *testing.T) {
	for _, c := range []struct{ rule, cell, says string }{
		{"{type: float}", "", `t.csv: line 2, column "a" (1): found an empty cell, expected a number; set missing of the rule in the schema to a value, or remove the row`},
		{"{type: float, na_values: [NA]}", "NA", `found "NA", expected a number; set missing`},
		{"{type: float}", "NaN", `found "NaN", expected a number; set missing`},
		{"{type: int}", "1.5", `found "1.5", expected an integer; correct it, or change the rule in the schema`},
		{"{type: bool}", "yes", `found "yes", expected true, false, 1 or 0`},
		{"{type: bool, true_values: [ja], false_values: [nein]}", "yes", `found "yes", expected one of ["ja" "nein"]`},
		{"{type: category, values: {b: 1, a: 0}}", "c", `found "c", expected one of ["a" "b"]`},
		{"{type: date}", "1.2.2000", `found "1.2.2000", expected a date in the format %Y-%m-%d`},
		{"{type: date, format: '%d.%m.%Y'}", "32.1.2000", `expected a date in the format %d.%m.%Y`},
		{"{type: text}", "x", `column "a" (1) is of type text in the schema, and the model takes numbers: give the column another type, or leave it out`},
	} {
		_, err := Open(put(t, t.TempDir(), "t.csv", []byte("a,b\n"+c.cell+",1\n")),
			Options{CSV: CSVOptions{Schema: rulesOf(t, "columns: {a: "+c.rule+"}")}})
		require.ErrorIs(t, err, ErrFormat, c.cell)
		require.ErrorContains(t, err, c.says)
	}
	misnamed := rulesOf(t, "columns: {c: {type: int}}")
	for name, text := range map[string]string{"t.csv": "a,b\n1,2\n", "t.jsonl": `{"a": 1, "b": 2}`, "t.parquet": string(parquetOf(t, struct{ B int }{}, struct{ B int }{}))} {
		path := put(t, t.TempDir(), name, []byte(text))
		_, err := Open(path, Options{CSV: CSVOptions{Schema: misnamed}})
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, path+`: the schema has a rule for column "c", and the columns are [`)
		opened(t, path, Options{CSV: CSVOptions{Schema: &Schema{Columns: misnamed.Columns, Partial: true}}})
	}
	for text, says := range map[string]string{
		"1,2\n":  "the schema has rules for names of columns, and the file has no header",
		"c\n1\n": "",
	} {
		_, err := Open(put(t, t.TempDir(), "t.csv", []byte(text)),
			Options{CSV: CSVOptions{Schema: misnamed, Header: map[bool]string{true: "no"}[says != ""]}})
		if says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, says)
	}
	_, err := Open("builtin:digits", Options{CSV: CSVOptions{Schema: misnamed}})
	require.ErrorIs(t, err, ErrUnsupported)
	numbers := rulesOf(t, "columns: {y: {type: category, values: {a: 1, b: 2}}}")
	_, err = Open(put(t, t.TempDir(), "t.csv", []byte("x,y\n1,a\n")),
		Options{CSV: CSVOptions{Label: "y", Schema: numbers}})
	require.ErrorContains(t, err, `the classes of label "y" in the schema have the numbers [1 2], expected 0 to 1`)
	// The problems of several records are named at once.
	text := `{"a": "x", "b": 1}` + "\n" + `{"a": "1", "b": 1}` + "\n" + `{"a": [], "b": 1}` + "\n" + `{"a": "1", "b": null}`
	_, err = Open(put(t, t.TempDir(), "t.jsonl", []byte(text)),
		Options{CSV: CSVOptions{Schema: rulesOf(t, "columns: {a: {type: int}, b: {type: int}}")}})
	require.Equal(t, []string{`"x"`, "an array", "an empty"}, foundIn(err.Error()))
	type row struct {
		A *string `arrow:"a"`
	}
	x, one := "x", "1"
	_, err = Open(put(t, t.TempDir(), "t.parquet", parquetOf(t, row{&x}, row{&one}, row{})),
		Options{CSV: CSVOptions{Schema: rulesOf(t, "columns: {a: {type: int}}")}})
	require.Equal(t, []string{`"x"`, "an empty"}, foundIn(err.Error()))
	require.ErrorContains(t, err, `record 0, column "a": found "x", expected an integer`)
}

// foundIn returns the first two words after "found" in each problem of an error.
func foundIn(text string) (found []string) {
	for _, line := range strings.Split(text, "\n") {
		if _, what, ok := strings.Cut(line, ": found "); ok {
			words := strings.Fields(strings.ReplaceAll(what, ",", " "))
			if strings.HasPrefix(words[0], `"`) {
				words = words[:1]
			}
			found = append(found, strings.Join(words[:min(2, len(words))], " "))
		}
	}
	return found
}

func TestReadSchemaRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                     "EOF",
		"columns: {}":          "no rules, expected columns with a rule for each name",
		"[1]":                  "line 1: cannot unmarshal !!seq",
		"colums: {}":           "line 1: key colums not found in a Schema",
		"columns: 3":           "line 1: cannot unmarshal !!int `3` into map[string]Rule",
		"columns:\n  a: float": "line 2: cannot unmarshal !!str `float` into Rule; a rule has the keys type, missing",
		"columns: {a: {}}":     `the rule of column "a": type: found "", expected float, int, text, bool, category, date`,
		"columns: {a: {typ: int}}": "line 1: key typ not found in a Rule; a rule has the keys type, missing, " +
			"na_values, strip, thousands, decimal, values, true_values, false_values, format, unit",
		"columns:\n  a: {type: flaot}":              `the rule of column "a": type: found "flaot", expected float`,
		"columns: {a: {type: int}, a: {type: int}}": "already defined",
		"columns: {a: {type: int, values: {b: 1}}}": "values: only a category has values, and it " +
			"needs their numbers",
		"columns: {a: {type: category}}": "values: only a category has values, and it " +
			"needs their numbers",
		"columns: {a: {type: category, values: {b: x}}}":             "cannot unmarshal !!str `x` into int64",
		"columns: {a: {type: category, values: {b: 1}, missing: c}}": `missing: found "c", expected one of ["b"], or error`,
		"columns: {a: {type: float, missing: mean}}":                 `missing: found "mean", expected a number, or error`,
		"columns: {a: {type: bool, true_values: [a]}}":               "true_values and false_values belong together",
		"columns: {a: {type: date, format: 2006}}":                   `format: found "2006", expected %Y`,
		"columns: {a: {type: date, format: '%Y%'}}":                  "format: found",
		"columns: {a: {type: date, format: '%H:%M'}}":                `format: found "%H:%M", expected a year`,
		"columns: {a: {type: category, values: {b: 0, c: 0.5}}}": "line 1: the rule of column \"a\": category " +
			"\"c\" has the number 0.5, expected an integer",
		"columns: {a: {type: int, na_values: x}}": "cannot unmarshal !!str `x` into []string",
		"columns: {a: {type: date, unit: weeks}}": `unit: found "weeks", expected days or seconds`,
	} {
		path := put(t, t.TempDir(), "s.yaml", []byte(text+"\n"))
		_, err := ReadSchema(path)
		require.ErrorIs(t, err, ErrFormat, text)
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, path)
	}
	_, err := Open(put(t, t.TempDir(), "t.csv", []byte("a,b\n1,2\n")),
		Options{CSV: CSVOptions{Schema: &Schema{Columns: map[string]Rule{"a": {Type: "flaot"}}}}})
	require.ErrorContains(t, err, `the rule of column "a": type: found "flaot"`)
}

func TestDateFormats(t *testing.T) {
	for format, cell := range map[string]string{
		"%m/%d/%Y": "4/5/2006", "%d.%m.%y": "05.04.06", "%Y%m%d": "20060405", "%d %b %Y": "5 Apr 2006",
		"%B %d, %Y":          "April 05, 2006",
		"%Y-%m-%dT%H:%M:%SZ": "2006-04-05T07:08:09Z", "%Y-%m-%d %I:%M:%S %p": "2006-04-05 07:08:09 AM",
		"%Y%m%d%H%M%S":        "20060405070809",
		"%Y-%m-%dT%H:%M:%S%z": "2006-04-05T09:08:09+0200",
	} {
		want := "1144195200"
		if strings.Contains(format, "%S") {
			want = "1144220889"
		}
		r := Rule{Type: "date", Format: format, Unit: "seconds"}
		require.NoError(t, r.complete())
		got, err := r.read(cell)
		require.NoError(t, err, format)
		require.Equal(t, want, got, format)
	}
	r := Rule{Type: "date", Format: "%Y-%m-%dT%H:%M:%S%z", Unit: "seconds"}
	require.NoError(t, r.complete())
	for _, cell := range []string{"2006-04-05T07:08:09Z", "2006-04-05T09:08:09+02:00", "2006-04-05T02:08:09-0500"} {
		got, err := r.read(cell)
		require.NoError(t, err, cell)
		require.Equal(t, "1144220889", got, cell)
	}
}

// A list cannot have a rule, and a column
// that is left out needs none.
func TestRulesOfRecords(t *testing.T) {
	type row struct {
		Sex  string
		List []int64
		Y    int64
	}
	path := put(t, t.TempDir(), "t.parquet", parquetOf(t, row{"f", []int64{1, 2}, 0}, row{"m", []int64{3, 4}, 1}))
	_, err := Open(path, Options{CSV: CSVOptions{Label: "Y", Schema: rulesOf(t, "columns: {List: {type: int}}")}})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, `column "List": found an array, expected a single value, because the schema has a rule for the column`)
	opened(t, put(t, t.TempDir(), "t.jsonl", []byte(`{"x": 1, "s": "bad"}`+"\n")), Options{Ignore: []string{"s"}, CSV: CSVOptions{Schema: rulesOf(t, "columns: {s: {type: int}}")}})
	_, err = Open(put(t, t.TempDir(), "t.csv", []byte("x,y\n1,cat\n2,dog\n")),
		Options{CSV: CSVOptions{Label: "y", Classes: []string{"cat", "dog"},
			Schema: rulesOf(t, "columns: {y: {type: category, values: {dog: 0, cat: 1}}}")}})
	require.ErrorContains(t, err, `the schema has the classes ["dog" "cat"] for label "y", and the model has ["cat" "dog"]`)
	_, err = InferSchema(put(t, t.TempDir(), "t.csv", []byte("a;b\n1;2\n")), Options{})
	require.ErrorContains(t, err, "columns seem to be separated by ';'")
}

// A table can be read with the schema that is inferred from it, after values for missing cells are
// added to the schema.
func TestInferSchema(t *testing.T) {
	var text strings.Builder
	text.WriteString("id,mixed,text,when,zone,us,empty,label\n")
	for i := range 12 {
		fmt.Fprintf(&text, "%d,%s,text %d,2020-01-%02d 10:00:00,%s,%d/1/2020,,%s\n", i, []string{"1.5", "NA", "2"}[i%3], i,
			i+1,
			[]string{"2021-03-27 04:43:37.250+01:00", "2021-03-28 04:43:37+02:00", ""}[i%3], i+1, []string{"yes", "no"}[i%2])
	}
	dir := t.TempDir()
	table := put(t, dir, "t.csv", []byte(text.String()))
	schema, err := InferSchema(table, Options{})
	require.NoError(t, err)
	require.Equal(t, `columns:
  id:
    type: int
  mixed:
    type: float
    na_values: [NA]
    missing: error # 4 of 12 cells; 1.75, the mean, would fill them
  text:
    type: text
  when:
    type: date
    format: '%Y-%m-%d %H:%M:%S'
    unit: seconds
  zone:
    type: date
    format: '%Y-%m-%d %H:%M:%S%z'
    unit: seconds
    missing: error # 4 of 12 cells
  us:
    type: date # or the format %d/%m/%Y: each cell fits both
    format: '%m/%d/%Y'
    unit: days
  empty:
    type: text
  label:
    type: bool
    true_values: ["yes"]
    false_values: ["no"]
`, string(schema))
	put(t, dir, "s.yaml", []byte(strings.NewReplacer("missing: error # 4 of 12 cells; 1.75,", "missing: 1.75 #",
		"missing: error # 4 of 12 cells\n",
		"missing: 2021-03-27 15:13:37+0000\n").Replace(string(schema))))
	s, err := ReadSchema(filepath.Join(dir, "s.yaml"))
	require.NoError(t, err)
	m := opened(t, table, Options{CSV: CSVOptions{Label: "label", Schema: s}, Ignore: []string{"text", "empty"}})
	require.Equal(t, []float32{0, 1.5, 1577872800, 1616816617, 18262}, fieldsOf(t, m)["x"].Values.([]float32)[:5])

	type row struct {
		A *int64    `arrow:"a"`
		B string    `arrow:"b"`
		C []string  `arrow:"c"`
		D time.Time `arrow:"d,date32"`
	}
	one := int64(1)
	want := "columns:\n  a:\n    type: int\n    missing: error # 1 of 2 cells; 1, the mean, would fill them\n" +
		"  b:\n    type: category\n    values: {x: 0}\n  d:\n    type: date\n    format: '%Y-%m-%d'\n    unit: days\n"
	lines := "{\"a\": null, \"b\": \"x\", \"c\": [1], \"d\": \"2000-01-01\"}\n{\"a\": 1, \"b\": \"x\", \"c\": [2], " +
		"\"d\": \"2000-02-29\"}\n"
	for name, raw := range map[string][]byte{"t.jsonl": []byte(lines),
		"t.parquet": parquetOf(t, row{nil, "x", []string{"u"}, time.Unix(0, 0)},
			row{&one, "x", []string{"v"}, time.Unix(86400, 0)})} {
		schema, err := InferSchema(put(t, dir, name, raw), Options{})
		require.NoError(t, err, name)
		require.Equal(t, want, string(schema), name)
	}
	images := t.TempDir()
	put(t, images, "a/1.png", pngOf(t, noise(1)))
	_, err = InferSchema(images, Options{})
	require.EqualError(t, err, images+": a schema is only for CSV, JSON lines, Parquet and Arrow: not supported")
}

// A number such as 2,137 has a decimal comma or thousands, and 0,802 a decimal comma.
func TestInferSchemaOfCommas(t *testing.T) {
	schema, err := InferSchema(put(t, t.TempDir(), "t.csv", []byte("a,b,c,d,e\n\"0,802\",\"2,137\",€950,1.5,$950\n"+
		"\"2,137\",950,€2.137,-0.802,\"$1,234.5\"\n")), Options{})
	require.NoError(t, err)
	require.Equal(t, `columns:
  a:
    type: float
    decimal: ','
  b:
    type: float # or thousands '' and decimal ',': each cell fits both
    thousands: ','
  c:
    type: float # or thousands '.' and decimal ',': each cell fits both
    strip: [€]
  d:
    type: float
  e:
    type: float
    strip: [$]
    thousands: ','
`, string(schema))
	_, err = Open(put(t, t.TempDir(), "t.csv", []byte("a\n\"1,802\"\n\"0,802\"\n")),
		Options{CSV: CSVOptions{Schema: rulesOf(t, "columns: {a: {type: float, thousands: ','}}")}})
	require.ErrorContains(t, err, `t.csv: line 3, column "a" (1): found "0,802", expected a number`)
}

// A schema and a table of any content give values or an error with the name of the file, in bounded memory.
func FuzzSchema(f *testing.F) {
	table := "a,b,y\n1,x,2000-01-02\n,yes,2001-02-03\n"
	for _, schema := range []string{
		"columns: {a: {type: float, missing: 3}, b: {type: category, values: {x: 0, \"yes\": 1}}, y: {type: date, unit: " +
			"seconds}}",
		"columns: {a: {type: int, na_values: ['']}, b: {type: bool, true_values: [\"yes\"], false_values: [x]}, y: {type: " +
			"text}}",
		"columns: &a\n  a: {type: float}\n  b: *a\n", "columns: {y: {type: date, format: '%d%m%Y %p'}}", "columns: [1]", "",
	} {
		f.Add([]byte(schema), table, "y")
	}
	f.Fuzz(func(t *testing.T, schema []byte, table, label string) {
		path := write(t, "schema.yaml", schema)
		var err error
		testkit.Allocates(t, 4<<20+1024*(len(schema)+len(table)), func() {
			s, wrong := ReadSchema(path)
			if err = wrong; err != nil {
				return
			}
			var m *InMemory
			if m, err = readCSV("t.csv", strings.NewReader(table), CSVOptions{Label: label, Schema: s}); err == nil {
				require.NoError(t, Check(m, "", finite))
			}
		})
		if err != nil {
			require.True(t, strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "t.csv"), "%v", err)
		}
	})
}
