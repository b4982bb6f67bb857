package tfbind

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"steadyfit/internal/eager"
)

// eagerContext implements eager.Context.
type eagerContext struct {
	h *handle
	// turn serializes the use of the context and its frames.
	turn sync.Mutex
}

// eagerFrame implements eager.Frame.
type eagerFrame struct {
	h      *handle
	eager  *eagerContext
	places []ptr // in C memory
}

func init() {
	eager.New = func(config []byte) (eager.Context, error) {
		c, err := newEager(config)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
}

// eagerFunctions looks up the functions of TensorFlow that only eager execution needs.
var eagerFunctions = sync.OnceValue(func() error { return capi.loadEager() })

func newEager(config []byte) (*eagerContext, error) {
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
	e := &eagerContext{h: newHandle(p, eagerKind, 0, capi.deleteEager)}
	watch(e, e.h)
	return e, nil
}

func (e *eagerContext) Close() error {
	if e != nil {
		e.h.close()
		runtime.KeepAlive(e)
	}
	return nil
}

func (e *eagerContext) OpDef(op string) ([]byte, error) { return capi.opDef(op) }

func (e *eagerContext) NewFrame(places int) (eager.Frame, error) {
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
		return nil, &Error{Op: "new eager frame", Code: "RESOURCE_EXHAUSTED", Message: fmt.Sprintf("no memory for %d places", places)}
	}
	f := &eagerFrame{eager: e, places: view}
	f.h = newHandle(p, frameKind, 0, func(p ptr) {
		capi.deleteFrame(p)
		e.h.release()
	})
	watch(f, f.h)
	return f, nil
}

func (f *eagerFrame) Close() error {
	if f != nil {
		f.h.close()
		runtime.KeepAlive(f)
	}
	return nil
}

func (f *eagerFrame) use() (ptr, error) {
	p, err := f.h.acquire()
	if err == nil {
		f.eager.turn.Lock()
	}
	return p, err
}

func (f *eagerFrame) done() {
	f.eager.turn.Unlock()
	f.h.release()
}

// check rejects places that are out of range. With full, it also rejects empty places.
func (f *eagerFrame) check(full bool, places ...int32) error {
	for _, at := range places {
		if at < 0 || int(at) >= len(f.places) {
			return fmt.Errorf("place %d of %d: %w", at, len(f.places), ErrInvalidArgument)
		}
		if full && f.places[at] == nil {
			return fmt.Errorf("place %d: %w", at, errNotFed)
		}
	}
	return nil
}

func (f *eagerFrame) Put(at int32, tensor any) error {
	t, ok := tensor.(*Tensor)
	if !ok {
		return fmt.Errorf("put %T: %w: expected a *Tensor", tensor, ErrType)
	}
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

func (f *eagerFrame) Float(at int32) (float64, error) {
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

func (f *eagerFrame) Share(place int32, to eager.Frame, at int32) error {
	return f.pass(place, to, at, true)
}

func (f *eagerFrame) Move(place int32, to eager.Frame, at int32) error {
	return f.pass(place, to, at, false)
}

func (f *eagerFrame) pass(place int32, target eager.Frame, at int32, share bool) error {
	to, ok := target.(*eagerFrame)
	if !ok || f.eager != to.eager {
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

func (f *eagerFrame) Drop(places ...int32) error {
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

func (f *eagerFrame) Held() int {
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

func (f *eagerFrame) Execute(op *eager.Op) error {
	p, err := f.use()
	if err != nil {
		return err
	}
	defer f.done()
	if err := f.check(true, op.Inputs...); err != nil {
		return fmt.Errorf("execute %s: input: %w", op.Name(), err)
	}
	if err := f.check(false, op.Last...); err != nil {
		return fmt.Errorf("execute %s: last: %w", op.Name(), err)
	}
	if op.Outputs < 0 || op.First < 0 || int(op.First) > len(f.places)-op.Outputs {
		return fmt.Errorf("execute %s: %d outputs do not fit from place %d of %d: %w", op.Name(), op.Outputs, op.First, len(f.places), ErrInvalidArgument)
	}
	n, err := capi.executeEager(p, op)
	if err != nil {
		return err
	}
	if n != op.Outputs {
		return fmt.Errorf("execute %s: it has %d outputs, expected %d: %w", op.Name(), n, op.Outputs, ErrInvalidArgument)
	}
	return nil
}
