// Command service fine-tunes one model after the other, for days, in one supervised process.
//
// A job is a file DIR/queue/NAME.json: a train.Config as JSON. By default it is autotuned and has
// a memory budget of 4 GiB. Its trained model is DIR/models/NAME. A worker that crashes or hangs
// is restarted, and resumes its job from the last checkpoint. The exit code is 1 if memory grows
// from job to job. docs/tutorial/service.md has a queue to try it with.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
	"steadyfit/train"
)

func main() {
	train.Init(nil) // processes that measure for Autotune
	supervise.Init(map[string]supervise.Task{"work": func(ctx context.Context, w *supervise.Worker, spec []byte) (any,
		error) {
		var dir string
		if err := json.Unmarshal(spec, &dir); err != nil {
			return nil, err
		}
		return nil, service{dir}.work(ctx, w)
	}})
	dir := flag.String("dir", "service", "folder of the service")
	flag.Parse()
	err := service{*dir}.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
	}
	os.Exit(supervise.ExitCode(err))
}

type service struct{ dir string }

func (s service) path(folder, name string) string { return filepath.Join(s.dir, folder, name) }

func (s service) jobs(folder string) (names []string) {
	paths, _ := filepath.Glob(s.path(folder, "*.json")) // the pattern is valid
	for _, path := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(path), ".json"))
	}
	return names
}

// run supervises workers until no job is left. A job that crashes three workers has failed.
func (s service) run() error {
	for _, folder := range []string{"queue", "running", "models", "done", "failed"} {
		if err := os.MkdirAll(s.path(folder, ""), 0o777); err != nil {
			return err
		}
	}
	for {
		options := supervise.Options{Deadline: 5 * time.Minute, Restarts: 2, Log: slog.Default()}
		err := supervise.Run(context.Background(), options, "work", s.dir)
		names, failed := s.jobs("queue"), new(supervise.Error)
		if !errors.As(err, &failed) || len(failed.Crashes) == 0 || len(names) == 0 {
			return err
		}
		if err := s.finish(names[0], failed); err != nil {
			return err
		}
	}
}

// work runs all jobs in a child process, and judges the memory after the jobs.
func (s service) work(ctx context.Context, worker *supervise.Worker) error {
	var after memory.Series
	for names := s.jobs("queue"); len(names) > 0; names = s.jobs("queue") {
		err := s.train(ctx, worker, names[0])
		if endsService(err) {
			return fmt.Errorf("job %s: %w", names[0], err)
		}
		tfbind.TrimMalloc()
		usage, readErr := memory.Read()
		if err := errors.Join(s.finish(names[0], err), readErr); err != nil {
			return err
		}
		after.Append(&memory.Sample{Step: after.Total() + 1,
			Values: []memory.Value{{Layer: memory.Anon, Reading: usage.Anon}}})
	}
	return s.outcome(&after)
}

func (s service) train(ctx context.Context, worker *supervise.Worker, name string) error {
	c := train.Config{
		Shuffle: true, Prefetch: -1, Checkpoints: train.Checkpoints{EverySteps: 20, Keep: 1},
		Autotune: train.Autotune{Mode: train.On}, Budget: train.Budget{Limit: 4 * memory.GiB},
	}
	text, err := os.ReadFile(s.path("queue", name+".json"))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return err
	}
	c.Checkpoints.Folder, c.Resume, c.Out, c.Worker, c.Loop.Log = s.path("running", name), true, s.path("models", name),
		worker, slog.Default()
	before := int64(len(s.jobs("done"))+len(s.jobs("failed"))) << 32 // so steps increase from job to job
	c.Loop.Alive = func(step int64) { worker.Alive(step + before*min(step, 1)) }
	result, err := train.Run(ctx, c)
	if err == nil {
		fmt.Printf("job %s: %v\n", name, result.History.Final())
	}
	return err
}

// endsService reports whether the worker has to end because an error is not due to the job.
func endsService(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, supervise.ErrRestart) ||
		errors.Is(err, supervise.ErrRetry) ||
		errors.Is(err, fit.ErrLocked) || errors.As(err, new(*fit.WriteError)) || errors.As(err, new(*session.SaveError))
}

// finish takes a job out of the queue. It first removes the job's checkpoints, since another
// job with that name would resume from them.
func (s service) finish(name string, failure error) error {
	to, err := "done", os.RemoveAll(s.path("running", name))
	if failure != nil && err == nil {
		to = "failed"
		fmt.Printf("job %s failed: %v\n", name, failure)
		err = os.WriteFile(s.path(to, name+".txt"), []byte(failure.Error()+"\n"), 0o666)
	}
	if err != nil {
		return err
	}
	return os.Rename(s.path("queue", name+".json"), s.path(to, name+".json"))
}

// outcome prints the number of jobs and the verdict on the memory, and returns the final error.
func (s service) outcome(after *memory.Series) error {
	failed, verdict := len(s.jobs("failed")), after.Judge(memory.Criteria{Budget: 32 * memory.KiB})
	fmt.Printf("jobs done: %d, failed: %d\n%v\n", len(s.jobs("done")), failed, verdict)
	switch {
	case verdict.Kind == memory.Leak:
		return errors.New("memory grows from job to job")
	case failed > 0:
		return fmt.Errorf("%d jobs failed; see %s", failed, s.path("failed", ""))
	}
	return nil
}
