package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
)

// A profile has a span for each execution, in which the operations ran, and does not change the weights.
func TestProfile(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	train := func(out string, first, last int64, change func(*Config)) (spans map[string]int) {
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
		_, err := Run(t.Context(), c)
		require.NoError(t, err)
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		var trace struct {
			TraceEvents []struct {
				Name, Ph string
				Pid, Tid int
				Time     float64 `json:"ts"`
				Dur      float64
				Args     struct{ Name string }
			}
		}
		require.NoError(t, json.Unmarshal(text, &trace))
		processes := map[int]string{}
		spans = map[string]int{}
		within := map[string][2]float64{}
		for _, e := range trace.TraceEvents {
			switch {
			case e.Ph == "M":
				processes[e.Pid] = e.Args.Name
			case processes[e.Pid] == "train steps":
				spans[e.Name] = 0
				within[e.Name] = [2]float64{e.Time, e.Time + e.Dur}
			}
		}
		free := map[[2]int]float64{} // the end of the last operation in each row
		for _, e := range trace.TraceEvents {
			if at := [2]int{e.Pid, e.Tid}; e.Ph == "X" {
				require.GreaterOrEqual(t, e.Time+0.01, free[at], "operations of a row do not overlap")
				free[at] = e.Time + e.Dur
			}
			for name, w := range within {
				// TensorFlow and Go read different clocks.
				if strings.Contains(e.Name, "MatMul") && strings.Contains(processes[e.Pid], "device:CPU:0") && e.Time > w[0]-50 &&
					e.Time+e.Dur < w[1]+50 {
					spans[name]++
				}
			}
		}
		return spans
	}
	nothing := func(*Config) {}
	require.Nil(t, train("plain", 0, 0, nothing))
	want := weights(t, filepath.Join(dir, "plain"))

	var early string
	spans := train("single", 10, 12, func(c *Config) {
		c.Loop.Hook(fit.Hook{Name: "look", Step: func(_ context.Context, s *fit.State) error {
			unfinished, err := filepath.Glob(filepath.Join(dir, ".single.json-*"))
			for _, path := range unfinished {
				text, bad := os.ReadFile(path)
				early, err = string(text), errors.Join(err, bad)
			}
			return err
		}})
	})
	assert.Contains(t, early, "step 10", "the trace of a step is written before the last step")
	unfinished, err := filepath.Glob(filepath.Join(dir, ".single*"))
	require.NoError(t, err)
	assert.Empty(t, unfinished)
	require.Len(t, spans, 3)
	for i := 10; i <= 12; i++ {
		assert.GreaterOrEqual(t, spans[fmt.Sprint("step ", i)], 5, "two layers, and the gradients of them: %v", spans)
	}
	assert.Equal(t, want, weights(t, filepath.Join(dir, "single")))
	assert.Contains(t, log.String(), "trace written")

	spans = train("stacked", 10, 12, func(c *Config) { c.Session.StepsPerExecution = 5 })
	require.Len(t, spans, 2)
	assert.Contains(t, spans, "steps 6 to 10")
	assert.Contains(t, spans, "steps 11 to 15")

	// A process that resumes within the steps replaces the file. A process that resumes after them writes nothing.
	part := func(epochs int) func(*Config) {
		return func(c *Config) {
			c.Loop.StepsPerEpoch, c.Loop.Epochs, c.Resume = 11, epochs, true
			c.Checkpoints.Folder = filepath.Join(dir, "ckpt")
		}
	}
	assert.Len(t, train("resumed", 10, 12, part(1)), 2)
	assert.Len(t, train("resumed", 10, 12, part(2)), 1)
	assert.Len(t, train("resumed", 10, 12, part(3)), 1)
	assert.NotContains(t, log.String(), "no trace was written")

	assert.Len(t, train("end", 29, 99, nothing), 2)
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
