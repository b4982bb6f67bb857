package tfbind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Session runs a graph and holds its variables. It may be used by several
// goroutines at once.
type Session struct {
	h     *handle
	graph *Graph
	// ownsGraph means that the session was opened together with its graph and closes it.
	ownsGraph bool
	// ending makes TensorFlow close the session only once.
	ending sync.Once
	ended  atomic.Bool
	endErr error
}

// Device is a device that a session can use.
type Device struct {
	// Name is the full name, as in "/job:localhost/replica:0/task:0/device:CPU:0".
	Name string
	// Type is "CPU", "GPU" or another TensorFlow device type.
	Type string
	// MemoryBytes is the limit of the device's allocator. For a CPU it is always 256 MiB and
	// has no meaning.
	MemoryBytes int64
}

// LoadSavedModel opens a SavedModel: its graph, with the variables restored. tags select the
// MetaGraph, usually "serve". config is a serialized tensorflow.ConfigProto, or nil. The
// result must be closed, which also closes its graph.
func LoadSavedModel(dir string, tags []string, config []byte) (*Session, error) {
	if err := library(); err != nil {
		return nil, err
	}
	s, g, err := capi.loadSavedModel(dir, tags, config)
	if err != nil {
		return nil, err
	}
	noteConfig(config)
	return wrapSession(s, wrapGraph(g), true), nil
}

// NewSession opens a session on a graph, which must stay open as long as the
// session. config is a serialized tensorflow.ConfigProto, or nil. The result
// must be closed.
func NewSession(g *Graph, config []byte) (*Session, error) {
	p, err := g.h.acquire()
	if err != nil {
		return nil, err
	}
	defer g.h.release()
	s, err := capi.newSession(p, config)
	if err != nil {
		return nil, err
	}
	noteConfig(config)
	return wrapSession(s, g, false), nil
}

// first is the configuration and environment of the first session or eager context.
var first struct {
	sync.Mutex
	made   bool
	config []byte
	env    []string
}

func noteConfig(config []byte) {
	first.Lock()
	defer first.Unlock()
	if !first.made {
		first.made, first.config, first.env = true, slices.Clone(config), os.Environ()
	}
}

// FirstConfig returns the serialized tensorflow.ConfigProto of the first session or eager
// context of the process. TensorFlow has set up its devices and their threads with it. A
// session that failed to open does not count. ok is false if there was none.
func FirstConfig() (config []byte, ok bool) {
	first.Lock()
	defer first.Unlock()
	return slices.Clone(first.config), first.made
}

// FirstEnvironment returns the environment of the process when it opened its first session or
// eager context. TensorFlow read the settings of its devices then. ok is false if there was
// none.
func FirstEnvironment() (env []string, ok bool) {
	first.Lock()
	defer first.Unlock()
	return slices.Clone(first.env), first.made
}

func wrapSession(p ptr, g *Graph, ownsGraph bool) *Session {
	s := &Session{h: newHandle(p, sessionKind, 0, capi.deleteSession), graph: g, ownsGraph: ownsGraph}
	watch(s, s.h)
	return s
}

// Graph returns the session's graph, which is valid until the session is closed.
func (s *Session) Graph() *Graph { return s.graph }

// Close cancels the runs in progress, waits for them to end, and frees the session and its
// variables. It frees the graph if the session was opened with it. Later runs and steps fail
// with ErrClosed. TensorFlow's allocators keep their free memory. Closing twice does nothing.
func (s *Session) Close() error {
	if s == nil {
		return nil
	}
	err := s.end()
	s.h.close()
	<-s.h.freed
	if s.ownsGraph {
		s.graph.Close()
	}
	unpinKept()
	runtime.KeepAlive(s)
	return err
}

// acquire begins a run. It fails if the session was closed or a run was interrupted.
func (s *Session) acquire() (ptr, error) {
	p, err := s.h.acquire()
	if err == nil && s.ended.Load() {
		s.h.release()
		return nil, fmt.Errorf("session: %w", ErrClosed)
	}
	return p, err
}

// closedError adds ErrClosed to the error of a run that TensorFlow cancelled because its
// session was closed.
func (s *Session) closedError(err error) error {
	if err != nil && s.ended.Load() && errors.Is(err, errCancelled) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}

// end makes TensorFlow cancel current runs and reject later ones.
func (s *Session) end() error {
	s.ending.Do(func() {
		p, err := s.h.acquire()
		if err != nil {
			return // the session was already freed
		}
		defer s.h.release()
		s.ended.Store(true)
		s.endErr = capi.closeSession(p)
	})
	return s.endErr
}

// Devices lists the devices of the session.
func (s *Session) Devices() ([]Device, error) {
	p, err := s.acquire()
	if err != nil {
		return nil, err
	}
	defer s.h.release()
	return capi.listDevices(p)
}

// Feeds are the values of a run. The tensors are in use until the run ends.
type Feeds map[Output]*Tensor

// CancelMode says what happens to a run in progress when its context ends.
// TensorFlow cannot abandon a single run of a session: it reports a timeout in RunOptions
// only after the run has ended by itself (measured on 2.21: a timeout of 200 ms on a step
// of 2.1 s returned after 2.1 s), and only closing the session cuts a run short. Hence the
// contract:
//
//   - If the context has ended before the run starts, nothing runs or changes; the error
//     is the context's cause.
//   - With [Finish], the default, a run in progress goes to its end and returns its results
//     without an error. A train step is never half applied.
//   - With [Abort], the session is closed and TensorFlow cancels what it can. The call
//     returns once the operations have ended, with an error that is both the context's
//     cause and ErrInterrupted. The variables are in doubt.
//   - A deadline is treated as a cancellation at that time.
//   - No goroutine outlives the call.
type CancelMode int

// The values of CancelMode.
const (
	Finish CancelMode = iota
	Abort
)

// ErrInterrupted means that a run was interrupted by closing its session; see [Abort].
var ErrInterrupted = fmt.Errorf("run interrupted, its session is closed and its variables are in doubt: %w", ErrClosed)

// RunOptions are the less common options of a run.
type RunOptions struct {
	// Targets are operations to run for their effect only.
	Targets []Operation
	// OnCancel is what happens to a run in progress when its context ends.
	OnCancel CancelMode
	// Proto is a serialized tensorflow.RunOptions.
	Proto []byte
	// Metadata, if not nil, receives a serialized tensorflow.RunMetadata.
	Metadata *[]byte
}

// Results are the fetched tensors of a run, in the order of the fetches.
type Results []*Tensor

// Close closes every tensor.
func (r Results) Close() error {
	for _, t := range r {
		t.Close()
	}
	return nil
}

var errNoContext = errors.New("run: the context is nil; pass one, such as context.Background()")

// Run feeds values, runs what the fetches need, and returns their values. The results must
// be closed. See [CancelMode] for contexts. For repeated runs, prepare a [Step].
func (s *Session) Run(ctx context.Context, feeds Feeds, fetches []Output) (Results, error) {
	return s.RunWith(ctx, feeds, fetches, RunOptions{})
}

// RunWith is Run with options.
func (s *Session) RunWith(ctx context.Context, feeds Feeds, fetches []Output, o RunOptions) (_ Results, err error) {
	if ctx == nil {
		return nil, errNoContext
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("session run not started: %w", err)
	}
	session, err := s.acquire()
	if err != nil {
		return nil, err
	}
	defer s.h.release()
	if err := s.check(fetches, o.Targets); err != nil {
		return nil, err
	}

	outputs, err := s.order(feeds)
	if err != nil {
		return nil, err
	}
	inputs := make([]ptr, len(outputs))
	for i, out := range outputs {
		t := feeds[out]
		if inputs[i], err = t.h.acquire(); err != nil {
			return nil, fmt.Errorf("feed %s: %w", out.Name(), err)
		}
		defer t.h.release()
	}

	memory := capi.newStep(session, outputs, fetches, o.Targets)
	if memory.step == nil {
		return nil, &Error{Op: "session run", Code: ResourceExhausted, Message: "no memory for the run's tables"}
	}
	defer capi.deleteStep(memory.step)
	var options, metadata ptr
	if len(o.Proto) > 0 {
		options = capi.newBuffer(o.Proto)
		defer capi.deleteBuffer(options)
	}
	if o.Metadata != nil {
		metadata = capi.newBuffer(nil)
		defer capi.deleteBuffer(metadata)
	}
	err = s.guard(ctx, o.OnCancel, func() error {
		if capi.runStepWith(memory.step, inputs, options, metadata) != 0 {
			return s.closedError(capi.stepError(memory.step, "session run"))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if metadata != nil {
		*o.Metadata = capi.readBuffer(metadata)
	}
	results := make(Results, len(fetches))
	for i := range fetches {
		results[i] = wrapTensor(capi.takeOutput(memory.step, i), 0)
	}
	return results, nil
}

// order checks feeds and returns them sorted by name. TensorFlow caches one executor per order
// of feeds (tensorflow#40758), and the iteration order of a Go map changes from run to run.
func (s *Session) order(feeds Feeds) ([]Output, error) {
	names := make(map[Output]string, len(feeds))
	for out := range feeds {
		names[out] = out.Name()
	}
	sorted := slices.SortedFunc(maps.Keys(names), func(a, b Output) int { return cmp.Compare(names[a], names[b]) })
	for _, out := range sorted {
		if err := s.check([]Output{out}, nil); err != nil {
			return nil, err
		}
		t := feeds[out]
		if t == nil {
			return nil, fmt.Errorf("feed %s: %w", names[out], ErrNotFed)
		}
		if want := out.DType(); want != t.DType() {
			return nil, fmt.Errorf("feed %s: %w: expected %s, got %s", names[out], ErrType, want, t.DType())
		}
	}
	return sorted, nil
}

// guard runs f with the behaviour of mode when the context ends.
func (s *Session) guard(ctx context.Context, mode CancelMode, f func() error) error {
	if mode != Abort || ctx.Done() == nil {
		return f()
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.end() // ErrInterrupted replaces this error
	})
	err := f()
	if stop() {
		return err
	}
	<-ended
	if err != nil {
		return fmt.Errorf("%w: %w: %w", ErrInterrupted, context.Cause(ctx), err)
	}
	return fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx))
}

// check rejects outputs and targets of other graphs, which TensorFlow would dereference.
func (s *Session) check(outputs []Output, targets []Operation) error {
	refuse := func(o Operation) error {
		if o.graph == nil {
			return fmt.Errorf("run: %w: an operation is the zero value", ErrNotFound)
		}
		if o.graph != s.graph {
			return fmt.Errorf("run: operation %s belongs to another graph: %w", o.Name(), ErrInvalidArgument)
		}
		return nil
	}
	for _, o := range outputs {
		if err := refuse(o.Operation); err != nil {
			return err
		}
		if n := o.Operation.Outputs(); o.Index < 0 || o.Index >= n {
			return fmt.Errorf("run: %s: operation has %d outputs: %w", o.Name(), n, ErrInvalidArgument)
		}
	}
	for _, o := range targets {
		if err := refuse(o); err != nil {
			return err
		}
	}
	return nil
}
