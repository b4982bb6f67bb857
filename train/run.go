package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"steadyfit/adapter"
	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/autotune"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/child"
	"steadyfit/internal/contract"
	"steadyfit/internal/rank"
	"steadyfit/internal/tfenv"
	"steadyfit/internal/tfprocess"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// Run trains a model. The package comment has requirements on the program. The error is
//   - an *option.Error if an option cannot work.
//   - an *InputError if the model, the data or a folder cannot be used. It wraps the cause, such as
//     a *data.RowError. Steps may have been trained, for example before a damaged image.
//   - an error of session.Open.
//   - an error of fit.Loop.Run.
//   - a *session.SaveError if the trained model could not be saved.
//   - with Config.Supervise, an error of supervise.Run.
func Run(ctx context.Context, c Config) (Result, error) {
	none := Result{History: &fit.History{}}
	if c.Loop.Log == nil && c.Progress != nil {
		if _, file := c.Progress.(*os.File); !file { // the loop and a goroutine that writes checkpoints use it
			c.Progress = &oneWriter{w: c.Progress}
		}
		c.Loop.Log = slog.New(slog.NewTextHandler(c.Progress, nil))
	}
	c.Supervisor.Log = cmp.Or(c.Supervisor.Log, c.Loop.Log)
	c.Loop.Log = cmp.Or(c.Loop.Log, slog.New(slog.DiscardHandler))
	c.Session.Seed, c.Session.ReadOnly, c.Session.ListAllocations = int64(c.Seed), false, c.OnOutOfMemory == ""
	c.Autotune.Fixed = autotune.Fixed(c.Autotune.Fixed).With(c.Session)
	c.Autotune.Fixed.StepsPerExecution = c.Autotune.Fixed.StepsPerExecution || c.ChooseSteps
	t := &training{Config: c, worker: c.Worker, started: time.Now()}
	_, _, t.later = tfprocess.FirstSession()
	if err := t.prepareProcess(); err != nil {
		return none, unusable(err)
	}
	t.asRank()
	options, child := t.supervisor()
	if !child {
		return t.process(ctx, c.Worker)
	}
	if options.Outcome == nil {
		options.Outcome = func(err error) (int, string) { return ExitCode(err), err.Error() }
	}
	result := none
	options.Result = &result
	err := supervise.Run(ctx, options, func(ctx context.Context, worker *supervise.Worker) (err error) {
		result, err = t.process(ctx, worker)
		return err
	})
	return result, err
}

// oneWriter makes a writer safe for concurrent use.
type oneWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *oneWriter) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(b)
}

// training is the state of one call of Run.
type training struct {
	Config
	worker  *supervise.Worker
	started time.Time
	// later is true if the process has opened a session before this training.
	later bool

	model  *savedmodels.Model
	start  *adapter.Adapter // the weights to start from; nil for those of the model
	plan   *session.Plan
	reader *reader
	data   data.Dataset
	// samples is the training data before shuffling. temporary unmaps and removes files, in
	// reverse order.
	samples        *data.InMemory
	augmentedField data.FieldSpec // the images that Augmentation changes; empty without it
	temporary      []func() error
	// tuned is the plan of autotune, or nil. choice is the chosen configuration. most is the
	// maximum number of steps per execution; see pause.
	tuned  *autotune.Plan
	choice autotune.Choice
	// prior is the configuration that TensorFlow was opened with, before any measurement.
	prior autotune.Configuration
	most  int
	// live chooses between TensorFlow's threads and the calling thread during the training.
	live    bool
	session *session.Session
	// profiled is the session of the loop if steps are traced; nil otherwise.
	profiled *profiled
	// resumed is true if the loop has resumed the training of an earlier process.
	resumed bool
	// restartErr is the error that requests another process, or nil.
	restartErr error
}

// prepareProcess checks the options. It restarts the program if they need environment variables
// that are not set.
func (t *training) prepareProcess() error {
	if err := t.check(); err != nil {
		return err
	}
	warnings, err := autotune.UseEnvironment(t.Session.Device, t.ReleaseMemory, t.Allocator)
	if err != nil {
		return err
	}
	// An earlier process of this training has reported the warnings.
	if _, supervised := os.LookupEnv(child.SupervisedEnv); supervised && t.Worker == nil || restartedAlready() {
		return nil
	}
	for _, w := range warnings {
		t.report("warning", w)
	}
	if t.Cluster != nil {
		t.report("cluster", t.Cluster)
	}
	return nil
}

func (t *training) report(subject string, value any) {
	if t.Report != nil {
		t.Report(subject, value)
		return
	}
	t.Loop.Log.Info(subject, "value", value)
}

func (t *training) process(ctx context.Context, worker *supervise.Worker) (Result, error) {
	t.worker = worker
	r, err := t.train(ctx)
	if ofInput(err) {
		err = unusable(err)
	}
	return r, asConfig(t.restartable(err, t.continues() && (!t.resumed || notBegun(err))))
}

// continues reports whether an earlier process has trained steps of this training.
func (t *training) continues() bool { return t.Worker == nil && t.worker.Status().Step > 0 }

func (t *training) train(ctx context.Context) (r Result, err error) {
	r.History = &fit.History{}
	defer func() {
		if closed := errors.Join(t.session.Close(), t.reader.close(), t.removeTemporary()); err == nil {
			err = closed
		}
	}()
	if err := t.openInputs(); err != nil {
		return r, unusable(err)
	}
	if err := t.openSession(ctx); err != nil {
		return r, err
	}
	if err := t.reportEffects(ctx); err != nil {
		return r, err
	}
	t.arrange()
	t.reportNotes()
	r.History, err = t.Loop.Run(ctx, t.data)
	t.profiled.end()
	err = t.orRestart(r.History, err)
	// After an interrupt, or if a log file could not be written, a complete training still saves
	// its result.
	if r.History.Done && every(err, final) {
		unsaved := t.save(context.WithoutCancel(ctx), &r)
		err = errors.Join(r.withSaved(err), unsaved)
	}
	// The ranks wait for each other at the end: after an interrupt, until the first rank has written its
	// checkpoint; after an error that all ranks have, until slower ranks have it, too.
	if err == nil || t.stopped() || errors.Is(err, fit.ErrDiverged) || errors.Is(err, rank.ErrDiffer) {
		err = errors.Join(err, t.leave(r, err))
	}
	if err != nil {
		return r, t.advise(err, r.History.Checkpoint)
	}
	t.noteSpeed(r.History)
	return r, nil
}

// openInputs opens the model and the data, and checks that they can be trained.
func (t *training) openInputs() error {
	if err := t.openModel(); err != nil {
		return err
	}
	if err := t.openData(); err != nil {
		return err
	}
	t.arrangeCheckpoints()
	return t.checkLoop()
}

// orRestart returns the error that requests another process, if the loop ended because of that
// request.
func (t *training) orRestart(h *fit.History, err error) error {
	tolerated := err == nil || t.ContinueOnWriteError && every(err, unlogged)
	if t.restartErr == nil || h.Done || !tolerated {
		return err
	}
	if err != nil {
		t.Loop.Log.Warn("another process continues and tries to add the missing lines", "error", err)
	}
	return t.restartErr
}

func (t *training) openModel() (err error) {
	continues := t.continues()
	t.adapt(continues)
	t.follow()
	if t.Checkpoints.Folder != "" && !t.Resume {
		if err := checkpoint.CheckUnused(t.Checkpoints.Folder); err != nil {
			return err
		}
	}
	if t.model, err = OpenModel(t.Model, t.LossOutput); err != nil {
		return err
	}
	if err := t.checkOut(); err != nil {
		return err
	}
	if err := t.openAdapter(); err != nil {
		return err
	}
	if err := t.compile(); err != nil {
		return err
	}
	if !continues && !restartedAlready() {
		t.warn()
	}
	return nil
}

// adapt makes this process resume the training if an earlier process started it (continues), without
// another check of the images.
func (t *training) adapt(continues bool) {
	t.Resume = t.Resume || continues
	t.CheckImages = t.CheckImages && !continues
}

func (t *training) checkOut() error {
	if t.OutVersion != "" {
		return t.unwritable(t.versions().Check(t.model))
	}
	if t.Out == "" {
		return nil
	}
	return t.unwritable(session.CheckOutput(t.Out, t.model))
}

// unwritable returns the error for a folder that cannot be used for the trained model.
func (t *training) unwritable(err error) error {
	if t.continues() && t.ContinueOnWriteError && errors.As(err, new(*session.SaveError)) {
		// Writing the model may succeed at the end of the training.
		t.Loop.Log.Warn("the trained model could not be written now", "error", err)
		return nil
	}
	return err
}

func (t *training) compile() (err error) {
	t.plan, err = session.Compile(t.model, t.Session)
	return err
}

// warn logs problems of the model that matter for this training. State that is not in
// checkpoints matters for resumes and resets, except for the depth "restore".
func (t *training) warn() {
	problems := t.model.ProblemsFor(t.Session.TrainSignature)
	for _, p := range problems {
		if p.Code == contract.CodeMetadata {
			t.Loop.Log.Warn("the notes of the exporter cannot be read; names of classes and ranges of inputs are unknown", "problem", p.Message, "fix", p.Fix)
		}
	}
	resets := t.resets() && t.Reset.Depth != contract.ResetRestore
	if !resets && t.Supervise != Always && !t.Resume && t.Budget.Limit == 0 && t.OnOutOfMemory == "" {
		return
	}
	for _, p := range problems {
		if p.Code == contract.CodeStateNotSaved {
			t.Loop.Log.Warn("resets and resumes will change the numbers of this training", "problem", p.Message, "fix", p.Fix)
		}
	}
}

func (t *training) checkLoop() error {
	if err := t.Loop.Check(t.data, t.plan.TrainMetrics(), t.plan.EvaluateMetrics()); err != nil {
		return err
	}
	return t.plan.Check(t.Loop.Batch, t.Loop.Validation != nil, t.Loop.LearningRate != nil)
}

// openSession opens TensorFlow, chooses the configuration, and opens the session.
func (t *training) openSession(ctx context.Context) error {
	if err := t.startWithPrior(); err != nil {
		return err
	}
	if err := t.quiet(); err != nil {
		return err
	}
	if _, err := tfbind.Load(t.TensorFlow); err != nil {
		return err
	}
	if err := t.limitPool(); err != nil {
		return err
	}
	warning, err := session.ResolvePrecision(&t.Session.Device)
	if err != nil {
		return err
	}
	if warning != nil {
		t.report("warning", warning)
	}
	if err = t.cacheFeatures(ctx); err == nil && t.session == nil {
		err = t.openTuned(ctx)
	}
	if errors.Is(err, session.ErrNoGPU) && t.Budget.ofGPU() {
		return option.Errorf("{Budget.Layer gpu process used} (use {Budget.Layer rss} to limit the memory of the process): %w", err)
	}
	if err != nil {
		return err
	}
	t.decodeJPEG(t.session.DecodeJPEG)
	if err := t.checkImages(ctx); err != nil {
		return err
	}
	if t.start != nil {
		if err := t.session.Swap(ctx, t.start); err != nil {
			return err
		}
	}
	if why := t.session.Capabilities().Uncompiled(t.Loop.Batch, t.most); why != "" && !t.continues() {
		t.report("note", text("some steps are not compiled despite {Options.Compiled}: "+why))
	}
	return nil
}

// quiet makes TensorFlow log only warnings and errors; in a rank, whose server warns of each
// clean-up after a step, only errors.
func (t *training) quiet() error {
	level := tfenv.LogWarnings
	if _, ranked := t.ranked(); ranked {
		level = tfenv.LogErrors
	}
	if _, open := tfprocess.Environment(); open || t.Session.Device.LogLevel != "" {
		return nil
	}
	return tfenv.SetLogLevel(level)
}

// openTuned opens the session with the configuration that autotune chooses.
func (t *training) openTuned(ctx context.Context) (err error) {
	if _, ranked := t.ranked(); ranked {
		return t.openRank(ctx)
	}
	if err := t.chooseConfiguration(ctx); err != nil {
		return err
	}
	t.session, err = session.Open(ctx, t.plan)
	return err
}

func (t *training) chooseConfiguration(ctx context.Context) error {
	if err := t.chooseSteps(); err != nil {
		return err
	}
	if err := t.autotune(ctx); err != nil {
		return err
	}
	return t.compile()
}

func (t *training) chooseSteps() error {
	if !t.ChooseSteps {
		return nil
	}
	n, err := t.plan.ChooseSteps(t.data, t.Loop.Batch)
	if errors.Is(err, session.ErrStack) {
		t.Loop.Log.Info("train steps run one by one", "reason", err)
		err = nil
	}
	if err != nil {
		return err
	}
	t.Session.StepsPerExecution = n
	return t.compile()
}

// reportEffects reports the resolved settings, for which it may trace a step. The session
// undoes that step.
func (t *training) reportEffects(ctx context.Context) error {
	e, err := t.session.Resolved(ctx, data.Batch{})
	if err == nil && t.traces() {
		defer t.worker.Busy()()
		for b, bad := range t.data.Batches(t.pass()) {
			if bad == nil { // the loop reports bad data itself
				e, err = t.session.Resolved(ctx, b)
			}
			break
		}
	}
	if err != nil {
		return err
	}
	t.report("resolved settings", e)
	for _, w := range e.Missing(t.Session.Device) {
		t.report("warning", w)
	}
	return nil
}

func (t *training) traces() bool {
	switch t.Trace {
	case Always, Never:
		return t.Trace == Always
	case "":
		o := t.Session.Device
		required, ignored := o.ForGPU()
		return t.mayTrace() && (o.Precision != "" || o.XLA != "" && o.XLA != "off" || len(required)+len(ignored) > 0)
	}
	return t.mayTrace()
}

func (t *training) mayTrace() bool { return t.Budget.Limit == 0 && !(t.resets() && t.Reset.Limit != 0) }

func (t *training) reportNotes() {
	if rank, _ := t.ranked(); rank > 0 {
		return
	}
	if t.Out == "" && t.OutVersion == "" && t.OutAdapter == "" && t.Checkpoints.Folder == "" {
		t.report("note", text("without {Config.Out} or {Config.Checkpoints}, the trained model is not saved"))
	}
	if t.OutAdapter != "" && t.model.Base == "" {
		t.report("note", text("the model has no frozen weights, so {Config.OutAdapter} holds all of them"))
	}
	if f := t.augmentedField; len(f.Shape) == 2 && !f.Image { // such a field may also be a series
		t.report("note", fmt.Sprintf("augmentation %s changes field %s, whose samples of shape %v are taken as images of %d rows and %d columns", t.Augmentation, f.Name, f.Shape, f.Shape[0], f.Shape[1]))
	}
	names := t.reader.csv.Classes
	if len(names) == 0 || len(t.reader.csv.Names) > 0 {
		return
	}
	shown := make([]string, min(8, len(names)))
	for i := range shown {
		shown[i] = fmt.Sprintf("%s %d", names[i], i)
	}
	order := "the order of their names"
	if s := t.reader.csv.Schema; s != nil && s.Columns[t.reader.csv.Label].Values != nil {
		order = "the order of the schema"
	}
	t.report("note", "the model does not name its classes; they are numbered in "+order+": "+strings.Join(shown, ", "))
}
