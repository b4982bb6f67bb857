package observe

import (
	"context"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/stats"
)

// work is a session whose train step is a fixed amount of work.
type work struct {
	fit.Plain
	rounds int
}

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

// BenchmarkOverhead compares trainings with all observers and without any, in alternating order. A step
// takes about 1 ms of one processor. overhead-% is the difference of the medians of the time of a step,
// and processor-% that of the time of all processors, which also counts the goroutines of the observers.
func BenchmarkOverhead(b *testing.B) {
	w := work{rounds: 1000}
	var done float64 // without a use of the result, the compiler leaves out the work
	for spent := time.Duration(0); spent < time.Millisecond; w.rounds += w.rounds / 10 {
		began := time.Now()
		done += w.do()
		spent = time.Since(began)
	}
	require.Positive(b, done)
	ds, err := data.New("one", data.Field{Name: "x", Array: data.Array{Shape: []int{1}, Values: []float32{1}}})
	require.NoError(b, err)
	const steps = 3000
	run := func(observed bool) (wall, processor float64) {
		loop := fit.Loop{Session: w, Batch: 1, Epochs: 3, StepsPerEpoch: steps / 3}
		if observed {
			loop.Hook(fit.Observers{List: []fit.Observer{&TensorBoard{Dir: b.TempDir()}, &Prometheus{Listen: ":0"}}}.Hook())
		}
		before := processorTime(b)
		h, err := loop.Run(b.Context(), ds)
		require.NoError(b, err)
		for _, r := range h.Records {
			wall += r.Seconds
		}
		return wall / steps, (processorTime(b) - before) / steps
	}
	var walls, processors [2][]float64
	for i := 0; b.Loop(); i++ {
		for _, observed := range []int{i % 2, 1 - i%2} {
			wall, processor := run(observed == 1)
			walls[observed], processors[observed] = append(walls[observed], wall), append(processors[observed], processor)
		}
	}
	overhead := func(times [2][]float64) float64 { return 100 * (stats.Median(times[1])/stats.Median(times[0]) - 1) }
	b.ReportMetric(stats.Median(walls[0])*1e6, "plain-µs/step")
	b.ReportMetric(overhead(walls), "overhead-%")
	b.ReportMetric(overhead(processors), "processor-%")
}

// processorTime returns the time of all processors that this process has used, in seconds.
func processorTime(b *testing.B) float64 {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
