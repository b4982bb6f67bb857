package gpu

import (
	"os"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// plus adds two readings. The sum is unknown if one of them is.
func plus(a, b memory.Reading) memory.Reading {
	if !a.OK || !b.OK {
		return memory.Reading{}
	}
	return memory.Known(a.Bytes + b.Bytes)
}

// Source returns the GPU memory layers of a process; pid 0 means this process. It returns nil if there
// are no layers (Why). Each Sampler needs a separate Source. A sample makes two requests
// per GPU, and purego allocates three times per request.
func (d *Driver) Source(pid int) memory.Source {
	s := d.source(pid)
	if s == nil {
		return nil
	}
	return func(add func(memory.Layer, memory.Reading)) {
		used, process := s.read()
		add(memlayer.GPUUsed, used)
		add(memlayer.GPUProcess, process)
	}
}

type source struct {
	driver *Driver
	pid    uint32
	seen   bool // the process was listed before, so unlisted means 0
	// Reused, so that a sample does not allocate them.
	info memoryInfo
	room uint32
	list []processInfo
}

// source returns a source of a process, or nil.
func (d *Driver) source(pid int) *source {
	if pid == 0 {
		pid = os.Getpid()
	}
	if len(d.devices) == 0 {
		return nil
	}
	return &source{driver: d, pid: uint32(pid)}
}

// read returns the memory in use on all GPUs, and that of the process.
func (s *source) read() (used, process memory.Reading) {
	used, process = memory.Known(0), memory.Known(0)
	silent, unlisted := false, false
	for _, device := range s.driver.devices {
		used = plus(used, s.used(device))
		list, answered := s.running(device)
		listed := false
		for _, p := range list { // a process may have several entries
			if p.pid == s.pid {
				listed, process = true, plus(process, p.memory())
			}
		}
		s.list, s.seen = list, s.seen || listed
		silent, unlisted = silent || !answered, unlisted || !listed
	}
	if silent || unlisted && !s.seen {
		process = memory.Reading{}
	}
	return used, process
}

// Meter reads the GPU memory of a process. The zero value reports unknown readings. It is for one
// goroutine at a time.
type Meter struct {
	source *source // nil if the driver reports nothing
	own    bool    // whether the amount of the process was ever known
}

// Meter returns a meter of a process; pid 0 means this process.
func (d *Driver) Meter(pid int) *Meter { return &Meter{source: d.source(pid)} }

// Read returns the memory of the process on all GPUs, or of all processes if the driver never reports
// single ones. It never returns 0, since a process that uses a GPU has a context there.
func (m *Meter) Read() memory.Reading {
	if m.source == nil {
		return memory.Reading{}
	}
	used, process := m.source.read()
	m.own = m.own || process.OK
	if m.own {
		used = process // also if unknown, since the two amounts must not be mixed
	}
	if used.Bytes == 0 {
		return memory.Reading{}
	}
	return used
}
