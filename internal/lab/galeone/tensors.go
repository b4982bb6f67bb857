//go:build galeone

package main

import (
	"slices"
	"sync"
	"unsafe"
	"weak"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/memory"
)

// tensors counts the native objects of the binding that are not freed. The Go runtime only
// reports finalizers that a collection has queued, and not the unreachable objects before a
// collection. tensors has weak pointers, which become nil when the finalizer is queued.
//
// Its method Sample is a memory.Source. Bytes are those of tensors; the size of graphs is unknown. A session
// is freed with its graph.
type tensors struct {
	mu     sync.Mutex
	made   chunks
	graphs []weak.Pointer[tf.Graph]
	// objects that the workload can still reach
	keptBytes, keptGraphs int64
}

// chunks is a list that never moves to a larger array, since old arrays would cause garbage
// collections.
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

func (t *tensors) counted(x *tf.Tensor) *tf.Tensor {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.made.append(madeTensor{weak.Make(x), size(x)})
	return x
}

// tensor creates a tensor from slices, as in the binding's documentation.
func (t *tensors) tensor(value any) *tf.Tensor { return t.counted(worker.Must(tf.NewTensor(value))) }

// keep records that the workload holds a tensor until release.
func (t *tensors) keep(x *tf.Tensor)    { t.hold(size(x)) }
func (t *tensors) release(x *tf.Tensor) { t.hold(-size(x)) }

func (t *tensors) hold(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keptBytes += bytes
}

// countedGraph records that the workload holds a graph until releaseGraph.
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

// size returns the size of the buffer, without the separate memory of long strings.
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

func (t *tensors) Sample(add func(memory.Layer, memory.Reading)) {
	native.Malloc(add)

	t.mu.Lock()
	defer t.mu.Unlock()
	bytes := t.made.sweep()
	t.graphs = slices.DeleteFunc(t.graphs, func(g weak.Pointer[tf.Graph]) bool { return g.Value() == nil })
	graphs := int64(len(t.graphs))
	add(memlayer.LiveBytes, memory.Known(memory.Bytes(bytes)))
	add(memlayer.WaitingBytes, memory.Known(memory.Bytes(max(0, bytes-t.keptBytes))))
	add(liveGraphs, memory.Known(memory.Bytes(graphs)))
	add(waitingGraphs, memory.Known(memory.Bytes(max(0, graphs-t.keptGraphs))))
}

var liveGraphs, waitingGraphs = memlayer.Of[memory.Layer](memlayer.LiveCount, "graphs"),
	memlayer.Of[memory.Layer](memlayer.WaitingCount, "graphs")
