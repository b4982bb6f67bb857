package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"steadyfit/fit"
	"steadyfit/memory"
)

// Prometheus serves the figures of a training at http://Listen/metrics in the format of Prometheus.
// The server runs from the start of the run to its end. If the port is in use, for example by a process
// of the training that is about to end, Prometheus tries to open it again at each observation.
type Prometheus struct {
	// Listen is an address HOST:PORT. Without a host it is the loopback address, since the server
	// does not authenticate its clients.
	Listen string

	server *http.Server
	done   chan struct{} // closed when server has ended

	mu   sync.Mutex
	last *fit.Observation
	// metrics, memory and gpu are the last known values.
	metrics map[string]float64
	memory  memory.Usage
	gpu     memory.Reading
}

// CheckListen returns an error for an address that Prometheus.Listen cannot have.
func CheckListen(address string) error {
	_, err := withHost(address)
	return err
}

func withHost(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return "", fmt.Errorf("%w; expected HOST:PORT, or :PORT for the loopback address", err)
	}
	return net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port), nil
}

// Observe implements fit.Observer.
func (p *Prometheus) Observe(ctx context.Context, o *fit.Observation) error {
	p.update(o)
	if o.Moment == fit.AtEnd {
		return p.close(ctx)
	}
	if p.server != nil {
		return nil
	}
	return p.listen()
}

func (p *Prometheus) update(o *fit.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.Moment == fit.AtStart {
		p.metrics, p.memory, p.gpu = map[string]float64{}, memory.Usage{}, memory.Reading{}
	}
	p.last = o
	for _, m := range o.Metrics {
		p.metrics[m.Name] = m.Value
	}
	if o.Memory.RSS.OK {
		p.memory = o.Memory
	}
	if o.GPU.OK {
		p.gpu = o.GPU
	}
}

const (
	metricsTimeout = 10 * time.Second
	// maxScrapes is the maximum number of connections. Further connections wait until one ends, since
	// each takes a file descriptor and memory of the training.
	maxScrapes = 32
)

func (p *Prometheus) listen() error {
	address, err := withHost(p.Listen)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("metrics for Prometheus are not served: %w", err)
	}
	return p.serve(listener)
}

func (p *Prometheus) serve(listener net.Listener) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector{p}); err != nil {
		return errors.Join(err, listener.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	p.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: metricsTimeout, ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout,
		IdleTimeout:    metricsTimeout,
		MaxHeaderBytes: 64 << 10,
	}
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		_ = p.server.Serve(netutil.LimitListener(listener, maxScrapes)) // returns when close is called
	}()
	return nil
}

func (p *Prometheus) close(ctx context.Context) error {
	if p.server == nil {
		return nil
	}
	err := p.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, p.server.Close())
	}
	<-p.done
	p.server = nil
	return err
}

// collector is a prometheus.Collector.
type collector struct{ *Prometheus }

// Describe leaves out the metrics that depend on the model.
func (collector) Describe(c chan<- *prometheus.Desc) { c <- stepsTotal }

var stepsTotal = prometheus.NewDesc("steadyfit_steps_total", "Train steps of this process.", nil, nil)

func (p collector) Collect(c chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.last
	describe := func(name, help string, labels prometheus.Labels) *prometheus.Desc {
		return prometheus.NewDesc("steadyfit_"+name, help, nil, labels)
	}
	count := func(name, help string, v int64) {
		c <- prometheus.MustNewConstMetric(describe(name, help, nil), prometheus.CounterValue, float64(v))
	}
	level := func(name, help string, v float64, labels prometheus.Labels) {
		c <- prometheus.MustNewConstMetric(describe(name, help, labels), prometheus.GaugeValue, v)
	}
	c <- prometheus.MustNewConstMetric(stepsTotal, prometheus.CounterValue, float64(o.Steps))
	count("samples_total", "Samples that this process has trained on.", o.Samples)
	count("restarts_total", "Restarts of the training process.", int64(o.Restarts))
	level("step", "Train steps since the beginning of the training, with those before a resume.", float64(o.Step), nil)
	level("epochs_done", "Complete epochs.", float64(o.EpochsDone), nil)
	level("epochs", "Epochs to train in total.", float64(o.Epochs), nil)
	for name, v := range p.metrics {
		level("metric", "Mean of a metric over the current epoch, by the name that it has in the history.", v,
			prometheus.Labels{"name": strings.ToValidUTF8(name, "?")})
	}
	if o.LearningRate != nil {
		level("learning_rate", "Learning rate of the last step.", *o.LearningRate, nil)
	}
	if o.StepTime > 0 {
		level("step_seconds", "Mean time of the train steps of the epoch so far.", o.StepTime.Seconds(), nil)
	}
	for layer, r := range map[string]memory.Reading{"rss": p.memory.RSS, "anon": p.memory.Anon, "file": p.memory.File,
		"peak": p.memory.Peak, "gpu": p.gpu} {
		if r.OK {
			level("memory_bytes", "Memory of the process by layer.", float64(r.Bytes), prometheus.Labels{"layer": layer})
		}
	}
	if o.Budget > 0 {
		level("memory_budget_bytes", "Limit of the memory budget by the layer that it limits.", float64(o.Budget),
			prometheus.Labels{"layer": string(o.BudgetLayer)})
	}
	if !o.CheckpointTime.IsZero() {
		level("checkpoint_step", "Train steps at the newest checkpoint.", float64(o.CheckpointStep), nil)
		level("checkpoint_age_seconds", "Time since the newest checkpoint was written.",
			time.Since(o.CheckpointTime).Seconds(), nil)
		if o.CheckpointTook > 0 {
			level("checkpoint_duration_seconds", "Time that writing the newest checkpoint took, also while steps ran.",
				o.CheckpointTook.Seconds(), nil)
		}
	}
}
