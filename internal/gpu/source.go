package gpu

import (
	"os"

	"steadyfit/memory"
)

// Source provides the layers of GPU memory for a process; 0 is this one. It is nil
// if there are none (Why), and after Close. Each Sampler needs one of its own; after
// Close all that it says is unknown.
//
// A sample asks the driver two things per GPU: its memory, and its list of processes,
// for which the driver walks through all that is open on the GPU. purego allocates
// three times for each; the source itself does not. Through nvidia-smi a sample is a
// run of that program, which asks for much more.
func (d *Driver) Source(pid int) memory.Source {
	if pid == 0 {
		pid = os.Getpid()
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.backend == nil {
		return nil
	}
	s := &source{
		driver: d, asker: d.backend.asker(), pid: uint32(pid),
		answers: make([]answer, len(d.gpus)), layers: make([]layers, len(d.gpus)),
	}
	for i, g := range d.gpus {
		s.layers[i] = layers{memory.GPUUsed.Of(g.ID), memory.GPUProcess.Of(g.ID)}
	}
	return s
}

// source is the Source of one process.
type source struct {
	driver *Driver
	asker  asker
	pid    uint32
	// fits is whether the process was listed once, so that not to be listed means
	// that it has nothing.
	fits    bool
	answers []answer // of each GPU
	layers  []layers
}

type layers struct{ used, process memory.Layer }

// Sample is that of memory.Source.
func (s *source) Sample(add func(memory.Layer, memory.Reading)) {
	s.read()
	used, process := memory.Known(0), memory.Known(0)
	for _, a := range s.answers {
		used, process = plus(used, a.used), plus(process, a.process)
	}
	add(memory.GPUUsed, used)
	add(memory.GPUProcess, process)
	if len(s.answers) == 1 {
		return
	}
	for i, a := range s.answers {
		add(s.layers[i].used, a.used)
		add(s.layers[i].process, a.process)
	}
}

func (s *source) read() {
	clear(s.answers)
	s.driver.mu.RLock()
	defer s.driver.mu.RUnlock()
	if s.driver.backend == nil {
		return
	}
	s.asker.ask(s.pid, s.answers)
	for _, a := range s.answers {
		s.fits = s.fits || a.listed
	}
	if !s.fits {
		return
	}
	for i := range s.answers {
		if a := &s.answers[i]; a.answered && !a.listed {
			a.process = memory.Known(0)
		}
	}
}

// add counts one entry of a list of processes in. A process may have several.
func (a *answer) add(part memory.Reading) {
	if part.Bytes == 0 {
		part.OK = false // a context takes memory
	}
	if a.listed {
		part = plus(a.process, part)
	}
	a.process, a.listed = part, true
}

// plus is unknown if one of the two is.
func plus(a, b memory.Reading) memory.Reading {
	if !a.OK || !b.OK {
		return memory.Reading{}
	}
	return memory.Known(a.Bytes + b.Bytes)
}
