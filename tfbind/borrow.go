package tfbind

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"steadyfit/internal/dtype"
)

// Slice refers to a Go slice of numbers or bools. It keeps the memory alive, and does not
// pin it.
type Slice struct {
	dtype DType
	data  ptr
	n     int
}

// SliceOf returns a Slice of a slice of one of Go's own types of Numeric, and the zero Slice,
// whose DType is 0, for any other value. It does not allocate.
func SliceOf(values any) Slice {
	t, first, n := dtype.Data(values)
	if t == nil || t.Kind == dtype.String {
		return Slice{}
	}
	return Slice{DType(t.Code), first, n}
}

func sliceOf[T Numeric](values []T) Slice {
	return Slice{DTypeOf[T](), ptr(unsafe.SliceData(values)), len(values)}
}

// DType is the element type.
func (s Slice) DType() DType { return s.dtype }

// Bytes is the size of the elements.
func (s Slice) Bytes() int { return s.n * s.dtype.Size() }

// alignment is that of TensorFlow's operations, in bytes (EIGEN_MAX_ALIGN_BYTES).
const alignment = 64

// Aligned reports whether Step.Borrow takes the slice: it is not empty and 64-byte aligned,
// as all memory is that Go allocates in one piece of more than 32 KiB.
func (s Slice) Aligned() bool { return s.n > 0 && uintptr(s.data)%alignment == 0 }

// borrow is Go memory that an input of a step reads from.
type borrow struct {
	// held is 1 while TensorFlow refers to the memory; TensorFlow sets it to 0. It is
	// pinned, too.
	held     int32
	released bool // by the step
	pinner   runtime.Pinner
}

// borrows lists all borrowed memory of the process, also of steps that were never closed.
// Listed memory is pinned, since TensorFlow may read it.
var borrows struct {
	sync.Mutex
	list []*borrow
}

func (l *borrow) begin(values ptr) {
	l.released = false
	l.pinner.Pin(l)
	l.pinner.Pin(values)
	borrows.Lock()
	defer borrows.Unlock()
	borrows.list = append(borrows.list, l)
}

// end unpins borrowed memory, at once or once TensorFlow releases it, and reports whether
// TensorFlow still has it.
func (l *borrow) end() bool {
	borrows.Lock()
	defer borrows.Unlock()
	l.released = true
	unpin()
	return slices.Contains(borrows.list, l)
}

// unpinKept unpins memory that TensorFlow has released since.
func unpinKept() {
	borrows.Lock()
	defer borrows.Unlock()
	unpin()
}

// unpin is called under the lock.
func unpin() {
	borrows.list = slices.DeleteFunc(borrows.list, func(l *borrow) bool {
		free := l.released && atomic.LoadInt32(&l.held) == 0
		if free {
			l.pinner.Unpin()
		}
		return free
	})
}

// Borrow makes runs read input i from the slice itself until Release, or until the input is
// set or borrowed again. The values must not change before that. The content of the input's
// own buffer is lost. A slice that is not Aligned is ErrInvalidArgument. As a rule nothing
// is allocated in Go if the input was borrowed before.
func (st *Step) Borrow(i int, s Slice, shape ...int64) error {
	p, in, err := st.useInput(i, s.dtype)
	if err != nil {
		return err
	}
	defer st.done()
	if err := in.holds(shape, s.n); err != nil {
		return err
	}
	if !s.Aligned() {
		return fmt.Errorf("step input %s: %w: values to borrow must be non-empty and %d-byte aligned; use Step.Copy", in.name, ErrInvalidArgument, alignment)
	}
	st.release(p, i)
	l := st.borrows.of[i]
	if l == nil {
		l = &borrow{}
	}
	l.begin(s.data)
	in.fed = false
	if !capi.borrowInput(p, i, in.dtype, shape, s.data, int64(s.Bytes()), &l.held) {
		l.end()
		return fmt.Errorf("step input %s: %w", in.name, outOfMemory("borrow input", in.dtype, slices.Clone(shape), int64(s.Bytes())))
	}
	st.borrows.of[i], st.borrows.borrowed[i] = l, true
	return nil
}

// Release ends the use of all borrowed slices; those inputs then have no value. kept reports
// that the model keeps some of the memory borrowed since the last Release, as it does if an
// input is assigned to a variable: that memory must never be written to again. It stays
// pinned until TensorFlow releases it, which is checked as borrows end and sessions close.
func (st *Step) Release() (kept bool, err error) {
	p, err := st.use()
	if err != nil {
		return false, err
	}
	defer st.done()
	for i := range st.feeds {
		st.release(p, i)
	}
	kept, st.borrows.kept = st.borrows.kept, false
	return kept, nil
}

func (st *Step) release(p ptr, i int) {
	if !st.borrows.borrowed[i] {
		return
	}
	st.borrows.borrowed[i] = false
	capi.releaseInput(p, i)
	if st.borrows.of[i].end() {
		st.borrows.of[i], st.borrows.kept = nil, true
	}
}

// stepBorrows are those of a step, by input.
type stepBorrows struct {
	of       []*borrow
	borrowed []bool
	kept     bool // by TensorFlow, since the last Release
}

// end ends the borrows of a step that is gone.
func (l *stepBorrows) end() {
	for i, borrowed := range l.borrowed {
		if borrowed {
			l.of[i].end()
		}
	}
}
