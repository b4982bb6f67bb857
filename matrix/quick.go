package matrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"steadyfit/memory"
)

const (
	// quickRun is the longest time for the steps of one run of a quick matrix.
	quickRun = 8 * time.Second
	// probeSteps and probeBatch are the length of the run that measures the speed of the
	// machine.
	probeSteps, probeBatch = 4, 8
)

// shorten reduces the steps of the workloads to what a clear verdict needs, for an answer in a
// few minutes. It first measures a step of the image model. On a slow machine, such as one where
// TensorFlow computes without oneDNN, S3 gets smaller batches and W2 fewer steps.
func (p *Plan) shorten(ctx context.Context) error {
	var perStep time.Duration
	if slices.ContainsFunc(p.Workloads, func(w Workload) bool { return w.ID == "W2" || w.ID == "S3" }) {
		var err error
		if perStep, err = p.probe(ctx); err != nil {
			return fmt.Errorf("measuring a step of the image model: %w", err)
		}
	}
	for i := range p.Workloads {
		p.Workloads[i].shorten(perStep)
	}
	return nil
}

// shorten shortens a workload. perStep is the time of a step of the image model with probeBatch
// images.
func (w *Workload) shorten(perStep time.Duration) {
	switch w.ID {
	case "W2":
		if time.Duration(w.Steps)*perStep > quickRun {
			w.Steps /= 2
		}
	case "W4":
		w.Steps = 18 * w.Every
	case "S3":
		w.Steps = 28 * w.Every
		for w.Batch > probeBatch && time.Duration(w.Steps*w.Batch/probeBatch)*perStep > quickRun {
			w.Batch /= 2
		}
	}
}

// probe measures a step of the image model with probeBatch images on the first runtime.
func (p *Plan) probe(ctx context.Context) (time.Duration, error) {
	w, err := FindWorkload("S3")
	if err != nil {
		return 0, err
	}
	w.Steps, w.Every, w.Epoch, w.Batch = probeSteps, 1, probeSteps, probeBatch
	runtime := p.Runtimes[0]
	j := job{runtime: runtime, workload: w.on(runtime), remedy: Remedy{ID: Baseline}}
	run, err := p.run(j)
	if err != nil {
		return 0, err
	}
	run.Spec.Trace = false
	if err := os.MkdirAll(p.Out, 0o777); err != nil {
		return 0, err
	}
	o, err := p.observe(ctx, j, run)
	if err != nil {
		return 0, err
	}
	if o.Failure != "" {
		return 0, errors.New(string(o.Failure) + ": " + o.Cause)
	}
	// Other steps were disturbed, or ran something for the first time.
	var fastest time.Duration
	for _, sample := range o.Series.Samples() {
		if took := sample.Get(memory.StepTime); took.OK && (fastest == 0 || time.Duration(took.Bytes) < fastest) {
			fastest = time.Duration(took.Bytes)
		}
	}
	if fastest <= 0 {
		return 0, errors.New("the run reported no step time")
	}
	return fastest, nil
}
