// Command service is a worker that fine-tunes one model after the other, for days, in
// one process. It is a program to start from:
//
//   - Jobs are files in DIR/queue, taken in the order of their names. The trained model
//     of NAME.json is DIR/models/NAME; the file goes on to DIR/done, or with the reason
//     to DIR/failed.
//   - The worker is supervised. When it dies, by a crash or the kernel's OOM killer, or
//     hangs, the next one goes on with the job from its last checkpoint: some steps are
//     lost, and not the service. A job that takes the worker down three times is put
//     aside.
//   - A step for which there is no memory is trained in parts, if the model can be split.
//     With -limit, a job whose memory comes near it loads its model anew, under the release
//     profile, so that this gives memory back; after a job that has left the worker there,
//     another process goes on.
//   - Every job loads a model, trains it, saves it and closes everything. What is left of
//     memory after each is judged: the exit code is 1 if it grows from job to job.
//
// To see it work, with 40 jobs on built-in models:
//
//	go run ./examples/service -dir out/service -demo 40
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

func main() {
	err := run(os.Args[1:])
	if err != nil && !session.Reported(err) {
		fmt.Fprintln(os.Stderr, "service:", err)
	}
	os.Exit(exitCode(err))
}

// exitCode is 130 after Ctrl-C, 1 after another error, and in the parent that of the worker.
func exitCode(err error) int {
	var child *session.ChildError
	switch {
	case err == nil, errors.Is(err, session.ErrAgain):
		return 0
	case errors.As(err, &child):
		return child.Code
	case errors.Is(err, context.Canceled):
		return 130
	}
	return 1
}

func run(args []string) error {
	flags := flag.NewFlagSet("service", flag.ContinueOnError)
	w := &worker{out: os.Stdout, log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags.StringVar(&w.dir, "dir", "", "folder of the service")
	demo := flags.Int("demo", 0, "put this many jobs on built-in models into the queue")
	limit := flags.String("limit", "", "memory that the worker should not exceed for long, such as 2GiB")
	flags.DurationVar(&w.wait, "wait", 0, "look for new jobs this often, until Ctrl-C; 0 ends with the queue")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if w.dir == "" || flags.NArg() > 0 {
		return errors.New("usage: service -dir DIR [-demo JOBS] [-limit SIZE] [-wait TIME]")
	}
	if *limit != "" {
		var err error
		if w.limit, err = memory.ParseBytes(*limit); err != nil {
			return err
		}
	}
	if w.limit > 0 {
		// From here the process begins again, with the profile.
		if err := session.UseReleaseProfile(); err != nil {
			return err
		}
	}
	// The worker is started with the same arguments: only the first process fills the queue.
	if _, child := os.LookupEnv(session.SupervisedEnv); !child {
		if err := w.prepare(*demo); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return session.Supervise(ctx, session.Supervisor{Deadline: 5 * time.Minute, ExitCode: exitCode, Log: w.log}, w.work)
}

// The folders of a service. A job of queue has its checkpoints in running.
const (
	queue   = "queue"
	running = "running"
	models  = "models"
	done    = "done"
	failed  = "failed"
)

// job is a file of the queue.
type job struct {
	// Model is a folder, or builtin:NAME; Data is an .npz file, or builtin:NAME.
	Model  string `json:"model"`
	Data   string `json:"data"`
	Epochs int    `json:"epochs"`
	Batch  int    `json:"batch"`
	Seed   uint64 `json:"seed"`
}

type worker struct {
	dir   string
	limit memory.Bytes
	wait  time.Duration
	out   io.Writer
	log   *slog.Logger

	child *session.Supervised
	counts
	sampler *memory.Sampler
	sample  memory.Sample
	series  memory.Series
}

// counts is what the workers of a service have done, one after the other: Finished is how
// many jobs are, and Broken how many of them failed. It is in the file counts.json.
type counts struct{ Finished, Broken int }

func (w *worker) countsFile() string { return filepath.Join(w.dir, "counts.json") }

func (w *worker) writeCounts() error {
	text, err := json.Marshal(w.counts)
	if err != nil {
		return err
	}
	part := w.countsFile() + ".part"
	if err := os.WriteFile(part, text, 0o666); err != nil {
		return err
	}
	return os.Rename(part, w.countsFile())
}

func (w *worker) readCounts() error {
	text, err := os.ReadFile(w.countsFile())
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &w.counts); err != nil {
		return fmt.Errorf("%s: %w", w.countsFile(), err)
	}
	return nil
}

// prepare makes the folders, and the jobs of a demonstration, and counts from 0.
func (w *worker) prepare(demo int) error {
	for _, name := range []string{queue, running, models, done, failed} {
		if err := os.MkdirAll(filepath.Join(w.dir, name), 0o777); err != nil {
			return err
		}
	}
	for i := range demo {
		j := job{Model: []string{"builtin:digits", "builtin:digits-cnn"}[i%2], Data: "builtin:digits", Epochs: 2, Batch: 32, Seed: uint64(i)}
		text, err := json.MarshalIndent(j, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(w.dir, queue, fmt.Sprintf("demo-%04d.json", i)), text, 0o666); err != nil {
			return err
		}
	}
	return w.writeCounts()
}

// work is the worker, in a process of its own.
func (w *worker) work(ctx context.Context, c *session.Supervised) (err error) {
	w.child = c
	if w.sampler, err = memory.NewSampler(memory.SamplerOptions{}); err != nil {
		return err
	}
	defer w.sampler.Close()
	if err := w.readCounts(); err != nil {
		return err
	}
	// Workers that died while they saved a model have left parts of it. Nobody else writes there.
	if err := session.TidyModels(filepath.Join(w.dir, models), nil); err != nil {
		return err
	}
	if err := w.blame(); err != nil {
		return err
	}
	for {
		names, err := jobs(filepath.Join(w.dir, queue))
		if err != nil {
			return err
		}
		switch {
		case len(names) > 0:
			if err := w.one(ctx, names[0]); err != nil {
				return err
			}
		case w.wait == 0 || !w.idle(ctx):
			return w.outcome()
		}
	}
}

// jobs are the names of the job files of a folder, in order.
func jobs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && !strings.HasPrefix(name, ".") {
			names = append(names, name)
		}
	}
	return names, nil
}

// idle waits for new jobs; it is false if there is nothing more to wait for.
func (w *worker) idle(ctx context.Context) bool {
	defer w.child.Busy()()
	select {
	case <-time.After(w.wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// mostDeaths is how many workers may die of a job.
const mostDeaths = 3

// blame counts the death of the worker before this one as one of the job that it was
// at, and puts that aside if there are too many.
func (w *worker) blame() error {
	names, err := jobs(filepath.Join(w.dir, queue))
	if err != nil || len(names) == 0 || !w.child.Restarted() {
		return err
	}
	path := filepath.Join(w.dir, running, names[0], "deaths")
	if _, err := os.Stat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) {
		return nil // it died before it came to the job
	}
	deaths := 0
	if text, err := os.ReadFile(path); err == nil {
		deaths, _ = strconv.Atoi(string(text)) // what is torn counts from 0 again
	}
	deaths++
	if deaths >= mostDeaths {
		last, _ := w.child.LastDeath()
		return w.finish(names[0], fmt.Errorf("%d workers died of it; the last one: %s", deaths, last.Cause))
	}
	return os.WriteFile(path, []byte(strconv.Itoa(deaths)), 0o666)
}

// one does a job, from where another worker left it.
func (w *worker) one(ctx context.Context, name string) error {
	loss, err := w.train(ctx, name)
	if err != nil && endsService(err) {
		return fmt.Errorf("job %s: %w", name, err)
	}
	if err := w.finish(name, err); err != nil {
		return err
	}
	session.Trim()
	if err := w.sampler.Sample(w.series.Total()+1, &w.sample); err != nil {
		return err
	}
	w.series.Append(&w.sample)
	if err == nil {
		fmt.Fprintf(w.out, "job %s: loss %.4f, %v of anonymous memory\n", name, loss, w.sample.Get(memory.Anon))
	}
	if rss := w.sample.Get(memory.RSS); w.limit > 0 && rss.OK && rss.Bytes > w.limit {
		return w.child.Again(fmt.Sprintf("%v in use after job %s", rss, name))
	}
	return nil
}

// endsService tells errors that are not the job's: the next one would meet them, too, or
// another process may not. The job stays in the queue.
func endsService(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, session.ErrRetry) || errors.Is(err, fit.ErrLocked) ||
		errors.As(err, new(*fit.CheckpointError)) || errors.As(err, new(*session.SaveError))
}

// finish takes a job out of the queue once its checkpoints are gone: those that were left of
// one that is no longer there would be the result of the next job of that name. A worker that
// dies before it has counted the job leaves it uncounted.
func (w *worker) finish(name string, failure error) error {
	from, to := filepath.Join(w.dir, queue, name+".json"), done
	if failure != nil {
		to = failed
		fmt.Fprintf(w.out, "job %s failed: %v\n", name, failure)
		if err := os.WriteFile(filepath.Join(w.dir, failed, name+".txt"), []byte(failure.Error()+"\n"), 0o666); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(w.dir, running, name)); err != nil {
		return err
	}
	if err := os.Rename(from, filepath.Join(w.dir, to, name+".json")); err != nil {
		return err
	}
	w.Finished++
	if failure != nil {
		w.Broken++
	}
	return w.writeCounts()
}

// train is a job: nothing of it is left in memory when it returns.
func (w *worker) train(ctx context.Context, name string) (loss float64, err error) {
	text, err := os.ReadFile(filepath.Join(w.dir, queue, name+".json"))
	if err != nil {
		return 0, err
	}
	var j job
	if err := json.Unmarshal(text, &j); err != nil {
		return 0, err
	}
	model, err := openModel(j.Model)
	if err != nil {
		return 0, err
	}
	busy := w.child.Busy()
	train, err := openData(j.Data)
	busy()
	if err != nil {
		return 0, err
	}
	plan, err := session.Compile(model, session.Options{Seed: int64(j.Seed)})
	if err != nil {
		return 0, err
	}
	s, err := session.Open(ctx, plan)
	if err != nil {
		return 0, err
	}
	defer s.Close()

	checkpoints := filepath.Join(w.dir, running, name)
	loop := fit.Loop{Session: s, Batch: j.Batch, Epochs: j.Epochs, Resume: checkpoints, Log: w.log, Alive: w.alive}
	loop.Hook(fit.Checkpoint(checkpoints, fit.EverySteps(20), fit.Keep(1)))
	if s.CanSplit() {
		loop.Recover = fit.OnOutOfMemory(s, j.Batch)
		loop.Hook(fit.SplitAfterDeaths(s, j.Batch, w.child.MemoryDeaths()))
	}
	if w.limit > 0 {
		loop.Hook(fit.ResetPolicy{Depth: session.ResetReload, Limit: w.limit}.Hook(s))
	}
	history, err := loop.Run(ctx, train.Shuffle(j.Seed))
	if err != nil {
		return 0, err
	}
	loss, _ = history.Last().Metrics.Get("loss")
	// Ctrl-C now must not cost what is trained.
	return loss, s.SaveModel(context.WithoutCancel(ctx), filepath.Join(w.dir, models, name))
}

// alive tells the supervisor of a step. It takes steps that only go up for progress, so
// those of a job are counted on from the jobs before.
func (w *worker) alive(step int64) {
	const perJob = 1 << 32
	if step > 0 {
		step += int64(w.Finished) * perJob
	}
	w.child.Alive(step)
}

func openModel(name string) (*savedmodels.Model, error) {
	if builtin, ok := strings.CutPrefix(name, "builtin:"); ok {
		return savedmodels.Builtin(builtin)
	}
	return savedmodels.Open(name)
}

func openData(name string) (*data.Memory, error) {
	if builtin, ok := strings.CutPrefix(name, "builtin:"); ok {
		train, _, err := data.Builtin(builtin)
		return train, err
	}
	return data.OpenNPZ(name)
}

// outcome is what the service says at its end. The memory is that of this worker: one
// that another has gone on for had its own.
func (w *worker) outcome() error {
	fmt.Fprintf(w.out, "%d jobs, %d of them failed\n", w.Finished, w.Broken)
	verdict := w.series.Judge(memory.Criteria{Budget: 32 * memory.KiB})
	fmt.Fprintln(w.out, verdict)
	switch {
	case verdict.Kind == memory.Leak:
		return errors.New("memory grows from job to job")
	case w.Broken > 0:
		return fmt.Errorf("%d jobs failed; see %s", w.Broken, filepath.Join(w.dir, failed))
	}
	return nil
}
