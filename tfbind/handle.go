package tfbind

import (
	"fmt"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"unsafe"
)

// ptr is an address in C memory or in pinned Go memory (see borrow).
type ptr = unsafe.Pointer

// handle owns a native object and counts its uses. It frees the object when it is closed and no
// use is in progress.
type handle struct {
	ptr  ptr
	free func(ptr)
	kind *kind
	size int64
	// state is the number of uses in progress, plus closedBit after close.
	state atomic.Int64
	freed chan struct{}
}

// made has the stacks at which the open objects were made.
var made = pprof.NewProfile("tfbind")

const closedBit = 1 << 62

// newHandle takes ownership of p. The object must be complete, because a leak check during its
// construction could abort the process (tensorflow#112530).
func newHandle(p ptr, k *kind, size int64, free func(ptr)) *handle {
	k.count.Add(1)
	k.bytes.Add(size)
	h := &handle{ptr: p, free: free, kind: k, size: size, freed: make(chan struct{})}
	made.Add(h, 2)
	return h
}

// watch counts a leak if object becomes unreachable without Close. Close methods call
// runtime.KeepAlive, so that an object does not become unreachable during Close and count as a
// leak. Other methods need no KeepAlive, because watch frees nothing.
func watch[T any](object *T, h *handle) {
	runtime.AddCleanup(object, func(h *handle) {
		if h.state.Load()&closedBit == 0 {
			h.kind.leakedBytes.Add(h.size)
			h.kind.leaked.Add(1)
		}
	}, h)
}

// acquire begins a use. If it returns no error, release must follow.
func (h *handle) acquire() (ptr, error) {
	stress()
	for {
		s := h.state.Load()
		if s&closedBit != 0 {
			return nil, fmt.Errorf("%s: %w", h.kind.name, ErrClosed)
		}
		if h.state.CompareAndSwap(s, s+1) {
			return h.ptr, nil
		}
	}
}

func (h *handle) release() {
	if h.state.Add(-1) == closedBit {
		h.destroy()
	}
}

// close closes the handle and reports whether it was open.
func (h *handle) close() bool {
	stress()
	for {
		s := h.state.Load()
		if s&closedBit != 0 {
			return false
		}
		if h.state.CompareAndSwap(s, s|closedBit) {
			if s == 0 {
				h.destroy()
			}
			return true
		}
	}
}

func (h *handle) destroy() {
	made.Remove(h)
	h.free(h.ptr)
	h.kind.count.Add(-1)
	h.kind.bytes.Add(-h.size)
	close(h.freed)
}

// kind counts the objects of one type.
type kind struct {
	name                string
	count, bytes        atomic.Int64
	leaked, leakedBytes atomic.Int64
}

var (
	tensorKind  = &kind{name: "tensor"}
	graphKind   = &kind{name: "graph"}
	sessionKind = &kind{name: "session"}
	stepKind    = &kind{name: "step"}
)

// operations and executors are the totals of all graphs and sessions.
var operations, executors atomic.Int64

// tally is the part of a total that belongs to one object.
type tally struct {
	total *atomic.Int64
	own   atomic.Int64
}

func (t *tally) add(n int64) {
	t.own.Add(n)
	t.total.Add(n)
}

func (t *tally) clear() { t.total.Add(-t.own.Swap(0)) }

// Counts has the number of open native objects.
type Counts struct {
	// TensorBytes is the size of the tensors' buffers, without strings longer than 22 bytes.
	Tensors, TensorBytes int64
	// StepBytes is the size of the input buffers of steps.
	Graphs, Sessions, Steps, StepBytes int64
	// Operations is the number of operations that Graph.Import has added to open graphs. Executors is
	// the number of different sets of feeds, fetches and targets that open sessions have used.
	// TensorFlow compiles the graph for each set and keeps the result.
	Operations, Executors int64
	// Leaked counts the objects that became unreachable without Close. Leaked objects are part of
	// the other counts too. LeakedBytes is the size of their buffers.
	Leaked, LeakedBytes int64
}

// Live counts the native objects that are open now.
func Live() Counts {
	c := Counts{
		Tensors: tensorKind.count.Load(), TensorBytes: tensorKind.bytes.Load(),
		Graphs: graphKind.count.Load(), Sessions: sessionKind.count.Load(),
		Steps: stepKind.count.Load(), StepBytes: stepKind.bytes.Load(),
		Operations: operations.Load(), Executors: executors.Load(),
	}
	for _, k := range []*kind{tensorKind, graphKind, sessionKind, stepKind} {
		c.Leaked += k.leaked.Load()
		c.LeakedBytes += k.leakedBytes.Load()
	}
	return c
}
