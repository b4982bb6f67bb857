package fit

import (
	"errors"
	"fmt"
	"runtime/debug"

	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// meter is the memory of the process, and what can be done about it at any time.
type meter interface {
	// level is what there is of the layer of the budget, and uncertainty how much more
	// there may be.
	level() memory.Reading
	uncertainty() memory.Bytes
	// beyond is how far the memory was above what it is now, at most, since the last
	// call.
	beyond() memory.Bytes
	// unread is what could not be read first; nil if all could.
	unread() error
	// trim has malloc give back what is free, and reports whether it could be asked;
	// collect does it for the Go runtime.
	trim() bool
	collect()
	// unmapFrom sets the size from which malloc returns a block to the system as soon as
	// it is freed.
	unmapFrom(size memory.Bytes) error
	close() error
}

const (
	// unmapLarge is the size from which TensorFlow's own pool would take a block
	// (mkl_cpu_allocator.h): nearly all that a step frees is in larger ones.
	unmapLarge = 256 * memory.KiB
	// unmapHuge is the highest threshold that glibc's own adjustment reaches.
	unmapHuge = session.MaxMmapThreshold
)

// peakSampler is what a memory.Sampler does for peaks.
type peakSampler interface {
	Sample(step int, s *memory.Sample) error
	ResetPeak() error
	Close() error
}

// processMeter is a meter of this process.
type processMeter struct {
	gauge   *memory.Gauge
	layer   memory.Layer // of the gauge
	sampler peakSampler
	sample  memory.Sample
	failed  error // what unread is
	// stuck is a peak that could not be made to begin anew.
	stuck memory.Bytes
}

func openMeter(layer memory.Layer) (meter, error) {
	gauge, err := memory.NewGauge(layer)
	if err != nil {
		return nil, &option.Error{Option: "Budget.Layer", Value: layer, Reason: err.Error(), Fix: "use rss, or another layer that this machine reports"}
	}
	sampler, err := memory.NewSampler(memory.SamplerOptions{})
	if err != nil {
		return nil, errors.Join(err, gauge.Close())
	}
	m := &processMeter{gauge: gauge, layer: layer, sampler: sampler}
	if err := m.sees(); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// sees refuses a machine on which the peak of a step is not told from those before it: a
// run would choose parts as if steps took nothing, and could not take that back.
func (m *processMeter) sees() error {
	blind := func(why string) error {
		return &option.Error{Option: "Budget.Limit", Reason: "the memory that a step takes cannot be measured on this machine, so no limit can be kept: " + why,
			Fix: "train with smaller batches and without a budget, or where the kernel reports the peak of a process and resets it"}
	}
	if err := m.sampler.Sample(0, &m.sample); err != nil {
		return blind(err.Error())
	}
	if !m.sample.Get(memory.Peak).OK || !m.sample.Get(memory.RSS).OK {
		return blind(errNoPeak.Error())
	}
	if err := m.sampler.ResetPeak(); err != nil {
		return blind(notAnew(err).Error())
	}
	return nil
}

// errNoPeak and notAnew are why peaks are not seen.
var errNoPeak = errors.New("the kernel does not tell the peak of RSS (VmHWM)")

func notAnew(err error) error {
	return fmt.Errorf("the peak of RSS cannot be made to begin anew: %w", err)
}

func (m *processMeter) unread() error { return m.failed }

// fails keeps the first error.
func (m *processMeter) fails(err error) {
	if m.failed == nil {
		m.failed = err
	}
}

func (m *processMeter) level() memory.Reading {
	reading := m.gauge.Read()
	if !reading.OK {
		m.fails(fmt.Errorf("the kernel no longer tells %s", m.layer))
	}
	return reading
}

func (m *processMeter) uncertainty() memory.Bytes { return m.gauge.Uncertainty() }

// beyond is that of RSS, the only layer whose peak the kernel tells. Where it does not
// let it begin anew, only a peak above all earlier ones is seen.
func (m *processMeter) beyond() memory.Bytes {
	if err := m.sampler.Sample(0, &m.sample); err != nil {
		m.fails(err)
		return 0
	}
	peak, rss := m.sample.Get(memory.Peak), m.sample.Get(memory.RSS)
	if !peak.OK || !rss.OK {
		m.fails(errNoPeak)
		return 0
	}
	if err := m.sampler.ResetPeak(); err != nil {
		m.fails(notAnew(err))
		if peak.Bytes <= m.stuck {
			return 0
		}
		m.stuck = peak.Bytes
	}
	return max(peak.Bytes-rss.Bytes, 0)
}

func (m *processMeter) trim() bool { return session.Trim() }

func (m *processMeter) unmapFrom(size memory.Bytes) error {
	if session.HasPool() {
		return errors.New("TensorFlow takes large blocks from a pool of its own")
	}
	return session.SetMmapThreshold(size)
}

func (m *processMeter) collect() { debug.FreeOSMemory() }

func (m *processMeter) close() error { return errors.Join(m.gauge.Close(), m.sampler.Close()) }
