package gpu

import "steadyfit/memory"

// Meter tells in one amount what a process has of the GPUs. The zero value knows
// nothing. It is for one goroutine at a time.
type Meter struct {
	source memory.Source // nil where the driver says nothing
	// own is whether the process's own amount was told once.
	own bool
}

// Meter is that of a process, here or elsewhere; 0 is this one. After Close it knows
// nothing.
func (d *Driver) Meter(pid int) *Meter { return &Meter{source: d.Source(pid)} }

// Read is what the process has on all GPUs that the driver shows, in bytes. Where the
// driver never told that of the process, it is what is in use on them, by whoever it is.
// It is unknown where neither is told. It is never 0 either, as a process that uses a GPU
// has a context there. A sample is what it costs; see Source.
func (m *Meter) Read() memory.Reading {
	if m.source == nil {
		return memory.Reading{}
	}
	var used, process memory.Reading
	m.source.Sample(func(l memory.Layer, r memory.Reading) {
		switch l {
		case memory.GPUUsed:
			used = r
		case memory.GPUProcess:
			process = r
		}
	})
	m.own = m.own || process.OK
	if m.own {
		used = process // also where it is not told this once: the two do not mix
	}
	if used.Bytes == 0 {
		return memory.Reading{}
	}
	return used
}
