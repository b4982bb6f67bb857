// Package native puts what package tfbind knows of native memory into the terms
// of package memory: what malloc holds, and which objects of the binding live.
// The two packages know nothing of each other, so that memory works without cgo.
// It is for the commands and measurements of this module; a user's program that
// watches its memory needs three lines of its own for it.
//
// A value flows like this: Source asks tfbind's counters and the process's
// malloc, and a memory.Sampler puts the answers into each of its samples.
// Nothing here loads TensorFlow, and without cgo all readings are unknown or
// those of a binding that is not in use.
package native

import (
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// Source adds to each sample what [Malloc] does, and the objects of package tfbind
// that are not closed ([memory.LiveCount]) with the
// size of their buffers ([memory.LiveBytes]). There is nothing that waits for the
// garbage collector: what it finds without a Close is never freed.
func Source() memory.Source {
	return memory.SourceFunc(func(add func(memory.Layer, memory.Reading)) {
		malloc(add)
		c := tfbind.Live()
		add(memory.LiveBytes, memory.Known(memory.Bytes(c.TensorBytes+c.StepBytes)))
		add(memory.LiveCount, memory.Known(memory.Bytes(c.Tensors+c.Steps+c.Sessions+c.Graphs+c.Eagers+c.EagerFrames)))
	})
}

// Malloc adds to each sample what malloc says ([memory.MallocUsed],
// [memory.MallocFree], [memory.MallocArenas]: see [tfbind.Malloc] for what they
// mean under which allocator). It allocates nothing and costs what
// [tfbind.MallocInfo] costs.
func Malloc() memory.Source { return memory.SourceFunc(malloc) }

func malloc(add func(memory.Layer, memory.Reading)) {
	m, _ := tfbind.MallocInfo()
	add(memory.MallocUsed, reading(m.InUse))
	add(memory.MallocFree, reading(m.Free))
	add(memory.MallocArenas, reading(m.Arenas))
}

func reading(bytes int64) memory.Reading {
	if bytes == tfbind.NotTold {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(bytes))
}

// Trim has malloc give back what is free, as [tfbind.TrimMalloc] does, and
// reports whether it could be asked.
func Trim() bool { return tfbind.TrimMalloc() }

// Allocator names the malloc of this process: "glibc", "jemalloc", "tcmalloc" or
// "mimalloc", or "unknown".
func Allocator() string {
	if m, ok := tfbind.MallocInfo(); ok {
		return m.Allocator
	}
	return "unknown"
}
