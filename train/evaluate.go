package train

import (
	"cmp"
	"context"
	"errors"

	"steadyfit/fit"
	"steadyfit/session"
)

// Evaluate evaluates the Model of a Config, in this process, on the data on which Run validates: Validation or
// ValidationFraction. It returns the metrics, "loss" first. The errors are those of Run.
func Evaluate(ctx context.Context, c Config) (metrics fit.Metrics, err error) {
	if !c.validates() {
		return nil, refuse("Config.Validation", nil, "nothing to evaluate on; set it, or {Config.ValidationFraction}")
	}
	defer c.Worker.Busy()()
	c.Out, c.OutVersion, c.OutAdapter, c.Checkpoints, c.Resume = "", "", "", fit.Checkpoint{}, false
	c.Supervise, c.Supervisor, c.OnOutOfMemory, c.Reset, c.Loop.ResumeAnyway = "", Config{}.Supervisor, "", Reset{}, false
	t := newTraining(c, nil, nil)
	if _, err := t.prepare(); err != nil {
		return nil, unusable(err)
	}
	if err := t.openModel(); err != nil {
		return nil, unusable(err)
	}
	defer func() { err = errors.Join(err, t.reader.close()) }()
	if err := cmp.Or(t.openData(), t.quiet()); err != nil {
		return nil, unusable(err)
	}
	t.Session.ReadOnly, t.Session.Only = true, []string{t.model.Roles.Evaluate, t.model.Roles.ResetMetrics}
	if t.session, err = session.OpenModel(ctx, t.model, t.Session); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.session.Close()) }()
	if t.start != nil {
		if err := t.session.Swap(ctx, t.start); err != nil {
			return nil, err
		}
	}
	t.decodeJPEG(t.session.DecodeJPEG)
	return fit.Evaluate(ctx, t.session, t.Loop.Validation, t.Loop.Batch)
}
