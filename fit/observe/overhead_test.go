package observe

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
)

// work is a session whose train step is a fixed amount of work.
type work struct{ rounds int }

func (w work) do() float64 {
	x := 1.
	for range w.rounds {
		x = math.Sqrt(x + 1)
	}
	return x
}

func (w work) Train(_ context.Context, _ int64, _ data.Batch, out []float64) error {
	out[0] = w.do()
	return nil
}

func (work) Evaluate(context.Context, data.Batch, []float64) error { return nil }
func (work) TrainMetrics() []string                                { return []string{"loss"} }
func (work) EvaluateMetrics() []string                             { return nil }
func (work) Save(context.Context, string) error                    { return nil }
func (work) Restore(context.Context, string) error                 { return nil }
func (work) SetLearningRate(float64) error                         { return nil }
func (work) Identity() map[string]string                           { return nil }

// BenchmarkOverhead compares trainings with all observers and without any. Their steps of about 1 ms and
// their order alternate; overhead-% is the difference of the medians.
func BenchmarkOverhead(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer server.Close()
	w := work{rounds: 1000}
	for spent := time.Duration(0); spent < time.Millisecond; w.rounds += w.rounds / 10 {
		began := time.Now()
		w.do()
		spent = time.Since(began)
	}
	ds, err := data.New("one", data.Field{Name: "x", Array: data.Array{Shape: []int{1}, Values: []float32{1}}})
	require.NoError(b, err)
	const steps = 3000
	run := func(observed bool) float64 {
		loop := fit.Loop{Session: w, Batch: 1, Epochs: 3, StepsPerEpoch: steps / 3}
		if observed {
			loop.Hook(fit.Observers{EverySteps: 100, List: []fit.Observer{
				&TensorBoard{Dir: b.TempDir(), EverySteps: 100}, &Prometheus{Listen: ":0"}, &Kubeflow{URL: server.URL},
			}}.Hook())
		}
		h, err := loop.Run(b.Context(), ds)
		require.NoError(b, err)
		var spent float64
		for _, r := range h.Records {
			spent += r.Seconds
		}
		return spent / steps
	}
	var times [2][]float64
	for i := 0; b.Loop(); i++ {
		for _, observed := range []int{i % 2, 1 - i%2} {
			times[observed] = append(times[observed], run(observed == 1))
		}
	}
	for i := range times {
		slices.Sort(times[i])
	}
	plain, observed := times[0][len(times[0])/2], times[1][len(times[1])/2]
	b.ReportMetric(plain*1e6, "plain-µs/step")
	b.ReportMetric(observed*1e6, "observed-µs/step")
	b.ReportMetric(100*(observed/plain-1), "overhead-%")
}
