package tfbind

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Slice is a flat slice of one of the types of Numeric.
type Slice struct {
	dtype DType
	data  ptr
	n     int
}

// SliceOf returns what a slice holds. A value of another type gives the zero Slice, whose
// DType is 0. It does not allocate.
func SliceOf(values any) Slice {
	switch v := values.(type) {
	case []float32:
		return sliceOf(v)
	case []float64:
		return sliceOf(v)
	case []Half:
		return sliceOf(v)
	case []Brain:
		return sliceOf(v)
	case []int8:
		return sliceOf(v)
	case []int16:
		return sliceOf(v)
	case []int32:
		return sliceOf(v)
	case []int64:
		return sliceOf(v)
	case []uint8:
		return sliceOf(v)
	case []uint16:
		return sliceOf(v)
	case []uint32:
		return sliceOf(v)
	case []uint64:
		return sliceOf(v)
	case []bool:
		return sliceOf(v)
	}
	return Slice{}
}

func sliceOf[T Numeric](values []T) Slice {
	return Slice{DTypeOf[T](), ptr(unsafe.SliceData(values)), len(values)}
}

// DType is the element type.
func (s Slice) DType() DType { return s.dtype }

// Bytes is the size of the elements.
func (s Slice) Bytes() int { return s.n * s.dtype.Size() }

// alignment is what TensorFlow's operations ask of an address, in bytes
// (EIGEN_MAX_ALIGN_BYTES).
const alignment = 64

// Aligned reports whether Step.Borrow takes the slice: it is not empty, and begins at a
// multiple of 64 bytes, as all memory does that Go allocates in one piece of more than
// 32 KiB.
func (s Slice) Aligned() bool { return s.n > 0 && uintptr(s.data)%alignment == 0 }

// loan is memory of Go that an input of a step reads from. It is pinned while it is in the
// list of them.
type loan struct {
	// held is 1 while TensorFlow refers to the memory; it writes the 0. It is pinned, too.
	held   int32
	over   bool // for the step
	pinner runtime.Pinner
}

// loans are all of the process, those of steps that nobody closed included: what they
// pinned stays so, as TensorFlow may read it.
var loans struct {
	sync.Mutex
	list []*loan
}

func (l *loan) begin(values ptr) {
	l.over = false
	l.pinner.Pin(l)
	l.pinner.Pin(values)
	loans.Lock()
	defer loans.Unlock()
	loans.list = append(loans.list, l)
}

// end unpins what a loan has pinned, at once or once TensorFlow releases it. It reports
// whether TensorFlow has it still.
func (l *loan) end() bool {
	loans.Lock()
	defer loans.Unlock()
	l.over = true
	unpin()
	return slices.Contains(loans.list, l)
}

// unpinKept unpins what TensorFlow has released since the step did.
func unpinKept() {
	loans.Lock()
	defer loans.Unlock()
	unpin()
}

// unpin is called under the lock.
func unpin() {
	loans.list = slices.DeleteFunc(loans.list, func(l *loan) bool {
		free := l.over && atomic.LoadInt32(&l.held) == 0
		if free {
			l.pinner.Unpin()
		}
		return free
	})
}

// Borrow has runs read input i from the slice itself, without a copy, until Release, or until
// the input is set or borrowed again: the values must not be written to before that. What is
// in the input's own buffer is lost. A slice that is not Aligned is ErrInvalidArgument. As a
// rule nothing is allocated in Go if the input was borrowed before.
func (st *Step) Borrow(i int, s Slice, shape ...int64) error {
	p, err := st.use()
	if err != nil {
		return err
	}
	defer st.done()
	in, err := st.input(i, s.dtype)
	if err != nil {
		return err
	}
	if err := in.holds(shape, s.n); err != nil {
		return err
	}
	if !s.Aligned() {
		return fmt.Errorf("step input %s: %w: values to borrow must be non-empty and %d-byte aligned; use Set", in.name, ErrInvalidArgument, alignment)
	}
	st.release(p, i)
	l := st.loans.of[i]
	if l == nil {
		l = &loan{}
	}
	l.begin(s.data)
	in.fed = false
	if !capi.borrowInput(p, i, in.dtype, shape, s.data, int64(s.Bytes()), &l.held) {
		l.end()
		return fmt.Errorf("step input %s: %w", in.name, outOfMemory("borrow input", in.dtype, slices.Clone(shape), int64(s.Bytes())))
	}
	st.loans.of[i], st.loans.borrowed[i] = l, true
	return nil
}

// Release ends the use of all borrowed slices; those inputs then have no value. It reports
// whether the model keeps some of the memory that was borrowed since the last Release, as it
// does if an input is assigned to a variable, which shares it: that memory must never be
// written to again. It stays pinned until TensorFlow has released it, which is looked at as
// loans end and sessions are closed.
func (st *Step) Release() (kept bool, err error) {
	p, err := st.use()
	if err != nil {
		return false, err
	}
	defer st.done()
	for i := range st.feeds {
		st.release(p, i)
	}
	kept, st.loans.kept = st.loans.kept, false
	return kept, nil
}

func (st *Step) release(p ptr, i int) {
	if !st.loans.borrowed[i] {
		return
	}
	st.loans.borrowed[i] = false
	capi.releaseInput(p, i)
	if st.loans.of[i].end() {
		st.loans.of[i], st.loans.kept = nil, true
	}
}

// stepLoans are those of a step, by input.
type stepLoans struct {
	of       []*loan
	borrowed []bool
	kept     bool // by TensorFlow, since the last Release
}

// end ends the loans of a step that is gone.
func (l *stepLoans) end() {
	for i, borrowed := range l.borrowed {
		if borrowed {
			l.of[i].end()
		}
	}
}
