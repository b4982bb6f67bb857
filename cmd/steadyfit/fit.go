package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/files"
	"steadyfit/internal/flags"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// fitFlags are the flags of fit.
type fitFlags struct {
	modelFlags
	data                    dataFlags
	validation              string
	epochs, batch, steps    int
	seed                    uint64
	shuffle, dropRemainder  bool
	checkpoints, every      string
	keep                    int
	resume                  bool
	out, history            string
	earlyStop, learningRate string
	reduceRate, keepBest    string
	initialEpoch            int
	validationEvery         int
	fuseSteps, lossScale    string
	prefetch, workers       int
	augment                 string
	augmentation            data.Augmentation
	checkImages             bool
	restoreBest             bool
	classWeights            map[string]string
	json, inForce           bool
	resilience
	autoFlags
	begun time.Time
}

func newFit(g *global) *cobra.Command {
	f := &fitFlags{}
	cmd := &cobra.Command{
		Use:   "fit",
		Short: "Train a SavedModel",
		Long: `Train a SavedModel on a dataset and write the trained SavedModel.

Interrupted (Ctrl-C), it completes the step, writes a checkpoint if --checkpoints
is given, and exits with 130; --resume continues with the same numbers as a run
that was never interrupted.`,
		Example: `  steadyfit fit --model builtin:digits --data builtin:digits --validation builtin:digits --epochs 20 --out out/digits
  steadyfit fit --model my/model --data train.npz --validation 0.1 --epochs 10 --checkpoints ckpt --resume --out my/trained`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, g) },
	}
	flags := cmd.Flags()
	f.modelFlags.register(flags)
	f.data.register(flags)
	flags.StringVar(&f.validation, "validation", "", "validation data: a file (of a dataset with two parts, the test part), or the fraction of the training data to set aside, as in 0.1")
	flags.IntVar(&f.epochs, "epochs", 1, "epochs to train, in all; a resumed run does those that are missing")
	flags.IntVar(&f.batch, "batch", 32, "samples per step")
	flags.IntVar(&f.steps, "steps-per-epoch", 0, "steps per epoch, of less or more than one pass over the data; 0 means one pass")
	flags.Uint64Var(&f.seed, "seed", 0, "seed of shuffling, of splitting, and of models that take one")
	flags.BoolVar(&f.shuffle, "shuffle", true, "shuffle the training data anew in each epoch")
	flags.BoolVar(&f.dropRemainder, "drop-remainder", false, "leave out a last batch that is smaller than the others")
	flags.StringVar(&f.checkpoints, "checkpoints", "", "folder for checkpoints")
	flags.IntVar(&f.keep, "keep", 3, "newest checkpoints to keep, beside the best (--keep-best); 0 keeps all")
	flags.StringVar(&f.every, "every", "1epochs", "how often to write a checkpoint, as in 500steps or 2epochs")
	flags.BoolVar(&f.resume, "resume", false, "continue from the newest good checkpoint, if there is one")
	flags.StringVar(&f.out, "out", "", "folder for the trained SavedModel; one that is there already is replaced")
	flags.StringVar(&f.history, "history", "", "file for the history, one JSON line per epoch")
	flags.StringVar(&f.earlyStop, "early-stop", "", "stop when a metric no longer gets better, as in val_loss:3 (METRIC:PATIENCE[:min|max][:MINDELTA], with the patience in epochs; default of the direction by the name)")
	flags.StringVar(&f.reduceRate, "reduce-lr", "", "multiply the learning rate when a metric no longer gets better, as in val_loss:0.1:10 (METRIC:FACTOR:PATIENCE); needs --learning-rate")
	flags.StringVar(&f.keepBest, "keep-best", "", "metric whose best checkpoint is kept beside the newest; default val_loss, with --validation")
	flags.IntVar(&f.validationEvery, "validation-every", 1, "epochs from one validation to the next")
	flags.IntVar(&f.initialEpoch, "initial-epoch", 0, "epochs to take as done when a run begins anew")
	flags.BoolVar(&f.restoreBest, "restore-best", false, "end with the weights of the best epoch by --early-stop, rather than of the last")
	flags.StringVar(&f.learningRate, "learning-rate", "", "learning rate, or a schedule: cosine:RATE:STEPS[:FINAL], linear:RATE:STEPS[:FINAL], step:RATE:FACTOR:EPOCHS, exp:RATE:FACTOR:STEPS; warmup:STEPS: before any")
	flags.StringVar(&f.fuseSteps, "fuse-steps", "1", "train steps to run in one call of TensorFlow, with the same weights: a number, or auto, which goes by the model and the data; 1 runs them one by one (docs/performance.md)")
	flags.BoolVar(&f.options.Compiled, "compiled", false, "train with the model's twins that XLA has compiled, where a batch and the steps of a call have their sizes; they round differently")
	flags.IntVar(&f.prefetch, "prefetch", -1, "batches to prepare ahead; 0 prepares none, -1 as many as take 4 MiB, 2 to 64, or 2 with --memory-budget")
	flags.StringToStringVar(&f.classWeights, "class-weight", nil, "weights of classes in the loss of the training, as in 0=1,1=5; other classes have 1 (the model needs the input sample_weight)")
	flags.StringVar(&f.augment, "augment", "", "changes to training images, drawn anew in each epoch: flip, crop:PIXELS, jitter:AMOUNT, as in flip,crop:4,jitter:0.1")
	flags.IntVar(&f.workers, "workers", 0, "goroutines that decode and augment; 0 means one per core")
	flags.BoolVar(&f.checkImages, "check-images", true, "decode all images once before training, so that one that is damaged does not end it")
	flags.StringVar(&f.lossScale, "loss-scale", "", "for a model with the input loss_scale: dynamic, which is the default for one that also has the output grads_finite, or a fixed scale, as in 1024")
	flags.StringVar(&f.options.TrainSignature, "train-signature", "", "signature to train with; default train, learn or train_step")
	flags.BoolVar(&f.inForce, "in-force", false, "trace a step at the start, and undo it, to say what TensorFlow really computes in and on; default only with options that may not take effect (docs/gpu.md)")
	flags.BoolVar(&f.json, "json", false, "print the result as JSON")
	f.resilience.register(flags)
	f.autoFlags.register(flags)
	return cmd
}

func (f *fitFlags) run(cmd *cobra.Command, g *global) error {
	f.begun = time.Now()
	if err := f.apply(); err != nil {
		return err
	}
	if err := f.resilience.check(f, cmd.Flags().Changed); err != nil {
		return err
	}
	if err := f.checkAuto(); err != nil {
		return err
	}
	if f.release {
		if err := session.UseReleaseProfile(); err != nil {
			return unusable(err)
		}
	}
	f.device.warn(cmd.ErrOrStderr())
	return f.supervised(cmd, f.checkpoints, func(ctx context.Context, c *session.Supervised) error {
		var begun bool
		err := f.train(ctx, cmd, g, c, &begun)
		return f.restartable(err, c.Continues() && (!begun || notBegun(err)))
	})
}

// continued adapts the flags to a process that goes on with what another has begun: it
// resumes, and images that were decoded once need not be looked at again.
func (f *fitFlags) continued(continues bool) {
	f.resume = f.resume || continues
	f.checkImages = f.checkImages && !continues && !startedAnew()
}

// train is the training, in a process of its own if c is not nil. begun is set once the
// loop has resumed from the checkpoint of another process.
func (f *fitFlags) train(ctx context.Context, cmd *cobra.Command, g *global, c *session.Supervised, begun *bool) error {
	f.continued(c.Continues())
	if f.checkpoints != "" && !f.resume {
		if err := fit.CheckFolder(f.checkpoints); err != nil {
			return unusable(err)
		}
	}
	best := f.checkpoints
	if f.restoreBest && best == "" {
		dir, remove, err := files.Scratch("steadyfit-best-")
		if err != nil {
			return err
		}
		defer func() { _ = remove() }() // else the next run does
		best = dir
	}
	loop, err := f.loop(c.Screen(cmd.ErrOrStderr()), cmd.ErrOrStderr(), best, c.Alive)
	if err != nil {
		return err
	}
	model, err := f.open()
	if err != nil {
		return err
	}
	if f.out != "" {
		if files.Same(f.out, model.Dir) {
			return usagef("--out %s is the model itself, which would be overwritten; give another folder", f.out)
		}
		if death, died := c.LastDeath(); died {
			// Before a look at the room: what is left of a model takes some.
			if err := tidyOut(f.out, c.Begun(), death.Time); err != nil {
				return err
			}
		}
		if err := f.checkOut(model, c.Continues(), loop.Log); err != nil {
			return err
		}
	}
	plan, err := f.plan(model)
	if err != nil {
		return err
	}
	roles := plan.Roles()
	if !c.Continues() && !startedAnew() {
		f.warn(model, loop.Log)
	}
	read := c.Busy()
	train, err := f.datasets(ctx, loop, model, roles)
	read()
	defer f.data.close()
	if err != nil {
		return err
	}
	if err := f.chooseSteps(loop, plan, train); err != nil {
		return err
	}
	if _, err := g.load(); err != nil {
		return err
	}
	f.options.Seed, f.options.ListAllocations = int64(f.seed), f.onOOM == oomStop
	if err := f.configure(&f.options); err != nil {
		return err
	}
	if err := f.device.decide(&f.options.Device, cmd.ErrOrStderr()); err != nil {
		return g.noGPU(ctx, err)
	}
	chosen, err := f.choose(ctx, cmd, g, c, loop, model, train)
	if err != nil {
		return err
	}
	if plan, err = f.plan(model); err != nil {
		return err
	}
	s, err := session.Open(ctx, plan)
	if err != nil {
		if f.budgetOf == budgetOfGPU && errors.Is(err, session.ErrNoGPU) {
			err = fmt.Errorf("--memory-budget-of gpu, where --memory-budget-of rss limits the memory of the process: %w", err)
		}
		return g.noGPU(ctx, err)
	}
	defer s.Close()
	if why := s.Uncompiled(f.batch, chosen.together); why != "" && !c.Continues() {
		loop.Log.Info("not all that --compiled asks for is compiled", "reason", why)
	}
	if err := f.tellInForce(ctx, cmd, g, c, s, train); err != nil {
		return err
	}
	r, err := f.arrange(loop, train, s, c, begun)
	if err != nil {
		return err
	}
	if f.out == "" && f.checkpoints == "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "note: without --out or --checkpoints, the trained model is not kept")
	}
	if names := f.data.classes; len(names) > 0 && len(f.data.csv.Names) == 0 && len(f.data.images.Classes) == 0 {
		shown := make([]string, min(8, len(names)))
		for i := range shown {
			shown[i] = fmt.Sprintf("%s %d", names[i], i)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "note: the model does not name its classes, so these have the numbers of their sorted names: %s\n", strings.Join(shown, ", "))
	}
	history, err := loop.Run(ctx, train)
	tolerated := err == nil || onWriteError[f.onError] == fit.Continue && every(err, unlogged)
	if again := r.outcome(); again != nil && !history.Done && tolerated {
		if err != nil {
			loop.Log.Warn("another process goes on, and adds the lines that are missing if it can", "error", err)
		}
		err = again
	}
	// Where the training is over, neither an interrupt now nor a file that could not be
	// written must cost its result.
	if f.out != "" && history.Done && every(err, final) {
		err = errors.Join(err, s.SaveModel(context.WithoutCancel(ctx), f.out))
	}
	if err != nil {
		return f.explain(err, history)
	}
	if err := s.Close(); err != nil {
		return err
	}
	chosen.note(history)
	return f.print(cmd.OutOrStdout(), history)
}

// tellInForce prints what TensorFlow has and does. It takes a traced step to know what it
// does, which is taken if that may not be what was asked for, unless memory is budgeted:
// there the loop has to see what its first steps take.
func (f *fitFlags) tellInForce(ctx context.Context, cmd *cobra.Command, g *global, c *session.Supervised, s *session.Session, train data.Dataset) error {
	e, err := s.Effects(ctx, data.Batch{})
	if f.traces(cmd, g) && err == nil {
		defer c.Busy()()
		for b, bad := range train.Batches(f.pass()) {
			if bad == nil { // else the loop says so
				e, err = s.Effects(ctx, b)
			}
			break
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "in force: %v\n", e)
	for _, w := range e.Missing(f.options.Device) {
		fmt.Fprintf(cmd.ErrOrStderr(), "steadyfit: warning: %s\n", option.Text(w, flags.Name))
	}
	return nil
}

// traces reports whether a step is traced at the start.
func (f *fitFlags) traces(cmd *cobra.Command, g *global) bool {
	if cmd.Flags().Changed("in-force") {
		return f.inForce
	}
	return (g.verbose || f.device.mayFail(f.options.Device)) && f.mayTrace(cmd)
}

// mayTrace reports whether options that may not take effect have a step traced.
func (f *fitFlags) mayTrace(cmd *cobra.Command) bool {
	return !cmd.Flags().Changed("in-force") && f.budget == "" && f.resetNear == ""
}

// every reports whether all that an error joins is of a kind; nil is of all kinds.
func every(err error, is func(error) bool) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !every(e, is) })
	}
	return err == nil || is(err)
}

// unlogged is an error of log files, which a later process makes up for.
func unlogged(err error) bool { return errors.As(err, new(*fit.LogError)) }

// final is an error that leaves the session with the result of the training.
func final(err error) bool {
	var unwritten *fit.CheckpointError
	var unlogged *fit.LogError
	return errors.As(err, &unwritten) && unwritten.Final || errors.As(err, &unlogged) && unlogged.Final
}

// notBegun is an error of files at the beginning of a run. When a training is started
// again, that costs what is done already, and a full disk may have room a little later.
func notBegun(err error) bool {
	var hook *fit.HookError
	return errors.As(err, &hook) && (hook.Phase == "load" || hook.Phase == "start") && errors.As(err, new(syscall.Errno))
}

// checkOut refuses a place for the trained model that will not take it. In a training that
// goes on, a disk that does not take it now may do so at the end, if that is tolerated.
func (f *fitFlags) checkOut(model *savedmodels.Model, continues bool, log *slog.Logger) error {
	err := session.CheckOutput(f.out, model)
	if continues && onWriteError[f.onError] == fit.Continue && errors.As(err, new(*session.SaveError)) {
		log.Warn("the trained model could not be written now", "error", err)
		return nil
	}
	return unusable(err)
}

// tidyOut tidies up after processes of this training that died, between two times, while
// they saved the model. What is of another time is of another run.
func tidyOut(out string, from, to time.Time) error {
	out = filepath.Clean(out)
	return session.TidyModels(filepath.Dir(out), func(model string, changed time.Time) bool {
		return model == filepath.Base(out) && !changed.Before(from) && !changed.After(to)
	})
}

// newLog writes what a run has to say, in the words of the command line.
func newLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(option.Text(err, flags.Name))
		}
		return a
	}}))
}

// loop makes the loop from flags that need neither model nor data. Progress goes to
// screen; best is a folder for the weights of the best epoch; alive is Loop.Alive.
func (f *fitFlags) loop(screen, stderr io.Writer, best string, alive func(step int64)) (*fit.Loop, error) {
	l := &fit.Loop{
		Batch: f.batch, Epochs: f.epochs, StepsPerEpoch: f.steps, DropRemainder: f.dropRemainder,
		InitialEpoch: f.initialEpoch, ValidationEvery: f.validationEvery,
		ResumeAnyway: f.force, Log: newLog(stderr), Alive: alive,
	}
	for _, n := range []struct {
		flag            string
		value, min, max int
	}{
		{"epochs", f.epochs, 1, math.MaxInt}, {"batch", f.batch, 1, math.MaxInt32}, {"steps-per-epoch", f.steps, 0, math.MaxInt}, {"keep", f.keep, 0, math.MaxInt},
		{"initial-epoch", f.initialEpoch, 0, f.epochs - 1}, {"validation-every", f.validationEvery, 1, math.MaxInt},
		{"prefetch", f.prefetch, -1, data.MaxAhead}, {"workers", f.workers, 0, data.MaxWorkers},
	} {
		if n.value < n.min {
			return nil, usagef("--%s %d: expected at least %d", n.flag, n.value, n.min)
		}
		if n.value > n.max {
			return nil, usagef("--%s %d: expected at most %d", n.flag, n.value, n.max)
		}
	}
	if f.seed > math.MaxInt64 {
		return nil, usagef("--seed %d: expected at most %d", f.seed, int64(math.MaxInt64))
	}
	if n, err := strconv.Atoi(f.fuseSteps); f.fuseSteps != fuseAuto && (err != nil || n < 1) {
		return nil, usagef("--fuse-steps %q: expected a number of at least 1, or %s", f.fuseSteps, fuseAuto)
	}
	var err error
	if f.augmentation, err = data.ParseAugmentation(f.augment); err != nil {
		return nil, usagef("--augment: %w", err)
	}
	f.augmentation.Seed = f.seed
	if f.options.LossScale, err = parseLossScale(f.lossScale); err != nil {
		return nil, err
	}
	if f.learningRate != "" {
		schedule, err := fit.ParseSchedule(f.learningRate)
		if err != nil {
			return nil, usagef("--learning-rate: %w", err)
		}
		l.LearningRate, l.LearningRateText = schedule, f.learningRate
	}
	l.Hook(fit.Progress(screen))
	if f.history != "" {
		l.Hook(fit.HistoryFile(f.history, fit.OnError(onWriteError[f.onError])))
	}
	if f.earlyStop != "" {
		metric, options, err := parseEarlyStop(f.earlyStop)
		if err != nil {
			return nil, err
		}
		if f.restoreBest {
			options = append(options, fit.RestoreBest(best), fit.OnError(onWriteError[f.onError]))
		}
		l.Hook(fit.EarlyStop(metric, options...))
	} else if f.restoreBest {
		return nil, usagef("--restore-best needs --early-stop, whose metric says what is best")
	}
	if f.reduceRate != "" {
		if f.learningRate == "" {
			return nil, usagef("--reduce-lr needs --learning-rate, the rate to begin with")
		}
		reduce, err := parseReduceRate(f.reduceRate)
		if err != nil {
			return nil, err
		}
		l.Hook(reduce)
	}
	steps, epochs, err := parseEvery("every", f.every)
	if err != nil {
		return nil, err
	}
	every := fit.EveryEpochs(epochs)
	if steps > 0 {
		every = fit.EverySteps(steps)
	}
	switch {
	case f.keepBest != "" && f.checkpoints == "":
		return nil, usagef("--keep-best needs --checkpoints, the folder that they are kept in")
	case f.validationEvery > 1 && f.validation == "":
		return nil, usagef("--validation-every needs --validation, the data")
	}
	if f.checkpoints != "" {
		options := []fit.CheckpointOption{fit.Keep(f.keep), every, fit.OnError(onWriteError[f.onError])}
		if best := f.keepBest; best != "" || f.validation != "" {
			options = append(options, fit.Best(cmp.Or(best, "val_loss")))
		}
		l.Hook(fit.Checkpoint(f.checkpoints, options...))
	}
	if f.resume {
		if f.checkpoints == "" {
			return nil, usagef("--resume needs --checkpoints, the folder to resume from")
		}
		l.Resume = f.checkpoints
	}
	return l, nil
}

// parseEarlyStop reads METRIC:PATIENCE[:min|max][:MINDELTA].
func parseEarlyStop(text string) (metric string, options []fit.EarlyStopOption, err error) {
	parts := strings.Split(text, ":")
	wrong := usagef("--early-stop %q: expected METRIC:PATIENCE[:min|max][:MINDELTA], as in val_loss:3 or val_auc:3:max:0.001", text)
	if len(parts) < 2 || len(parts) > 4 || parts[0] == "" {
		return "", nil, wrong
	}
	patience, err := strconv.Atoi(parts[1])
	if err != nil || patience < 0 {
		return "", nil, wrong
	}
	options = append(options, fit.Patience(patience))
	rest := parts[2:]
	if len(rest) > 0 {
		if direction, ok := map[string]fit.Direction{"min": fit.Min, "max": fit.Max}[rest[0]]; ok {
			options, rest = append(options, fit.Mode(direction)), rest[1:]
		}
	}
	if len(rest) > 1 {
		return "", nil, wrong
	}
	if len(rest) == 1 {
		delta, err := strconv.ParseFloat(rest[0], 64)
		if err != nil || !(delta >= 0) || math.IsInf(delta, 1) {
			return "", nil, wrong
		}
		options = append(options, fit.MinDelta(delta))
	}
	return parts[0], options, nil
}

// parseReduceRate reads METRIC:FACTOR:PATIENCE.
func parseReduceRate(text string) (fit.Hook, error) {
	wrong := usagef("--reduce-lr %q: expected METRIC:FACTOR:PATIENCE with a factor between 0 and 1, as in val_loss:0.1:10", text)
	parts := strings.Split(text, ":")
	if len(parts) != 3 || parts[0] == "" {
		return fit.Hook{}, wrong
	}
	factor, err := strconv.ParseFloat(parts[1], 64)
	if err != nil || !(factor > 0 && factor < 1) {
		return fit.Hook{}, wrong
	}
	patience, err := strconv.Atoi(parts[2])
	if err != nil || patience < 0 {
		return fit.Hook{}, wrong
	}
	return fit.ReduceOnPlateau(parts[0], fit.Factor(factor), fit.Patience(patience)), nil
}

// fuseAuto is the value of --fuse-steps that leaves the number to the program.
const fuseAuto = "auto"

// plan is what the model does with the options of the flags.
func (f *fitFlags) plan(model *savedmodels.Model) (*session.Plan, error) {
	p, err := session.Compile(model, f.options)
	if errors.As(err, new(*option.Error)) {
		err = unusable(err)
	}
	return p, err
}

// chooseSteps sets the steps per execution that --fuse-steps asks for.
func (f *fitFlags) chooseSteps(l *fit.Loop, plan *session.Plan, train data.Dataset) error {
	if err := plan.CheckBatch(f.batch); err != nil {
		return unusable(err)
	}
	n, err := strconv.Atoi(f.fuseSteps)
	if f.fuseSteps == fuseAuto {
		n, err = plan.ChooseSteps(train, f.batch)
		if errors.Is(err, session.ErrStack) {
			l.Log.Info("train steps run one by one", "reason", err)
			err = nil
		}
	}
	if err != nil {
		return err
	}
	f.options.StepsPerExecution = n
	_, err = f.plan(plan.Model())
	return err
}

// parseLossScale reads --loss-scale.
func parseLossScale(text string) (session.LossScale, error) {
	switch text {
	case "":
		return session.LossScale{}, nil
	case "dynamic":
		return session.DynamicLossScale, nil
	}
	scale, err := strconv.ParseFloat(text, 64)
	if err != nil || !(scale > 0 && scale <= math.MaxFloat32) {
		return session.LossScale{}, usagef("--loss-scale %q: expected dynamic, or a number above 0 and at most %.4g, as in 1024", text, math.MaxFloat32)
	}
	return session.LossScale{Fixed: scale}, nil
}

// parseEvery reads a number of steps or of epochs; the other one is 0.
func parseEvery(flag, text string) (steps, epochs int, err error) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz ")
	n, err := strconv.Atoi(digits)
	if err == nil && n > 0 {
		switch strings.TrimSpace(text[len(digits):]) {
		case "steps", "step":
			return n, 0, nil
		case "epochs", "epoch":
			return 0, n, nil
		}
	}
	return 0, 0, usagef("--%s %q: expected a number of steps or epochs, as in 500steps or 2epochs", flag, text)
}

func (f *fitFlags) pass() data.Pass { return data.Pass{Batch: f.batch, DropRemainder: f.dropRemainder} }

// datasets opens and checks the data; nothing of a file that is bad anywhere is
// trained on.
func (f *fitFlags) datasets(ctx context.Context, l *fit.Loop, model *savedmodels.Model, roles savedmodels.Roles) (data.Dataset, error) {
	if err := f.data.suit(model, roles.Train); err != nil {
		return nil, err
	}
	train, err := f.data.open(f.data.path, "train")
	if errors.Is(err, data.ErrNoSplit) {
		train, err = f.data.open(f.data.path, "")
	}
	if err != nil {
		return nil, err
	}
	f.data.classes = train.ClassNames("y")
	train = train.Workers(f.workers)
	var held *data.Memory
	if f.validation != "" {
		if fraction, err := strconv.ParseFloat(f.validation, 64); err == nil {
			if !(fraction > 0 && fraction < 1) {
				return nil, usagef("--validation %s: expected a fraction between 0 and 1, or a file", f.validation)
			}
			if train, held, err = train.Split(1-fraction, f.seed); err != nil {
				return nil, unusable(fmt.Errorf("--validation %s: %w", f.validation, err))
			}
		} else {
			if held, err = f.data.openTest(f.validation); err != nil {
				return nil, err
			}
			held = held.Workers(f.workers)
		}
		if roles.Evaluate == "" {
			return nil, usagef("--validation: %s has no signature to evaluate with (evaluate or eval); export it with one, or leave --validation out", model.Dir)
		}
		if held, err = f.data.scaled(held); err != nil {
			return nil, err
		}
		if err := check(held, model, roles.Evaluate, data.Pass{Batch: f.batch}); err != nil {
			return nil, err
		}
		l.Validation = held
	}
	if train, err = f.weighted(train, model, roles.Train); err != nil {
		return nil, err
	}
	if train, err = f.augmented(train, model, roles.Train); err != nil {
		return nil, err
	}
	if train, err = f.data.scaled(train); err != nil {
		return nil, err
	}
	if err := check(train, model, roles.Train, f.pass()); err != nil {
		return nil, err
	}
	if f.checkImages {
		if err := data.CheckImages(ctx, train); err != nil {
			return nil, unusable(err)
		}
		if held != nil {
			if err := data.CheckImages(ctx, held); err != nil {
				return nil, unusable(err)
			}
		}
	}
	var ds data.Dataset = train
	if f.shuffle {
		ds = train.Shuffle(f.seed)
	}
	ahead := f.prefetch
	if ahead < 0 {
		if ahead = 2; f.budget == "" {
			ahead = data.AheadFor(ds, f.batch)
		}
	}
	if ahead > 0 {
		ds = data.Prefetch(ds, ahead)
	}
	return ds, nil
}

// weighted adds the weights of the classes to the training data, if there are any: of the
// field that feeds the only input that is a label.
func (f *fitFlags) weighted(train *data.Memory, model *savedmodels.Model, signature string) (*data.Memory, error) {
	if len(f.classWeights) == 0 {
		return train, nil
	}
	sig, err := model.Signature(signature)
	if err != nil {
		return nil, err
	}
	if sig.Reserved(savedmodels.InputSampleWeight) == nil {
		return nil, usagef("--class-weight: signature %s takes no %s; export the model with it (export.py --sample-weight)", signature, savedmodels.InputSampleWeight)
	}
	fields, err := session.CheckData(model, signature, train, f.pass())
	if err != nil {
		return nil, err
	}
	labels := slices.DeleteFunc(sig.DataInputs(), func(in savedmodels.Tensor) bool {
		predict, err := model.Signature(model.Roles.Predict)
		return err == nil && predict.Input(in.Name) != nil
	})
	if len(labels) != 1 {
		return nil, usagef("--class-weight: expected a model with one label, and signature %s takes %d", signature, len(labels))
	}
	label := fields[labels[0].Name]
	names := train.ClassNames(label)
	weights := map[int64]float64{}
	for name, text := range f.classWeights {
		class, err := strconv.ParseInt(name, 10, 64)
		if i := slices.Index(names, name); i >= 0 {
			class, err = int64(i), nil
		}
		if err != nil {
			return nil, usagef("--class-weight %s=%s: %q is no number and no name of a class", name, text, name)
		}
		if weights[class], err = strconv.ParseFloat(text, 64); err != nil {
			return nil, usagef("--class-weight %s=%s: expected a number as the weight", name, text)
		}
	}
	if train, err = data.WithSampleWeights(train, label, weights); err != nil {
		return nil, usagef("--class-weight: %w", err)
	}
	return train, nil
}

// augmented changes the images of the training data at random, if that is asked for:
// the field that feeds the first input with samples in the shape of images, or with as
// many elements as an image of the size that is known.
func (f *fitFlags) augmented(train *data.Memory, model *savedmodels.Model, signature string) (*data.Memory, error) {
	if f.augmentation.String() == "" {
		return train, nil
	}
	fields, err := session.CheckData(model, signature, train, f.pass())
	if err != nil {
		return nil, err
	}
	sig, err := model.Signature(signature)
	if err != nil {
		return nil, err
	}
	size := f.data.images
	for _, in := range sig.DataInputs() {
		for _, field := range train.Fields() {
			if field.Name != fields[in.Name] {
				continue
			}
			if len(field.Shape) == 1 && field.Shape[0] > 1 && field.Shape[0] == size.Height*size.Width*size.Channels {
				if train, err = train.Reshape(field.Name, size.Height, size.Width, size.Channels); err != nil {
					return nil, unusable(err)
				}
			} else if len(field.Shape) != 2 && len(field.Shape) != 3 {
				continue
			}
			train, err = train.Augment(field.Name, f.augmentation)
			return train, unusable(err)
		}
	}
	return nil, usagef("--augment %s: the samples of %s have not the shape of images, [height width] or [height width channels]; where their pixels are in a row, --image-size gives it", f.augment, train.Name())
}

// explain adds to an error what the user can do next.
func (f *fitFlags) explain(err error, h *fit.History) error {
	var todo string
	switch {
	case exitCode(err) == exitInterrupted:
	case errors.Is(err, session.ErrOutOfMemory) && f.onOOM == oomStop:
		todo = "\na smaller --batch takes less, and --on-oom microbatch splits batches where that is needed"
	default:
		return err
	}
	switch {
	case h.Checkpoint != "":
		todo += fmt.Sprintf("; the checkpoint is %s, continue with --resume", h.Checkpoint)
	default:
		todo += "; there is no checkpoint (--checkpoints DIR)"
	}
	return fmt.Errorf("%w%s", err, todo)
}

// result is what fit --json prints.
type result struct {
	Out         string      `json:"out,omitempty"`
	Checkpoint  string      `json:"checkpoint,omitempty"`
	ResumedFrom string      `json:"resumed_from,omitempty"`
	Stopped     string      `json:"stopped,omitempty"`
	Epochs      int         `json:"epochs"`
	Last        *fit.Record `json:"last,omitempty"`
}

func (f *fitFlags) print(w io.Writer, h *fit.History) error {
	r := result{Out: f.out, Checkpoint: h.Checkpoint, ResumedFrom: h.ResumedFrom, Stopped: h.Stopped, Epochs: len(h.Records)}
	if len(h.Records) > 0 {
		last := h.Last()
		r.Last = &last
	}
	if f.json {
		return printJSON(w, r)
	}
	var line []string
	if r.Last != nil {
		line = append(line, fmt.Sprintf("trained %s, %s:", count(int64(r.Last.Epoch), "epoch"), count(r.Last.Step, "step")))
		for _, m := range r.Last.Metrics {
			line = append(line, m.String())
		}
		if err := printMetrics(w, line); err != nil {
			return err
		}
	}
	if f.out != "" {
		if _, err := fmt.Fprintf(w, "trained model: %s\n", f.out); err != nil {
			return err
		}
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// count is a number of things, as in "1 epoch" and "2 epochs".
func count(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
