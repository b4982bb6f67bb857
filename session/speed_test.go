package session_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/graphdef"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// BenchmarkStep takes a train step of dense-100-64-1 on batches of 32 apart: what it costs
// to run a graph of one operation (call), to copy a batch into the inputs (feed), to train
// on one batch that is there (train) and on fifty in a call (fused), and to do so in a
// fit.Loop that reads ahead and counts epochs of 500 steps (loop). An op is one step.
//
//	go test ./session -run '^$' -bench Step -count 5
func BenchmarkStep(b *testing.B) {
	const batch, calls = 32, 50
	ds := random(b, batch*500, 100)
	one := batches(b, ds, batch, 1)[0]
	b.Run("call", func(b *testing.B) {
		step := identity(b)
		require.NoError(b, tfbind.Set(step, 0, []float32{1}))
		b.ReportAllocs()
		for b.Loop() {
			if err := step.Run(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("feed", func(b *testing.B) {
		step, err := open(b, "dense-100-64-1", session.Options{}).Prepare("train")
		require.NoError(b, err)
		defer step.Close()
		b.ReportAllocs()
		for b.Loop() {
			if err := step.Feed(one); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("train", func(b *testing.B) {
		s := open(b, "dense-100-64-1", session.Options{})
		out := make([]float64, len(s.TrainMetrics()))
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Train(b.Context(), 0, one, out); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fused", func(b *testing.B) {
		s := open(b, "dense-100-64-1", session.Options{FuseSteps: calls})
		out := make([]float64, len(s.TrainMetrics()))
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 1) % calls {
			if err := s.Gather(i, calls, one); err != nil {
				b.Fatal(err)
			}
			if i < calls-1 {
				continue
			}
			if err := s.TrainN(b.Context(), 0, calls, out); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("loop", func(b *testing.B) {
		s := open(b, "dense-100-64-1", session.Options{})
		loop := fit.Loop{Session: s, Batch: batch, Epochs: (b.N + 499) / 500, StepsPerEpoch: min(b.N, 500)}
		b.ReportAllocs()
		b.ResetTimer()
		_, err := loop.Run(b.Context(), data.Prefetch(ds, data.AheadFor(ds, batch)))
		require.NoError(b, err)
	})
}

// identity is a step that hands a number through a graph of one operation.
func identity(t testing.TB) *tfbind.Step {
	t.Helper()
	def, err := (&graphdef.Graph{}).Placeholder("x", tfbind.Float32).
		Add("y", "Identity", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}, "x").Bytes()
	require.NoError(t, err)
	graph, err := tfbind.NewGraph()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, graph.Close()) })
	require.NoError(t, graph.Import(def, ""))
	s, err := tfbind.NewSession(graph, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	x, err := graph.Output("x")
	require.NoError(t, err)
	y, err := graph.Output("y")
	require.NoError(t, err)
	step, err := s.Prepare(tfbind.StepSpec{Feeds: []tfbind.Output{x}, Fetches: []tfbind.Output{y}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, step.Close()) })
	return step
}
