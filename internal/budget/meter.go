package budget

import (
	"errors"
	"fmt"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/memory"
	"steadyfit/option"
)

// meter reads the memory of the process and releases free memory.
type meter interface {
	// level reads the budget's layer. The true level may be higher, by at most uncertainty.
	level() (memory.Bytes, error)
	uncertainty() memory.Bytes
	// beyond returns by how much the highest peak since the last call exceeds the current
	// level.
	beyond() (memory.Bytes, error)
	// peak returns the highest peak of the process, or 0 if the kernel does not report it
	// for the budget's layer.
	peak() memory.Bytes
	// trim releases malloc's free memory, and reports whether that is possible.
	trim() bool
	// unmapFrom sets the size from which malloc returns a freed block to the system.
	unmapFrom(size memory.Bytes) error
	close() error
}

const (
	// unmapLarge is the least size of a block from oneDNN's pool (mkl_cpu_allocator.h). Larger
	// blocks hold nearly all memory that a step frees.
	unmapLarge = 256 * memory.KiB
	// unmapHuge is the highest threshold that glibc sets by itself.
	unmapHuge = native.MaxMmapThreshold
)

// peakSampler is the part of a memory.Sampler that this package uses. Tests replace it.
type peakSampler interface {
	Sample(step int, s *memory.Sample) error
	ResetPeak() error
	Close() error
}

type processMeter struct {
	gauge   *gauge
	sampler peakSampler
	sample  memory.Sample
}

func openMeter(layer memory.Layer) (meter, error) {
	opened, err := openGauge(layer)
	if err != nil {
		return nil, &option.Error{Option: "Budget.Layer", Value: layer, Reason: err.Error(),
			Fix: "use rss, or another layer that this machine reports"}
	}
	sampler, err := memory.NewSampler(0)
	if err != nil {
		return nil, errors.Join(err, opened.close())
	}
	m := &processMeter{gauge: opened, sampler: sampler}
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
	reading := m.gauge.read()
	if !reading.OK {
		return 0, fmt.Errorf("memory budget: the kernel no longer reports %s", m.gauge.layer)
	}
	return reading.Bytes, nil
}

func (m *processMeter) uncertainty() memory.Bytes { return m.gauge.uncertainty() }

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
	if err != nil || m.gauge.layer != memory.RSS {
		return 0
	}
	return now.Peak.Bytes
}

func (m *processMeter) trim() bool { return native.Trim() }

func (m *processMeter) unmapFrom(size memory.Bytes) error { return native.SetMmapThreshold(size) }

func (m *processMeter) close() error { return errors.Join(m.gauge.close(), m.sampler.Close()) }
