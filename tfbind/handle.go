package tfbind

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// ptr is an address in C memory, or in pinned Go memory (see borrow).
type ptr = unsafe.Pointer

// handle owns one native object and counts its uses. The object is freed once it is closed and
// no use is in progress.
type handle struct {
	ptr  ptr
	free func(ptr)
	kind *kind
	size int64
	// state is the number of uses in progress, plus closedBit once closed.
	state atomic.Int64
	freed chan struct{}
	site  creationSite
}

const closedBit = 1 << 62

// newHandle takes ownership of p, which must be complete: the leak check of watch must not see
// an object that is still being made (tensorflow#112530).
func newHandle(p ptr, k *kind, size int64, free func(ptr)) *handle {
	k.count.Add(1)
	k.bytes.Add(size)
	return &handle{ptr: p, free: free, kind: k, size: size, freed: make(chan struct{}), site: here()}
}

// watch counts a leak if the object that the user holds becomes unreachable without Close. It
// frees nothing, so accessors do not need runtime.KeepAlive. Close methods do: otherwise the
// object could become unreachable during Close, before it is marked closed, and be counted as
// a leak.
func watch[T any](object *T, h *handle) {
	runtime.AddCleanup(object, func(h *handle) {
		if h.state.Load()&closedBit == 0 {
			h.kind.leaked.Add(1)
			h.kind.leakedBytes.Add(h.size)
			recordLeak(h)
		}
	}, h)
}

// acquire begins a use. Every acquire that returns no error needs a release.
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

// close marks the object closed and reports whether this call closed it.
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

	eagerKind = &kind{name: "eager context"}
	frameKind = &kind{name: "eager frame"}
)

// Counts is the number of native objects that exist. The counters are always on.
type Counts struct {
	// Tensors counts Tensor values that are not closed; TensorBytes is the size
	// of their buffers. Strings longer than 22 bytes are not included.
	Tensors, TensorBytes int64
	// Graphs, Sessions and Steps count the unclosed ones. StepBytes is the size
	// of the input buffers that steps hold.
	Graphs, Sessions, Steps, StepBytes int64
	// Eagers and EagerFrames count the unclosed ones. TensorFlow does not report the size of
	// the values in them.
	Eagers, EagerFrames int64
	// Leaked counts the objects that the garbage collector found unreachable without Close.
	// They stay in the other counts too. LeakedBytes is the size of their buffers.
	Leaked, LeakedBytes int64
}

// Live returns how many native objects of this package exist now.
func Live() Counts {
	c := Counts{
		Tensors: tensorKind.count.Load(), TensorBytes: tensorKind.bytes.Load(),
		Graphs: graphKind.count.Load(), Sessions: sessionKind.count.Load(),
		Steps: stepKind.count.Load(), StepBytes: stepKind.bytes.Load(),
		Eagers: eagerKind.count.Load(), EagerFrames: frameKind.count.Load(),
	}
	for _, k := range []*kind{tensorKind, graphKind, sessionKind, stepKind, eagerKind, frameKind} {
		c.Leaked += k.leaked.Load()
		c.LeakedBytes += k.leakedBytes.Load()
	}
	return c
}

// Leak is an object that became unreachable without Close.
type Leak struct {
	// Kind is "tensor", "graph", "session", "step", "eager context" or "eager
	// frame".
	Kind string
	// Bytes is the size of its buffers.
	Bytes int64
	// Site is where the object was made, as file:line of each caller, innermost first.
	Site []string
}

var leaks struct {
	sync.Mutex
	list []Leak
}

// Leaks returns the leaks found so far with their origin. It needs a build with the tag
// leakcheck, because a stack trace costs more than making a small tensor. In other builds the
// list is empty; use Live().Leaked for the number.
func Leaks() []Leak {
	leaks.Lock()
	defer leaks.Unlock()
	return append([]Leak(nil), leaks.list...)
}
