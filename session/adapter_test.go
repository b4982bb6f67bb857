package session_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// predicted returns the outputs of the model for a batch.
func predicted(t testing.TB, s *session.Session) []float32 {
	t.Helper()
	step, err := s.Prepare(s.Roles().Predict)
	require.NoError(t, err)
	defer step.Close()
	require.NoError(t, step.Feed(batches(t, digits(t), 32, 1)[0]))
	require.NoError(t, step.Run(context.Background()))
	var out data.Array
	require.NoError(t, step.Read(step.Signature.Outputs[0].Name, &out))
	return out.Values.([]float32)
}

// Tenants share an open model. Each has its own weights, and starts from the weights of the model. A complete model
// that was saved with the weights of a tenant gives the same predictions.
func TestSwap(t *testing.T) {
	ctx := context.Background()
	m := loraModel(t)
	bs := batches(t, digits(t), 32, 6)
	s := openModel(t, m, session.Options{})
	start := predicted(t, s)
	tenants := make([]*session.Adapter, 2)
	outputs := make([][]float32, 2)
	for i := range tenants {
		require.NoError(t, s.Swap(ctx, nil))
		assert.Equal(t, start, predicted(t, s))
		l := losses(t, s, bs[3*i:3*i+3], 0)
		if i > 0 {
			fresh := losses(t, openModel(t, m, session.Options{}), bs[3*i:3*i+3], 0)
			assert.Equal(t, fresh, l, "a tenant begins with a new optimizer")
		}
		var err error
		tenants[i], err = s.Adapter(ctx)
		require.NoError(t, err)
		outputs[i] = predicted(t, s)
		assert.NotEqual(t, start, outputs[i])
	}
	serving := openModel(t, m, session.Options{ReadOnly: true})
	for _, i := range []int{0, 1, 0} {
		for _, s := range []*session.Session{s, serving} {
			require.NoError(t, s.Swap(ctx, tenants[i]))
			assert.Equal(t, outputs[i], predicted(t, s))
		}
	}
	require.NoError(t, serving.Swap(ctx, nil))
	assert.Equal(t, start, predicted(t, serving))
	assert.Equal(t, m.Base, tenants[0].Base)
	for i := range tenants {
		dir := t.TempDir()
		require.NoError(t, tenants[i].Write(dir))
		read, err := session.ReadAdapter(dir, m)
		require.NoError(t, err)
		assert.Equal(t, tenants[i], read)
	}
	dir := filepath.Join(t.TempDir(), "merged")
	require.NoError(t, s.Swap(ctx, tenants[1]))
	require.NoError(t, s.SaveModel(ctx, dir))
	merged, err := savedmodels.Open(dir)
	require.NoError(t, err)
	assert.Equal(t, outputs[1], predicted(t, openModel(t, merged, session.Options{ReadOnly: true})))
	require.NoError(t, session.CheckAdapter(merged, tenants[1]), "the base is the same")
}

// A refused adapter leaves the session as it is.
func TestSwapRefuses(t *testing.T) {
	ctx := context.Background()
	m := loraModel(t)
	s := openModel(t, m, session.Options{})
	good, err := s.Adapter(ctx)
	require.NoError(t, err)
	losses(t, s, batches(t, digits(t), 32, 2), 0)
	want := predicted(t, s)
	with := func(change func(w map[string]session.Weight)) *session.Adapter {
		a := &session.Adapter{Base: good.Base, Weights: maps.Clone(good.Weights)}
		change(a.Weights)
		return a
	}
	foreign := openModel(t, otherBase(t), session.Options{})
	other, err := foreign.Adapter(ctx)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		a    *session.Adapter
		want error
		text string
	}{
		"another base": {other, session.ErrMismatch, m.Base[:12]},
		"missing": {with(func(w map[string]session.Weight) { delete(w, "model/head/bias") }), session.ErrMismatch,
			"model/head/bias is missing"},
		"one too many": {with(func(w map[string]session.Weight) { w["x"] = session.Weight{} }), session.ErrMismatch,
			"x is not one of the model's"},
		"shape": {with(func(w map[string]session.Weight) {
			w["model/head/bias"] = session.Weight{DType: tfbind.Float32, Shape: []int64{2}, Data: make([]byte, 8)}
		}), session.ErrMismatch, "model/head/bias: float32 [2], expected float32 [10]"},
		"type": {with(func(w map[string]session.Weight) {
			w["model/head/bias"] = session.Weight{DType: tfbind.Float64, Shape: []int64{10}, Data: make([]byte, 80)}
		}), session.ErrMismatch, "model/head/bias: float64 [10]"},
		"many": {&session.Adapter{Base: good.Base, Weights: func() map[string]session.Weight {
			w := map[string]session.Weight{}
			for i := range 10 {
				w[fmt.Sprint(i)] = session.Weight{}
			}
			return w
		}()}, session.ErrMismatch, "and 6 more"},
		"damaged": {with(func(w map[string]session.Weight) {
			w["model/head/bias"] = session.Weight{DType: tfbind.Float32, Shape: []int64{10}, Data: make([]byte, 8)}
		}), session.ErrMismatch, "model/head/bias: 8 bytes"},
	} {
		err := s.Swap(ctx, c.a)
		require.ErrorIs(t, err, c.want, name)
		assert.ErrorContains(t, err, c.text, name)
		assert.Equal(t, want, predicted(t, s), name)
	}
}

// An adapter has all weights that training changes: a model is refused if a weight has no name, or
// if two have the same name.
func TestAdapterNeedsNamesOfWeights(t *testing.T) {
	ctx := context.Background()
	s := openModel(t, loraModel(t), session.Options{})
	a, err := s.Adapter(ctx)
	require.NoError(t, err)
	require.NoError(t, session.CheckAdapter(loraModel(t), nil))
	for _, change := range []func(vars []savedmodels.Variable, first, second int){
		func(vars []savedmodels.Variable, first, _ int) { vars[first].Key = "" },
		func(vars []savedmodels.Variable, first, second int) { vars[second].Key = vars[first].Key },
		func(vars []savedmodels.Variable, _, _ int) {
			for i := range vars {
				vars[i].Weight = false
			}
		},
	} {
		m := *loraModel(t)
		m.Variables = slices.Clone(m.Variables)
		var weights []int
		for i, v := range m.Variables {
			if v.Weight {
				weights = append(weights, i)
			}
		}
		change(m.Variables, weights[0], weights[1])
		m.ByKey = false
		require.ErrorIs(t, session.CheckAdapter(&m, a), session.ErrMismatch)
		require.ErrorIs(t, session.CheckAdapter(&m, nil), session.ErrMismatch)
		altered := openModel(t, &m, session.Options{})
		_, err := altered.Adapter(ctx)
		require.ErrorIs(t, err, session.ErrMismatch)
	}
}

// A tenant's checkpoint and snapshot restore its optimizer, even if other tenants train in
// between.
func TestTenantsContinueWithTheirOptimizers(t *testing.T) {
	ctx := context.Background()
	m := loraModel(t)
	bs := batches(t, digits(t), 32, 8)
	alone := openModel(t, m, session.Options{})
	want := losses(t, alone, bs, 0)
	s := openModel(t, m, session.Options{})
	prefix := filepath.Join(t.TempDir(), "tenant")
	got := losses(t, s, bs[:2], 0)
	require.NoError(t, s.Save(ctx, prefix))
	require.NoError(t, s.Swap(ctx, nil))
	losses(t, s, bs[:3], 0) // another tenant
	require.NoError(t, s.Restore(ctx, prefix))
	got = append(got, losses(t, s, bs[2:5], 2)...)
	p, err := s.Snapshot(ctx)
	require.NoError(t, err)
	defer p.Close()
	require.NoError(t, s.Swap(ctx, nil))
	losses(t, s, bs[:3], 0)
	require.NoError(t, s.Revert(ctx, p))
	got = append(got, losses(t, s, bs[5:], 5)...)
	assert.Equal(t, want, got)
}
