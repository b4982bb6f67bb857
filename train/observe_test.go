package train

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/fit/observe"
	"steadyfit/memory"
)

// The metrics after an epoch are those of the history, and a training with all observers has the same
// weights as one without.
func TestObservedTraining(t *testing.T) {
	dir := t.TempDir()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	server := &observe.Prometheus{Listen: free.Addr().String()}
	config := func(out string) Config {
		return Config{
			Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Validation: "builtin:digits", Seed: 3,
			Loop: fit.Loop{Batch: 32, Epochs: 2, LearningRate: fit.Constant(0.01)}, Out: filepath.Join(dir, out),
			Budget: Budget{Limit: 8 * memory.GiB},
		}
	}
	c := config("plain")
	ran(t, c)
	want := weights(t, c.Out)

	c = config("observed")
	c.TensorBoard = filepath.Join(dir, "tb")
	c.Observers = []fit.Observer{server}
	c.MetricsListen = "localhost:0"
	compared := 0
	c.Loop.Hook(fit.Hook{Name: "compare", Priority: 501, Epoch: func(_ context.Context, s *fit.State) error {
		var got map[string]map[string]float64
		require.Eventually(t, func() bool {
			got = metrics(t, server.Listen)
			return got["steadyfit_epochs_done"][""] == float64(s.Record.Epoch)
		}, time.Minute, time.Millisecond)
		assert.Equal(t, float64(s.Record.Step), got["steadyfit_steps_total"][""])
		assert.Equal(t, float64(1438*s.Record.Epoch), got["steadyfit_samples_total"][""])
		for _, m := range s.Record.Metrics {
			assert.Equal(t, m.Value, got["steadyfit_metric"][m.Name], m.Name)
		}
		assert.Equal(t, 0.01, got["steadyfit_learning_rate"][""])
		assert.Equal(t, float64(s.Record.Memory.RSS.Bytes), got["steadyfit_memory_bytes"]["rss"])
		assert.Equal(t, float64(8*memory.GiB), got["steadyfit_memory_budget_bytes"]["rss"])
		compared++
		return nil
	}})
	r := ran(t, c)
	assert.Equal(t, 2, compared)
	assert.True(t, bytes.Equal(want, weights(t, c.Out)))
	for _, run := range []string{"train", "validation"} {
		found, err := filepath.Glob(filepath.Join(dir, "tb", run, "events.out.tfevents.*"))
		require.NoError(t, err)
		assert.Len(t, found, 1)
	}
	assert.Len(t, r.History.Records, 2)
}

// metrics returns the values at a server of metrics, by name and label.
func metrics(t *testing.T, address string) map[string]map[string]float64 {
	t.Helper()
	answer, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	require.NoError(t, err)
	found := map[string]map[string]float64{}
	for name, f := range families {
		found[name] = map[string]float64{}
		for _, m := range f.GetMetric() {
			label := ""
			for _, l := range m.GetLabel() {
				label = l.GetValue()
			}
			found[name][label] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return found
}
