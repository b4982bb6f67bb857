// Package measure has what `steadyfit bench` and the benchmarks of internal/lab/bindings share: the measured loop. internal/lab/bench/cloop/cloop.c does the same in C, and scripts/bench_keras.py in Python.
package measure

import (
	"fmt"
	"io"
	"slices"
	"time"

	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// Plan is the length of a measurement.
type Plan struct {
	Warmup int // steps before the first measured one
	Steps  int
	Chunks int // number of groups of timed steps; memory is read between them
}

type Result struct {
	Steps  int
	Median time.Duration // median over the chunks' means, per step
	Memory memory.Usage  // after the last step
	// Times are the mean step times of the chunks, Anons the anonymous memory after each chunk.
	Times []time.Duration
	Anons []int64
	// WarmupLoss is the mean loss of the warm-up.
	WarmupLoss float64
}

// Run calls step, which returns the loss, for the warm-up and the measured steps of the plan, and
// measures the latter.
func Run(p Plan, step func() (float32, error)) (Result, error) {
	if p.Steps < 1 || p.Warmup < 1 || p.Chunks < 1 || p.Steps < p.Chunks {
		return Result{}, fmt.Errorf("plan %+v: expected at least one warm-up step and one step per chunk", p)
	}
	var r Result
	for range p.Warmup {
		loss, err := step()
		if err != nil {
			return Result{}, err
		}
		r.WarmupLoss += float64(loss) / float64(p.Warmup)
	}
	size := p.Steps / p.Chunks
	r.Steps = size * p.Chunks
	means := make([]float64, p.Chunks)
	for c := range p.Chunks {
		start := time.Now()
		for range size {
			if _, err := step(); err != nil {
				return Result{}, err
			}
		}
		took := time.Since(start)
		means[c] = float64(took) / float64(size)
		// not timed, because reading /proc takes about as long as a small step
		var err error
		if r.Memory, err = memory.Read(); err != nil {
			return Result{}, err
		}
		if m := r.Memory; !m.RSS.OK || !m.Anon.OK || !m.Peak.OK {
			return Result{}, fmt.Errorf("%w: /proc/self/status lacks VmRSS, RssAnon or VmHWM", memory.ErrUnavailable)
		}
		r.Times, r.Anons = append(r.Times, took/time.Duration(size)), append(r.Anons, int64(r.Memory.Anon.Bytes))
	}
	r.Median = time.Duration(stats.Median(means))
	return r, nil
}

// Print writes the result in Go benchmark format.
func (r Result) Print(w io.Writer, model string, batch int) error {
	_, err := fmt.Fprintf(w, "BenchmarkStep/impl=steadyfit/model=%s/batch=%d\t%d\t%d ns/op\t%.1f steps/s\t%d rss-bytes\t"+
		"%d anon-bytes\t%d peak-bytes\t%d anon-range-bytes\n", model, batch, r.Steps, r.Median.Nanoseconds(),
		1/r.Median.Seconds(), r.Memory.RSS.Bytes, r.Memory.Anon.Bytes, r.Memory.Peak.Bytes,
		slices.Max(r.Anons)-slices.Min(r.Anons))
	return err
}
