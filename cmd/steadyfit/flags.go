package main

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/cluster"
	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/contract"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/tfprocess"
	"steadyfit/internal/watch"
	"steadyfit/memory"
	"steadyfit/train"
)

// settings has the values of all flags. A process runs only one command, so the commands share
// it.
type settings struct {
	// Config is the configuration of fit. The other commands use its model, data, batch and
	// devices.
	train.Config
	configFile   string
	json, strict bool

	// Flags of fit that combine sets in the Config.
	history    string
	earlyStop  fit.EarlyStop
	reduceRate fit.ReduceOnPlateau
	keep       int

	// Flags of fit that combineCluster sets in the Config; ranks is a flag of launch.
	cluster cluster.Cluster
	ranks   int

	output  string // flag of predict
	needGPU bool   // flag of doctor
	thin    string // flag of report

	// Flags of bench; matrix also has steps.
	steps     int
	signature string
	synthetic bool

	stepTime, within time.Duration // flags of tune

	watching watching // flags of watch

	// Flags of matrix.
	plan                matrix.Plan
	workloads, remedies []string
	python, baseline    string
	program             string
	rules               []matrix.Rule

	// fitSpec is how this process was started, or how a child is to start. configuring is true if fit only
	// sets the Config, without training.
	fitSpec     fitSpec
	configuring bool

	// given reports whether a flag has a value from the command line, the environment or the
	// configuration file.
	given func(flag string) bool
}

func newSettings() *settings {
	s := &settings{keep: 3, steps: 1000, ranks: 2,
		within: 4 * time.Minute}
	s.cluster.Start = 10 * time.Minute
	s.Loop.Epochs, s.Loop.Batch, s.Loop.ValidationEvery = 1, 32, 1
	s.Shuffle, s.Prefetch = true, -1
	s.Checkpoints.EveryEpochs = 1
	s.Autotune, s.Supervise, s.CacheFeatures = train.On, train.ForBudget, train.Auto
	s.Budget.Layer, s.Reset.Depth = memory.RSS, contract.ResetNone
	s.watching.pairs = 3
	s.plan.Runtimes, s.plan.Out, s.plan.Seed = []string{matrix.Go}, "out/matrix", 1
	return s
}

type section struct {
	title string
	flags []flag
}

// flag is a row of the table of flags. It defines the flag, its help, its variable STEADYFIT_*,
// its key in a configuration file, and its name in errors.
type flag struct {
	name string
	// commands are the commands that have the flag.
	commands string
	// help is one line of at most 90 characters.
	help string
	// options are the library options that the flag sets. Errors about them name the flag.
	options string
	// sets is a pointer to a variable with the default, or a pflag.Value.
	sets any
}

// The commands that share flags.
const (
	onModel   = "fit evaluate predict bench explain tune" // commands that open a session
	onTrained = "fit evaluate predict bench explain tune inspect"
)

// table returns the flags of all commands in the order of the help. A new option of training needs
// a field of train.Config, the code that uses it, and a row here.
func (s *settings) table() []section {
	return []section{
		{"Data", s.dataFlags()},
		{"Training", s.trainingFlags()},
		{"Measurement", s.measurementFlags()},
		{"Precision and devices", s.deviceFlags()},
		{"Memory", s.memoryFlags()},
		{"Checkpoints and recovery", s.checkpointFlags()},
		{"Speed", s.speedFlags()},
		{"Cluster", s.clusterFlags()},
		{"Output", s.outputFlags()},
		{"Global", s.globalFlags()},
	}
}

func (s *settings) dataFlags() []flag {
	return []flag{
		{"model", onModel + " merge", "SavedModel folder, or builtin:NAME such as builtin:digits",
			"Config.Model Loop.Session", &s.Model},
		{"adapter", "fit evaluate predict merge",
			"folder of an adapter with weights for --model (docs/how-to/fine-tuning.md)", "Config.Adapter", &s.Adapter},
		{"loss-output", onTrained, "output of the train signature that is the loss (default loss)", "Model.WithLoss",
			&s.LossOutput},
		{"tags", onTrained + " merge", "tags of the metagraph to use, if the SavedModel has several (default serve)",
			"Config.Tags", &s.Tags},
		{"set", onTrained, "constants for inputs of the model, as in training=true,evaluate.keep_prob=1", "Config.Constants",
			newValue("INPUT=VALUE,...", "", pairs("INPUT=VALUE with a number, true or false", &s.Constants,
				map[string]string{"true": "1", "false": "0"}))},
		{"allow-unsafe-ops", onModel + " merge", "run a model that uses files or the network, or runs Python", "",
			&s.Session.AllowUnsafeOps},
		{"data", onModel + " inspect", "data: a file, a folder, or builtin:digits (formats: docs/reference/data.md)",
			"Data.Path", &s.Data.Path},
		{"validation", "fit", "validation data, or the fraction of the training data to hold out, as in 0.1",
			"Config.Validation Config.ValidationFraction Loop.Validation",
			newValue("data|fraction", "", s.setValidation)},
		{"label", onModel, "label column of a table or records; for several labels, as in y_price,stars=rating",
			"CSVOptions.Label Data.Label", &s.Data.Label},
		{"input", onModel, "columns of a table that feed an input, as in pixels=p0,p1,p2",
			"CSVOptions.Inputs Data.Inputs", newValue("INPUT=COLUMN,...", "", s.setInputs)},
		{"classes", onModel, "names of text labels or class folders in the order of their numbers, as in no,yes",
			"CSVOptions.Classes Data.Classes", &s.Data.Classes},
		{"keep", "predict", "columns of the data to write beside the predictions, as in id,name", "CSVOptions.Keep Data.Keep",
			&s.Data.Keep},
		{"header", onModel, "whether the first line of a CSV file has the names of the columns",
			"CSVOptions.Header Data.Header",
			newChoice(&s.Data.Header, "yes no", "yes", "no")},
		{"schema", onModel, "YAML file with rules for columns of a table (docs/how-to/tables.md)",
			"CSVOptions.Schema Data.Schema",
			newParsed(&s.Data.Schema, "file", data.ReadSchema)},
		{"image-size", onModel, "size of images, as in 224 or 240x320 (default: the size that the model takes)",
			"Data.Height Data.Width ImageOptions.Size",
			newValue("HEIGHTxWIDTH", "", s.setImageSize)},
		{"scale", onModel, "range for byte values, as in 0,1 (default: the recorded one; for images, the model's)",
			"Data.Scale",
			newValue("LOW,HIGH", "", s.setScale)},
		{"ignore-fields", onModel + " inspect", "data fields to leave out, as in id,weight", "InMemory.Drop Options.Ignore",
			&s.Data.Ignore},
		{"model", "matrix", "SavedModel folder or builtin:NAME for the workload \"user\"", "", &s.Model},
		{"data", "matrix", "data of the workload \"user\" (default: synthetic batches)", "", &s.Data.Path},
		{"steps", "matrix", "train steps per run of the workload \"user\", at least 40", "",
			newCount(&s.steps, matrix.UserLeast)},
		{"batch", "matrix", "samples per step of the workload \"user\"", "", newRange(&s.Loop.Batch, 1, maxBatch)},
	}
}

func (s *settings) trainingFlags() []flag {
	return []flag{
		{"epochs", "fit", "epochs in total; a resumed run trains the remaining ones", "Loop.Epochs", &s.Loop.Epochs},
		{"batch", onModel, "samples per step", "Loop.Batch Budget.Batch", newRange(&s.Loop.Batch, 1, maxBatch)},
		{"steps-per-epoch", "fit", "steps per epoch (0: one pass over the data)", "Loop.StepsPerEpoch",
			&s.Loop.StepsPerEpoch},
		{"learning-rate", "fit bench explain tune", "learning rate or schedule, as in 0.001 or warmup:100:cosine:0.001:5000",
			"Loop.LearningRate Session.SetLearningRate",
			newValue("schedule", "", s.setLearningRate)},
		{"reduce-lr", "fit", "METRIC:FACTOR:PATIENCE: reduce the learning rate on a plateau, as in val_loss:0.1:10",
			"ReduceOnPlateau", newParsed(&s.reduceRate, "rule", parseReduceRate)},
		{"early-stop", "fit", "METRIC:PATIENCE[:min|max][:MINDELTA]: stop without progress, as in val_loss:3", "EarlyStop",
			newParsed(&s.earlyStop, "rule", parseEarlyStop)},
		{"restore-best", "fit", "restore the weights of the best checkpoint at the end", "RestoreBest",
			&s.Checkpoints.RestoreBest},
		{"class-weight", "fit", "loss weights of classes, as in 0=1,1=5; other classes have 1", "Config.ClassWeights",
			newValue("CLASS=WEIGHT,...", "", pairs("CLASS=WEIGHT with a number as the weight", &s.ClassWeights, nil))},
		{"validation-every", "fit", "interval of validation, in epochs", "Loop.ValidationEvery",
			newCount(&s.Loop.ValidationEvery, 1)},
		{"initial-epoch", "fit", "epochs that count as done when a new training starts", "Loop.InitialEpoch",
			&s.Loop.InitialEpoch},
		{"shuffle", "fit explain", "shuffle the training data in each epoch", "Config.Shuffle", &s.Shuffle},
		{"drop-remainder", "fit", "drop a last batch that is smaller than the others", "Loop.DropRemainder",
			&s.Loop.DropRemainder},
		{"seed", "fit", "seed of shuffling, splitting, and of models that take one", "Config.Seed", &s.Seed},
	}
}

func (s *settings) measurementFlags() []flag {
	return []flag{
		{"steps", "bench", "steps to measure, after a warm-up of a tenth as many", "", newCount(&s.steps, 1)},
		{"signature", "bench", "signature to run (default: the train signature)", "", &s.signature},
		{"synthetic", "bench", "use a synthetic batch; this is the default without --data", "", &s.synthetic},
		{"step-time", "tune", "choose the least memory with steps of at most this time, as in 150ms", "",
			newDuration(&s.stepTime, 0)},
		{"within", "watch", "end the program after this time, or as soon as the verdict is sure", "",
			newDuration(&s.watching.within, time.Second)},
		{"until-sure", "watch", "end the program as soon as the verdict is sure", "", &s.watching.untilSure},
		{"report-every", "watch", "print the answer so far at this interval", "",
			newDuration(&s.watching.every, time.Second)},
		{"mark", "watch", "regular expression of a line of output that ends a step, as in 'epoch (\\d+)'", "",
			newParsed(&s.watching.mark, "regexp", regexp.Compile)},
		{"native-stacks", "watch", "preload jemalloc, and show the native functions that allocated what grows", "",
			&s.watching.nativeStacks},
		{"pid", "watch", "watch a process that runs already", "", newCount(&s.watching.pid, 1)},
		{"name", "watch", "watch the processes of a program or a Python script that runs already", "", &s.watching.name},
		{"remedies", "watch", "remedies to try: auto (what the cause suggests), all, or a list, as in jemalloc,collect", "",
			newParsed(&s.watching.remedies, "auto|all|LIST", watch.ParseRemedies)},
		{"pairs", "watch", "pairs of runs, with and without each remedy", "", newRange(&s.watching.pairs, 2, 1000)},
		{"cgroup", "watch", "watch the processes of a control group, such as that of a container", "", &s.watching.group},
		{"within", "tune", "maximum duration of the search", "", newDuration(&s.within, time.Second)},
		{"workloads", "matrix", "workloads to run, or all (default: all, or user with --model)",
			"Plan.Workloads", &s.workloads},
		{"remedies", "matrix", "remedies to apply, as in trim,W4/reuse,keras:clear-session (default: all)",
			"Plan.Remedies", &s.remedies},
		{"runtime", "matrix", "runtimes: go, galeone, keras", "Plan.Runtimes", &s.plan.Runtimes},
		{"quick", "matrix", "a first answer in 4.5 minutes: six remedies on W2, W4 and S3, or on --model",
			"Plan.Quick", &s.plan.Quick},
		{"within", "matrix", "end after this time with the results so far (default no limit; 4m30s with --quick)", "",
			newDuration(&s.plan.Within, 20*time.Second)},
		{"pairs", "matrix", "runs per workload and remedy, each with a baseline run (default 5; 3 with --quick)", "",
			newRange(&s.plan.Pairs, 1, 1000)},
		{"retry-failed", "matrix", "repeat the failed runs of an earlier, identical command", "", &s.plan.Again},
		{"program", "matrix", "a program of yours to measure, such as train.py", "", &s.program},
		{"python", "matrix", "Python with TensorFlow and Keras for the runtime keras (default: from make venv)", "",
			&s.python},
	}
}

func (s *settings) deviceFlags() []flag {
	return []flag{
		{"precision", onModel, "type to compute in where TensorFlow considers it safe; variables stay as they are",
			"Options.Precision",
			newChoice(&s.Session.Device.Precision, "fp32 bf16 fp16", "", gpuopts.BFloat16, gpuopts.Float16)},
		{"xla", onModel, "compile the model with XLA, except signatures that were exported compiled", "Options.XLA",
			newChoice(&s.Session.Device.XLA, "false true", "off", "on-2").as("bool")},
		{"deterministic", onModel, "same results in every run, or an error; slower (TF_DETERMINISTIC_OPS)",
			"Options.Deterministic", &s.Session.Device.Deterministic},
		{"visible-gpus", onModel, "GPUs to use, by the numbers of nvidia-smi, as in 0,1 (default: all)",
			"Options.VisibleGPUs", &s.Session.Device.VisibleGPUs},
		{"gpu", "doctor", "require a GPU: report a problem if TensorFlow cannot use one", "", &s.needGPU},
	}
}

func (s *settings) memoryFlags() []flag {
	return []flag{
		{"memory-budget", "fit explain tune", "keep the process under this size: split batches, or restart from a " +
			"checkpoint", "Budget.Limit Budget.Layer", newBudget(&s.Budget)},
		{"micro-batches", "fit explain", "split each batch into this many parts and add up their gradients (0: as memory " +
			"needs)", "Options.MicroBatches",
			newCount(&s.Session.MicroBatches, 0)},
		{"on-oom", "fit", "what to do when TensorFlow runs out of memory; microbatch splits the batches",
			"Config.OnOutOfMemory",
			newChoice(&s.OnOutOfMemory, "stop microbatch restart", "", train.MicroBatch, train.Restart)},
		{"inexact-micro-batches", "fit explain tune", "allow split batches that change the update, as with " +
			"BatchNormalization or Dropout", "Options.AllowInexactSplit",
			&s.Session.AllowInexactSplit},
		{"reset", "fit", "restore the variables, reload the model, or restart the process at intervals", "Reset.Depth",
			newChoice(&s.Reset.Depth, "none restore reload process", contract.ResetNone, contract.ResetRestore,
				contract.ResetReload, contract.ResetProcess)},
		{"reset-every", "fit", "interval of --reset, as in 500steps (default 1epoch)", "Reset.EverySteps Reset.EveryEpochs",
			newInterval(&s.Reset.EverySteps, &s.Reset.EveryEpochs, "")},
		{"memory-growth", onModel, "take GPU memory as needed instead of at the start, on all GPUs", "Options.MemoryGrowth",
			&s.Session.Device.MemoryGrowth},
		{"gpu-memory-fraction", onModel, "fraction of each GPU's memory to take at most (0: TensorFlow's default)",
			"Options.MemoryFraction",
			&s.Session.Device.MemoryFraction},
		{"gpu-memory-limit", onModel, "memory limit of each GPU of --visible-gpus, as in 2GiB,512MiB", "Options.VirtualGPUs",
			newValue("size,...", "", s.setGPULimits)},
		{"gpu-allocator", onModel, "allocator of GPU memory (default bfc, which is TensorFlow's)", "Options.GPUAllocator",
			newChoice(&s.Session.Device.GPUAllocator, "bfc cuda_malloc_async", "BFC", "cuda_malloc_async")},
	}
}

func (s *settings) checkpointFlags() []flag {
	return []flag{
		{"checkpoints", "fit", "folder for checkpoints", "Checkpoint Config.Checkpoints", &s.Checkpoints.Folder},
		{"every", "fit", "interval of checkpoints, as in 500steps or 2epochs", "EverySteps EveryEpochs",
			newInterval(&s.Checkpoints.EverySteps, &s.Checkpoints.EveryEpochs, "1epoch")},
		{"keep", "fit", "number of newest checkpoints to keep (0: all)", "Checkpoint.Keep", newCount(&s.keep, 0)},
		{"keep-best", "fit", "metric whose best checkpoint is kept too (default val_loss, with --validation)",
			"Checkpoint.Best", &s.Checkpoints.Best},
		{"resume", "fit", "resume from the newest good checkpoint; anyway: even if data or options differ",
			"Config.Resume Loop.Resume Loop.ResumeAnyway", optional{newValue("true|anyway", "false", s.setResume), "true"}},
		{"supervise", "fit", "train in a child process; restart it if it crashes, or takes no step for this long",
			"Config.Supervise Supervisor.Deadline", optional{newValue("duration", "", s.setSupervise), "5m"}},
	}
}

func (s *settings) speedFlags() []flag {
	return []flag{
		{"auto", "fit", "measure which configuration is fastest", "Config.Autotune",
			newChoice(&s.Autotune, "on off", train.On, "")},
		{"steps-per-execution", "fit explain", "train steps per execution; auto chooses by the model and the data",
			"Options.StepsPerExecution",
			newValue("N|auto", "1", s.setStepsPerExecution)},
		{"cache-features", "fit", "compute the frozen part of the model once per sample (auto: if no bit changes)",
			"Config.CacheFeatures",
			newChoice(&s.CacheFeatures, "auto on off", train.Auto, train.On, "")},
		{"jit-compile", "fit explain", "use XLA-compiled signatures; they round and draw random numbers differently",
			"Options.Compiled", &s.Session.Compiled},
		{"onednn", "fit explain tune", "compute with oneDNN or without it (auto: TensorFlow decides by the processor)",
			"Options.OneDNN",
			newChoice(&s.Session.Device.OneDNN, "auto on off", "", "on", "off")},
		{"allocator", "fit explain",
			"jemalloc, tcmalloc or mimalloc, if installed, or mmap, which returns freed large blocks", "Config.Allocator",
			newChoice(&s.Allocator, "auto jemalloc tcmalloc mimalloc mmap", "", "jemalloc", "tcmalloc", "mimalloc",
				tfprocess.Mmap).as("name")},
		{"prefetch", "fit explain", "batches to prepare ahead (-1: 2 to 64, about 4 MiB)", "Config.Prefetch", &s.Prefetch},
		{"intra-threads", onModel, "threads within one operation (0: one per core)", "Options.IntraThreads",
			&s.Session.Device.IntraThreads},
		{"inter-threads", onModel, "operations that run at the same time (0: one per core)", "Options.InterThreads",
			&s.Session.Device.InterThreads},
	}
}

func (s *settings) clusterFlags() []flag {
	return []flag{
		{"cluster-start", "fit", "longest wait for the other ranks, at the start and in a step", "Cluster.Start",
			newDuration(&s.cluster.Start, 0)},
		{"workers", "launch", "ranks to start", "", newCount(&s.ranks, 1)},
	}
}

func (s *settings) outputFlags() []flag {
	return []flag{
		{"out", "fit", "folder for the trained SavedModel; an earlier one is replaced", "Config.Out", &s.Out},
		{"out-version", "fit", "folder for numbered versions of the trained model, as TensorFlow Serving reads it",
			"Config.OutVersion", &s.OutVersion},
		{"out-adapter", "fit", "folder for the trained weights alone, without the frozen ones", "Config.OutAdapter",
			&s.OutAdapter},
		{"out", "merge", "folder for the merged SavedModel; an earlier one is replaced", "", &s.Out},
		{"out", "explain", "folder for an HTML page about the memory of a step", "", &s.Out},
		{"out", "predict", "file to write: .npy, .csv or .jsonl", "", &s.Out},
		{"out", "tune", "YAML file to write, for fit --config", "", &s.Out},
		{"output", "predict", "write only this output of the model", "", &s.output},
		{"thin", "report", "write a small copy of the result to this file, .json or .json.gz", "", &s.thin},
		{"history", "fit", "file for the history, one line per epoch: CSV if its name ends in .csv, otherwise JSON",
			"HistoryFile",
			&s.history},
		{"tensorboard", "fit", "folder for TensorBoard's event files; metrics have the names of Keras's callback",
			"Config.TensorBoard", &s.TensorBoard},
		{"profile", "fit", "trace the operations of steps, as in steps=10:20,file=trace.json", "Config.Profile",
			newParsed(&s.Profile, "steps", parseProfile)},
		{"metrics-listen", "fit", "serve metrics for Prometheus at HOST:PORT (:9090: port 9090 of the loopback address)",
			"Config.MetricsListen", &s.MetricsListen},
		{"json", "fit evaluate inspect doctor matrix report explain tune watch", "print the result as JSON", "",
			&s.json},
		{"strict", "doctor", "exit with 3 even if there are only warnings", "", &s.strict},
		{"out", "matrix", "folder for the results", "", &s.plan.Out},
		{"out", "watch", "folder for an HTML page and the samples", "", &s.watching.out},
		{"fail-on", "watch", "exit with 6 if a rule holds, such as leak,slope>64KiB/step,slope>1MiB/minute,peak>2GiB", "",
			newRules(&s.watching.failOn, watch.ParseRule)},
		{"fail-on", "matrix", "exit with 6 if a rule holds, such as slope>64KiB/epoch,peak>1GiB,leak", "",
			newRules(&s.rules, matrix.ParseRule)},
		{"baseline", "watch", "--json output of an earlier run; exit with 6 if the slope or the peak is higher now", "",
			&s.watching.baseline},
		{"baseline", "matrix", "matrix.json of an earlier run that --fail-on compares with", "", &s.baseline},
	}
}

func (s *settings) globalFlags() []flag {
	return []flag{
		{"config", rootName, "YAML file with values of flags", "", &s.configFile},
		{"tensorflow", rootName, "TensorFlow library, its folder, or site-packages/tensorflow", "",
			&s.TensorFlow},
	}
}

const rootName = "steadyfit"

func (s *settings) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	if cmd.Name() == rootName {
		flags = cmd.PersistentFlags()
	}
	flags.SortFlags = false
	for _, row := range s.rows() {
		if row.of(cmd.Name()) {
			add(flags, row.name, row.help, row.sets)
		}
	}
}

// rows returns the rows of the table.
func (s *settings) rows() (rows []flag) {
	for _, section := range s.table() {
		rows = append(rows, section.flags...)
	}
	return rows
}

// of reports whether a command has the flag.
func (f flag) of(command string) bool { return slices.Contains(strings.Fields(f.commands), command) }

// add adds a flag. value is flag.sets.
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
		if o, ok := p.(optional); ok {
			f.NoOptDefVal = o.bare
		} else if p.Type() == "bool" {
			f.NoOptDefVal = "true"
		}
	}
}

// flagNames returns the names of the flags of all commands.
func flagNames() map[string]bool {
	names := map[string]bool{}
	for _, row := range newSettings().rows() {
		names[row.name] = true
	}
	return names
}

// ofOption returns the flag that sets an option.
func ofOption(option string) (flag, bool) {
	for _, row := range newSettings().rows() {
		if slices.Contains(strings.Fields(row.options), option) {
			return row, true
		}
	}
	return flag{}, false
}

// flagName returns the flag of an option with a value in the syntax of the flag. Other names,
// such as variables, do not change. It is an option.Name.
func flagName(option, value string) string {
	switch option { // a scheduler sets this, not a flag
	case "Options.Cluster":
		return "cluster"
	case "Config.Cluster":
		return "a cluster"
	case "Loop.ResumeAnyway":
		return "--resume=anyway"
	case "Budget.Layer":
		return "--memory-budget SIZE:" + newLayer(new(memory.Layer)).word(value)
	}
	row, ok := ofOption(option)
	if !ok {
		return strings.TrimSpace(option + " " + value)
	}
	name := "--" + row.name
	if value == "" || strings.HasPrefix(value, "[") { // a list has another form in the flag
		return name
	}
	if v, ok := row.sets.(interface{ word(value string) string }); ok {
		value = v.word(value)
	}
	switch value {
	case "true":
		return name
	case "false":
		return name + "=false"
	}
	return name + " " + value
}
