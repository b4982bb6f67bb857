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

// Eager executes operations one at a time, without a graph: nothing is rewritten, fused, or
// reordered. It holds the variables that its operations make. Several goroutines may use it;
// their calls run one after another.
//
// It exists as a baseline for measurements. A [Step] is faster for anything that runs more
// than once.
type Eager struct {
	h *handle
	// turn is held while the context or one of its frames is used.
	turn sync.Mutex
}

// EagerFrame has numbered places, from 0, that hold values of an Eager. Places are like
// registers for operations. They are not Go objects, so an operation creates no garbage.
type EagerFrame struct {
	h      *handle
	eager  *Eager
	places []ptr // in C memory
}

// EagerOp is an operation together with the places of its inputs and outputs. It holds no
// native memory.
type EagerOp struct {
	name    []byte // ended by a zero byte
	attrs   []byte // see sf_frame_execute
	sizes   []int64
	inputs  []int32
	first   int32
	outputs int
	last    []int32
}

// EagerPlaces names the places of an operation's inputs and outputs.
type EagerPlaces struct {
	// Inputs are the places of the inputs. An input that is a list takes one place per
	// element.
	Inputs []int32
	// First is the place of its first output; the others follow.
	First   int32
	Outputs int
	// Last are places whose values are not needed afterwards. An input among them is dropped
	// before the operation runs, so that the operation may reuse its memory for an output. An
	// output among them is dropped after it.
	Last []int32
}

// eagerFunctions looks up TensorFlow's functions for eager execution. They are optional: a
// library without them can do everything else.
var eagerFunctions = sync.OnceValue(func() error { return capi.loadEager() })

// NewEager makes a context that executes operations synchronously. config is a serialized
// tensorflow.ConfigProto, or nil. The result must be closed. A TensorFlow that does not export
// its eager API returns ErrNoTensorFlow.
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

// Close frees the context and its variables once its last frame is closed. Closing twice does
// nothing.
func (e *Eager) Close() error {
	if e != nil {
		e.h.close()
		runtime.KeepAlive(e) // see watch
	}
	return nil
}

// OpDef returns TensorFlow's definition of an operation, a serialized tensorflow.OpDef.
func (e *Eager) OpDef(op string) ([]byte, error) { return capi.opDef(op) }

// NewFrame makes a frame with the given number of empty places. The result must be closed.
func (e *Eager) NewFrame(places int) (*EagerFrame, error) {
	if places < 0 || places > math.MaxInt32 {
		return nil, fmt.Errorf("eager frame of %d places: %w", places, ErrInvalidArgument)
	}
	context, err := e.h.acquire()
	if err != nil {
		return nil, err
	}
	// The frame releases this use when it is closed: TensorFlow requires that a context
	// outlives its values.
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

// Close frees the values in the frame. Closing twice does nothing.
func (f *EagerFrame) Close() error {
	if f != nil {
		f.h.close()
		runtime.KeepAlive(f) // see watch
	}
	return nil
}

// use begins a use of the frame; done ends it.
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

// check returns an error if a place is out of range or, with full, empty.
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

// Put copies a reference to a tensor into a place. The place shares the tensor's buffer; the
// caller still has to close the tensor.
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

// Tensor returns the value of a place as a tensor that must be closed. The value also stays in
// its place, and may share the buffer. An empty place returns ErrNotFed.
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

// Float returns the value of a place that holds one numeric element, and NaN for any other
// value. It does not allocate. An empty place returns ErrNotFed.
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

// Share puts the value of a place into a second place as well, in this frame or in another one
// of the same Eager. An empty place returns ErrNotFed.
func (f *EagerFrame) Share(place int32, to *EagerFrame, at int32) error {
	return f.pass(place, to, at, true)
}

// Move puts the value of a place into another place and leaves the first one empty.
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

// Drop empties the given places.
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

// Held returns the number of places that hold a value.
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

// NewEagerOp describes an operation. attrs are its attributes, each a serialized
// tensorflow.AttrValue; an attribute that is absent gets its default.
func NewEagerOp(op string, attrs map[string][]byte, at EagerPlaces) *EagerOp {
	o := &EagerOp{name: append([]byte(op), 0), inputs: at.Inputs, first: at.First, outputs: at.Outputs, last: at.Last}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		o.attrs = append(append(o.attrs, name...), 0)
		o.attrs = append(o.attrs, attrs[name]...)
		o.sizes = append(o.sizes, int64(len(attrs[name])))
	}
	return o
}

// Name returns TensorFlow's name of the operation, as in "MatMul".
func (o *EagerOp) Name() string { return strings.TrimSuffix(string(o.name), "\x00") }

// Execute executes one operation. An empty input returns ErrNotFed. After an error, the inputs
// may have been dropped.
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
