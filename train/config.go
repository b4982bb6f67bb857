package train

import (
	"cmp"
	"io"
	"math"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/fit/budget"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
)

// Config is a training. Model, Data, Loop.Batch and Loop.Epochs have to be set.
type Config struct {
	// Data and model.

	// Model is the folder of a SavedModel, or "builtin:NAME".
	Model string
	// LossOutput is the output of the train signature that is the loss; empty means loss.
	LossOutput string
	// Data is the training data; of a dataset with two parts, the training part.
	Data Data
	// Validation is the path of the validation data, which is read as Data is; of a dataset with
	// two parts, the test part.
	Validation string
	// ValidationFraction is the part of the training data, above 0 and below 1, to validate on. It
	// excludes Validation.
	ValidationFraction float64
	// Seed is that of shuffling, of ValidationFraction, of Augmentation, and of models that take
	// one. It is at most math.MaxInt64.
	Seed uint64
	// Shuffle has each epoch train on the samples in another order.
	Shuffle bool
	// Prefetch is the number of batches to prepare ahead. -1 means as many as take 4 MiB, from 2
	// to 64, or 2 with a Budget.
	Prefetch int
	// ClassWeights are the weights of classes in the loss, by number or by name; others have 1.
	// The model needs the input sample_weight and has one label.
	ClassWeights map[string]float64
	// Augmentation changes training images at random.
	Augmentation data.Augmentation
	// CheckImages decodes all images once before training, to find a damaged one.
	CheckImages bool

	// Session and loop.

	// Loop configures the training loop. Run sets Session, Validation, Recover, Resume, and Alive
	// if it is nil.
	Loop fit.Loop
	// Session configures the session. Run sets Seed, ReadOnly and ListAllocations.
	Session session.Options
	// ChooseSteps has the model and the data choose Session.StepsPerExecution
	// (session.Plan.ChooseSteps).
	ChooseSteps bool
	// Autotune measures at the start which configuration runs fastest.
	Autotune Autotune
	// TensorFlow is the TensorFlow to open, as in tfbind.Load.
	TensorFlow string

	// Results.

	// Checkpoints say where checkpoints are written; without a folder there are none.
	Checkpoints Checkpoints
	// Resume continues from the newest good checkpoint, if there is one.
	Resume bool
	// Out is the folder for the trained SavedModel, which is replaced; empty saves none.
	Out string
	// OnWriteError says what happens if a checkpoint cannot be written. Hooks of Loop have their
	// own option.
	OnWriteError fit.ErrorPolicy
	// Trace says whether a step is traced at the start, to report what takes effect.
	Trace Trace
	// Progress gets the progress (fit.Progress); nil has none.
	Progress io.Writer
	// Report gets what a user should read, by subject: "auto", "resolved settings", "note" and
	// "warning". A value that is an error has option names in it (option.Text). nil means
	// Loop.Log.
	Report func(subject string, value any)

	// Memory and recovery.

	// Supervise says whether the training runs in a child process, and Supervisor how that is
	// watched.
	Supervise  Supervision
	Supervisor supervise.Options
	// Worker is the worker of a program that calls supervise.Run itself, as for several trainings
	// in one process. Then Supervise has no effect, and Resume says whether the training resumes.
	Worker *supervise.Worker
	// Reset resets the session from time to time; nil never does. Run sets Restart.
	Reset *budget.ResetPolicy
	// ReleaseMemory applies the release profile (session.UseReleaseProfile), so that resets give
	// memory back.
	ReleaseMemory bool
	// Budget keeps memory under a limit. In the layer memory.GPUProcess, that is the size of
	// TensorFlow's pool on the first GPU.
	Budget Budget
	// OnOutOfMemory says what happens when TensorFlow runs out of memory.
	OnOutOfMemory OutOfMemory
}

// Checkpoints say where and when checkpoints are written.
type Checkpoints struct {
	// Folder is for the checkpoints of this training.
	Folder string
	// EverySteps and EveryEpochs are the distance of two checkpoints. If both are 0, there is one
	// after each epoch.
	EverySteps, EveryEpochs int
	// Keep is the number of newest checkpoints to keep; 0 keeps all.
	Keep int
	// Best is a metric whose best checkpoint is kept, too. Empty means val_loss, with validation.
	Best string
}

// Budget is the memory that a training may use; a Limit of 0 is none.
type Budget struct {
	Limit memory.Bytes
	// Layer is the kind of memory; empty means memory.RSS.
	Layer memory.Layer
}

// ofProcess reports whether there is a budget of the memory of the process.
func (b Budget) ofProcess() bool { return b.Limit != 0 && b.Layer != memory.GPUProcess }

// ofGPU reports whether there is a budget of TensorFlow's pool.
func (b Budget) ofGPU() bool { return b.Limit != 0 && b.Layer == memory.GPUProcess }

// Supervision says whether a training runs in a child process.
type Supervision int

const (
	// Unsupervised trains in this process.
	Unsupervised Supervision = iota
	// ForBudget has a child process if a budget may need a new process and there are checkpoints
	// to resume from. It does not restart after crashes.
	ForBudget
	// Supervised restarts the child when it crashes or hangs. It needs Config.Checkpoints.
	Supervised
)

// OutOfMemory says what happens when TensorFlow runs out of memory.
type OutOfMemory string

const (
	// Stop ends the training.
	Stop OutOfMemory = ""
	// MicroBatch repeats the step with micro-batches, and keeps them.
	MicroBatch OutOfMemory = "microbatch"
	// Restart resumes from the last checkpoint in another process. It needs Supervised.
	Restart OutOfMemory = "restart"
)

// Trace says whether a step is traced.
type Trace int

const (
	// TraceIfUnsure traces a step if an option may not take effect, unless memory is limited,
	// since the first steps under a limit must be like the others.
	TraceIfUnsure Trace = iota
	// TraceUnlessLimited traces a step unless memory is limited.
	TraceUnlessLimited
	// TraceAlways traces a step, even if memory is limited.
	TraceAlways
	// TraceNever traces no step.
	TraceNever
)

// Result is what a training has done.
type Result struct {
	// History has the epochs that were done, also beside an error. It is never nil.
	History *fit.History
	// Out is the folder of the trained model; empty if none was saved.
	Out string
	// InChild means that a child process trained, and History is empty.
	InChild bool
}

// check refuses options that cannot work, before anything is opened.
func (c *Config) check() error {
	for _, n := range []struct {
		option          string
		value, min, max int
	}{
		{"Loop.Epochs", c.Loop.Epochs, 1, math.MaxInt}, {"Loop.Batch", c.Loop.Batch, 1, math.MaxInt32}, {"Loop.StepsPerEpoch", c.Loop.StepsPerEpoch, 0, math.MaxInt},
		{"Checkpoints.Keep", c.Checkpoints.Keep, 0, math.MaxInt}, {"Loop.InitialEpoch", c.Loop.InitialEpoch, 0, c.Loop.Epochs - 1},
		{"Loop.ValidationEvery", c.Loop.ValidationEvery, 0, math.MaxInt}, {"Config.Prefetch", c.Prefetch, -1, data.MaxAhead}, {"Data.Workers", c.Data.Workers, 0, data.MaxWorkers},
	} {
		if n.value < n.min {
			return refuse(n.option, n.value, "expected at least %d", n.min)
		}
		if n.value > n.max {
			return refuse(n.option, n.value, "expected at most %d", n.max)
		}
	}
	switch {
	case c.Seed > math.MaxInt64:
		return refuse("Config.Seed", c.Seed, "expected at most %d", int64(math.MaxInt64))
	case c.ValidationFraction != 0 && !(c.ValidationFraction > 0 && c.ValidationFraction < 1):
		return refuse("Config.ValidationFraction", c.ValidationFraction, "expected a fraction between 0 and 1, or a file")
	case c.ValidationFraction != 0 && c.Validation != "":
		return refuse("Config.ValidationFraction", c.ValidationFraction, "{Config.Validation} names data; leave one of them out")
	case c.Loop.ValidationEvery > 1 && !c.validates():
		return refuse("Loop.ValidationEvery", c.Loop.ValidationEvery, "needs {Config.Validation}, the data")
	case c.Checkpoints.Best != "" && c.Checkpoints.Folder == "":
		return refuse("Best", nil, "needs {Config.Checkpoints}, the folder for the best one")
	case c.Resume && c.Checkpoints.Folder == "":
		return refuse("Config.Resume", nil, "needs {Config.Checkpoints}, the folder to resume from")
	case c.Loop.ResumeAnyway && !c.Resume:
		return refuse("Loop.ResumeAnyway", nil, "only for {Config.Resume}")
	}
	if err := c.checkSupervision(); err != nil {
		return err
	}
	if err := c.checkReset(); err != nil {
		return err
	}
	if err := c.Autotune.check(); err != nil {
		return err
	}
	return c.checkSplit()
}

func (c *Config) validates() bool { return c.Validation != "" || c.ValidationFraction != 0 }

func (c *Config) checkSupervision() error {
	_, child := c.supervisor()
	child = child || c.Worker != nil
	restarts := c.Supervise == Supervised || c.Worker != nil
	switch s := c.Supervisor; {
	case c.Supervise == Supervised && c.Checkpoints.Folder == "":
		return refuse("Config.Supervise", nil, "needs {Config.Checkpoints}, the folder to resume from")
	case s.Deadline < 0:
		return refuse("Supervisor.Deadline", s.Deadline, "expected 0 or more")
	case s.Deadline != 0 && !child:
		return refuse("Supervisor.Deadline", nil, "needs {Config.Supervise}, which ends a training that hangs")
	case s.Restarts != 0 && !restarts:
		return refuse("Supervisor.Restarts", nil, "needs {Config.Supervise}, which restarts a training that crashed")
	case !slices.Contains([]OutOfMemory{Stop, MicroBatch, Restart}, c.OnOutOfMemory):
		return refuse("Config.OnOutOfMemory", c.OnOutOfMemory, "expected %s, %s, or nothing", MicroBatch, Restart)
	case c.OnOutOfMemory == Restart && !restarts:
		return refuse("Config.OnOutOfMemory", c.OnOutOfMemory, "needs {Config.Supervise}, which starts the next process")
	}
	return nil
}

func (c *Config) checkReset() error {
	if !c.resets() {
		return nil
	}
	p := *c.Reset
	if p.Depth == session.ResetProcess && c.Supervise != Supervised && c.Worker == nil {
		return refuse("ResetPolicy.Depth", p.Depth, "needs {Config.Supervise}, which starts the next process")
	}
	if p.Limit != 0 && p.Layer == memory.GPUProcess {
		return refuse("ResetPolicy.Limit", p.Limit, "limits the memory of the process; expected {ResetPolicy.Layer} %s, %s or %s", memory.RSS, memory.Anon, "cgroup")
	}
	p.Restart = func(string) {}
	return p.Check()
}

// resets reports whether there is a reset policy that resets.
func (c *Config) resets() bool { return c.Reset != nil && c.Reset.Depth != session.ResetNone }

// splits reports whether batches are split when memory runs out.
func (c *Config) splits() bool { return c.OnOutOfMemory == MicroBatch || c.Budget.ofGPU() }

// checkSplit refuses an option that needs micro-batches if the model has none: without this check
// the training would fail only when memory is short.
func (c *Config) checkSplit() error {
	if !c.splits() {
		return nil
	}
	model, err := OpenModel(c.Model, c.LossOutput)
	if err != nil {
		return err
	}
	plan, err := session.Compile(model, c.Session)
	if err == nil {
		err = plan.CheckSplit()
	}
	if !isAny(err, session.ErrNoSignature, session.ErrInexactSplit) {
		return err
	}
	refused := &option.Error{Option: "Config.OnOutOfMemory", Value: c.OnOutOfMemory, Reason: err.Error(), Fix: "to stop or to restart needs no micro-batches", Err: err}
	if c.OnOutOfMemory != MicroBatch {
		refused.Option, refused.Value, refused.Fix = "Budget.Layer", c.Budget.Layer, "lower {Loop.Batch}, or limit TensorFlow's pool with {Options.MemoryFraction}"
	}
	return refused
}

// supervisor returns how a child process is watched; ok is false if there is none.
func (c *Config) supervisor() (s supervise.Options, ok bool) {
	s = c.Supervisor
	if c.Worker != nil || c.Supervise == Supervised {
		return s, c.Worker == nil
	}
	if c.Supervise != ForBudget || !c.Budget.ofProcess() || c.Checkpoints.Folder == "" {
		return s, false
	}
	s.Grace = cmp.Or(s.Grace, max(s.Deadline, time.Minute))
	s.Deadline, s.Restarts = 0, -1
	return s, true
}

// OpenModel is savedmodels.Open, with the output of the train signature that is the loss; empty
// means loss.
func OpenModel(name, loss string) (*savedmodels.Model, error) {
	if name == "" {
		return nil, &option.Error{Option: "Config.Model", Reason: "missing", Fix: "give a folder with a SavedModel, or " + builtinNames(savedmodels.BuiltinNames())}
	}
	m, err := savedmodels.Open(name)
	if err == nil {
		m, err = m.WithLoss(loss)
	}
	return m, unusable(err)
}
