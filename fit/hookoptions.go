package fit

import (
	"slices"
	"strings"

	"steadyfit/fit/internal/disk"
	"steadyfit/option"
)

// Option configures a hook of this package. A hook rejects the options of other hooks when it
// starts.
type Option struct {
	name  string
	apply func(*options)
}

type options struct {
	monitor // options of Best, EarlyStop and ReduceOnPlateau
	given   []string
	onError ErrorPolicy
	disk    disk.Disk

	keep                    int
	everySteps, everyEpochs *int

	baseline  *float64
	startFrom int
	restore   bool
	bestDir   string

	factor, minRate float64
	cooldown        int
}

func (o options) with(given []Option) options {
	for _, g := range given {
		g.apply(&o)
		o.given = append(o.given, g.name)
	}
	return o
}

func (o *options) check(hook string, has ...string) error {
	for _, name := range o.given {
		if !slices.Contains(has, name) && name != "" {
			return &option.Error{Option: name, Reason: hook + " does not have it", Fix: "use " + strings.Join(has, ", ")}
		}
	}
	if o.onError != Stop && o.onError != Continue {
		return &option.Error{Option: "OnError", Value: o.onError, Reason: "expected fit.Stop or fit.Continue"}
	}
	return nil
}

// Keep sets the number of newest checkpoints that Checkpoint keeps; 0 keeps all. The default is
// 3. Checkpoint also keeps the best one (Best). With Keep(1), it keeps the previous one until a
// finite loss shows that the newest is good.
func Keep(n int) Option { return Option{"Keep", func(o *options) { o.keep = n }} }

// EverySteps makes Checkpoint write a checkpoint after every n train steps, counted from the
// beginning of the training.
func EverySteps(n int) Option { return Option{"EverySteps", func(o *options) { o.everySteps = &n }} }

// EveryEpochs makes Checkpoint write a checkpoint after every n epochs. Without EverySteps, the
// default is 1.
func EveryEpochs(n int) Option { return Option{"EveryEpochs", func(o *options) { o.everyEpochs = &n }} }

// Best makes Checkpoint also write a checkpoint after every epoch in which the metric, such as
// "val_loss", reaches a new best value. Checkpoint keeps the best checkpoint, and best.json
// names it. Give the direction if the metric's name does not imply it; see Mode.
func Best(metric string, direction ...Direction) Option {
	return Option{"Best", func(o *options) { o.monitor = monitor{metric: metric, direction: append(direction, auto)[0]} }}
}

// ErrorPolicy decides what a hook does if it cannot write a file.
type ErrorPolicy int

const (
	// Stop ends the run with an error.
	Stop ErrorPolicy = iota
	// Continue continues the training without the file.
	Continue
)

// OnError sets the policy for files that cannot be written: checkpoints, lines of log files,
// and the best state of RestoreBest. The default is Stop. An error when a new training begins
// always ends the run.
//
// With Continue, the hook logs a warning. Lines are written later, when there is free space. A
// checkpoint is tried again when the next one is due, at the latest after the next epoch; the
// epoch has the event "checkpoint_failed". RestoreBest keeps the best state of an earlier
// epoch; the epoch has the event "best_not_kept". When the run ends, it returns the error of
// each file that is still not written.
//
// With Stop, a checkpoint that cannot be written ends the run at once. A line or a best state
// that cannot be written ends the run after the epoch, when all hooks have been called.
func OnError(policy ErrorPolicy) Option {
	return Option{"OnError", func(o *options) { o.onError = policy }}
}

func withDisk(d disk.Disk) Option { return Option{"", func(o *options) { o.disk = d }} }

// Patience sets the number of epochs without improvement after which EarlyStop or
// ReduceOnPlateau acts. The default is 0 for EarlyStop and 10 for ReduceOnPlateau.
func Patience(epochs int) Option { return Option{"Patience", func(o *options) { o.patience = epochs }} }

// MinDelta sets the smallest improvement that counts for EarlyStop or ReduceOnPlateau. The
// default is 0 for EarlyStop and 0.0001 for ReduceOnPlateau.
func MinDelta(delta float64) Option {
	return Option{"MinDelta", func(o *options) { o.minDelta = delta }}
}

// Mode sets whether low or high values are better for EarlyStop or ReduceOnPlateau. By default,
// the metric's name decides: low for losses and errors, high for accuracies, areas and scores.
// Another name is an error.
func Mode(d Direction) Option { return Option{"Mode", func(o *options) { o.direction = d }} }

// Baseline sets a value that the metric of EarlyStop must beat. An epoch that does not beat it
// counts as one without improvement.
func Baseline(value float64) Option {
	return Option{"Baseline", func(o *options) { o.baseline = &value }}
}

// RestoreBest makes EarlyStop restore the weights of the best epoch when a run ends without an
// error, and log that epoch. It applies even if EarlyStop did not end the run. The weights are
// stored in checkpoints and in dir, usually the folder of the checkpoints. An empty dir means a
// temporary folder.
func RestoreBest(dir string) Option {
	return Option{"RestoreBest", func(o *options) { o.restore, o.bestDir = true, dir }}
}

// StartFrom sets the number of epochs at the beginning that EarlyStop ignores.
func StartFrom(epochs int) Option {
	return Option{"StartFrom", func(o *options) { o.startFrom = epochs }}
}

// Factor sets the factor by which ReduceOnPlateau multiplies the learning rate, above 0 and
// below 1. The default is 0.1.
func Factor(f float64) Option { return Option{"Factor", func(o *options) { o.factor = f }} }

// Cooldown sets the number of epochs after a reduction in which ReduceOnPlateau does not count.
// The default is 0.
func Cooldown(epochs int) Option { return Option{"Cooldown", func(o *options) { o.cooldown = epochs }} }

// MinRate sets the lowest learning rate that ReduceOnPlateau sets. The default is 0.
func MinRate(rate float64) Option { return Option{"MinRate", func(o *options) { o.minRate = rate }} }
