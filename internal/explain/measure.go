package explain

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"steadyfit/data"
	"steadyfit/internal/native"
	"steadyfit/internal/stats"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Plan describes a training to explain.
type Plan struct {
	// Name is the name of the model in the report.
	Name    string
	Model   *savedmodels.Model
	Options session.Options
	// OpenData reads the training data, and LoadTensorFlow loads the library. Measure calls them in
	// this order and closes the data.
	OpenData       func() (*data.InMemory, error)
	LoadTensorFlow func() error
	// Batch is the number of samples of a step, at most that of the dataset, and Prefetch the number of batches to read ahead; -1
	// means data.AheadFor.
	Batch, Prefetch int
	// Mappable is true if the data is in files that can be mapped instead of read.
	Mappable bool
	// LearningRate is the rate for a model that takes one; 0 keeps the model's own.
	LearningRate float64
	// Time limits the steps that show whether memory grows.
	Time time.Duration
	// EachStep runs after each step unless it is nil; tests hold memory with it.
	EachStep func(step int)
}

const (
	// warmUp is the number of first steps: TensorFlow rewrites graphs in the first step, and
	// allocates its buffers in the second.
	warmUp = 5
	// firstSteps is the number of steps before the first verdict on growth, which takes at least
	// this part of the time, and mostSteps the maximum.
	leastTime             = 5
	firstSteps, mostSteps = 256, 4096
	// tolerated is the growth in all steps that does not count as growth.
	tolerated = memory.MiB
	// peaks is the number of steps whose peak is measured.
	peaks = 5
)

// phase is the memory after a phase.
type phase struct {
	regions
	malloc tfbind.Malloc
	// metadata is the memory of the Go runtime outside of its arenas.
	metadata memory.Bytes
	// buffers is the size of input buffers, tensors that of the tensors that the program has open.
	buffers, tensors memory.Bytes
	steps, open      int64 // their numbers
}

func readPhase() (p phase, err error) {
	p.regions, err = readRegions()
	p.malloc, _ = tfbind.MallocInfo()
	p.metadata = goMetadata()
	live := tfbind.Live()
	p.buffers, p.tensors, p.steps, p.open = memory.Bytes(live.StepBytes), memory.Bytes(live.TensorBytes), live.Steps, live.Tensors
	return p, err
}

// goMetadata returns the memory of the Go runtime that is neither in arenas nor returned to the system.
func goMetadata() (sum memory.Bytes) {
	var samples []metrics.Sample
	for _, d := range metrics.All() {
		if strings.HasPrefix(d.Name, "/memory/classes/") && !strings.HasPrefix(d.Name, "/memory/classes/heap/") && d.Name != "/memory/classes/total:bytes" {
			samples = append(samples, metrics.Sample{Name: d.Name})
		}
	}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += memory.Bytes(s.Value.Uint64())
		}
	}
	return sum
}

// measurement is what Measure reads.
type measurement struct {
	plan        Plan
	data        *data.InMemory
	ahead       *data.Prefetched
	session     *session.Session
	next        func() (data.Batch, error, bool)
	out         []float64
	steps       int
	times       []float64
	start       phase // before TensorFlow was loaded
	loaded      phase // after TensorFlow was loaded
	opened      phase // after the model was opened
	before      phase // before the explained step
	peak        memory.Bytes
	processPeak memory.Bytes
	trace       native.Trace
	growth      memory.Verdict
	sampler     *memory.Sampler
	series      memory.Series
	sample      memory.Sample
	samples     Samples
}

// Measure trains in this process and returns the report. The process must be new; see [Run]. The error is
// memory.ErrUnavailable if the system does not report the memory of a process by mappings, or does not
// reset its peak.
func Measure(ctx context.Context, p Plan) (r *Report, err error) {
	m := &measurement{plan: p}
	if m.data, err = p.OpenData(); err != nil {
		return nil, err
	}
	m.plan.Batch = min(p.Batch, m.data.Len())
	closers := []io.Closer{m.data}
	defer func() {
		for _, c := range slices.Backward(closers) {
			err = cmp.Or(err, c.Close())
		}
	}()
	if m.start, err = readPhase(); err != nil {
		return nil, err
	}
	if err := p.LoadTensorFlow(); err != nil {
		return nil, err
	}
	if m.loaded, err = readPhase(); err != nil {
		return nil, err
	}
	if m.session, err = session.OpenModel(ctx, p.Model, p.Options); err != nil {
		return nil, err
	}
	closers = append(closers, m.session)
	if m.opened, err = readPhase(); err != nil {
		return nil, err
	}
	if p.LearningRate > 0 {
		if err := m.session.SetLearningRate(p.LearningRate); err != nil {
			return nil, err
		}
	}
	if m.sampler, err = memory.NewSampler(memory.SamplerOptions{Sources: []memory.Source{native.Source()}}); err != nil {
		return nil, err
	}
	closers = append(closers, m.sampler)
	ahead := p.Prefetch
	if ahead < 0 {
		ahead = data.AheadFor(m.data, m.plan.Batch)
	}
	m.ahead = data.Prefetch(m.data, ahead)
	m.out = make([]float64, len(m.session.TrainMetrics()))
	var stop func()
	m.next, stop = iter.Pull2(endless(m.ahead, m.plan.Batch))
	defer stop()
	for _, do := range []func(context.Context) error{m.grow, m.findPeak, m.traceStep} {
		if err := do(ctx); err != nil {
			return nil, err
		}
	}
	return m.report(), nil
}

// endless repeats the passes over a dataset.
func endless(ds data.Dataset, batch int) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		for epoch := 0; ; epoch++ {
			for b, err := range ds.Batches(data.Pass{Batch: batch, Epoch: epoch, DropRemainder: true}) {
				if !yield(b, err) || err != nil {
					return
				}
			}
		}
	}
}

func (m *measurement) step(ctx context.Context) error {
	b, err, _ := m.next()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := m.session.Train(ctx, int64(m.steps), b, m.out); err != nil {
		return err
	}
	m.times = append(m.times, time.Since(start).Seconds())
	m.steps++
	if m.plan.EachStep != nil {
		m.plan.EachStep(m.steps)
	}
	return context.Cause(ctx)
}

// grow samples between steps until the verdict is clear or the time is over.
func (m *measurement) grow(ctx context.Context) error {
	// These slices are written at once, so that their pages do not appear as growth.
	m.times = slices.Repeat([]float64{1}, warmUp+mostSteps+peaks)[:0]
	m.samples = Samples{slices.Repeat([]int{1}, mostSteps)[:0], slices.Repeat([]memory.Bytes{1}, mostSteps)[:0]}
	// The size of the live heap is that of the last collection, which must not be older than the data.
	runtime.GC()
	for range warmUp {
		if err := m.step(ctx); err != nil {
			return err
		}
	}
	start := time.Now()
	end := start.Add(m.plan.Time)
	for target, first := firstSteps, m.steps; ; {
		for m.steps-first < target && time.Now().Before(end) {
			if err := m.step(ctx); err != nil {
				return err
			}
			if err := m.sampler.Sample(m.steps, &m.sample); err != nil {
				return err
			}
			m.keep()
			if m.steps-first == target && target < mostSteps && time.Since(start) < m.plan.Time/leastTime {
				target++
			}
		}
		m.growth = m.series.Judge(memory.Criteria{Budget: tolerated / memory.Bytes(max(m.steps-first, 1))})
		settle(&m.growth)
		if m.growth.Kind != memory.Inconclusive || target >= mostSteps || !time.Now().Before(end) {
			return nil
		}
		target = min(target+int(math.Min(math.Max(m.growth.More, float64(target)/2), float64(3*target))), mostSteps)
	}
}

// settle removes the cause of a growth that has ended. A growth of freed memory that malloc keeps, or of
// Go's memory while its live heap does not grow, is undecided: it usually levels off after some hundred
// steps or some collections.
func settle(v *memory.Verdict) {
	if v.Kind == memory.Leak {
		reason, undecided := map[memory.Cause]string{
			memory.Retention: "malloc keeps more freed memory, which usually levels off",
			memory.GoRuntime: "the Go runtime keeps more memory, but its live heap does not grow",
		}[v.Cause]
		if !undecided {
			return
		}
		v.Kind, v.Reason, v.More = memory.Inconclusive, reason, v.To-v.From
	}
	v.Cause, v.Carrier = "", ""
}

// keep keeps a sample.
func (m *measurement) keep() {
	m.series.Append(&m.sample)
	m.samples.Steps = append(m.samples.Steps, m.steps)
	m.samples.Anon = append(m.samples.Anon, m.sample.Get(memory.Anon).Bytes)
}

// thin keeps at most most samples, evenly.
func (s Samples) thin(most int) (t Samples) {
	every := max((len(s.Steps)+most-1)/most, 1)
	for i := 0; i < len(s.Steps); i += every {
		t.Steps, t.Anon = append(t.Steps, s.Steps[i]), append(t.Anon, s.Anon[i])
	}
	return t
}

// findPeak measures the peak of some steps and keeps the highest one.
func (m *measurement) findPeak(ctx context.Context) error {
	usage, err := memory.Read()
	if err != nil {
		return err
	}
	m.processPeak = usage.Peak.Bytes
	for range peaks {
		before, err := readPhase()
		if err != nil {
			return err
		}
		if err := m.sampler.ResetPeak(); err != nil {
			return err
		}
		if err := m.step(ctx); err != nil {
			return err
		}
		if err := m.sampler.Sample(m.steps, &m.sample); err != nil {
			return err
		}
		peak := m.sample.Get(memory.Peak)
		if !peak.OK {
			return fmt.Errorf("%w: the system reports no peak", memory.ErrUnavailable)
		}
		if peak.Bytes > m.peak {
			m.peak, m.before = peak.Bytes, before
		}
	}
	m.processPeak = max(m.processPeak, m.peak)
	return nil
}

func (m *measurement) traceStep(ctx context.Context) error {
	b, err, _ := m.next()
	if err != nil {
		return err
	}
	metadata, err := m.session.Trace(ctx, int64(m.steps), b, m.out)
	if err != nil {
		return err
	}
	m.trace, err = native.ReadTrace(metadata)
	return err
}

func (m *measurement) report() *Report {
	info, _ := tfbind.Load("") // it is loaded
	oneDNN, _ := tfbind.OneDNN()
	r := &Report{
		Model: m.plan.Name, Data: m.data.Name(), Batch: m.plan.Batch,
		TensorFlow: info.Version, OneDNN: oneDNN, Malloc: native.Allocator(), OnGPU: m.onGPU(),
		PeakBytes: m.peak, BeforeBytes: m.before.total(), AnonBytes: m.before.anonymous, ProcessPeakBytes: m.processPeak,
		Steps: m.steps, StepSeconds: stats.Median(m.times),
		Growth: m.growth, GrowthText: m.growth.String(), Samples: m.samples.thin(400),
	}
	operations := classify(m.trace.Allocations)
	r.Timeline = newTimeline(operations)
	r.Parts = m.parts(operations)
	m.advise(r)
	return r
}
