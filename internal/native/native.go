// Package native provides native memory as sources for package memory: malloc, and the open objects of
// package tfbind. It is separate from package memory, which works without cgo. It does not load TensorFlow.
// Without cgo, the amounts of malloc are unknown.
package native

import (
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// Source returns a source of the amounts of [Malloc], and of the number and bytes of open tfbind objects
// ([memory.LiveCount], [memory.LiveBytes]).
func Source() memory.Source {
	return func(add func(memory.Layer, memory.Reading)) {
		malloc(add)
		c := tfbind.Live()
		add(memory.LiveBytes, memory.Known(memory.Bytes(c.TensorBytes+c.StepBytes)))
		add(memory.LiveCount, memory.Known(memory.Bytes(c.Tensors+c.Steps+c.Sessions+c.Graphs+c.Eagers+c.EagerFrames)))
	}
}

// Malloc returns a source of the amounts of malloc ([memory.MallocUsed], [memory.MallocFree],
// [memory.MallocArenas]). It does not allocate, and takes as long as [tfbind.MallocInfo].
func Malloc() memory.Source { return malloc }

func malloc(add func(memory.Layer, memory.Reading)) {
	m, _ := tfbind.MallocInfo()
	add(memory.MallocUsed, reading(m.InUse))
	add(memory.MallocFree, reading(m.Free))
	add(memory.MallocArenas, reading(m.Arenas))
}

func reading(bytes int64) memory.Reading {
	if bytes == tfbind.NotReported {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(bytes))
}

func Trim() bool { return tfbind.TrimMalloc() }

// Allocator returns the name of this process's malloc: "glibc", "jemalloc", "tcmalloc", "mimalloc" or
// "unknown".
func Allocator() string {
	if m, ok := tfbind.MallocInfo(); ok {
		return m.Allocator
	}
	return "unknown"
}
