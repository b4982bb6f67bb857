package tfbind

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"steadyfit/internal/dtype"
)

// Step is a prepared run of a session. It has resolved names and a native buffer for each
// input. A run calls C once. One goroutine at a time may use a Step; a concurrent use is
// an error.
//
// An input keeps its value between runs. If TensorFlow keeps an input's buffer, for example as
// the value of a variable, the step continues with a copy. Setting an input therefore never
// changes a variable.
type Step struct {
	h       *handle
	session *Session
	feeds   []input
	fetches []Output
	memory  stepMemory
	borrows *stepBorrows
	options *ptr   // the TF_Buffer of proto
	proto   []byte // a serialized tensorflow.RunOptions
	abort   bool
	busy    atomic.Bool
	ran     bool
	yielded time.Time
	shape   []int64 // scratch: the result of Read
}

type input struct {
	name  string
	dtype DType
	shape []int64
	bytes int64
	fed   bool
}

// Prepare makes a Step, whose methods identify inputs and outputs by their indices in feeds and
// fetches. The result must be closed. If there are several options, Prepare uses the last.
func (s *Session) Prepare(feeds, fetches []Output, options ...RunOptions) (*Step, error) {
	o := last(options)
	session, err := s.acquire()
	if err != nil {
		return nil, err
	}
	defer s.h.release()
	targets, err := s.check(slices.Concat(feeds, fetches), o.Targets)
	if err != nil {
		return nil, err
	}
	step := &Step{session: s, fetches: slices.Clone(fetches), abort: o.Abort}
	for _, f := range feeds {
		in := input{name: f.name(), dtype: f.DType()}
		if dtype.ByCode(int32(in.dtype)) == nil {
			return nil, fmt.Errorf("prepare step: input %s: %w: %s cannot be fed through a step", in.name, ErrType, in.dtype)
		}
		step.feeds = append(step.feeds, in)
	}
	step.memory = capi.newStep(session, feeds, fetches, targets)
	if step.memory.step == nil {
		return nil, &Error{Op: "prepare step", Code: "RESOURCE_EXHAUSTED", Message: "no memory for the step's tables"}
	}
	s.sets.note(feeds, fetches, targets)
	buffer := new(ptr)
	step.options = buffer
	step.setRunOptions(o.Proto)
	borrows := &stepBorrows{of: make([]*borrow, len(feeds)), borrowed: make([]bool, len(feeds))}
	step.borrows = borrows
	step.h = newHandle(step.memory.step, stepKind, 0, func(p ptr) {
		if *buffer != nil {
			capi.deleteBuffer(*buffer)
		}
		capi.deleteStep(p)
		borrows.end()
	})
	watch(step, step.h)
	return step, nil
}

// SetRunOptions replaces RunOptions.Proto for the following runs.
func (st *Step) SetRunOptions(options []byte) error {
	if _, err := st.use(); err != nil {
		return err
	}
	defer st.done()
	st.setRunOptions(options)
	return nil
}

func (st *Step) setRunOptions(options []byte) {
	if *st.options != nil {
		capi.deleteBuffer(*st.options)
		*st.options = nil
	}
	if st.proto = slices.Clone(options); len(options) > 0 {
		*st.options = capi.newBuffer(options)
	}
}

// Close frees the step after a run in progress. Closing twice does nothing.
func (st *Step) Close() error {
	if st != nil {
		st.h.close()
		runtime.KeepAlive(st)
	}
	return nil
}

// use begins an exclusive use of the step.
func (st *Step) use() (ptr, error) {
	if !st.busy.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("step: %w", errBusy)
	}
	p, err := st.h.acquire()
	if err != nil {
		st.busy.Store(false)
		return nil, err
	}
	return p, nil
}

func (st *Step) done() {
	st.h.release()
	st.busy.Store(false)
}

// Set copies a flat row-major slice of numbers, bools or strings into the native buffer of input i. For
// numbers and bools it allocates only if the shape changes.
func (st *Step) Set(i int, values any, shape ...int64) error {
	t, first, n := dtype.Data(values)
	var dt DType
	if t != nil {
		dt = DType(t.Code)
	}
	p, in, err := st.useInput(i, dt)
	if err != nil {
		return err
	}
	defer st.done()
	// The check comes before the allocation, because a wrong shape can have any size.
	if err := in.holds(shape, n); err != nil {
		return err
	}
	if texts, ok := values.([]string); ok {
		if err := st.resize(p, i, slices.Clone(shape), int64(n)*stringBytes); err != nil {
			return err
		}
		capi.setInputStrings(p, i, texts)
	} else {
		if err := st.reshape(p, i, shape); err != nil {
			return err
		}
		copy(unsafe.Slice((*byte)(st.memory.data[i]), in.bytes), unsafe.Slice((*byte)(first), in.bytes))
	}
	in.fed = true
	return nil
}

// SetFunc gives the native buffer of input i a shape and calls fill to write the values. dst
// has the shape's elements and is valid until fill returns. After an error of fill, the input
// has no value.
func SetFunc[T numeric](st *Step, i int, fill func(dst []T) error, shape ...int64) error {
	p, in, err := st.useInput(i, dtypeOf[T]())
	if err != nil {
		return err
	}
	defer st.done()
	if err := st.reshape(p, i, shape); err != nil {
		return err
	}
	in.fed = false
	if err := fill(unsafe.Slice((*T)(st.memory.data[i]), in.bytes/int64(in.dtype.Size()))); err != nil {
		return fmt.Errorf("step input %s: %w", in.name, err)
	}
	in.fed = true
	return nil
}

// reshape gives the buffer of input i a shape and ends a borrow.
func (st *Step) reshape(p ptr, i int, shape []int64) error {
	st.release(p, i)
	in := &st.feeds[i]
	if st.memory.data[i] != nil && slices.Equal(in.shape, shape) {
		return nil
	}
	n, err := elements(shape)
	if err != nil {
		return fmt.Errorf("step input %s: %w", in.name, err)
	}
	return st.resize(p, i, slices.Clone(shape), n*int64(in.dtype.Size()))
}

// holds checks that the shape has the same number of elements as there are values.
func (in *input) holds(shape []int64, values int) error {
	n, err := elements(shape)
	if err != nil {
		return fmt.Errorf("step input %s: %w", in.name, err)
	}
	if n != int64(values) {
		return fmt.Errorf("step input %s: %w: shape %v holds %d elements, got %d values", in.name, ErrShape,
			slices.Clone(shape), n, values)
	}
	return nil
}

// useInput begins an exclusive use of the step and checks the type of input i.
func (st *Step) useInput(i int, dt DType) (p ptr, in *input, err error) {
	if p, err = st.use(); err != nil {
		return nil, nil, err
	}
	switch {
	case i < 0 || i >= len(st.feeds):
		err = fmt.Errorf("step input %d: %w: the step has %d inputs", i, ErrInvalidArgument, len(st.feeds))
	case dt != st.feeds[i].dtype:
		err = fmt.Errorf("step input %s: %w: expected %s, got %s", st.feeds[i].name, ErrType, st.feeds[i].dtype, dt)
	default:
		return p, &st.feeds[i], nil
	}
	st.done()
	return nil, nil, err
}

func (st *Step) resize(p ptr, i int, shape []int64, bytes int64) error {
	in := &st.feeds[i]
	stepKind.bytes.Add(-in.bytes)
	st.h.size -= in.bytes
	in.shape, in.bytes, in.fed = nil, 0, false
	if !capi.resizeInput(p, i, in.dtype, shape, bytes) {
		return fmt.Errorf("step input %s: %w", in.name, outOfMemory("allocate input", in.dtype, shape, bytes))
	}
	in.shape, in.bytes = shape, bytes
	stepKind.bytes.Add(bytes)
	st.h.size += bytes
	return nil
}

// Run runs the step once. Float and Read return results until the next run. For contexts see the
// package documentation. After an error of TensorFlow in a train step, some of the variables may be
// updated.
func (st *Step) Run(ctx context.Context) error {
	return st.run(ctx, *st.options, nil)
}

// Trace runs the step and returns a serialized tensorflow.RunMetadata. Its step_stats have the
// time and the allocations of each operation. An operation of an inlined function has the name
// of the calling node. With SINGLE_THREADED_EXECUTOR the metadata is empty. An error that matches
// ErrResourceExhausted lists the allocated memory by allocator and operation, without scratch space.
//
// The trace level is always SOFTWARE_TRACE. Higher levels report no more about memory, take
// longer, and start a profiler, which a process can have only once.
func (st *Step) Trace(ctx context.Context) ([]byte, error) {
	// These bytes set trace_level = SOFTWARE_TRACE and report_tensor_allocations_upon_oom = true.
	// They replace earlier values, because the last value of a protobuf field counts.
	options := capi.newBuffer(slices.Concat(st.proto, []byte{1 << 3, 1, 7 << 3, 1}))
	defer capi.deleteBuffer(options)
	metadata := capi.newBuffer(nil)
	defer capi.deleteBuffer(metadata)
	if err := st.run(ctx, options, metadata); err != nil {
		return nil, err
	}
	return capi.readBuffer(metadata), nil
}

func (st *Step) run(ctx context.Context, options, metadata ptr) error {
	if ctx == nil {
		return errNoContext
	}
	if ctx.Done() != nil {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("step not started: %w", err)
		}
	}
	p, err := st.use()
	if err != nil {
		return err
	}
	defer st.done()
	if _, err := st.session.acquire(); err != nil {
		return err
	}
	defer st.session.h.release()
	for i := range st.feeds {
		// The buffer is nil if there was no memory to copy an input that TensorFlow kept.
		if f := st.feeds[i]; !st.borrows.borrowed[i] && (!f.fed || f.bytes > 0 && st.memory.data[i] == nil) {
			return fmt.Errorf("step input %s: %w", st.feeds[i].name, errNotFed)
		}
	}
	st.ran = false
	if st.abort && ctx.Done() != nil {
		err = st.session.guard(ctx, true, func() error { return st.call(p, options, metadata) })
	} else {
		err = st.call(p, options, metadata)
	}
	st.ran = err == nil
	return err
}

func (st *Step) call(p, options, metadata ptr) error {
	code := capi.runStep(p, options, metadata)
	if now := time.Now(); now.Sub(st.yielded) > yieldEvery {
		st.yielded = now
		runtime.Gosched()
	}
	if code != 0 {
		return st.session.closedError(capi.stepError(p, "step"))
	}
	return nil
}

// yieldEvery is the time after which a loop of short steps yields to Go's scheduler. A
// goroutine that runs for 10 ms (forcePreemptNS in runtime/proc.go) loses its processor at its
// next C call, and the scheduler's monitor then wakes up every 20 us for a while. On 2 cores, a
// step of 80 us took 16% longer than in a C loop without yielding, and 5% longer with yielding
// (medians of 9 interleaved runs).
const yieldEvery = 2 * time.Millisecond

// Float returns the number in output i of the last run, or NaN if the output is not a single
// number. It does not allocate.
func (st *Step) Float(i int) (float64, error) {
	if _, err := st.use(); err != nil {
		return 0, err
	}
	defer st.done()
	if err := st.readable(i); err != nil {
		return 0, err
	}
	return st.memory.scalars[i], nil
}

// Read copies output i of the last run to a flat slice as Tensor.Slice does. The shape is valid until the next Read.
// Read does not allocate if buf has the type and the length of the output.
func (st *Step) Read(i int, buf any) (values any, shape []int64, err error) {
	p, err := st.use()
	if err != nil {
		return nil, nil, err
	}
	defer st.done()
	if err := st.readable(i); err != nil {
		return nil, nil, err
	}
	t := capi.output(p, i)
	info := capi.describeTensor(t, st.shape[:0])
	st.shape = info.shape
	values, err = sliceOf(t, info, buf)
	return values, info.shape, err
}

func (st *Step) readable(i int) error {
	if i < 0 || i >= len(st.fetches) {
		return fmt.Errorf("step output %d: %w: the step has %d outputs", i, ErrInvalidArgument, len(st.fetches))
	}
	if !st.ran {
		return fmt.Errorf("step output %s: the last run failed, or there was no run yet: %w", st.fetches[i].name(),
			errFailedPrecondition)
	}
	return nil
}
