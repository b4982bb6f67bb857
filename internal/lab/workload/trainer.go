package workload

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/lab/cell"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// The words of the knob reset: what is done to the session at an epoch's end. The
// model goes on with the same state.
const (
	resetNone    = "none"
	resetRestore = "restore" // its variables are written and read back
	resetReload  = "reload"  // it is closed, and another one opened
	resetProcess = "process" // another process goes on
)

// engine is what a trainer trains with: a session, or eager execution.
type engine interface {
	fit.Session
	Trace(ctx context.Context, step int64, b data.Batch, out []float64) (metadata []byte, err error)
	Roles() savedmodels.Roles
	Close() error
}

// trainer is an engine with the knobs model, reset, micro and eager. It is a
// fit.Session.
type trainer struct {
	engine // that of the moment
	tracing
	model   *savedmodels.Model
	options session.Options
	eager   bool
	reset   string
	micro   int
	state   string    // prefix of the files with the state
	values  []float64 // scalars of the last step
}

// openModel opens the Spec's model, or the variant of the knob model.
func openModel(c *cell.Child) (*savedmodels.Model, error) {
	name := c.Knob("model", "")
	if name == "" {
		return savedmodels.Open(c.Spec.Model)
	}
	m, err := savedmodels.Builtin(name)
	if errors.Is(err, savedmodels.ErrUnknownBuiltin) {
		return nil, &cell.KnobError{Failure: cell.CouldNotApply, Name: "model", Value: name, Reason: err.Error()}
	}
	return m, err
}

// newTrainer opens the model that the Spec or a knob names.
func newTrainer(ctx context.Context, c *cell.Child) (*trainer, error) {
	model, err := openModel(c)
	if err != nil {
		return nil, err
	}
	return newTrainerOf(ctx, c, model, gpuopts.Options{})
}

// newTrainerOf opens a model. The Spec's ConfigProto is merged over that of device.
func newTrainerOf(ctx context.Context, c *cell.Child, model *savedmodels.Model, device gpuopts.Options) (*trainer, error) {
	t := &trainer{
		// What parts of a batch learn is not what is measured here; checkMicro tells it.
		options: session.Options{Device: device, Config: c.Spec.Config, Seed: c.Spec.Seed, AllowInexactSplit: true},
		model:   model,
		state:   filepath.Join(c.Spec.Scratch, "state"),
	}
	var err error
	if t.reset, err = c.Choice("reset", resetNone, resetRestore, resetReload, resetProcess); err != nil {
		return nil, err
	}
	if t.micro, err = c.Int("micro", 1); err != nil {
		return nil, err
	}
	if err := checkMicro(c, model, t.options, t.micro); err != nil {
		return nil, err
	}
	if t.eager, err = eagerly(c); err != nil {
		return nil, err
	}
	if t.eager && t.micro > 1 {
		return nil, microError(c, "gradients and apply are not executed eagerly")
	}
	if err := t.open(ctx); err != nil {
		return nil, err
	}
	if c.Spec.From > 0 {
		if err := t.Restore(ctx, t.state); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	t.values = make([]float64, len(t.TrainMetrics()))
	return t, nil
}

// checkMicro says why a batch is not split into that many parts, and tells the parent
// what their update is (cell.FactSplit).
func checkMicro(c *cell.Child, model *savedmodels.Model, o session.Options, parts int) error {
	if parts < 1 || parts > c.Spec.Batch {
		return microError(c, fmt.Sprintf("a batch has %d samples", c.Spec.Batch))
	}
	if parts == 1 {
		return nil
	}
	split, err := splitOf(model, o)
	if err != nil {
		return microError(c, err.Error())
	}
	return c.Fact(cell.FactSplit, split)
}

// splitOf is the value of cell.FactSplit for a model; an error if it cannot be split.
func splitOf(model *savedmodels.Model, o session.Options) (string, error) {
	o.AllowInexactSplit = false
	plan, err := session.Compile(model, o)
	if err == nil {
		err = plan.CheckSplit()
	}
	switch {
	case errors.Is(err, session.ErrInexactSplit):
		return cell.SplitInexact, nil
	case err != nil:
		return "", err
	}
	return cell.SplitExact, nil
}

func microError(c *cell.Child, reason string) error {
	return &cell.KnobError{Failure: cell.NotApplicable, Name: "micro", Value: c.Knob("micro", ""), Reason: reason}
}

func (t *trainer) open(ctx context.Context) (err error) {
	if t.eager {
		t.engine, err = newEagerEngine(t.model, t.options)
		return err
	}
	plan, err := session.Compile(t.model, t.options)
	if err != nil {
		return err
	}
	s, err := session.Open(ctx, plan)
	if err != nil {
		return err
	}
	t.engine = s
	if err := s.SetMicroBatches(t.micro); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// step trains on a batch and returns the loss.
func (t *trainer) step(ctx context.Context, n int, b data.Batch) (float64, error) {
	if err := t.Train(ctx, int64(n-1), b, t.values); err != nil {
		return 0, err
	}
	return t.values[0], nil
}

// Train is one step, traced if it is to be.
func (t *trainer) Train(ctx context.Context, step int64, b data.Batch, out []float64) (err error) {
	if t.into == nil {
		return t.engine.Train(ctx, step, b, out)
	}
	*t.into, err = t.engine.Trace(ctx, step, b, out)
	return err
}

// endEpoch does what the knob reset says.
func (t *trainer) endEpoch(ctx context.Context) error {
	if t.reset == resetNone {
		return nil
	}
	if err := t.Save(ctx, t.state); err != nil {
		return err
	}
	switch t.reset {
	case resetProcess:
		return errAgain
	case resetReload:
		if err := t.Close(); err != nil {
			return err
		}
		if err := t.open(ctx); err != nil {
			return err
		}
	}
	return t.Restore(ctx, t.state)
}
