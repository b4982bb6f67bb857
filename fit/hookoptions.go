package fit

import (
	"slices"
	"strings"

	"steadyfit/fit/internal/disk"
	"steadyfit/option"
)

// Option configures a hook of this package. A hook rejects options of other hooks when it
// starts.
type Option struct {
	name  string
	apply func(*options)
}

// options holds the options of all hooks.
type options struct {
	monitor // for Best, EarlyStop and ReduceOnPlateau
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

// with applies options to the defaults of a hook.
func (o options) with(given []Option) options {
	for _, g := range given {
		g.apply(&o)
		o.given = append(o.given, g.name)
	}
	return o
}

// check rejects options that hook does not have.
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
// 3. Checkpoint also keeps the best one (Best) and, with Keep(1), the one before the newest
// until a finite loss shows that the newest is good.
func Keep(n int) Option { return Option{"Keep", func(o *options) { o.keep = n }} }

// EverySteps makes Checkpoint write one after every n train steps, counted from the beginning
// of the training.
func EverySteps(n int) Option { return Option{"EverySteps", func(o *options) { o.everySteps = &n }} }

// EveryEpochs makes Checkpoint write one after every n epochs. Without EverySteps, the default
// is 1.
func EveryEpochs(n int) Option { return Option{"EveryEpochs", func(o *options) { o.everyEpochs = &n }} }

// Best makes Checkpoint also write one after every epoch with a new best value of a metric,
// such as "val_loss". Checkpoint keeps the best one, and best.json names it. Pass a Direction
// if the metric's name does not imply one (Auto).
func Best(metric string, direction ...Direction) Option {
	return Option{"Best", func(o *options) { o.monitor = monitor{metric: metric, direction: append(direction, Auto)[0]} }}
}

// ErrorPolicy decides what happens when a file cannot be written.
type ErrorPolicy int

const (
	// Stop ends the run with an error.
	Stop ErrorPolicy = iota
	// Continue goes on training without the file.
	Continue
)

// OnError sets the policy for a checkpoint, a line of a log file, or the best state of
// RestoreBest that cannot be written. It applies to all hooks that write files. The default is
// Stop. If the folder cannot be written when a new training begins, the run always ends.
//
// With Continue, a warning describes the fix. Lines are written later, when there is free
// space. A checkpoint is tried again when the next one is due, at the latest after the next
// epoch, and the epoch has the event "checkpoint_failed". The best state remains that of an
// earlier epoch, with the event "best_not_kept". At its end, Run returns the error of each file
// that is still not written, and errors that every retry would repeat.
//
// With Stop, a checkpoint that cannot be written ends the run at once. A line or a best state
// that cannot be written ends the run after the epoch, when all other hooks, including
// Checkpoint, have been called.
func OnError(policy ErrorPolicy) Option {
	return Option{"OnError", func(o *options) { o.onError = policy }}
}

// withDisk sets the disk of a hook; tests inject failures there.
func withDisk(d disk.Disk) Option { return Option{"", func(o *options) { o.disk = d }} }

// Patience sets the number of epochs without improvement after which EarlyStop or
// ReduceOnPlateau acts. The default is 0 for EarlyStop and 10 for ReduceOnPlateau.
func Patience(epochs int) Option { return Option{"Patience", func(o *options) { o.patience = epochs }} }

// MinDelta sets the smallest improvement that counts for EarlyStop and ReduceOnPlateau. The
// default is 0 for EarlyStop and 0.0001 for ReduceOnPlateau.
func MinDelta(delta float64) Option {
	return Option{"MinDelta", func(o *options) { o.minDelta = delta }}
}

// Mode sets which values are better for EarlyStop and ReduceOnPlateau. The default is Auto.
func Mode(d Direction) Option { return Option{"Mode", func(o *options) { o.direction = d }} }

// Baseline sets a value that the metric of EarlyStop has to exceed. An epoch below it counts as
// an epoch without improvement.
func Baseline(value float64) Option {
	return Option{"Baseline", func(o *options) { o.baseline = &value }}
}

// RestoreBest makes EarlyStop restore the state of the best epoch at the end of the run, and log
// that epoch, if the run ends without an error, even if EarlyStop did not end it. The state
// is stored in checkpoints and in files in dir, usually the folder of the checkpoints. An empty
// dir means a temporary folder.
func RestoreBest(dir string) Option {
	return Option{"RestoreBest", func(o *options) { o.restore, o.bestDir = true, dir }}
}

// StartFrom sets the number of initial epochs that EarlyStop ignores.
func StartFrom(epochs int) Option {
	return Option{"StartFrom", func(o *options) { o.startFrom = epochs }}
}

// Factor sets the factor by which ReduceOnPlateau multiplies the learning rate, above 0 and
// below 1. The default is 0.1.
func Factor(f float64) Option { return Option{"Factor", func(o *options) { o.factor = f }} }

// Cooldown sets the number of epochs that ReduceOnPlateau waits after a reduction before it
// counts again. The default is 0.
func Cooldown(epochs int) Option { return Option{"Cooldown", func(o *options) { o.cooldown = epochs }} }

// MinRate sets the learning rate below which ReduceOnPlateau does not go. The default is 0.
func MinRate(rate float64) Option { return Option{"MinRate", func(o *options) { o.minRate = rate }} }
