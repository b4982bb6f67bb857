package budget

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/shirou/gopsutil/v3/cpu"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// gauge reads one layer of this process after each step: in about 1 us, and 10 us for
// CgroupWorkingSet. It is for one goroutine at a time, and must be closed.
type gauge struct {
	layer memory.Layer
	file  *os.File // /proc/self/statm, or the usage file of the control group
	// stat is the control group's memory.stat, and inactive the position of inactive_file in it.
	// Both are for CgroupWorkingSet.
	stat     *os.File
	inactive string
	buffer   [cgroup.FileSize]byte
}

// openGauge opens a gauge of RSS, Anon or CgroupWorkingSet. Other layers are an error; a
// layer that this machine does not report is memory.ErrUnavailable.
func openGauge(layer memory.Layer) (*gauge, error) {
	g := &gauge{layer: layer}
	switch layer {
	case memory.RSS, memory.Anon, memlayer.CgroupWorkingSet:
	default:
		return nil, fmt.Errorf("memory gauge: layer %q; expected %s, %s or %s", layer, memory.RSS, memory.Anon,
			memlayer.CgroupWorkingSet)
	}
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("memory gauge: %w", err)
	}
	if !g.read().OK {
		return nil, errors.Join(fmt.Errorf("memory gauge: %w: %s is not reported here", memory.ErrUnavailable, layer),
			g.close())
	}
	return g, nil
}

func (g *gauge) open() (err error) {
	if g.layer == memlayer.CgroupWorkingSet {
		g.openGroup(cgroup.Find(os.DirFS("/"), "self", "memory"))
		return nil
	}
	if g.file, err = os.Open("/proc/self/statm"); err != nil {
		return fmt.Errorf("%w: %w; mount /proc", memory.ErrUnavailable, err)
	}
	return nil
}

// openGroup opens the files of the first folder that has them. If there is none, the amount stays
// unknown.
func (g *gauge) openGroup(c cgroup.Controller) {
	used, _, inactive := c.MemoryFiles()
	g.inactive = inactive + " "
	for _, dir := range c.Dirs {
		file, err := os.Open(dir + "/" + used)
		if err != nil {
			continue
		}
		if g.stat, err = os.Open(dir + "/memory.stat"); err == nil {
			g.file = file
			return
		}
		file.Close()
	}
}

// read returns the current amount.
func (g *gauge) read() memory.Reading {
	if g.layer == memlayer.CgroupWorkingSet {
		used, ok := cgroup.ReadAmount(g.file, g.buffer[:])
		text, err := cgroup.ReadFile(g.stat, g.buffer[:])
		inactive, known := cgroup.Number(cgroup.Line(text, g.inactive))
		if !ok || err != nil || !known {
			return memory.Reading{}
		}
		return memory.Known(memory.Bytes(max(used-inactive, 0)))
	}
	text, err := cgroup.ReadFile(g.file, g.buffer[:])
	if err != nil {
		return memory.Reading{}
	}
	// The fields are size, resident and shared (files and shmem), in pages.
	_, text, _ = bytes.Cut(text, []byte(" "))
	first, text, _ := bytes.Cut(text, []byte(" "))
	second, _, _ := bytes.Cut(text, []byte(" "))
	resident, ok := cgroup.Number(first)
	shared, known := cgroup.Number(second)
	if !ok || !known {
		return memory.Reading{}
	}
	if g.layer == memory.Anon {
		resident -= min(shared, resident)
	}
	return memory.Known(memory.Bytes(resident * int64(os.Getpagesize())))
}

// close closes the files. read then returns unknown readings.
func (g *gauge) close() (failed error) {
	for _, file := range []*os.File{g.file, g.stat} {
		if file != nil {
			failed = errors.Join(failed, file.Close())
		}
	}
	g.file, g.stat = nil, nil
	return failed
}

// uncertainty returns the maximum amount by which a result of read may be too low. Linux counts pages
// per processor and adds them up in batches. For RSS and Anon, a batch has 32 pages, or twice the number
// of processors if that is more (percpu_counter_batch, from Linux 6.2 on). The difference is then up to
// 256 KiB with 2 processors and 32 MiB with 64. Before Linux 6.2, a batch had 64 page faults per thread.
// Linux 6.16 and later count RSS and Anon exactly. For control groups, a batch has 64 pages.
func (g *gauge) uncertainty() memory.Bytes {
	online, _ := cpu.Counts(true)
	batch := max(32, 2*online, 2*runtime.NumCPU())
	if g.layer == memlayer.CgroupWorkingSet {
		batch = 64
	}
	// Pages are counted on the processors that this process may use.
	return memory.Bytes(runtime.NumCPU() * batch * os.Getpagesize())
}
