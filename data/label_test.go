package data

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// columnFiles writes a table with the columns x, of numbers from 0, and label to a Parquet and an Arrow file.
func columnFiles[T any](t *testing.T, kind arrow.DataType, labels []T, huggingface string) (paths []string) {
	t.Helper()
	metadata := arrow.NewMetadata([]string{"huggingface"}, []string{huggingface})
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Float32}, {Name: "label", Type: kind}},
		&metadata)
	columns := arrays.NewRecordBuilder(memory.DefaultAllocator, schema)
	for i, label := range labels {
		columns.Field(0).(*arrays.Float32Builder).Append(float32(i))
		columns.Field(1).(interface{ Append(T) }).Append(label)
	}
	rows, dir := columns.NewRecordBatch(), t.TempDir()
	var file bytes.Buffer
	p, err := pqarrow.NewFileWriter(schema, &file, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	require.NoError(t, p.Write(rows))
	require.NoError(t, p.Close())
	paths = append(paths, put(t, dir, "t.parquet", file.Bytes()))
	file.Reset()
	a := ipc.NewWriter(&file, ipc.WithSchema(schema))
	require.NoError(t, a.Write(rows))
	require.NoError(t, a.Close())
	return append(paths, put(t, dir, "t.arrow", file.Bytes()))
}

// Text labels are no numbers: where labels are numbers, each format refuses them with their place, unless the
// options list the classes.
func TestTextLabelsWhereLabelsAreNumbers(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "folder", "usd"), "1.png", pngOf(t, noise(1)))
	paths := append(columnFiles(t, arrow.BinaryTypes.String, []string{"usd", "eur"}, ""),
		put(t, dir, "t.csv", []byte("x,label\n0,usd\n1,eur\n")),
		put(t, dir, "t.jsonl", []byte(`{"x": 0, "label": "usd"}`+"\n"+`{"x": 1, "label": "eur"}`+"\n")),
		put(t, dir, "t.tfrecord", recordsOf(example(map[string]any{"x": []string{"a"}, "label": []string{"usd"}}),
			example(map[string]any{"x": []string{"a"}, "label": []string{"eur"}}))),
		filepath.Join(dir, "folder"))
	for _, path := range paths {
		o := Options{CSV: CSVOptions{Label: "label", Numbers: "the loss is mse"}, Images: ImageOptions{Size: 4}}
		_, err := Open(path, o)
		require.ErrorIs(t, err, ErrLabel, path)
		if filepath.Base(path) == "folder" {
			assert.ErrorContains(t, err, "usd: the name of the class folder is not a number")
			continue
		}
		assert.ErrorContains(t, err, `found "usd", expected a number, because the loss is mse; `)
		o.CSV.Classes = []string{"usd", "eur"}
		ds, err := Open(path, o)
		require.NoError(t, err, path)
		assert.Equal(t, []int64{0, 1}, all[int64](t, ds, "y"), path)
		require.NoError(t, ds.Close())
	}
	put(t, filepath.Join(dir, "numbers", "10"), "1.png", pngOf(t, noise(1)))
	put(t, filepath.Join(dir, "numbers", "2"), "1.png", pngOf(t, noise(1)))
	ds, err := Open(filepath.Join(dir, "numbers"), Options{CSV: CSVOptions{Numbers: "so"}, Images: ImageOptions{Size: 4}})
	require.NoError(t, err)
	assert.Equal(t, []int64{10, 2}, all[int64](t, ds, "y"), "folders with the names of numbers")
}

// An error for a text where a number is expected has the rule of a schema that reads it, and the rule reads it.
func TestRulesForNumbersAsText(t *testing.T) {
	for cell, want := range map[string]float64{"$51.26": 51.26, "12%": 12, "50,3": 50.3, "1,234.00": 1234,
		"-$1,234,567": -1234567, "1.234,5 €": 1234.5, "2020-01-02": 18263, "£7": 7} {
		path := put(t, t.TempDir(), "t.csv", []byte("x,label\n0,\""+cell+"\"\n"))
		_, err := Open(path, Options{CSV: CSVOptions{Label: "label", Numbers: "so"}})
		require.ErrorContains(t, err, `line 2, column "label" (2): found `+quote(cell))
		_, rest, _ := strings.Cut(err.Error(), "the rule ")
		rule, _, _ := strings.Cut(rest, " reads it")
		schema, err := ReadSchema(put(t, t.TempDir(), "s.yaml", []byte("columns: {label: "+rule+"}")))
		require.NoError(t, err, rule)
		ds, err := Open(path, Options{CSV: CSVOptions{Label: "label", Numbers: "so", Schema: schema}})
		require.NoError(t, err, rule)
		v, err := vectorOf(ds.columns[1].values.(vector).values(0, 1))
		require.NoError(t, err)
		assert.InDelta(t, want, v.kind().Float(v.element(0)), 1e-4, rule)
	}
	for cell, rule := range map[string]Rule{"12,34": {Type: "float", Thousands: ","}, "1.5": {Type: "float", Decimal: ","},
		"1,5.2": {Type: "float", Decimal: ","}, "1234,567": {Type: "int", Thousands: ","}} {
		_, ok := rule.convert(cell)
		assert.False(t, ok, cell)
	}
	for _, r := range []Rule{{Type: "text", Strip: []string{"$"}}, {Type: "int", Thousands: "."}, {Type: "float", Decimal: ";"}} {
		assert.ErrorIs(t, r.complete(), ErrFormat)
	}
}

// The error for a date or a time has the rule that reads it, also as a label.
func TestRulesForDates(t *testing.T) {
	const days, seconds = `{"type":"date","format":"%Y-%m-%d","unit":"days"}`, `{"type":"date","format":"%Y-%m-%dT%H:%M:%S","unit":"seconds"}`
	for rule, paths := range map[string][]string{
		days:    columnFiles(t, arrow.FixedWidthTypes.Date32, []arrow.Date32{1, 2}, ""),
		seconds: columnFiles(t, arrow.FixedWidthTypes.Timestamp_s, []arrow.Timestamp{1, 2}, ""),
	} {
		schema, err := ReadSchema(put(t, t.TempDir(), "s.yaml", []byte("columns: {label: "+rule+"}")))
		require.NoError(t, err)
		for _, path := range paths {
			_, err := Open(path, Options{CSV: CSVOptions{Label: "label"}})
			require.ErrorContains(t, err, `record 0, column "label": found a date or time, expected numbers, booleans, text, or lists `+
				"of them; read the column by a rule of a schema (CSVOptions.Schema), or leave it out (Options.Ignore); the rule "+rule+" reads it")
			ds, err := Open(path, Options{CSV: CSVOptions{Label: "label", Schema: schema}})
			require.NoError(t, err)
			assert.Equal(t, []int64{1, 2}, all[int64](t, ds, "y"), path)
		}
	}
}

// Hugging Face's datasets write the names of classes into the metadata of Parquet and Arrow files.
func TestClassLabelNames(t *testing.T) {
	metadata := `{"info": {"features": {"x": {"dtype": "float32", "_type": "Value"},
		"tokens": [{"dtype": "string", "_type": "Value"}],
		"label": {"names": ["neg", "pos", "neutral"], "_type": "ClassLabel"}}}}`
	for _, path := range columnFiles(t, arrow.PrimitiveTypes.Int64, []int64{1, 0, 1}, metadata) {
		for _, c := range []struct {
			o       CSVOptions
			y       []int64
			classes []string
		}{
			{CSVOptions{}, []int64{1, 0, 1}, []string{"neg", "pos", "neutral"}},
			{CSVOptions{Classes: []string{"pos", "neg"}}, []int64{0, 1, 0}, []string{"pos", "neg"}},
			{CSVOptions{Names: []string{"pos", "neg"}}, []int64{0, 1, 0}, []string{"pos", "neg"}},
			{CSVOptions{Numbers: "so"}, []int64{1, 0, 1}, nil},
		} {
			c.o.Label = "label"
			ds, err := Open(path, Options{CSV: c.o})
			require.NoError(t, err)
			assert.Equal(t, c.y, all[int64](t, ds, "y"), path)
			assert.Equal(t, c.classes, ds.Fields()[1].Classes, path)
		}
		_, err := Open(path, Options{CSV: CSVOptions{Label: "label", Names: []string{"good", "bad"}}})
		assert.ErrorContains(t, err, `record 0, column "label": found "pos", expected one of the 2 classes`)
	}
	for _, path := range columnFiles(t, arrow.PrimitiveTypes.Int64, []int64{1, -1}, metadata) {
		_, err := Open(path, Options{CSV: CSVOptions{Label: "label"}})
		assert.ErrorContains(t, err, `record 1, column "label": found -1, expected a class from 0 to 2`)
	}
}

// A first line with the columns of the training is a header, in any order.
func TestHeaderOfKnownNumbers(t *testing.T) {
	path := put(t, t.TempDir(), "t.csv", []byte("402,400.5\n1,2\n"))
	for _, header := range []string{"", "no", "yes"} {
		known := []string{"400.5", "402"}
		ds, err := Open(path, Options{CSV: CSVOptions{Header: header, Known: known, Inputs: columnInputs(known...)}})
		require.NoError(t, err, header)
		assert.Equal(t, []float32{2, 1}, all[float32](t, ds, "x"))
	}
	_, err := Open(path, Options{CSV: CSVOptions{Known: []string{"402", "7"}}})
	assert.ErrorIs(t, err, ErrField)
}

// all returns the values of a field.
func all[T any](t *testing.T, ds *InMemory, field string) (values []T) {
	t.Helper()
	for b, err := range ds.Batches(Pass{Batch: ds.Len()}) {
		require.NoError(t, err)
		a, _ := b.Field(field)
		values = append(values, a.Values.([]T)...)
	}
	return values
}
