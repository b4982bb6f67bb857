package session

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Set copies an array into the input of that name, converted to its element
// type. Conversions that would lose more than precision are refused: a number
// that the input's integer type cannot hold is an error that names it. A shape
// may differ from the signature's in dimensions of size 1, or be flat where the
// signature is not, or the other way round.
func (st *Step) Set(name string, a data.Array) error {
	for i := range st.inputs {
		if in := &st.inputs[i]; in.Name == name {
			err := in.fit(a.Shape)
			if err == nil {
				err = st.put(i, a.Values, in.shape, false)
			}
			if err != nil {
				return st.inputError(i, err)
			}
			return nil
		}
	}
	return fmt.Errorf("signature %s has no input %q; it has %s", st.signature.Name, name, names(st.signature.Inputs))
}

// Feed sets all inputs from the fields of a batch. A field feeds the input of
// its name; if none has the names of the inputs, and there is one input that the
// model also predicts from and one that it does not, the fields x and y feed
// these. Reserved inputs that the batch does not have are filled in: sample
// weights with 1, the learning rate with what was set, the loss scale with that of the
// session (Options.LossScale).
func (st *Step) Feed(b data.Batch) error { return st.feed(b, false) }

// feed is Feed. With borrow, large inputs read from the batch itself, if the batch allows
// that, until release. After an error nothing is borrowed.
func (st *Step) feed(b data.Batch, borrow bool) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, st.release(b))
		}
	}()
	if err := st.matchTo(b.Fields); err != nil {
		return err
	}
	for i := range st.inputs {
		in := &st.inputs[i]
		if in.field < 0 {
			if err := st.setReserved(i, b.Size); err != nil {
				return err
			}
			continue
		}
		a := b.Fields[in.field].Array
		err := in.fit(a.Shape)
		if err == nil {
			err = st.put(i, a.Values, in.shape, borrow && b.Borrowable(in.field))
		}
		if err != nil {
			return st.inputError(i, err)
		}
	}
	return nil
}

// put gives input i values of that shape: converted if they have another type, read in place
// if that is allowed and worth it, else copied.
func (st *Step) put(i int, values any, shape []int64, borrow bool) error {
	s, to := tfbind.SliceOf(values), st.inputs[i].DType
	switch {
	case s.DType() != to:
		return store(st.tf, i, to, values, shape, whole)
	case borrow && !st.keeps && s.Bytes() >= borrowFrom && s.Aligned():
		st.borrows = true
		return st.tf.Borrow(i, s, shape...)
	}
	return st.tf.Copy(i, s, shape...)
}

// inputError says which input an error is about.
func (st *Step) inputError(i int, err error) error {
	return fmt.Errorf("signature %s, input %s: %w", st.signature.Name, st.inputs[i].Name, err)
}

// borrowFrom is the size in bytes from which on an input reads the values of a batch in
// place. To copy less takes hardly longer.
const borrowFrom = 64 << 10

// release ends the use of a batch. If the model keeps memory of it, the dataset must not use
// that memory again, and the step copies all later batches.
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
		return nil // the run has said so
	}
	return err
}

// setReserved fills in an input that the data does not have.
func (st *Step) setReserved(i, samples int) error {
	in := &st.inputs[i]
	switch in.Name {
	case savedmodels.InputSampleWeight:
		return st.setOnes(i, int64(samples))
	case savedmodels.InputLearningRate:
		if math.IsNaN(st.session.rate) {
			return option.Errorf("signature %s takes the learning rate as an input, and none was set: set it with {Session.SetLearningRate}", st.signature.Name)
		}
		return setScalar(st.tf, i, in.DType, st.session.rate)
	case savedmodels.InputSeed:
		return tfbind.Set(st.tf, i, st.seed[:], int64(len(st.seed)))
	case savedmodels.InputLossScale:
		scale := 1.0
		if l := st.session.scaler; l != nil {
			scale = l.Scale
		}
		return setScalar(st.tf, i, in.DType, scale)
	case savedmodels.InputGroupSize:
		return setScalar(st.tf, i, in.DType, 1)
	}
	return fmt.Errorf("signature %s, input %s: nothing to feed it with", st.signature.Name, in.Name)
}

// setOnes feeds an input whose first dimensions are those given with 1 everywhere.
func (st *Step) setOnes(i int, first ...int64) error {
	in := &st.inputs[i]
	in.shape = append(in.shape[:0], first...)
	if len(in.Shape) > 1 {
		in.shape = append(in.shape, in.Shape[1:]...)
	}
	n := 1
	for _, d := range in.shape {
		if d < 0 {
			return in.noSize(st.signature)
		}
		n *= int(d)
	}
	for len(st.ones) < n {
		st.ones = append(st.ones, 1)
	}
	return store(st.tf, i, in.DType, st.ones[:n], in.shape, whole)
}

// fit writes to in.shape the shape in which a value of the given shape is fed.
func (in *input) fit(shape []int) error {
	in.shape = in.shape[:0]
	if in.UnknownRank || len(shape) == len(in.Shape) {
		for _, d := range shape {
			in.shape = append(in.shape, int64(d))
		}
		return in.checkSizes(shape)
	}
	if len(shape) == 0 || len(in.Shape) == 0 {
		return in.mismatch(shape)
	}
	// Samples stay samples; within a sample, dimensions of size 1 come and go,
	// and a flat sample takes on the signature's shape.
	want, have := in.Shape[1:], shape[1:]
	in.shape = append(in.shape, int64(shape[0]))
	isOpen := func(d int64) bool { return d < 0 }
	if !sameButOnes(want, have) && (len(want) > 1 && len(have) > 1 || slices.ContainsFunc(want, isOpen)) {
		return in.mismatch(shape)
	}
	left := int64(1)
	for _, d := range have {
		left *= int64(d)
	}
	open := -1
	for i, d := range want {
		if d < 0 && open >= 0 {
			return in.mismatch(shape) // two sizes left open: no way to tell
		}
		if d < 0 {
			open = i
			continue
		}
		if d == 0 || left%d != 0 {
			return in.mismatch(shape)
		}
		left /= d
	}
	for i, d := range want {
		if i == open {
			d, left = left, 1
		}
		in.shape = append(in.shape, d)
	}
	if left != 1 {
		return in.mismatch(shape)
	}
	return in.checkSizes(shape)
}

// sameButOnes reports whether two shapes differ in dimensions of size 1 only.
func sameButOnes(want []int64, have []int) bool {
	i, j := 0, 0
	for i < len(want) || j < len(have) {
		switch {
		case i < len(want) && j < len(have) && (want[i] == int64(have[j]) || want[i] < 0):
			i, j = i+1, j+1
		case i < len(want) && want[i] == 1:
			i++
		case j < len(have) && have[j] == 1:
			j++
		default:
			return false
		}
	}
	return true
}

// checkSizes holds in.shape against the signature.
func (in *input) checkSizes(shape []int) error {
	if in.UnknownRank {
		return nil
	}
	for i, d := range in.Shape {
		if d >= 0 && d != in.shape[i] {
			if i == 0 && !savedmodels.IsReserved(in.Name) {
				return fmt.Errorf("%w: the batch size %d is part of the model, and the batch has %d samples: train with that batch size and without a smaller last batch, or export the model with an open batch size",
					ErrData, d, in.shape[0])
			}
			return in.mismatch(shape)
		}
	}
	return nil
}

func (in *input) mismatch(shape []int) error {
	return fmt.Errorf("%w: expected shape %s, got %v (the first size counts the samples)", ErrData, shapeText(in.Shape), slices.Clone(shape))
}

// noSize is the error about weights whose shape only the data could tell.
func (in *input) noSize(sig *savedmodels.Signature) error {
	return fmt.Errorf("%w: signature %s takes %s of shape %s, whose size the data has to give: add that field", ErrData, sig.Name, in.Name, shapeText(in.Shape))
}

func shapeText(shape []int64) string { return strings.ReplaceAll(fmt.Sprint(shape), "-1", "?") }
