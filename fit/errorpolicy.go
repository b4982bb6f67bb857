package fit

import "steadyfit/option"

// ErrorPolicy decides what a hook does if it cannot write a file: a checkpoint, a line of a log
// file, or the best state of EarlyStop. An error when a new training begins always ends the run.
type ErrorPolicy int

const (
	// Stop ends the run with an error: at once for a checkpoint, and for a line or a best state
	// after the epoch, when all hooks have been called.
	Stop ErrorPolicy = iota
	// Continue continues the training without the file and logs a warning. Lines are written
	// later, when there is free space. A checkpoint is tried again when the next one is due, at
	// the latest after the next epoch; the epoch has the event "checkpoint_failed". EarlyStop
	// keeps the best state of an earlier epoch; the epoch has the event "best_not_kept". When
	// the run ends, it returns the error of each file that is still not written.
	Continue
)

func (p ErrorPolicy) check() error {
	if p != Stop && p != Continue {
		return &option.Error{Option: "OnError", Value: p, Reason: "expected fit.Stop or fit.Continue"}
	}
	return nil
}
