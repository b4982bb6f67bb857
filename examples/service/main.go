// Command service serves a model, and fine-tunes it on data that its clients upload (docs/tutorial/service.md).
//
//	POST   /v1/models/NAME:predict   predictions, as in TensorFlow Serving's REST API
//	GET    /v1/models/NAME           the version that serves, as in TensorFlow Serving's REST API
//	POST   /v1/models/NAME:rollback  removes the version that serves, so that the one before it does
//	POST   /jobs?epochs=N&batch=N    fine-tunes on a table: the body, or the file "data" of a form
//	GET    /jobs/ID/events           its epochs and its end as server-sent events
//	GET    /jobs/ID                  the state of a job; DELETE cancels it, and removes its files
//	GET    /metrics                  figures for Prometheus
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/serve"
	"steadyfit/supervise"
	"steadyfit/train"
)

const (
	maxBody = 64 << 20 // bytes of the data of a job; a predict request has at most a sixteenth
	keep    = 20       // versions, and jobs that wait
	partial = "tmp"    // folder of a job that is being written or removed
)

func main() {
	supervise.Init(map[string]supervise.Task{"job": fineTune})
	s := &service{}
	listen := flag.String("listen", "127.0.0.1:8501", "address to listen on")
	flag.StringVar(&s.name, "name", "model", "name of the model")
	flag.StringVar(&s.models, "models", "models", "folder of the versions of the model")
	flag.StringVar(&s.dir, "jobs", "jobs", "folder of the jobs, on the file system of the versions")
	flag.StringVar(&s.holdout, "holdout", "", "held-out data; by default a fifth of the data of each job")
	flag.Int64Var((*int64)(&s.budget), "budget", int64(4*memory.GiB), "bytes of memory for a job")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := s.run(ctx, *listen)
	if stop(); err != nil {
		log.Fatal(err)
	}
}

type service struct {
	name, models, dir, holdout string
	budget                     memory.Bytes
	predictor                  *serve.Predictor
	ending                     <-chan struct{} // closed when the service ends
	queue                      chan *job       // the jobs that wait
	metrics                    expvar.Map
	mu                         sync.Mutex // protects:
	jobs                       []*job     // all jobs, oldest first, and their content
}

// run serves until ctx ends. Then it completes its requests, and the job that runs writes a checkpoint.
func (s *service) run(ctx context.Context, listen string) (err error) {
	listener, err := net.Listen("tcp", listen)
	if err = cmp.Or(err, s.load()); err != nil {
		return err
	}
	o := serve.Options{Batch: 32, Every: 10 * time.Second, Keep: keep, Observe: s.observe}
	if s.predictor, err = serve.Open(ctx, s.models, o); err != nil {
		return err
	}
	defer s.predictor.Close()
	slog.Info("listening", "address", listener.Addr().String())
	ctx, stop := context.WithCancel(ctx)
	s.ending = ctx.Done()
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 5 * time.Minute}
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			select {
			case j := <-s.queue:
				s.do(ctx, j)
			case <-ctx.Done():
			}
		}
	})
	group.Go(func() {
		defer stop()
		err = server.Serve(listener)
	})
	<-ctx.Done()
	_ = server.Shutdown(context.WithoutCancel(ctx)) // closing the listener may fail
	if group.Wait(); errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", http.MaxBytesHandler(s.predictor.Handler(s.name), maxBody/16))
	mux.HandleFunc("GET /jobs/{id}/events", s.events)
	mux.HandleFunc("GET /metrics", s.writeMetrics)
	for pattern, answer := range map[string]func(*http.Request) (any, error){
		"POST /v1/models/" + s.name + ":rollback": s.rollback,
		"POST /jobs": s.addJob, "GET /jobs/{id}": s.showJob, "DELETE /jobs/{id}": s.removeJob,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			object, err := answer(r)
			w.Header().Set("Content-Type", "application/json")
			if err != nil {
				code, tooLarge := status(http.StatusInternalServerError), (*http.MaxBytesError)(nil)
				if _ = errors.As(err, &code); errors.As(err, &tooLarge) {
					code, err = http.StatusRequestEntityTooLarge, tooLarge
				}
				w.WriteHeader(int(code))
				object = map[string]string{"error": err.Error()}
			}
			_ = json.NewEncoder(w).Encode(object) // an error means that the client is gone
		})
	}
	return http.MaxBytesHandler(mux, maxBody)
}

// status is an error with a status code.
type status int

func (s status) Error() string { return http.StatusText(int(s)) }

// rollback moves the version that serves to the folder of the jobs.
func (s *service) rollback(r *http.Request) (any, error) {
	err := s.predictor.Rollback(r.Context(), filepath.Join(s.dir, fmt.Sprint("version-", s.predictor.Version())))
	if errors.Is(err, serve.ErrNoVersion) {
		err = fmt.Errorf("%w: %w", status(http.StatusConflict), err)
	}
	return map[string]int64{"version": s.predictor.Version()}, err
}

// observe counts a prediction.
func (s *service) observe(took time.Duration, err error) {
	for _, most := range []float64{0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, math.Inf(1)} {
		if took.Seconds() <= most {
			s.metrics.Add(fmt.Sprintf("prediction_seconds_bucket{le=\"%g\"}", most), 1)
		}
	}
	s.metrics.Add("prediction_seconds_count", 1)
	s.metrics.AddFloat("prediction_seconds_sum", took.Seconds())
	if err != nil {
		s.metrics.Add("prediction_errors_total", 1)
	}
}

func (s *service) writeMetrics(w http.ResponseWriter, _ *http.Request) {
	s.metrics.Do(func(m expvar.KeyValue) { fmt.Fprintf(w, "service_%s %v\n", m.Key, m.Value) })
	fmt.Fprintf(w, "service_model_version %d\n", s.predictor.Version())
	usage, _ := memory.Read() // an error means that all amounts are 0
	for layer, r := range map[string]memory.Reading{"rss": usage.RSS, "anon": usage.Anon, "file": usage.File} {
		fmt.Fprintf(w, "service_memory_bytes{layer=%q} %d\n", layer, r.Bytes)
	}
}

// job fine-tunes the version Base. Its model becomes the version ID if its loss on held-out data is lower.
type job struct {
	ID      int64      `json:"id"`
	State   string     `json:"state"` // queued, running, promoted, refused, failed or cancelled
	Error   string     `json:"error,omitempty"`
	File    string     `json:"file"`
	Epochs  int        `json:"epochs"`
	Batch   int        `json:"batch"`
	Base    int64      `json:"base,omitempty"`
	Losses  [2]float64 `json:"losses"` // of the version Base and of the new model
	cancel  context.CancelFunc
	history []byte // once the job has ended
}

func (s *service) path(j *job, file string) string {
	return filepath.Join(s.dir, strconv.FormatInt(j.ID, 10), file)
}

// remove removes the folder of a job. The caller has locked mu.
func (s *service) remove(j *job) error {
	_ = os.Rename(s.path(j, ""), filepath.Join(s.dir, partial)) // there may be none
	return os.RemoveAll(filepath.Join(s.dir, partial))
}

// load finds the jobs that an earlier process has not completed.
func (s *service) load() error {
	_ = os.MkdirAll(s.dir, 0o777) // an error is one of the lock, which lasts as long as the process
	lock, err := syscall.Open(filepath.Join(s.dir, "lock"), syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o666)
	if err = cmp.Or(err, syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB)); err != nil {
		return fmt.Errorf("lock the jobs folder %s, which one service may use at a time: %w", s.dir, err)
	}
	_ = os.RemoveAll(filepath.Join(s.dir, partial))                  // what cannot be removed stays
	files, _ := filepath.Glob(filepath.Join(s.dir, "*", "job.json")) // the pattern is valid
	s.queue = make(chan *job, len(files)+keep+1)
	for _, file := range files {
		j := &job{}
		text, err := os.ReadFile(file)
		if err = cmp.Or(err, json.Unmarshal(text, j)); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if _, err := os.Stat(filepath.Join(s.models, strconv.FormatInt(j.ID, 10))); err == nil {
			_ = s.remove(j) // it was promoted
			continue
		}
		s.jobs = append(s.jobs, j)
		s.queue <- j
	}
	return nil
}

// find returns the job of a request. The caller has locked mu.
func (s *service) find(r *http.Request) (*job, error) {
	i := slices.IndexFunc(s.jobs, func(j *job) bool { return strconv.FormatInt(j.ID, 10) == r.PathValue("id") })
	if i < 0 {
		return &job{}, fmt.Errorf("%w: job %s", status(http.StatusNotFound), r.PathValue("id"))
	}
	return s.jobs[i], nil
}

func (s *service) showJob(r *http.Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(r)
	return *j, err
}

// addJob adds a job for the data in the body, or in the file "data" of a form.
func (s *service) addJob(r *http.Request) (any, error) {
	j := &job{State: "queued", File: "data.csv"}
	q := r.URL.Query()
	numbers := cmp.Or(q.Get("epochs"), "5") + " " + cmp.Or(q.Get("batch"), "32")
	delete(q, "epochs")
	delete(q, "batch")
	if _, err := fmt.Sscan(numbers, &j.Epochs, &j.Batch); err != nil || min(j.Epochs, j.Batch) < 1 || len(q) > 0 {
		return nil, fmt.Errorf("%w: expected only epochs and batch, as numbers of at least 1", status(http.StatusBadRequest))
	}
	body := r.Body
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") {
		file, header, err := r.FormFile("data")
		if err != nil {
			return nil, fmt.Errorf("%w: file data of the form: %w", status(http.StatusBadRequest), err)
		}
		body, j.File = file, "data"+header.Filename[strings.Index(header.Filename+".", "."):]
	}
	content, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil {
		return nil, fmt.Errorf("%w: %w", status(http.StatusBadRequest), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) >= keep {
		return nil, fmt.Errorf("%w: %d jobs wait", status(http.StatusServiceUnavailable), keep)
	}
	j.ID = time.Now().UnixMicro() // larger than those of earlier jobs
	text, err := json.Marshal(j)
	folder := filepath.Join(s.dir, partial)
	if err = cmp.Or(err, os.Mkdir(folder, 0o777), os.WriteFile(filepath.Join(folder, j.File), content, 0o666),
		os.WriteFile(filepath.Join(folder, "job.json"), text, 0o666), os.Rename(folder, s.path(j, ""))); err != nil {
		return nil, errors.Join(err, s.remove(j))
	}
	s.jobs = append(s.jobs[max(len(s.jobs)-2*keep, 0):], j) // without the oldest one, which has ended
	s.queue <- j
	return *j, nil
}

// removeJob cancels a job. The process of a job that runs ends soon.
func (s *service) removeJob(r *http.Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(r)
	switch j.State {
	case "running":
		j.cancel()
	case "queued":
		j.State = "cancelled"
		s.metrics.Add(`jobs_total{state="cancelled"}`, 1)
		err = s.remove(j)
	}
	return *j, err
}

// events sends the epochs of a job, whose numbers are the lines of its history, and its end.
func (s *service) events(w http.ResponseWriter, r *http.Request) {
	sent, _ := strconv.ParseUint(r.Header.Get("Last-Event-ID"), 10, 31)
	for w.Header().Set("Content-Type", "text/event-stream"); r.Context().Err() == nil; {
		found, err := s.showJob(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		j := found.(job)
		history, _ := os.ReadFile(s.path(&j, "history.jsonl")) // there is none before the first epoch
		lines := bytes.Split(append(history, j.history...), []byte("\n"))
		for ; int(sent) < len(lines)-1; sent++ { // the last one is empty, or not complete
			fmt.Fprintf(w, "id: %d\nevent: epoch\ndata: %s\n\n", sent+1, lines[sent])
		}
		if j.State != "queued" && j.State != "running" {
			text, _ := json.Marshal(j) // its numbers are finite
			fmt.Fprintf(w, "id: %d\nevent: end\ndata: %s\n\n", len(lines), text)
			return
		}
		_ = http.NewResponseController(w).Flush() // an error means that the client is gone
		select {
		case <-time.After(100 * time.Millisecond):
		case <-s.ending:
			return
		}
	}
}

// task is what a child process needs of a job.
type task struct {
	Data, Model, Holdout  string
	Epochs, Batch, Budget int
}

// do trains in a child process, and promotes the model if it is better. It does nothing for a job that was cancelled.
func (s *service) do(ctx context.Context, j *job) {
	of, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if j.State != "queued" {
		s.mu.Unlock()
		return
	}
	j.State, j.Base, j.cancel = "running", s.predictor.Version(), cancel
	now := *j
	s.mu.Unlock()
	o := supervise.Options{Deadline: 5 * time.Minute, Result: &now.Losses, Log: slog.Default()}
	base := filepath.Join(s.models, strconv.FormatInt(now.Base, 10))
	err := supervise.Run(of, o, "job", task{s.path(j, j.File), base, s.holdout, j.Epochs, j.Batch, int(s.budget)})
	now.State = "refused"
	if better := now.Losses[1] < now.Losses[0]; (err != nil || better) && s.predictor.Version() != now.Base {
		err = fmt.Errorf("version %d does not serve any more; add the job again", now.Base)
	} else if err == nil && better {
		now.State, err = "promoted", s.predictor.Promote(of, s.path(j, "model"), j.ID)
	}
	cancelled := of.Err() != nil // before ctx is read, since a signal ends ctx and then of
	switch {
	case err != nil && ctx.Err() != nil, errors.Is(err, context.Canceled) && !cancelled: // a signal
		return // the next process continues with the job
	case err != nil && cancelled:
		now.State = "cancelled"
	case err != nil:
		now.State, now.Error = "failed", strings.ReplaceAll(err.Error(), s.path(j, "")+"/", "")
	}
	now.history, _ = os.ReadFile(s.path(j, "history.jsonl")) // there may be none
	s.metrics.Add("jobs_total{state=\""+now.State+"\"}", 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.remove(j) // what cannot be removed stays
	*j = now
}

// fineTune is the task of a child process. It returns the losses of the model before and after the training.
func fineTune(ctx context.Context, w *supervise.Worker, spec []byte) (any, error) {
	var t task
	if err := json.Unmarshal(spec, &t); err != nil {
		return nil, err
	}
	path := func(name string) string { return filepath.Join(filepath.Dir(t.Data), name) }
	c := train.Config{
		Model: t.Model, Data: train.Data{Path: t.Data}, Validation: t.Holdout, Shuffle: true, Out: path("model"),
		Loop:        fit.Loop{Epochs: t.Epochs, Batch: t.Batch, Log: slog.Default()},
		Checkpoints: fit.Checkpoint{Folder: path("checkpoints"), Keep: 1}, Resume: true,
		Budget: train.Budget{Limit: memory.Bytes(t.Budget)}, Worker: w,
	}
	if c.Loop.Hook(fit.HistoryFile(path("history.jsonl"))); t.Holdout == "" {
		c.ValidationFraction = 0.2
	}
	before, err := train.Evaluate(ctx, c)
	if err == nil {
		_, err = train.Run(ctx, c)
	}
	after := before
	if c.Model = c.Out; err == nil {
		after, err = train.Evaluate(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	return [2]float64{before[0].Value, after[0].Value}, nil
}
