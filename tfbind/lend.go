package tfbind

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// loan is memory of Go that an input of a step reads from. It is pinned while it is in the
// list of them.
type loan struct {
	// held is 1 while TensorFlow refers to the memory; it writes the 0. It is pinned, too.
	held   int32
	over   bool // for the lender
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

// end unpins what a loan has pinned, at once or once TensorFlow lets go of it. It reports
// whether TensorFlow has it still.
func (l *loan) end() bool {
	loans.Lock()
	defer loans.Unlock()
	l.over = true
	unpin()
	return slices.Contains(loans.list, l)
}

// unpinKept unpins what TensorFlow has let go of since its lender did.
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

// alignment is what TensorFlow's operations ask of an address, in bytes
// (EIGEN_MAX_ALIGN_BYTES).
const alignment = 64

// Lendable reports whether values can be lent: there are some, and they begin at a multiple
// of 64 bytes, as all does that Go allocates in one piece of more than 32 KiB.
func Lendable[T Numeric](values []T) bool {
	return len(values) > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(values)))%alignment == 0
}

// Lend has runs read input i from values themselves, without a copy, until TakeBack, or until
// the input is set or lent anew: they must not be written to before that. What is in the
// input's own buffer is lost. Values that are not Lendable are ErrInvalidArgument. As a rule
// nothing is allocated in Go if the input was lent before.
func Lend[T Numeric](st *Step, i int, values []T, shape ...int64) error {
	p, err := st.use()
	if err != nil {
		return err
	}
	defer st.done()
	in, err := st.input(i, DTypeOf[T]())
	if err != nil {
		return err
	}
	if err := in.holds(shape, len(values)); err != nil {
		return err
	}
	if !Lendable(values) {
		return fmt.Errorf("step input %s: %w: to be lent, values have to begin at a multiple of %d bytes, and there have to be some; set the input", in.name, ErrInvalidArgument, alignment)
	}
	st.takeBack(p, i)
	l := st.loans.of[i]
	if l == nil {
		l = &loan{}
	}
	l.begin(ptr(unsafe.SliceData(values)))
	in.fed = false
	bytes := int64(len(values)) * int64(in.dtype.Size())
	if !capi.lendInput(p, i, in.dtype, shape, ptr(unsafe.SliceData(values)), bytes, &l.held) {
		l.end()
		return fmt.Errorf("step input %s: %w", in.name, outOfMemory("lend input", in.dtype, slices.Clone(shape), bytes))
	}
	st.loans.of[i], st.loans.lent[i] = l, true
	return nil
}

// TakeBack ends all loans of the step; its inputs then have no value. It reports whether
// the model keeps some of the memory that was lent since the last TakeBack, as it does if an
// input is assigned to a variable, which shares it: that memory must never be written to
// again. It stays pinned until TensorFlow has let go of it, which is looked at as loans end
// and sessions are closed.
func (st *Step) TakeBack() (kept bool, err error) {
	p, err := st.use()
	if err != nil {
		return false, err
	}
	defer st.done()
	for i := range st.feeds {
		st.takeBack(p, i)
	}
	kept, st.loans.kept = st.loans.kept, false
	return kept, nil
}

func (st *Step) takeBack(p ptr, i int) {
	if !st.loans.lent[i] {
		return
	}
	st.loans.lent[i] = false
	capi.takeBackInput(p, i)
	if st.loans.of[i].end() {
		st.loans.of[i], st.loans.kept = nil, true
	}
}

// stepLoans are those of a step, by input.
type stepLoans struct {
	of   []*loan
	lent []bool
	kept bool // by TensorFlow, since the last TakeBack
}

// end ends the loans of a step that is gone.
func (l *stepLoans) end() {
	for i, lent := range l.lent {
		if lent {
			l.of[i].end()
		}
	}
}
