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

// Eager executes operations one at a time, without a graph: nothing is rewritten,
// fused, or reordered. It holds the variables that operations make in it. It may be
// used by several goroutines at once; they take turns.
//
// It is here to be measured against a [Step], which is faster for all that is run
// more than once.
type Eager struct {
	h *handle
	// turn is held while anything of the context, or of a frame of it, is used.
	turn sync.Mutex
}

// EagerFrame has numbered places for values inside an Eager, from 0: registers for
// operations. They are not Go objects, so that an operation costs no garbage.
type EagerFrame struct {
	h      *handle
	eager  *Eager
	places []ptr // in C memory
}

// EagerOp is an operation, and the places where its values are. It holds no native
// memory.
type EagerOp struct {
	name    []byte // ended by a zero byte
	attrs   []byte // see sf_frame_execute
	sizes   []int64
	inputs  []int32
	first   int32
	outputs int
	last    []int32
}

// EagerPlaces say where the values of an operation are.
type EagerPlaces struct {
	// Inputs are the places of its inputs. One that is a list has as many as it has
	// elements.
	Inputs []int32
	// First is the place of its first output; the others follow.
	First   int32
	Outputs int
	// Last are places whose values nobody needs afterwards. An input among them is
	// given up before the operation is executed, which may so write an output where
	// it was; an output among them is not kept.
	Last []int32
}

// eagerFunctions looks TensorFlow's functions for this up. A library without them
// is no use here, but else it is.
var eagerFunctions = sync.OnceValue(func() error { return capi.loadEager() })

// NewEager makes a context for operations, each of which has ended when its call
// returns. config is a serialized tensorflow.ConfigProto, or nil. The result must
// be closed. A TensorFlow that does not export its eager API gives ErrNoTensorFlow.
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

// Close frees the context and its variables, once the last of its frames is closed.
// Closing twice does nothing.
func (e *Eager) Close() error {
	if e != nil {
		e.h.close()
		runtime.KeepAlive(e) // see watch
	}
	return nil
}

// OpDef is what TensorFlow says of an operation, a serialized tensorflow.OpDef.
func (e *Eager) OpDef(op string) ([]byte, error) { return capi.opDef(op) }

// NewFrame makes that many places, all empty. The result must be closed.
func (e *Eager) NewFrame(places int) (*EagerFrame, error) {
	if places < 0 || places > math.MaxInt32 {
		return nil, fmt.Errorf("eager frame of %d places: %w", places, ErrInvalidArgument)
	}
	context, err := e.h.acquire()
	if err != nil {
		return nil, err
	}
	// Released by the frame: TensorFlow wants a context to outlive its values.
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

// check refuses places that there are not, and with full also empty ones.
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

// Put hands a tensor in. It shares the buffer, and leaves the tensor to the caller.
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

// Tensor hands a value out, which must be closed. It stays in its place, too, and
// may share the buffer. An empty place is ErrNotFed.
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

// Float is a value with one numeric element; NaN for any other. It does not allocate.
// An empty place is ErrNotFed.
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

// Share gives a value to another place too, of this frame or of another one of the
// same Eager. An empty place is ErrNotFed.
func (f *EagerFrame) Share(place int32, to *EagerFrame, at int32) error {
	return f.pass(place, to, at, true)
}

// Move is Share, and leaves the place empty.
func (f *EagerFrame) Move(place int32, to *EagerFrame, at int32) error {
	return f.pass(place, to, at, false)
}

func (f *EagerFrame) pass(place int32, to *EagerFrame, at int32, share bool) error {
	if f.eager != to.eager {
		return fmt.Errorf("pass a value to a frame of another eager context: %w", ErrInvalidArgument)
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

// Held is how many places have a value.
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
// tensorflow.AttrValue; what is left out gets its default.
func NewEagerOp(op string, attrs map[string][]byte, at EagerPlaces) *EagerOp {
	o := &EagerOp{name: append([]byte(op), 0), inputs: at.Inputs, first: at.First, outputs: at.Outputs, last: at.Last}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		o.attrs = append(append(o.attrs, name...), 0)
		o.attrs = append(o.attrs, attrs[name]...)
		o.sizes = append(o.sizes, int64(len(attrs[name])))
	}
	return o
}

// Name is TensorFlow's name of the operation, as in "MatMul".
func (o *EagerOp) Name() string { return strings.TrimSuffix(string(o.name), "\x00") }

// Execute executes one operation. An input that is empty is ErrNotFed. After an
// error the inputs may have been given up.
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
		return fmt.Errorf("execute %s: %d outputs from place %d of %d on: %w", op.Name(), op.outputs, op.first, len(f.places), ErrInvalidArgument)
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
