package fit

import (
	"slices"
	"strings"

	"steadyfit/fit/internal/disk"
	"steadyfit/option"
)

// Option is an option of a hook of this package. A hook refuses those of others at its start.
type Option struct {
	name  string
	apply func(*options)
}

// options are those of all hooks.
type options struct {
	monitor // of Best, EarlyStop and ReduceOnPlateau
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

// check refuses options that hook does not have.
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

// Keep is for Checkpoint: the number of newest checkpoints to keep; 0 keeps all. The default is
// 3. The best one (Best) is kept in addition, and for Keep(1), the one before the newest
// until a finite loss shows that the newest is good.
func Keep(n int) Option { return Option{"Keep", func(o *options) { o.keep = n }} }

// EverySteps is for Checkpoint: it writes one after every n train steps, counted from the
// beginning of training.
func EverySteps(n int) Option { return Option{"EverySteps", func(o *options) { o.everySteps = &n }} }

// EveryEpochs is for Checkpoint: it writes one after every n epochs. Without EverySteps, the
// default is 1.
func EveryEpochs(n int) Option { return Option{"EveryEpochs", func(o *options) { o.everyEpochs = &n }} }

// Best is for Checkpoint: it also writes one after every epoch in which the metric, such as
// "val_loss", is better than ever, and keeps the best one, which best.json names. Give a
// Direction if the name of the metric does not tell.
func Best(metric string, direction ...Direction) Option {
	return Option{"Best", func(o *options) { o.monitor = monitor{metric: metric, direction: append(direction, Auto)[0]} }}
}

// ErrorPolicy decides what happens when a file cannot be written.
type ErrorPolicy int

const (
	// Stop ends the run.
	Stop ErrorPolicy = iota
	// Continue trains on without the file.
	Continue
)

// OnError is for all hooks that write files: it decides what happens when a checkpoint, a line of
// a log file, or the best state of RestoreBest cannot be written. The default is Stop. A
// folder that cannot be written when a new training begins always ends it.
//
// With Continue, a warning says what to do. Lines are written later, when there is room. A
// checkpoint is tried again when the next one is due, at the latest after the next epoch, and
// the epoch has the event "checkpoint_failed". The best state stays that of an earlier epoch,
// with the event "best_not_kept". Run returns the error of what is still not written at the
// end, and of what would always fail.
//
// With Stop, a checkpoint that cannot be written ends the run at once. A line or a best state
// ends it after the epoch, so that the other hooks, Checkpoint included, complete it.
func OnError(policy ErrorPolicy) Option {
	return Option{"OnError", func(o *options) { o.onError = policy }}
}

// withDisk makes a hook that tests can crash.
func withDisk(d disk.Disk) Option { return Option{"", func(o *options) { o.disk = d }} }

// Patience is for EarlyStop and ReduceOnPlateau: the number of epochs without improvement after
// which the hook acts. The default is 0 for EarlyStop and 10 for ReduceOnPlateau.
func Patience(epochs int) Option { return Option{"Patience", func(o *options) { o.patience = epochs }} }

// MinDelta is for EarlyStop and ReduceOnPlateau: the least improvement that counts. The default
// is 0 for EarlyStop and 0.0001 for ReduceOnPlateau.
func MinDelta(delta float64) Option {
	return Option{"MinDelta", func(o *options) { o.minDelta = delta }}
}

// Mode is for EarlyStop and ReduceOnPlateau: which values are better. The default is Auto.
func Mode(d Direction) Option { return Option{"Mode", func(o *options) { o.direction = d }} }

// Baseline is for EarlyStop: a value that the metric has to beat. Epochs that do not beat it
// count as without improvement.
func Baseline(value float64) Option {
	return Option{"Baseline", func(o *options) { o.baseline = &value }}
}

// RestoreBest is for EarlyStop: it restores the state of the best epoch at the end of the run,
// whether it was stopped early or not, unless the run ended with an error. The state is kept
// in files in dir, usually the folder of the checkpoints, or in a temporary folder if dir is
// empty, and in checkpoints.
func RestoreBest(dir string) Option {
	return Option{"RestoreBest", func(o *options) { o.restore, o.bestDir = true, dir }}
}

// StartFrom is for EarlyStop: the number of first epochs to ignore.
func StartFrom(epochs int) Option {
	return Option{"StartFrom", func(o *options) { o.startFrom = epochs }}
}

// Factor is for ReduceOnPlateau: what the learning rate is multiplied by, above 0 and below 1.
// The default is 0.1.
func Factor(f float64) Option { return Option{"Factor", func(o *options) { o.factor = f }} }

// Cooldown is for ReduceOnPlateau: the number of epochs to wait after a reduction before
// counting again. The default is 0.
func Cooldown(epochs int) Option { return Option{"Cooldown", func(o *options) { o.cooldown = epochs }} }

// MinRate is for ReduceOnPlateau: the learning rate below which it is not reduced. The default
// is 0.
func MinRate(rate float64) Option { return Option{"MinRate", func(o *options) { o.minRate = rate }} }
