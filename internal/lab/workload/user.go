package workload

import (
	"context"
	"errors"
	"fmt"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/lab/cell"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// fitting trains a model of the user's with package fit.
type fitting struct {
	*trainer
	ds    data.Dataset
	size  int // of a batch
	steps int // of an epoch of the loop, which is one pass of whole batches at most
}

// userSamples are made up where the user gives no data.
const userSamples = 1024

func newUser(ctx context.Context, c *cell.Child) (job, error) {
	prefetch, err := c.Int("prefetch", 0)
	if err != nil {
		return nil, err
	}
	t, err := newTrainer(ctx, c)
	if err != nil {
		return nil, err
	}
	var ds *data.InMemory
	if c.Spec.Data != "" {
		ds, err = openData(c.Spec.Data, t.model)
	} else {
		ds, err = t.samples(max(userSamples, c.Spec.WholeBatch()))
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	// A run in several processes goes on at the next epoch of the loop, so that the
	// two kinds of epoch have to be of the same length where they can.
	whole := c.Spec.WholeBatch()
	perPass := max(1, (ds.Len()+whole-1)/whole)
	return &fitting{trainer: t, ds: data.Prefetch(ds, prefetch), size: c.Spec.Batch, steps: min(c.Spec.Epoch, perPass)}, nil
}

// openData reads the user's data, images and tables as the model takes them.
func openData(path string, model *savedmodels.Model) (*data.InMemory, error) {
	images, scale, err := session.ImageOptions(model, model.Roles.Train, 0, 0)
	if err != nil {
		return nil, err
	}
	csv, err := session.CSVOptions(model, model.Roles.Train)
	if err != nil {
		return nil, err
	}
	ds, err := data.Open(path, data.Options{Images: images, CSV: csv})
	if err != nil || scale == nil || !ds.HasImages() {
		return ds, err
	}
	return ds.Scale("x", float32(scale[0]), float32(scale[1]))
}

// loop runs a fit.Loop that stops after the last step.
func (f *fitting) loop(ctx context.Context, r *run) error {
	spec := r.c.Spec
	first := spec.From / f.steps // epochs of the loop that were done before
	l := &fit.Loop{
		Session:       f.trainer,
		Batch:         spec.Batch,
		InitialEpoch:  first,
		Epochs:        first + spec.Steps/f.steps + 1,
		StepsPerEpoch: f.steps,
	}
	n := spec.From
	l.Hook(fit.Hook{Name: "sample", Step: func(ctx context.Context, s *fit.State) error {
		n++
		if err := r.after(ctx, f, n, s.Values[0]); err != nil {
			return err
		}
		if n >= spec.Steps {
			s.Stop("the last step is done")
		}
		return nil
	}})
	_, err := l.Run(ctx, f.ds)
	return err
}

// step is one more after those of the loop, which is package fit's.
func (f *fitting) step(ctx context.Context, n int) (float64, error) {
	for b, err := range f.ds.Batches(data.Pass{Batch: f.size}) {
		if err != nil {
			return 0, err
		}
		return f.trainer.step(ctx, n, b)
	}
	return 0, fmt.Errorf("%s: a pass has no batch of %d", f.ds.Name(), f.size)
}

func (f *fitting) epoch(ctx context.Context, _ int) error { return f.endEpoch(ctx) }

func (f *fitting) close() (tfbind.Counts, error) { return tfbind.Counts{}, f.Close() }
