package autotune

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"steadyfit/data"
	"steadyfit/internal/child"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Env is the environment variable that marks a process as a trial.
const Env = "STEADYFIT_TRIAL"

// spec describes a trial. The parent sends it first. Each later line requests a round: executions for a number
// of seconds, but at least one execution.
type spec struct {
	Library string `json:"library"`
	// Model is the folder of the SavedModel, with its Hash, loss output, tags and constants.
	Model         string             `json:"model"`
	Hash          string             `json:"hash"`
	Loss          string             `json:"loss"`
	Tags          []string           `json:"tags"`
	Constants     map[string]float64 `json:"constants"`
	Options       session.Options    `json:"options"`
	Configuration Configuration      `json:"configuration"`
	// Live chooses between TensorFlow's threads and the calling thread, as a training does.
	Live bool `json:"live"`
	// Data is the file of the data (sample).
	Data  string `json:"data"`
	Batch int    `json:"batch"`
	// LearningRate is the rate for a model that takes one; 0 keeps the model's own.
	LearningRate float64 `json:"learning_rate"`
	// Budgeted makes the trial run like a training with a memory budget.
	Budgeted bool `json:"budgeted,omitempty"`
}

// answer is a message of a trial: one after warming up, and one for each round.
type answer struct {
	// Step and Execution are the seconds of a step and of an execution.
	Step      float64 `json:"step"`
	Execution float64 `json:"execution"`
	// Finite is false once a loss was NaN or infinite.
	Finite bool `json:"finite"`
	// Anon is the anonymous memory, and Base its amount before the session was opened.
	Anon memory.Bytes `json:"anon"`
	Base memory.Bytes `json:"base"`
	// Peak is the highest RSS since the session was opened. Mapped is the RSS that is not anonymous memory.
	Peak   memory.Bytes `json:"peak"`
	Mapped memory.Bytes `json:"mapped"`
	// Failure is the reason why the trial ends.
	Failure string `json:"failure,omitempty"`
}

// trialsAllowed is true once Init has been called.
var trialsAllowed atomic.Bool

// Init allows trials, which run in child processes of the same program. A program calls it at the start
// of main. In a trial, Init runs the trial and returns true when the trial has ended: the program must
// then exit. In all other processes it returns false at once.
func Init(ctx context.Context) (trial bool, err error) {
	trialsAllowed.Store(true)
	if os.Getenv(Env) == "" {
		return false, nil
	}
	// If memory runs out, the kernel should kill the trial. If this setting fails, the kernel
	// chooses a process itself.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	if err := runTrial(ctx); err != nil {
		return true, fmt.Errorf("autotune: %w", err)
	}
	return true, nil
}

// CheckAllowed returns an *option.Error if the program has not called Init.
func CheckAllowed() error {
	if trialsAllowed.Load() {
		return nil
	}
	return option.New("Config.Autotune", "trials run in child processes, which this program does not allow",
		"call train.Init at the start of main, or leave {Config.Autotune} empty")
}

// runTrial runs rounds of the trial that the variable Env describes, until an error occurs. A trial notices the end of
// its parent after the round that it runs.
func runTrial(ctx context.Context) (err error) {
	var s spec
	parent, err := child.Connect(Env, &s)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, parent.Send(answer{Failure: err.Error()}))
		}
	}()
	t, err := begin(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var a answer
	for i, start := 0, time.Now(); i < warmUp || !t.live.decided && time.Since(start) < liveTime; i++ {
		if a, err = t.run(ctx, 0); err != nil {
			return err
		}
	}
	for requests := json.NewDecoder(parent.Requests); ; {
		if err := parent.Send(a); err != nil {
			return err
		}
		var seconds float64
		if err := requests.Decode(&seconds); err != nil {
			return fmt.Errorf("request: %w", err) // io.EOF: the parent has ended
		}
		if a, err = t.run(ctx, seconds); err != nil {
			return err
		}
	}
}

// warmUp is the number of executions before the first round: TensorFlow rewrites and compiles
// graphs in the first execution, and allocates its buffers in the second.
const warmUp = 3

// liveTime is the maximum time of further warm-up, in which Live chooses.
const liveTime = 500 * time.Millisecond

// trainer trains on the same few batches repeatedly.
type trainer struct {
	session    *session.Session
	live       *Live // wraps session
	data       *data.InMemory
	executions *Executions // train with live
	finite     bool
	base       memory.Bytes
	memory     *memory.Sampler
}

// checkProcess checks that the variables of Environment had their effect on this process.
func (c Configuration) checkProcess() error {
	want := c.Allocator
	if want == tfprocess.Mmap {
		want = "glibc"
	}
	if want != "" && native.Allocator() != want {
		return fmt.Errorf("the allocator of the process is %s, expected %s", native.Allocator(), want)
	}
	if on, _ := tfprocess.OneDNN(); c.OneDNN != "" && on != (c.OneDNN == "on") {
		return fmt.Errorf("this TensorFlow does not turn oneDNN %s", c.OneDNN)
	}
	return nil
}

func (s spec) open() (*savedmodels.Model, error) {
	model, err := savedmodels.Open(s.Model, s.Tags...)
	if err == nil && model.Hash != s.Hash {
		err = fmt.Errorf("%w: the graph of %s is not the one that was planned", savedmodels.ErrChanged, s.Model)
	}
	if err == nil {
		model, err = model.WithLoss(s.Loss)
	}
	if err != nil {
		return nil, err
	}
	return model.WithConstants(s.Constants)
}

func begin(ctx context.Context, s spec) (t *trainer, err error) {
	if _, err := tfbind.Load(s.Library); err != nil {
		return nil, err
	}
	if err := s.Configuration.checkProcess(); err != nil {
		return nil, err
	}
	t = &trainer{finite: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	model, err := s.open()
	if err != nil {
		return t, err
	}
	if t.data, err = readSample(s.Data); err != nil {
		return t, err
	}
	t.base = ownMemory()
	o := s.Configuration.Apply(s.Options)
	if t.session, err = session.OpenModel(ctx, model, o); err != nil {
		return t, err
	}
	if err := t.opens(s); err != nil {
		return t, err
	}
	t.live = &Live{Session: t.session, chooser: chooser{decided: true}}
	if s.Live {
		t.live = NewLive(t.session, s.Batch)
	}
	if s.LearningRate > 0 {
		if err := t.session.SetLearningRate(s.LearningRate); err != nil {
			return t, err
		}
	}
	steps := t.session.Stackable(max(o.StepsPerExecution, 1), s.Batch)
	if n := s.Configuration.StepsPerExecution; n > 1 && n != steps {
		return t, fmt.Errorf("%w: expected %d steps per execution, but only %d are possible", session.ErrStack, n, steps)
	}
	// Batches are read ahead as in a training, since that takes memory and time.
	ahead := Prefetch(t.data, s.Batch, s.Budgeted)
	if s.Configuration.NoPrefetch {
		ahead = 0
	}
	t.executions = NewExecutions(t.live, t.data.Shuffle(1), s.Batch, steps, ahead)
	if o.Device.Executor != "" {
		return t, t.evaluate(ctx, s.Batch)
	}
	return t, nil
}

// opens begins to measure the peak of steps. With a budget it first makes malloc return memory, as
// package budget does.
func (t *trainer) opens(s spec) (err error) {
	if s.Budgeted {
		native.Trim()
		_ = native.SetMmapThreshold(tfprocess.MmapThreshold) // not every allocator has a threshold
	}
	if t.memory, err = memory.NewSampler(0); err != nil {
		return err
	}
	_ = t.memory.ResetPeak() // otherwise the peak includes opening TensorFlow
	return nil
}

// evaluate tries a batch of an evaluation. Some executors cannot run every graph, and a training
// must not fail at its first validation.
func (t *trainer) evaluate(ctx context.Context, batch int) error {
	n := len(t.session.EvaluateMetrics())
	for b, err := range t.data.Batches(data.Pass{Batch: batch}) {
		if n == 0 || err != nil {
			return err
		}
		return errors.Join(t.session.Evaluate(ctx, b, make([]float64, n)), t.session.ResetMetrics(ctx))
	}
	return nil
}

// run runs executions for this many seconds, but at least one.
func (t *trainer) run(ctx context.Context, seconds float64) (answer, error) {
	executions, took, start := 0, 0.0, time.Now()
	for executions == 0 || took < seconds {
		if err := t.executions.Run(ctx); err != nil {
			return answer{}, err
		}
		loss := t.executions.Out[0] // other metrics may be NaN, such as those of a class without samples
		t.finite = t.finite && !math.IsNaN(loss) && !math.IsInf(loss, 0)
		executions++
		took = time.Since(start).Seconds()
	}
	var sample memory.Sample // unknown amounts are 0
	if err := t.memory.Sample(0, &sample); err != nil {
		return answer{}, err
	}
	anon := sample.Get(memory.Anon).Bytes
	return answer{
		Step: took / float64(executions*t.executions.Steps), Execution: took / float64(executions), Finite: t.finite,
		Anon: anon, Base: t.base, Peak: sample.Get(memlayer.Peak).Bytes,
		Mapped: max(sample.Get(memory.RSS).Bytes-anon, 0),
	}, nil
}

func (t *trainer) close() error {
	err := errors.Join(t.executions.Close(), t.session.Close())
	if t.memory != nil {
		err = errors.Join(err, t.memory.Close())
	}
	if t.data != nil {
		err = errors.Join(err, t.data.Close())
	}
	return err
}

const (
	// sampleBatches is the maximum number of batches that trials train on, usually the number
	// of steps of an execution.
	sampleBatches = 50
	// sampleBytes is about the maximum size of the data that trials train on, which is small
	// compared with the memory of a trial.
	sampleBytes = 64 << 20
)

// sample writes the first batches of a dataset to a file for the trials: at least one, and as many as
// sampleBatches, sampleBytes and the time for reading allow. The file has the fields for the inputs
// of the train signature.
func sample(p *Plan, path string, within time.Duration) (err error) {
	plan, err := session.Compile(p.Model, p.Options)
	if err != nil {
		return err
	}
	pass := data.Pass{Batch: p.Batch, DropRemainder: true}
	fed, err := session.CheckData(p.Model, plan.Roles().Train, p.Data, pass)
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w, wanted, start, written := gob.NewEncoder(file), slices.Collect(maps.Values(fed)), time.Now(), int64(0)
	for b, err := range p.Data.Batches(pass) {
		if err != nil {
			return err
		}
		unused := func(f data.Field) bool { return !slices.Contains(wanted, f.Name) }
		if err := w.Encode(slices.DeleteFunc(slices.Clone(b.Fields), unused)); err != nil {
			return err
		}
		size, err := file.Seek(0, io.SeekCurrent)
		written++
		if err != nil || written == sampleBatches || size+size/written > sampleBytes || time.Since(start) > within {
			return err
		}
	}
	return nil
}

// readSample reads a file of sample.
func readSample(path string) (*data.InMemory, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []data.Field
	for r := gob.NewDecoder(bufio.NewReader(file)); ; {
		var batch []data.Field
		if err := r.Decode(&batch); errors.Is(err, io.EOF) {
			debug.FreeOSMemory() // the memory of reading is not that of a training
			return data.New(path, all...)
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if all == nil {
			all = batch
			continue
		}
		for i, f := range batch {
			all[i].Shape[0] += f.Shape[0]
			all[i].Values = reflect.AppendSlice(reflect.ValueOf(all[i].Values), reflect.ValueOf(f.Values)).Interface()
		}
	}
}
