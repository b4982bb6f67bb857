package session

import (
	"errors"

	"steadyfit/data"
	"steadyfit/tfbind"
)

// lendFrom is the size in bytes from which on an input reads the values of a batch where
// they are. To copy less takes hardly longer than to lend it.
const lendFrom = 64 << 10

// lendOrStore feeds input i from values, which are read in place until takeBack if that is
// allowed and worth it, and else converted and copied.
func (st *Step) lendOrStore(i int, values any, shape []int64, lend bool) error {
	in := &st.inputs[i]
	if lend && !st.keeps {
		if lent, err := lendValues(st.tf, i, in.DType, values, shape); lent || err != nil {
			st.lent = true
			return err
		}
	}
	return store(st.tf, i, in.DType, values, shape, whole)
}

// lendValues does nothing if the values have to be converted, or are few.
func lendValues(st *tfbind.Step, i int, to tfbind.DType, values any, shape []int64) (bool, error) {
	switch v := values.(type) {
	case []float32:
		return lendAs(st, i, to, v, shape)
	case []float64:
		return lendAs(st, i, to, v, shape)
	case []int8:
		return lendAs(st, i, to, v, shape)
	case []int16:
		return lendAs(st, i, to, v, shape)
	case []int32:
		return lendAs(st, i, to, v, shape)
	case []int64:
		return lendAs(st, i, to, v, shape)
	case []uint8:
		return lendAs(st, i, to, v, shape)
	case []uint16:
		return lendAs(st, i, to, v, shape)
	case []uint32:
		return lendAs(st, i, to, v, shape)
	case []uint64:
		return lendAs(st, i, to, v, shape)
	case []bool:
		return lendAs(st, i, to, v, shape)
	}
	return false, nil
}

func lendAs[T tfbind.Numeric](st *tfbind.Step, i int, to tfbind.DType, values []T, shape []int64) (bool, error) {
	if tfbind.DTypeOf[T]() != to || len(values)*to.Size() < lendFrom || !tfbind.Lendable(values) {
		return false, nil
	}
	return true, tfbind.Lend(st, i, values, shape...)
}

// takeBack ends the loans of a batch. What the model keeps of it is left to the model,
// which is lent nothing any more.
func (st *Step) takeBack(b data.Batch) error {
	if !st.lent {
		return nil
	}
	st.lent = false
	kept, err := st.tf.TakeBack()
	if kept {
		b.Keep()
		st.keeps = true
	}
	if errors.Is(err, tfbind.ErrClosed) {
		return nil // the run has said so
	}
	return err
}
