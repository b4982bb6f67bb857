package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"steadyfit/data"
	"steadyfit/internal/autotune"
	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// maxCached is the maximum size of features, unless a budget asks for less.
var maxCached memory.Bytes = 1 << 30

// cacheFeatures computes the features of the training and validation data. It replaces the data with the features, and
// the model with its part that trains on them. It does nothing if the options or the model forbid it.
func (t *training) cacheFeatures(ctx context.Context) error {
	// The configuration of t.chosen was chosen without cached features.
	if t.CacheFeatures == "" || t.CacheFeatures == Auto && (!autotune.Freezes(t.model) || t.chosen != nil) {
		return nil
	}
	err := t.tryFeatures(ctx)
	known := errors.Is(err, savedmodels.ErrNoFeatures)
	switch {
	case err == nil:
		return nil
	case known && t.CacheFeatures == On:
		return &option.Error{Option: "Config.CacheFeatures", Value: t.CacheFeatures, Reason: err.Error(),
			Fix: "leave the option out", Err: err}
	case !known && (t.CacheFeatures == On || context.Cause(ctx) != nil || ofData(err)):
		return err
	}
	t.report("features", text("not cached: "+err.Error()))
	return nil
}

// no returns a reason why features are not cached.
func no(format string, args ...any) error {
	return contract.Mark(fmt.Errorf(format, args...), savedmodels.ErrNoFeatures)
}

// tryFeatures implements cacheFeatures. Its error is ErrNoFeatures if the training can continue without them.
func (t *training) tryFeatures(ctx context.Context) (err error) {
	if err := t.mayCache(); err != nil {
		return err
	}
	f, err := t.model.Features()
	if err != nil {
		return err
	}
	plan, err := session.Compile(f.Model, t.Session)
	if err != nil {
		return contract.Mark(err, savedmodels.ErrNoFeatures)
	}
	if t.splits() && t.plan.Roles().Gradients != "" && plan.Roles().Gradients == "" {
		return no("signature %s, which micro-batches need, cannot take features", t.plan.Roles().Gradients)
	}
	defer t.worker.Busy()()
	s, err := session.Open(ctx, plan)
	if err != nil {
		return err
	}
	t.decodeJPEG(s.DecodeJPEG)
	defer func() {
		if err != nil {
			t.decodeJPEG(nil)
			err = errors.Join(err, s.Close())
			return
		}
		t.model, t.plan, t.session = f.Model, plan, s
	}()
	if err := t.checkImages(ctx); err != nil {
		return err
	}
	x, err := s.NewFeatureStep(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	difference, err := t.checkFeatures(ctx, s, x)
	if err != nil {
		return err
	}
	return t.useFeatures(ctx, x, f, difference)
}

// mayCache returns ErrNoFeatures if the options or the checkpoint forbid a cache of features.
func (t *training) mayCache() error {
	switch {
	case !t.samples.Repeats():
		return no("the dataset has another order in each epoch; {Config.Shuffle} shuffles cached features")
	case t.Session.Compiled:
		return no("{Options.Compiled} trains with signatures that compute the frozen part")
	case t.Session.StepsPerExecution > 1:
		return no("{Options.StepsPerExecution} trains with a signature that computes the frozen part")
	case t.CacheFeatures == Auto && t.Loop.Epochs-t.Loop.InitialEpoch < 2 && t.Loop.StepsPerEpoch == 0:
		return no("one epoch computes the frozen part once anyway")
	}
	before, _, err := t.chosenBefore()
	if err == nil && !before.Plain() && !(t.CacheFeatures == On && t.Loop.ResumeAnyway) {
		return no("the checkpoint was trained with %s, as {Config.Autotune} had chosen, and steps on features have no such "+
			"configuration", before)
	}
	return err
}

// checkFeatures compares training on features with training on the data, and returns a
// savedmodels.ErrNoFeatures if they differ. Without CacheFeatures On, they must not even round differently.
func (t *training) checkFeatures(ctx context.Context, s *session.Session, x *session.FeatureStep) (difference float64,
	err error) {
	if t.Loop.LearningRate != nil { // a warm-up begins at 0, which would change no weights
		if err := s.SetLearningRate(cmp.Or(t.Loop.LearningRate(0, 0), t.Loop.LearningRate(1, 0))); err != nil {
			return 0, err
		}
	}
	difference, err = x.CheckTraining(ctx, t.samples, t.Loop.Batch)
	switch {
	case errors.Is(err, session.ErrFeatures):
		err = contract.Mark(err, savedmodels.ErrNoFeatures)
	case err == nil && difference > 0 && t.CacheFeatures == Auto:
		err = no("the first steps would round differently, by %.1g; {Config.CacheFeatures} on accepts that", difference)
	}
	return difference, err
}

// useFeatures computes the features of all data, and trains on them.
func (t *training) useFeatures(ctx context.Context, x *session.FeatureStep, f *savedmodels.Features,
	difference float64) error {
	began := time.Now()
	most := maxCached
	if t.Budget.Limit != 0 {
		most = min(most, t.Budget.Limit/8)
	}
	train, err := x.All(ctx, t.prefetched(t.samples), t.Loop.Batch, most)
	if err != nil {
		return err
	}
	if v, ok := t.Loop.Validation.(*data.InMemory); ok {
		held, err := x.All(ctx, t.prefetched(v), t.Loop.Batch, most)
		if err != nil {
			return err
		}
		t.Loop.Validation = &cached{held, v} // there is no error from here on
	}
	t.data = t.ordered(train, t.samples)
	same := "the first steps had the same results"
	if difference > 0 {
		same = fmt.Sprintf("the results of the first steps differ by %.1g at most", difference)
	}
	t.report("features", text(fmt.Sprintf("computed once for %d samples in %v, %s in memory: %d operations, up to %s; %s",
		train.Len(), time.Since(began).Round(time.Millisecond), memory.Bytes(train.HeapBytes()), f.Operations, f.End, same)))
	return nil
}

// cached is a dataset of features. In checkpoints it is identified by the data from which they
// were computed, since training on either gives the same results up to rounding.
type cached struct {
	data.Dataset
	source data.Dataset
}

func (c *cached) TrainsLike() data.Dataset { return c.source }
