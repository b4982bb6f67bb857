package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/fit/budget"
	"steadyfit/gpuopts"
	"steadyfit/matrix"
	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/train"
)

// settings are what the flags set. One command runs in a process, so all of them share it.
type settings struct {
	train.Config
	configFile string
	verbose    bool
	json       bool
	strict     bool

	// Of fit. What a flag sets in more than one place of the Config is here.
	history, earlyStop  string
	reduceRate          string
	restoreBest         bool
	reset               budget.ResetPolicy
	deadline            time.Duration
	restarts            int
	traced              bool
	output              string // of predict
	needGPU             bool   // of doctor
	steps               int    // of bench and matrix
	stepsPerCall        int    // of bench, like the following
	signature           string
	synthetic           bool
	rate                float64
	autotune            string
	plan                matrix.Plan // of matrix, like the following
	workloads, remedies []string
	python              string
	baseline            string
	rule                *matrix.Rule

	// given reports whether a flag has a value from the command line, the environment or the
	// configuration file.
	given func(flag string) bool
}

// newSettings returns the defaults of the flags.
func newSettings() *settings {
	s := &settings{deadline: 5 * time.Minute, restarts: 5, steps: 1000, stepsPerCall: 50, autotune: autotuneOff}
	s.Loop.Epochs, s.Loop.Batch, s.Loop.ValidationEvery = 1, 32, 1
	s.Shuffle, s.CheckImages, s.Prefetch = true, true, -1
	s.Checkpoints.EveryEpochs, s.Checkpoints.Keep = 1, 3
	s.Autotune.Mode, s.Supervise = train.AutotuneOn, train.ForBudget
	s.Budget.Layer, s.reset.Depth = memory.RSS, session.ResetNone
	s.plan.Runtimes, s.plan.Out, s.plan.Jobs, s.plan.Seed, s.plan.Timeout = []string{matrix.Go}, "out/matrix", 1, 1, 2*time.Minute
	return s
}

// The groups of the flags, in the order of the help.
const (
	groupData        = "Data"
	groupTraining    = "Training"
	groupMeasurement = "Measurement"
	groupDevices     = "Precision and devices"
	groupMemory      = "Memory"
	groupCheckpoints = "Checkpoints and recovery"
	groupSpeed       = "Speed"
	groupOutput      = "Output"
	groupGlobal      = "Global"
)

var groups = []string{groupData, groupTraining, groupMeasurement, groupDevices, groupMemory, groupCheckpoints, groupSpeed, groupOutput, groupGlobal}

// flag is a row of the table of flags. Registration, help, the variables STEADYFIT_*, the
// keys of a configuration file and the names in errors follow from it.
type flag struct {
	group, name string
	// commands have the flag.
	commands string
	// help is one line of at most 90 characters.
	help string
	// old are earlier names, which still work.
	old []string
	// options are those of the libraries that the flag sets. Errors about them name the flag.
	options string
	// show returns the value of an option as the flag takes it; nil means as it is.
	show func(string) string
	// bind returns what the flag sets: a pointer to its value, or a pflag.Value.
	bind func(*settings) any
}

// The commands that have flags in common.
const (
	onModel   = "fit evaluate predict bench" // those that open a session
	onTrained = "fit evaluate predict bench inspect"
)

// table has a row per flag. A new option of training needs a field of train.Config, the code
// that acts on it, and a row.
var table = []flag{
	{groupData, "model", onModel, "SavedModel folder, or builtin:NAME such as builtin:digits", nil, "Config.Model Loop.Session", nil,
		func(s *settings) any { return &s.Model }},
	{groupData, "loss-output", onTrained, "output of the train signature that is the loss (default loss)", nil, "Model.WithLoss", nil,
		func(s *settings) any { return &s.LossOutput }},
	{groupData, "allow-unsafe-ops", onModel, "run a model that uses files or the network, or runs Python", nil, "", nil,
		func(s *settings) any { return &s.Session.AllowUnsafeOps }},
	{groupData, "data", onModel, "data: a file, a folder, or builtin:digits (formats: docs/reference/data.md)", nil, "Data.Path", nil,
		func(s *settings) any { return &s.Data.Path }},
	{groupData, "validation", "fit", "validation data, or the fraction of the training data to hold out, as in 0.1", nil, "Config.Validation Config.ValidationFraction Loop.Validation", nil,
		func(s *settings) any { return newValue("data|fraction", "", s.setValidation) }},
	{groupData, "label", onModel, "label column of CSV or JSON lines: a name, a number from 1, or -1 for the last", nil, "Data.Label", nil,
		func(s *settings) any { return &s.Data.Label }},
	{groupData, "header", onModel, "whether the first line of a table names the columns", nil, "CSVOptions.Header Data.Header", nil,
		func(s *settings) any {
			return newChoice(&s.Data.Header, "auto yes no", data.HeaderAuto, data.HeaderPresent, data.HeaderAbsent)
		}},
	{groupData, "image-size", onModel, "size of images, as in 224 or 240x320 (default: the size that the model takes)", nil, "Data.Height Data.Width ImageOptions.Size", nil,
		func(s *settings) any { return newValue("HEIGHTxWIDTH", "", s.setImageSize) }},
	{groupData, "scale", onModel, "range to scale bytes to, as in 0,1 (default: for images, the range of the model)", nil, "Data.Scale", nil,
		func(s *settings) any { return newValue("LOW,HIGH", "", s.setScale) }},
	{groupData, "ignore-fields", onModel, "data fields to leave out, as in id,weight", nil, "InMemory.Drop", nil,
		func(s *settings) any { return &s.Data.Ignore }},
	{groupData, "max-data", onModel, "maximum size of decompressed data (default 64MiB plus 50 times the file size)", nil, "Options.MaxBytes", nil,
		func(s *settings) any { return newSize(&s.Data.MaxBytes, 1) }},
	{groupData, "map", onModel, "memory-map .npy and uncompressed .npz files (auto: from 1 GiB)", nil, "Data.Map", nil,
		func(s *settings) any {
			return newChoice(&s.Data.Map, "auto always never", train.MapAuto, train.MapAlways, train.MapNever)
		}},
	{groupData, "augment", "fit", "random changes to training images, as in flip,crop:4,jitter:0.1", nil, "Config.Augmentation", nil,
		func(s *settings) any {
			return newParsed(&s.Augmentation, "changes", data.ParseAugmentation)
		}},
	{groupData, "check-images", "fit", "decode every image once before training, to find damaged ones", nil, "", nil,
		func(s *settings) any { return &s.CheckImages }},

	{groupTraining, "epochs", "fit", "epochs in total; a resumed run trains the remaining ones", nil, "Loop.Epochs", nil,
		func(s *settings) any { return &s.Loop.Epochs }},
	{groupTraining, "batch", onModel, "samples per step", nil, "Loop.Batch Budget.Batch", nil,
		func(s *settings) any { return &s.Loop.Batch }},
	{groupTraining, "steps-per-epoch", "fit", "steps per epoch (0: one pass over the data)", nil, "Loop.StepsPerEpoch", nil,
		func(s *settings) any { return &s.Loop.StepsPerEpoch }},
	{groupTraining, "learning-rate", "fit", "learning rate or schedule, as in 0.001 or warmup:100:cosine:0.001:5000", nil, "Loop.LearningRate Session.SetLearningRate", nil,
		func(s *settings) any { return newValue("schedule", "", s.setLearningRate) }},
	{groupTraining, "reduce-lr", "fit", "METRIC:FACTOR:PATIENCE: reduce the learning rate on a plateau, as in val_loss:0.1:10", nil, "ReduceOnPlateau", nil,
		func(s *settings) any { return &s.reduceRate }},
	{groupTraining, "early-stop", "fit", "METRIC:PATIENCE[:min|max][:MINDELTA]: stop without progress, as in val_loss:3", nil, "EarlyStop", nil,
		func(s *settings) any { return &s.earlyStop }},
	{groupTraining, "restore-best", "fit", "end with the weights of the best epoch by --early-stop", nil, "RestoreBest", nil,
		func(s *settings) any { return &s.restoreBest }},
	{groupTraining, "class-weight", "fit", "loss weights of classes, as in 0=1,1=5; other classes have 1", nil, "Config.ClassWeights", nil,
		func(s *settings) any { return newValue("CLASS=WEIGHT,...", "", s.setClassWeights) }},
	{groupTraining, "loss-scale", "fit", "loss scale of a model with the input loss_scale: dynamic, or a number", nil, "Options.LossScale", nil,
		func(s *settings) any { return newParsed(&s.Session.LossScale, "dynamic|number", parseLossScale) }},
	{groupTraining, "validation-every", "fit", "validate after every this many epochs", nil, "Loop.ValidationEvery", nil,
		func(s *settings) any { return newCount(&s.Loop.ValidationEvery, 1) }},
	{groupTraining, "initial-epoch", "fit", "epochs to count as done when a run starts", nil, "Loop.InitialEpoch", nil,
		func(s *settings) any { return &s.Loop.InitialEpoch }},
	{groupTraining, "shuffle", "fit", "shuffle the training data in each epoch", nil, "", nil,
		func(s *settings) any { return &s.Shuffle }},
	{groupTraining, "drop-remainder", "fit", "drop a last batch that is smaller than the others", nil, "Loop.DropRemainder", nil,
		func(s *settings) any { return &s.Loop.DropRemainder }},
	{groupTraining, "seed", "fit", "seed of shuffling, splitting, augmentation, and of models that take one", nil, "Config.Seed", nil,
		func(s *settings) any { return &s.Seed }},
	{groupTraining, "train-signature", "fit", "signature to train with (default train, learn or train_step)", nil, "", nil,
		func(s *settings) any { return &s.Session.TrainSignature }},

	{groupDevices, "precision", onModel, "type to compute in where TensorFlow considers it safe; variables stay as they are", nil, "Options.Precision", showPrecision,
		func(s *settings) any {
			return newChoice(&s.Session.Device.Precision, "fp32 bf16 fp16", "", gpuopts.BFloat16, gpuopts.Float16)
		}},
	{groupDevices, "xla", onModel, "let XLA compile what it can, beyond what was exported compiled", nil, "Options.XLA", func(v string) string { return fmt.Sprint(v != string(gpuopts.XLAOff)) },
		func(s *settings) any { return newSwitch(s.setXLA) }},
	{groupDevices, "deterministic", onModel, "same results in every run, or an error; slower (TF_DETERMINISTIC_OPS)", nil, "Options.Deterministic", nil,
		func(s *settings) any { return &s.Session.Device.Deterministic }},
	{groupDevices, "visible-gpus", onModel, "GPUs to use, by the numbers of nvidia-smi, as in 0,1 (default: all)", nil, "Options.VisibleGPUs", showList,
		func(s *settings) any { return &s.Session.Device.VisibleGPUs }},
	{groupDevices, "resolved-settings", "fit", "trace one step and report the devices, types and kernels in use (docs/how-to/gpu.md)", []string{"in-force"}, "Config.Trace", nil,
		func(s *settings) any { return &s.traced }},

	{groupMemory, "memory-budget", "fit", "keep the process under this size: split batches, reload, or restart from a checkpoint", nil, "Budget.Limit", nil,
		func(s *settings) any { return newSize(&s.Budget.Limit, memory.MiB) }},
	{groupMemory, "memory-budget-of", "fit", "memory that --memory-budget and --reset-near measure", nil, "Budget.Layer ResetPolicy.Layer", nil,
		func(s *settings) any {
			return newChoice(&s.Budget.Layer, "rss anon cgroup gpu", memory.RSS, memory.Anon, memory.CgroupWorkingSet, memory.GPUProcess)
		}},
	{groupMemory, "on-oom", "fit", "what to do when TensorFlow runs out of memory; microbatch splits the batches", nil, "Config.OnOutOfMemory", nil,
		func(s *settings) any {
			return newChoice(&s.OnOutOfMemory, "stop microbatch restart", train.Stop, train.MicroBatch, train.Restart)
		}},
	{groupMemory, "inexact-micro-batches", "fit", "allow split batches that change the update, as with BatchNormalization or Dropout", nil, "Options.AllowInexactSplit", nil,
		func(s *settings) any { return &s.Session.AllowInexactSplit }},
	{groupMemory, "reset", "fit", "reset the variables, the model, or the process regularly, with the same results", nil, "ResetPolicy.Depth", nil,
		func(s *settings) any {
			return newChoice(&s.reset.Depth, "none restore reload process", session.ResetNone, session.ResetRestore, session.ResetReload, session.ResetProcess)
		}},
	{groupMemory, "reset-every", "fit", "interval of --reset, as in 500steps (default 1epochs; never with --reset-near)", nil, "ResetPolicy.EverySteps ResetPolicy.EveryEpochs", nil,
		func(s *settings) any { return newInterval(&s.reset.EverySteps, &s.reset.EveryEpochs, "") }},
	{groupMemory, "reset-near", "fit", "also reset at 90% of this size, measured as --memory-budget-of", nil, "ResetPolicy.Limit", nil,
		func(s *settings) any { return newSize(&s.reset.Limit, memory.MiB) }},
	{groupMemory, "reset-within", "fit", "also reset if growth reaches --reset-near in fewer steps than this", nil, "ResetPolicy.Within", nil,
		func(s *settings) any { return &s.reset.Within }},
	{groupMemory, "release-memory", "fit", "with --reset reload, return freed memory to the system, at a cost in speed", nil, "", nil,
		func(s *settings) any { return &s.ReleaseMemory }},
	{groupMemory, "memory-growth", onModel, "take GPU memory as needed instead of at the start, on all GPUs", nil, "Options.MemoryGrowth", nil,
		func(s *settings) any { return newValue("bool", "false", s.setMemoryGrowth) }},
	{groupMemory, "gpu-memory-fraction", onModel, "fraction of each GPU's memory to take at most (0: TensorFlow's default)", nil, "Options.MemoryFraction", nil,
		func(s *settings) any { return &s.Session.Device.MemoryFraction }},
	{groupMemory, "gpu-memory-limit", onModel, "memory limit of each GPU of --visible-gpus, as in 2GiB,512MiB", nil, "Options.VirtualGPUs", showSizes,
		func(s *settings) any { return newValue("size,...", "", s.setGPULimits) }},
	{groupMemory, "gpu-allocator", onModel, "allocator of GPU memory (default bfc, which is TensorFlow's)", nil, "Options.GPUAllocator", strings.ToLower,
		func(s *settings) any {
			return newChoice(&s.Session.Device.GPUAllocator, "bfc cuda_malloc_async", gpuopts.BFC, gpuopts.CUDAMallocAsync)
		}},

	{groupCheckpoints, "checkpoints", "fit", "folder for checkpoints", nil, "Checkpoint Config.Checkpoints", nil,
		func(s *settings) any { return &s.Checkpoints.Folder }},
	{groupCheckpoints, "every", "fit", "interval of checkpoints, as in 500steps or 2epochs", nil, "EverySteps EveryEpochs", nil,
		func(s *settings) any {
			return newInterval(&s.Checkpoints.EverySteps, &s.Checkpoints.EveryEpochs, "1epochs")
		}},
	{groupCheckpoints, "keep", "fit", "number of newest checkpoints to keep (0: all)", nil, "Keep Checkpoints.Keep", nil,
		func(s *settings) any { return &s.Checkpoints.Keep }},
	{groupCheckpoints, "keep-best", "fit", "metric whose best checkpoint is kept too (default val_loss, with --validation)", nil, "Best", nil,
		func(s *settings) any { return &s.Checkpoints.Best }},
	{groupCheckpoints, "resume", "fit", "resume from the newest good checkpoint, if there is one", nil, "Config.Resume Loop.Resume", nil,
		func(s *settings) any { return &s.Resume }},
	{groupCheckpoints, "force", "fit", "resume even if data, options or TensorFlow differ, with a warning for each", nil, "Loop.ResumeAnyway", nil,
		func(s *settings) any { return &s.Loop.ResumeAnyway }},
	{groupCheckpoints, "supervise", "fit", "train in a child process; restart it from the last checkpoint if it crashes or hangs", nil, "Config.Supervise supervise.Run", nil,
		func(s *settings) any { return newSwitch(s.setSupervise) }},
	{groupCheckpoints, "deadline", "fit", "kill a supervised run that completes no step for this long (0 disables)", nil, "Supervisor.Deadline", nil,
		func(s *settings) any { return &s.deadline }},
	{groupCheckpoints, "restarts", "fit", "consecutive crashes without progress before --supervise gives up", nil, "Supervisor.Restarts", nil,
		func(s *settings) any { return newCount(&s.restarts, 0) }},
	{groupCheckpoints, "on-write-error", "fit", "what to do if a checkpoint or the history cannot be written", nil, "", nil,
		func(s *settings) any { return newChoice(&s.OnWriteError, "stop continue", fit.Stop, fit.Continue) }},

	{groupSpeed, "auto", "fit", "measure which configuration runs fastest; precision also tries 16 bits", nil, "Autotune.Mode", nil,
		func(s *settings) any {
			return newChoice(&s.Autotune.Mode, "on precision off", train.AutotuneOn, train.AutotunePrecision, train.AutotuneOff)
		}},
	{groupSpeed, "auto", "bench", "measure which configuration runs fastest; kept prints an earlier result", nil, "", nil,
		func(s *settings) any {
			return newChoice(&s.autotune, "off on precision kept", autotuneOff, autotuneOn, autotunePrecision, autotuneKept)
		}},
	{groupSpeed, "cache", "fit bench", "folder for the measurements of --auto (default steadyfit/tune in your cache folder)", nil, "Autotune.Cache Plan.Cache", nil,
		func(s *settings) any { return &s.Autotune.Cache }},
	{groupSpeed, "steps-per-execution", "fit", "train steps per call of TensorFlow; auto goes by the model and the data", []string{"fuse-steps"}, "Options.StepsPerExecution", nil,
		func(s *settings) any { return newValue("N|auto", "1", s.setStepsPerExecution) }},
	{groupSpeed, "jit-compile", "fit", "use the XLA-compiled signatures of the model; they round differently", []string{"compiled"}, "Options.Compiled", nil,
		func(s *settings) any { return &s.Session.Compiled }},
	{groupSpeed, "prefetch", "fit", "batches to prepare ahead (-1: 2 to 64, about 4 MiB)", nil, "Config.Prefetch", nil,
		func(s *settings) any { return &s.Prefetch }},
	{groupSpeed, "workers", "fit", "goroutines that decode and augment (0: one per core)", nil, "Data.Workers", nil,
		func(s *settings) any { return &s.Data.Workers }},
	{groupSpeed, "intra-threads", onModel, "threads within one operation (0: one per core)", nil, "Options.IntraThreads", nil,
		func(s *settings) any { return &s.Session.Device.IntraThreads }},
	{groupSpeed, "inter-threads", onModel, "operations that run at the same time (0: one per core)", nil, "Options.InterThreads", nil,
		func(s *settings) any { return &s.Session.Device.InterThreads }},

	{groupOutput, "out", "fit", "folder for the trained SavedModel; an earlier one is replaced", nil, "Config.Out", nil,
		func(s *settings) any { return &s.Out }},
	{groupOutput, "out", "predict", "file to write: .npy, .csv or .jsonl", nil, "", nil,
		func(s *settings) any { return &s.Out }},
	{groupOutput, "output", "predict", "write only this output of the model", nil, "", nil,
		func(s *settings) any { return &s.output }},
	{groupOutput, "history", "fit", "file for the history, one JSON line per epoch", nil, "HistoryFile", nil,
		func(s *settings) any { return &s.history }},
	{groupOutput, "json", "fit evaluate inspect doctor matrix report", "print the result as JSON", nil, "", nil,
		func(s *settings) any { return &s.json }},
	{groupOutput, "strict", "inspect", "exit with 6 if the model cannot be trained", nil, "", nil,
		func(s *settings) any { return &s.strict }},
	{groupOutput, "strict", "doctor", "exit with 3 for warnings, too", nil, "", nil,
		func(s *settings) any { return &s.strict }},
	{groupDevices, "gpu", "doctor", "require a GPU: whatever keeps TensorFlow from using one is a problem", nil, "", nil,
		func(s *settings) any { return &s.needGPU }},

	{groupMeasurement, "steps", "bench", "steps to measure, after a warm-up of a tenth of them", nil, "", nil,
		func(s *settings) any { return newCount(&s.steps, 1) }},
	{groupMeasurement, "signature", "bench", "signature to run (default: the train signature)", nil, "", nil,
		func(s *settings) any { return &s.signature }},
	{groupMeasurement, "steps-per-call", "bench", "steps per call of train_n, where the model leaves the number open", nil, "", nil,
		func(s *settings) any { return newCount(&s.stepsPerCall, 1) }},
	{groupMeasurement, "synthetic", "bench", "use a synthetic batch; this is the default without --data", nil, "", nil,
		func(s *settings) any { return &s.synthetic }},
	{groupMeasurement, "learning-rate", "bench", "learning rate, for a model that takes one", nil, "", nil,
		func(s *settings) any { return &s.rate }},

	{groupMeasurement, "workloads", "matrix", "workloads to run, or all (default: all, or user with --model)", nil, "", nil,
		func(s *settings) any { return &s.workloads }},
	{groupMeasurement, "remedies", "matrix", "remedies to apply, as in trim,W4/reuse,keras:clear-session (default: all)", nil, "", nil,
		func(s *settings) any { return &s.remedies }},
	{groupMeasurement, "runtime", "matrix", "runtimes: go, galeone, keras", nil, "", nil,
		func(s *settings) any { return &s.plan.Runtimes }},
	{groupMeasurement, "quick", "matrix", "a first answer in five minutes: W2, W4 and S3 with six remedies", nil, "", nil,
		func(s *settings) any { return &s.plan.Quick }},
	{groupMeasurement, "pairs", "matrix", "runs per cell, each paired with one without the remedy (default 5; 3 with --quick)", nil, "", nil,
		func(s *settings) any { return &s.plan.Pairs }},
	{groupMeasurement, "jobs", "matrix", "runs at the same time; more than one disturbs step times", nil, "", nil,
		func(s *settings) any { return &s.plan.Jobs }},
	{groupMeasurement, "seed", "matrix", "seed of data, weights and intervals", nil, "", nil,
		func(s *settings) any { return &s.plan.Seed }},
	{groupMeasurement, "timeout", "matrix", "kill a run that is silent for this long", nil, "", nil,
		func(s *settings) any { return &s.plan.Timeout }},
	{groupMeasurement, "memory-limit", "matrix", "memory limit of each run, as in 2GiB", nil, "", nil,
		func(s *settings) any { return newSize(&s.plan.Limit, 1) }},
	{groupMeasurement, "retry-failed", "matrix", "repeat the failed runs of an earlier, identical command", []string{"again"}, "", nil,
		func(s *settings) any { return &s.plan.Again }},
	{groupMeasurement, "python", "matrix", "Python with TensorFlow and Keras for the runtime keras (default: from make venv)", nil, "", nil,
		func(s *settings) any { return &s.python }},
	{groupData, "model", "matrix", "SavedModel folder or builtin:NAME for the workload user", nil, "", nil,
		func(s *settings) any { return &s.Model }},
	{groupData, "data", "matrix", "data of the workload user (default: synthetic batches)", nil, "", nil,
		func(s *settings) any { return &s.Data.Path }},
	{groupData, "steps", "matrix", "train steps per run of the workload user, at least 40", nil, "", nil,
		func(s *settings) any { return &s.steps }},
	{groupData, "batch", "matrix", "samples per step of the workload user", nil, "", nil,
		func(s *settings) any { return &s.Loop.Batch }},
	{groupOutput, "out", "matrix", "folder for the results", nil, "", nil,
		func(s *settings) any { return &s.plan.Out }},
	{groupOutput, "fail-on", "matrix", "exit with 6 on slope>64KiB/epoch, peak>1GiB, level>500MiB or leak", nil, "", nil,
		func(s *settings) any { return newValue("rule", "", s.setRule) }},
	{groupOutput, "baseline", "matrix", "matrix.json of an earlier run that --fail-on compares with", nil, "", nil,
		func(s *settings) any { return &s.baseline }},

	{groupGlobal, "tensorflow", rootName, "TensorFlow library, its folder, or site-packages/tensorflow", nil, "", nil,
		func(s *settings) any { return &s.TensorFlow }},
	{groupGlobal, "config", rootName, "YAML file with values of flags", nil, "", nil,
		func(s *settings) any { return &s.configFile }},
	{groupGlobal, "verbose", rootName, "let TensorFlow log what it does", nil, "", nil,
		func(s *settings) any { return &s.verbose }},
}

const rootName = "steadyfit"

// register adds the flags of a command.
func (s *settings) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	if cmd.Name() == rootName {
		flags = cmd.PersistentFlags()
	}
	flags.SortFlags = false
	for _, row := range table {
		if slices.Contains(strings.Fields(row.commands), cmd.Name()) {
			add(flags, row.name, row.help, row.bind(s))
			flags.Lookup(row.name).Annotations = map[string][]string{groupKey: {row.group}}
		}
	}
}

// groupKey is the annotation of a flag that names its group.
const groupKey = "group"

// add adds a flag that sets a value, which is its default.
func add(flags *pflag.FlagSet, name, help string, value any) {
	switch p := value.(type) {
	case *bool:
		flags.BoolVar(p, name, *p, help)
	case *int:
		flags.IntVar(p, name, *p, help)
	case *int64:
		flags.Int64Var(p, name, *p, help)
	case *uint64:
		flags.Uint64Var(p, name, *p, help)
	case *float64:
		flags.Float64Var(p, name, *p, help)
	case *string:
		flags.StringVar(p, name, *p, help)
	case *time.Duration:
		flags.DurationVar(p, name, *p, help)
	case *[]string:
		flags.StringSliceVar(p, name, *p, help)
	case *[]int:
		flags.IntSliceVar(p, name, *p, help)
	case pflag.Value:
		f := flags.VarPF(p, name, "", help)
		if p.Type() == "bool" {
			f.NoOptDefVal = "true"
		}
	}
}

// aliases are the flags that have earlier names, by these.
var aliases = func() map[string]string {
	names := map[string]string{}
	for _, row := range table {
		for _, old := range row.old {
			names[old] = row.name
		}
	}
	return names
}()

// normalize replaces an earlier name of a flag.
func normalize(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if now, ok := aliases[name]; ok {
		name = now
	}
	return pflag.NormalizedName(name)
}

// ofOption are the rows of the table by the options that they set.
var ofOption = func() map[string]*flag {
	rows := map[string]*flag{}
	for i := range table {
		for _, name := range strings.Fields(table[i].options) {
			rows[name] = &table[i]
		}
	}
	return rows
}()

// flagName is an option.Name: the flag of an option, with the value as the flag takes it.
// Other names, such as those of variables, stay as they are.
func flagName(option, value string) string {
	row, ok := ofOption[option]
	if !ok {
		return strings.TrimSpace(option + " " + value)
	}
	if value == "" {
		return "--" + row.name
	}
	if row.show != nil {
		value = row.show(value)
	} else if c, ok := row.bind(newSettings()).(interface{ word(value string) string }); ok {
		value = c.word(value)
	}
	switch value {
	case "true":
		return "--" + row.name
	case "false":
		return "--" + row.name + "=false"
	}
	return "--" + row.name + " " + value
}

func showPrecision(value string) string {
	return map[gpuopts.Precision]string{gpuopts.BFloat16: "bf16", gpuopts.Float16: "fp16", gpuopts.Float16CPU: "fp16", gpuopts.Float16GPU: "fp16"}[gpuopts.Precision(value)]
}

// showList returns a list that fmt has formatted, with commas.
func showList(value string) string {
	return strings.Join(strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune("[] ", r) }), ",")
}

// showSizes returns lists of numbers of MiB as sizes.
func showSizes(value string) string {
	return strings.ReplaceAll(showList(value), ",", "MiB,") + "MiB"
}

// flagNames are the names of all flags, and their earlier ones.
func flagNames() []string {
	names := slices.Collect(maps.Keys(aliases))
	for _, row := range table {
		names = append(names, row.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
