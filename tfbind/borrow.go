package tfbind

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"steadyfit/internal/dtype"
)

// alignment is the alignment, in bytes, that TensorFlow's kernels require
// (EIGEN_MAX_ALIGN_BYTES).
const alignment = 64

// borrow is Go memory that TensorFlow reads as the input of a step.
type borrow struct {
	// held is 1 while TensorFlow refers to the memory. TensorFlow writes 0 when it releases the
	// memory, so the borrow itself is pinned too.
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

// Borrow makes input i read its values directly from a slice of numbers or bools until Release, or
// until the input is set again. The values must not change before that. Values that are empty or
// not 64-byte aligned are copied as by Set, and borrowed is false. A Go allocation of more than
// 32 KiB is always aligned. Borrow discards the value in the input's own buffer. It rarely allocates
// in Go after the first time.
func (st *Step) Borrow(i int, values any, shape ...int64) (borrowed bool, err error) {
	t, first, n := dtype.Data(values)
	if n == 0 || t.Kind == dtype.StringKind || uintptr(first)%alignment != 0 {
		return false, st.Set(i, values, shape...)
	}
	p, in, err := st.useInput(i, DType(t.Code))
	if err != nil {
		return false, err
	}
	defer st.done()
	if err := in.holds(shape, n); err != nil {
		return false, err
	}
	st.release(p, i)
	l := st.borrows.of[i]
	if l == nil {
		l = &borrow{}
	}
	l.begin(first)
	in.fed = false
	bytes := int64(n * t.Size)
	if !capi.borrowInput(p, i, in.dtype, shape, first, bytes, &l.held) {
		l.end()
		return false, fmt.Errorf("step input %s: %w", in.name,
			outOfMemory("borrow input", in.dtype, slices.Clone(shape), bytes))
	}
	st.borrows.of[i], st.borrows.borrowed[i] = l, true
	return true, nil
}

// Release ends the use of all borrowed slices. Their inputs then have no value. kept reports
// whether TensorFlow still refers to memory that was borrowed since the last Release, for example
// because the model assigned an input to a variable. The caller must no longer change such memory.
// The memory stays pinned until TensorFlow releases it.
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
