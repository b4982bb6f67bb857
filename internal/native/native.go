// Package native reports native memory as sources for package memory: the memory of malloc, and
// that of the open objects of package tfbind. It also summarizes and writes traces of train steps.
// It is separate from package memory because package memory does not need cgo. Package native does
// not load TensorFlow. Without cgo, the amounts of malloc are unknown.
package native

import (
	"errors"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// Source returns a source of the amounts of malloc ([memory.MallocUsed], [memory.MallocFree],
// memlayer.MallocArenas), of the number and bytes of open tfbind objects (memlayer.LiveCount, memlayer.LiveBytes),
// and of what TensorFlow keeps for their graphs and runs (memlayer.GraphOperations, memlayer.Executors). It does not
// allocate, and takes as long as [tfbind.MallocInfo].
func Source() memory.Source {
	return func(add func(memory.Layer, memory.Reading)) {
		m, _ := tfbind.MallocInfo()
		add(memory.MallocUsed, reading(m.InUse))
		add(memory.MallocFree, reading(m.Free))
		add(memlayer.MallocArenas, reading(m.Arenas))
		c := tfbind.Live()
		add(memlayer.LiveBytes, memory.Known(memory.Bytes(c.TensorBytes+c.StepBytes)))
		add(memlayer.LiveCount, memory.Known(memory.Bytes(c.Tensors+c.Steps+c.Sessions+c.Graphs)))
		add(memlayer.GraphOperations, memory.Known(memory.Bytes(c.Operations)))
		add(memlayer.Executors, memory.Known(memory.Bytes(c.Executors)))
	}
}

// AddToMarks adds the amounts of [Source] to the marks of memory.Mark.
func AddToMarks() {
	source := Source()
	add := func(add func(layer string, amount int64)) {
		source(func(layer memory.Layer, r memory.Reading) {
			if r.OK {
				add(string(layer), int64(r.Bytes))
			}
		})
	}
	memlayer.MarkSource.Store(&add)
}

func reading(bytes int64) memory.Reading {
	if bytes < 0 {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(bytes))
}

// Trim returns malloc's free memory to the system. It reports whether malloc supports that; see
// [tfbind.TrimMalloc].
func Trim() bool { return tfbind.TrimMalloc() }

// SetMmapThreshold sets the block size from which malloc returns freed blocks to the system; see
// [tfprocess.SetMmapThreshold]. It is an error if TensorFlow allocates large blocks on the CPU from
// its own pool, which returns nothing to the system. With oneDNN, TensorFlow does so unless
// TF_ONEDNN_USE_SYSTEM_ALLOCATOR is set.
func SetMmapThreshold(size memory.Bytes) error {
	on, _ := tfprocess.OneDNN()
	env, _ := tfprocess.Environment()
	system, _ := tfprocess.ParseBool(tfprocess.Lookup(env, "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"))
	if on && !system {
		return errors.New("TensorFlow takes large blocks from oneDNN's pool")
	}
	return tfprocess.SetMmapThreshold(int(size))
}

// Allocator returns the name of this process's malloc: "glibc", "jemalloc", "tcmalloc", "mimalloc" or
// "unknown".
func Allocator() string {
	if m, ok := tfbind.MallocInfo(); ok {
		return m.Allocator
	}
	return "unknown"
}
