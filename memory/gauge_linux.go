package memory

import (
	"bytes"
	"errors"
	"os"
	"runtime"

	"github.com/shirou/gopsutil/v3/cpu"

	"steadyfit/internal/cgroup"
)

type gauge struct {
	file *os.File // /proc/self/statm, or the usage file of the control group
	// stat is the group's memory.stat, and inactive the position of inactive_file in it, for
	// CgroupWorkingSet.
	stat     *os.File
	inactive string
	buffer   [statusSize]byte
}

func (g *gauge) open(layer Layer) (err error) {
	if layer == cgroupUsed || layer == CgroupWorkingSet {
		g.openGroup(cgroup.Find(os.DirFS("/"), "self", "memory"), layer)
		return nil
	}
	if g.file, err = os.Open("/proc/self/statm"); err != nil {
		return unreadable(err)
	}
	return nil
}

// openGroup opens the files of the first folder that has them. If there is none, the amount stays
// unknown.
func (g *gauge) openGroup(c cgroup.Controller, layer Layer) {
	used, _, inactive := c.MemoryFiles()
	g.inactive = inactive + " "
	for _, dir := range c.Dirs {
		file, err := os.Open(dir + "/" + used)
		if err != nil {
			continue
		}
		if layer == CgroupWorkingSet {
			if g.stat, err = os.Open(dir + "/memory.stat"); err != nil {
				file.Close()
				continue
			}
		}
		g.file = file
		return
	}
}

func (g *gauge) read(layer Layer) Reading {
	switch layer {
	case cgroupUsed:
		return amountIn(g.file, g.buffer[:])
	case CgroupWorkingSet:
		used := amountIn(g.file, g.buffer[:])
		text, err := readAll(g.stat, g.buffer[:])
		if err != nil {
			return Reading{}
		}
		return minus(used, number(lineAfter(text, g.inactive)))
	}
	text, err := readAll(g.file, g.buffer[:])
	if err != nil {
		return Reading{}
	}
	// The fields are size, resident and shared (files and shmem), in pages.
	_, text, _ = bytes.Cut(text, []byte(" "))
	first, text, _ := bytes.Cut(text, []byte(" "))
	second, _, _ := bytes.Cut(text, []byte(" "))
	resident, shared := number(first), number(second)
	if !resident.OK || !shared.OK {
		return Reading{}
	}
	if layer == Anon {
		resident.Bytes -= min(shared.Bytes, resident.Bytes)
	}
	return Known(resident.Bytes * Bytes(os.Getpagesize()))
}

func (g *gauge) close() (failed error) {
	for _, file := range []*os.File{g.file, g.stat} {
		if file != nil {
			failed = errors.Join(failed, file.Close())
		}
	}
	g.file, g.stat = nil, nil
	return failed
}

func uncertainty(layer Layer) Bytes {
	online, _ := cpu.Counts(true)
	batch := max(32, 2*online, 2*runtime.NumCPU())
	if layer == cgroupUsed || layer == CgroupWorkingSet {
		batch = 64
	}
	// Pages are counted on the processors that this process may use.
	return Bytes(runtime.NumCPU() * batch * os.Getpagesize())
}
