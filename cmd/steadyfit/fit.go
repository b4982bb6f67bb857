package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/flags"
	"steadyfit/option"
	"steadyfit/session"
	"steadyfit/train"
)

// fitFlags are the flags of fit. What needs no reading is in the Config itself.
type fitFlags struct {
	train.Config
	modelFlags
	data                            dataFlags
	every, earlyStop, reduceRate    string
	learningRate, history, stepsPer string
	lossScale, augment, heldOut     string
	classWeights                    map[string]string
	json, inForce, restoreBest      bool
	resilience
	autoFlags
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
	flags.StringVar(&f.heldOut, "validation", "", "validation data: a file (of a dataset with two parts, the test part), or the fraction of the training data to set aside, as in 0.1")
	flags.IntVar(&f.Loop.Epochs, "epochs", 1, "epochs to train, in all; a resumed run does those that are missing")
	flags.IntVar(&f.Loop.Batch, "batch", 32, "samples per step")
	flags.IntVar(&f.Loop.StepsPerEpoch, "steps-per-epoch", 0, "steps per epoch, of less or more than one pass over the data; 0 means one pass")
	flags.Uint64Var(&f.Seed, "seed", 0, "seed of shuffling, of splitting, and of models that take one")
	flags.BoolVar(&f.Shuffle, "shuffle", true, "shuffle the training data anew in each epoch")
	flags.BoolVar(&f.Loop.DropRemainder, "drop-remainder", false, "leave out a last batch that is smaller than the others")
	flags.StringVar(&f.Checkpoints.Folder, "checkpoints", "", "folder for checkpoints")
	flags.IntVar(&f.Checkpoints.Keep, "keep", 3, "newest checkpoints to keep, beside the best (--keep-best); 0 keeps all")
	flags.StringVar(&f.every, "every", "1epochs", "how often to write a checkpoint, as in 500steps or 2epochs")
	flags.BoolVar(&f.Resume, "resume", false, "continue from the newest good checkpoint, if there is one")
	flags.StringVar(&f.Out, "out", "", "folder for the trained SavedModel; one that is there already is replaced")
	flags.StringVar(&f.history, "history", "", "file for the history, one JSON line per epoch")
	flags.StringVar(&f.earlyStop, "early-stop", "", "stop when a metric no longer gets better, as in val_loss:3 (METRIC:PATIENCE[:min|max][:MINDELTA], with the patience in epochs; default of the direction by the name)")
	flags.StringVar(&f.reduceRate, "reduce-lr", "", "multiply the learning rate when a metric no longer gets better, as in val_loss:0.1:10 (METRIC:FACTOR:PATIENCE); needs --learning-rate")
	flags.StringVar(&f.Checkpoints.Best, "keep-best", "", "metric whose best checkpoint is kept beside the newest; default val_loss, with --validation")
	flags.IntVar(&f.Loop.ValidationEvery, "validation-every", 1, "epochs from one validation to the next")
	flags.IntVar(&f.Loop.InitialEpoch, "initial-epoch", 0, "epochs to take as done when a run begins anew")
	flags.BoolVar(&f.restoreBest, "restore-best", false, "end with the weights of the best epoch by --early-stop, rather than of the last")
	flags.StringVar(&f.learningRate, "learning-rate", "", "learning rate, or a schedule: cosine:RATE:STEPS[:FINAL], linear:RATE:STEPS[:FINAL], step:RATE:FACTOR:EPOCHS, exp:RATE:FACTOR:STEPS; warmup:STEPS: before any")
	flags.StringVar(&f.stepsPer, "fuse-steps", "1", "train steps to run in one call of TensorFlow, with the same weights: a number, or auto, which goes by the model and the data; 1 runs them one by one (docs/performance.md)")
	flags.BoolVar(&f.options.Compiled, "compiled", false, "train with the model's twins that XLA has compiled, where a batch and the steps of a call have their sizes; they round differently")
	flags.IntVar(&f.Prefetch, "prefetch", -1, "batches to prepare ahead; 0 prepares none, -1 as many as take 4 MiB, 2 to 64, or 2 with --memory-budget")
	flags.StringToStringVar(&f.classWeights, "class-weight", nil, "weights of classes in the loss of the training, as in 0=1,1=5; other classes have 1 (the model needs the input sample_weight)")
	flags.StringVar(&f.augment, "augment", "", "changes to training images, drawn anew in each epoch: flip, crop:PIXELS, jitter:AMOUNT, as in flip,crop:4,jitter:0.1")
	flags.IntVar(&f.data.Workers, "workers", 0, "goroutines that decode and augment; 0 means one per core")
	flags.BoolVar(&f.CheckImages, "check-images", true, "decode all images once before training, so that one that is damaged does not end it")
	flags.StringVar(&f.lossScale, "loss-scale", "", "for a model with the input loss_scale: dynamic, which is the default for one that also has the output grads_finite, or a fixed scale, as in 1024")
	flags.StringVar(&f.options.TrainSignature, "train-signature", "", "signature to train with; default train, learn or train_step")
	flags.BoolVar(&f.inForce, "in-force", false, "trace a step at the start, and undo it, to say what TensorFlow really computes in and on; default only with options that may not take effect (docs/gpu.md)")
	flags.BoolVar(&f.json, "json", false, "print the result as JSON")
	f.resilience.register(flags)
	f.autoFlags.register(flags)
	return cmd
}

func (f *fitFlags) run(cmd *cobra.Command, g *global) error {
	if err := f.parse(cmd.Flags().Changed); err != nil {
		return err
	}
	if err := g.quiet(); err != nil {
		return err
	}
	stderr := cmd.ErrOrStderr()
	f.TensorFlow, f.Progress, f.Loop.Log = g.tensorflow, stderr, newLog(stderr)
	f.Supervisor.Log, f.Supervisor.Stderr, f.Supervisor.ExitCode = f.Loop.Log, stderr, exitCode
	f.Report = func(subject string, value any) { notice(stderr, subject, value) }
	switch {
	case cmd.Flags().Changed("in-force") && f.inForce:
		f.Trace = train.TraceAlways
	case cmd.Flags().Changed("in-force"):
		f.Trace = train.TraceNever
	case g.verbose:
		f.Trace = train.TraceUnlessLimited
	}
	r, err := train.Run(cmd.Context(), f.Config)
	if err != nil {
		return goOn(g.noGPU(cmd.Context(), err), f.Checkpoints.Folder)
	}
	if r.InChild {
		return nil
	}
	return f.print(cmd.OutOrStdout(), r)
}

// notice prints what a user should read about a training.
func notice(w io.Writer, subject string, value any) {
	if err, ok := value.(error); ok {
		value = option.Text(err, flags.Name)
	}
	if subject == "warning" {
		subject = "steadyfit: warning"
	}
	fmt.Fprintf(w, "%s: %v\n", subject, value)
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

// parse fills the Config. given tells which flags were given.
func (f *fitFlags) parse(given func(flag string) bool) (err error) {
	if err := f.device.parse(&f.options.Device); err != nil {
		return err
	}
	if err := f.data.parse(); err != nil {
		return err
	}
	if err := f.resilience.parse(&f.Config, given); err != nil {
		return err
	}
	if f.Autotune, err = f.autoFlags.parse(given, autoOn, autoPrecision, autoOff); err != nil {
		return err
	}
	if err := f.parseTraining(); err != nil {
		return err
	}
	if f.Checkpoints.EverySteps, f.Checkpoints.EveryEpochs, err = parseEvery("every", f.every); err != nil {
		return err
	}
	if f.options.LossScale, err = parseLossScale(f.lossScale); err != nil {
		return err
	}
	if f.stepsPer == "auto" {
		f.ChooseSteps = true
	} else if n, err := strconv.Atoi(f.stepsPer); err != nil || n < 1 {
		return usagef("--fuse-steps %q: expected a number of at least 1, or auto", f.stepsPer)
	} else if n > 1 {
		f.options.StepsPerExecution = n
	}
	f.options.AllowInexactSplit = f.inexact
	f.Model, f.LossOutput, f.Data, f.Session = f.model, f.loss, f.data.Data, f.options
	return f.parseHooks()
}

// parseTraining reads what the training data are and how they change the weights.
func (f *fitFlags) parseTraining() (err error) {
	if fraction, err := strconv.ParseFloat(f.heldOut, 64); err != nil {
		f.Validation = f.heldOut
	} else if !(fraction > 0 && fraction < 1) {
		return usagef("--validation %s: expected a fraction between 0 and 1, or a file", f.heldOut)
	} else {
		f.ValidationFraction = fraction
	}
	if f.Loop.ValidationEvery < 1 {
		return usagef("--validation-every %d: expected at least 1", f.Loop.ValidationEvery)
	}
	if f.Augmentation, err = data.ParseAugmentation(f.augment); err != nil {
		return usagef("--augment: %w", err)
	}
	if f.learningRate != "" {
		f.Loop.LearningRateText = f.learningRate
		if f.Loop.LearningRate, err = fit.ParseSchedule(f.learningRate); err != nil {
			return usagef("--learning-rate: %w", err)
		}
	}
	f.ClassWeights = map[string]float64{}
	for class, text := range f.classWeights {
		if f.ClassWeights[class], err = strconv.ParseFloat(text, 64); err != nil {
			return usagef("--class-weight %s=%s: expected a number as the weight", class, text)
		}
	}
	return nil
}

// parseHooks adds the hooks that flags ask for.
func (f *fitFlags) parseHooks() error {
	onError := fit.OnError(f.OnWriteError)
	if f.history != "" {
		f.Loop.Hook(fit.HistoryFile(f.history, onError))
	}
	switch {
	case f.earlyStop != "":
		metric, options, err := parseEarlyStop(f.earlyStop)
		if err != nil {
			return err
		}
		if f.restoreBest {
			options = append(options, fit.RestoreBest(f.Checkpoints.Folder), onError)
		}
		f.Loop.Hook(fit.EarlyStop(metric, options...))
	case f.restoreBest:
		return usagef("--restore-best needs --early-stop, whose metric says what is best")
	}
	if f.reduceRate == "" {
		return nil
	}
	if f.learningRate == "" {
		return usagef("--reduce-lr needs --learning-rate, the rate to begin with")
	}
	reduce, err := parseReduceRate(f.reduceRate)
	f.Loop.Hook(reduce)
	return err
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

// result is what fit --json prints.
type result struct {
	Out         string      `json:"out,omitempty"`
	Checkpoint  string      `json:"checkpoint,omitempty"`
	ResumedFrom string      `json:"resumed_from,omitempty"`
	Stopped     string      `json:"stopped,omitempty"`
	Epochs      int         `json:"epochs"`
	Last        *fit.Record `json:"last,omitempty"`
}

func (f *fitFlags) print(w io.Writer, trained train.Result) error {
	h := trained.History
	r := result{Out: trained.Out, Checkpoint: h.Checkpoint, ResumedFrom: h.ResumedFrom, Stopped: h.Stopped, Epochs: len(h.Records)}
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
	if r.Out != "" {
		if _, err := fmt.Fprintf(w, "trained model: %s\n", r.Out); err != nil {
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
