package train

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// tables writes rows of numbers as a CSV file, JSON lines and a Parquet file. The columns are in the order of names.
func tables(t *testing.T, names []string, rows int) (paths []string) {
	t.Helper()
	var fields []arrow.Field
	for _, name := range names {
		fields = append(fields, arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Float32})
	}
	schema := arrow.NewSchema(fields, nil)
	columns := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	csv, lines := strings.Join(names, ",")+"\n", ""
	for r := range rows {
		var cells, members []string
		for i, name := range names {
			v := float32(r)
			if n, err := strconv.Atoi(strings.TrimPrefix(name, "p")); err == nil {
				v = float32((7*r+n)%10) / 3
			}
			columns.Field(i).(*array.Float32Builder).Append(v)
			cells, members = append(cells, fmt.Sprint(v)), append(members, fmt.Sprintf("%q: %v", name, v))
		}
		csv, lines = csv+strings.Join(cells, ",")+"\n", lines+"{"+strings.Join(members, ", ")+"}\n"
	}
	var file bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &file, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	require.NoError(t, w.Write(columns.NewRecordBatch()))
	require.NoError(t, w.Close())
	dir := t.TempDir()
	for name, content := range map[string][]byte{"t.csv": []byte(csv), "t.jsonl": []byte(lines),
		"t.parquet": file.Bytes()} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o666))
	}
	return []string{filepath.Join(dir, "t.csv"), filepath.Join(dir, "t.jsonl"), filepath.Join(dir, "t.parquet")}
}

// The same table as a CSV file, as JSON lines and as a Parquet file trains a model with one input to the
// same bits. The saved model finds the columns of each format by their names, and a run does not resume
// from a checkpoint with the columns in another order.
func TestTablesTrainToTheSameBits(t *testing.T) {
	names := []string{"label"}
	for i := range 64 {
		names = append(names, fmt.Sprintf("p%d", 63-i))
	}
	reversed := append([]string{"more"}, names...)
	for i := range names {
		reversed[len(names)-i] = names[i]
	}
	dir := t.TempDir()
	run := func(path, out, checkpoints string, epochs int) error {
		c := Config{
			Model: "builtin:digits", Data: Data{Path: path}, Seed: 3, Shuffle: true, Prefetch: -1, Resume: epochs > 1 &&
				checkpoints != "",
			Loop: fit.Loop{Batch: 4, Epochs: epochs}, Out: out,
		}
		c.Checkpoints.Folder = checkpoints
		_, err := Run(t.Context(), c)
		return err
	}
	all, others, out := tables(t, names, 10), tables(t, reversed[1:], 10), filepath.Join(dir, "0")
	require.NoError(t, run(all[0], out, "", 2))
	want := weights(t, out)
	out = filepath.Join(dir, "1")
	require.NoError(t, run(all[1], out, "", 2))
	assert.True(t, bytes.Equal(want, weights(t, out)), all[1])
	out = filepath.Join(dir, "2")
	checkpoints := filepath.Join(dir, "checkpoints")
	require.NoError(t, run(all[2], "", checkpoints, 1))
	require.ErrorContains(t, run(others[2], "", checkpoints, 2),
		"the samples, the data order (seed, shuffle) or the split into training and validation data differ")
	require.NoError(t, run(all[2], out, checkpoints, 2))
	assert.True(t, bytes.Equal(want, weights(t, out)), all[2])
	m, err := savedmodels.Open(out)
	require.NoError(t, err)
	assert.Equal(t, map[string][]string{"x": names[1:], "y": {"label"}}, m.Metadata.Columns)
	builtin := builtin(t, "digits")
	var first []float32
	for _, path := range tables(t, reversed, 3) {
		for _, signature := range []string{m.Roles.Predict, m.Roles.Evaluate} {
			var notes []string
			d := Data{Path: path, Note: func(note string) { notes = append(notes, note) }}
			ds := read(t, m, signature, d)
			x := values[float32](t, ds, "x")
			if first == nil {
				first = x
			}
			assert.Equal(t, first, x, path)
			assert.Equal(t, []string{path + ": the model was trained without these columns, which are left out: more"}, notes)
		}
	}
	for _, path := range tables(t, names[:64], 3) {
		refuses(t, m, m.Roles.Predict, Data{Path: path}, `no column "p0", which input x of the model takes`)
		err = refuses(t, builtin, builtin.Roles.Predict, Data{Path: path},
			"expected samples of shape [64], got samples of shape [63]")
		require.ErrorContains(t, err, "; the table has 63 columns besides the label, 1 too few: p63, p62, p61, p60, p59, "+
			"p58, p57, p56 and 55 more; add the missing columns")
	}
	for _, path := range tables(t, names[1:], 3) {
		_, err := OpenData(builtin, builtin.Roles.Train, Data{Path: path}, "train", data.Pass{Batch: 2})
		require.ErrorIs(t, err, session.ErrData)
		require.EqualError(t, err, path+": the data does not fit the model: signature train takes a label, and the table "+
			"has the columns p63, p62, p61, p60, p59, p58, p57, p56 and 56 more, none of which is called label or y; "+
			"Data.Label names the label")
	}
	refuses(t, builtin, builtin.Roles.Train, Data{Path: file(t, "t.jsonl", `{"x": [1, 2], "kind": 1}`)},
		"and the data has x, kind (missing: y; not inputs: kind); name the arrays of the "+
			"data like the inputs, or x and y (for a table or records, Data.Label names the label)")
	err = refuses(t, builtin, builtin.Roles.Predict, Data{Path: tables(t, reversed, 3)[1]},
		"expected samples of shape [64], got samples of shape [65]")
	require.ErrorContains(t, err, "; the table has 65 columns besides the label: more, p0, p1, p2, p3, p4, p5, p6 and "+
		"57 more; leave out those that are no features (Options.Ignore)")
}

// A table in each format may have a feature with the name of the model's input (x), or with the usual name
// of a label (y).
func TestColumnsNamedLikeInputs(t *testing.T) {
	names := []string{"p0", "x", "label", "y"}
	for i := range 61 {
		names = append(names, fmt.Sprintf("p%d", i+1))
	}
	features := append([]string{"p0", "x", "y"}, names[4:]...)
	m := builtin(t, "digits")
	var first []float32
	for _, path := range tables(t, names, 3) {
		ds := read(t, m, m.Roles.Train, Data{Path: path, Label: "label"})
		x := values[float32](t, ds, "x")
		if first == nil {
			first = x
		}
		assert.Equal(t, first, x, path)
		assert.Equal(t, features, fieldOf(ds, "x").Columns, path)
	}
	trained := m.WithRecord(&savedmodels.DataRecord{Columns: map[string][]string{"x": features}})
	for _, path := range tables(t, features, 3) {
		ds := read(t, trained, m.Roles.Predict, Data{Path: path})
		assert.Equal(t, first, values[float32](t, ds, "x"), path)
	}
}
