package budget

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/shirou/gopsutil/v3/cpu"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/option"
)

// meter reads the memory of the process and releases free memory.
type meter interface {
	// level reads the budget's layer. The true level may be higher, by at most uncertainty.
	level() (memory.Bytes, error)
	uncertainty() memory.Bytes
	// beyond returns by how much the highest peak since the last call exceeds the current level.
	beyond() (memory.Bytes, error)
	// peak returns the highest peak of the process; 0 if it is unknown for the budget's layer.
	peak() memory.Bytes
	// trim releases malloc's free memory, and makes malloc return large blocks when they are freed.
	trim()
	// retain lets malloc keep freed blocks, since returning them costs time.
	retain()
	// close calls retain.
	close() error
}

// unmapLarge is the least size of a block from oneDNN's pool (mkl_cpu_allocator.h). Larger
// blocks hold nearly all memory that a step frees.
const unmapLarge = 256 * memory.KiB

// peakSampler is the part of a memory.Sampler that this package uses. Tests replace it.
type peakSampler interface {
	Sample(step int, s *memory.Sample) error
	ResetPeak() error
	Close() error
}

// processMeter is the meter of this process.
type processMeter struct {
	layer   memory.Layer
	group   cgroup.Controller
	sampler peakSampler
	sample  memory.Sample
}

// openMeter opens a meter of RSS, Anon or CgroupWorkingSet.
func openMeter(layer memory.Layer) (meter, error) {
	m := &processMeter{layer: layer, group: cgroup.Find(os.DirFS("/"), "self", "memory")}
	_, err := m.level()
	if !slices.Contains([]memory.Layer{memory.RSS, memory.Anon, memlayer.CgroupWorkingSet}, layer) {
		err = fmt.Errorf("expected %s, %s or %s", memory.RSS, memory.Anon, memlayer.CgroupWorkingSet)
	}
	if err != nil {
		return nil, &option.Error{Option: "Budget.Layer", Value: layer, Reason: err.Error(),
			Fix: "use rss, or another layer that this machine reports", Err: err}
	}
	sampler, err := memory.NewSampler(0)
	if err != nil {
		return nil, err
	}
	m.sampler = sampler
	// Without the peak of a step, a run would choose micro-batches as if steps took no memory.
	if _, err := m.beyond(); err != nil {
		return nil, errors.Join(&option.Error{
			Option: "Budget.Limit", Reason: "the memory that a step takes cannot be measured on this machine, so no limit " +
				"can be kept: " + err.Error(),
			Fix: "train without a budget, or on a machine whose kernel reports and resets the peak of a process",
		}, m.close())
	}
	return m, nil
}

func (m *processMeter) level() (memory.Bytes, error) {
	if m.layer == memlayer.CgroupWorkingSet {
		used := m.group.WorkingSet(os.DirFS("/"))
		if !used.Known() {
			return 0, fmt.Errorf("memory budget: %w: the kernel does not report %s", memory.ErrUnavailable, m.layer)
		}
		return memory.Bytes(used.Bytes), nil
	}
	text, err := os.ReadFile("/proc/self/statm")
	var size, resident, shared int64 // in pages; shared are those of files and shmem
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &resident, &shared)
	}
	if err != nil {
		return 0, fmt.Errorf("memory budget: %w: reading /proc/self/statm: %w", memory.ErrUnavailable, err)
	}
	if m.layer == memory.Anon {
		resident -= min(shared, resident)
	}
	return memory.Bytes(resident * int64(os.Getpagesize())), nil
}

// uncertainty is due to Linux, which counts pages per processor and adds them up in batches: of 64 pages, or
// twice the number of processors if that is more. This is 512 KiB with 2 processors, and 32 MiB with 64.
// Linux 6.16 and later count RSS and Anon exactly.
func (m *processMeter) uncertainty() memory.Bytes {
	online, _ := cpu.Counts(true)
	// Pages are counted on the processors that this process may use.
	return memory.Bytes(runtime.NumCPU() * max(64, 2*online, 2*runtime.NumCPU()) * os.Getpagesize())
}

// beyond reads RSS, the only layer whose peak the kernel reports.
func (m *processMeter) beyond() (memory.Bytes, error) {
	if err := m.sampler.Sample(0, &m.sample); err != nil {
		return 0, fmt.Errorf("memory budget: %w", err)
	}
	peak, rss := m.sample.Get(memlayer.Peak), m.sample.Get(memory.RSS)
	if !peak.OK || !rss.OK {
		return 0, errors.New("memory budget: the kernel does not report the peak of RSS (VmHWM)")
	}
	if err := m.sampler.ResetPeak(); err != nil {
		return 0, fmt.Errorf("memory budget: the peak of RSS cannot be reset: %w", err)
	}
	return max(peak.Bytes-rss.Bytes, 0), nil
}

// peak includes opening TensorFlow, which takes more RSS than training a small model.
func (m *processMeter) peak() memory.Bytes {
	now, err := memory.Read()
	if err != nil || m.layer != memory.RSS {
		return 0
	}
	return now.Peak.Bytes
}

// Only glibc has a threshold for large blocks, and the environment may set it.
func (m *processMeter) trim() {
	_ = native.SetMmapThreshold(unmapLarge)
	native.Trim()
}

func (m *processMeter) retain() { _ = native.SetMmapThreshold(tfprocess.MaxMmapThreshold) }

func (m *processMeter) close() error {
	m.retain()
	return m.sampler.Close()
}
