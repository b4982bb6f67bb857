package train

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
)

// A profile has a span for each execution and its operations, and does not change the weights.
func TestProfile(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	train := func(out string, first, last int64, change func(*Config)) (events map[string]int) {
		t.Helper()
		log.Reset()
		file := filepath.Join(dir, out+".json")
		c := Config{
			Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Seed: 3, Out: filepath.Join(dir, out),
			Loop: fit.Loop{Batch: 32, Epochs: 1, StepsPerEpoch: 30, Log: slog.New(slog.NewTextHandler(&log, nil))},
		}
		if first != 0 {
			c.Profile = Profile{first, last, file}
		}
		change(&c)
		ran(t, c)
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		var trace struct{ TraceEvents []struct{ Name string } }
		require.NoError(t, json.Unmarshal(text, &trace))
		events = map[string]int{}
		for _, e := range trace.TraceEvents {
			if strings.Contains(e.Name, "MatMul") {
				events["MatMul"]++
			} else if strings.HasPrefix(e.Name, "step") {
				events[e.Name]++
			}
		}
		return events
	}
	nothing := func(*Config) {}
	require.Nil(t, train("plain", 0, 0, nothing))
	events := train("single", 10, 12, nothing)
	assert.GreaterOrEqual(t, events["MatMul"], 3*5, "two layers, and their gradients: %v", events)
	delete(events, "MatMul")
	assert.Equal(t, map[string]int{"step 10": 1, "step 11": 1, "step 12": 1}, events)
	assert.Equal(t, weights(t, filepath.Join(dir, "plain")), weights(t, filepath.Join(dir, "single")))
	assert.Contains(t, log.String(), "trace written")

	events = train("stacked", 10, 12, func(c *Config) { c.Session.StepsPerExecution = 5 })
	delete(events, "MatMul")
	assert.Equal(t, map[string]int{"steps 6 to 10": 1, "steps 11 to 15": 1}, events)

	// A process that resumes within the steps replaces the file. A process that resumes after them writes nothing.
	for epochs, has := range []string{"step 11", "step 12", "step 12"} {
		events := train("resumed", 10, 12, func(c *Config) {
			c.Loop.StepsPerEpoch, c.Loop.Epochs, c.Resume = 11, epochs+1, true
			c.Checkpoints.Folder = filepath.Join(dir, "ckpt")
		})
		assert.Contains(t, events, has)
		assert.Equal(t, epochs == 0, events["step 10"] == 1)
	}
	assert.NotContains(t, log.String(), "no trace was written")

	assert.Contains(t, train("end", 29, 99, nothing), "step 30")
	assert.Nil(t, train("never", 31, 99, nothing))
	assert.Contains(t, log.String(), "the training ran none of the steps")

	// A file that cannot be written does not stop the training.
	assert.Nil(t, train("gone", 1, 99, func(c *Config) {
		c.Profile.File = filepath.Join(t.TempDir(), "gone", "trace.json")
		require.NoError(t, os.Mkdir(filepath.Dir(c.Profile.File), 0o755))
		c.Loop.Hook(fit.Hook{Name: "remove", Start: func(context.Context, *fit.State) error {
			return os.Remove(filepath.Dir(c.Profile.File))
		}})
	}))
	assert.Equal(t, 1, strings.Count(log.String(), "the trace could not be written; training continues"))
}

func TestProfileRefuses(t *testing.T) {
	for reason, p := range map[string]Profile{
		"0: the first step is at least 1": {0, 3, "p.json"},
		"the last step is not before it":  {3, 2, "p.json"},
		"write /none/of: no such file":    {1, 2, "/none/of/it"},
	} {
		_, err := Run(t.Context(), Config{Model: "builtin:digits", Data: Data{Path: "builtin:digits"},
			Loop: fit.Loop{Batch: 1, Epochs: 1}, Profile: p})
		assert.ErrorContains(t, err, reason)
	}
}
