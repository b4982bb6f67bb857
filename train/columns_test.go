package train

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
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
			ds, err := open(t, m, "train", d)
			require.NoError(t, err, "%s %v", path, d)
			assert.Equal(t, []float32{1, 3}, values[float32](t, ds, "features"))
			assert.Equal(t, []string{"cost"}, fieldOf(ds, "y_price").Columns)
			assert.Equal(t, []string{"a"}, values[string](t, ds, "text"))
		}
	}
	for label, says := range map[string]string{
		"y_stars,y_price": `no column "y_price", which input y_price of the model takes: add it, or name the columns`,
		"y_stars,cost":    "Data.Label cost: the model has the labels y_price, y_stars; expected their columns, as in y_price=COLUMN,...",
	} {
		_, err := open(t, m, "train", Data{Path: csv, Label: label})
		require.ErrorContains(t, err, says)
	}
	_, err := open(t, m, "train", Data{Path: file(t, "usd.csv", "f1,text,y_price,f0,y_stars\n1,a,$2.50,3,4\n")})
	require.ErrorContains(t, err, `column "y_price" (3): found "$2.50", expected a number; correct it, encode the column by a rule `+
		`of a schema (CSVOptions.Schema), or leave it out (Options.Ignore); the rule {"type":"float","strip":["$"],"thousands":","} reads it`)
	_, err = open(t, m, "train", Data{Path: csv, Inputs: map[string][]string{"feature": {"f0"}}})
	require.ErrorContains(t, err, "Data.Inputs feature: the model has no such input; its inputs are features, text, y_price, y_stars")

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
		ds, err = open(t, trained, signature, Data{Path: other, Note: func(note string) { notes = append(notes, note) }})
		require.NoError(t, err)
		require.Len(t, notes, 1)
		assert.NotContains(t, notes[0], "cost", "a label of the training")
		assert.Equal(t, []float32{3, 1}, values[float32](t, ds, "features"))
		assert.Contains(t, ds.LeftOut(), "id")
	}
}

// The label of a model has any name: that of an input that only train takes, or that the options select.
func TestLabelIsAnInput(t *testing.T) {
	m := modelOf(nil, []savedmodels.Tensor{floats("a"), floats("b")}, []savedmodels.Tensor{floats("rating")})
	for text, label := range map[string]string{"a,b,rating\n1,2,3\n": "rating", "a,rating,b\n1,3,2\n": "", "a,b,stars\n1,2,3\n": "rating=stars"} {
		ds, err := open(t, m, "train", Data{Path: file(t, "t.csv", text), Label: label})
		require.NoError(t, err, text)
		assert.Equal(t, []int64{3}, values[int64](t, ds, "y"))
	}
	m.Roles.Predict, m.Signatures = "", m.Signatures[:2]
	ds, err := open(t, m, "train", Data{Path: file(t, "t.csv", "a,b,rating\n1,2,3\n"), Label: "rating"})
	require.NoError(t, err, "without a predict signature")
	assert.Equal(t, []int64{3}, values[int64](t, ds, "y"))
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
			ds, err := open(t, model, "train", Data{Path: file(t, "t.csv", text)})
			require.NoError(t, err, text)
			assert.Equal(t, want, values[float32](t, ds, "y"))
		}
	}
	_, err := open(t, m, "train", Data{Path: file(t, "t.csv", numbers+"1,2,3\n")})
	require.ErrorIs(t, err, data.ErrLabel)
	require.ErrorContains(t, err, `t.csv: line 5, column "label" (3): found 3, expected a class from 0 to 2`)
	_, err = open(t, m, "train", Data{Path: file(t, "t.csv", "a,b,label\n1,2,u\n1,2,v\n1,2,u\n1,2,v\n")})
	require.ErrorContains(t, err, "field y has the 2 labels u, v, and the model has 3 classes without names")
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

// Columns for an input are an error where the data has none, and where they feed another input.
func TestColumnsThatAreNone(t *testing.T) {
	m, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
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
	_, err = opened(t, m, Data{Path: dir, Inputs: map[string][]string{"x": {"pixels"}}})
	require.ErrorContains(t, err, "Data.Inputs x=pixels: "+dir+" has no such columns; name its fields like the inputs")

	o := data.CSVOptions{Inputs: []data.FieldSpec{{Name: "age", Type: "float32"}, {Name: "size", Type: "float32",
		Columns: []string{"age"}}}}
	_, err = data.Open(file(t, "t.csv", "age,size\n1,2\n"), data.Options{CSV: o})
	require.ErrorContains(t, err, `column "age" feeds input age and cannot also feed size: name another column`)
}

// The column of a label is no feature of a model without labels, even if the model takes as many values.
func TestTableWithoutLabels(t *testing.T) {
	m := modelOf(nil, []savedmodels.Tensor{floats("x", 3)}, nil)
	for _, name := range []string{"label", "y"} {
		_, err := open(t, m, "train", Data{Path: file(t, "t.csv", "f0,f1,"+name+"\n1,2,7\n")})
		require.ErrorContains(t, err, "no input of signature train takes the field y")
	}
}
