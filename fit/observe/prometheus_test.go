package observe

import (
	"net"
	"net/http"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/memory"
)

// scrape returns the metrics of a server by name.
func scrape(t *testing.T, address string) map[string]*dto.MetricFamily {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	require.NoError(t, err)
	return families
}

// values returns the values of a metric by its label; without labels the key is empty.
func values(f *dto.MetricFamily) map[string]float64 {
	found := map[string]float64{}
	for _, m := range f.GetMetric() {
		label := ""
		for _, l := range m.GetLabel() {
			label = l.GetValue()
		}
		found[label] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return found
}

func TestPrometheus(t *testing.T) {
	p := &Prometheus{Listen: ":0"}
	rate := 0.5
	observe(t, p, start(fit.Observation{Epochs: 3, Memory: memory.Usage{RSS: memory.Known(5)}}))
	address := p.Address()
	host, _, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", host, "an address without a host is not reachable from elsewhere")
	require.NotContains(t, scrape(t, address), "steadyfit_checkpoint_step")

	observe(t, p, &fit.Observation{
		Moment: fit.AtStep, Time: at, Step: 12, Steps: 7, Samples: 50, EpochsDone: 1, Epochs: 3, Restarts: 2, StepTime: 2 * time.Second,
		Metrics: fit.Metrics{{Name: "loss", Value: 0.25}, {Name: "top 5\xff", Value: 1}}, LearningRate: &rate, GPU: memory.Known(9),
		Budget: 100, BudgetLayer: memory.RSS, Checkpoint: fit.Written{Step: 10, Time: time.Now().Add(-time.Hour), Took: time.Second},
	})
	got := scrape(t, address)
	for name, want := range map[string]map[string]float64{
		"steps_total": {"": 7}, "samples_total": {"": 50}, "step": {"": 12}, "epochs_done": {"": 1}, "epochs": {"": 3}, "restarts_total": {"": 2},
		"metric": {"loss": 0.25, "top 5?": 1}, "learning_rate": {"": 0.5}, "step_seconds": {"": 2}, "memory_bytes": {"rss": 5, "gpu": 9},
		"memory_budget_bytes": {"rss": 100}, "checkpoint_step": {"": 10}, "checkpoint_duration_seconds": {"": 1},
	} {
		require.Equal(t, want, values(got["steadyfit_"+name]), name)
		require.NotEmpty(t, got["steadyfit_"+name].GetHelp())
	}
	require.InDelta(t, time.Hour.Seconds(), values(got["steadyfit_checkpoint_age_seconds"])[""], time.Minute.Seconds())
	require.Equal(t, dto.MetricType_COUNTER, got["steadyfit_steps_total"].GetType())

	// The metrics of the last epoch stay when the next one begins.
	observe(t, p, &fit.Observation{Moment: fit.AtStep, Time: at})
	require.Equal(t, 0.25, values(scrape(t, address)["steadyfit_metric"])["loss"])
	observe(t, p, end)
	require.Empty(t, p.Address())
	_, err = net.Dial("tcp", address)
	require.Error(t, err)
}

// A port that another process still has is taken when that process has ended.
func TestPrometheusWaitsForItsPort(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Prometheus{Listen: other.Addr().String()}
	require.ErrorContains(t, p.Observe(t.Context(), start(fit.Observation{})), "address already in use")
	require.NoError(t, other.Close())
	observe(t, p, step(1))
	require.Equal(t, other.Addr().String(), p.Address())
	require.Equal(t, map[string]float64{"": 1}, values(scrape(t, p.Address())["steadyfit_step"]))
	observe(t, p, end)
}

func TestCheckListen(t *testing.T) {
	for _, good := range []string{":9090", "localhost:0", "0.0.0.0:80", "[::1]:9090"} {
		require.NoError(t, CheckListen(good), good)
	}
	for _, bad := range []string{"9090", "localhost", ":99999", "::1:9090", ":no-such-service"} {
		require.ErrorContains(t, CheckListen(bad), "expected HOST:PORT", bad)
	}
}
