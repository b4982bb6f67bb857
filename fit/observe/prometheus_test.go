package observe

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	p := &Prometheus{Listen: ":" + port} // without a host, not reachable from elsewhere
	rate := 0.5
	observe(t, p, start(fit.Observation{Epochs: 3, Memory: memory.Usage{RSS: memory.Known(5)}}))
	require.NotContains(t, scrape(t, address), "steadyfit_checkpoint_step")

	observe(t, p, &fit.Observation{
		Moment: fit.AtStep, Time: at, Step: 12, Steps: 7, Samples: 50, EpochsDone: 1, Epochs: 3, Restarts: 2,
		StepTime: 2 * time.Second,
		Metrics:  fit.Metrics{{Name: "loss", Value: 0.25}, {Name: "top 5\xff", Value: 1}}, LearningRate: &rate,
		GPU:    memory.Known(9),
		Budget: 100, BudgetLayer: memory.RSS, CheckpointStep: 10, CheckpointTime: time.Now().Add(-time.Hour),
		CheckpointTook: time.Second,
	})
	got := scrape(t, address)
	for name, want := range map[string]map[string]float64{
		"steps_total": {"": 7}, "samples_total": {"": 50}, "step": {"": 12}, "epochs_done": {"": 1}, "epochs": {"": 3},
		"restarts_total": {"": 2},
		"metric":         {"loss": 0.25, "top 5?": 1}, "learning_rate": {"": 0.5}, "step_seconds": {"": 2},
		"memory_bytes":        {"rss": 5, "gpu": 9},
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
	_, err = net.Dial("tcp", address)
	require.Error(t, err)
}

// countedListener counts the connections that a server has open at a time.
type countedListener struct {
	net.Listener
	accepted, open, most atomic.Int64
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.accepted.Add(1)
	if n := l.open.Add(1); n > l.most.Load() { // only one goroutine accepts
		l.most.Store(n)
	}
	return countedConn{c, sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// Clients that connect and send nothing take a limited number of connections for a limited time, and
// other clients are served when these connections end.
func TestPrometheusLimitsConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	counted := &countedListener{Listener: listener}
	p := &Prometheus{}
	require.NoError(t, p.serve(counted))
	require.Positive(t, p.server.ReadHeaderTimeout)
	var idle []net.Conn
	for range 2 * maxScrapes {
		c, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		idle = append(idle, c)
	}
	require.Eventually(t, func() bool { return counted.accepted.Load() >= maxScrapes }, time.Minute, time.Millisecond)
	for _, c := range idle {
		require.NoError(t, c.Close())
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + listener.Addr().String())
	require.NoError(t, err, "the last one is served after all others")
	require.NoError(t, answer.Body.Close())
	require.EqualValues(t, 2*maxScrapes+1, counted.accepted.Load())
	require.LessOrEqual(t, counted.most.Load(), int64(maxScrapes))
	require.NoError(t, p.close(t.Context()))
}

func TestPrometheusWaitsForItsPort(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Prometheus{Listen: other.Addr().String()}
	require.ErrorContains(t, p.Observe(t.Context(), start(fit.Observation{})), "address already in use")
	require.NoError(t, other.Close())
	observe(t, p, &fit.Observation{Moment: fit.AtStep, Time: at, Step: 1})
	require.Equal(t, map[string]float64{"": 1}, values(scrape(t, p.Listen)["steadyfit_step"]))
	observe(t, p, end)
}

func TestCheckListen(t *testing.T) {
	address, err := withHost(":9090")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9090", address)
	for _, good := range []string{":9090", "localhost:0", "0.0.0.0:80", "[::1]:9090"} {
		require.NoError(t, CheckListen(good), good)
	}
	for _, bad := range []string{"9090", "localhost", ":99999", "::1:9090", ":no-such-service"} {
		require.ErrorContains(t, CheckListen(bad), "expected HOST:PORT", bad)
	}
}
