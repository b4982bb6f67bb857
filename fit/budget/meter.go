package budget

import (
	"errors"
	"fmt"
	"runtime/debug"

	"steadyfit/fit/internal/gauge"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/memory"
	"steadyfit/option"
)

// meter reads the memory of the process and releases free memory.
type meter interface {
	// level reads the budget's layer. The true level may be higher, by at most uncertainty.
	level() memory.Reading
	uncertainty() memory.Bytes
	// beyond returns by how much the highest peak since the last call exceeds the current
	// level.
	beyond() memory.Bytes
	// peak returns the highest peak of the process, or 0 if the kernel does not report it
	// for the budget's layer.
	peak() memory.Bytes
	// unread returns the first error of a reading, or nil.
	unread() error
	// trim releases malloc's free memory, and reports whether that is possible. collect releases
	// the free memory of the Go runtime.
	trim() bool
	collect()
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
	gauge   *gauge.Gauge
	layer   memory.Layer // layer of gauge
	sampler peakSampler
	sample  memory.Sample
	failed  error // first error; see unread
	// stuck is the highest peak since a reset of the peak failed.
	stuck memory.Bytes
}

func openMeter(layer memory.Layer) (meter, error) {
	opened, err := gauge.New(layer)
	if err != nil {
		return nil, &option.Error{Option: "Budget.Layer", Value: layer, Reason: err.Error(), Fix: "use rss, or another layer that this machine reports"}
	}
	sampler, err := memory.NewSampler(0)
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	m := &processMeter{gauge: opened, layer: layer, sampler: sampler}
	if err := m.sees(); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// sees returns an error if this machine cannot measure the peak of a step, since a run would then
// choose micro-batches as if steps took no memory.
func (m *processMeter) sees() error {
	blind := func(why string) error {
		return &option.Error{Option: "Budget.Limit", Reason: "the memory that a step takes cannot be measured on this machine, so no limit can be kept: " + why,
			Fix: "train without a budget, or on a machine whose kernel reports and resets the peak of a process"}
	}
	if err := m.sampler.Sample(0, &m.sample); err != nil {
		return blind(err.Error())
	}
	if !m.sample.Get(memlayer.Peak).OK || !m.sample.Get(memory.RSS).OK {
		return blind(errNoPeak.Error())
	}
	if err := m.sampler.ResetPeak(); err != nil {
		return blind(notReset(err).Error())
	}
	return nil
}

var errNoPeak = errors.New("the kernel does not report the peak of RSS (VmHWM)")

func notReset(err error) error {
	return fmt.Errorf("the peak of RSS cannot be reset: %w", err)
}

func (m *processMeter) unread() error { return m.failed }

func (m *processMeter) fails(err error) {
	if m.failed == nil {
		m.failed = err
	}
}

func (m *processMeter) level() memory.Reading {
	reading := m.gauge.Read()
	if !reading.OK {
		m.fails(fmt.Errorf("the kernel no longer reports %s", m.layer))
	}
	return reading
}

func (m *processMeter) uncertainty() memory.Bytes { return m.gauge.Uncertainty() }

// beyond reads RSS, the only layer whose peak the kernel reports. If the peak cannot be reset,
// beyond notices only new highest peaks.
func (m *processMeter) beyond() memory.Bytes {
	if err := m.sampler.Sample(0, &m.sample); err != nil {
		m.fails(err)
		return 0
	}
	peak, rss := m.sample.Get(memlayer.Peak), m.sample.Get(memory.RSS)
	if !peak.OK || !rss.OK {
		m.fails(errNoPeak)
		return 0
	}
	if err := m.sampler.ResetPeak(); err != nil {
		m.fails(notReset(err))
		if peak.Bytes <= m.stuck {
			return 0
		}
		m.stuck = peak.Bytes
	}
	return max(peak.Bytes-rss.Bytes, 0)
}

// peak includes opening TensorFlow, which takes more RSS than training a small model.
func (m *processMeter) peak() memory.Bytes {
	now, err := memory.Read()
	if err != nil || m.layer != memory.RSS {
		return 0
	}
	return now.Peak.Bytes
}

func (m *processMeter) trim() bool { return native.Trim() }

func (m *processMeter) unmapFrom(size memory.Bytes) error { return native.SetMmapThreshold(size) }

func (m *processMeter) collect() { debug.FreeOSMemory() }

func (m *processMeter) close() error { return errors.Join(m.gauge.Close(), m.sampler.Close()) }
