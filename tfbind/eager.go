package tfbind

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Eager executes operations one by one, without a graph. TensorFlow therefore does not rewrite,
// fuse or reorder them. An Eager has the variables that its operations create. Several
// goroutines may use it, and their operations run one after another. Eager exists as a baseline
// for measurements; a [Step] is faster.
type Eager struct {
	h *handle
	// turn serializes the use of the context and its frames.
	turn sync.Mutex
}

// EagerFrame holds values in numbered places, from 0. Operations read and write places, so an
// operation creates no Go object.
type EagerFrame struct {
	h      *handle
	eager  *Eager
	places []ptr // in C memory
}

// EagerOp is an operation with the places of its inputs and outputs. It has no native memory.
type EagerOp struct {
	name    []byte // with a final zero byte
	attrs   []byte // see sf_frame_execute
	sizes   []int64
	inputs  []int32
	first   int32
	outputs int
	last    []int32
}

// EagerPlaces are the places of an operation's inputs and outputs.
type EagerPlaces struct {
	// Inputs has one place per input. A list input has one place per element.
	Inputs []int32
	// First is the place of the first output. Further outputs follow it.
	First   int32
	Outputs int
	// Last are places that are not used later. Inputs among them are dropped before the
	// operation, which may then reuse their memory. Outputs among them are dropped after it.
	Last []int32
}

// eagerFunctions looks up TensorFlow's functions for eager execution. Only Eager needs them.
var eagerFunctions = sync.OnceValue(func() error { return capi.loadEager() })

// NewEager makes a context. config is a serialized tensorflow.ConfigProto or nil. The result
// must be closed. If the library does not export TensorFlow's eager API, the error is
// ErrNoTensorFlow.
func NewEager(config []byte) (*Eager, error) {
	if err := library(); err != nil {
		return nil, err
	}
	if err := eagerFunctions(); err != nil {
		return nil, fmt.Errorf("new eager context: %w: %w", ErrNoTensorFlow, err)
	}
	p, err := capi.newEager(config)
	if err != nil {
		return nil, err
	}
	noteConfig(config)
	e := &Eager{h: newHandle(p, eagerKind, 0, capi.deleteEager)}
	watch(e, e.h)
	return e, nil
}

// Close frees the context and its variables after its last frame is closed. Closing twice does
// nothing.
func (e *Eager) Close() error {
	if e != nil {
		e.h.close()
		runtime.KeepAlive(e)
	}
	return nil
}

// OpDef returns the definition of an operation as a serialized tensorflow.OpDef.
func (e *Eager) OpDef(op string) ([]byte, error) { return capi.opDef(op) }

// NewFrame makes a frame with that many empty places. The result must be closed.
func (e *Eager) NewFrame(places int) (*EagerFrame, error) {
	if places < 0 || places > math.MaxInt32 {
		return nil, fmt.Errorf("eager frame of %d places: %w", places, ErrInvalidArgument)
	}
	context, err := e.h.acquire()
	if err != nil {
		return nil, err
	}
	// A context must outlive its values in TensorFlow, so the frame counts as a use of the
	// context.
	p, view := capi.newFrame(context, places)
	if p == nil {
		e.h.release()
		return nil, &Error{Op: "new eager frame", Code: ResourceExhausted, Message: fmt.Sprintf("no memory for %d places", places)}
	}
	f := &EagerFrame{eager: e, places: view}
	f.h = newHandle(p, frameKind, 0, func(p ptr) {
		capi.deleteFrame(p)
		e.h.release()
	})
	watch(f, f.h)
	return f, nil
}

// Close frees the values. Closing twice does nothing.
func (f *EagerFrame) Close() error {
	if f != nil {
		f.h.close()
		runtime.KeepAlive(f)
	}
	return nil
}

func (f *EagerFrame) use() (ptr, error) {
	p, err := f.h.acquire()
	if err == nil {
		f.eager.turn.Lock()
	}
	return p, err
}

func (f *EagerFrame) done() {
	f.eager.turn.Unlock()
	f.h.release()
}

// check rejects places that are out of range. With full, it also rejects empty places.
func (f *EagerFrame) check(full bool, places ...int32) error {
	for _, at := range places {
		if at < 0 || int(at) >= len(f.places) {
			return fmt.Errorf("place %d of %d: %w", at, len(f.places), ErrInvalidArgument)
		}
		if full && f.places[at] == nil {
			return fmt.Errorf("place %d: %w", at, ErrNotFed)
		}
	}
	return nil
}

// Put puts a tensor into a place. The place shares the tensor's memory. The caller still has to
// close the tensor.
func (f *EagerFrame) Put(at int32, t *Tensor) error {
	p, err := f.use()
	if err != nil {
		return err
	}
	defer f.done()
	if err := f.check(false, at); err != nil {
		return err
	}
	x, err := t.h.acquire()
	if err != nil {
		return err
	}
	defer t.h.release()
	return capi.putTensor(p, at, x)
}

// Tensor returns the value of a place as a tensor that must be closed. It may share the memory
// of the place. An empty place returns ErrNotFed.
func (f *EagerFrame) Tensor(at int32) (*Tensor, error) {
	p, err := f.use()
	if err != nil {
		return nil, err
	}
	defer f.done()
	if err := f.check(true, at); err != nil {
		return nil, err
	}
	x, err := capi.getTensor(p, at)
	if err != nil {
		return nil, err
	}
	return wrapTensor(x, 0), nil
}

// Float returns the number in a place, or NaN if the value is not a single number. It does not
// allocate. An empty place returns ErrNotFed.
func (f *EagerFrame) Float(at int32) (float64, error) {
	p, err := f.use()
	if err != nil {
		return 0, err
	}
	defer f.done()
	if err := f.check(true, at); err != nil {
		return 0, err
	}
	return capi.readScalar(p, at)
}

// Share puts the value of a place also into another place of any frame of the same Eager. An
// empty place returns ErrNotFed.
func (f *EagerFrame) Share(place int32, to *EagerFrame, at int32) error {
	return f.pass(place, to, at, true)
}

// Move moves the value of a place to another place.
func (f *EagerFrame) Move(place int32, to *EagerFrame, at int32) error {
	return f.pass(place, to, at, false)
}

func (f *EagerFrame) pass(place int32, to *EagerFrame, at int32, share bool) error {
	if f.eager != to.eager {
		return fmt.Errorf("the frames belong to different eager contexts: %w", ErrInvalidArgument)
	}
	p, err := f.use()
	if err != nil {
		return err
	}
	defer f.done()
	q, err := to.h.acquire()
	if err != nil {
		return err
	}
	defer to.h.release()
	if err := f.check(true, place); err != nil {
		return err
	}
	if err := to.check(false, at); err != nil {
		return err
	}
	return capi.passValue(p, place, q, at, share)
}

// Drop empties places.
func (f *EagerFrame) Drop(places ...int32) error {
	p, err := f.use()
	if err != nil {
		return err
	}
	defer f.done()
	if err := f.check(false, places...); err != nil {
		return err
	}
	capi.dropValues(p, places)
	return nil
}

// Held returns the number of places with a value.
func (f *EagerFrame) Held() int {
	if _, err := f.use(); err != nil {
		return 0
	}
	defer f.done()
	n := 0
	for _, p := range f.places {
		if p != nil {
			n++
		}
	}
	return n
}

// NewEagerOp describes an operation. attrs has a serialized tensorflow.AttrValue for each
// attribute without a default, and for others as needed.
func NewEagerOp(op string, attrs map[string][]byte, at EagerPlaces) *EagerOp {
	o := &EagerOp{name: append([]byte(op), 0), inputs: at.Inputs, first: at.First, outputs: at.Outputs, last: at.Last}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		o.attrs = append(append(o.attrs, name...), 0)
		o.attrs = append(o.attrs, attrs[name]...)
		o.sizes = append(o.sizes, int64(len(attrs[name])))
	}
	return o
}

// Name returns the name of the operation, such as "MatMul".
func (o *EagerOp) Name() string { return strings.TrimSuffix(string(o.name), "\x00") }

// Execute executes one operation. An empty input returns ErrNotFed. After an error, inputs in
// EagerPlaces.Last may be gone.
func (f *EagerFrame) Execute(op *EagerOp) error {
	p, err := f.use()
	if err != nil {
		return err
	}
	defer f.done()
	if err := f.check(true, op.inputs...); err != nil {
		return fmt.Errorf("execute %s: input: %w", op.Name(), err)
	}
	if err := f.check(false, op.last...); err != nil {
		return fmt.Errorf("execute %s: last: %w", op.Name(), err)
	}
	if op.outputs < 0 || op.first < 0 || int(op.first) > len(f.places)-op.outputs {
		return fmt.Errorf("execute %s: %d outputs do not fit from place %d of %d: %w", op.Name(), op.outputs, op.first, len(f.places), ErrInvalidArgument)
	}
	n, err := capi.executeEager(p, op)
	if err != nil {
		return err
	}
	if n != op.outputs {
		return fmt.Errorf("execute %s: it has %d outputs, expected %d: %w", op.Name(), n, op.outputs, ErrInvalidArgument)
	}
	return nil
}
