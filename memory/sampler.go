package memory

import (
	"fmt"
	"os"
	"runtime/metrics"
	"time"
)

// Source adds layers to each sample: an allocator's own figures, counters of
// live objects, the memory of a GPU. Its Sample is called once per sample, from
// the goroutine that samples, and should not allocate.
type Source interface {
	// Sample calls add once for every layer of the source, also for those that it
	// cannot tell now, with an unknown Reading. The order should stay the same.
	// It must not keep add.
	Sample(add func(Layer, Reading))
}

// SourceFunc is a function as a [Source].
type SourceFunc func(add func(Layer, Reading))

// Sample calls f.
func (f SourceFunc) Sample(add func(Layer, Reading)) { f(add) }

// SamplerOptions say what is sampled. The zero value samples this process.
type SamplerOptions struct {
	// PID is the process to ask about; 0 is this one. For another process the
	// layers of the Go runtime are absent, and sources speak for this one still.
	PID int
	// PSS adds the proportional set size to each sample. The kernel walks all pages
	// of the process for it: some 75 us for a small process, and more by about a
	// millisecond per GiB.
	PSS bool
	// Sources add layers.
	Sources []Source
}

// Sampler takes samples of one process. It keeps the files of /proc open, so a
// sample costs a few reads and no allocation: about 12 us without sources. It is
// for one goroutine at a time. Close it at the end.
type Sampler struct {
	options SamplerOptions
	process process
	group   group
	// metrics is empty for another process.
	metrics []metrics.Sample

	into *Sample // what add writes to, during a call of Sample
	next int     // where the next value is expected to go
	add  func(Layer, Reading)

	lastStep int
	lastEnd  time.Time
}

// NewSampler opens what it takes to sample a process. The error is ErrEnded if
// there is no such process, or ErrUnavailable if the system tells nothing.
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

// Sample takes a sample now and writes it to into, whose former content is
// overwritten and whose room is used again. step is the number of steps done.
// Layers that this machine or this process lacks are there and unknown.
//
// The error is ErrEnded when a process has ended, also if its parent has not
// collected it yet; sources have been asked nevertheless.
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
	perStep := Reading{}
	if !s.lastEnd.IsZero() && step > s.lastStep {
		perStep = Known(Bytes(begin.Sub(s.lastEnd)) / Bytes(step-s.lastStep))
	}
	s.set(StepTime, perStep)
	into.Values = into.Values[:s.next]
	s.into = nil
	s.lastStep, s.lastEnd = step, time.Now()
	return err
}

// set writes the next value. A sample that is filled again has the layers in
// the same place, so their names are not copied again.
func (s *Sampler) set(layer Layer, r Reading) {
	if s.next < len(s.into.Values) {
		s.into.Values[s.next] = Value{layer, r}
	} else {
		s.into.Values = append(s.into.Values, Value{layer, r})
	}
	s.next++
}

// ResetPeak makes the layer Peak begin anew at the present RSS, by writing 5 to
// /proc/PID/clear_refs (Linux 4.0; it needs the right to write to that process).
// The error is ErrUnavailable where the system refuses; Peak counts from the
// start of the process then.
func (s *Sampler) ResetPeak() error { return s.process.resetPeak() }

// Close gives the open files back. Sample must not be called any more.
func (s *Sampler) Close() error {
	s.group.close()
	if err := s.process.close(); err != nil {
		return fmt.Errorf("memory sampler: %w", err)
	}
	return nil
}

// The metrics that the layers of the Go runtime are made of, in the order in
// which goRuntime uses them.
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
	// A later Go may drop a metric; its kind is KindBad then.
	if v := s.metrics[i].Value; v.Kind() == metrics.KindUint64 {
		return Known(Bytes(v.Uint64()))
	}
	return Reading{}
}

// minus is a-b, at least 0: the two are not read at the same instant.
func minus(a, b Reading) Reading {
	if !a.OK || !b.OK {
		return Reading{}
	}
	return Known(max(a.Bytes-b.Bytes, 0))
}
