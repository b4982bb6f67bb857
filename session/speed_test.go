package session_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/autotune"
	"steadyfit/internal/graphdef"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// BenchmarkStep measures the parts of a train step of dense-100-64-1 on batches of 32: running a
// graph of one operation (call), copying a batch into the inputs (feed), the step with its inputs
// already set (fetch), training on one batch (train), on fifty per execution (stacked), and in a
// fit.Loop that reads ahead, with epochs of 500 steps (loop). An op is one step.
//
//	go test ./session -run '^$' -bench Step -count 5
func BenchmarkStep(b *testing.B) {
	const batch, calls = 32, 50
	ds := random(b, batch*500, 100)
	one := batches(b, ds, batch, 1)[0]
	b.Run("call", func(b *testing.B) {
		step := identity(b)
		require.NoError(b, step.Set(0, []float32{1}))
		b.ReportAllocs()
		for b.Loop() {
			if err := step.Run(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, part := range []string{"feed", "fetch"} {
		b.Run(part, func(b *testing.B) {
			step, err := open(b, "dense-100-64-1", session.Options{}).Prepare("train")
			require.NoError(b, err)
			defer step.Close()
			require.NoError(b, step.Feed(one))
			b.ReportAllocs()
			for b.Loop() {
				if part == "feed" {
					err = step.Feed(one)
				} else {
					err = step.Run(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
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
	b.Run("stacked", func(b *testing.B) {
		s := open(b, "dense-100-64-1", session.Options{StepsPerExecution: calls})
		out := make([]float64, len(s.TrainMetrics()))
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 1) % calls {
			if err := s.Stack(i, calls, one); err != nil {
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
		_, err := loop.Run(b.Context(), data.Prefetch(ds, autotune.Prefetch(ds, batch, false)))
		require.NoError(b, err)
	})
}

// identity returns a step that runs a graph of one operation.
func identity(t testing.TB) *tfbind.Step {
	t.Helper()
	def, err := (&graphdef.Graph{}).Placeholder("x", tfbind.Float32).
		Add("y", "Identity", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}, "x").Bytes()
	require.NoError(t, err)
	s, err := tfbind.NewSession(nil, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Graph().Import(def, ""))
	x, err := s.Graph().Output("x")
	require.NoError(t, err)
	y, err := s.Graph().Output("y")
	require.NoError(t, err)
	step, err := s.Prepare([]tfbind.Output{x}, []tfbind.Output{y})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, step.Close()) })
	return step
}
