package session

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Feed sets all inputs from the fields of a batch. Each input takes the field of its name. If such
// a field is missing, and the signature has one feature and at most one label, the feature takes
// the field x and the label the field y. A reserved input without a field gets a generated value:
// sample weights are 1, and the learning rate and the loss scale come from the session.
//
// The element type of a field is converted to that of the input. Rounding to a floating-point type is
// allowed; any other change of a value is an error that names the value. The shape may have more or fewer
// dimensions of size 1 than the signature's, and samples may be flattened.
//
// The reserved input seed gets Options.Seed and the number of earlier calls of Feed for this Step,
// as in Session.Train from step 0. For the signatures evaluate and predict, the seed is always (0,
// 0).
func (st *Step) Feed(b data.Batch) error {
	if roles := &st.session.roles; st.Signature.Name != roles.Evaluate && st.Signature.Name != roles.Predict {
		st.setSeeds(st.session.opts.Seed, st.feeds)
	}
	err := st.feed(b, false)
	if err == nil {
		st.feeds++
	}
	return err
}

// feed sets all inputs except the seed. With borrow, TensorFlow reads large inputs directly
// from the batch, if possible, until release. After an error, no input is borrowed.
func (st *Step) feed(b data.Batch, borrow bool) error {
	err := st.matchTo(b.Fields)
	for i := 0; i < len(st.inputs) && err == nil; i++ {
		if at := st.inputs[i].field; at < 0 {
			err = st.setReserved(i, b.Size)
		} else {
			err = st.put(i, b.Fields[at].Values, b.Fields[at].Shape, whole, borrow && b.Borrowable(at))
		}
	}
	if err != nil {
		return errors.Join(err, st.release(b))
	}
	return nil
}

// borrowFrom is the least size, in bytes, of an input that is read in place. Copying a smaller
// input takes about as long.
const borrowFrom = 64 << 10

// put sets input i to the values of a batch, or piece p of the input if steps are stacked. With
// borrow, large aligned values of the right type are read in place. All others are copied, with
// a conversion if their type differs. shape is the shape of one batch.
func (st *Step) put(i int, values any, shape []int, p piece, borrow bool) error {
	in := &st.inputs[i]
	err := in.fit(shape, st.steps)
	t, _, n := dtype.Data(values)
	switch {
	case err != nil:
	case t == nil || tfbind.DType(t.Code) != in.DType || p != whole:
		err = store(st.tf, i, in.DType, values, in.shape, p)
	case borrow && !st.keeps && n*t.Size >= borrowFrom:
		var borrowed bool
		borrowed, err = st.tf.Borrow(i, values, in.shape...)
		st.borrows = st.borrows || borrowed
	default:
		err = st.tf.Set(i, values, in.shape...)
	}
	if err != nil {
		return fmt.Errorf("signature %s, input %s: %w", st.Signature.Name, in.Name, err)
	}
	return nil
}

// release ends the use of a batch's memory. If TensorFlow still refers to the memory, the
// dataset must not reuse it, and the step copies all later batches.
func (st *Step) release(b data.Batch) error {
	if !st.borrows {
		return nil
	}
	st.borrows = false
	kept, err := st.tf.Release()
	if kept {
		b.Keep()
		st.keeps = true
	}
	if errors.Is(err, tfbind.ErrClosed) {
		return nil // Run returned this error already
	}
	return err
}

// setReserved sets a reserved input to a generated value. samples is the batch size.
func (st *Step) setReserved(i, samples int) error {
	in, scalar := &st.inputs[i], 1.0
	if c := in.Constant; c != nil && in.DType == tfbind.Bool {
		return storeBools(st.tf, i, in.DType, []bool{*c != 0}, nil, whole)
	} else if c != nil {
		return setScalar(st.tf, i, in.DType, *c)
	}
	switch in.Name {
	case contract.InputSampleWeight:
		return st.setOnes(i, samples)
	case contract.InputSeed:
		switch {
		case in.stacked:
			return st.tf.Set(i, st.seeds, int64(st.steps), 2)
		case st.common != nil && i >= st.commonFrom:
			return st.tf.Set(i, st.common, 2)
		}
		return st.tf.Set(i, st.seeds, 2)
	case contract.InputLearningRate:
		if scalar = st.session.rate; math.IsNaN(scalar) {
			return option.Errorf("signature %s takes the learning rate as an input, and none was set: set it with "+
				"{Session.SetLearningRate}", st.Signature.Name)
		}
	case contract.InputLossScale:
		if l := st.session.scaler; l != nil {
			scalar = l.Scale
		}
	case contract.InputGroupSize:
	default:
		return fmt.Errorf("signature %s, input %s: no value to feed", st.Signature.Name, in.Name)
	}
	return setScalar(st.tf, i, in.DType, scalar)
}

// setSeeds sets the value of the input seed for each step.
func (st *Step) setSeeds(seed, step int64) {
	for i := range len(st.seeds) / 2 {
		st.seeds[2*i], st.seeds[2*i+1] = seed, step+int64(i)
	}
}

func (st *Step) setOnes(i, samples int) error {
	in := &st.inputs[i]
	in.shape = in.shape[:0]
	if in.stacked {
		in.shape = append(in.shape, int64(st.steps))
	}
	in.shape = append(in.shape, int64(samples))
	if len(in.Shape) > 1 {
		in.shape = append(in.shape, in.Shape[1:]...)
	}
	n := 1
	for _, d := range in.shape {
		if d < 0 {
			return in.noSize(st.Signature)
		}
		n *= int(d)
	}
	for len(st.ones) < n {
		st.ones = append(st.ones, 1)
	}
	return store(st.tf, i, in.DType, st.ones[:n], in.shape, whole)
}

// fit sets in.shape to the shape that is fed for values of the given shape. For a stacked
// input, it adds a first dimension of size steps.
func (in *input) fit(shape []int, steps int) error {
	in.shape = in.shape[:0]
	if in.stacked {
		in.shape = append(in.shape, int64(steps))
	}
	first := len(in.shape)
	if in.UnknownRank || len(shape) == len(in.Shape) {
		for _, d := range shape {
			in.shape = append(in.shape, int64(d))
		}
	} else if in.fixed || !in.reshape(shape) {
		return in.mismatch(shape)
	}
	if in.UnknownRank {
		return nil
	}
	for i, d := range in.Shape {
		have := in.shape[first+i]
		switch {
		case d < 0 || d == have:
		case i == 0 && !in.IsReserved():
			return fmt.Errorf("%w: the model has the fixed batch size %d, but the batch has %d samples: train with that "+
				"batch size and without a smaller last batch, or export the model with an open batch size",
				ErrData, d, have)
		default:
			return in.mismatch(shape)
		}
	}
	return nil
}

// reshape appends a shape with the rank of the signature to in.shape. The number of samples
// stays the same. It adds or removes dimensions of size 1 in a sample, or gives a flat sample
// the shape in the signature.
func (in *input) reshape(shape []int) bool {
	if len(shape) == 0 || len(in.Shape) == 0 {
		return false
	}
	in.shape = append(in.shape, int64(shape[0]))
	want, have := in.Shape[1:], shape[1:]
	same, rest := true, have // whether only dimensions of size 1 differ
	for _, d := range want {
		for d > 1 && len(rest) > 0 && rest[0] == 1 {
			rest = rest[1:]
		}
		if len(rest) > 0 && (d < 0 || d == int64(rest[0])) {
			d, rest = int64(rest[0]), rest[1:]
		} else {
			same = same && d == 1
		}
		in.shape = append(in.shape, d)
	}
	if same && elements(rest) == 1 {
		return true
	}
	return (len(want) < 2 || len(have) < 2) && !slices.Contains(want, -1) && elements(want) == int64(elements(have))
}

// elements returns the product of dimensions.
func elements[N int | int64](shape []N) N {
	n := N(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

func (in *input) mismatch(shape []int) error {
	fix := ""
	if in.fixed {
		fix = "; results depend on dimensions of 1 here: export the model for labels of this shape, or reshape the data"
	}
	return fmt.Errorf("%w: expected %s, got %s%s", ErrData, samplesText(in.Shape), samplesText(shape), fix)
}

// noSize returns the error for sample weights that cannot be generated because their shape in the
// signature has unknown dimensions.
func (in *input) noSize(sig *savedmodels.Signature) error {
	return fmt.Errorf("%w: signature %s takes %s with %s, whose size is open, so no value can be generated: add that "+
		"field to the data", ErrData, sig.Name, in.Name, samplesText(in.Shape))
}

// samplesText describes samples by the shape of a batch, with "?" for an open size. Users know the shape
// of a sample, and not the size of a batch or of their last one.
func samplesText[N int | int64](batch []N) string {
	switch len(batch) {
	case 0:
		return "a single value"
	case 1:
		return "one value per sample"
	}
	return "samples of shape " + strings.ReplaceAll(fmt.Sprint(batch[1:]), "-1", "?")
}
