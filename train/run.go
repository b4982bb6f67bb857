package train

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/contract"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// Run trains a model in this process, or in a child process if an option needs one (Init). The error is
//   - an *option.Error if an option cannot work.
//   - an *InputError if the model, the data or a folder cannot be used. It wraps the cause, such as
//     a *data.RowError. Steps may have been trained, for example before a damaged image.
//   - an error of session.Open.
//   - an error of fit.Loop.Run.
//   - ErrBudget if the memory budget cannot be kept.
//   - a *session.SaveError if the trained model could not be saved.
//   - with Config.Supervise, an error of supervise.Run.
func Run(ctx context.Context, c Config) (Result, error) {
	t := newTraining(c, c.Worker, nil)
	missing, err := t.prepare()
	if err != nil {
		return noResult(), unusable(err)
	}
	// TensorFlow reads the variables of the other options when it is opened.
	other := len(missing) > 0 && t.Allocator != ""
	options, child := t.supervisor(other)
	if err := t.checkChild(child, other); err != nil {
		return noResult(), err
	}
	if child {
		return t.inChild(ctx, options, missing, nil)
	}
	r, err := t.train(ctx)
	var leave *elsewhere
	if errors.As(err, &leave) {
		options, _ = t.supervisor(true)
		return t.inChild(ctx, options, leave.missing, &leave.chosen)
	}
	return r, err
}

// newTraining returns the training of a Config in this process. chosen is the configuration that another
// process has measured to be the fastest; nil if none has.
func newTraining(c Config, worker *supervise.Worker, chosen *autotune.Configuration) *training {
	if c.Loop.Log == nil && c.Progress != nil {
		if _, file := c.Progress.(*os.File); !file { // the loop and a goroutine that writes checkpoints use it
			c.Progress = &oneWriter{w: c.Progress}
		}
		c.Loop.Log = slog.New(slog.NewTextHandler(c.Progress, nil))
	}
	c.Supervisor.Log = cmp.Or(c.Supervisor.Log, c.Loop.Log)
	c.Loop.Log = cmp.Or(c.Loop.Log, slog.New(slog.DiscardHandler))
	c.Session.Seed, c.Session.ReadOnly = int64(c.Seed), false
	return &training{Config: c, worker: worker, chosen: chosen}
}

func noResult() Result { return Result{History: &fit.History{}} }

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
	worker *supervise.Worker
	// chosen is the configuration that the parent of this child process has measured to be the fastest;
	// nil if it measured none.
	chosen *autotune.Configuration

	model  *savedmodels.Model
	start  *session.Adapter // the weights to start from; nil for those of the model
	plan   *session.Plan
	reader *reader
	data   data.Dataset
	// samples is the training data before shuffling.
	samples       *data.InMemory
	imagesChecked bool
	// choice is the choice of autotune.
	choice  autotune.Choice
	session *session.Session
	// profiled is the session of the loop if steps are traced; nil otherwise.
	profiled *profiled
	// resumed is true if the loop has resumed the training of an earlier process.
	resumed bool
	// restartErr is the error that requests another process, or nil.
	restartErr error
	// removeBest removes the temporary folder of the best checkpoint; nil without one.
	removeBest func() error
}

// prepare checks the options. It returns the environment variables for a child process.
func (t *training) prepare() (missing []gpuopts.Variable, err error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	warnings, err := t.Session.Device.Check(os.Environ())
	if err == nil {
		missing, err = t.environment()
	}
	t.asRank()
	if err != nil || t.worker != nil && t.Worker == nil { // the parent has reported the warnings
		return missing, err
	}
	for _, w := range warnings {
		t.report("warning", w)
	}
	if t.Cluster != nil {
		t.report("cluster", t.Cluster)
	}
	return missing, nil
}

func (t *training) report(subject string, value any) {
	if level := map[string]slog.Level{"warning": slog.LevelWarn}[subject]; t.Report != nil {
		t.Report(subject, value)
	} else {
		t.Loop.Log.Log(context.Background(), level, subject, "value", value)
	}
}

// here trains in this process, which is a child.
func (t *training) here(ctx context.Context) (Result, error) {
	if _, err := t.prepare(); err != nil {
		return noResult(), unusable(err)
	}
	return t.train(ctx)
}

// train trains in this process.
func (t *training) train(ctx context.Context) (Result, error) {
	if err := session.UseEnvironment(t.Session.Device); err != nil {
		return noResult(), unusable(err)
	}
	r, err := t.run(ctx)
	if ofInput(err) {
		err = unusable(err)
	}
	return r, t.restartable(err, t.continues() && (!t.resumed || notBegun(err)))
}

// continues reports whether an earlier process has trained steps of this training.
func (t *training) continues() bool { return t.Worker == nil && t.worker.Status().Step > 0 }

func (t *training) run(ctx context.Context) (r Result, err error) {
	r = noResult()
	defer func() {
		closed := errors.Join(t.session.Close(), t.reader.close())
		if t.removeBest != nil {
			closed = errors.Join(closed, t.removeBest())
		}
		if err == nil {
			err = closed
		}
	}()
	for _, open := range []func() error{t.openModel, t.openData, t.arrangeCheckpoints, t.checkLoop} {
		if err := open(); err != nil {
			return r, unusable(err)
		}
	}
	if err := t.openSession(ctx); err != nil {
		return r, err
	}
	if err := t.reportSettings(); err != nil {
		return r, err
	}
	t.arrange()
	t.reportNotes()
	r.History, err = t.Loop.Run(ctx, t.data)
	t.profiled.end()
	if err == nil && !r.History.Done {
		err = t.restartErr // nil if the loop ended for another reason
	}
	// A complete training saves its result even if the history or its last checkpoint could not be written.
	if r.History.Done && unwritten(err) {
		unsaved := t.save(context.WithoutCancel(ctx), &r)
		err = errors.Join(r.withSaved(err), unsaved)
	}
	// The ranks wait for each other at the end. After an interrupt, the first rank has to write its
	// checkpoint. After an error of all ranks, slower ranks have to reach it.
	if err == nil || t.stopped() || errors.Is(err, fit.ErrDiverged) || errors.Is(err, contract.ErrRanksDiffer) {
		err = errors.Join(err, t.leave(r, err))
	}
	if err != nil {
		return r, t.advise(err, r.History.Checkpoint)
	}
	return r, nil
}

func (t *training) openModel() (err error) {
	continues := t.continues()
	t.adapt(continues)
	if t.Checkpoints.Folder != "" && !t.Resume {
		if err := checkpoint.CheckUnused(t.Checkpoints.Folder); err != nil {
			return err
		}
	}
	if t.model, err = OpenModel(&t.Config); err != nil {
		return err
	}
	if t.OutVersion != "" {
		err = session.CheckVersions(t.OutVersion, t.model)
	} else if t.Out != "" {
		err = session.CheckOutput(t.Out, t.model)
	}
	if err != nil {
		return err
	}
	if err := t.openAdapter(); err != nil {
		return err
	}
	if err := cmp.Or(t.compile(), t.checkSplit()); err != nil {
		return err
	}
	if !continues && t.chosen == nil {
		t.warn()
	}
	return nil
}

// adapt makes this process resume the training if an earlier process started it (continues), without another check of
// the images. Only the first of several ranks writes checkpoints and resumes from them; the others take over its state.
func (t *training) adapt(continues bool) {
	t.Resume = t.Resume || continues
	if rank, _ := t.ranked(); rank > 0 {
		t.Checkpoints, t.Resume = fit.Checkpoint{}, false
	}
	t.imagesChecked = continues
}

// checkSplit returns an error if the options need micro-batches and the model does not support
// them. Otherwise the training would fail late, when memory runs out.
func (t *training) checkSplit() error {
	if t.OnOutOfMemory != MicroBatch {
		return nil
	}
	err := t.plan.CheckSplit()
	if !isAny(err, savedmodels.ErrNoSignature, session.ErrInexactSplit) {
		return err
	}
	return wrong("Config.OnOutOfMemory", t.OnOutOfMemory, err)
}

func (t *training) compile() (err error) {
	t.plan, err = session.Compile(t.model, t.Session)
	return err
}

// warn logs that the model has state which checkpoints do not include, if the training may resume or reset the
// session. A reset of the depth "restore" keeps such state.
func (t *training) warn() {
	resets := t.resets() && t.Reset.Depth != contract.ResetRestore
	if !resets && t.Supervise != Always && !t.Resume && t.Budget.Limit == 0 && t.OnOutOfMemory == "" {
		return
	}
	for _, p := range t.model.Problems {
		if p.Code == contract.CodeStateNotSaved {
			t.Loop.Log.Warn("resets and resumes will change the numbers of this training", "problem", p.Message, "fix", p.Fix)
		}
	}
}

func (t *training) checkLoop() error {
	if err := t.Loop.Check(t.data, t.plan.TrainMetrics(), t.plan.EvaluateMetrics()); err != nil {
		return err
	}
	return t.plan.Check(t.Loop.Batch, t.Loop.LearningRate != nil)
}

// openSession opens TensorFlow, chooses the configuration, and opens the session.
func (t *training) openSession(ctx context.Context) error {
	if err := t.quiet(); err != nil {
		return err
	}
	if _, err := tfbind.Load(t.TensorFlow); err != nil {
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
	return nil
}

// quiet makes TensorFlow log only warnings and errors. A rank logs only errors, because its server
// warns after each step.
func (t *training) quiet() error {
	level := tfprocess.LogWarnings
	if _, ranked := t.ranked(); ranked {
		level = tfprocess.LogErrors
	}
	if _, open := tfprocess.Environment(); open || t.Session.Device.LogLevel != "" {
		return nil
	}
	return tfprocess.SetLogLevel(level)
}

// openTuned opens the session with the configuration that autotune chooses.
func (t *training) openTuned(ctx context.Context) (err error) {
	if _, ranked := t.ranked(); ranked {
		t.Loop.Log.Info("waiting for the other ranks", "cluster", t.Cluster)
		defer t.worker.Busy()()
	} else {
		if err := t.chooseSteps(); err != nil {
			return err
		}
		if err := t.autotune(ctx); err != nil {
			return err
		}
		t.Session.Only = t.signatures()
		if err := t.compile(); err != nil {
			return err
		}
	}
	t.session, err = session.Open(ctx, t.plan)
	return err
}

// signatures returns the signatures that this training runs.
func (t *training) signatures() []string {
	r, o := t.plan.Roles(), t.Session
	names := []string{r.Train, r.SetLearningRate, r.ResetMetrics, r.Finalize}
	if t.Loop.Validation != nil {
		names = append(names, r.Evaluate)
	}
	if t.splits() || o.MicroBatches > 1 {
		names = append(names, r.Gradients, r.Apply)
	}
	if o.StepsPerExecution > 1 {
		names = append(names, r.TrainN)
	}
	if o.Compiled {
		names = append(names, r.TrainXLA, r.TrainNXLA)
	}
	return names
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

// reportSettings reports the settings that TensorFlow uses, and options without effect.
func (t *training) reportSettings() error {
	r, err := t.session.Resolved()
	if err != nil {
		return err
	}
	t.report("resolved settings", r)
	for _, w := range r.Missing(t.Session.Device) {
		t.report("warning", w)
	}
	return nil
}

func (t *training) reportNotes() {
	if rank, _ := t.ranked(); rank > 0 {
		return
	}
	if t.Out == "" && t.OutVersion == "" && t.OutAdapter == "" && t.Checkpoints.Folder == "" {
		t.report("note", text("without {Config.Out} or {Config.Checkpoints}, the trained model is not saved"))
	}
	names := t.reader.csv.Classes
	if len(names) == 0 || len(t.reader.csv.Names)+len(t.Data.Classes) > 0 {
		return
	}
	t.report("note", numbered(names))
}
