package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/dtype"
	"steadyfit/savedmodels"
)

// modelOf returns a model whose predict takes features, and whose other signatures take labels, too.
func modelOf(m *savedmodels.Metadata, features, labels []savedmodels.Tensor) *savedmodels.Model {
	for _, in := range [][]savedmodels.Tensor{features, labels} {
		for i := range in {
			in[i].Op = in[i].Name
		}
	}
	loss := []savedmodels.Tensor{{Name: "loss", Op: "loss", DType: dtype.Float32, Shape: []int64{}}}
	all := append(append([]savedmodels.Tensor{}, features...), labels...)
	return &savedmodels.Model{Dir: "model", Metadata: m,
		Roles: savedmodels.Roles{Train: "train", Evaluate: "evaluate", Predict: "predict"},
		Signatures: []savedmodels.Signature{{Name: "train", Inputs: all, Outputs: loss},
			{Name: "evaluate", Inputs: all, Outputs: loss}, {Name: "predict", Inputs: features}}}
}

func floats(name string, shape ...int64) savedmodels.Tensor {
	return savedmodels.Tensor{Name: name, DType: dtype.Float32, Shape: append([]int64{-1}, shape...)}
}

// open returns the data for a signature, or the error.
func open(t *testing.T, m *savedmodels.Model, signature string, d Data) (*data.InMemory, error) {
	t.Helper()
	ds, err := OpenData(m, signature, d, "train", data.Pass{Batch: 1})
	if err == nil {
		t.Cleanup(func() { assert.NoError(t, ds.Close()) })
	}
	return ds, err
}

// refuses opens data for a signature, and returns the error, which has the text.
func refuses(t *testing.T, m *savedmodels.Model, signature string, d Data, text string) error {
	t.Helper()
	_, err := open(t, m, signature, d)
	require.ErrorContains(t, err, text)
	return err
}

// read opens data for a signature.
func read(t *testing.T, m *savedmodels.Model, signature string, d Data) *data.InMemory {
	t.Helper()
	ds, err := open(t, m, signature, d)
	require.NoError(t, err)
	return ds
}

// reads opens data for a signature, and compares the values of a field.
func reads[T any](t *testing.T, m *savedmodels.Model, signature string, d Data, field string, want []T) {
	t.Helper()
	ds := read(t, m, signature, d)
	assert.Equal(t, want, values[T](t, ds, field))
}

// Several labels are columns by name, and the trained model finds the columns of inputs again.
func TestSeveralLabels(t *testing.T) {
	text := savedmodels.Tensor{Name: "text", DType: dtype.String, Shape: []int64{-1}}
	m := modelOf(nil, []savedmodels.Tensor{floats("features", 2), text}, []savedmodels.Tensor{floats("y_price", 1), floats("y_stars")})
	csv := file(t, "t.csv", "f1,text,cost,f0,y_stars\n1,a,2,3,4\n")
	lines := file(t, "t.jsonl", `{"f1": 1, "text": "a", "cost": 2, "f0": 3, "y_stars": 4}`)
	for _, path := range []string{csv, lines} {
		for _, d := range []Data{{Label: "y_stars,price=cost"}, {Label: "y_price=cost"}, {Label: "price=cost,stars=y_stars"},
			{Inputs: map[string][]string{"y_price": {"cost"}}}} {
			d.Path = path
			ds := read(t, m, "train", d)
			assert.Equal(t, []float32{1, 3}, values[float32](t, ds, "features"))
			assert.Equal(t, []string{"cost"}, fieldOf(ds, "y_price").Columns)
			assert.Equal(t, []string{"a"}, values[string](t, ds, "text"))
		}
	}
	for label, says := range map[string]string{
		"y_stars,y_price": `no column "y_price", which input y_price of the model takes: add it, or name the columns`,
		"y_stars,cost":    "Data.Label cost: the model has the labels y_price, y_stars; expected their columns, as in y_price=COLUMN,...",
	} {
		refuses(t, m, "train", Data{Path: csv, Label: label}, says)
	}
	refuses(t, m, "train", Data{Path: file(t, "usd.csv", "f1,text,y_price,f0,y_stars\n1,a,$2.50,3,4\n")},
		`column "y_price" (3): found "$2.50", expected a number; correct it, encode the column by a rule `+
			`of a schema (CSVOptions.Schema), or leave it out (Options.Ignore)`)
	refuses(t, m, "train", Data{Path: csv, Inputs: map[string][]string{"feature": {"f0"}}},
		"Data.Inputs feature: the model has no such input; its inputs are features, text, y_price, y_stars")

	r, err := newReader(m, "train", Data{Path: csv, Label: "price=cost", Inputs: map[string][]string{"features": {"f0", "f1"}}})
	require.NoError(t, err)
	ds, err := r.open(r.Data, "train")
	require.NoError(t, err)
	r.follow(ds)
	assert.Equal(t, map[string][]string{"features": {"f0", "f1"}, "y_price": {"cost"}}, r.record.Columns)
	trained := m.WithRecord(&r.record)
	other := file(t, "other.csv", "id,cost,y_stars,text,f1,f0\n9,2,4,a,1,3\n")
	for _, signature := range []string{"evaluate", "predict"} {
		var notes []string
		ds = read(t, trained, signature, Data{Path: other, Note: func(note string) { notes = append(notes, note) }})
		require.Len(t, notes, 1)
		assert.NotContains(t, notes[0], "cost", "a label of the training")
		assert.Equal(t, []float32{3, 1}, values[float32](t, ds, "features"))
		assert.Contains(t, ds.LeftOut(), "id")
	}
}

// The column of the only input of text is recorded, so that a prediction finds it beside other columns, also if it
// has the name of the input.
func TestColumnOfText(t *testing.T) {
	for _, column := range []string{"review", "x"} {
		m := modelOf(nil, []savedmodels.Tensor{{Name: "x", DType: dtype.String, Shape: []int64{-1}}}, []savedmodels.Tensor{floats("y")})
		trained := recorded(t, m, Data{Path: file(t, "t.csv", column+",label\ngood,1\nbad,0\n")})
		assert.Equal(t, map[string][]string{"x": {column}, "y": {"label"}}, trained.Metadata.Columns)
		lines := fmt.Sprintf(`{"id": "n1", %q: "fine", "label": 1}`, column)
		for _, keep := range [][]string{nil, {"id"}, {column}} {
			reads(t, trained, "predict", Data{Path: file(t, "new.jsonl", lines), Keep: keep}, "x", []string{"fine"})
		}
		for _, signature := range []string{"train", "evaluate", "predict"} {
			refuses(t, trained, signature, Data{Path: file(t, "other.csv", "id,label\nn1,1\n")},
				`no column "`+column+`", which input x of the model takes`)
		}
	}
}

// The label of a model has any name: that of an input that only train takes, or that the options select.
func TestLabelIsAnInput(t *testing.T) {
	m := modelOf(nil, []savedmodels.Tensor{floats("a"), floats("b")}, []savedmodels.Tensor{floats("rating")})
	for text, label := range map[string]string{"a,b,rating\n1,2,3\n": "rating", "a,rating,b\n1,3,2\n": "", "a,b,stars\n1,2,3\n": "rating=stars"} {
		reads(t, m, "train", Data{Path: file(t, "t.csv", text), Label: label}, "y", []int64{3})
	}
	m.Roles.Predict, m.Signatures = "", m.Signatures[:2]
	reads(t, m, "train", Data{Path: file(t, "t.csv", "a,b,rating\n1,2,3\n"), Label: "rating"}, "y", []int64{3})
}

// A label input for one-hot vectors takes class numbers and names.
func TestOneHotLabels(t *testing.T) {
	meta := func(loss string) *savedmodels.Metadata {
		return &savedmodels.Metadata{Loss: map[string]string{"y": loss}}
	}
	m := modelOf(meta("categorical_crossentropy"), []savedmodels.Tensor{floats("x", 2)}, []savedmodels.Tensor{floats("y", 3)})
	const numbers = "a,b,label\n1,2,0\n1,2,2\n1,2,1\n"
	want := []float32{1, 0, 0, 0, 0, 1, 0, 1, 0}
	for _, text := range []string{numbers, strings.NewReplacer(",0\n", ",ant\n", ",1\n", ",mule\n", ",2\n", ",zebra\n").Replace(numbers)} {
		for _, model := range []*savedmodels.Model{m, modelOf(nil, m.Signatures[2].Inputs, []savedmodels.Tensor{floats("y", 3)})} {
			ds := read(t, model, "train", Data{Path: file(t, "t.csv", text)})
			assert.Equal(t, want, values[float32](t, ds, "y"))
		}
	}
	require.ErrorIs(t, refuses(t, m, "train", Data{Path: file(t, "t.csv", numbers+"1,2,3\n")},
		`t.csv: line 5, column "label" (3): found 3, expected a class from 0 to 2`), data.ErrLabel)
	refuses(t, m, "train", Data{Path: file(t, "t.csv", "a,b,label\n1,2,u\n1,2,v\n1,2,u\n1,2,v\n")},
		"field y has the 2 labels u, v, and the model has 3 classes without names")
	texts := made(t, field("x", make([]float32, 4), 2, 2), field("y", []string{"ant", "mule"}, 2))
	require.ErrorIs(t, refuses(t, m, "train", Data{Memory: texts},
		"made: field y has texts, and label y takes class numbers: convert names to numbers, as with "+
			"numpy.unique(names, return_inverse=True)"), data.ErrLabel)
	for _, c := range []struct {
		loss  string
		width int64
		says  string
	}{
		{"binary_crossentropy", 1, ""},
		{"mean_squared_error", 3, "expected samples of shape [3], got one value per sample"},
	} {
		m := modelOf(meta(c.loss), m.Signatures[2].Inputs, []savedmodels.Tensor{floats("y", c.width)})
		ds, err := open(t, m, "train", Data{Path: file(t, "t.csv", "a,b,label\n1,2,0\n1,2,1\n")})
		if c.says != "" {
			require.ErrorContains(t, err, c.says)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, []int64{0, 1}, values[int64](t, ds, "y"))
	}
}

// arrays returns a folder of arrays for the digits model.
func arrays(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, array := range map[string]data.Array{"x": {Shape: []int{2, 64}, Values: make([]float32, 128)},
		"y": {Shape: []int{2}, Values: []int64{0, 1}}} {
		f, err := os.Create(filepath.Join(dir, name+".npy"))
		require.NoError(t, err)
		w, err := data.NewWriter(f, ".npy", 2)
		require.NoError(t, err)
		require.NoError(t, w.Write(data.Field{Name: name, Array: array}))
		require.NoError(t, errors.Join(w.Flush(), f.Close()))
	}
	return dir
}

// A training on arrays says nothing about the columns of a table, which may have any order.
func TestTableAfterArrays(t *testing.T) {
	m := builtin(t, "digits")
	dir, named := arrays(t), table(t, 64, "0", "1")
	plain := file(t, "plain.csv", strings.Repeat("0,", 64)+"1\n")
	run := func(d Data, validation string) ([]string, error) {
		var notes []string
		_, err := Run(t.Context(), Config{Model: m.Dir, Data: d, Validation: validation, Loop: fit.Loop{Batch: 1, Epochs: 1},
			Report: func(subject string, value any) {
				if subject == "warning" {
					notes = append(notes, fmt.Sprint(value))
				}
			}})
		return notes, err
	}
	_, err := run(Data{Path: dir}, named)
	require.ErrorAs(t, err, new(*InputError))
	require.ErrorContains(t, err, named+": input x takes the columns c0, c1, c2, c3, c4, c5, c6, c7 and 56 more, and the training "+
		"data has no names for its values: train on a table with these names, or use data without names")
	_, err = run(Data{Path: dir, Header: "no", Label: "-1"}, plain)
	require.NoError(t, err)
	notes, err := run(Data{Path: named}, dir)
	require.NoError(t, err)
	require.Len(t, notes, 1)
	assert.Contains(t, notes[0], "has no names of columns, so the values are taken to be, in this order: c0, c1, c2")
}

// The columns of a table are not those of a model that was trained without names, unless the options say so.
func TestTableForAModelTrainedWithoutNames(t *testing.T) {
	m := modelOf(nil, []savedmodels.Tensor{floats("x", 2)}, []savedmodels.Tensor{floats("y")})
	plain := Data{Path: file(t, "plain.csv", "1,2,3\n"), Header: "no", Label: "-1"}
	trained := recorded(t, m, plain)
	assert.True(t, trained.Metadata.Unnamed)
	named := Data{Path: file(t, "named.csv", "b,a,y\n2,1,3\n")}
	inOrder := Data{Path: named.Path, Inputs: map[string][]string{"x": {"a", "b"}}}
	for _, signature := range []string{"train", "evaluate", "predict"} {
		var notes []string
		noted := named
		noted.Note = func(message string) { notes = append(notes, message) }
		reads(t, trained, signature, noted, "x", []float32{2, 1})
		require.Len(t, notes, 1)
		assert.Contains(t, notes[0], "named.csv: input x takes the columns b, a in this order, and the training data had no names")
		for _, d := range []Data{inOrder, plain} {
			reads(t, trained, signature, d, "x", []float32{1, 2})
		}
		read(t, m, signature, named)
	}
	again := recorded(t, trained, inOrder)
	assert.False(t, again.Metadata.Unnamed)
	assert.Equal(t, []string{"a", "b"}, again.Metadata.Columns["x"])
	assert.False(t, recorded(t, again, plain).Metadata.Unnamed, "the names of the training before")
}

// A wrong name among the fields to ignore is reported with the names in the file.
func TestIgnoredFieldThatIsNone(t *testing.T) {
	m := modelOf(nil, []savedmodels.Tensor{floats("x", 2)}, []savedmodels.Tensor{floats("y")})
	for name, text := range map[string]string{"t.csv": "id,a,b,label\n1,2,3,4\n", "t.jsonl": `{"id":1,"a":2,"b":3,"label":4}`} {
		refuses(t, m, "train", Data{Path: file(t, name, text), Ignore: []string{"id", "nosuch"}},
			name+`: no field or column "nosuch"; the names are ["id" "a" "b" "label"]`)
	}
}

// Names of classes in one of several labels need a rule.
func TestNamesInOneOfSeveralLabels(t *testing.T) {
	color := savedmodels.Tensor{Name: "y_color", DType: dtype.Int64, Shape: []int64{-1}}
	for _, label := range []savedmodels.Tensor{color, floats("y_color", 2)} {
		m := modelOf(nil, []savedmodels.Tensor{floats("x", 2)}, []savedmodels.Tensor{label, floats("y_size")})
		d := Data{Path: file(t, "t.csv", "a,b,y_color,y_size\n1,2,red,3\n1,2,blue,4\n")}
		refuses(t, m, "train", d, `line 2, column "y_color" (3): found "red", expected a number; `)
		d.Schema = &data.Schema{Columns: map[string]data.Rule{"y_color": {Type: "category", Values: map[string]int64{"red": 0, "blue": 1}}}}
		ds := read(t, m, "train", d)
		if label.DType == dtype.Int64 {
			assert.Equal(t, []int64{0, 1}, values[int64](t, ds, "y_color"))
		} else {
			assert.Equal(t, []float32{1, 0, 0, 1}, values[float32](t, ds, "y_color"))
		}
	}
}

// Columns for an input are an error where the data has none.
func TestColumnsThatAreNone(t *testing.T) {
	m := builtin(t, "digits")
	dir := arrays(t)
	refuses(t, m, m.Roles.Evaluate, Data{Path: dir, Inputs: map[string][]string{"x": {"pixels"}}},
		"Data.Inputs x=pixels: "+dir+" has no such columns; name its fields like the inputs")
}

// The column of a label is no feature of a model without labels, even if the model takes as many values.
func TestTableWithoutLabels(t *testing.T) {
	m := modelOf(nil, []savedmodels.Tensor{floats("x", 3)}, nil)
	for _, name := range []string{"label", "y"} {
		refuses(t, m, "train", Data{Path: file(t, "t.csv", "f0,f1,"+name+"\n1,2,7\n")},
			"no input of signature train takes the field y")
	}
}

// An input may be called like a reserved one. A column with its name feeds it.
func TestInputsOfReservedNames(t *testing.T) {
	weight := savedmodels.Tensor{Name: "sample_weight", Key: "sample_weight_2", DType: dtype.String, Shape: []int64{-1}}
	seed := floats("seed", 1)
	seed.Key = "seed_2"
	m := modelOf(nil, []savedmodels.Tensor{weight, seed}, []savedmodels.Tensor{floats("y", 1)})
	for name, text := range map[string]string{
		"t.csv": "seed,sample_weight,y\n2.5,heavy,3\n", "t.jsonl": `{"seed": 2.5, "sample_weight": "heavy", "y": 3}` + "\n"} {
		d := Data{Path: file(t, name, text)}
		ds := read(t, m, "train", d)
		assert.Equal(t, []string{"heavy"}, values[string](t, ds, "sample_weight"), name)
		assert.Equal(t, []float32{2.5}, values[float32](t, ds, "seed"), name)
		d.Path = file(t, name, strings.ReplaceAll(text, "seed", "other"))
		refuses(t, m, "train", d, "seed")
	}
}

// Bytes of the only input are scaled, whatever its name.
func TestBytesOfANamedInput(t *testing.T) {
	in := floats("pixels", 2)
	notes := &savedmodels.Metadata{Inputs: map[string]savedmodels.InputMetadata{"pixels": {Range: &[2]float64{0, 1}}}}
	m := modelOf(notes, []savedmodels.Tensor{in}, nil)
	for _, name := range []string{"pixels", "x"} {
		bytes := made(t, field(name, []uint8{0, 255}, 1, 2))
		refuses(t, m, "train", Data{Memory: bytes}, "set it to 0,1 for bytes from 0 to 255")
		ds := read(t, m, "train", Data{Memory: bytes, Scale: &[2]float64{0, 1}})
		assert.Equal(t, []float32{0, 1}, values[float32](t, ds, name), name)
	}
}
