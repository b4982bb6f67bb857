package autotune

import (
	"context"
	"iter"

	"steadyfit/data"
	"steadyfit/internal/capability"
)

// Trainer is the part of a session that Executions uses. A Live is one, too.
type Trainer interface {
	TrainMetrics() []string
	Train(ctx context.Context, step int64, b data.Batch, out []float64) error
	capability.Session
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
	can     capability.Set
	next    func() (data.Batch, error, bool)
	stop    func()
}

// NewExecutions reads the given number of batches ahead. The result must be closed.
func NewExecutions(t Trainer, ds data.Dataset, batch, steps, ahead int) *Executions {
	e := &Executions{Steps: steps, Out: make([]float64, len(t.TrainMetrics())), Ahead: data.Prefetch(ds, ahead), trainer: t, can: t.Capabilities()}
	e.Ahead.SetBlock(steps)
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
			err = e.can.Stack(i, e.Steps, b)
		default:
			err = e.trainer.Train(ctx, e.Done, b, e.Out)
		}
		if err != nil {
			return err
		}
	}
	if e.Steps > 1 {
		if err := e.can.TrainN(ctx, e.Done, e.Steps, e.Out); err != nil {
			return err
		}
	}
	e.Done += int64(e.Steps)
	return nil
}

// Close ends reading. It does not close the trainer.
func (e *Executions) Close() error {
	if e != nil {
		e.stop()
	}
	return nil
}
