package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/memory"
	"steadyfit/savedmodels"
)

// FeatureStep computes the features of batches (savedmodels.Features). It must be closed.
type FeatureStep struct {
	*Step
	rest *savedmodels.Signature
	// whole maps the inputs of the original train signature, without cached features, to the fields
	// of the data.
	whole binding
}

// ErrFeatures means that training on features differs from training on the data.
var ErrFeatures = errors.New("training on the features differs from training on the data")

// The limits of CheckTraining on relative differences, and the number of its train steps.
// Batches of different sizes may round differently; samples that depend on each other differ
// by more.
const (
	featureTolerance = 1e-4
	trainTolerance   = 1e-5
	trialSteps       = 3
)

// CheckTraining checks that the features of a sample do not depend on the other samples of its
// batch. Then it trains a few steps on the first batch of ds, once on its data and once on its
// features. It returns the largest relative difference of a loss or a trained variable; ErrFeatures
// means that it is too large. Without an error, the model has the variables that it had before. The
// session must have a learning rate if its train signature takes one.
func (x *FeatureStep) CheckTraining(ctx context.Context, ds data.Dataset, batch int) (difference float64, err error) {
	for b, err := range ds.Batches(data.Pass{Batch: batch}) {
		if err == nil {
			difference, err = x.check(ctx, b)
		}
		return difference, err
	}
	return 0, fmt.Errorf("%s: no samples: %w", ds.Name(), data.ErrFormat)
}

// check is CheckTraining for a batch.
func (x *FeatureStep) check(ctx context.Context, b data.Batch) (largest float64, err error) {
	s := x.session
	small, err := x.batch(ctx, b)
	if err == nil {
		err = x.checkIndependent(ctx, b, small)
	}
	if err != nil {
		return 0, err
	}
	before, err := s.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, before.Close()) }()
	original, err := s.runner(s.tf, contract.OriginalPrefix+s.roles.Train)
	if err != nil {
		return 0, err
	}
	// A trained batch has its samples in another order than the batch from which the features were
	// computed.
	want, full, err := s.trial(ctx, original, reversed(b), before)
	if err = errors.Join(err, original.Close()); err != nil {
		return 0, err
	}
	have, rest, err := s.trial(ctx, s.train, reversed(small), before)
	if err != nil {
		return 0, err
	}
	if largest = difference(want, have, 1e-3); !(largest <= trainTolerance) {
		return largest, fmt.Errorf("%w: the losses of the first steps are %v instead of %v", ErrFeatures, have, want)
	}
	for i, v := range s.state.variables[:len(full)] {
		// An optimizer enlarges the rounding of small gradients in its own variables.
		d := difference(full[i], rest[i], 1e-3)
		if v.Weight && !(d <= trainTolerance) {
			return d, fmt.Errorf("%w: after %d steps, the variable %s differs by %.2g of its largest value", ErrFeatures,
				trialSteps, v.Name, d)
		}
		largest = max(largest, d)
	}
	return largest, nil
}

// reversed returns a copy of a batch with its samples in reverse order.
func reversed(b data.Batch) data.Batch {
	out := data.Batch{Size: b.Size, Index: b.Index}
	for i := b.Size; i > 0; i-- {
		out.Fields = appendSamples(out.Fields, b.Slice(i-1, i), b.Size)
	}
	return out
}

// appendSamples appends the samples of a batch to fields, which are nil or have the memory for total samples.
func appendSamples(fields []data.Field, b data.Batch, total int) []data.Field {
	for i, f := range b.Fields {
		v := reflect.ValueOf(f.Values)
		if i == len(fields) {
			f.Shape = slices.Clone(f.Shape)
			f.Shape[0] = total
			f.Values = reflect.MakeSlice(v.Type(), 0, total*v.Len()/b.Size).Interface()
			fields = append(fields, f)
		}
		fields[i].Values = reflect.AppendSlice(reflect.ValueOf(fields[i].Values), v).Interface()
	}
	return fields
}

// trial runs a few train steps on one batch, and returns to a snapshot. It returns the losses, and the values that
// trained variables have after the steps; nil for other variables.
func (s *Session) trial(ctx context.Context, r *runner, b data.Batch, before *Snapshot) (losses []float64,
	variables []any, err error) {
	out := make([]float64, len(r.names))
	for step := range int64(trialSteps) {
		r.setSeeds(s.opts.Seed, step)
		if _, err := r.on(ctx, b, out); err != nil {
			return nil, nil, err
		}
		losses = append(losses, out[0])
	}
	after, err := s.Snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	variables = make([]any, len(after.values))
	for i, value := range after.values {
		if v := s.state.variables[i]; v.Trained && err == nil {
			if variables[i], err = value.Slice(nil); err != nil {
				err = fmt.Errorf("variable %s: %w", v.Name, err)
			}
		}
	}
	return losses, variables, errors.Join(err, after.Close(), s.Revert(ctx, before))
}

// difference returns the largest difference between two arrays of numbers, as a fraction of their largest
// value, or of least if that is larger. Integers and other values differ by infinity unless they are equal.
func difference(a, b any, least float64) float64 {
	if reflect.DeepEqual(a, b) {
		return 0
	}
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	if x.Type() != y.Type() || x.Len() != y.Len() || x.Len() > 0 && !x.Index(0).CanFloat() {
		return math.Inf(1)
	}
	largest, most := least, 0.0
	for i := range x.Len() {
		v, w := x.Index(i).Float(), y.Index(i).Float()
		if v != w && !(math.IsNaN(v) && math.IsNaN(w)) {
			d := math.Abs(v - w)
			if math.IsNaN(d) {
				return math.Inf(1)
			}
			most = max(most, d)
		}
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			largest = max(largest, math.Abs(v))
		}
	}
	return most / largest
}

// NewFeatureStep prepares the computation of features. The session must have the model f.Model.
// The result must be closed.
func (s *Session) NewFeatureStep(f *savedmodels.Features) (*FeatureStep, error) {
	rest, err := s.model.Signature(s.roles.Train)
	if err != nil {
		return nil, err
	}
	original, err := s.model.Signature(contract.OriginalPrefix + rest.Name)
	if err != nil {
		return nil, err
	}
	step, err := s.Prepare(f.Compute)
	if err != nil {
		return nil, err
	}
	return &FeatureStep{Step: step, rest: rest, whole: newBinding(s.model, original)}, nil
}

// batch returns a batch of the data with the features instead of the data inputs from which
// they are computed. Its fields have the names of the inputs of the train signature, and its
// features are new memory.
func (x *FeatureStep) batch(ctx context.Context, b data.Batch) (data.Batch, error) {
	if err := x.whole.matchTo(b.Fields); err != nil {
		return b, err
	}
	if err := x.feed(b, true); err != nil {
		return b, err
	}
	if err := errors.Join(x.Run(ctx), x.release(b)); err != nil {
		return b, err
	}
	small := data.Batch{Size: b.Size, Index: b.Index}
	for _, t := range x.Signature.Outputs {
		var a data.Array
		if err := x.Read(t.Name, &a); err != nil {
			return b, err
		}
		if len(a.Shape) == 0 || a.Shape[0] != b.Size {
			return b, fmt.Errorf("%w: a batch of %d samples has a feature of shape %v", ErrFeatures, b.Size, a.Shape)
		}
		small.Fields = append(small.Fields, data.Field{Name: t.Name, Array: a})
	}
	for _, in := range x.whole.inputs {
		if in.field >= 0 && x.rest.Input(in.Name) != nil {
			f := b.Fields[in.field]
			f.Name = in.Name
			small.Fields = append(small.Fields, f)
		}
	}
	return small, nil
}

// All returns the features of a dataset. If they take more bytes than most, the error is savedmodels.ErrNoFeatures.
func (x *FeatureStep) All(ctx context.Context, ds data.Dataset, batch int, most memory.Bytes) (*data.InMemory, error) {
	var columns []data.Field
	for b, err := range ds.Batches(data.Pass{Batch: batch}) {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			b, err = x.batch(ctx, b)
		}
		if err != nil {
			return nil, err
		}
		if size := bytesOf(b) / memory.Bytes(b.Size) * memory.Bytes(ds.Len()); size > most {
			return nil, contract.Mark(fmt.Errorf("the features of %d samples take %v, and at most %v are cached", ds.Len(), size,
				most), savedmodels.ErrNoFeatures)
		}
		columns = appendSamples(columns, b, ds.Len())
	}
	return data.New(ds.Name(), columns...)
}

// bytesOf returns the size of the numbers in a batch.
func bytesOf(b data.Batch) (sum memory.Bytes) {
	for _, f := range b.Fields {
		if t, _, n := dtype.Data(f.Values); t != nil && t.Kind != dtype.StringKind {
			sum += memory.Bytes(n * t.Size)
		}
	}
	return sum
}

// checkIndependent checks that the features of a sample depend neither on the other samples of a batch nor
// on their order and number. The argument want has the features of the batch.
func (x *FeatureStep) checkIndependent(ctx context.Context, b, want data.Batch) error {
	half := b.Size / 2
	for _, c := range [][2]data.Batch{{reversed(b), reversed(want)}, {b.Slice(0, half), want.Slice(0, half)},
		{b.Slice(half, b.Size), want.Slice(half, b.Size)}} {
		if c[0].Size == 0 {
			continue
		}
		have, err := x.batch(ctx, c[0])
		if err != nil {
			return err
		}
		for i, t := range x.Signature.Outputs {
			d := difference(c[1].Fields[i].Values, have.Fields[i].Values, 1e-6)
			if !(d <= featureTolerance) {
				return fmt.Errorf("%w: %s of a sample changes by %.2g of the largest value with the other samples of the batch, "+
					"their order or their number", ErrFeatures, t.Name, d)
			}
		}
	}
	return nil
}
