package session_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/tfproto"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// stackedRun runs the batches in one execution and returns the means of the metrics.
func stackedRun(t testing.TB, s *session.Session, bs []data.Batch, step int64) []float64 {
	t.Helper()
	require.Equal(t, len(bs), s.Stackable(len(bs), bs[0].Size))
	for i, b := range bs {
		require.NoError(t, s.Stack(i, len(bs), b))
	}
	out := make([]float64, len(s.TrainMetrics()))
	require.NoError(t, s.TrainN(context.Background(), step, len(bs), out))
	return out
}

// single runs the batches one by one and returns the means of the metrics.
func single(t testing.TB, s *session.Session, bs []data.Batch, step int64) []float64 {
	t.Helper()
	out := make([]float64, len(s.TrainMetrics()))
	means := make([]float64, len(out))
	for i, b := range bs {
		require.NoError(t, s.Train(context.Background(), step+int64(i), b, out))
		for j, v := range out {
			if slices.Contains(s.RunningMetrics(), s.TrainMetrics()[j]) {
				means[j] = v
			} else {
				means[j] += v / float64(len(bs))
			}
		}
	}
	return means
}

// variables returns all variables as the bytes of a checkpoint.
func variables(t testing.TB, s *session.Session) string {
	t.Helper()
	prefix := filepath.Join(t.TempDir(), "v")
	require.NoError(t, s.Save(context.Background(), prefix))
	text, err := os.ReadFile(prefix + ".data-00000-of-00001")
	require.NoError(t, err)
	return string(text)
}

// random returns a dataset with x [B,width] and y [B,1], which is 0 or 1.
func random(t testing.TB, samples, width int) *data.InMemory {
	t.Helper()
	source := rand.New(rand.NewPCG(5, 6))
	x, y := make([]float32, samples*width), make([]float32, samples)
	for i := range x {
		x[i] = source.Float32()
	}
	for i := range y {
		y[i] = float32(source.IntN(2))
	}
	ds, err := data.New("random",
		data.Field{Name: "x", Array: data.Array{Shape: []int{samples, width}, Values: x}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{samples, 1}, Values: y}})
	require.NoError(t, err)
	return ds
}

// Several steps per execution leave the same variables, bit for bit, as single steps, including
// those of the optimizer and of random generators.
//
//lane:skip gcstress (hundreds of steps)
func TestFusedStepsAreTheSameSteps(t *testing.T) {
	bs := batches(t, digits(t), 8, 14)
	plain, many := open(t, "digits-cnn", session.Options{}), open(t, "digits-cnn", session.Options{StepsPerExecution: 5})
	assert.Equal(t, plain.Identity(), many.Identity(), "the same run")
	for from, next := 0, 0; from < len(bs); from = next {
		next = min(from+5, len(bs)) // the last execution has fewer steps
		want, have := single(t, plain, bs[from:next], int64(from)), stackedRun(t, many, bs[from:next], int64(from))
		assert.InDeltaSlice(t, want, have, 1e-5*math.Abs(want[0])+1e-7)
	}
	assert.True(t, variables(t, plain) == variables(t, many), "the variables differ")

	// Single steps and executions of several steps can alternate, also after a reload.
	_, err := many.Reset(t.Context(), "reload")
	require.NoError(t, err)
	assert.Equal(t, single(t, plain, bs[:2], 14), single(t, many, bs[:2], 14))
	single(t, plain, bs[2:5], 16)
	stackedRun(t, many, bs[2:5], 16)
	assert.True(t, variables(t, plain) == variables(t, many), "the variables differ")
}

func TestFusedStepsDoNotAllocate(t *testing.T) {
	ctx := context.Background()
	for name, opts := range map[string]session.Options{"plain": {StepsPerExecution: 16},
		"compiled": {StepsPerExecution: 16, Compiled: true}} {
		t.Run(name, func(t *testing.T) {
			s := open(t, "digits", opts)
			bs := batches(t, digits(t), 32, 2)
			out := make([]float64, 2)
			for _, n := range []int{16, 3} { // the maximum, and a remainder
				assert.Zero(t, testing.AllocsPerRun(10, func() {
					for i := range s.Stackable(n, 32) {
						if err := s.Stack(i, n, bs[i%2]); err != nil {
							t.Error(err)
						}
					}
					if err := s.TrainN(ctx, 0, n, out); err != nil {
						t.Error(err)
					}
				}), "%d steps", n)
			}
		})
	}
}

// Stack copies the batch, which may change when Stack returns.
func TestStackCopies(t *testing.T) {
	bs := batches(t, digits(t), 8, 3)
	plain, many := open(t, "digits", session.Options{}), open(t, "digits", session.Options{StepsPerExecution: 3})
	single(t, plain, bs, 0)
	for i, b := range bs {
		require.NoError(t, many.Stack(i, 3, b))
		x, _ := b.Field("x")
		clear(x.Values.([]uint8))
	}
	require.NoError(t, many.TrainN(t.Context(), 0, 3, make([]float64, 2)))
	assert.True(t, variables(t, plain) == variables(t, many), "the variables differ")
}

// An execution with missing batches runs nothing and does not affect the next one.
func TestStackErrors(t *testing.T) {
	ctx := context.Background()
	s := open(t, "digits", session.Options{StepsPerExecution: 3})
	bs := batches(t, digits(t), 8, 3)
	small := batches(t, digits(t), 4, 1)[0]
	wrong := batches(t, digits(t), 8, 1)[0]
	wrong.Fields[1].Values = []float64{0, 1, 2, 3, 4, 5, 6, 1.5}
	out := make([]float64, 2)
	before := variables(t, s)

	assert.ErrorIs(t, s.TrainN(ctx, 0, 3, out), session.ErrStack, "nothing was gathered")
	assert.ErrorIs(t, s.Stack(1, 3, bs[1]), session.ErrStack, "not the first")
	assert.ErrorIs(t, s.Stack(0, 4, bs[0]), session.ErrStack, "more than Options.StepsPerExecution")
	assert.ErrorIs(t, s.Stack(0, 1, bs[0]), session.ErrStack, "one step is no call of several")
	for _, c := range []struct {
		first, then int // steps of the execution that batch 0 and batch 1 are added to
		b           data.Batch
		err         error
	}{{3, 3, wrong, tfbind.ErrType}, {3, 3, small, session.ErrStack}, {2, 3, bs[1], session.ErrStack}} {
		require.NoError(t, s.Stack(0, c.first, bs[0]))
		assert.ErrorIs(t, s.Stack(1, c.then, c.b), c.err)
		assert.ErrorIs(t, s.Stack(2, 3, bs[2]), session.ErrStack, "it begins anew with 0")
		assert.ErrorIs(t, s.TrainN(ctx, 0, 3, out), session.ErrStack)
	}
	require.NoError(t, s.Stack(0, 2, bs[0]))
	assert.ErrorIs(t, s.TrainN(ctx, 0, 2, out), session.ErrStack, "one of two")
	assert.True(t, before == variables(t, s), "something has run")

	stackedRun(t, s, bs, 0)
	assert.ErrorIs(t, s.TrainN(ctx, 3, 3, out), session.ErrStack, "the call has run already")
	require.NoError(t, s.Stack(0, 2, bs[0]))
	require.NoError(t, s.Stack(1, 2, bs[1]))
	assert.ErrorContains(t, s.TrainN(ctx, 3, 2, out[:1]), "the slice has length 1, expected 2 for the results")

	plain := open(t, "digits", session.Options{})
	assert.Equal(t, 1, plain.Stackable(10, 8))
	assert.ErrorIs(t, plain.Stack(0, 2, bs[0]), session.ErrStack)
	assert.ErrorIs(t, plain.TrainN(ctx, 0, 2, out), session.ErrStack)
	require.NoError(t, s.SetMicroBatches(2))
	assert.Equal(t, 1, s.Stackable(3, 8), "batches are split")
	require.NoError(t, s.SetMicroBatches(1))
	assert.Equal(t, 3, s.Stackable(10, 8))
	require.NoError(t, s.Close())
	assert.ErrorIs(t, s.Stack(0, 3, bs[0]), tfbind.ErrClosed)
}

// stacked returns a model that learns nothing and reports its inputs (reports) and its learning rate. train_n reports
// the means. change modifies train_n.
func stacked(t testing.TB, change func(n *tfproto.SignatureDef)) *savedmodels.Model {
	t.Helper()
	text, err := reports("").Bytes()
	require.NoError(t, err)
	one, n := reporting("", true), reporting("_n", true, -1)
	for _, s := range []*tfproto.SignatureDef{one, n} {
		s.Outputs["rate"] = tensorInfo("applied", tfbind.Float32)
	}
	if change != nil {
		change(n)
	}
	return writeModel(t, t.TempDir(), text, map[string]*tfproto.SignatureDef{"train": one, "train_n": n}, nil)
}

// Each step of an execution has its own seed and sample weights. All steps have the same learning
// rate.
func TestFusedStepsTakeReservedInputs(t *testing.T) {
	s := openModel(t, stacked(t, nil), session.Options{StepsPerExecution: 4, Seed: 7})
	require.Equal(t, []string{"loss", "low", "number", "rate"}, s.TrainMetrics())
	bs := []data.Batch{reported([]float32{1, 2}, nil), reported([]float32{3, 4}, nil), reported([]float32{5, 6}, nil)}
	require.NoError(t, s.Stack(0, 3, bs[0]))
	require.NoError(t, s.Stack(1, 3, bs[1]))
	require.NoError(t, s.Stack(2, 3, bs[2]))
	assert.ErrorContains(t, s.TrainN(t.Context(), 40, 3, make([]float64, 4)), "none was set", "there is no rate yet")
	require.NoError(t, s.SetLearningRate(0.5))
	assert.Equal(t, []float64{3.5, 7, 41, 0.5}, stackedRun(t, s, bs, 40))
	assert.Equal(t, single(t, s, bs[:2], 40), stackedRun(t, s, bs[:2], 40))
	require.NoError(t, s.SetLearningRate(0.25))
	bs = []data.Batch{reported([]float32{1, 2}, []float32{2, 0}), reported([]float32{3, 4}, []float32{0, 1})}
	assert.Equal(t, []float64{6.0 / 4, 7, 100.5, 0.25}, stackedRun(t, s, bs, 100))
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		for i, b := range bs {
			if err := s.Stack(i, 2, b); err != nil {
				t.Error(err)
			}
		}
		if err := s.TrainN(context.Background(), 0, 2, make([]float64, 0, 4)[:4]); err != nil {
			t.Error(err)
		}
	}))
}

// A train_n that does something other than train is rejected before loading. A train_n of fixed
// sizes is used only for these sizes.
func TestCompileStack(t *testing.T) {
	without := reporter(t, "", false, nil)
	resize := func(input string, dims ...int64) func(*tfproto.SignatureDef) {
		return func(n *tfproto.SignatureDef) {
			n.Inputs[input] = tensorInfo(input+"_n", tfbind.DType(n.Inputs[input].Dtype), dims...)
		}
	}
	for name, c := range map[string]struct {
		model *savedmodels.Model
		opts  session.Options
		text  string
	}{
		"open":          {stacked(t, nil), session.Options{StepsPerExecution: 2}, ""},
		"not asked for": {without, session.Options{StepsPerExecution: 1}, ""},
		"negative":      {stacked(t, nil), session.Options{StepsPerExecution: -1}, "expected 0 or more"},
		"no train_n":    {without, session.Options{StepsPerExecution: 2}, "has no signature train_n"},
		"one seed": {stacked(t, resize("seed", 2)), session.Options{StepsPerExecution: 2},
			"takes seed without dimensions"},
		"fewer inputs": {stacked(t, func(n *tfproto.SignatureDef) { delete(n.Inputs, "sample_weight") }),
			session.Options{StepsPerExecution: 2}, "but train takes"},
		"more inputs": {stacked(t, func(n *tfproto.SignatureDef) { n.Inputs["loss_scale"] = n.Inputs["learning_rate"] }),
			session.Options{StepsPerExecution: 2}, "takes learning_rate, loss_scale"},
		"fewer results": {stacked(t, func(n *tfproto.SignatureDef) { delete(n.Outputs, "low") }),
			session.Options{StepsPerExecution: 2}, "does not report low"},
		"fixed": {stacked(t, resize("x", 4, -1)), session.Options{StepsPerExecution: 4}, ""},
		"fixed, too few": {stacked(t, resize("x", 4, -1)), session.Options{StepsPerExecution: 3},
			"exactly 4 steps per execution"},
		"calls of one": {stacked(t, resize("x", 1, -1)), session.Options{StepsPerExecution: 3},
			"runs 1 steps per execution"},
		"no train signature": {fixture(t, "predictonly"), session.Options{StepsPerExecution: 3}, "none of the signatures"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := session.Compile(c.model, c.opts)
			if c.text == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.text)
		})
	}

	s := openModel(t, stacked(t, func(n *tfproto.SignatureDef) { resize("x", 4, 3)(n) }),
		session.Options{StepsPerExecution: 10})
	assert.Equal(t, 4, s.Stackable(10, 3))
	assert.Equal(t, 4, s.Stackable(4, 3))
	assert.Equal(t, 1, s.Stackable(3, 3), "it runs 4 steps")
	assert.Equal(t, 1, s.Stackable(10, 2), "it takes batches of 3")
}

func TestChooseSteps(t *testing.T) {
	wide := func(samples, width int) *data.InMemory { return random(t, samples, width) }
	flat, err := data.New("flat", data.Field{Name: "x", Array: data.Array{Shape: []int{64}, Values: make([]float32, 64)}})
	require.NoError(t, err)
	model := func(name string) *savedmodels.Model {
		m := builtin(t, name)
		return m
	}
	for name, c := range map[string]struct {
		model *savedmodels.Model
		opts  session.Options
		ds    data.Dataset
		batch int
		want  int
	}{
		"small":             {model("dense-100-64-1"), session.Options{}, wide(64, 100), 32, 50},
		"by bytes":          {model("dense-100-64-1"), session.Options{}, wide(4096, 100), 4096, (16 << 20) / (4096 * 404)},
		"too large":         {model("dense-100-64-1"), session.Options{}, wide(40000, 100), 40000, 1},
		"twin":              {model("digits"), session.Options{Compiled: true}, digits(t), 32, 16},
		"another batch":     {model("digits"), session.Options{Compiled: true}, digits(t), 16, 50},
		"twin not wanted":   {model("digits"), session.Options{}, digits(t), 32, 50},
		"data do not fit":   {model("digits"), session.Options{}, wide(64, 100), 32, 1},
		"no train_n at all": {reporter(t, "", false, nil), session.Options{}, flat, 32, 1},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := session.Compile(c.model, c.opts)
			require.NoError(t, err)
			n, err := plan.ChooseSteps(c.ds, c.batch)
			assert.Equal(t, c.want, n)
			assert.Equal(t, c.want == 1, err != nil, "%v", err)
		})
	}
}

// XLA-compiled signatures train if their sizes fit, with nearly the same results.
func TestCompiled(t *testing.T) {
	s, plain := open(t, "digits", session.Options{Compiled: true, StepsPerExecution: 20}),
		open(t, "digits", session.Options{StepsPerExecution: 20})
	assert.Equal(t, "train_xla, train_n_xla with up to 20 steps per call", s.Identity()["compiled"])
	assert.Equal(t, "none", plain.Identity()["compiled"])
	assert.Equal(t, 16, s.Stackable(20, 32), "what train_n_xla was compiled for")
	assert.Equal(t, 15, s.Stackable(15, 32))
	assert.Equal(t, 20, s.Stackable(20, 8), "nothing compiled for batches of 8")
	full, small := batches(t, digits(t), 32, 19), batches(t, digits(t), 8, 3)
	for _, bs := range [][]data.Batch{full[:16], full[16:19], small} {
		assert.InDeltaSlice(t, stackedRun(t, plain, bs, 0), stackedRun(t, s, bs, 0), 1e-4)
		assert.InDeltaSlice(t, single(t, plain, bs[:2], 0), single(t, s, bs[:2], 0), 1e-4)
	}

	for name, model := range map[string]*savedmodels.Model{
		"a model without compiled signatures": reporter(t, "", false, nil),
		"a model with train_n only":           stacked(t, nil),
	} {
		_, err := session.Compile(model, session.Options{Compiled: true, StepsPerExecution: 20})
		assert.Error(t, err, name)
		assert.False(t, errors.As(err, new(*savedmodels.NotTrainableError)), name)
	}
	_, err := session.Compile(reporter(t, "", false, nil), session.Options{Compiled: true})
	assert.ErrorIs(t, err, savedmodels.ErrNoSignature)
	digits := builtin(t, "digits")
	deterministic := session.Options{Compiled: true, Device: gpuopts.Options{Deterministic: true}}
	_, err = session.Compile(digits, deterministic)
	assert.ErrorAs(t, err, new(*option.Error))
	assert.ErrorContains(t, err, "Options.Compiled true: conflicts with Options.Deterministic true")
	plan, err := session.Compile(digits, session.Options{Compiled: true})
	require.NoError(t, err)
	assert.NoError(t, plan.Check(32, true))
	err = plan.Check(16, false)
	assert.ErrorIs(t, err, savedmodels.ErrNoSignature)
	assert.ErrorContains(t, err, "train_xla for batches of 32, train_n_xla for batches of 32, but the batches have 16 "+
		"samples")
	digits.Signatures = slices.DeleteFunc(digits.Signatures,
		func(s savedmodels.Signature) bool { return s.Name == "set_learning_rate" })
	fixed := openModel(t, digits, session.Options{})
	assert.ErrorIs(t, fixed.SetLearningRate(0.1), savedmodels.ErrNoSignature)
}
