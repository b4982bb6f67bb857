//go:build galeone

package main

import (
	"slices"
	"sync"
	"unsafe"
	"weak"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/native"
	"steadyfit/memory"
)

// tensors counts the binding's native objects that are not freed, since the binding does not
// count them. The Go runtime only knows finalizers that a collection has queued, but the objects
// that no collection has found yet are the important ones here. A weak pointer becomes nil when
// the finalizer is queued.
//
// It is a memory.Source of malloc's figures and the binding's objects. Bytes are those of
// tensors. Graphs are only counted, since their size is unknown. A session is freed with its
// graph.
type tensors struct {
	mu     sync.Mutex
	made   chunks
	graphs []weak.Pointer[tf.Graph]
	// The objects that the workload can still reach.
	keptBytes, keptGraphs int64
}

// chunks is a list that never moves to a larger array: the old arrays would trigger the
// collections that the test watches.
type chunks struct {
	all [][]madeTensor // of chunkSize each
	n   int
}

const chunkSize = 256

type madeTensor struct {
	tensor weak.Pointer[tf.Tensor]
	bytes  int64
}

func (c *chunks) append(m madeTensor) {
	if c.n == len(c.all)*chunkSize {
		c.all = append(c.all, make([]madeTensor, chunkSize))
	}
	c.all[c.n/chunkSize][c.n%chunkSize] = m
	c.n++
}

// sweep drops collected objects and sums up the rest.
func (c *chunks) sweep() (bytes int64) {
	n := c.n
	c.n = 0
	for i := range n {
		if m := c.all[i/chunkSize][i%chunkSize]; m.tensor.Value() != nil {
			c.append(m)
			bytes += m.bytes
		}
	}
	return bytes
}

// counted counts a new tensor and returns it.
func (t *tensors) counted(x *tf.Tensor) *tf.Tensor {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.made.append(madeTensor{weak.Make(x), size(x)})
	return x
}

// keep records that the workload holds a tensor until release.
func (t *tensors) keep(x *tf.Tensor)    { t.hold(size(x)) }
func (t *tensors) release(x *tf.Tensor) { t.hold(-size(x)) }

func (t *tensors) hold(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keptBytes += bytes
}

// countedGraph counts a graph that the workload holds until releaseGraph.
func (t *tensors) countedGraph(g *tf.Graph) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.graphs = append(t.graphs, weak.Make(g))
	t.keptGraphs++
}

func (t *tensors) releaseGraph() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keptGraphs--
}

// size returns the size of the buffer. For strings, it leaves out their separate memory.
func size(x *tf.Tensor) int64 {
	n := int64(unsafe.Sizeof([3]uint64{})) // a TF_TString
	if dtype := x.DataType(); dtype != tf.String {
		n = int64(tf.TypeOf(dtype, nil).Size())
	}
	for _, d := range x.Shape() {
		n *= d
	}
	return n
}

var mallocSource = native.Malloc()

// Sample is called between steps, on the goroutine that runs them.
func (t *tensors) Sample(add func(memory.Layer, memory.Reading)) {
	mallocSource.Sample(add)

	t.mu.Lock()
	defer t.mu.Unlock()
	bytes := t.made.sweep()
	t.graphs = slices.DeleteFunc(t.graphs, func(g weak.Pointer[tf.Graph]) bool { return g.Value() == nil })
	graphs := int64(len(t.graphs))
	add(memory.LiveBytes, memory.Known(memory.Bytes(bytes)))
	add(memory.WaitingBytes, memory.Known(memory.Bytes(max(0, bytes-t.keptBytes))))
	add(liveGraphs, memory.Known(memory.Bytes(graphs)))
	add(waitingGraphs, memory.Known(memory.Bytes(max(0, graphs-t.keptGraphs))))
}

var liveGraphs, waitingGraphs = memory.LiveCount.Of("graphs"), memory.WaitingCount.Of("graphs")
