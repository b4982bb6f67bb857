package matrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"steadyfit/memory"
)

const (
	// quickRun is how long the steps of one run of a shortened workload may take.
	quickRun = 8 * time.Second
	// probeSteps and probeBatch are the steps of the run that measures the machine.
	probeSteps, probeBatch = 4, 8
)

// Shorten gives the workloads of the plan less to do, for a first answer in a few
// minutes: as many samples as a verdict on what is plain takes. It first measures a step
// of the image model, since that takes 4 to 10 times as long where TensorFlow computes
// without oneDNN or the processor lacks AVX-512. There the batches of S3 are smaller and
// W2 has fewer steps.
func (p *Plan) Shorten(ctx context.Context) error {
	p.defaults()
	if err := p.check(); err != nil {
		return err
	}
	perStep, err := p.probe(ctx)
	if err != nil {
		return fmt.Errorf("measuring a step of the image model: %w", err)
	}
	for i := range p.Workloads {
		p.Workloads[i].shorten(perStep)
	}
	return nil
}

// shorten goes by the time of a step of the image model on probeBatch images.
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

// probe measures the time of a step of the image model on probeBatch images, on the
// first runtime of the plan.
func (p *Plan) probe(ctx context.Context) (time.Duration, error) {
	w, err := FindWorkload("S3")
	if err != nil {
		return 0, err
	}
	w.Steps, w.Every, w.Epoch, w.Batch = probeSteps, 1, probeSteps, probeBatch
	runtime := p.Runtimes[0]
	spec, env, err := p.spec(job{runtime: runtime, workload: w.on(runtime), remedy: Remedy{ID: Baseline}})
	if err != nil {
		return 0, err
	}
	spec.Trace = false
	if err := os.MkdirAll(p.Out, 0o777); err != nil {
		return 0, err
	}
	scratch, err := os.MkdirTemp(p.Out, "scratch-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(scratch)
	if spec.Scratch, err = filepath.Abs(scratch); err != nil {
		return 0, err
	}
	o, err := observe(ctx, p.Commands[runtime], env, spec, 0, p.Timeout, p.GPU)
	if err != nil {
		return 0, err
	}
	if o.failure != "" {
		return 0, fmt.Errorf("%s: %s", o.failure, o.cause)
	}
	samples := o.series.Samples()
	if len(samples) == 0 {
		return 0, errors.New("the run had no samples")
	}
	took := samples[len(samples)-1].Get(memory.StepTime)
	if !took.OK || took.Bytes <= 0 {
		return 0, errors.New("the run reported no step time")
	}
	return time.Duration(took.Bytes), nil
}
