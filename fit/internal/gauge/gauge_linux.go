package gauge

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/shirou/gopsutil/v3/cpu"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/procfile"
	"steadyfit/memory"
)

type files struct {
	file *os.File // /proc/self/statm, or the usage file of the control group
	// stat is the control group's memory.stat, and inactive the position of inactive_file in it.
	// Both are for CgroupWorkingSet.
	stat     *os.File
	inactive string
	buffer   [procfile.Size]byte
}

func (g *Gauge) open() (err error) {
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
func (g *files) openGroup(c cgroup.Controller) {
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

// Read returns the current amount.
func (g *Gauge) Read() memory.Reading {
	if g.layer == memlayer.CgroupWorkingSet {
		used, ok := procfile.Amount(g.file, g.buffer[:])
		text, err := procfile.Read(g.stat, g.buffer[:])
		inactive, known := procfile.Number(procfile.Line(text, g.inactive))
		if !ok || err != nil || !known {
			return memory.Reading{}
		}
		return memory.Known(memory.Bytes(max(used-inactive, 0)))
	}
	text, err := procfile.Read(g.file, g.buffer[:])
	if err != nil {
		return memory.Reading{}
	}
	// The fields are size, resident and shared (files and shmem), in pages.
	_, text, _ = bytes.Cut(text, []byte(" "))
	first, text, _ := bytes.Cut(text, []byte(" "))
	second, _, _ := bytes.Cut(text, []byte(" "))
	resident, ok := procfile.Number(first)
	shared, known := procfile.Number(second)
	if !ok || !known {
		return memory.Reading{}
	}
	if g.layer == memory.Anon {
		resident -= min(shared, resident)
	}
	return memory.Known(memory.Bytes(resident * int64(os.Getpagesize())))
}

// Close closes the files. Read then returns unknown readings.
func (g *Gauge) Close() (failed error) {
	for _, file := range []*os.File{g.file, g.stat} {
		if file != nil {
			failed = errors.Join(failed, file.Close())
		}
	}
	g.file, g.stat = nil, nil
	return failed
}

// Uncertainty returns the maximum amount by which a result of Read may be too low. Linux counts pages
// per processor and adds them up in batches. For RSS and Anon, a batch has 32 pages, or twice the number
// of processors if that is more (percpu_counter_batch, from Linux 6.2 on; earlier, 64 page faults per
// thread), so the difference is up to 256 KiB with 2 processors and 32 MiB with 64. Linux 6.16 and later
// count RSS and Anon exactly. For control groups, a batch has 64 pages.
func (g *Gauge) Uncertainty() memory.Bytes {
	online, _ := cpu.Counts(true)
	batch := max(32, 2*online, 2*runtime.NumCPU())
	if g.layer == memlayer.CgroupWorkingSet {
		batch = 64
	}
	// Pages are counted on the processors that this process may use.
	return memory.Bytes(runtime.NumCPU() * batch * os.Getpagesize())
}
