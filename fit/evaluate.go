package fit

import (
	"context"
	"fmt"

	"steadyfit/data"
	"steadyfit/option"
)

// Evaluate evaluates the model on a dataset, batch samples at a time. It returns the metrics,
// "loss" first. A metric is the mean over all samples, except that a running metric has its
// last value. A loss may be NaN or infinite. ctx is checked between batches. If the model has no
// evaluation signature, batch is below 1 or the dataset is empty, the error is an *option.Error.
func Evaluate(ctx context.Context, session Session, ds data.Dataset, batch int) (Metrics, error) {
	if ctx == nil {
		return nil, &option.Error{Option: "context", Reason: "missing",
			Fix: "give Evaluate a context, such as context.Background()"}
	}
	if session == nil {
		return nil, &option.Error{Option: "session", Reason: "missing", Fix: "give Evaluate an open session"}
	}
	if ds == nil || ds.Len() < 1 {
		return nil, &option.Error{Option: "dataset", Reason: "there are no samples",
			Fix: "give Evaluate a dataset with at least one"}
	}
	if batch < 1 {
		return nil, &option.Error{Option: "batch", Value: batch, Reason: "expected at least 1"}
	}
	names := session.EvaluateMetrics()
	if len(names) == 0 {
		return nil, &option.Error{Option: "session", Reason: "the model has no evaluate signature",
			Fix: "export the model with one"}
	}
	e := &evaluation{session: session, ds: ds, batch: batch, metrics: newScalars(session, names, names)}
	if err := e.run(ctx, context.WithoutCancel(ctx)); err != nil {
		return nil, fmt.Errorf("evaluation: %w", err)
	}
	return e.metrics.means(e.sums, e.samples), nil
}

type evaluation struct {
	session Session
	ds      data.Dataset
	batch   int
	// finite makes the method run stop at the first loss that is not finite.
	finite bool
	// done, if not nil, is called after each batch.
	done    func()
	metrics scalars
	sums    []float64 // see scalars.add
	samples int64
	// badBatch is the index of the batch whose loss is not finite, or -1.
	badBatch int
}

// run evaluates all batches. It checks ctx between batches, and passes steady, which is never
// cancelled, to the session.
func (e *evaluation) run(ctx, steady context.Context) error {
	e.sums, e.badBatch = make([]float64, len(e.metrics.names)), -1
	ranks := e.session.Ranks()
	if err := ended(ctx, ranks); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	if err := e.session.ResetMetrics(steady); err != nil {
		return fmt.Errorf("resetting metrics: %w", err)
	}
	for b, err := range e.ds.Batches(data.Pass{Batch: e.batch}) {
		if err != nil {
			return fmt.Errorf("reading a batch: %w", err)
		}
		if err := ended(ctx, ranks); err != nil {
			return fmt.Errorf("interrupted before batch %d: %w", b.Index, err)
		}
		if err := e.session.Evaluate(steady, b, e.metrics.values); err != nil {
			return fmt.Errorf("batch %d: %w", b.Index, err)
		}
		if e.done != nil {
			e.done()
		}
		if e.finite && !isFinite(e.metrics.values[0]) {
			e.badBatch = b.Index
			return nil
		}
		e.metrics.add(e.sums, b.Size)
		e.samples += int64(b.Size)
	}
	if e.samples == 0 {
		return fmt.Errorf("%s gave no batches", e.ds.Name())
	}
	return nil
}
