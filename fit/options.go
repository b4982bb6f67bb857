package fit

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/option"
)

const maxBatch = math.MaxInt32

// CheckOptions returns the errors of Run about numbers in l.
func (l *Loop) CheckOptions() error {
	for _, o := range []struct {
		name       string
		value, min int
	}{
		{"Batch", l.Batch, 1},
		{"Epochs", l.Epochs, 1},
		{"InitialEpoch", l.InitialEpoch, 0},
		{"StepsPerEpoch", l.StepsPerEpoch, 0},
		{"ValidationEvery", l.ValidationEvery, 0},
	} {
		if o.value < o.min {
			return &option.Error{Option: "Loop." + o.name, Value: o.value, Reason: fmt.Sprintf("expected at least %d", o.min)}
		}
	}
	if l.Batch > maxBatch {
		return &option.Error{Option: "Loop.Batch", Value: l.Batch, Reason: fmt.Sprintf("expected at most %d", maxBatch)}
	}
	if l.InitialEpoch >= l.Epochs {
		return &option.Error{Option: "Loop.InitialEpoch", Value: l.InitialEpoch,
			Reason: fmt.Sprintf("nothing is left to train with %d epochs", l.Epochs),
			Fix:    "raise {Loop.Epochs}, which counts from the beginning of training"}
	}
	if most := math.MaxInt64 / int64(l.Epochs); int64(l.StepsPerEpoch) > most {
		return &option.Error{Option: "Loop.StepsPerEpoch", Value: l.StepsPerEpoch,
			Reason: fmt.Sprintf("expected at most %d with %d epochs", most, l.Epochs)}
	}
	return nil
}

func (l *Loop) check(ds data.Dataset) error {
	if ds == nil {
		return &option.Error{Option: "dataset", Reason: "missing", Fix: "give Run a dataset"}
	}
	if err := l.CheckOptions(); err != nil {
		return err
	}
	n := ds.Len()
	if n < 1 {
		return &option.Error{Option: "dataset", Reason: ds.Name() + " has no samples",
			Fix: "give Run a dataset with at least one"}
	}
	if l.DropRemainder && n < l.Batch {
		return &option.Error{Option: "Loop.DropRemainder",
			Reason: fmt.Sprintf("%s has %d samples, less than one batch of %d, so no batch remains", ds.Name(), n, l.Batch),
			Fix:    "lower {Loop.Batch}, or keep the remainder"}
	}
	return nil
}

// Check returns the errors of Run that need no session: wrong options, and hooks with unknown
// metrics. train and evaluate are the names of the session's metrics.
func (l *Loop) Check(ds data.Dataset, train, evaluate []string) error {
	if err := l.check(ds); err != nil {
		return err
	}
	_, _, err := l.metrics(train, evaluate)
	return err
}

// metrics returns the names in records of the metrics of a session, and checks those that hooks use.
func (l *Loop) metrics(train, evaluate []string) (trained, validated []string, err error) {
	if trained, err = metricNames(train, "", "train"); err != nil {
		return nil, nil, err
	}
	if l.Validation != nil {
		if validated, err = l.validationMetrics(trained, evaluate); err != nil {
			return nil, nil, err
		}
	}
	for _, h := range l.hooks {
		if h.metric == nil {
			continue
		}
		if err := h.metric(slices.Concat(trained, validated), l.Validation != nil); err != nil {
			return nil, nil, err
		}
	}
	return trained, validated, nil
}

func (l *Loop) validationMetrics(trained, evaluate []string) ([]string, error) {
	v := l.Validation
	switch {
	case len(evaluate) == 0:
		return nil, &option.Error{Option: "Loop.Validation", Reason: "the model has no evaluate signature",
			Fix: "export the model with one, or train without validation"}
	case v.Len() < 1:
		return nil, &option.Error{Option: "Loop.Validation", Reason: v.Name() + " has no samples",
			Fix: "use a dataset with at least one"}
	}
	validated, err := metricNames(evaluate, validationPrefix, "evaluate")
	for _, name := range validated {
		if slices.Contains(trained, name) {
			return nil, &option.Error{Option: "Loop.Validation", Reason: name + " is a metric of the train signature already",
				Fix: "give that output of the model a name that does not begin with " + validationPrefix}
		}
	}
	return validated, err
}

func newRun(l *Loop, ds data.Dataset) (*run, error) {
	if l.Session == nil {
		return nil, &option.Error{Option: "Loop.Session", Reason: "missing", Fix: "set it to an open session"}
	}
	if err := l.check(ds); err != nil {
		return nil, err
	}
	hooks, err := checkHooks(l.hooks)
	if err != nil {
		return nil, err
	}
	ranks, rank := l.Session.Ranks(), 0
	if ranks != nil {
		rank = ranks.Rank()
	}
	if ranks != nil && l.Recover != nil {
		return nil, &option.Error{Option: "Loop.Recover",
			Reason: "works only in a training of one process, since the other ranks would not return to the snapshot"}
	} else if rank > 0 {
		hooks = followers(hooks)
	}
	r := &run{loop: l, ds: ds, ranks: ranks, rank: rank, hooks: hooks, now: l.now, rate: math.NaN(), sound: true}
	if r.now == nil {
		r.now = time.Now
	}
	for _, h := range hooks {
		if h.Step != nil {
			r.stepHooks = append(r.stepHooks, h)
		}
	}
	outputs, evaluated := l.Session.TrainMetrics(), l.Session.EvaluateMetrics()
	names, validated, err := l.metrics(outputs, evaluated)
	if err != nil {
		return nil, err
	}
	r.train = newScalars(l.Session, outputs, names)
	if l.Validation != nil {
		r.validation = newScalars(l.Session, evaluated, validated)
	}
	batches := r.batchesPerPass()
	steps := cmp.Or(l.StepsPerEpoch, batches)
	step := int64(l.InitialEpoch) * int64(steps)
	r.state = State{
		Session: l.Session, Epoch: l.InitialEpoch + 1, Epochs: l.Epochs, StepsPerEpoch: steps,
		Values: r.train.values, History: &History{}, Log: l.Log, run: r,
		Position: Position{
			Step: step, EpochsDone: l.InitialEpoch, Pass: int(step / int64(batches)), PassBatch: int(step % int64(batches)),
			RateScale: 1, sums: make([]float64, len(names)),
		},
	}
	if l.Log == nil {
		r.state.Log = slog.New(slog.DiscardHandler)
	}
	return r, nil
}
