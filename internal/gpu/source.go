package gpu

import (
	"os"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

type answer struct {
	used, process memory.Reading
	// answered is true if the GPU listed its processes. listed is true if the process is among
	// them.
	listed, answered bool
}

// add adds an entry of the list of processes. A process may have several entries.
func (a *answer) add(part memory.Reading) {
	if part.Bytes == 0 {
		part.OK = false // a context takes memory, so 0 means unknown
	}
	if a.listed {
		part = plus(a.process, part)
	}
	a.process, a.listed = part, true
}

// plus adds two readings. The sum is unknown if one of them is.
func plus(a, b memory.Reading) memory.Reading {
	if !a.OK || !b.OK {
		return memory.Reading{}
	}
	return memory.Known(a.Bytes + b.Bytes)
}

// Source returns the GPU memory layers of a process; pid 0 means this process. It returns nil if there
// are no layers (Why), and after Close. Each Sampler needs a separate Source. A sample makes two requests
// per GPU, and purego allocates three times per request.
func (d *Driver) Source(pid int) memory.Source {
	if pid == 0 {
		pid = os.Getpid()
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.nvml == nil {
		return nil
	}
	s := &source{driver: d, pid: uint32(pid), answers: make([]answer, len(d.gpus))}
	s.buffers.nvml = d.nvml
	for _, g := range d.gpus {
		s.layers = append(s.layers, [2]memory.Layer{memlayer.Of[memory.Layer](memlayer.GPUUsed, g.ID),
			memlayer.Of[memory.Layer](memlayer.GPUProcess, g.ID)})
	}
	return s.sample
}

type source struct {
	driver  *Driver
	buffers buffers
	pid     uint32
	seen    bool              // the process was listed before, so unlisted means 0
	answers []answer          // one per GPU
	layers  [][2]memory.Layer // used and process, per GPU
}

func (s *source) sample(add func(memory.Layer, memory.Reading)) {
	s.read()
	used, process := memory.Known(0), memory.Known(0)
	for _, a := range s.answers {
		used, process = plus(used, a.used), plus(process, a.process)
	}
	add(memlayer.GPUUsed, used)
	add(memlayer.GPUProcess, process)
	if len(s.answers) == 1 {
		return
	}
	for i, a := range s.answers {
		add(s.layers[i][0], a.used)
		add(s.layers[i][1], a.process)
	}
}

func (s *source) read() {
	clear(s.answers)
	s.driver.mu.RLock()
	defer s.driver.mu.RUnlock()
	if s.driver.nvml == nil {
		return
	}
	for i, device := range s.driver.nvml.devices {
		s.buffers.ask(device, s.pid, &s.answers[i])
		s.seen = s.seen || s.answers[i].listed
	}
	for i := range s.answers {
		if a := &s.answers[i]; s.seen && a.answered && !a.listed {
			a.process = memory.Known(0)
		}
	}
}

// Meter reads the GPU memory of a process. The zero value reports unknown readings. It is for one
// goroutine at a time.
type Meter struct {
	source memory.Source // nil if the driver reports nothing
	own    bool          // whether the amount of the process was ever known
}

// Meter returns a meter of a process; pid 0 means this process.
func (d *Driver) Meter(pid int) *Meter { return &Meter{source: d.Source(pid)} }

// Read returns the memory of the process on all GPUs, or of all processes if the driver never reports
// single ones. It never returns 0, since a process that uses a GPU has a context there.
func (m *Meter) Read() memory.Reading {
	if m.source == nil {
		return memory.Reading{}
	}
	var used, process memory.Reading
	m.source(func(l memory.Layer, r memory.Reading) {
		switch l {
		case memlayer.GPUUsed:
			used = r
		case memlayer.GPUProcess:
			process = r
		}
	})
	m.own = m.own || process.OK
	if m.own {
		used = process // also if unknown, since the two amounts must not be mixed
	}
	if used.Bytes == 0 {
		return memory.Reading{}
	}
	return used
}
