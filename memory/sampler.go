package memory

import (
	"fmt"
	"os"
	"runtime/metrics"
	"time"
)

// Source adds layers to each sample, such as an allocator's statistics, counts of live objects,
// or the memory of a GPU. Sample is called once per sample, from the sampling goroutine, and
// should not allocate.
type Source interface {
	// Sample calls add once for every layer of the source, always in the same order, with an
	// unknown Reading if there is no value. It must not retain add.
	Sample(add func(Layer, Reading))
}

// SourceFunc makes a [Source] of a function.
type SourceFunc func(add func(Layer, Reading))

// Sample calls f.
func (f SourceFunc) Sample(add func(Layer, Reading)) { f(add) }

// SamplerOptions configure a Sampler. The zero value samples this process.
type SamplerOptions struct {
	// PID is the process ID; 0 means this process. Another process has no layers of the Go
	// runtime. Sources always report this process.
	PID int
	// PSS adds the proportional set size to each sample. The kernel then reads all pages of the
	// process, which takes about 75 us plus a millisecond per GiB.
	PSS bool
	// Sources add further layers.
	Sources []Source
}

// Sampler takes samples of one process. It keeps the files of /proc open, so a sample costs
// about 12 us without sources, and does not allocate. It is for one goroutine at a time and
// must be closed.
type Sampler struct {
	options SamplerOptions
	process process
	group   group
	// metrics is empty for another process.
	metrics []metrics.Sample

	into *Sample // the destination of add during a call of Sample
	next int     // the expected index of the next value
	add  func(Layer, Reading)

	lastStep int
	lastEnd  time.Time
}

// NewSampler opens a sampler. The error is ErrEnded if there is no such process, or
// ErrUnavailable if the system reports nothing.
func NewSampler(options SamplerOptions) (*Sampler, error) {
	s := &Sampler{options: options}
	s.add = s.set
	own := options.PID == 0 || options.PID == os.Getpid()
	pid := options.PID
	if own {
		pid = os.Getpid()
	}
	if err := s.process.open(pid); err != nil {
		return nil, err
	}
	s.group.open(pid)
	if own {
		s.metrics = goMetrics()
	}
	return s, nil
}

// Sample takes a sample and overwrites into, whose memory it reuses. step is the number of
// steps done. Layers that this machine or process does not have are unknown.
//
// The error is ErrEnded if the process has ended, even if its parent has not collected it yet.
// Sources are read nevertheless.
func (s *Sampler) Sample(step int, into *Sample) error {
	begin := time.Now()
	into.Step, into.At = step, begin
	s.into, s.next = into, 0

	u, err := s.process.usage()
	s.set(RSS, u.RSS)
	s.set(Anon, u.Anon)
	s.set(File, u.File)
	s.set(Shared, u.shared)
	s.set(Swap, u.swap)
	s.set(Peak, u.Peak)
	s.set(Threads, u.threads)
	if s.options.PSS {
		s.set(PSS, s.process.pss())
	}
	used, limit := s.group.read()
	s.set(CgroupUsed, used)
	s.set(CgroupLimit, limit)
	s.goRuntime()
	for _, source := range s.options.Sources {
		source.Sample(s.add)
	}
	var perStep Reading
	if !s.lastEnd.IsZero() && step > s.lastStep {
		perStep = Known(Bytes(begin.Sub(s.lastEnd)) / Bytes(step-s.lastStep))
	}
	s.set(StepTime, perStep)
	into.Values = into.Values[:s.next]
	s.into = nil
	s.lastStep, s.lastEnd = step, time.Now()
	return err
}

// set writes the next value.
func (s *Sampler) set(layer Layer, r Reading) {
	if s.next < len(s.into.Values) {
		s.into.Values[s.next] = Value{layer, r}
	} else {
		s.into.Values = append(s.into.Values, Value{layer, r})
	}
	s.next++
}

// ResetPeak resets the layer Peak to the current RSS, by writing 5 to /proc/PID/clear_refs
// (Linux 4.0). The error is ErrUnavailable if the system refuses; Peak then still counts from
// the start of the process.
func (s *Sampler) ResetPeak() error { return s.process.resetPeak() }

// Close closes the files. Sample must not be called afterwards.
func (s *Sampler) Close() error {
	s.group.close()
	if err := s.process.close(); err != nil {
		return fmt.Errorf("memory sampler: %w", err)
	}
	return nil
}

// The indices of goMetrics.
const (
	metricObjects = iota
	metricLive
	metricTotal
	metricReleased
	metricGoroutines
	metricCleanupsQueued
	metricCleanupsRun
	metricFinalizersQueued
	metricFinalizersRun
	metricCycles
)

func goMetrics() []metrics.Sample {
	return []metrics.Sample{
		metricObjects:          {Name: "/memory/classes/heap/objects:bytes"},
		metricLive:             {Name: "/gc/heap/live:bytes"},
		metricTotal:            {Name: "/memory/classes/total:bytes"},
		metricReleased:         {Name: "/memory/classes/heap/released:bytes"},
		metricGoroutines:       {Name: "/sched/goroutines:goroutines"},
		metricCleanupsQueued:   {Name: "/gc/cleanups/queued:cleanups"},
		metricCleanupsRun:      {Name: "/gc/cleanups/executed:cleanups"},
		metricFinalizersQueued: {Name: "/gc/finalizers/queued:finalizers"},
		metricFinalizersRun:    {Name: "/gc/finalizers/executed:finalizers"},
		metricCycles:           {Name: "/gc/cycles/total:gc-cycles"},
	}
}

func (s *Sampler) goRuntime() {
	var heap, live, total, waiting, cycles, goroutines Reading
	if len(s.metrics) > 0 {
		metrics.Read(s.metrics)
		heap, live = s.metric(metricObjects), s.metric(metricLive)
		cycles, goroutines = s.metric(metricCycles), s.metric(metricGoroutines)
		total = minus(s.metric(metricTotal), s.metric(metricReleased))
		waiting = minus(s.metric(metricCleanupsQueued), s.metric(metricCleanupsRun))
		if f := minus(s.metric(metricFinalizersQueued), s.metric(metricFinalizersRun)); waiting.OK && f.OK {
			waiting.Bytes += f.Bytes
		}
	}
	s.set(GoHeap, heap)
	s.set(GoLive, live)
	s.set(GoTotal, total)
	s.set(CleanupCount, waiting)
	s.set(GCCycles, cycles)
	s.set(Goroutines, goroutines)
}

func (s *Sampler) metric(i int) Reading {
	// A metric that this version of Go does not have is of kind KindBad.
	if v := s.metrics[i].Value; v.Kind() == metrics.KindUint64 {
		return Known(Bytes(v.Uint64()))
	}
	return Reading{}
}

// minus returns a-b, but at least 0, since the two are read at different times.
func minus(a, b Reading) Reading {
	if !a.OK || !b.OK {
		return Reading{}
	}
	return Known(max(a.Bytes-b.Bytes, 0))
}
