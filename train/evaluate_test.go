package train

import (
	"log/slog"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
)

// Evaluate of the trained model gives the last validation of the training.
func TestEvaluateIsTheValidation(t *testing.T) {
	for _, c := range []Config{{Validation: "builtin:digits"}, {ValidationFraction: 0.2}} {
		c.Model, c.Data.Path, c.Seed, c.Out = "builtin:digits", "builtin:digits", 7, filepath.Join(t.TempDir(), "out")
		c.Loop = fit.Loop{Batch: 32, Epochs: 1, Log: slog.New(slog.DiscardHandler)}
		before, err := Evaluate(t.Context(), c)
		require.NoError(t, err)
		r := ran(t, c)
		c.Model = r.Out
		after, err := Evaluate(t.Context(), c)
		require.NoError(t, err)
		require.Len(t, after, 2)
		for _, m := range after {
			want := r.History.Metric("val_" + m.Name)
			assert.InDelta(t, want[0], m.Value, 1e-6, m.Name)
			was, _ := before.Get(m.Name)
			assert.Greater(t, math.Abs(was-m.Value), 0.01, m.Name)
		}
	}
	c := Config{Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Validation: "builtin:digits", Resume: true,
		Supervise: Always, OnOutOfMemory: Restart, Reset: Reset{Depth: "process"}}
	c.Checkpoints.Folder, c.Supervisor.Restarts, c.Loop.ResumeAnyway = t.TempDir(), 3, true
	c.Loop.Batch, c.Loop.Epochs = 32, 1
	require.NoError(t, c.check(), "Run takes it")
	_, err := Evaluate(t.Context(), c)
	require.NoError(t, err)
	_, err = Evaluate(t.Context(), Config{Model: "builtin:digits"})
	assert.ErrorContains(t, err, "Config.Validation: nothing to evaluate on; set it, or Config.ValidationFraction")
}
