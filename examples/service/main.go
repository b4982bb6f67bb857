// Command service fine-tunes one model after the other in one process, as a service
// does for days, and watches its own memory: each job loads a model, trains it, saves
// it and closes everything. At the end it says whether it grew from job to job.
//
//	go run ./examples/service 40
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	jobs := 40
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 1 {
			return fmt.Errorf("%s: expected a number of jobs", os.Args[1])
		}
		jobs = n
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	out, err := os.MkdirTemp("", "service-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)

	sampler, err := memory.NewSampler(memory.SamplerOptions{})
	if err != nil {
		return err
	}
	defer sampler.Close()
	var series memory.Series
	var sample memory.Sample
	for job := 1; job <= jobs; job++ {
		loss, err := fineTune(ctx, uint64(job), filepath.Join(out, "model"))
		if err != nil {
			return fmt.Errorf("job %d: %w", job, err)
		}
		session.Trim()
		if err := sampler.Sample(job, &sample); err != nil {
			return err
		}
		series.Append(&sample)
		fmt.Printf("job %d: loss %.4f, %v of anonymous memory\n", job, loss, sample.Get(memory.Anon))
	}
	fmt.Println(series.Judge(memory.Criteria{Budget: 32 * memory.KiB}))
	return nil
}

// fineTune is a job: nothing of it is left when it returns but the saved model.
func fineTune(ctx context.Context, seed uint64, out string) (loss float64, err error) {
	name := []string{"digits", "digits-cnn"}[seed%2]
	model, err := savedmodels.Builtin(name)
	if err != nil {
		return 0, err
	}
	train, _, err := data.Builtin("digits")
	if err != nil {
		return 0, err
	}
	s, err := session.Open(ctx, model, session.Options{Seed: int64(seed)})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	loop := fit.Loop{Session: s, Batch: 32, Epochs: 2}
	history, err := loop.Run(ctx, train.Shuffle(seed))
	if err != nil {
		return 0, err
	}
	loss, _ = history.Last().Metrics.Get("loss")
	return loss, s.SaveModel(ctx, out)
}
