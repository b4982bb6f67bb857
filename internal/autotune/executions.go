package autotune

import (
	"context"
	"iter"

	"steadyfit/data"
)

// Trainer is the part of a session that Executions uses. A Live is one, too.
type Trainer interface {
	TrainMetrics() []string
	Train(ctx context.Context, step int64, b data.Batch, out []float64) error
	Stack(i, n int, b data.Batch) error
	TrainN(ctx context.Context, step int64, n int, out []float64) error
}

// Executions trains in an endless loop over the batches of a dataset.
type Executions struct {
	// Steps is the number of steps of an execution, and Done the number of all steps so far.
	Steps int
	Done  int64
	// Out has the results of the last execution, and Ahead the batches that are read ahead.
	Out   []float64
	Ahead *data.Prefetched

	trainer Trainer
	next    func() (data.Batch, error, bool)
	stop    func()
}

// NewExecutions reads the given number of batches ahead. The result must be closed.
func NewExecutions(t Trainer, ds data.Dataset, batch, steps, ahead int) *Executions {
	e := &Executions{Steps: steps, Out: make([]float64, len(t.TrainMetrics())), Ahead: data.Prefetch(ds, ahead),
		trainer: t}
	whole := ds.Len() / batch
	if whole > steps {
		whole -= whole % steps // executions must end at the end of a pass
	}
	e.next, e.stop = iter.Pull2(passes(e.Ahead, batch, whole))
	return e
}

// passes repeats the first n batches of a dataset endlessly.
func passes(ds data.Dataset, batch, n int) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		for {
			for b, err := range ds.Batches(data.Pass{Batch: batch}) {
				if !yield(b, err) || err != nil {
					return
				}
				if b.Index == n-1 {
					break
				}
			}
		}
	}
}

// Run runs one execution.
func (e *Executions) Run(ctx context.Context) error {
	for i := range e.Steps {
		b, err, _ := e.next()
		switch {
		case err != nil:
		case e.Steps > 1:
			err = e.trainer.Stack(i, e.Steps, b)
		default:
			err = e.trainer.Train(ctx, e.Done, b, e.Out)
		}
		if err != nil {
			return err
		}
	}
	if e.Steps > 1 {
		if err := e.trainer.TrainN(ctx, e.Done, e.Steps, e.Out); err != nil {
			return err
		}
	}
	e.Done += int64(e.Steps)
	return nil
}

// Close stops reading batches ahead. It does not close the trainer.
func (e *Executions) Close() error {
	if e != nil {
		e.stop()
	}
	return nil
}

// Prefetch returns how many batches of batch samples to read ahead: those that fit in 4 MiB, but at
// least 2 and at most 64. If the training has a memory budget (budgeted), the result is 2. Waking the
// consumer of the batches takes some microseconds, as long as a short step. With several batches ahead,
// the consumer waits less often.
func Prefetch(ds data.Dataset, batch int, budgeted bool) int {
	if budgeted {
		return 2
	}
	return int(min(max((4<<20)/max(batchBytes(ds, batch), 1), 2), 64))
}
