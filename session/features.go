package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/savedmodels"
)

// ErrFeatures means that training on features differs from training on the data.
var ErrFeatures = errors.New("training on the features differs from training on the data")

// FeatureCheck is the result of CheckFeatures.
type FeatureCheck struct {
	// Difference is the largest relative difference of a loss or a trained variable between
	// training on the data and training on the features.
	Difference float64
	// Full, Compute and Rest are the times per sample of a train step on the data, of computing
	// the features, and of a train step on the features.
	Full, Compute, Rest time.Duration
}

// The limits of CheckFeatures on relative differences, and the number of its train steps.
// Batches of different sizes may round differently; samples that depend on each other differ
// by more.
const (
	featureTolerance = 1e-4
	trainTolerance   = 1e-5
	checkSteps       = 3
)

// CheckFeatures trains a few steps on the first batch of ds, once on its data and once on the
// features of f, and compares losses and trained variables. It also checks that the features of
// a sample do not depend on the other samples of a batch. Where they differ, the error is
// ErrFeatures. Afterwards the model has the variables that it had before. The session must have
// the model f.Model.
func (s *Session) CheckFeatures(ctx context.Context, f *savedmodels.Features, ds data.Dataset, batch int) (c FeatureCheck, err error) {
	var b data.Batch
	for first, bad := range ds.Batches(data.Pass{Batch: batch}) {
		if b, err = first, bad; err != nil {
			return c, err
		}
		b.Fields = slices.Clone(b.Fields)
		for i := range b.Fields {
			b.Fields[i].Values = clone(b.Fields[i].Values)
		}
		break
	}
	before, err := s.Snapshot(ctx)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, before.Close()) }()
	x, err := s.NewFeatureStep(f)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	small, err := x.Batch(ctx, b)
	if err != nil {
		return c, err
	}
	// The first run included the optimization of the graph.
	began := time.Now()
	if err := x.checkIndependent(ctx, b, small); err != nil {
		return c, err
	}
	c.Compute = time.Since(began) / time.Duration(max(b.Size, 1))
	if err := s.tf.Graph().Import(f.Original, ""); err != nil {
		return c, fmt.Errorf("the original train step: %w", err)
	}
	original, err := s.runner(s.tf, savedmodels.OriginalPrefix+s.roles.Train)
	if err != nil {
		return c, err
	}
	full, err := s.trial(ctx, original, b, before)
	if err := errors.Join(err, original.Close()); err != nil {
		return c, err
	}
	rest, err := s.trial(ctx, s.train, small, before)
	if err != nil {
		return c, errors.Join(err, full.after.Close())
	}
	c.Full, c.Rest = full.took/time.Duration(b.Size), rest.took/time.Duration(b.Size)
	c.Difference, err = s.compare(full, rest)
	return c, errors.Join(err, full.after.Close(), rest.after.Close())
}

func clone(values any) any {
	v := reflect.ValueOf(values)
	return reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, v.Len()), v).Interface()
}

// trialRun has the results of a few train steps.
type trialRun struct {
	losses []float64
	after  *Snapshot
	took   time.Duration // the shortest step
}

// trial runs a few train steps on one batch, and returns to a snapshot.
func (s *Session) trial(ctx context.Context, r *runner, b data.Batch, before *Snapshot) (t trialRun, err error) {
	out := make([]float64, len(r.names))
	for step := range int64(checkSteps) {
		began := time.Now()
		r.setSeeds(s.opts.Seed, step)
		if _, err := r.on(ctx, b, out); err != nil {
			return t, err
		}
		t.losses = append(t.losses, out[0])
		if took := time.Since(began); step == 0 || took < t.took {
			t.took = took
		}
	}
	if t.after, err = s.Snapshot(ctx); err != nil {
		return t, err
	}
	if err := s.Revert(ctx, before); err != nil {
		return t, errors.Join(err, t.after.Close())
	}
	return t, nil
}

// compare returns the largest relative difference between two trials.
func (s *Session) compare(full, rest trialRun) (largest float64, err error) {
	for i, a := range full.losses {
		d := math.Abs(a-rest.losses[i]) / max(math.Abs(a), 1e-3)
		if !(d <= trainTolerance) && !(math.IsNaN(a) && math.IsNaN(rest.losses[i])) {
			return d, fmt.Errorf("%w: the loss of step %d is %v instead of %v", ErrFeatures, i, rest.losses[i], a)
		}
		largest = max(largest, d)
	}
	for i, v := range s.state.variables[:len(full.after.values)] {
		if !v.Trained {
			continue
		}
		a, errA := full.after.values[i].Slice(nil)
		b, errB := rest.after.values[i].Slice(nil)
		if err := errors.Join(errA, errB); err != nil {
			return largest, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		d := difference(a, b)
		if !(d <= trainTolerance) {
			return d, fmt.Errorf("%w: after %d steps, the variable %s differs by %.2g of its largest value", ErrFeatures, checkSteps, v.Name, d)
		}
		largest = max(largest, d)
	}
	return largest, nil
}

// difference returns the largest difference between two slices of numbers, as a fraction of
// the largest value. Slices that cannot be compared in this way differ by infinity, unless they
// are equal.
func difference(a, b any) float64 {
	if reflect.DeepEqual(a, b) {
		return 0
	}
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	if x.Type() != y.Type() || x.Len() != y.Len() || !x.Type().Elem().ConvertibleTo(reflect.TypeFor[float64]()) {
		return math.Inf(1)
	}
	largest, most := 0.0, 0.0
	for i := range x.Len() {
		v := x.Index(i).Convert(reflect.TypeFor[float64]()).Float()
		w := y.Index(i).Convert(reflect.TypeFor[float64]()).Float()
		if v != w && !(math.IsNaN(v) && math.IsNaN(w)) {
			most = max(most, math.Abs(v-w))
			if d := v - w; math.IsNaN(d) {
				return math.Inf(1)
			}
		}
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			largest = max(largest, math.Abs(v))
		}
	}
	if most == 0 {
		return 0
	}
	return most / cmp.Or(largest, 1)
}

// FeatureStep computes the features of batches.
type FeatureStep struct {
	*Step
	compute *savedmodels.Signature
	rest    *savedmodels.Signature
	// fields has the field of the data for each data input of the train signature.
	fields map[string]string
}

// NewFeatureStep prepares the computation of features. The session must have the model f.Model.
// The result must be closed.
func (s *Session) NewFeatureStep(f *savedmodels.Features) (*FeatureStep, error) {
	compute, err := s.model.Signature(f.Compute)
	if err != nil {
		return nil, err
	}
	rest, err := s.model.Signature(s.roles.Train)
	if err != nil {
		return nil, err
	}
	step, err := s.Prepare(f.Compute)
	return &FeatureStep{Step: step, compute: compute, rest: rest}, err
}

// Batch returns a batch of the data with the features instead of the data inputs from which
// they are computed. Its fields have the names of the inputs of the train signature, and its
// features are new memory.
func (x *FeatureStep) Batch(ctx context.Context, b data.Batch) (data.Batch, error) {
	if x.fields == nil {
		if err := x.mapFields(b); err != nil {
			return b, err
		}
	}
	if err := x.feed(b, true); err != nil {
		return b, err
	}
	if err := errors.Join(x.Run(ctx), x.release(b)); err != nil {
		return b, err
	}
	small := data.Batch{Size: b.Size, Index: b.Index}
	for _, t := range x.compute.Outputs {
		a, err := x.array(t.Name)
		if err != nil {
			return b, fmt.Errorf("feature %s: %w", t.Name, err)
		}
		if len(a.Shape) == 0 || a.Shape[0] != b.Size {
			return b, fmt.Errorf("%w: a batch of %d samples has a feature of shape %v", ErrFeatures, b.Size, a.Shape)
		}
		small.Fields = append(small.Fields, data.Field{Name: t.Name, Array: a})
	}
	for _, f := range b.Fields {
		for input, field := range x.fields {
			if field == f.Name {
				f.Name = input
				small.Fields = append(small.Fields, f)
			}
		}
	}
	return small, nil
}

// mapFields finds the fields that the train signature takes in addition to the features.
func (x *FeatureStep) mapFields(b data.Batch) error {
	original, err := x.session.model.Signature(savedmodels.OriginalPrefix + x.rest.Name)
	if err != nil {
		return err
	}
	whole := newBinding(x.session.model, original)
	if err := whole.matchTo(b.Fields); err != nil {
		return err
	}
	x.fields = map[string]string{}
	for _, in := range whole.inputs {
		if in.field >= 0 && x.rest.Input(in.Name) != nil {
			x.fields[in.Name] = b.Fields[in.field].Name
		}
	}
	return nil
}

func (x *FeatureStep) array(name string) (a data.Array, err error) {
	t, err := x.Output(name)
	if err != nil {
		return a, err
	}
	for _, d := range t.Shape() {
		a.Shape = append(a.Shape, int(d))
	}
	a.Values, err = t.Slice(nil)
	return a, errors.Join(err, t.Close())
}

// checkIndependent checks that the features of the first half of a batch do not change if the
// second half repeats the first sample.
func (x *FeatureStep) checkIndependent(ctx context.Context, b, features data.Batch) error {
	half := b.Size / 2
	other := b
	other.Fields = slices.Clone(b.Fields)
	for i, f := range other.Fields {
		v := reflect.ValueOf(clone(f.Values))
		width := v.Len() / b.Size
		for at := half; at < b.Size; at++ {
			reflect.Copy(v.Slice(at*width, (at+1)*width), v.Slice(0, width))
		}
		other.Fields[i].Values = v.Interface()
	}
	again, err := x.Batch(ctx, other)
	if err != nil {
		return err
	}
	for i, t := range x.compute.Outputs {
		a, c := features.Slice(0, half).Fields[i], again.Slice(0, half).Fields[i]
		if !slices.Equal(a.Shape, c.Shape) {
			return fmt.Errorf("%w: %s has the shapes %v and %v in batches of the same size", ErrFeatures, t.Name, a.Shape, c.Shape)
		}
		if d := difference(a.Values, c.Values); !(d <= featureTolerance) {
			return fmt.Errorf("%w: %s of a sample changes by %.2g of its largest value with the other samples of the batch", ErrFeatures, t.Name, d)
		}
	}
	return nil
}
