package session_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

const dropout = "dropout-200-512-256-1"

// noted opens a copy of a built-in model with other exporter's notes; nil removes the notes.
func noted(t testing.TB, name string, notes map[string]any) *savedmodels.Model {
	t.Helper()
	model := builtin(t, name)
	dir := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.CopyFS(dir, os.DirFS(model.Dir)))
	return writeNotes(t, dir, notes)
}

// altered opens a copy of a built-in model with changed signatures.
func altered(t testing.TB, name string, change func(map[string]*tfproto.SignatureDef)) *savedmodels.Model {
	t.Helper()
	dir := noted(t, name, nil).Dir
	file := filepath.Join(dir, "saved_model.pb")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	saved := &tfproto.SavedModel{}
	require.NoError(t, proto.Unmarshal(text, saved))
	change(saved.MetaGraphs[0].SignatureDef)
	text, err = proto.Marshal(saved)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o644))
	model, err := savedmodels.Open(dir)
	require.NoError(t, err)
	return model
}

// untold changes signatures so that they lack the output grads_finite.
func untold(signatures ...string) func(map[string]*tfproto.SignatureDef) {
	return func(all map[string]*tfproto.SignatureDef) {
		for _, name := range signatures {
			delete(all[name].Outputs, "grads_finite")
		}
	}
}

func writeNotes(t testing.TB, dir string, notes map[string]any) *savedmodels.Model {
	t.Helper()
	file := filepath.Join(dir, "assets.extra", "steadyfit.json")
	require.NoError(t, os.RemoveAll(file))
	if notes != nil {
		text, err := json.Marshal(notes)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, text, 0o644))
	}
	model, err := savedmodels.Open(dir)
	require.NoError(t, err)
	return model
}

// tensorInfo describes the first output of an operation.
func tensorInfo(op string, d tfbind.DType, dims ...int64) *tfproto.TensorInfo {
	shape := &tfproto.TensorShapeProto{}
	for _, n := range dims {
		shape.Dim = append(shape.Dim, &tfproto.TensorShapeProto_Dim{Size: n})
	}
	return &tfproto.TensorInfo{Encoding: &tfproto.TensorInfo_Name{Name: op + ":0"}, Dtype: tfproto.DataType(d),
		TensorShape: shape}
}

// writeModel writes a SavedModel with a serialized graph and signatures, and opens it.
func writeModel(t testing.TB, dir string, def []byte, signatures map[string]*tfproto.SignatureDef,
	saver *tfproto.SaverDef) *savedmodels.Model {
	t.Helper()
	graph := &tfproto.GraphDef{}
	require.NoError(t, proto.Unmarshal(def, graph))
	text, err := proto.Marshal(&tfproto.SavedModel{MetaGraphs: []*tfproto.MetaGraphDef{{
		MetaInfoDef: &tfproto.MetaGraphDef_MetaInfoDef{Tags: []string{"serve"}}, GraphDef: graph, SignatureDef: signatures,
		SaverDef: saver,
	}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "saved_model.pb"), text, 0o644))
	model, err := savedmodels.Open(dir)
	require.NoError(t, err)
	return model
}

// reports returns a graph whose operations report their inputs: loss is a reduction of x with weights, size counts the
// samples, low is the lower half of the seed's first number, and number is the seed's second number. Operations with
// the suffix _n do so for several steps, of which x, weights and seed have one more dimension, and report means.
func reports(reduction string) *graphdef.Graph {
	float, double, index := graphdef.Type(tfbind.Float32), graphdef.Type(tfbind.Float64), graphdef.Type(tfbind.Int64)
	one := graphdef.Attrs{"T": float}
	cast := func(from, to *graphdef.Attr) graphdef.Attrs {
		return graphdef.Attrs{"SrcT": from, "DstT": to, "Truncate": graphdef.Bool(false)}
	}
	reduce := func(of *graphdef.Attr) graphdef.Attrs {
		return graphdef.Attrs{"T": of, "Tidx": graphdef.Type(tfbind.Int32), "keep_dims": graphdef.Bool(false)}
	}
	g := (&graphdef.Graph{}).Placeholder("rate", tfbind.Float32).Add("applied", "Identity", one, "rate").
		Number("0", 0).Number("1", 1).Number("mask", math.MaxUint32)
	for rank, id := range []string{"", "_n"} {
		g.Placeholder("x"+id, tfbind.Float32).Placeholder("weights"+id, tfbind.Float32).Placeholder("seed"+id, tfbind.Int64).
			Constant("axes"+id, tfbind.Int32, []byte{0, 0, 0, 0, 1, 0, 0, 0}[:4*rank+4], int64(rank+1)).
			Constant("steps"+id, tfbind.Int32, make([]byte, 4*rank), int64(rank)).
			Add("weighted"+id, "Mul", one, "x"+id, "weights"+id).
			Add("sum"+id, "Sum", reduce(float), "weighted"+id, "axes"+id).
			Add("sum_of_weights"+id, "Sum", reduce(float), "weights"+id, "axes"+id).
			Add("samples"+id, "Size", graphdef.Attrs{"T": float, "out_type": index}, "x"+id).
			Add("size"+id, "Cast", cast(index, float), "samples"+id).
			Add("half"+id, "BitwiseAnd", graphdef.Attrs{"T": index}, "seed"+id, "mask").
			Add("seeds"+id, "Cast", cast(index, double), "half"+id)
		gather := graphdef.Attrs{"Tparams": double, "Tindices": index, "Taxis": index}
		for column, name := range []string{"low", "number"} {
			g.Add("all_"+name+id, "GatherV2", gather, "seeds"+id, strconv.Itoa(column), strconv.Itoa(rank)).
				Add(name+id, "Mean", reduce(double), "all_"+name+id, "steps"+id)
		}
		switch reduction {
		case contract.ReductionSum:
			g.Add("loss"+id, "Identity", one, "sum"+id)
		case contract.ReductionWeighted, contract.ReductionUnknown, contract.ReductionTrainedSum:
			g.Add("loss"+id, "RealDiv", one, "sum"+id, "sum_of_weights"+id)
		default:
			g.Add("loss"+id, "RealDiv", one, "sum"+id, "size"+id)
		}
	}
	return g
}

// reporting is a signature of the operations of reports with a suffix. lead are the additional dimensions of inputs.
func reporting(id string, seeded bool, lead ...int64) *tfproto.SignatureDef {
	step := &tfproto.SignatureDef{
		Inputs: map[string]*tfproto.TensorInfo{
			"x":             tensorInfo("x"+id, tfbind.Float32, append(lead, -1)...),
			"sample_weight": tensorInfo("weights"+id, tfbind.Float32, append(lead, -1)...),
			"learning_rate": tensorInfo("rate", tfbind.Float32),
		},
		Outputs: map[string]*tfproto.TensorInfo{"loss": tensorInfo("loss"+id, tfbind.Float32)},
	}
	if seeded {
		step.Inputs["seed"] = tensorInfo("seed"+id, tfbind.Int64, append(lead, 2)...)
		step.Outputs["low"] = tensorInfo("low"+id, tfbind.Float64)
		step.Outputs["number"] = tensorInfo("number"+id, tfbind.Float64)
	}
	return step
}

// reporter returns a model that learns nothing and reports its inputs (reports). All signatures take the learning
// rate, including apply, which reports it as the loss if the reduction is unknown.
func reporter(t testing.TB, reduction string, seeded bool, notes map[string]any) *savedmodels.Model {
	t.Helper()
	text, err := reports(reduction).Bytes()
	require.NoError(t, err)
	step, rate := reporting("", seeded), tensorInfo("applied", tfbind.Float32)
	step.Outputs["size"] = tensorInfo("size", tfbind.Float32)
	dir := t.TempDir()
	apply := &tfproto.SignatureDef{
		Inputs:  map[string]*tfproto.TensorInfo{"learning_rate": tensorInfo("rate", tfbind.Float32)},
		Outputs: map[string]*tfproto.TensorInfo{"rate": rate},
	}
	if reduction == contract.ReductionUnknown {
		apply.Outputs["loss"] = rate
	}
	writeModel(t, dir, text, map[string]*tfproto.SignatureDef{"train": step, "gradients": step, "evaluate": step,
		"apply": apply}, nil)
	return writeNotes(t, dir, notes)
}

// reported returns a batch for a model of reports. weights may be nil.
func reported(x, weights []float32) data.Batch {
	b := data.Batch{Size: len(x), Fields: []data.Field{{Name: "x", Array: data.Array{Shape: []int{len(x)}, Values: x}}}}
	if weights != nil {
		b.Fields = append(b.Fields, data.Field{Name: "sample_weight", Array: data.Array{Shape: []int{len(x)}, Values: weights}})
	}
	return b
}

func TestCheckSplit(t *testing.T) {
	unscaled := func(all map[string]*tfproto.SignatureDef) { delete(all["gradients"].Inputs, "loss_scale") }
	note := func(exact bool) map[string]any { return map[string]any{"micro_batches_exact": exact} }
	for name, c := range map[string]struct {
		model *savedmodels.Model
		opts  session.Options
		want  error
		text  string
	}{
		"noted exact": {noted(t, "digits", note(true)), session.Options{}, nil, ""},
		"noted inexact": {noted(t, "digits", note(false)), session.Options{}, session.ErrInexactSplit,
			"a new export has the reason; set Options.AllowInexactSplit"},
		"noted, allowed": {noted(t, "digits", note(false)), session.Options{AllowInexactSplit: true}, nil, ""},
		"no notes":       {noted(t, "digits", nil), session.Options{}, nil, ""},
		"dropout, no notes": {noted(t, dropout, nil), session.Options{}, session.ErrInexactSplit,
			"signature gradients changes 2 variables that signature apply does not"},
		"notes without it": {noted(t, "digits", map[string]any{"format": 1}), session.Options{}, nil, ""},
		"notes of later times": {noted(t, "digits", map[string]any{"format": 99}), session.Options{}, session.ErrInexactSplit,
			"cannot be read"},
		"noted reason": {noted(t, dropout, map[string]any{"micro_batches_exact": false,
			"micro_batches_inexact": "Dropout draws"}), session.Options{}, session.ErrInexactSplit,
			"from that of the whole batch: Dropout draws; set Options.AllowInexactSplit"},
		"seed":              {reporter(t, "", true, nil), session.Options{}, session.ErrInexactSplit, "input seed"},
		"seed, noted exact": {reporter(t, "", true, note(true)), session.Options{}, nil, ""},
		"read only": {noted(t, "digits", nil), session.Options{ReadOnly: true}, savedmodels.ErrNoSignature,
			"read-only"},
		"no gradients": {fixture(t, "good"), session.Options{}, savedmodels.ErrNoSignature,
			"steadyfit-export does by default"},
		"fewer results": {fixture(t, "twoinputs"), session.Options{AllowInexactSplit: true}, savedmodels.ErrNoSignature,
			"does not report mae"},
		"scaled": {altered(t, "digits-scaled", untold("apply")), session.Options{AllowInexactSplit: true}, nil, ""},
		"scale not taken": {altered(t, "digits-scaled", unscaled), session.Options{}, savedmodels.ErrNoSignature,
			"gradients does not take loss_scale, which train does"},
		"skipped, not told": {altered(t, "digits-scaled", untold("gradients", "apply")), session.Options{},
			savedmodels.ErrNoSignature, "signature gradients does not report grads_finite, which train does"},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := session.Compile(c.model, c.opts)
			if err == nil {
				err = plan.CheckSplit()
			}
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
		})
	}
	_, err := session.Compile(fixture(t, "predictonly"), session.Options{})
	require.ErrorAs(t, err, new(*savedmodels.NotTrainableError))
}

// A new session has the number of micro-batches in its options. Compile rejects options that
// contradict each other.
func TestMicroBatchesOption(t *testing.T) {
	digits := noted(t, "digits", nil)
	s := openModel(t, digits, session.Options{MicroBatches: 4})
	assert.Equal(t, 4, s.MicroBatches())
	for says, o := range map[string]session.Options{
		"Options.MicroBatches -1: expected 0 or more":                        {MicroBatches: -1},
		"Options.MicroBatches 2: conflicts with Options.StepsPerExecution 5": {MicroBatches: 2, StepsPerExecution: 5},
		"Options.MicroBatches 2: conflicts with Options.Compiled":            {MicroBatches: 2, Compiled: true},
	} {
		_, err := session.Compile(digits, o)
		var refused *option.Error
		require.ErrorAs(t, err, &refused)
		assert.ErrorContains(t, err, says)
	}
}

// The number of micro-batches or ranks is part of the identity of a model whose update depends on it.
func TestIdentityHasTheParts(t *testing.T) {
	for _, c := range []struct {
		model string
		parts int
		want  string
	}{{dropout, 4, "4"}, {dropout, 0, "1"}, {"digits", 4, ""}} {
		model := builtin(t, c.model)
		s := openModel(t, model, session.Options{MicroBatches: c.parts, AllowInexactSplit: true})
		assert.Equal(t, c.want, s.Identity()["parts"], c.model)
	}
}

// Batches of a model with dropout are split only with AllowInexactSplit.
func TestDropoutInParts(t *testing.T) {
	model := builtin(t, dropout)
	s := openModel(t, model, session.Options{})
	assert.ErrorIs(t, s.SetMicroBatches(2), session.ErrInexactSplit)
	assert.Equal(t, 1, s.MicroBatches())
	require.NoError(t, s.SetMicroBatches(1))
	s = openModel(t, model, session.Options{AllowInexactSplit: true})
	require.NoError(t, s.SetMicroBatches(2))
	losses(t, s, []data.Batch{ones(t, model, "train", 8)}, 0)
}

// Micro-batches draw different random numbers, which are the same in each run.
func TestPartsHaveTheirOwnSeeds(t *testing.T) {
	ctx := context.Background()
	s := openModel(t, reporter(t, "", true, nil), session.Options{Seed: 1234567, AllowInexactSplit: true})
	require.NoError(t, s.SetLearningRate(0.5))
	b := reported(make([]float32, 6), nil)
	out := make([]float64, 4)
	require.Equal(t, []string{"loss", "low", "number", "size"}, s.TrainMetrics())
	train := func(parts int) (low float64) {
		require.NoError(t, s.SetMicroBatches(parts))
		require.NoError(t, s.Train(ctx, 7, b, out))
		assert.InDelta(t, 6/parts, out[3], 1e-9)
		return out[1]
	}
	half := func(n uint64) float64 { return float64(n & math.MaxUint32) }
	assert.InDelta(t, 1234567, train(1), 0)
	// The first outputs of SplitMix64 with the seed 1234567, from its reference implementation
	// in C.
	assert.InDelta(t, (1234567+half(6457827717110365317))/2, train(2), 1)
	assert.InDelta(t, (1234567+half(6457827717110365317)+half(3203168211198807973))/3, train(3), 1)
}

// Each call of Feed for a train step sets the seed that Session.Train uses at the same step.
func TestFeedsHaveTheirOwnSeeds(t *testing.T) {
	ctx := context.Background()
	s := openModel(t, reporter(t, "", true, nil), session.Options{Seed: 42})
	require.NoError(t, s.SetLearningRate(0.5))
	b := reported(make([]float32, 2), nil)
	lows := func(signature, output string) (all []float64) {
		step, err := s.Prepare(signature)
		require.NoError(t, err)
		defer step.Close()
		for range 3 {
			require.Error(t, step.Feed(data.Batch{Size: 2, Fields: []data.Field{{Name: "x",
				Array: data.Array{Shape: []int{2}, Values: []string{"a", "b"}}}}}))
			require.NoError(t, step.Feed(b))
			require.NoError(t, step.Run(ctx))
			low, err := step.Float(output)
			require.NoError(t, err)
			all = append(all, low)
		}
		return all
	}
	assert.Equal(t, []float64{42, 42, 42}, lows(s.Roles().Train, "low"))
	assert.Equal(t, []float64{0, 1, 2}, lows(s.Roles().Train, "number"))
	assert.Equal(t, []float64{0, 0, 0}, lows(s.Roles().Evaluate, "low"))
	out := make([]float64, 4)
	require.Equal(t, []string{"loss", "low", "number", "size"}, s.TrainMetrics())
	require.NoError(t, s.Train(ctx, 2, b, out))
	assert.Equal(t, []float64{42, 2}, out[1:3])
}

// Train and Evaluate report the same results with micro-batches as without, for every reduction
// of the loss.
func TestPartsReportTheWhole(t *testing.T) {
	ctx := context.Background()
	b := reported([]float32{1, 2, 3, 4, 5, 6, 7}, []float32{7, 1, 0, 2, 0.5, 3, 9})
	for _, reduction := range []string{"", "sum_over_batch_size", contract.ReductionWeighted, contract.ReductionSum} {
		notes := map[string]any{"loss_reduction": reduction}
		s := openModel(t, reporter(t, reduction, false, notes), session.Options{})
		require.NoError(t, s.SetLearningRate(0.5))
		out := make([]float64, 2)
		require.NoError(t, s.Train(ctx, 0, b, out))
		want := out[0]
		require.NoError(t, s.Evaluate(ctx, b, out))
		assert.InDelta(t, want, out[0], 0)
		assert.InDelta(t, 7, out[1], 0, "all at once")
		for _, parts := range []int{2, 3, 7} {
			require.NoError(t, s.SetMicroBatches(parts))
			require.NoError(t, s.Train(ctx, 0, b, out))
			assert.InDelta(t, want, out[0], 1e-4, "%q, %d parts", reduction, parts)
			require.NoError(t, s.Evaluate(ctx, b, out))
			assert.InDelta(t, want, out[0], 1e-4, "%q, evaluated in %d parts", reduction, parts)
			assert.LessOrEqual(t, out[1], float64((7+parts-1)/parts), "a part is no larger than in training")
			assert.Error(t, s.Train(ctx, 0, b, out[:1]))
			assert.Error(t, s.Evaluate(ctx, b, out[:1]))
			require.NoError(t, s.Evaluate(ctx, b.Slice(0, 1), out), "a batch may have fewer samples than there are parts")
			assert.InDelta(t, 1, out[1], 0)
		}
	}
}

// A batch is evaluated as a whole if its loss cannot be computed from the losses of its parts, as
// with masked samples, or with a sum that includes penalties. The loss of a split step is the one
// that apply reports.
func TestLossesThatDoNotCombine(t *testing.T) {
	ctx := context.Background()
	b := reported([]float32{1, 0, 0, 0}, []float32{1, 3, 3, 3})
	for _, reduction := range []string{contract.ReductionUnknown, contract.ReductionTrainedSum} {
		s := openModel(t, reporter(t, reduction, false, map[string]any{"loss_reduction": reduction}), session.Options{})
		require.NoError(t, s.SetLearningRate(0.25))
		require.NoError(t, s.SetMicroBatches(4))
		out := make([]float64, 2)
		require.NoError(t, s.Evaluate(ctx, b, out))
		assert.InDelta(t, 0.1, out[0], 1e-6, reduction)
		assert.InDelta(t, 4, out[1], 0, "all at once")
		require.NoError(t, s.Train(ctx, 0, b, out))
		want := 0.25
		if reduction == contract.ReductionTrainedSum {
			want = 1
		}
		assert.InDelta(t, want, out[0], 1e-6, reduction)
	}
}
