package train

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"steadyfit/cluster"
	"steadyfit/fit"
	"steadyfit/internal/budget"
	"steadyfit/internal/contract"
	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
)

// Config configures a training. Model, Data, Loop.Batch and Loop.Epochs are required.
type Config struct {
	// Data and model.

	// Model is the folder of a SavedModel, or "builtin:NAME".
	Model string
	// Adapter is the folder of an adapter with the weights to start from; empty starts from the
	// weights of the model. A resumed training continues with the weights in its checkpoint.
	Adapter string
	// LossOutput is the name of the train signature's loss output; empty means loss.
	LossOutput string
	// Tags choose a metagraph of the SavedModel, as in savedmodels.Open.
	Tags []string
	// Constants are values of inputs of signatures, as in savedmodels.Model.WithConstants. The trained model
	// records them for later evaluations and predictions.
	Constants map[string]float64
	// Data is the training data. If the dataset has a training and a test part, it is the
	// training part.
	Data Data
	// Validation is the path of the validation data, which is read with the options of Data. If the
	// dataset has parts, the part for validation is used, or else the part for tests.
	Validation string
	// ValidationFraction is the fraction of the training data that is used for validation, above 0
	// and below 1. Validation must then be empty.
	ValidationFraction float64
	// Seed is the seed of shuffling, ValidationFraction, and models that take a seed. It is at most
	// math.MaxInt64.
	Seed uint64
	// Shuffle shuffles the samples in each epoch.
	Shuffle bool
	// Prefetch is the number of batches to prepare ahead. -1 means 2 with a Budget, and
	// otherwise as many as fit in 4 MiB, but at least 2 and at most 64.
	Prefetch int
	// ClassWeights are the weights of classes in the loss, by number or name. Other classes
	// have weight 1. The model needs the input sample_weight and exactly one label.
	ClassWeights map[string]float64

	// Session and loop.

	// Loop configures the training loop. Run sets Session, Validation, Recover and Resume, and
	// Alive if it is nil.
	Loop fit.Loop
	// Session configures the session. Run sets Seed, ReadOnly and Cluster.
	Session session.Options
	// Cluster makes this process a rank of a cluster (session.Options.Cluster); nil trains in one
	// process. All ranks need the same Config, except for paths. Loop.Batch is the size of the
	// batch that they share. Only the first rank writes files, such as checkpoints and Out.
	Cluster *cluster.Cluster
	// ChooseSteps sets Session.StepsPerExecution to the number from session.Plan.ChooseSteps.
	ChooseSteps bool
	// Autotune is On to measure at the start which configuration runs fastest on this machine: the steps per
	// execution, the XLA-compiled signatures of the model, and settings of TensorFlow's executor, its threads,
	// oneDNN and the allocator. Plain steps are used unless another configuration is at least 3% faster with its
	// whole confidence interval. An option of Session that differs from its default keeps its value.
	//
	// Measurements run in child processes (Init), and take at most 2% of the training and at most 20 s. Their
	// results are kept in the folder steadyfit/tune of the user's cache folder. A training with a Budget measures
	// nothing. A resumed training uses the configuration of its checkpoint. Empty makes no trials. Each training
	// measures in its first steps whether the calling thread is faster.
	Autotune Choice
	// CacheFeatures selects whether the part of the model that training does not change is computed
	// once per sample instead of in every step (savedmodels.Features). Auto does so if the first
	// steps have the same bits, and otherwise reports the reason. On does so even if steps round
	// differently, and makes Run fail if it is impossible. Empty never does so.
	CacheFeatures Choice
	// Allocator is the malloc of the process: jemalloc, tcmalloc or mimalloc, if installed, or
	// "mmap", which returns large blocks to the system when they are freed. Empty changes nothing.
	// If environment variables of the allocator are not set, the training runs in a child process.
	Allocator string
	// TensorFlow is the TensorFlow library to open, as in tfbind.Load.
	TensorFlow string

	// Results.

	// Checkpoints configure checkpoints; without a Folder there are none. An empty Best means val_loss, if there is
	// a validation. Without a Folder, RestoreBest uses a temporary one. Run sets Temporary and Foreground.
	Checkpoints fit.Checkpoint
	// Resume resumes from the newest good checkpoint, if there is one.
	Resume bool
	// Out is the folder for the trained SavedModel, which is replaced; empty saves no model.
	Out string
	// OutVersion is a folder for numbered versions of the trained SavedModel, as TensorFlow Serving
	// reads it (session.Session.SaveVersion); empty saves none. Out must then be empty.
	OutVersion string
	// OutAdapter is the folder for the trained weights alone; empty saves none.
	OutAdapter string
	// Profile selects steps whose operations are traced.
	Profile Profile
	// TensorBoard is the folder for event files (observe.TensorBoard); empty writes none.
	TensorBoard string
	// MetricsListen is an address HOST:PORT for metrics in the format of Prometheus
	// (observe.Prometheus); empty serves none.
	MetricsListen string
	// Observers receive the figures of the training while it runs (fit.Observers).
	Observers []fit.Observer
	// Progress receives the progress (fit.Progress); nil disables it. If Loop.Log is nil, Progress also
	// receives the log, such as the decisions of Budget.
	Progress io.Writer
	// Report receives messages for the user. subject is "auto", "cluster", "features", "resolved
	// settings", "note" or "warning". If value is an error, option.Text renders its option names. nil means
	// Loop.Log.
	Report func(subject string, value any)

	// Memory and recovery.

	// Supervise selects whether the training runs in a child process (Init): Always restarts it when it
	// crashes or hangs, and needs Checkpoints unless Supervisor.Restarts is negative. ForBudget uses a
	// child process if a budget may need a new process and Checkpoints is set, and does not restart
	// after crashes. Empty trains in this process. Supervisor configures the supervision. If
	// Supervisor.Log is nil, the reasons of restarts go to Loop.Log.
	Supervise  Choice
	Supervisor supervise.Options
	// Child is passed to the function of Init in a child process, as JSON.
	Child any
	// Outcome returns the exit code and the text of an error in a child process, which become those of
	// the *supervise.Error in the parent. nil means ExitCode, and the text of the error.
	Outcome func(err error) (code int, text string)
	// Worker is for programs that call supervise.Run themselves, for example to run several
	// trainings in one child process. Supervise then has no effect, and Resume decides whether the
	// training resumes.
	Worker *supervise.Worker
	// Reset resets the session regularly.
	Reset Reset
	// Budget keeps the memory of the process under a limit.
	Budget Budget
	// OnOutOfMemory selects what to do when TensorFlow runs out of memory. Empty ends the
	// training. MicroBatch repeats the step in micro-batches, and uses them from then on. Restart
	// resumes from the last checkpoint in another process, and needs Supervise.
	OnOutOfMemory Choice
}

// Budget limits the memory of a training; a Limit of 0 means none.
type Budget struct {
	Limit memory.Bytes
	// Layer is the layer of memory that is limited; empty means memory.RSS.
	Layer memory.Layer
}

// Reset resets the session at intervals, between steps. The state is preserved, so results do not change.
type Reset struct {
	// Depth is the depth of each reset: one of session.Session.Reset, or "process", which continues in a new
	// process and needs Supervise. Empty and "none" disable resets.
	Depth string
	// EverySteps and EveryEpochs are the intervals between resets, counted from the beginning of the
	// training. If both are 0, EveryEpochs is 1.
	EverySteps, EveryEpochs int
}

// Choice is a value of an option that chooses among words. The comment of each option names its
// words; an empty Choice is the default.
type Choice string

// The words of all options.
const (
	Always     Choice = "always"
	On         Choice = "on"
	Auto       Choice = "auto"
	ForBudget  Choice = "budget"
	MicroBatch Choice = "microbatch"
	Restart    Choice = "restart"
)

// Result is the outcome of a training.
type Result struct {
	// History has the completed epochs, even after an error, but not after a crash of a child process
	// (Config.Supervise). It is never nil.
	History *fit.History
	// Out is the folder of the trained model; empty if none was saved.
	Out string
	// OutAdapter is the folder of the trained adapter; empty if none was saved.
	OutAdapter string
}

// check returns an error for options that cannot work. It opens nothing.
func (c *Config) check() error {
	if err := c.Loop.CheckOptions(); err != nil {
		return err
	}
	switch {
	case c.Prefetch < -1 || c.Prefetch > contract.MaxAhead:
		return refuse("Config.Prefetch", c.Prefetch, "expected -1 to %d", contract.MaxAhead)
	case c.Seed > math.MaxInt64:
		return refuse("Config.Seed", c.Seed, "expected at most %d", int64(math.MaxInt64))
	case c.ValidationFraction != 0 && !(c.ValidationFraction > 0 && c.ValidationFraction < 1):
		return refuse("Config.ValidationFraction", c.ValidationFraction, "expected a fraction between 0 and 1")
	case c.ValidationFraction != 0 && c.Validation != "":
		return refuse("Config.ValidationFraction", c.ValidationFraction,
			"{Config.Validation} names data; leave one of them out")
	case c.Loop.ValidationEvery > 1 && !c.validates():
		return refuse("Loop.ValidationEvery", c.Loop.ValidationEvery, "needs {Config.Validation}, the data")
	}
	return cmp.Or(c.checkChoices(), c.checkFolders(), c.checkOutputs(), c.checkObservers(), c.checkProfile(),
		c.checkSupervision(), c.checkReset(), c.checkCluster())
}

func (c *Config) checkChoices() error {
	for _, o := range []struct {
		option string
		value  Choice
		words  []Choice
	}{
		{"Config.Autotune", c.Autotune, []Choice{On}},
		{"Config.CacheFeatures", c.CacheFeatures, []Choice{Auto, On}},
		{"Config.OnOutOfMemory", c.OnOutOfMemory, []Choice{MicroBatch, Restart}},
		{"Config.Supervise", c.Supervise, []Choice{Always, ForBudget}},
	} {
		if o.value != "" && !slices.Contains(o.words, o.value) {
			words := strings.Fields(strings.Trim(fmt.Sprint(o.words), "[]"))
			return refuse(o.option, o.value, "expected %s, or nothing", strings.Join(words, ", "))
		}
	}
	return nil
}

func (c *Config) validates() bool { return c.Validation != "" || c.ValidationFraction != 0 }

func (c *Config) checkFolders() error {
	switch {
	case c.Checkpoints.Best != "" && c.Checkpoints.Folder == "" && !c.Checkpoints.RestoreBest:
		return refuse("Checkpoint.Best", nil, "needs {Config.Checkpoints}, the folder for the best one")
	case c.Checkpoints.RestoreBest && c.Checkpoints.Folder == "" && c.Cluster != nil:
		return refuse("RestoreBest", nil, "ranks need {Config.Checkpoints}, the folder for the best one")
	case c.OutVersion != "" && c.Out != "":
		return refuse("Config.OutVersion", c.OutVersion,
			"{Config.Out} names another folder for the trained model; leave one of them out")
	case c.Resume && c.Checkpoints.Folder == "":
		return refuse("Config.Resume", nil, "needs {Config.Checkpoints}, the folder to resume from")
	case c.Loop.ResumeAnyway && !c.Resume:
		return refuse("Loop.ResumeAnyway", nil, "has an effect only with {Config.Resume}")
	}
	return nil
}

// checkOutputs returns an error if an output would replace or change the model, the data or another output.
func (c *Config) checkOutputs() error {
	in := files.NewInputs(c.Model, c.Data.Path, c.Validation)
	type output struct {
		option, path string
		check        func(string) error
	}
	outputs := []output{
		{"Config.Out", c.Out, in.CheckFolder}, {"Config.OutVersion", c.OutVersion, in.Check},
		{"Config.OutAdapter", c.OutAdapter, in.Check},
		{"Config.Checkpoints", c.Checkpoints.Folder, in.Check}, {"Config.TensorBoard", c.TensorBoard, in.Check},
		{"Config.Profile", c.Profile.File, in.Check},
	}
	for i, o := range outputs {
		if err := wrong(o.option, o.path, o.check(o.path)); err != nil {
			return err
		}
		for _, other := range outputs[:i] {
			inside := files.Within(o.path, other.path)
			switch {
			case inside && other.option == "Config.Out":
				return refuse(o.option, o.path, "this is inside of {Config.Out}, which is replaced as a whole; give another path")
			case inside && files.Within(other.path, o.path):
				return refuse(o.option, o.path, "{%s} has the same path; give another one", other.option)
			}
		}
	}
	return nil
}

func (c *Config) checkSupervision() error {
	restarts := c.Supervise == Always || c.Worker != nil
	switch {
	case c.Supervise == Always && c.Checkpoints.Folder == "" && c.Supervisor.Restarts >= 0:
		return refuse("Config.Supervise", nil, "needs {Config.Checkpoints}, the folder to resume from")
	case c.OnOutOfMemory == Restart && !restarts:
		return refuse("Config.OnOutOfMemory", c.OnOutOfMemory, "needs {Config.Supervise}, which starts the next process")
	}
	return nil
}

func (c *Config) checkReset() error {
	if !c.resets() {
		return nil
	}
	if c.Reset.Depth == contract.ResetProcess && c.Supervise != Always && c.Worker == nil {
		return refuse("Reset.Depth", c.Reset.Depth, "needs {Config.Supervise}, which starts the next process")
	}
	return c.resetHook(func(string) {}).Check()
}

func (c *Config) resets() bool { return c.Reset.Depth != "" && c.Reset.Depth != contract.ResetNone }

func (c *Config) resetHook(restart func(reason string)) budget.Resets {
	r := budget.Resets{Depth: c.Reset.Depth, EverySteps: c.Reset.EverySteps, EveryEpochs: c.Reset.EveryEpochs,
		Restart: restart}
	if r.EverySteps == 0 {
		r.EveryEpochs = cmp.Or(r.EveryEpochs, 1)
	}
	return r
}

// splits reports whether the training may split batches.
func (c *Config) splits() bool { return c.OnOutOfMemory == MicroBatch || c.Budget.Limit != 0 }

// supervisor returns the options of supervision. ok is false if the training runs in this process. other is
// true if it needs another process because of environment variables.
func (c *Config) supervisor(other bool) (s supervise.Options, ok bool) {
	s = c.Supervisor
	if c.Worker != nil || c.Supervise == Always {
		return s, c.Worker == nil
	}
	forBudget := c.Supervise == ForBudget && c.Budget.Limit != 0 && c.Checkpoints.Folder != ""
	if !forBudget && !other {
		return s, false
	}
	s.Deadline, s.Restarts = 0, -1
	return s, true
}

// OpenModel opens the Model of a Config with its LossOutput, Tags and Constants.
func OpenModel(c *Config) (*savedmodels.Model, error) {
	if c.Model == "" {
		return nil, &option.Error{Option: "Config.Model", Reason: "missing",
			Fix: fmt.Sprintf("give a folder with a SavedModel, or %sNAME (%s)", contract.BuiltinPrefix,
				strings.Join(savedmodels.BuiltinNames(), ", "))}
	}
	m, err := savedmodels.Open(c.Model, c.Tags...)
	if err == nil {
		m, err = m.WithLoss(c.LossOutput)
	}
	if err == nil {
		m, err = m.WithConstants(c.Constants)
	}
	return m, unusable(err)
}
