package train

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// made returns a dataset in memory.
func made(t *testing.T, fields ...data.Field) *data.InMemory {
	t.Helper()
	ds, err := data.New("made", fields...)
	require.NoError(t, err)
	return ds
}

func field(name string, values any, shape ...int) data.Field {
	return data.Field{Name: name, Array: data.Array{Shape: shape, Values: values}}
}

// Labels are checked before the first step: against the number of classes, which the exporter notes, or else against
// the range of the integer input.
func TestIntegersAreChecked(t *testing.T) {
	m := builtin(t, "lstm")
	require.Empty(t, m.Metadata.ClassNames)
	for _, c := range []struct {
		values  any
		classes int
		want    string // empty if the data is valid
	}{
		{[]int64{0, -1}, 0, ""},
		{[]int8{0, -1}, 0, ""},
		{[]uint32{0, math.MaxUint32}, 0, ""},
		{[]float64{0, -1}, 0, ""},
		{[]bool{false, true}, 0, ""},
		{[]float64{0, 0.5}, 0, "input y of signature train takes int64: made: sample 1, column y: found 0.5, expected a " +
			"signed integer of 64 bits (of floats, below 2^53); correct the value, or leave the sample out"},
		{[]uint64{0, math.MaxUint64}, 0, "input y of signature train takes int64: made: sample 1, column y: found " +
			"18446744073709551615, expected a signed integer of 64 bits; correct the value, or leave the sample out"},
		{[]int64{0, 2}, 3, ""},
		{[]int64{0, 3}, 3, "made: sample 1, column y: found 3, expected a class from 0 to 2"},
		{[]int64{0, -1}, 3, "made: sample 1, column y: found -1, expected a class from 0 to 2"},
	} {
		noted := *m.Metadata
		noted.Labels = map[string]savedmodels.InputMetadata{"y": {DType: "int64", Classes: c.classes}}
		model := *m
		model.Metadata = &noted
		err := checkData(made(t, field("x", make([]float32, 2*20*16), 2, 20, 16), field("y", c.values, 2)), &model, "train",
			data.Pass{Batch: 1})
		if c.want == "" {
			assert.NoError(t, err, "%T", c.values)
			continue
		}
		assert.ErrorContains(t, err, c.want)
		assert.Equal(t, c.classes > 0, errors.Is(err, data.ErrLabel))
	}
}

// openedBy opens data for a signature of a model with these notes.
func openedBy(t *testing.T, m *savedmodels.Model, change func(*savedmodels.Metadata), d Data) (*reader, *data.InMemory,
	error) {
	t.Helper()
	changed := *m
	notes := *m.Metadata
	change(&notes)
	changed.Metadata = &notes
	r, err := newReader(&changed, "train", d)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.close()) })
	ds, err := r.open(d, "train")
	return r, ds, err
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o666))
	return path
}

// The memory for reading data into the heap is returned before training. Mapped data needs no collection.
func TestParsedDataIsReleased(t *testing.T) {
	m := builtin(t, "digits")
	arrays := arrays(t)
	table := file(t, "t.csv", strings.Repeat(strings.Repeat("0.5,", 64)+"1\n", 2))
	plan, err := session.Compile(m, session.Options{})
	require.NoError(t, err)
	defer func(before int64) { onDiskFrom = before }(onDiskFrom)
	onDiskFrom = 1
	for path, released := range map[string]uint32{table: 1, arrays: 0} {
		tr := &training{Config: Config{Data: Data{Path: path, Label: "-1", Header: "no"},
			Loop: fit.Loop{Batch: 2}}, model: m, plan: plan}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := tr.openData()
		runtime.ReadMemStats(&after)
		assert.NoError(t, err)
		assert.Equal(t, released, after.NumForcedGC-before.NumForcedGC, path)
		assert.NoError(t, tr.reader.close())
	}
}

// A table with the same columns in another order does not swap features, in validation data and in a further training.
func TestColumnsInAnotherOrder(t *testing.T) {
	m := builtin(t, "digits")
	r, ds, err := openedBy(t, m, func(*savedmodels.Metadata) {}, Data{Path: file(t, "train.csv", "age,income,label\n30,5,1\n")})
	require.NoError(t, err)
	assert.Equal(t, []string{"age", "income"}, fieldOf(ds, "x").Columns)
	assert.Equal(t, []string{"label"}, fieldOf(ds, "y").Columns)
	r.follow(ds)
	for text, says := range map[string]string{
		"age,label,income\n30,1,5\n":    "",
		"income,age,label\n5,30,1\n":    "",
		"age,Income,label\n30,5,1\n":    `no column "income", which input x of the model takes: add it, or name the columns`,
		"age,label,income,z\n3,1,5,1\n": "",
	} {
		d := Data{Path: file(t, "val.csv", text)}
		held, err := r.open(d, "test")
		_, further, recorded := openedBy(t, m, func(n *savedmodels.Metadata) {
			n.Columns = map[string][]string{"x": {"age", "income"}}
		}, d)
		if says != "" {
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, recorded, says)
			continue
		}
		require.NoError(t, errors.Join(err, recorded), text)
		for _, ds := range []*data.InMemory{held, further} {
			x := values[float32](t, ds, "x")
			assert.InDelta(t, 5, x[1], 0, text)
			assert.Greater(t, x[0]+1, float32(3), text)
		}
	}
}

// To evaluate and to predict, a table may have more columns than the model was trained with. A
// table without a header is read by position, with a message.
func TestColumnsOfTheRecord(t *testing.T) {
	dir := t.TempDir()
	builtin := builtin(t, "dropout-200-512-256-1")
	columns := make([]string, 200)
	for i := range columns {
		columns[i] = fmt.Sprintf("c%d", 199-i)
	}
	m := builtin.WithRecord(&savedmodels.DataRecord{Columns: map[string][]string{"x": columns}})
	header, row := "name,"+strings.Join(columns, ",")+",id,label\n", "Ann,1"+strings.Repeat(",0", 199)+",7,1\n"
	var notes []string
	d := Data{Path: filepath.Join(dir, "d.csv"), Note: func(message string) { notes = append(notes, message) }}
	write := func(text string) { require.NoError(t, os.WriteFile(d.Path, []byte(text), 0o666)) }
	write(header + row)
	pass := data.Pass{Batch: 1}
	for _, signature := range []string{m.Roles.Evaluate, m.Roles.Predict} {
		notes = nil
		ds := read(t, m, signature, d)
		assert.Equal(t, float32(1), values[float32](t, ds, "x")[0])
		assert.Equal(t, columns, fieldOf(ds, "x").Columns)
		assert.Equal(t, []string{d.Path + ": the model was trained without these columns, which are left out: name, id"},
			notes)
	}
	notes = nil
	ignoring := d
	ignoring.Ignore = []string{"name", "id"}
	for _, model := range []*savedmodels.Model{m, builtin} {
		for _, signature := range []string{m.Roles.Train, m.Roles.Predict} {
			read(t, model, signature, ignoring)
		}
	}
	assert.Empty(t, notes)
	refuses(t, m, m.Roles.Train, d, "no input of signature train takes the field name")

	write(strings.Replace(header, "c7,", "d7,", 1) + row)
	_, err := OpenData(m, m.Roles.Evaluate, d, "test", pass)
	require.ErrorAs(t, err, new(*InputError))
	require.ErrorContains(t, err, `no column "c7", which input x of the model takes`)

	write("1" + strings.Repeat(",0", 199) + "\n")
	d.Header = "no"
	read(t, m, m.Roles.Predict, d)
	assert.Equal(t, []string{d.Path + " has no names of columns, so the values are taken to be, in this order: c199, c198, " +
		"c197, c196, c195, c194, c193, c192 and 192 more"}, notes)
}

// Bytes from 0 to 255 are refused for a model that takes 0 to 1.
func TestBytesOutsideTheRange(t *testing.T) {
	m := builtin(t, "digits")
	pixels := func(last uint8) *data.InMemory {
		x := make([]uint8, 2*64)
		x[100] = last
		return made(t, field("x", x, 2, 64), field("y", []int64{0, 1}, 2))
	}
	pass := data.Pass{Batch: 2}
	for _, signature := range []string{m.Roles.Train, m.Roles.Evaluate, m.Roles.Predict} {
		read(t, m, signature, Data{Memory: pixels(16)})
		_, err := OpenData(m, signature, Data{Memory: pixels(17)}, "", pass)
		var refused *option.Error
		require.ErrorAs(t, err, &refused)
		assert.EqualError(t, err, "Data.Scale: field x of made has bytes outside 0 to 16, the range that the model "+
			"records; set it to 0,16 for bytes from 0 to 255, or to 0,255 to use the values as they are")
		for _, scale := range [][2]float64{{0, 16}, {0, 255}} {
			read(t, m, signature, Data{Memory: pixels(255), Scale: &scale})
		}
	}
}

// Class names are not numbered in sorted order if the model has another number of classes.
func TestNamesAndClassesDifferInNumber(t *testing.T) {
	assert.NoError(t, checkNames("d", "y", nil, 3))
	assert.NoError(t, checkNames("d", "y", []string{"a", "b", "c"}, 3))
	assert.EqualError(t, checkNames("d", "y", []string{"a", "b", "c", "d"}, 3),
		"d: field y has the 4 labels a, b, c, d, and the model has 3 classes: rename or remove the labels (or class "+
			"folders) that are not classes of the model, or export the model with 4 classes: "+data.ErrLabel.Error())
	assert.EqualError(t, checkNames("d", "y", []string{"a", "b"}, 3),
		"d: field y has the 2 labels a, b, and the model has 3 classes without names, so the labels have no numbers; "+
			"write numbers, or export the model with its class names: "+data.ErrLabel.Error())
}

// A folder of images is refused for a model that takes text, and a prediction needs no class folders.
func TestFolderOfImages(t *testing.T) {
	m := builtin(t, "digits")
	sig, err := m.Signature(m.Roles.Predict)
	require.NoError(t, err)
	images := filepath.Join("..", "session", "testdata", "jpeg", "png")
	_, err = OpenData(m, m.Roles.Predict, Data{Path: images}, "test", data.Pass{Batch: 2})
	var size *option.Error
	require.ErrorAs(t, err, &size)
	assert.Equal(t, "ImageOptions.Size", size.Option)
	flat := Data{Path: filepath.Join(images, "0"), Height: 8, Width: 8}
	_, err = opened(t, m, flat)
	require.ErrorAs(t, err, new(*InputError))
	ds := read(t, m, m.Roles.Predict, flat)
	assert.NotEmpty(t, ds.FilePath(0))
	sig.Input("x").DType, sig.Input("x").Shape = tfbind.String, []int64{-1}
	_, err = OpenData(m, m.Roles.Predict, flat, "test", data.Pass{Batch: 2})
	require.ErrorIs(t, err, session.ErrData)
}

// Data that has both usual labels, label and y, is refused unless the options name one.
func TestBothUsualLabels(t *testing.T) {
	m := builtin(t, "digits")
	text, err := os.ReadFile(table(t, 64, "2"))
	require.NoError(t, err)
	csv := file(t, "both.csv", strings.Replace(string(text), "c63", "y", 1))
	lines := file(t, "both.jsonl", `{"x": [`+strings.Repeat("0, ", 63)+`1], "y": 1, "label": 2}`+"\n")
	single := file(t, "single.jsonl", `{"y": 1, "label": 2}`+"\n")
	for _, path := range []string{csv, lines, single} {
		_, err := opened(t, m, Data{Path: path})
		var refused *option.Error
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, "Data.Label", refused.Option)
		assert.Contains(t, refused.Reason, path+" has label and y")
	}
	for _, d := range []Data{{Path: csv, Label: "label"}, {Path: lines, Label: "y", Ignore: []string{"label"}},
		{Path: lines, Ignore: []string{"label"}}} {
		ds := read(t, m, m.Roles.Evaluate, d)
		want := map[string]int64{csv: 2, lines: 1}[d.Path]
		assert.Equal(t, []int64{want}, values[int64](t, ds, "y"))
	}
	read(t, m, m.Roles.Predict, Data{Path: lines})
}
