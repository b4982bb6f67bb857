package data

import (
	"bytes"
	"path/filepath"
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
func columnFiles[T any](t *testing.T, kind arrow.DataType, labels []T) (paths []string) {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Float32}, {Name: "label", Type: kind}},
		nil)
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
	paths := append(columnFiles(t, arrow.BinaryTypes.String, []string{"usd", "eur"}),
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
		ds := opened(t, path, o)
		assert.Equal(t, []int64{0, 1}, all[int64](t, ds, "y"), path)
	}
	put(t, filepath.Join(dir, "numbers", "10"), "1.png", pngOf(t, noise(1)))
	put(t, filepath.Join(dir, "numbers", "2"), "1.png", pngOf(t, noise(1)))
	ds := opened(t, filepath.Join(dir, "numbers"), Options{CSV: CSVOptions{Numbers: "so"}, Images: ImageOptions{Size: 4}})
	assert.Equal(t, []int64{10, 2}, all[int64](t, ds, "y"), "folders with the names of numbers")
}

// Rules read numbers as text, and dates and times, also as labels.
func TestRulesOfLabels(t *testing.T) {
	for cell, c := range map[string]struct {
		rule string
		want float64
	}{
		"$51.26": {"{type: float, strip: [$]}", 51.26}, "50,3": {"{type: float, decimal: ','}", 50.3},
		"-$1,234,567": {"{type: float, strip: [$], thousands: ','}", -1234567},
		"1.234,5 €":   {"{type: float, strip: [€], thousands: '.', decimal: ','}", 1234.5},
		"2020-01-02":  {"{type: date}", 18263},
	} {
		path := put(t, t.TempDir(), "t.csv", []byte("x,label\n0,\""+cell+"\"\n"))
		_, err := Open(path, Options{CSV: CSVOptions{Label: "label", Numbers: "so"}})
		require.ErrorContains(t, err, `line 2, column "label" (2): found `+quote(cell))
		ds := opened(t, path, Options{CSV: CSVOptions{Label: "label", Numbers: "so", Schema: rulesOf(t, "columns: {label: "+c.rule+"}")}})
		v, err := vectorOf(ds.columns[1].values.(vector).values(0, 1))
		require.NoError(t, err)
		assert.InDelta(t, c.want, v.kind().Float(v.element(0)), 1e-4, c.rule)
	}
	for cell, rule := range map[string]Rule{"12,34": {Type: "float", Thousands: ","}, "1.5": {Type: "float", Decimal: ","},
		"1,5.2": {Type: "float", Decimal: ","}, "1234,567": {Type: "int", Thousands: ","}} {
		_, ok := rule.convert(cell)
		assert.False(t, ok, cell)
	}
	for _, r := range []Rule{{Type: "text", Strip: []string{"$"}}, {Type: "int", Thousands: "."}, {Type: "float", Decimal: ";"}} {
		assert.ErrorIs(t, r.complete(), ErrFormat)
	}
	for rule, paths := range map[string][]string{
		"{type: date}": columnFiles(t, arrow.FixedWidthTypes.Date32, []arrow.Date32{1, 2}),
		"{type: date, format: '%Y-%m-%dT%H:%M:%S', unit: seconds}": columnFiles(t, arrow.FixedWidthTypes.Timestamp_s,
			[]arrow.Timestamp{1, 2}),
	} {
		for _, path := range paths {
			_, err := Open(path, Options{CSV: CSVOptions{Label: "label"}})
			require.ErrorContains(t, err, `record 0, column "label": found a date or time, expected numbers, booleans, text, or lists `+
				"of them; read the column by a rule of a schema (CSVOptions.Schema), or leave it out (Options.Ignore)")
			ds := opened(t, path, Options{CSV: CSVOptions{Label: "label", Schema: rulesOf(t, "columns: {label: "+rule+"}")}})
			assert.Equal(t, []int64{1, 2}, all[int64](t, ds, "y"), path)
		}
	}
}

// A first line with the columns of the training is a header, in any order.
func TestHeaderOfKnownNumbers(t *testing.T) {
	path := put(t, t.TempDir(), "t.csv", []byte("402,400.5\n1,2\n"))
	for _, header := range []string{"", "no", "yes"} {
		known := []string{"400.5", "402"}
		ds := opened(t, path, Options{CSV: CSVOptions{Header: header, Known: known, Inputs: columnInputs(known...)}})
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
