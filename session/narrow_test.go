package session_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// linear returns a model of y = x·w with all values of one type. Its loss is the mean of (y -
// label)². A step follows the gradient. w is 0 at first.
func linear(t testing.TB, d tfbind.DType) *savedmodels.Model {
	t.Helper()
	of := graphdef.Attrs{"T": graphdef.Type(d)}
	reduce := graphdef.Attrs{"T": graphdef.Type(d), "Tidx": graphdef.Type(tfbind.Int32), "keep_dims": graphdef.Bool(false)}
	typed := graphdef.Attrs{"dtype": graphdef.Type(d)}
	g := (&graphdef.Graph{}).Placeholder("x", d).Placeholder("y", d).
		Constant("axes", tfbind.Int32, []byte{0, 0, 0, 0, 1, 0, 0, 0}, 2).
		Constant("zero", d, make([]byte, 3*d.Size()), 3, 1).
		Constant("rate", tfbind.Float32, []byte{0, 0, 0, 0x3d}). // 1/32
		Add("w", "VarHandleOp", graphdef.Attrs{"dtype": graphdef.Type(d), "shape": graphdef.Shape([]int64{3, 1}),
			"shared_name": graphdef.Text("w")}).
		Add("begin", "AssignVariableOp", typed, "w", "zero").
		Add("value", "ReadVariableOp", typed, "w").
		Add("out", "MatMul", of, "x", "value").
		Add("error", "Sub", of, "out", "y").
		Add("square", "Mul", of, "error", "error").
		Add("mean", "Mean", reduce, "square", "axes").
		Add("gradient", "MatMul", graphdef.Attrs{"T": graphdef.Type(d), "transpose_a": graphdef.Bool(true)}, "x", "error").
		Add("typed_rate", "Cast", graphdef.Attrs{"SrcT": graphdef.Type(tfbind.Float32), "DstT": graphdef.Type(d)}, "rate").
		Add("down", "Mul", of, "gradient", "typed_rate").
		Add("step", "AssignSubVariableOp", typed, "w", "down").
		Add("trained", "Identity", of, "mean", "^step").
		Placeholder("prefix", tfbind.String).
		Texts("names", "w").Texts("slices", "").
		Add("save", "SaveV2", graphdef.Attrs{"dtypes": graphdef.Types([]tfbind.DType{d})}, "prefix", "names", "slices",
			"value").
		Add("saved", "Identity", graphdef.Attrs{"T": graphdef.Type(tfbind.String)}, "prefix", "^save").
		Add("restored", "RestoreV2", graphdef.Attrs{"dtypes": graphdef.Types([]tfbind.DType{d})}, "prefix", "names",
			"slices").
		Add("restore", "AssignVariableOp", typed, "w", "restored")
	text, err := g.Bytes()
	require.NoError(t, err)
	dir := t.TempDir()
	saveVariables(t, text, filepath.Join(dir, "variables", "variables"))
	info := func(op string, dims ...int64) *tfproto.TensorInfo { return tensorInfo(op, d, dims...) }
	x, y := info("x", -1, 3), info("y", -1, 1)
	return writeModel(t, dir, text, map[string]*tfproto.SignatureDef{
		"train": {Inputs: map[string]*tfproto.TensorInfo{"x": x, "y": y},
			Outputs: map[string]*tfproto.TensorInfo{"loss": info("trained")}},
		"evaluate": {Inputs: map[string]*tfproto.TensorInfo{"x": x, "y": y},
			Outputs: map[string]*tfproto.TensorInfo{"loss": info("mean")}},
		"predict": {Inputs: map[string]*tfproto.TensorInfo{"x": x},
			Outputs: map[string]*tfproto.TensorInfo{"out": info("out", -1, 1)}},
	}, &tfproto.SaverDef{FilenameTensorName: "prefix:0", SaveTensorName: "saved:0", RestoreOpName: "restore",
		Version: tfproto.SaverDef_V2})
}

// saveVariables runs the operation begin of a graph and then saved, which writes a checkpoint.
func saveVariables(t testing.TB, def []byte, prefix string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(prefix), 0o755))
	s, err := tfbind.NewSession(nil, nil)
	require.NoError(t, err)
	defer s.Close()
	graph := s.Graph()
	require.NoError(t, graph.Import(def, ""))
	_, err = s.Run(context.Background(), nil, nil, tfbind.RunOptions{Targets: []string{"begin"}})
	require.NoError(t, err)
	place, err := graph.Output("prefix:0")
	require.NoError(t, err)
	saved, err := graph.Output("saved:0")
	require.NoError(t, err)
	name, err := tfbind.NewTensor([]string{prefix})
	require.NoError(t, err)
	defer name.Close()
	out, err := s.Run(context.Background(), tfbind.Feeds{place: name}, []tfbind.Output{saved})
	require.NoError(t, err)
	require.NoError(t, out.Close())
}

// A model with 16-bit inputs and outputs trains, evaluates and predicts from float32.
func TestNarrowInputsAndOutputs(t *testing.T) {
	ctx := context.Background()
	for _, d := range []tfbind.DType{tfbind.Float32, tfbind.Float16, tfbind.BFloat16} {
		t.Run(d.String(), func(t *testing.T) {
			s := openModel(t, linear(t, d), session.Options{})
			b := data.Batch{Size: 4, Fields: []data.Field{
				{Name: "x", Array: data.Array{Shape: []int{4, 3}, Values: []float32{1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1}}},
				{Name: "y", Array: data.Array{Shape: []int{4, 1}, Values: []float32{1, 2, 3, 6}}},
			}}
			out := make([]float64, 1)
			require.NoError(t, s.Evaluate(ctx, b, out))
			assert.Equal(t, 12.5, out[0], "the mean of 1, 4, 9, 36")
			l := losses(t, s, []data.Batch{b, b, b, b}, 0)
			assert.Equal(t, 12.5, l[0])
			assert.Less(t, l[3], l[2])
			// After one step, w must be exactly (7, 8, 9) / 32, which both 16-bit types can
			// represent.
			s = openModel(t, s.Model(), session.Options{})
			losses(t, s, []data.Batch{b}, 0)
			predict, err := s.Prepare("predict")
			require.NoError(t, err)
			defer predict.Close()
			require.NoError(t, predict.Feed(data.Batch{Size: 4, Fields: b.Fields[:1]}))
			require.NoError(t, predict.Run(ctx))
			var result data.Array
			require.NoError(t, predict.Read("out", &result))
			assert.Equal(t, []float32{7. / 32, 8. / 32, 9. / 32, 24. / 32}, result.Values)

			// A value that is too large for the type is an error and is not fed as infinity.
			b.Fields[0].Values.([]float32)[0] = 1e38
			if err := s.Evaluate(ctx, b, out); d == tfbind.Float16 {
				assert.ErrorIs(t, err, tfbind.ErrType)
			} else {
				assert.NoError(t, err)
			}
		})
	}
}
