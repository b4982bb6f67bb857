package matrix

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	// quickTime is the time of a quick matrix without Plan.Within. reserve is the part of this time
	// that is left for writing the reports.
	quickTime, reserve = 270 * time.Second, 5 * time.Second
	// probeSteps and probeBatch are the length of the run that measures the speed of the
	// machine.
	probeSteps, probeBatch = 4, 8
	// imageLeast is the minimum batch size of images, which the remedy batch-half can still divide.
	imageLeast = 4
)

// errTime ends the runs when Plan.Within is over.
var errTime = errors.New("the time of the matrix is over")

// lengths has the minimum number of steps for a useful result, and the maximum that is worth its
// time, by workload. Other workloads are short.
var lengths = map[string]struct{ least, most int }{
	"W2": {48, 96}, "W4": {18, 18}, "S3": {28, 28}, User: {40, math.MaxInt},
}

// speed is the measured speed of a workload: the time of a step with batch samples, and of
// everything else in a run.
type speed struct {
	step, rest time.Duration
	batch      int
}

// shorten reduces the steps and batches of the workloads until their runs fit into the time of
// the plan. On a slow machine, such as one where TensorFlow computes without oneDNN, batches
// get smaller too.
func (p *Plan) shorten(ctx context.Context) error {
	jobs, _ := p.expand()
	share := time.Duration(max(p.Jobs, 1)) * (p.Within - reserve) / time.Duration(max(len(jobs), 1))
	speeds := make(map[string]speed) // by model
	for i := range p.Workloads {
		w := &p.Workloads[i]
		if _, ok := lengths[w.ID]; !ok {
			continue
		}
		s, ok := speeds[w.Model]
		if !ok {
			var err error
			if s, err = p.probe(ctx, *w); err != nil {
				return fmt.Errorf("measuring a step of %s: %w", w.ID, err)
			}
			speeds[w.Model] = s
		}
		w.shorten(s, share)
	}
	return nil
}

// shorten shortens a workload until a run takes at most the time share, or to the minimum in
// lengths. Since it only halves, most calls give the same length, so that the results of an
// interrupted matrix can be reused.
func (w *Workload) shorten(s speed, share time.Duration) {
	takes := func() time.Duration {
		return s.rest + time.Duration(w.Steps)*s.step*time.Duration(w.Batch)/time.Duration(s.batch)
	}
	length := lengths[w.ID]
	w.Steps = min(w.Steps, length.most)
	for w.ID != User && w.Batch > imageLeast && takes() > share {
		w.Batch /= 2
	}
	for w.Steps > length.least && takes() > share {
		w.Steps = max(w.Steps/2, length.least)
	}
	w.Every, w.Epoch = max(1, min(w.Every, w.Steps/length.least)), max(1, min(w.Epoch, w.Steps/4))
}

// probe measures a step of a workload's model on the first runtime, without tracing. For images, it
// uses the workload S3.
func (p *Plan) probe(ctx context.Context, w Workload) (speed, error) {
	if w.ID != User {
		var err error
		if w, err = FindWorkload("S3"); err != nil {
			return speed{}, err
		}
		w.Batch = probeBatch
	}
	w.Steps, w.Every, w.Epoch = probeSteps, 1, probeSteps
	runtime := p.Runtimes[0]
	j := job{runtime: runtime, workload: w.For(runtime), remedy: Remedy{ID: Baseline}}
	run, err := p.run(j)
	if err != nil {
		return speed{}, err
	}
	run.Args = slices.DeleteFunc(run.Args, func(a string) bool { return strings.HasPrefix(a, "--trace=") })
	if err := os.MkdirAll(p.Out, 0o777); err != nil {
		return speed{}, err
	}
	started := time.Now()
	o, err := p.observe(ctx, j, run)
	if err != nil {
		return speed{}, err
	}
	if o.Failure != "" {
		return speed{}, errors.New(string(o.Failure) + ": " + o.Cause)
	}
	s := speed{rest: time.Since(started), batch: w.Batch}
	// The fastest step counts: slower ones were disturbed, or did work that only first steps do.
	samples := o.Series.Samples()
	for i := 1; i < len(samples); i++ {
		took := samples[i].At.Sub(samples[i-1].At) / time.Duration(max(1, samples[i].Step-samples[i-1].Step))
		if s.step == 0 || took < s.step {
			s.step = took
		}
	}
	if s.step <= 0 {
		return speed{}, errors.New("the run reported no step time")
	}
	s.rest = max(0, s.rest-probeSteps*s.step)
	return s, nil
}
