package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/dtype"
	"steadyfit/option"
	"steadyfit/savedmodels"
)

// table returns a table with columns c0, c1 and so on, and a row of zeros for each label.
func table(t *testing.T, columns int, labels ...string) string {
	t.Helper()
	var text strings.Builder
	for i := range columns {
		fmt.Fprintf(&text, "c%d,", i)
	}
	text.WriteString("label\n")
	for _, label := range labels {
		text.WriteString(strings.Repeat("0,", columns) + label + "\n")
	}
	return file(t, "table.csv", text.String())
}

// opened opens data to evaluate a model with.
func opened(t *testing.T, m *savedmodels.Model, d Data) (*data.InMemory, error) {
	t.Helper()
	return open(t, m, m.Roles.Evaluate, d)
}

// values returns the values of a field.
func values[T any](t *testing.T, ds *data.InMemory, field string) []T {
	t.Helper()
	for b, err := range ds.Batches(data.Pass{Batch: ds.Len()}) {
		require.NoError(t, err)
		for i, f := range ds.Fields() {
			if f.Name == field {
				return slices.Clone(b.Fields[i].Values.([]T))
			}
		}
	}
	require.Fail(t, "no field "+field)
	return nil
}

// recorded returns a model with the record of a training on data.
func recorded(t *testing.T, m *savedmodels.Model, d Data) *savedmodels.Model {
	t.Helper()
	r, err := newReader(m, m.Roles.Train, d)
	require.NoError(t, err)
	defer func() { assert.NoError(t, r.close()) }()
	ds, err := r.open(d, "train")
	require.NoError(t, err)
	r.follow(ds)
	return m.WithRecord(&r.record)
}

// Text labels have the numbers of the training, even if a later file has only one of the classes.
// The saved model has the record, also if it had no notes, and the schema.
func TestLabelsKeepTheirNumbers(t *testing.T) {
	model := builtin(t, "dropout-200-512-256-1")
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, os.DirFS(model.Dir)))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "assets.extra")))
	schema := &data.Schema{Columns: map[string]data.Rule{"c0": {Type: "category", Values: map[string]int64{"0": 5}}}}
	c := Config{
		Model: dir, Data: Data{Path: table(t, 200, "yes", "no", "no", "yes"), Schema: schema, Classes: []string{"no", "yes"}},
		Out:  filepath.Join(t.TempDir(), "out"),
		Loop: fit.Loop{Batch: 2, Epochs: 1, StepsPerEpoch: 1},
	}
	ran(t, c)
	first, err := OpenModel(&Config{Model: c.Out})
	require.NoError(t, err)
	one := Data{Path: table(t, 200, "yes", "yes")}
	for _, m := range []*savedmodels.Model{first, recorded(t, model, c.Data), recorded(t, first, one)} {
		ds := read(t, m, m.Roles.Evaluate, one)
		assert.Equal(t, []int64{1, 1}, values[int64](t, ds, "y"))
		assert.Equal(t, []float32{5, 0}, values[float32](t, ds, "x")[:2])
		_, err = opened(t, m, Data{Path: table(t, 200, "yes", "maybe")})
		require.ErrorAs(t, err, new(*InputError))
		assert.ErrorContains(t, err, `found "maybe", expected one of the 2 classes`)
		read(t, m, m.Roles.Evaluate, Data{Path: table(t, 200, "0", "1")})
	}
}

// Numbers may mean other classes than the names that a training has sorted.
func TestNumbersAfterNames(t *testing.T) {
	m := builtin(t, "digits")
	m.Metadata.ClassNames = nil
	named := recorded(t, m, Data{Path: table(t, 64, "zebra", "ant", "a", "b", "c", "d", "e", "f", "g", "h")})
	numbers := table(t, 64, "0", "1")
	require.ErrorIs(t, refuses(t, named, named.Roles.Evaluate, Data{Path: numbers},
		"table.csv: field y has numbers, and the labels of the training were the names a, ant, b, c, "+
			"d, e, f, g and 2 more; use names, or list the names in the order of the numbers (Data.Classes)"), data.ErrLabel)
	refuses(t, named, named.Roles.Evaluate, Data{Path: numbers, Classes: []string{"zebra", "ant", "a", "b", "c", "d", "e", "f", "g", "h"}},
		`the model has "zebra" as class 9, and this order makes it class 0`)
	reads(t, named, named.Roles.Evaluate, Data{Path: numbers, Classes: named.Metadata.ClassNames}, "y", []int64{0, 1})
	ds, err := opened(t, recorded(t, m, Data{Path: table(t, 64, "9", "0")}), Data{Path: numbers})
	require.NoError(t, err)
	assert.Equal(t, []int64{0, 1}, values[int64](t, ds, "y"))
}

// A schema that replaces recorded rules may not change the numbers of values, and other changes are reported.
func TestReplacedRules(t *testing.T) {
	m := builtin(t, "digits")
	rules := func(values map[string]int64, more string) *data.Schema {
		return &data.Schema{Columns: map[string]data.Rule{"c0": {Type: "category", Values: values, Missing: &more}}}
	}
	trained := recorded(t, m, Data{Path: table(t, 64, "0", "1"), Schema: rules(map[string]int64{"0": 5, "1": 6}, "0")})
	for _, c := range []struct {
		values     map[string]int64
		more       string
		says, note string
	}{
		{map[string]int64{"0": 5, "1": 6}, "0", "", ""},
		{map[string]int64{"0": 5, "1": 6}, "1", `column "c0": an empty cell has the number 6, and the model was trained with 5`, ""},
		{map[string]int64{"0": 5, "1": 6, "2": 7}, "0", "", "the schema replaces the rules that the model was trained with for the columns c0"},
		{map[string]int64{"0": 6, "1": 5}, "0", `column "c0": "`, ""},
	} {
		var note string
		_, err := opened(t, trained, Data{Path: table(t, 64, "0", "1"), Schema: rules(c.values, c.more),
			Note: func(text string) { note = text }})
		assert.Equal(t, c.note, note)
		if c.says != "" {
			require.ErrorAs(t, err, new(*option.Error))
			assert.ErrorContains(t, err, c.says)
			continue
		}
		require.NoError(t, err)
	}
	bools := func(yes, no string) data.Rule {
		return data.Rule{Type: "bool", TrueValues: []string{yes}, FalseValues: []string{no}}
	}
	missing := func(value string, cells ...string) data.Rule {
		return data.Rule{Type: "int", Missing: &value, NAValues: cells}
	}
	for _, c := range []struct {
		before, now data.Rule
		says        string // empty for a rule that reads no text otherwise
	}{
		{bools("0", "7"), bools("7", "0"), `column "c0": "0" has the number 0, and the model was trained with 1; give it that number`},
		{bools("0", "7"), data.Rule{Type: "bool"}, `"0" has the number 0, and the model was trained with 1`},
		{data.Rule{Type: "bool"}, bools("0", "1"), `"0" has the number 1, and the model was trained with 0`},
		{bools("0", "7"), data.Rule{Type: "bool", TrueValues: []string{"0", "yes"}, FalseValues: []string{"7", "no"}}, ""},
		{data.Rule{Type: "date", Unit: "seconds"}, data.Rule{Type: "date"},
			`"2001-2-3" has the number 11356, and the model was trained with 981158400`},
		{data.Rule{Type: "date", Format: "%d/%m/%Y"}, data.Rule{Type: "date", Format: "%m/%d/%Y"},
			`"3/2/2001" has the number 11383, and the model was trained with 11356`},
		{data.Rule{Type: "date", Unit: "days"}, data.Rule{Type: "date", Format: "%Y-%m-%d"}, ""},
		{data.Rule{Type: "float", Decimal: ","}, data.Rule{Type: "float", Thousands: ","},
			`"1,234" has the number 1234, and the model was trained with 1.234`},
		{data.Rule{Type: "int"}, data.Rule{Type: "category", Values: map[string]int64{"0": 0, "1": 2}},
			`"1" has the number 2, and the model was trained with 1`},
		{data.Rule{Type: "int"}, data.Rule{Type: "float"}, ""},
		{data.Rule{Type: "int"}, data.Rule{Type: "category", Values: map[string]int64{"3": 0, "4": 1}},
			`"3" has the number 0, and the model was trained with 3`},
		{data.Rule{Type: "int"}, bools("4", "3"), `"4" has the number 1, and the model was trained with 4`},
		{data.Rule{Type: "int"}, data.Rule{Type: "date", Format: "%Y"}, `"2001" has the number 11323, and the model was trained with 2001`},
		{missing("0"), missing("7"), `column "c0": an empty cell has the number 7, and the model was trained with 0`},
		{missing("0", "9"), missing("0"), `"9" has the number 9, and the model was trained with 0`},
		{data.Rule{Type: "int"}, missing("7"), ""},
	} {
		recorded, err := json.Marshal(data.Schema{Columns: map[string]data.Rule{"c0": c.before}})
		require.NoError(t, err)
		now := Data{Path: table(t, 64, "0"), Schema: &data.Schema{Columns: map[string]data.Rule{"c0": c.now}}}
		_, err = newReader(m.WithRecord(&savedmodels.DataRecord{Schema: recorded}), m.Roles.Train, now)
		if c.says == "" {
			require.NoError(t, err, "%v", c)
			continue
		}
		require.ErrorAs(t, err, new(*option.Error))
		assert.ErrorContains(t, err, c.says)
	}
}

// If a model records no class names, the labels in a file cannot be mapped to the class numbers of its
// training.
func TestUnknownLabelNames(t *testing.T) {
	m := builtin(t, "dropout-200-512-256-1")
	require.ErrorIs(t, refuses(t, m, m.Roles.Evaluate, Data{Path: table(t, 200, "yes", "yes")},
		"field y has the labels yes, and the model records no class names, so the labels have "+
			"no numbers"), data.ErrLabel)
	read(t, m, m.Roles.Evaluate, Data{Path: table(t, 200, "yes", "no")})
	_, err := Run(t.Context(), Config{
		Model: m.Dir, Data: Data{Path: table(t, 200, "0", "1")}, Validation: table(t, 200, "yes", "no"),
		Loop: fit.Loop{Batch: 2, Epochs: 1},
	})
	require.ErrorIs(t, err, data.ErrLabel)
	assert.ErrorContains(t, err, `line 2, column "label" (201): found "yes", expected a number, because the labels of the `+
		"training data are numbers")

	// Data in memory has numbers already.
	ds, err := data.Open(table(t, 200, "no", "old", "yes"), data.Options{CSV: data.CSVOptions{Label: "label"}})
	require.NoError(t, err)
	_, err = opened(t, recorded(t, m, Data{Path: table(t, 200, "yes", "no")}), Data{Memory: ds})
	require.ErrorIs(t, err, data.ErrLabel)
	assert.ErrorContains(t, err, "field y has the labels no, old, yes, and the model has no, yes")
}

// Class numbers 1 and 2 are refused for binary cross-entropy, whose loss would go to minus
// infinity.
func TestBinaryLabels(t *testing.T) {
	m := builtin(t, "dropout-200-512-256-1")
	for label, says := range map[string]string{
		"0": "", "1": "", "0.25": "",
		"2":    `line 3, column "label" (201): found 2, expected a class from 0 to 1, or a probability; number the two classes 0 and 1`,
		"-1":   "found -1, expected a class from 0 to 1",
		"1.25": "found 1.25, expected a class from 0 to 1",
	} {
		d := Data{Path: table(t, 200, "1", label)}
		for _, signature := range []string{m.Roles.Train, m.Roles.Evaluate} {
			_, err := OpenData(m, signature, d, "", data.Pass{Batch: 2})
			if says == "" {
				require.NoError(t, err, label)
				continue
			}
			require.ErrorIs(t, err, data.ErrLabel, label)
			require.ErrorContains(t, err, says)
		}
	}
}

// photos makes a folder of ten classes with white images.
func photos(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	picture := image.NewGray(image.Rect(0, 0, 8, 8))
	for i := range picture.Pix {
		picture.Pix[i] = 255
	}
	var text bytes.Buffer
	require.NoError(t, png.Encode(&text, picture))
	for i := range 10 {
		class := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, os.Mkdir(class, 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(class, "1.png"), text.Bytes(), 0o666))
	}
	return dir
}

// A table to predict has no label, and may need other rules, such as other words.
func TestRecordedSchema(t *testing.T) {
	m := builtin(t, "dropout-200-512-256-1")
	words := func(zero string) *data.Schema {
		return &data.Schema{Columns: map[string]data.Rule{
			"c0":    {Type: "category", Values: map[string]int64{zero: 5}},
			"label": {Type: "bool", TrueValues: []string{"yes"}, FalseValues: []string{"no"}},
		}}
	}
	labelled := table(t, 200, "yes", "no")
	m = recorded(t, m, Data{Path: labelled, Schema: words("0")})
	reads(t, m, m.Roles.Evaluate, Data{Path: labelled}, "y", []int64{1, 0})
	text, err := os.ReadFile(labelled)
	require.NoError(t, err)
	features := strings.NewReplacer(",label", "", ",yes", "", ",no", "").Replace(string(text))
	d := Data{Path: file(t, "features.csv", features)}
	first := func() []float32 { return values[float32](t, read(t, m, m.Roles.Predict, d), "x")[:2] }
	assert.Equal(t, []float32{5, 0}, first())
	d.Schema = words("0")
	assert.Equal(t, []float32{5, 0}, first())
	refuses(t, m, m.Roles.Train, d, `the schema has a rule for column "label", and the columns are`)
	d.Path, d.Schema = file(t, "other.csv", strings.ReplaceAll(features, "\n0,", "\nzero,")), words("zero")
	assert.Equal(t, []float32{5, 0}, first())
}

// A model that was trained with scaled bytes is evaluated with scaled bytes.
func TestScaleIsRecorded(t *testing.T) {
	m := lora(t) // its notes have no range
	folder := Data{Path: photos(t), Height: 8, Width: 8}
	labels := field("y", []int64{0, 1}, 2)
	pixels := made(t, field("x", []uint8(strings.Repeat("\xff", 2*64)), 2, 64), labels)
	floats := made(t, field("x", make([]float32, 2*64), 2, 64), labels)
	unit, other := [2]float64{0, 1}, [2]float64{-1, 1}
	for _, d := range []Data{folder, {Memory: pixels}} {
		scaled, different := d, d
		scaled.Scale, different.Scale = &unit, &other
		first := recorded(t, m, scaled)
		for _, m := range []*savedmodels.Model{first, recorded(t, first, d)} {
			for _, d := range []Data{folder, scaled, {Memory: pixels}} {
				ds := read(t, m, m.Roles.Evaluate, d)
				assert.Equal(t, []float32{1, 1}, values[float32](t, ds, "x")[:2])
			}
			ds := read(t, m, m.Roles.Evaluate, Data{Memory: floats})
			assert.Equal(t, []float32{0, 0}, values[float32](t, ds, "x")[:2], "floats are used as they are")
			_, err := opened(t, m, different)
			assert.EqualError(t, err, "Data.Scale -1,1: the model was trained with bytes scaled to 0,1; leave it out")
		}
		// This training does not scale bytes.
		unscaled := recorded(t, m, d)
		ds := read(t, unscaled, unscaled.Roles.Evaluate, d)
		if d.Memory != nil {
			assert.Equal(t, []uint8{255, 255}, values[uint8](t, ds, "x")[:2])
		} else {
			assert.Equal(t, []float32{255, 255}, values[float32](t, ds, "x")[:2])
		}
		_, err := opened(t, unscaled, scaled)
		assert.EqualError(t, err, "Data.Scale 0,1: the model was trained with bytes scaled to 0,255; leave it out")
	}
}

// A folder may have some of the classes. Predictions do not need the classes, so they take any folder.
func TestClassFolders(t *testing.T) {
	m := lora(t)
	folder := Data{Path: photos(t), Height: 8, Width: 8}
	m = recorded(t, m, folder)
	for _, class := range []string{"0", "1", "2"} {
		require.NoError(t, os.RemoveAll(filepath.Join(folder.Path, class)))
	}
	reads(t, m, m.Roles.Evaluate, folder, "y", []int64{3, 4, 5, 6, 7, 8, 9})
	require.NoError(t, os.Rename(filepath.Join(folder.Path, "3"), filepath.Join(folder.Path, "new")))
	_, err := opened(t, m, folder)
	require.ErrorIs(t, err, data.ErrLabel)
	read(t, m, m.Roles.Predict, folder)
}

// The validation data of a folder with the parts test and valid is the part valid.
func TestValidationPart(t *testing.T) {
	m := lora(t)
	dir := t.TempDir()
	for _, part := range []string{"train", "test", "valid"} {
		require.NoError(t, os.Rename(photos(t), filepath.Join(dir, part)))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "valid", "9")))
	var reported []string
	tr := &training{Config: Config{
		Data: Data{Path: dir, Height: 8, Width: 8}, Validation: dir, Loop: fit.Loop{Batch: 2},
		Report: func(subject string, value any) { reported = append(reported, fmt.Sprintf("%s: %v", subject, value)) },
	}, model: m}
	var err error
	tr.reader, err = newReader(m, m.Roles.Train, tr.Data)
	require.NoError(t, err)
	train, err := tr.reader.open(tr.Data, "train")
	require.NoError(t, err)
	tr.reader.follow(train)
	_, err = tr.validation(train, m.Roles)
	require.NoError(t, err)
	assert.Equal(t, 9, tr.Loop.Validation.Len())
	assert.Equal(t, []string{"validation: 9 samples of " + filepath.Join(dir, "valid")}, reported)
	require.NoError(t, tr.reader.close())
}

// weighing returns a training with class weights of a model whose label has this shape.
func weighing(weights map[string]float64, label ...int64) *training {
	x, y := floats("x", 1), savedmodels.Tensor{Name: "y", DType: dtype.Float32, Shape: label}
	model := modelOf(nil, []savedmodels.Tensor{x}, []savedmodels.Tensor{y, floats("sample_weight")})
	return &training{Config: Config{ClassWeights: weights, Loop: fit.Loop{Batch: 1}}, model: model}
}

// A key of ClassWeights is the name of a class, or else its number.
func TestClassWeightsOfNumberedNames(t *testing.T) {
	for _, c := range []struct {
		classes []string // nil for the labels 0, 1 and 2
		weights map[string]float64
		want    []float32
		says    string // instead of want
	}{
		{nil, map[string]float64{"0": 2, "2": 3}, []float32{2, 1, 3}, ""},
		{nil, map[string]float64{"-1": 5}, nil, `"-1" is neither the name nor the number of a class`},
		{nil, map[string]float64{"dog": 5}, nil, `"dog" is neither the name nor the number of a class`},
		{[]string{"ant", "cat", "dog"}, map[string]float64{"dog": 2, "0": 3}, []float32{3, 1, 2}, ""},
		{[]string{"ant", "cat", "dog"}, map[string]float64{"ant": 2, "0": 3}, nil, `"ant" is class 0, which has another weight`},
		{[]string{"ant", "cat", "dog"}, map[string]float64{"3": 3}, nil, `"3" is neither the name nor the number of a class; classes are numbered from 0`},
		{[]string{"1", "2", "3"}, map[string]float64{"0": 1, "1": 5}, nil, `"1" is class 0, which has another weight`},
		{[]string{"1", "2", "3"}, map[string]float64{"1": 1, "2": 5, "3": 3}, []float32{1, 5, 3}, ""},
		{[]string{"1", "2", "3"}, map[string]float64{"1": 5, "2": 3}, []float32{5, 3, 1}, ""},
		{[]string{"0", "1", "2"}, map[string]float64{"1": 5, "2": 3}, []float32{1, 5, 3}, ""},
	} {
		t.Run(fmt.Sprint(c.classes, c.weights), func(t *testing.T) {
			rows := []string{"0", "1", "2"}
			if c.classes != nil {
				rows = c.classes
			}
			ds, err := data.Open(file(t, "d.csv", "x,y\n1,"+strings.Join(rows, "\n1,")+"\n"),
				data.Options{CSV: data.CSVOptions{Label: "y", Classes: c.classes}})
			require.NoError(t, err)
			for range 10 { // the order of a map
				got, err := weighing(c.weights, -1).weighted(ds, "train")
				if c.says != "" {
					require.ErrorContains(t, err, c.says)
					continue
				}
				require.NoError(t, err)
				assert.Equal(t, c.want, values[float32](t, got, "sample_weight"))
			}
		})
	}
}

// Labels with a dimension of size 1 are numbers, and no one-hot vectors.
func TestClassWeightsOfLabelsInColumns(t *testing.T) {
	ds := made(t, field("x", []float32{1, 2, 3}, 3, 1), field("y", []float32{0, 1, 1}, 3, 1))
	got, err := weighing(map[string]float64{"1": 5}, -1, 1).weighted(ds, "train")
	require.NoError(t, err)
	assert.Equal(t, []float32{1, 5, 5}, values[float32](t, got, "sample_weight"))
}

// Fields that a training left out are also left out in evaluations and predictions.
func TestIgnoredFieldsAreRecorded(t *testing.T) {
	m := builtin(t, "digits")
	row := `{"x": [` + strings.Repeat("0, ", 63) + `1], "name": "a", "sample_weight": 2, "y": 1}` + "\n"
	named, unnamed := Data{Path: file(t, "named.jsonl", row+row)}, Data{Path: file(t, "unnamed.jsonl", strings.Replace(row, `"name": "a", `, "", 1))}
	refuses(t, m, m.Roles.Evaluate, named, "takes the field name")
	training := named
	training.Ignore = []string{"name", "sample_weight"}
	m = recorded(t, m, training)
	for _, d := range []Data{named, unnamed} {
		for _, signature := range []string{m.Roles.Evaluate, m.Roles.Predict} {
			ds := read(t, m, signature, d)
			assert.Len(t, ds.Fields(), 2, "x and y")
		}
	}
	refuses(t, m, m.Roles.Train, named, "takes the field name")
	m = recorded(t, m, Data{Path: file(t, "plain.jsonl", `{"x": [`+strings.Repeat("0, ", 63)+`1], "y": 1}`)})
	assert.Equal(t, []string{}, m.Metadata.Ignored, "the saved record is that of the last training")

	// Values of records that were left out are not read.
	m = m.WithRecord(&savedmodels.DataRecord{Ignored: []string{"null", "lengths", "nested", "date", "struct.size"}})
	require.ErrorIs(t, refuses(t, m, m.Roles.Predict, Data{Path: "../data/testdata/records/odd.parquet"},
		`column "struct.bytes": found "a", expected a number`), data.ErrFormat)
}
