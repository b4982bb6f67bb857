package data

import (
	"archive/zip"
	"bytes"
	"compress/zlib"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Integers of 64 bits are exact in the columns of each format of text that feed an input of integers.
func TestIntegersOf64BitsAreExact(t *testing.T) {
	const id = 1152921504606846977
	dir, inputs := t.TempDir(), []FieldSpec{{Name: "x", Type: "int64"}}
	tar := tarOf(t, "1.json", `{"x": 1152921504606846977, "label": 1}`, "2.json", `{"x": 5, "label": 0}`)
	for _, path := range []string{
		put(t, dir, "t.csv", []byte("x,label\n1152921504606846977,1\n5,0\n")),
		put(t, dir, "t.tsv", []byte("x\tlabel\n1152921504606846977\t1\n5\t0\n")),
		put(t, dir, "t.jsonl", []byte("{\"x\": 1152921504606846977, \"label\": 1}\n{\"x\": 5, \"label\": 0}\n")),
		put(t, dir, "t.ndjson", []byte("{\"a\": 1152921504606846977, \"label\": 1}\n{\"a\": 5, \"label\": 0}\n")),
		put(t, dir, "t.tar", tar),
	} {
		ds := opened(t, path, Options{CSV: CSVOptions{Label: "label", Inputs: inputs}})
		assert.Equal(t, []int64{id, 5}, all[int64](t, ds, "x"), path)
		assert.Equal(t, []int64{1, 0}, all[int64](t, ds, "y"), path)
	}
	// So are integers that are written as floats. A fraction is an error at its place.
	for cell, want := range map[string]int64{"1e3": 1000, "9007199254740993": 9007199254740993,
		"-4.5e15": -4500000000000000, "9223372036854775807": math.MaxInt64, "0.0": 0} {
		text := "id,label\n1152921504606846977,1\n" + cell + ",0\n"
		for path, o := range map[string]CSVOptions{
			put(t, dir, "e.csv", []byte(text)):                                       {Label: "label", Inputs: inputs},
			put(t, dir, "e.tar", tarOf(t, "1.json", `{"id": `+cell+`, "label": 1}`)): {Label: "label", Inputs: inputs},
			put(t, dir, "e.jsonl", []byte(`{"x": `+cell+`, "a": 2}`)):                {Inputs: []FieldSpec{inputs[0], {Name: "a", Type: "int64"}}},
			put(t, dir, "rule.csv", []byte("id\n"+cell)):                             {Inputs: inputs, Schema: &Schema{Columns: map[string]Rule{"id": {Type: "int"}}}},
		} {
			ds := opened(t, path, Options{CSV: o})
			got := all[int64](t, ds, "x")
			assert.Equal(t, want, got[len(got)-1], path)
		}
	}
	for _, cell := range []string{"0.5", "9223372036854775808", "1e19", "9007199254740993.5"} {
		_, err := Open(put(t, dir, "f.csv", []byte("a,b\n1152921504606846977,1\n"+cell+",2\n")), Options{CSV: CSVOptions{Inputs: inputs}})
		require.ErrorContains(t, err, `f.csv: line 3, column "a" (1): found "`+cell+`", expected an integer up to 9223372036854775807; correct it, or leave the column out (Options.Ignore)`)
	}
	ds := opened(t, filepath.Join(dir, "t.tar"), Options{CSV: CSVOptions{Label: "label"}})
	assert.Equal(t, []float64{id - 1, 5}, all[float64](t, ds, "x"), "another input takes float64")
}

// The values of ignored fields may be anything that ends.
func TestIgnoredFieldsAreNotRead(t *testing.T) {
	dir := t.TempDir()
	ignore := []string{"extra", "late"}
	for _, path := range []string{
		put(t, dir, "t.tar", tarOf(t, "1.json", `{"x": 1, "label": 1, "extra": {"deep": [1, "a"]}}`,
			"2.json", `{"x": 2, "label": 0, "extra": {"note": [null]}, "late": [[1], [2, 3]]}`, "3.json",
			`{"x": 3, "label": 1, "extra": null}`)),
		put(t, dir, "t.jsonl", []byte(`{"x": 1, "label": 1, "extra": {"deep": [1, "a"]}}`+"\n"+
			`{"x": 2, "label": 0, "late": [[1], [2, 3]], "extra": {"note": [null]}}`+"\n"+
			`{"x": 3, "label": 1, "extra": 1}`+"\n")),
	} {
		ds := opened(t, path, Options{CSV: CSVOptions{Label: "label"}, Ignore: ignore})
		assert.Len(t, ds.Fields(), 2)
		_, err := ds.Drop(ignore...)
		require.NoError(t, err, "both were left out")
		assert.Equal(t, []int64{1, 0, 1}, all[int64](t, ds, "y"), path)
		_, err = Open(path, Options{CSV: CSVOptions{Label: "label"}, Ignore: []string{"late"}})
		require.ErrorIs(t, err, ErrFormat, path)
	}
	raw := contentOf(t, "testdata/objects.npy")
	x := contentOf(t, "testdata/scalar.npy")
	folder := filepath.Join(dir, "arrays")
	put(t, folder, "extra.npy", raw)
	put(t, folder, "late.npy", x)
	var ones bytes.Buffer
	require.NoError(t, writeNPY(&ones, Array{Shape: []int{2}, Values: []float32{1, 2}}))
	put(t, folder, "x.npy", ones.Bytes())
	archive := put(t, dir, "t.npz", npzOf(t, map[string][]byte{"extra.npy": raw, "late.npy": x, "x.npy": ones.Bytes()}))
	for _, path := range []string{folder, archive} {
		ds := opened(t, path, Options{Ignore: ignore})
		assert.Equal(t, []float32{1, 2}, all[float32](t, ds, "x"))
		assert.ElementsMatch(t, ignore, ds.LeftOut())
		_, err := Open(path, Options{})
		assert.ErrorContains(t, err, "leave the array out (Options.Ignore)", path)
	}
	ds := opened(t, "testdata/records/odd.parquet", Options{Ignore: []string{"null", "lengths", "nested", "date", "struct"}})
	assert.Contains(t, ds.LeftOut(), "struct.size")
	_, err := ds.Drop("struct")
	assert.NoError(t, err, "the name of a struct stands for its values")
}

// Files that are not read are refused by what they are; other extensions of known formats are read.
func TestOtherFiles(t *testing.T) {
	dir := t.TempDir()
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	_, err := w.Write(recordsOf(example(map[string]any{"x": []int64{1}})))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	for path, says := range map[string]string{
		put(t, dir, "pipe.csv", []byte("a|b\n1|2\n")):  `columns seem to be separated by '|' instead of ','`,
		put(t, dir, "comma.tsv", []byte("a,b\n1,2\n")): `columns seem to be separated by ',' instead of '\t'`,
		put(t, dir, "zlib.tfrecord", z.Bytes()):        "not a TFRecord file, or a compressed one",
	} {
		_, err := Open(path, Options{})
		assert.ErrorContains(t, err, says, path)
	}
	raw := contentOf(t, "testdata/records/odd.parquet")
	for _, name := range []string{"t.pq", "t.parq"} {
		ds := opened(t, put(t, dir, name, raw), Options{Ignore: []string{"null", "lengths", "nested", "date", "struct"}})
		assert.Positive(t, ds.Len())
	}
}

// Two values of a sample with one name are an error, also if they are members of two objects.
func TestMembersWithOneName(t *testing.T) {
	for says, files := range map[string][]string{
		`column "label": found two values with this name`: {"1.a.json", `{"label": 1}`, "1.b.json", `{"label": 2}`},
		`column "png": found two values with this name`:   {"1.png", "a", "1.PNG", "b"},
		`column "cls": found two values with this name`:   {"1.cls", "1", "1.json", `{"cls": 2}`},
		`column "k": found a repeated name`:               {"1.json", `{"k": 2, "k": 3}`},
	} {
		for _, first := range [][]string{nil, {"0.json", `{"label": 1, "k": 1}`, "0.png", "a", "0.cls", "1"}} {
			path := put(t, t.TempDir(), "t.tar", tarOf(t, append(first, files...)...))
			_, err := Open(path, Options{})
			require.ErrorContains(t, err, says)
		}
	}
}

// Kept columns are texts, unchanged, in fields of their own. They are inputs, too, if an input lists them, has their
// name, or needs them.
func TestKeptColumns(t *testing.T) {
	dir := t.TempDir()
	tables := []string{put(t, dir, "t.csv", []byte("id,a,b,label\n007,1.5,2.5,x\nA 8,3,4,y\n")),
		put(t, dir, "t.jsonl", []byte(`{"id": "007", "a": 1.5, "b": 2.5, "label": "x"}`+"\n"+
			`{"id": "A 8", "a": 3, "b": 4, "label": "y"}`+"\n"))}
	row := func(columns ...string) []FieldSpec {
		return []FieldSpec{{Name: "x", Type: "float32", Shape: []int{2}, Columns: columns}}
	}
	one := func(name string) FieldSpec { return FieldSpec{Name: name, Type: "float32"} }
	for _, c := range []struct {
		keep, ignore []string
		inputs       []FieldSpec
		want         map[string][]float32
	}{
		{[]string{"id", "label"}, nil, row(), map[string][]float32{"x": {1.5, 2.5, 3, 4}}},
		{[]string{"id", "label"}, []string{"id"}, row(), map[string][]float32{"x": {1.5, 2.5, 3, 4}}},
		{[]string{"a", "label", "id"}, nil, row("b", "a"), map[string][]float32{"x": {2.5, 1.5, 4, 3}}},
		{[]string{"a", "label", "id"}, nil, []FieldSpec{one("a"), one("b")}, map[string][]float32{"a": {1.5, 3}, "b": {2.5, 4}}},
		{[]string{"a", "label", "id"}, nil, []FieldSpec{one("b"), {Name: "id", Type: "string"}},
			map[string][]float32{"b": {2.5, 4}}},
	} {
		for _, path := range tables {
			ds := opened(t, path, Options{Ignore: c.ignore, CSV: CSVOptions{Label: "label", Keep: c.keep, Inputs: c.inputs,
				InputsOnly: c.inputs[0].Columns != nil}})
			kept := map[string][]string{"id": {"007", "A 8"}, "label": {"x", "y"}, "a": {"1.5", "3"}}
			for _, name := range c.keep {
				assert.Equal(t, kept[name], all[string](t, ds, KeptPrefix+name))
			}
			for name, want := range c.want {
				assert.Equal(t, want, all[float32](t, ds, name), "%s %v", path, c)
			}
		}
	}
}

// With kept columns, the only input of text may be any of several columns, so it has to be named.
func TestKeptColumnsBesideAText(t *testing.T) {
	dir := t.TempDir()
	type row struct {
		ID     string `arrow:"id"`
		Review string `arrow:"review"`
	}
	for _, path := range []string{put(t, dir, "t.csv", []byte("id,review\nn1,good\n")),
		put(t, dir, "t.jsonl", []byte(`{"id": "n1", "review": "good"}`)), put(t, dir, "t.parquet", parquetOf(t, row{"n1", "good"}))} {
		for _, keep := range [][]string{{"id"}, {"review"}, {"id", "review"}} {
			o := CSVOptions{Keep: keep, Inputs: []FieldSpec{{Name: "x", Type: "string"}}}
			_, err := Open(path, Options{CSV: o})
			require.ErrorIs(t, err, ErrFormat, "%s %v", path, keep)
			require.ErrorContains(t, err, "(CSVOptions.Inputs x=COLUMN")
			o.Inputs[0].Columns, o.InputsOnly = []string{"review"}, true
			ds := opened(t, path, Options{CSV: o})
			require.Equal(t, []string{"good"}, all[string](t, ds, "x"), "%s %v", path, keep)
			require.Equal(t, []string{map[string]string{"id": "n1", "review": "good"}[keep[0]]}, all[string](t, ds, KeptPrefix+keep[0]))
		}
	}
}

// Kept values of records are fields with their own names.
func TestKeptValues(t *testing.T) {
	path := put(t, t.TempDir(), "t.tar", tarOf(t, "1.json", `{"a": 5, "v": [1, 2], "w": 0}`, "2.json",
		`{"a": 6, "v": [3, 4], "w": 1}`))
	ds := opened(t, path, Options{CSV: CSVOptions{Keep: []string{"a", "v"}, InputsOnly: true,
		Inputs: []FieldSpec{{Name: "a", Type: "float32"}}}})
	require.Len(t, ds.Fields(), 2)
	assert.Equal(t, []float64{5, 6}, all[float64](t, ds, "a"))
	assert.Equal(t, []float64{1, 2, 3, 4}, all[float64](t, ds, "v"))
}

// A kept column of lists has the type of its values.
func TestKeptLists(t *testing.T) {
	path := put(t, t.TempDir(), "t.jsonl", []byte(`{"a": 1, "b": 2, "v": [1, 2.5]}`))
	ds := opened(t, path, Options{CSV: CSVOptions{Keep: []string{"v"}, Inputs: []FieldSpec{{Name: "x", Type: "float32",
		Shape: []int{2}}}}})
	assert.Equal(t, []float32{1, 2.5}, all[float32](t, ds, KeptPrefix+"v"))
	assert.Equal(t, []float32{1, 2}, all[float32](t, ds, "x"))
}

// npzOf returns an archive of files.
func npzOf(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var raw bytes.Buffer
	z := zip.NewWriter(&raw)
	for name, content := range files {
		w, err := z.Create(name)
		require.NoError(t, err)
		_, err = w.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return raw.Bytes()
}

// A rule reads a column that no input takes.
func TestRuleOfUnusedColumn(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{put(t, dir, "t.csv", []byte("id,a,b\n9007199254740993,1.5,2\n")),
		put(t, dir, "t.jsonl", []byte(`{"id": 9007199254740993, "a": 1.5, "b": 2}`))} {
		ds := opened(t, path, Options{CSV: CSVOptions{Inputs: []FieldSpec{{Name: "a", Type: "float32"},
			{Name: "b", Type: "float32"}}, Schema: &Schema{Columns: map[string]Rule{"id": {Type: "int"}}}}})
		assert.Equal(t, []int64{9007199254740993}, all[int64](t, ds, "id"))
	}
}

// Values of objects and structs are columns with names such as outer.class, which feed inputs outer/class.
func TestNestedValues(t *testing.T) {
	dir := t.TempDir()
	type inner struct {
		Class int64  `arrow:"class"`
		Text  string `arrow:"text"`
	}
	type row struct {
		Outer inner `arrow:"outer"`
		Label int64 `arrow:"label"`
	}
	paths := []string{
		put(t, dir, "t.jsonl", []byte(`{"outer": {"class": 5, "text": "a"}, "label": 1}`+"\n"+
			`{"label": 0, "outer" : { "text": "b", "class": 6}}`+"\n")),
		put(t, dir, "flat.jsonl", []byte(`{"outer/class": 5, "outer/text": "a", "label": 1}`+"\n"+
			`{"outer/class": 6, "outer/text": "b", "label": 0}`+"\n")),
		put(t, dir, "t.csv", []byte("outer.class,outer/text,label\n5,a,1\n6,b,0\n")),
		put(t, dir, "t.parquet", parquetOf(t, row{inner{5, "a"}, 1}, row{inner{6, "b"}, 0})),
		put(t, dir, "t.tar", tarOf(t, "1.json", `{"outer": {"class": 5, "text": "a"}, "label": 1}`,
			"2.json", `{"outer": {"class": 6, "text": "b"}, "label": 0}`)),
	}
	inputs := []FieldSpec{{Name: "outer/class", Type: "int64"}, {Name: "outer/text", Type: "string"}}
	for _, path := range paths {
		for _, only := range []bool{false, true} {
			ds := opened(t, path, Options{CSV: CSVOptions{Label: "label", Inputs: inputs, InputsOnly: only}})
			assert.Equal(t, []int64{5, 6}, all[int64](t, ds, "outer/class"), path)
			assert.Equal(t, []string{"a", "b"}, all[string](t, ds, "outer/text"), path)
			assert.Equal(t, []int64{1, 0}, all[int64](t, ds, "y"), path)
			assert.Nil(t, spec(ds, "outer/class").Columns, "found by its name in other files, too")
		}
	}
	for _, path := range []string{paths[0], paths[3]} {
		ds := opened(t, path, Options{Ignore: []string{"label"}, CSV: CSVOptions{Label: "outer.class", Inputs: []FieldSpec{
			{Name: "x", Type: "string"}}}})
		assert.Equal(t, []int64{5, 6}, all[int64](t, ds, "y"), path)
		assert.Equal(t, []string{"a", "b"}, all[string](t, ds, "x"), path)
	}
	for name, text := range map[string]string{"two.jsonl": `{"outer": {"class": 5, "text": "a"}, "outer/class": 5}`,
		"two.csv": "outer.class,outer/class,outer.text\n1,2,a\n"} {
		_, err := Open(put(t, dir, name, []byte(text)), Options{CSV: CSVOptions{Inputs: inputs}})
		require.ErrorIs(t, err, ErrFormat)
		assert.ErrorContains(t, err, `the columns ["outer.class" "outer/class"] have the name of input outer/class of the model: `+
			"leave one of them out (Options.Ignore)")
	}
}

// Spaces around the names of columns and inputs do not count.
func TestSpacesAroundNames(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{put(t, dir, "t.csv", []byte(" age ,size,label\n1.5,2.5,0\n")),
		put(t, dir, "t.jsonl", []byte(`{" age ": 1.5, "size": 2.5, "label": 0}`))} {
		ds := opened(t, path, Options{CSV: CSVOptions{Label: "label", Inputs: []FieldSpec{{Name: "age", Type: "float32"},
			{Name: " size ", Type: "float32"}}}})
		assert.Equal(t, []float32{1.5}, all[float32](t, ds, "age"))
		assert.Equal(t, []float32{2.5}, all[float32](t, ds, " size "))
	}
}
