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

// Slice refers to a Go slice of numbers or bools. It keeps the memory reachable but does not
// pin it.
type Slice struct {
	dtype DType
	data  ptr
	n     int
}

// SliceOf returns the Slice of a Go slice whose element type is a built-in type of Numeric. For
// any other value it returns the zero Slice, whose DType is 0. It does not allocate.
func SliceOf(values any) Slice {
	t, first, n := dtype.Data(values)
	if t == nil || t.Kind == dtype.String {
		return Slice{}
	}
	return Slice{DType(t.Code), first, n}
}

func sliceOf[T Numeric](values []T) Slice {
	return Slice{dtypeOf[T](), ptr(unsafe.SliceData(values)), len(values)}
}

// DType returns the element type.
func (s Slice) DType() DType { return s.dtype }

// Bytes returns the size of the elements in bytes.
func (s Slice) Bytes() int { return s.n * s.dtype.Size() }

// alignment is the alignment, in bytes, that TensorFlow's kernels require
// (EIGEN_MAX_ALIGN_BYTES).
const alignment = 64

// Aligned reports whether Step.Borrow accepts the slice, which must be non-empty and 64-byte
// aligned. A Go allocation of more than 32 KiB is always aligned.
func (s Slice) Aligned() bool { return s.n > 0 && uintptr(s.data)%alignment == 0 }

// borrow is Go memory that TensorFlow reads as the input of a step.
type borrow struct {
	// held is 1 while TensorFlow refers to the memory. TensorFlow sets it to 0, so the borrow
	// itself must be pinned.
	held     int32
	released bool // whether the step has stopped using the memory
	pinner   runtime.Pinner
}

// borrows lists all borrowed memory of the process. Listed memory stays pinned because
// TensorFlow may read it, even if its step was never closed.
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

// end marks the memory as released by the step. If TensorFlow has released it too, end unpins it.
// The result reports whether TensorFlow still refers to the memory.
func (l *borrow) end() bool {
	borrows.Lock()
	defer borrows.Unlock()
	l.released = true
	unpin()
	return slices.Contains(borrows.list, l)
}

// unpinKept unpins the memory that TensorFlow has released since the last call.
func unpinKept() {
	borrows.Lock()
	defer borrows.Unlock()
	unpin()
}

// unpin requires that borrows is locked.
func unpin() {
	borrows.list = slices.DeleteFunc(borrows.list, func(l *borrow) bool {
		free := l.released && atomic.LoadInt32(&l.held) == 0
		if free {
			l.pinner.Unpin()
		}
		return free
	})
}

// Borrow makes input i read its values directly from the slice until Release, or until the
// input is set again. The values must not change before that. A slice that is not Aligned
// returns ErrInvalidArgument. Borrow discards the value in the input's own buffer. It rarely
// allocates in Go after the first time.
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

// Release ends the use of all borrowed slices. Their inputs then have no value. kept reports
// that TensorFlow still refers to some memory that was borrowed since the last Release, for
// example because the model assigned an input to a variable. The caller must not change that
// memory any more. It stays pinned until TensorFlow releases it.
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

// stepBorrows has the borrows of a step by input.
type stepBorrows struct {
	of       []*borrow
	borrowed []bool
	kept     bool // whether TensorFlow kept memory since the last Release
}

// end ends the borrows of a closed step.
func (l *stepBorrows) end() {
	for i, borrowed := range l.borrowed {
		if borrowed {
			l.of[i].end()
		}
	}
}
