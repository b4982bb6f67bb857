package tfbind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Session runs a graph and has its variables. Several goroutines may use it.
type Session struct {
	h     *handle
	graph *Graph
	sets  *runSets
	// ownsGraph reports whether Close closes the graph too.
	ownsGraph bool
	// ending lets only one goroutine close the session in TensorFlow.
	ending sync.Once
	ended  atomic.Bool
	endErr error
}

// Device is a device of TensorFlow, such as a CPU or a GPU.
type Device struct {
	// Name is the full name, such as "/job:localhost/replica:0/task:0/device:CPU:0".
	Name string
	// Type is TensorFlow's device type, such as "CPU" or "GPU".
	Type string
	// MemoryBytes is the limit of the device's allocator. For a CPU it is always 256 MiB, which
	// has no meaning.
	MemoryBytes int64
}

// LoadSavedModel opens a SavedModel and restores its variables. tags select the metagraph,
// usually "serve". config is a serialized tensorflow.ConfigProto or nil. server is the address of
// the TensorFlow server that runs the session, such as "grpc://localhost:2222"; the default is
// this process. The result must be closed, which also closes its graph.
func LoadSavedModel(dir string, tags []string, config []byte, server ...string) (*Session, error) {
	if err := library(); err != nil {
		return nil, err
	}
	literal, release, err := Literal(dir + "/")
	if err != nil {
		return nil, fmt.Errorf("load SavedModel %s: %w", dir, err)
	}
	defer release()
	s, g, err := capi.loadSavedModel(strings.Join(server, ""), strings.TrimSuffix(literal, "/"), tags, config)
	if err != nil {
		if failed := (*Error)(nil); errors.As(err, &failed) {
			failed.Op, failed.Message = "load SavedModel "+dir, strings.ReplaceAll(failed.Message, literal, dir+"/")
		}
		return nil, err
	}
	noteConfig(config)
	return wrapSession(s, wrapGraph(g), true), nil
}

// NewSession opens a session on a graph, which must stay open until the session is closed. If the graph is
// nil, the session makes an empty one, which its Close frees. config is a serialized tensorflow.ConfigProto or
// nil. The result must be closed.
func NewSession(g *Graph, config []byte) (s *Session, err error) {
	owns := g == nil
	if owns {
		if g, err = NewGraph(); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				g.Close()
			}
		}()
	}
	p, err := g.h.acquire()
	if err != nil {
		return nil, err
	}
	defer g.h.release()
	native, err := capi.newSession(p, config)
	if err != nil {
		return nil, err
	}
	noteConfig(config)
	return wrapSession(native, g, owns), nil
}

// first has the configuration and environment of the first session.
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

// firstSession implements tfprocess.FirstSession.
func firstSession() (config []byte, env []string, ok bool) {
	first.Lock()
	defer first.Unlock()
	return slices.Clone(first.config), slices.Clone(first.env), first.made
}

func wrapSession(p ptr, g *Graph, ownsGraph bool) *Session {
	sets := &runSets{tally: tally{total: &executors}, seen: map[uint64]bool{}}
	s := &Session{graph: g, sets: sets, ownsGraph: ownsGraph, h: newHandle(p, sessionKind, 0, func(p ptr) {
		capi.deleteSession(p)
		sets.clear()
	})}
	watch(s, s.h)
	return s
}

// runSets has the sets of feeds, fetches and targets for which TensorFlow keeps an executor.
type runSets struct {
	sync.Mutex
	tally
	seen map[uint64]bool // hashes
}

var setSeed = maphash.MakeSeed()

func (r *runSets) note(feeds, fetches []Output, targets []ptr) {
	var hash maphash.Hash
	hash.SetSeed(setSeed)
	for _, list := range [][]Output{feeds, fetches} {
		maphash.WriteComparable(&hash, len(list))
		for _, o := range list {
			maphash.WriteComparable(&hash, o)
		}
	}
	for _, o := range targets {
		maphash.WriteComparable(&hash, o)
	}
	r.Lock()
	defer r.Unlock()
	if set := hash.Sum64(); !r.seen[set] {
		r.seen[set] = true
		r.add(1)
	}
}

// Graph returns the session's graph.
func (s *Session) Graph() *Graph { return s.graph }

// Close cancels the runs in progress, waits for their end, and frees the session and its
// variables. It also frees a graph that the session made. Later runs return ErrClosed.
// TensorFlow's allocators keep free memory for reuse. Closing twice does nothing.
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

// closedError adds ErrClosed to the error of a run that was cancelled by closing its session.
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
			return // already freed
		}
		defer s.h.release()
		s.ended.Store(true)
		s.endErr = capi.closeSession(p)
	})
	return s.endErr
}

// Devices lists TensorFlow's devices.
func (s *Session) Devices() ([]Device, error) {
	p, err := s.acquire()
	if err != nil {
		return nil, err
	}
	defer s.h.release()
	return capi.listDevices(p)
}

// Feeds are the values of a run. The tensors must stay open until the run ends.
type Feeds map[Output]*Tensor

// errInterrupted means that the end of a context interrupted a run; see RunOptions.Abort.
var errInterrupted = fmt.Errorf("run interrupted: its session was closed, and some of the variables may be updated: %w",
	ErrClosed)

// RunOptions are further options of a run, or of the runs of a Step.
type RunOptions struct {
	// Targets are the names of operations to run without fetching an output.
	Targets []string
	// Abort closes the session when the context ends; see the package documentation.
	Abort bool
	// Proto is a serialized tensorflow.RunOptions.
	Proto []byte
}

// last returns the last of the options; the zero value if there are none.
func last(options []RunOptions) (o RunOptions) {
	if n := len(options); n > 0 {
		o = options[n-1]
	}
	return o
}

// Results are the fetched tensors of a run.
type Results []*Tensor

// Close closes all tensors.
func (r Results) Close() error {
	for _, t := range r {
		t.Close()
	}
	return nil
}

var errNoContext = errors.New("run: the context is nil; pass one, such as context.Background()")

// Run feeds values, runs the operations that the fetches need, and returns the fetched tensors
// in the order of fetches. The results must be closed. For contexts see the package documentation. For
// repeated runs use a [Step]. If there are several options, Run uses the last.
func (s *Session) Run(ctx context.Context, feeds Feeds, fetches []Output, options ...RunOptions) (_ Results,
	err error) {
	o := last(options)
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
	targets, err := s.check(fetches, o.Targets)
	if err != nil {
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
			return nil, fmt.Errorf("feed %s: %w", out.name(), err)
		}
		defer t.h.release()
	}

	memory := capi.newStep(session, outputs, fetches, targets)
	if memory.step == nil {
		return nil, &Error{Op: "session run", Code: "RESOURCE_EXHAUSTED", Message: "no memory for the run's tables"}
	}
	defer capi.deleteStep(memory.step)
	var proto ptr
	if len(o.Proto) > 0 {
		proto = capi.newBuffer(o.Proto)
		defer capi.deleteBuffer(proto)
	}
	s.sets.note(outputs, fetches, targets)
	err = s.guard(ctx, o.Abort, func() error {
		if capi.runStepWith(memory.step, inputs, proto) != 0 {
			return s.closedError(capi.stepError(memory.step, "session run"))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	results := make(Results, len(fetches))
	for i := range fetches {
		results[i] = wrapTensor(capi.takeOutput(memory.step, i), 0)
	}
	return results, nil
}

// order checks feeds and sorts them by name. TensorFlow caches an executor for each order of
// feeds (tensorflow#40758), and Go maps have no fixed order.
func (s *Session) order(feeds Feeds) ([]Output, error) {
	names := make(map[Output]string, len(feeds))
	for out := range feeds {
		names[out] = out.name()
	}
	sorted := slices.SortedFunc(maps.Keys(names), func(a, b Output) int { return cmp.Compare(names[a], names[b]) })
	for _, out := range sorted {
		if _, err := s.check([]Output{out}, nil); err != nil {
			return nil, err
		}
		t := feeds[out]
		if t == nil {
			return nil, fmt.Errorf("feed %s: %w", names[out], errNotFed)
		}
		if want := out.DType(); want != t.DType() {
			return nil, fmt.Errorf("feed %s: %w: expected %s, got %s", names[out], ErrType, want, t.DType())
		}
	}
	return sorted, nil
}

// guard runs f. With abort, it closes the session when the context ends.
func (s *Session) guard(ctx context.Context, abort bool, f func() error) error {
	if !abort || ctx.Done() == nil {
		return f()
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.end() // errInterrupted replaces this error
	})
	err := f()
	if stop() {
		return err
	}
	<-ended
	if err != nil {
		return fmt.Errorf("%w: %w: %w", errInterrupted, context.Cause(ctx), err)
	}
	return fmt.Errorf("%w: %w", errInterrupted, context.Cause(ctx))
}

// check rejects outputs of another graph, which TensorFlow would dereference, and finds the targets.
func (s *Session) check(outputs []Output, names []string) (targets []ptr, err error) {
	for _, o := range outputs {
		if o.graph != s.graph {
			return nil, fmt.Errorf("run: output %s belongs to another graph: %w", o.name(), ErrInvalidArgument)
		}
	}
	for _, name := range names {
		target, err := s.graph.operation(name)
		if err != nil {
			return nil, err
		}
		targets = append(targets, target)
	}
	return targets, nil
}
