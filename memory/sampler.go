package memory

import (
	"fmt"
	"os"
	"runtime/metrics"
	"time"

	"steadyfit/internal/memlayer"
)

// Source adds layers to each sample, such as allocator statistics, counts of live objects or GPU
// memory. It calls add for each of its layers, always in the same order, with an unknown Reading if a
// layer has no value. It must not retain add, and should not allocate.
type Source func(add func(Layer, Reading))

// Sampler takes samples of one process. A sample takes about 12 us without sources and does not
// allocate. Sampler is for one goroutine at a time, and must be closed.
type Sampler struct {
	sources []Source
	process process
	buffer  [statusSize]byte
	// metrics is empty for another process.
	metrics []metrics.Sample

	into *Sample // destination of set during Sample
	next int     // expected index of the next value in into
	add  func(Layer, Reading)

	lastStep int
	lastEnd  time.Time
}

// NewSampler opens the files of a process; 0 means this process. Another process has no Go runtime
// layers, and sources always describe this process. If there is no such process, the error is
// os.ErrProcessDone; if the system reports nothing, it is ErrUnavailable.
func NewSampler(pid int, sources ...Source) (*Sampler, error) {
	s := &Sampler{sources: sources}
	s.add = s.set
	if pid == os.Getpid() {
		pid = 0
	}
	if err := s.process.open(pid); err != nil {
		return nil, err
	}
	if pid == 0 {
		for _, m := range goMetrics {
			s.metrics = append(s.metrics, metrics.Sample{Name: m.name})
		}
	}
	return s, nil
}

// Sample overwrites into with a new sample, and reuses its memory. step is the number of steps done.
// If the process has ended, the error is os.ErrProcessDone; the sources are read even then.
func (s *Sampler) Sample(step int, into *Sample) error {
	begin := time.Now()
	into.Step, into.At = step, begin
	s.into, s.next = into, 0

	u, err := s.process.usage(s.buffer[:])
	s.set(RSS, u.RSS)
	s.set(Anon, u.Anon)
	s.set(memlayer.File, u.File)
	s.set(memlayer.Shared, u.shared)
	s.set(memlayer.Swap, u.swap)
	s.set(memlayer.Peak, u.Peak)
	s.set(memlayer.Threads, u.threads)
	s.goRuntime()
	for _, source := range s.sources {
		source(s.add)
	}
	var perStep Reading
	if !s.lastEnd.IsZero() && step > s.lastStep {
		perStep = Known(Bytes(begin.Sub(s.lastEnd)) / Bytes(step-s.lastStep))
	}
	s.set(memlayer.StepTime, perStep)
	into.Values = into.Values[:s.next]
	s.into = nil
	s.lastStep, s.lastEnd = step, time.Now()
	return err
}

// set writes the next value of the sample.
func (s *Sampler) set(layer Layer, r Reading) {
	if s.next < len(s.into.Values) {
		s.into.Values[s.next] = Value{layer, r}
	} else {
		s.into.Values = append(s.into.Values, Value{layer, r})
	}
	s.next++
}

// ResetPeak sets the layer "peak rss" to the current RSS by writing 5 to /proc/PID/clear_refs (Linux 4.0). If
// the system refuses, the error is ErrUnavailable and the peak still counts from the start of the process.
func (s *Sampler) ResetPeak() error { return s.process.resetPeak() }

// Close closes the files. Do not call Sample afterwards.
func (s *Sampler) Close() error {
	if err := s.process.close(); err != nil {
		return fmt.Errorf("memory sampler: %w", err)
	}
	return nil
}

type goMetric struct {
	layer Layer
	sign  Bytes
	name  string
}

// goMetrics are the metrics of the Go runtime. A layer is the sum of its metrics, each multiplied
// by its sign.
var goMetrics = []goMetric{
	{memlayer.GoHeap, 1, "/memory/classes/heap/objects:bytes"},
	{memlayer.GoLive, 1, "/gc/heap/live:bytes"},
	{memlayer.GoTotal, 1, "/memory/classes/total:bytes"},
	{memlayer.GoTotal, -1, "/memory/classes/heap/released:bytes"},
	{memlayer.CleanupCount, 1, "/gc/cleanups/queued:cleanups"},
	{memlayer.CleanupCount, -1, "/gc/cleanups/executed:cleanups"},
	{memlayer.CleanupCount, 1, "/gc/finalizers/queued:finalizers"},
	{memlayer.CleanupCount, -1, "/gc/finalizers/executed:finalizers"},
	{memlayer.GCCycles, 1, "/gc/cycles/total:gc-cycles"},
	{memlayer.Goroutines, 1, "/sched/goroutines:goroutines"},
}

func (s *Sampler) goRuntime() {
	own := len(s.metrics) > 0
	if own {
		metrics.Read(s.metrics)
	}
	for i := 0; i < len(goMetrics); {
		layer, sum, known := goMetrics[i].layer, Bytes(0), own
		for ; i < len(goMetrics) && goMetrics[i].layer == layer; i++ {
			// KindBad means that this version of Go does not have the metric.
			if known = known && s.metrics[i].Value.Kind() == metrics.KindUint64; known {
				sum += goMetrics[i].sign * Bytes(s.metrics[i].Value.Uint64())
			}
		}
		r := Reading{}
		if known {
			r = Known(max(sum, 0)) // the metrics of a layer are read at slightly different times
		}
		s.set(layer, r)
	}
}
