package fit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"steadyfit/option"
	"steadyfit/session"
)

// ErrDiverged means that a loss is NaN or infinite, or that gradients stay infinite at the lowest loss
// scale. The weights in the session are not usable; earlier checkpoints are.
var ErrDiverged = errors.New("training diverged")

// divergedError is ErrDiverged with the step, the batch and the value.
type divergedError struct {
	// Epoch counts from 1.
	Epoch int
	// Step is the train step that gave the value, counted from 1. For a validation, it is the
	// number of train steps before it.
	Step int64
	// Steps is the number of train steps in the failed execution; 0 and 1 mean one. If there are
	// several, Step is the last one, and Value the mean over all.
	Steps int
	// Batch is the index of the batch in the pass over the data, from 0.
	Batch int
	// Metric is "loss", "val_loss" or, if the gradients are not finite, "loss_scale".
	Metric string
	// Value is NaN, +Inf or -Inf or, if Metric is "loss_scale", the lowest loss scale.
	Value float64
	// Skipped is the number of consecutive skipped train steps if Metric is "loss_scale";
	// otherwise 0.
	Skipped int64
}

func (e *divergedError) Error() string {
	where := fmt.Sprintf("at step %d (epoch %d, batch %d of the pass, from 0)", e.Step, e.Epoch, e.Batch)
	if e.Steps > 1 {
		where = fmt.Sprintf("in steps %d to %d, which ran in one execution (epoch %d, batches %d to %d of the pass, from 0)",
			e.Step-int64(e.Steps)+1, e.Step, e.Epoch, e.Batch-e.Steps+1, e.Batch)
	}
	if strings.HasPrefix(e.Metric, validationPrefix) {
		where = fmt.Sprintf("after step %d (epoch %d, batch %d of the validation data, from 0)", e.Step, e.Epoch, e.Batch)
	}
	if e.Skipped > 0 {
		return fmt.Sprintf("training diverged: the gradients are not finite at loss scale %v, which cannot be lowered, "+
			"and the last %d train steps were skipped, most recently %s; look for NaN, infinite "+
			"or very large values in the data and the weights",
			e.Value, e.Skipped, where)
	}
	return fmt.Sprintf("training diverged: %s is %v %s; lower the learning rate, or look for NaN, infinite or very "+
		"large values in the data",
		e.Metric, e.Value, where)
}

// Is reports whether target is ErrDiverged.
func (e *divergedError) Is(target error) bool { return target == ErrDiverged }

// HookError is the error of a hook. It ends the run.
type HookError struct {
	Hook string
	// Phase is the function that failed: "load", "start", "step", "epoch" or "end".
	Phase string
	Err   error
}

func (e *HookError) Error() string {
	return fmt.Sprintf("%s at %s: %v", e.Hook, e.Phase, e.Err)
}

// Unwrap returns the error that the hook returned.
func (e *HookError) Unwrap() error { return e.Err }

// mismatchError is session.ErrMismatch: the run cannot resume from a checkpoint, because its model,
// data or options differ from those of the run. The data is compared by content, in the order of the
// first pass, and not by name or path.
type mismatchError struct {
	// checkpoint is the folder of the checkpoint.
	checkpoint  string
	differences []difference
}

// difference is a key with different values in the checkpoint and in the run. A missing value
// is empty.
type difference struct{ key, checkpoint, run string }

func (e *mismatchError) Error() string { return e.OptionText(option.GoName) }

// Is reports whether target is session.ErrMismatch.
func (e *mismatchError) Is(target error) bool { return target == session.ErrMismatch }

// OptionText implements option.Named.
func (e *mismatchError) OptionText(name option.Name) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cannot resume from %s: it belongs to another run:", e.checkpoint)
	for _, d := range e.differences {
		fmt.Fprintf(&b, "\n  %s: %s in the checkpoint, %s now", d.key, orAbsent(d.checkpoint), orAbsent(d.run))
		if why := identityHints[d.key]; why != "" && d.checkpoint != "" && d.run != "" {
			b.WriteString("; " + why)
		}
	}
	b.WriteString("\nresume with the same model, data and options, or start a new run with another folder for its " +
		"checkpoints")
	b.WriteString(option.Marked(", or set {Loop.ResumeAnyway} to continue despite the differences", name))
	return b.String()
}

func orAbsent(s string) string { return cmp.Or(s, "nothing") }

// contextError returns the error and the cause of a context that has ended.
func contextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
