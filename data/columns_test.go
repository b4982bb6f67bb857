package data

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// people writes the same table in each format. The columns of the table are not sorted by name.
func people(t testing.TB) (paths map[string]string) {
	type row struct {
		Zip    int64   `arrow:"zip"`
		Kind   string  `arrow:"kind"`
		Age    float64 `arrow:"age"`
		Weight float32 `arrow:"sample_weight"`
		Label  string  `arrow:"label"`
		Big    int32   `arrow:"big"`
	}
	rows := []row{{-7, "a", 0.1, 0.5, "no", 1<<24 + 1}, {1 << 40, "b", 1e-3, 1.5, "yes", -1},
		{3, "a", 16777217.5, 2, "no", 0}}
	csv, lines := "zip,kind,age,sample_weight,label,big\n", ""
	var records [][]byte
	for _, r := range rows {
		age := strconv.FormatFloat(r.Age, 'g', -1, 64)
		csv += fmt.Sprintf("%d,%s,%s,%g,%s,%d\n", r.Zip, r.Kind, age, r.Weight, r.Label, r.Big)
		lines += fmt.Sprintf(`{"zip": %d, "kind": %q, "age": %s, "sample_weight": %g, "label": %q, "big": %d}`+"\n", r.Zip, r.Kind, age, r.Weight, r.Label, r.Big)
		records = append(records, example(map[string]any{"zip": []int64{r.Zip}, "age": []float32{float32(r.Age)},
			"label": []int64{map[string]int64{"yes": 1}[r.Label]}}))
	}
	dir := t.TempDir()
	return map[string]string{
		"csv": put(t, dir, "t.csv", []byte(csv)), "jsonl": put(t, dir, "t.jsonl", []byte(lines)),
		"parquet":  put(t, dir, "t.parquet", parquetOf(t, rows...)),
		"tfrecord": put(t, dir, "t.tfrecord", recordsOf(records...)),
	}
}

// The columns of every table format become rows of x, as those of a CSV file do.
func TestColumnsAreJoined(t *testing.T) {
	paths := people(t)
	kind := rulesOf(t, "columns: {kind: {type: category, values: {a: 5, b: 6}}}")
	for _, c := range []struct {
		o    CSVOptions
		want any
		x    []string
	}{
		{CSVOptions{}, []float32{-7, 5, 0.1, 1 << 24, 1 << 40, 6, 1e-3, -1, 3, 5, 16777218, 0},
			[]string{"zip", "kind", "age", "big"}},
		{CSVOptions{Inputs: exactInputs}, []float64{-7, 5, float64(float32(0.1)), 1<<24 + 1, 1 << 40, 6,
			float64(float32(1e-3)), -1, 3, 5, 16777218, 0}, []string{"zip", "kind", "age", "big"}},
		{CSVOptions{InputsOnly: true, Inputs: columnInputs("big", "kind")}, []float32{1 << 24, 5, -1, 6, 0, 5}, []string{"big", "kind"}},
	} {
		c.o.Label, c.o.Schema = "label", kind
		if c.o.Inputs == nil {
			c.o.Inputs = denseInputs
		}
		var first []any
		for _, format := range []string{"csv", "jsonl", "parquet"} {
			m := opened(t, paths[format], Options{CSV: c.o})
			f := fieldsOf(t, m)
			require.Equal(t, Array{[]int{3, len(c.x)}, c.want}, f["x"], format)
			require.Equal(t, []float32{0.5, 1.5, 2}, f["sample_weight"].Values, format)
			require.Equal(t, []int64{0, 1, 0}, f["y"].Values, format)
			require.Equal(t, c.x, spec(m, "x").Columns, format)
			require.Len(t, m.LeftOut(), 4-len(c.x), format)
			var shuffled []any
			for _, b := range copied(t, Prefetch(m.Shuffle(2), 1), Pass{Batch: 2}) {
				for _, f := range b.Fields {
					shuffled = append(shuffled, f.Name, f.Values)
				}
			}
			if first == nil {
				first = shuffled
			}
			require.Equal(t, first, shuffled, format)
		}
	}
	// A decimal is rounded once.
	const decimal = "1.0000000596046447754"
	m := opened(t, put(t, t.TempDir(), "t.jsonl", []byte(`{"a": `+decimal+`, "b": 1}`)), Options{CSV: CSVOptions{Inputs: denseInputs}})
	require.Equal(t, []float32{math.Nextafter32(1, 2), 1}, fieldsOf(t, m)["x"].Values)
}

// A label is read even if its name is in Options.Ignore.
func TestLabelIsNotIgnored(t *testing.T) {
	paths := people(t)
	for _, format := range []string{"csv", "jsonl", "parquet", "tfrecord"} {
		m := opened(t, paths[format], Options{CSV: CSVOptions{Label: "label"}, Ignore: []string{"label", "kind"}})
		require.Equal(t, []int{3}, fieldsOf(t, m)["y"].Shape, format)
		require.NotContains(t, m.LeftOut(), "label", format)
	}
}

func TestColumnsAreNotJoined(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		`{"dense": 1, "b": 2}`:         "dense int64 [], b int64 []",
		`{"a": 1, "b": [2, 3]}`:        "a int64 [], b int64 [2]",
		`{"a": 1, "sample_weight": 2}`: "x int64 [], sample_weight float32 []",
		`{"x": 1, "b": 2}`:             "x float32 [2]",
	} {
		m := opened(t, put(t, dir, "t.jsonl", []byte(text)), Options{CSV: CSVOptions{Inputs: denseInputs}})
		require.Equal(t, want, strings.SplitN(describe(m), "; ", 2)[1], text)
		require.Equal(t, strings.HasPrefix(want, "x int64"), slices.Equal(spec(m, "x").Columns, []string{"a"}), text)
	}
	kind := CSVOptions{Inputs: denseInputs, Label: "label"}
	paths := people(t)
	for _, format := range []string{"jsonl", "parquet"} {
		_, err := Open(paths[format], Options{CSV: kind})
		require.ErrorIs(t, err, ErrFormat)
		require.ErrorContains(t, err, `column "kind": found "a", expected a number; correct it, encode the column by a rule of a schema`)
		m := opened(t, paths[format], Options{CSV: kind, Ignore: []string{"kind", "age"}})
		require.Equal(t, []string{"zip", "big"}, spec(m, "x").Columns)
		require.ElementsMatch(t, []string{"kind", "age"}, m.LeftOut())
		_, err = m.Drop("kind")
		require.NoError(t, err)
		_, err = Open(paths[format], Options{CSV: CSVOptions{Inputs: columnInputs("zip", "height")}})
		require.ErrorContains(t, err, `: no column "height", which input dense of the model takes: add it, or name the columns of the input (CSVOptions.Inputs dense=COLUMN,...)`)
		_, err = Open(paths[format], Options{CSV: CSVOptions{Inputs: []FieldSpec{{Name: "zip", Type: "float32"},
			{Name: "height"}}}})
		require.ErrorContains(t, err, `: no column "height", which input height of the model takes`)
		_, err = Open(paths[format], Options{CSV: CSVOptions{Label: "zip",
			Inputs: []FieldSpec{{Name: "zip"}, {Name: "age"}}}})
		require.ErrorContains(t, err, `: column "zip" is an input of the model and cannot also be the label`)
	}
	texts := opened(t, put(t, dir, "t.jsonl", []byte(`{"a": "u", "b": "v"}`)), Options{CSV: CSVOptions{Inputs: textInputs}})
	require.Equal(t, []string{"u", "v"}, fieldsOf(t, texts)["x"].Values)
}

// Columns that are left out may have any values, and an error names the column from which a value of x comes.
func TestColumnsOfParquet(t *testing.T) {
	type row struct {
		A float64  `arrow:"a"`
		N *float64 `arrow:"n"`
		B float64  `arrow:"b"`
	}
	path := put(t, t.TempDir(), "t.parquet", parquetOf(t, row{A: 1, B: 2}, row{A: 3, B: math.NaN()}, row{A: 1e39, B: 5}))
	lines := put(t, t.TempDir(), "t.jsonl", []byte("{\"a\": 1, \"n\": null, \"b\": 2}\n{\"a\": 3, \"n\": {}, \"b\": 4}"))
	for _, features := range [][]string{{"a", "b"}, {"b", "a"}} {
		o := Options{CSV: CSVOptions{InputsOnly: true, Inputs: columnInputs(features...)}}
		_, err := Open(path, o)
		require.ErrorContains(t, err, path+`: record 1, column "b": found "NaN", expected a finite number`)
		require.ErrorContains(t, err, path+`: record 2, column "a": found "1e+39", expected a number within float32`)
		opened(t, lines, o)
	}
	type integers struct{ A, B int64 }
	m := opened(t, put(t, t.TempDir(), "i.parquet", parquetOf(t, integers{1, 2}, integers{-70000, 3})),
		Options{CSV: CSVOptions{Inputs: denseInputs}})
	require.ErrorContains(t, Check(m, "x", Values{Integers: &[2]int64{-65504, 65504}}), `record 1, column "A": found -70000`)
}

// Columns feed several inputs by name, by the beginning of their names, as listed, or as the columns that remain.
func TestColumnsOfSeveralInputs(t *testing.T) {
	dir := t.TempDir()
	csv := put(t, dir, "t.csv", []byte("f0,text,f1,rating,n,out_1,out_0\n1,7,2,3,1152921504606846977,5,6\n"))
	lines := put(t, dir, "t.jsonl", []byte(`{"f0": 1, "text": "7", "f1": 2, "rating": 3, "n": 1152921504606846977, "out_1": 5, "out_0": 6}`))
	parquet := put(t, dir, "t.parquet", parquetOf(t, struct {
		F0     float32 `arrow:"f0"`
		Text   string  `arrow:"text"`
		F1     int32   `arrow:"f1"`
		Rating float64 `arrow:"rating"`
		N      int64   `arrow:"n"`
		One    float32 `arrow:"out_1"`
		Zero   float32 `arrow:"out_0"`
	}{1, "7", 2, 3, 1152921504606846977, 5, 6}))
	inputs := func(features []string) []FieldSpec {
		return []FieldSpec{{Name: "features", Type: "float32", Shape: []int{2}, Columns: features}, {Name: "n", Type: "int64"},
			{Name: "out", Type: "float32", Shape: []int{2}}, {Name: "text", Type: "string"},
			{Name: "y_price", Type: "float32", Columns: []string{"rating"}}}
	}
	for _, path := range []string{csv, lines, parquet} {
		for features, want := range map[*[]string][]float32{{}: {1, 2}, {"f1", "f0"}: {2, 1}} {
			given := *features
			if len(given) == 0 {
				given = nil
			}
			m := opened(t, path, Options{CSV: CSVOptions{Inputs: inputs(given)}})
			f := fieldsOf(t, m)
			require.Len(t, f, 5, path)
			require.Equal(t, Array{[]int{1, 2}, want}, f["features"], path)
			require.Equal(t, Array{[]int{1, 2}, []float32{5, 6}}, f["out"], path)
			require.Equal(t, []string{"7"}, f["text"].Values, path)
			require.Equal(t, []int64{1152921504606846977}, f["n"].Values, path)
			v, err := arrayVector(f["y_price"])
			require.NoError(t, err)
			require.InDelta(t, 3, v.kind().Float(v.element(0)), 0, path)
			require.Equal(t, []string{"rating"}, spec(m, "y_price").Columns, path)
		}
		o := Options{CSV: CSVOptions{Inputs: inputs([]string{"f0", "f2"})}}
		_, err := Open(path, o)
		require.ErrorContains(t, err, `no column "f2", which input features of the model takes`)
		o.CSV.Inputs = append(inputs(nil), FieldSpec{Name: "more", Type: "float32", Shape: []int{2}})
		_, err = Open(path, o)
		require.ErrorContains(t, err, `no column "features", which input features of the model takes`, "ambiguous")
	}
	records := put(t, dir, "t.tfrecord", recordsOf(example(map[string]any{"rating": []float32{3}, "n": []int64{4}})))
	o := CSVOptions{Inputs: []FieldSpec{{Name: "n", Type: "int64"}, {Name: "y_price", Type: "float32", Columns: []string{"rating"}}}}
	m := opened(t, records, Options{CSV: o})
	require.Equal(t, []float32{3}, fieldsOf(t, m)["y_price"].Values)
	o.Header = "no"
	_, err := Open(put(t, dir, "n.csv", []byte("1,2\n")), Options{CSV: o})
	require.ErrorContains(t, err, "the file has no header, and the inputs of the model take columns by their names")
}
