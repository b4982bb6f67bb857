package session_test

import (
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/tfproto"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

var _ fit.Session = (*session.Session)(nil)

// builtin opens a built-in model.
func builtin(t testing.TB, name string) *savedmodels.Model {
	t.Helper()
	model, err := savedmodels.Builtin(name)
	require.NoError(t, err)
	return model
}

// fixture opens a model of the tests of savedmodels.
func fixture(t testing.TB, name string) *savedmodels.Model {
	t.Helper()
	model, err := savedmodels.Open(filepath.Join("../savedmodels/testdata", name))
	require.NoError(t, err)
	return model
}

func open(t testing.TB, name string, opts session.Options) *session.Session {
	t.Helper()
	model := builtin(t, name)
	return openModel(t, model, opts)
}

func openModel(t testing.TB, model *savedmodels.Model, opts session.Options) *session.Session {
	t.Helper()
	s, err := session.OpenModel(context.Background(), model, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func digits(t testing.TB) data.Dataset {
	t.Helper()
	train, _, err := data.Builtin("digits")
	require.NoError(t, err)
	return train
}

// batches copies the first n batches.
func batches(t testing.TB, ds data.Dataset, size, n int) []data.Batch {
	t.Helper()
	next, stop := iter.Pull2(ds.Batches(data.Pass{Batch: size}))
	defer stop()
	var out []data.Batch
	for range n {
		b, err, ok := next()
		require.True(t, ok)
		require.NoError(t, err)
		c := data.Batch{Size: b.Size, Index: b.Index}
		for _, f := range b.Fields {
			v := reflect.ValueOf(f.Values)
			f.Shape, f.Values = slices.Clone(f.Shape), reflect.AppendSlice(reflect.Zero(v.Type()), v).Interface()
			c.Fields = append(c.Fields, f)
		}
		out = append(out, c)
	}
	return out
}

// losses trains on the batches and returns the loss of each step.
func losses(t testing.TB, s *session.Session, bs []data.Batch, firstStep int64) []float64 {
	t.Helper()
	out := make([]float64, len(s.TrainMetrics()))
	var all []float64
	for i, b := range bs {
		require.NoError(t, s.Train(context.Background(), firstStep+int64(i), b, out))
		all = append(all, out[0])
	}
	return all
}

// forDigits lists the built-in models for the built-in dataset digits.
var forDigits = []string{"digits", "digits-cnn"}

// Every built-in model trains, evaluates, and can use micro-batches.
//
//lane:skip gcstress (hundreds of steps)
func TestBuiltinModelsTrain(t *testing.T) {
	for _, name := range savedmodels.BuiltinNames() {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := open(t, name, session.Options{})
			// With the models' own learning rate, the largest model would overshoot the minimum in
			// one step.
			require.NoError(t, s.SetLearningRate(1e-6))
			b := ones(t, s.Model(), s.Roles().Train, 2)
			out := make([]float64, len(s.EvaluateMetrics()))
			require.NoError(t, s.Evaluate(ctx, b, out))
			before := out[0]
			for _, role := range []string{s.Roles().Gradients, s.Roles().Apply} {
				step, err := s.Prepare(role)
				require.NoError(t, err)
				defer step.Close()
				if role == s.Roles().Gradients {
					require.NoError(t, step.Feed(b))
				}
				require.NoError(t, step.Run(ctx))
			}
			require.NoError(t, s.Evaluate(ctx, b, out))
			assert.Less(t, out[0], before)
			before = out[0]
			// The loss of a train step includes dropout; the loss of an evaluation does not.
			losses(t, s, []data.Batch{b, b, b}, 1)
			require.NoError(t, s.Evaluate(ctx, b, out))
			assert.Less(t, out[0], before)
		})
	}
}

// ones returns a batch that fits a signature.
func ones(t testing.TB, m *savedmodels.Model, signature string, batch int) data.Batch {
	t.Helper()
	sig, err := m.Signature(signature)
	require.NoError(t, err)
	return filled(sig, batch, func(int) (float32, int64) { return 1, 1 })
}

// filled returns a batch for a signature, whose elements are computed from their index.
func filled(sig *savedmodels.Signature, size int, element func(i int) (float32, int64)) data.Batch {
	b := data.Batch{Size: size}
	for _, in := range sig.DataInputs() {
		a := data.Array{Shape: []int{size}}
		n := size
		for _, d := range in.Shape[1:] {
			a.Shape = append(a.Shape, int(d))
			n *= int(d)
		}
		floats, integers := make([]float32, n), make([]int64, n)
		for i := range n {
			floats[i], integers[i] = element(i)
		}
		if a.Values = floats; in.DType == tfbind.Int64 {
			a.Values = integers
		}
		b.Fields = append(b.Fields, data.Field{Name: in.Name, Array: a})
	}
	return b
}

// Save includes the state of Adam, the step counter and the state of dropout. Training after
// Restore repeats bit for bit, in the same and in a new session.
func TestRestoreRepeatsBitForBit(t *testing.T) {
	for _, name := range forDigits {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			bs := batches(t, digits(t), 32, 10)
			s := open(t, name, session.Options{})
			losses(t, s, bs[:5], 0)
			prefix := filepath.Join(t.TempDir(), "state")
			require.NoError(t, s.Save(ctx, prefix))
			want := losses(t, s, bs[5:], 5)
			require.NoError(t, s.Restore(ctx, prefix))
			assert.Equal(t, want, losses(t, s, bs[5:], 5))

			other := open(t, name, session.Options{})
			require.NoError(t, other.Restore(ctx, prefix))
			assert.Equal(t, want, losses(t, other, bs[5:], 5))
		})
	}
}

// A trained model that cannot replace another one stays where it was written, and the other one stays, too.
func TestModelThatCannotReplaceAnotherIsKept(t *testing.T) {
	s := open(t, "digits", session.Options{})
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, s.SaveModel(t.Context(), dir))
	whole := ""
	err := s.SaveModel(t.Context(), dir, func(dir string) error {
		whole = dir
		return os.MkdirAll(filepath.Join(filepath.Dir(dir), "old", "full"), 0o777) // the old model cannot move there
	})
	require.ErrorContains(t, err, "the trained model is in "+whole)
	for _, dir := range []string{dir, whole} {
		_, err := savedmodels.Open(dir)
		require.NoError(t, err)
	}
}

func TestSaveModelContinuesTraining(t *testing.T) {
	ctx := context.Background()
	bs := batches(t, digits(t), 32, 10)
	s := open(t, "digits-cnn", session.Options{})
	losses(t, s, bs[:5], 0)
	dir := filepath.Join(t.TempDir(), "deep", "out")
	require.NoError(t, session.CheckOutput(dir, s.Model()))
	require.NoError(t, s.SaveModel(ctx, dir))
	want := losses(t, s, bs[5:], 5)

	model, err := savedmodels.Open(dir)
	require.NoError(t, err)
	assert.Equal(t, s.Model().Hash, model.Hash)
	assert.NotNil(t, model.Metadata)
	again := openModel(t, model, session.Options{})
	assert.Equal(t, want, losses(t, again, bs[5:], 5))

	// SaveModel may replace the opened model and an older model.
	require.NoError(t, again.SaveModel(ctx, dir))
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	assert.Len(t, left, 1, "no temporary folders stay behind")

	// Symbolic links to a model and inside a model are followed. Files that arrive later are not copied.
	linked, copied := filepath.Join(t.TempDir(), "latest"), filepath.Join(t.TempDir(), "out")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "notes"), 0o777))
	require.NoError(t, os.Symlink("../saved_model.pb", filepath.Join(dir, "notes", "copy.pb")))
	require.NoError(t, os.Symlink(dir, linked))
	model, err = savedmodels.Open(linked)
	require.NoError(t, err)
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "later")))
	require.NoError(t, openModel(t, model, session.Options{}).SaveModel(ctx, copied))
	require.NoError(t, os.Remove(filepath.Join(dir, "later")))
	assert.FileExists(t, filepath.Join(copied, "saved_model.pb"))
	assert.FileExists(t, filepath.Join(copied, "notes", "copy.pb"))
	assert.NoFileExists(t, filepath.Join(copied, "later"))

	taken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(taken, "thesis.txt"), nil, 0o644))
	for _, err := range []error{s.SaveModel(ctx, taken), session.CheckOutput(taken, model)} {
		assert.ErrorContains(t, err, "thesis.txt")
	}
	file := filepath.Join(taken, "thesis.txt")
	assert.Error(t, s.SaveModel(ctx, file))
}

func TestLearningRate(t *testing.T) {
	s := open(t, "digits", session.Options{})
	bs := batches(t, digits(t), 32, 1)
	require.NoError(t, s.SetLearningRate(0))
	l := losses(t, s, []data.Batch{bs[0], bs[0]}, 0)
	assert.Equal(t, l[0], l[1], "a rate of 0 teaches nothing")
	require.NoError(t, s.SetLearningRate(0.01))
	l = losses(t, s, []data.Batch{bs[0], bs[0]}, 2)
	assert.Less(t, l[1], l[0])
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		if err := s.SetLearningRate(0.02); err != nil {
			t.Error(err)
		}
	}), "schedules set the rate before each step")
}

func TestStepByHand(t *testing.T) {
	ctx := context.Background()
	s := open(t, "digits", session.Options{})
	b := batches(t, digits(t), 8, 1)[0]
	x, _ := b.Field("x")
	y, _ := b.Field("y")
	step, err := s.Prepare("train")
	require.NoError(t, err)
	defer step.Close()
	require.NoError(t, step.Set("x", x))
	assert.ErrorContains(t, step.Run(ctx), "input has no value")
	require.NoError(t, step.Set("y", y))
	require.NoError(t, step.Run(ctx))
	loss, err := step.Float("loss")
	require.NoError(t, err)
	assert.Greater(t, loss, 0.0)
	_, err = step.Float("los")
	assert.ErrorContains(t, err, "loss")

	predict, err := s.Prepare(s.Roles().Predict)
	require.NoError(t, err)
	defer predict.Close()
	require.NoError(t, predict.Feed(b), "fields that the signature does not take are left out")
	require.NoError(t, predict.Run(ctx))
	var p data.Array
	require.NoError(t, predict.Read("probabilities", &p))
	assert.Equal(t, []int{8, 10}, p.Shape)
}

func TestInputsConvertAndReshape(t *testing.T) {
	s := open(t, "digits", session.Options{})
	step, err := s.Prepare("train")
	require.NoError(t, err)
	defer step.Close()
	label := func(v any) data.Array { return data.Array{Shape: []int{1}, Values: v} }
	for _, v := range []any{[]int8{3}, []int16{3}, []int32{3}, []int64{3}, []uint8{3}, []uint16{3}, []uint32{3},
		[]uint64{3},
		[]float32{3}, []float64{3}, []bool{true}} {
		assert.NoError(t, step.Set("y", label(v)), "%T", v)
	}
	for _, v := range []any{[]float64{1e300}, []float64{-1e39}} {
		err := step.Set("x", data.Array{Shape: []int{1, 64}, Values: slices.Repeat(v.([]float64), 64)})
		assert.ErrorIs(t, err, tfbind.ErrType)
		assert.ErrorContains(t, err, "at position 0: wrong element type: too large for float32")
	}
	for _, v := range []any{[]float32{1.5}, []float64{1e300}, []uint64{1 << 63}, []string{"3"}} {
		assert.ErrorIs(t, step.Set("y", label(v)), tfbind.ErrType, "%T", v)
	}
	assert.ErrorContains(t, step.Set("y", label([]float64{1.5})), "value 1.5 at position 0")

	for _, shape := range [][]int{{2, 64}, {2, 8, 8}, {2, 64, 1}, {2, 1, 64}} {
		assert.NoError(t, step.Set("x", data.Array{Shape: shape, Values: make([]uint8, 128)}), "%v", shape)
	}
	for got, shape := range map[string][]int{"samples of shape [63]": {2, 63}, "one value per sample": {2},
		"a single value": {}, "samples of shape [8 9]": {2, 8, 9}} {
		n := 1
		for _, d := range shape {
			n *= d
		}
		err := step.Set("x", data.Array{Shape: shape, Values: make([]uint8, n)})
		assert.ErrorContains(t, err, "expected samples of shape [64], got "+got, "%v", shape)
	}
	assert.ErrorIs(t, step.Set("x", data.Array{Shape: []int{2, 64}, Values: make([]uint8, 127)}), tfbind.ErrShape)
}

// Labels have the rank of the data where results depend on it.
func TestLabelsOfAnotherRank(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		model := builtin(t, "digits")
		notes := *model.Metadata
		notes.Labels = map[string]savedmodels.InputMetadata{"y": {FixedRank: fixed}}
		model.Metadata = &notes
		s := openModel(t, model, session.Options{})
		step, err := s.Prepare("train")
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, step.Close()) })
		err = step.Set("y", data.Array{Shape: []int{2, 1}, Values: make([]int64, 2)})
		if !fixed {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorIs(t, err, session.ErrData)
		assert.ErrorContains(t, err, "expected one value per sample, got samples of shape [1]; results depend on")
	}
}

func TestFeedNamesWhatIsMissing(t *testing.T) {
	s := open(t, "digits", session.Options{})
	b := batches(t, digits(t), 4, 1)[0]
	b.Fields[0].Name, b.Fields[1].Name = "image", "label"
	err := s.Train(context.Background(), 0, b, make([]float64, 2))
	assert.ErrorContains(t, err, "takes x, y, and the data has image, label (missing: x, y; not inputs: image, label); "+
		"name the arrays of the data like the inputs, or x and y")
	b.Fields = b.Fields[:1]
	b.Fields[0].Name = "x"
	err = s.Train(context.Background(), 0, b, make([]float64, 2))
	assert.ErrorContains(t, err, "takes x, y, and the data has x (missing: y); add what is missing")
}

// Nil arguments are errors and do not crash.
func TestNil(t *testing.T) {
	s := open(t, "digits", session.Options{})
	b := batches(t, digits(t), 4, 1)[0]
	var none context.Context
	for name, do := range map[string]func() error{
		"Open":     func() error { _, err := session.OpenModel(none, s.Model(), session.Options{}); return err },
		"Train":    func() error { return s.Train(none, 0, b, make([]float64, 2)) },
		"Evaluate": func() error { return s.Evaluate(none, b, make([]float64, 2)) },
		"Snapshot": func() error { _, err := s.Snapshot(none); return err },
		"Save":     func() error { return s.Save(none, filepath.Join(t.TempDir(), "v")) },
		"Restore":  func() error { return s.Restore(none, filepath.Join(t.TempDir(), "v")) },
		"Reset":    func() error { _, err := s.Reset(none, "reload"); return err },
	} {
		assert.ErrorContains(t, do(), "the context ", name)
	}
	ctx := t.Context()
	_, err := session.Open(ctx, nil)
	assert.ErrorContains(t, err, "the plan is nil")
	for name, do := range map[string]func() error{
		"Compile":     func() error { _, err := session.Compile(nil, session.Options{}); return err },
		"CheckData":   func() error { _, err := session.CheckData(nil, "train", digits(t), data.Pass{Batch: 1}); return err },
		"CheckOutput": func() error { return session.CheckOutput(t.TempDir(), nil) },
		"CheckSafe":   func() error { return (*savedmodels.Model)(nil).CheckSafe() },
	} {
		assert.ErrorContains(t, do(), "the model is nil", name)
	}
	// The failed calls changed nothing.
	require.NoError(t, s.Train(ctx, 0, b, make([]float64, 2)))
}

// damageWeights changes the value of a weight in the files of a model.
func damageWeights(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "variables", "variables.data-00000-of-00001")
	values, err := os.ReadFile(path)
	require.NoError(t, err)
	values[len(values)/2] ^= 1
	require.NoError(t, os.WriteFile(path, values, 0o600))
}

func TestOpenErrors(t *testing.T) {
	ctx := context.Background()
	model := builtin(t, "digits")
	bad := session.Options{}
	bad.Device.IntraThreads = -1
	_, err := session.OpenModel(ctx, model, bad)
	assert.ErrorContains(t, err, "Options.IntraThreads -1")
	cause := errors.New("enough")
	ended, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	_, err = session.OpenModel(ended, model, session.Options{})
	assert.ErrorIs(t, err, cause)

	dir := filepath.Join(t.TempDir(), "damaged")
	require.NoError(t, os.CopyFS(dir, os.DirFS(model.Dir)))
	damageWeights(t, dir)
	damaged, err := savedmodels.Open(dir)
	require.NoError(t, err)
	_, err = session.OpenModel(ctx, damaged, session.Options{})
	assert.ErrorIs(t, err, &tfbind.Error{Code: "DATA_LOSS"})
	assert.ErrorIs(t, err, savedmodels.ErrNotSavedModel)
	assert.ErrorContains(t, err, "a file of the model in "+dir+" is damaged: copy or export it again")

	s := openModel(t, model, session.Options{ReadOnly: true})
	b := batches(t, digits(t), 4, 1)[0]
	assert.ErrorIs(t, s.Train(ctx, 0, b, make([]float64, 2)), savedmodels.ErrNoSignature)
	assert.NoError(t, s.Evaluate(ctx, b, make([]float64, 2)))
	assert.Error(t, s.Evaluate(ctx, b, make([]float64, 1)))
	assert.ErrorIs(t, s.Restore(ctx, filepath.Join(t.TempDir(), "nothing")), tfbind.ErrNotFound)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	assert.ErrorIs(t, s.Evaluate(ctx, b, make([]float64, 2)), tfbind.ErrClosed)
}

func TestConfigIsMergedOverDevice(t *testing.T) {
	config, err := proto.Marshal(&tfproto.ConfigProto{DeviceCount: map[string]int32{"CPU": 2}})
	require.NoError(t, err)
	count := func(opts session.Options) int {
		r, err := open(t, "digits", opts).Resolved()
		require.NoError(t, err)
		return len(r.Devices)
	}
	one := gpuopts.Options{InterThreads: 1, PerSessionThreads: true}
	assert.Equal(t, count(session.Options{Device: one})+1, count(session.Options{Device: one, Config: config}))

	model := builtin(t, "digits")
	for _, opts := range []session.Options{
		{Config: []byte("no message")},
		{Device: one, Config: []byte{0x28}}, // a truncated field
	} {
		_, err = session.OpenModel(context.Background(), model, opts)
		assert.ErrorIs(t, err, tfbind.ErrInvalidArgument)
	}
}

// A traced step trains like any other step, and its trace lists the operations.
func TestTrace(t *testing.T) {
	ctx := context.Background()
	b := batches(t, digits(t), 32, 2)
	plain, traced := open(t, "digits", session.Options{Seed: 1}), open(t, "digits", session.Options{Seed: 1})
	want, have := make([]float64, len(plain.TrainMetrics())), make([]float64, len(traced.TrainMetrics()))
	for i := range b {
		require.NoError(t, plain.Train(ctx, int64(i), b[i], want))
		metadata, err := traced.Trace(func() error { return traced.Train(ctx, int64(i), b[i], have) })
		require.NoError(t, err)
		assert.Equal(t, want, have)
		require.Len(t, metadata, 1)
		var run tfproto.RunMetadata
		require.NoError(t, proto.Unmarshal(metadata[0], &run))
		assert.NotEmpty(t, run.GetStepStats().GetDevStats())
	}

	split := open(t, "digits", session.Options{MicroBatches: 4})
	all, err := split.Trace(func() error { return split.Train(ctx, 0, b[0], want) })
	require.NoError(t, err)
	assert.Len(t, all, 5, "four micro-batches and the update")

	readOnly := open(t, "digits", session.Options{ReadOnly: true})
	_, err = readOnly.Trace(func() error { return readOnly.Train(ctx, 0, b[0], have) })
	assert.ErrorIs(t, err, savedmodels.ErrNoSignature)
}

// Options that change how steps round change the identity, and so does oneDNN, which an earlier session, or autotune,
// may have turned off for the whole process.
func TestIdentityHasTheRounding(t *testing.T) {
	if !session.InProcess(t, "1") { // rewriting to bfloat16 needs oneDNN
		return
	}
	plain := open(t, "digits", session.Options{}).Identity()
	other := open(t, "digits", session.Options{Device: gpuopts.Options{Precision: gpuopts.BFloat16,
		XLA: "off"}}).Identity()
	for key, want := range map[string][2]string{"precision": {"that of the model", "bfloat16"}, "onednn": {"on", "on"},
		"xla": {"TensorFlow's default", "off"}} {
		assert.Equal(t, want, [2]string{plain[key], other[key]})
		delete(plain, key)
		delete(other, key)
	}
	assert.Equal(t, plain, other)
}

func TestIdentityHasOneDNN(t *testing.T) {
	if session.InProcess(t, "0") {
		assert.Equal(t, "off", open(t, "digits", session.Options{}).Identity()["onednn"])
	}
}

// TensorFlow 2.21 aborts the process on two convolutions of this model unless the elimination
// of common subgraphs is off.
func TestEvaluateInFloat16(t *testing.T) {
	batch := batches(t, digits(t), 32, 1)[0]
	loss := func(device gpuopts.Options) float64 {
		s := open(t, "digits-cnn", session.Options{Device: device, ReadOnly: true})
		out := make([]float64, len(s.EvaluateMetrics()))
		require.NoError(t, s.Evaluate(context.Background(), batch, out))
		return out[0]
	}
	assert.InEpsilon(t, loss(gpuopts.Options{}), loss(gpuopts.Options{Precision: gpuopts.Float16CPU}), 0.01)
}

// A session that loads some signatures trains with the same bits, and takes no others.
func TestOnly(t *testing.T) {
	whole := open(t, "digits-cnn", session.Options{})
	part := open(t, "digits-cnn", session.Options{Only: []string{"train", "reset_metrics"}})
	bs := batches(t, digits(t), 32, 4)
	require.Equal(t, losses(t, whole, bs, 0), losses(t, part, bs, 0))
	require.NoError(t, part.ResetMetrics(t.Context()))
	require.Empty(t, part.EvaluateMetrics())
	require.ErrorIs(t, part.SetMicroBatches(2), savedmodels.ErrNoSignature)
	_, err := part.Prepare("predict")
	require.ErrorContains(t, err, "signature predict was not loaded: add it to Options.Only")
	_, err = part.Reset(t.Context(), "reload")
	require.NoError(t, err)
	require.Equal(t, losses(t, whole, bs, 4), losses(t, part, bs, 4))

	file, err := os.ReadFile(filepath.Join(whole.Model().Dir, "saved_model.pb"))
	require.NoError(t, err)
	program, err := whole.Model().Program([]string{"train"})
	require.NoError(t, err)
	require.Less(t, len(program.Graph), len(file)/2)
}
