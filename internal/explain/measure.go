package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/internal/autotune"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/internal/stats"
	"steadyfit/internal/tfprocess"
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
	// Batch is the number of samples of a step, at most that of the dataset. Prefetch is the number of
	// batches to read ahead; -1 means autotune.Prefetch.
	Batch, Prefetch int
	// Shuffle shuffles the samples. ChooseSteps uses as many steps per execution as
	// session.Plan.ChooseSteps returns.
	Shuffle, ChooseSteps bool
	// Budgeted trains as with a budget of memory (package budget): one step per execution, and malloc
	// returns its free memory.
	Budgeted bool
	// LearningRate is the rate for a model that takes one; 0 keeps the model's own.
	LearningRate float64
	// Time limits the steps that show whether memory grows. Samples is the number of executions
	// before the first verdict; 0 means the number that a fifth of Time allows, but at least
	// firstSteps.
	Time    time.Duration
	Samples int
	// EachStep runs after each execution unless it is nil; tests hold memory with it.
	EachStep func(step int) error
}

const (
	// warmUp is the number of first steps: TensorFlow rewrites graphs in the first step, and
	// allocates its buffers in the second.
	warmUp = 5
	// The first verdict on growth comes after at least firstSteps executions and
	// Plan.Time/leastTime. mostSteps is the maximum number of executions.
	leastTime             = 5
	firstSteps, mostSteps = 256, 4096
	// tolerated is the total growth over all steps that is still reported as flat.
	tolerated = memory.MiB
	// peaks is the number of executions whose peak is measured.
	peaks = 5
)

// phase is the memory after a phase.
type phase struct {
	memory.Usage
	malloc tfbind.Malloc
	// goHeap is the memory of the Go runtime that is not returned to the system.
	goHeap memory.Bytes
	// buffers is the size of input buffers. tensors is the size of the tensors that the
	// program has open.
	buffers, tensors memory.Bytes
	steps, open      int64 // numbers of input buffers and of open tensors
}

func readPhase() (p phase, err error) {
	p.malloc, _ = tfbind.MallocInfo()
	live := tfbind.Live()
	p.buffers, p.tensors = memory.Bytes(live.StepBytes), memory.Bytes(live.TensorBytes)
	p.steps, p.open = live.Steps, live.Tensors
	amounts := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(amounts)
	p.goHeap = memory.Bytes(amounts[0].Value.Uint64() - amounts[1].Value.Uint64())
	p.Usage, err = memory.Read()
	if err == nil && !p.Anon.OK {
		err = fmt.Errorf("%w: the system does not report the anonymous memory of a process", memory.ErrUnavailable)
	}
	return p, err
}

// ofGo returns the resident memory of the Go runtime in a later phase: its size at the start plus the
// growth that the runtime reports. At the start, before TensorFlow is loaded, all anonymous memory outside
// malloc belongs to Go.
func (start *phase) ofGo(p *phase) memory.Bytes {
	return max(start.Anon.Bytes-memory.Bytes(max(start.malloc.Arenas, 0))+p.goHeap-start.goHeap, 0)
}

// measurement is what Measure reads.
type measurement struct {
	plan        Plan
	data        *data.InMemory
	session     *session.Session
	executions  *autotune.Executions
	times       []float64 // of a step, by execution
	start       phase     // before TensorFlow was loaded
	loaded      phase     // after TensorFlow was loaded
	opened      phase     // after the model was opened
	before      phase     // before the explained step
	peak        memory.Bytes
	processPeak memory.Bytes
	trace       native.Trace
	operations  []operation // of trace
	growth      memory.Verdict
	sampler     *memory.Sampler
	series      memory.Series
	sample      memory.Sample
	samples     Samples
}

// Measure trains in this process and returns the report. The process must be new. The error is
// memory.ErrUnavailable if the system does not report the memory of a process, or does not reset its peak.
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
	if p.ChooseSteps {
		if err := m.chooseSteps(); err != nil {
			return nil, err
		}
	}
	if m.session, err = m.open(ctx); err != nil {
		return nil, err
	}
	closers = append(closers, m.session)
	if m.opened, err = readPhase(); err != nil {
		return nil, err
	}
	if m.sampler, err = memory.NewSampler(0, native.Source()); err != nil {
		return nil, err
	}
	m.executions = m.begin()
	closers = append(closers, m.sampler, m.executions)
	for _, do := range []func(context.Context) error{m.grow, m.findPeak, m.traceStep} {
		if err := do(ctx); err != nil {
			return nil, err
		}
	}
	return m.report(), nil
}

func (m *measurement) chooseSteps() error {
	plan, err := session.Compile(m.plan.Model, m.plan.Options)
	if err == nil {
		m.plan.Options.StepsPerExecution, err = plan.ChooseSteps(m.data, m.plan.Batch)
	}
	if errors.Is(err, session.ErrStack) {
		return nil // steps run one by one
	}
	return err
}

// open opens a session. A training with a budget then makes malloc return memory.
func (m *measurement) open(ctx context.Context) (*session.Session, error) {
	s, err := session.OpenModel(ctx, m.plan.Model, m.plan.Options)
	if err == nil && m.plan.LearningRate > 0 {
		err = s.SetLearningRate(m.plan.LearningRate)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if m.plan.Budgeted {
		native.Trim()
		_ = native.SetMmapThreshold(tfprocess.MmapThreshold) // not every allocator has a threshold
	}
	return s, nil
}

// begin begins the training.
func (m *measurement) begin() *autotune.Executions {
	ds, batch, steps, ahead := m.data, m.plan.Batch, 1, m.plan.Prefetch
	if m.plan.Shuffle {
		ds = ds.Shuffle(0)
	}
	if ahead < 0 {
		ahead = autotune.Prefetch(ds, batch, m.plan.Budgeted)
	}
	if !m.plan.Budgeted {
		steps = m.session.Stackable(ds.Len()/batch, batch)
	}
	return autotune.NewExecutions(m.session, ds, batch, steps, ahead)
}

func (m *measurement) execute(ctx context.Context) error {
	start := time.Now()
	if err := m.executions.Run(ctx); err != nil {
		return err
	}
	m.times = append(m.times, time.Since(start).Seconds()/float64(m.executions.Steps))
	if m.plan.EachStep != nil {
		if err := m.plan.EachStep(m.steps()); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (m *measurement) steps() int { return int(m.executions.Done) }

// grow samples between steps until the verdict is clear or the time is over.
func (m *measurement) grow(ctx context.Context) error {
	// Writing these slices now makes their pages resident, so that they do not appear as growth
	// later.
	m.times = slices.Repeat([]float64{1}, warmUp+mostSteps+peaks)[:0]
	m.samples = Samples{slices.Repeat([]int{1}, mostSteps)[:0], slices.Repeat([]memory.Bytes{1}, mostSteps)[:0]}
	// The runtime reports the live heap of the last collection. Collect now, so that it includes the
	// data.
	runtime.GC()
	for range warmUp {
		if err := m.execute(ctx); err != nil {
			return err
		}
	}
	start := time.Now()
	end := start.Add(m.plan.Time)
	first := m.steps()
	for target := cmp.Or(m.plan.Samples, firstSteps); ; {
		for len(m.samples.Steps) < target && time.Now().Before(end) {
			if err := m.execute(ctx); err != nil {
				return err
			}
			if err := m.sampler.Sample(m.steps(), &m.sample); err != nil {
				return err
			}
			m.keep()
			if len(m.samples.Steps) == target && target < mostSteps && m.plan.Samples == 0 &&
				time.Since(start) < m.plan.Time/leastTime {
				target++
			}
		}
		m.growth = judge(&m.series, m.steps()-first)
		if m.growth.Kind != memory.Inconclusive || target >= mostSteps || !time.Now().Before(end) {
			return nil
		}
		more := m.growth.More / float64(m.executions.Steps)
		target = min(target+int(math.Min(math.Max(more, float64(target)/2), float64(3*target))), mostSteps)
	}
}

// judge judges the growth in some steps. Numbers of objects have no noise: if one of them grows, memory
// growth within the tolerance is not flat, but a leak or inconclusive.
func judge(s *memory.Series, steps int) memory.Verdict {
	v := s.Judge(memory.Criteria{Budget: tolerated / memory.Bytes(max(steps, 1))})
	counts := slices.IndexFunc(v.Trends, func(t memory.Trend) bool {
		return slices.Contains([]memory.Layer{memlayer.LiveCount, memlayer.GraphOperations, memlayer.Executors}, t.Layer) &&
			t.Slope.Low > 0
	})
	if v.Kind != memory.Leak && counts >= 0 {
		t := v.Trends[counts]
		if v = s.Judge(memory.Criteria{}); v.Kind != memory.Leak {
			v.Kind, v.More = memory.Inconclusive, v.To-v.From
			v.Reason = fmt.Sprintf("%s grows by %s, but memory hardly does", t.Layer,
				memlayer.Rate(t.Layer, v.Per, t.Slope.Estimate))
		}
	}
	settle(&v)
	return v
}

// settle clears Cause and Carrier of a verdict that is not a leak. A leak becomes Inconclusive if malloc
// keeps freed memory, or if Go's memory grows while its live heap does not: such growth usually levels
// off after some hundred steps or a few collections.
func settle(v *memory.Verdict) {
	if v.Kind == memory.Leak {
		reason, undecided := map[string]string{
			memlayer.Retention: "malloc keeps more freed memory, which usually levels off",
			memlayer.GoRuntime: "the Go runtime keeps more memory, but its live heap does not grow",
		}[v.Cause]
		if !undecided {
			return
		}
		v.Kind, v.Reason, v.More = memory.Inconclusive, reason, v.To-v.From
	}
	v.Cause, v.Carrier = "", ""
}

// keep adds the current sample to the series and to the samples of the report.
func (m *measurement) keep() {
	m.series.Append(&m.sample)
	m.samples.Steps = append(m.samples.Steps, m.steps())
	m.samples.Anon = append(m.samples.Anon, m.sample.Get(memory.Anon).Bytes)
}

// thin returns at most most samples, evenly spread.
func (s Samples) thin(most int) (t Samples) {
	every := max((len(s.Steps)+most-1)/most, 1)
	for i := 0; i < len(s.Steps); i += every {
		t.Steps, t.Anon = append(t.Steps, s.Steps[i]), append(t.Anon, s.Anon[i])
	}
	return t
}

// findPeak measures the peak of some executions and keeps the highest one.
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
		if err := m.execute(ctx); err != nil {
			return err
		}
		if err := m.sampler.Sample(m.steps(), &m.sample); err != nil {
			return err
		}
		peak := m.sample.Get(memlayer.Peak)
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

// traceStep traces an execution. With micro-batches, it keeps the trace of the signature that holds most
// memory.
func (m *measurement) traceStep(ctx context.Context) error {
	all, err := m.session.Trace(func() error { return m.executions.Run(ctx) })
	if err != nil {
		return err
	}
	allocators := map[string]native.Use{}
	most := memory.Bytes(-1)
	for _, metadata := range all {
		t, err := native.ReadTrace(metadata)
		if err != nil {
			return err
		}
		for name, use := range t.Allocators {
			if !allocators[name].Peak.OK {
				allocators[name] = use
			}
		}
		operations := classify(t.Allocations)
		if held, _ := peakOf(operations); held > most {
			most, m.trace, m.operations = held, t, operations
		}
	}
	m.trace.Allocators = allocators
	return nil
}

func (m *measurement) report() *Report {
	info, _ := tfbind.Load("") // the library is already loaded
	oneDNN, _ := tfprocess.OneDNN()
	r := &Report{
		Model: m.plan.Name, Data: m.data.Name(), Batch: m.plan.Batch,
		TensorFlow: info.Version, OneDNN: oneDNN, Malloc: native.Allocator(), OnGPU: m.onGPU(),
		PeakBytes: m.peak, BeforeBytes: m.before.RSS.Bytes, AnonBytes: m.before.Anon.Bytes, ProcessPeakBytes: m.processPeak,
		MicroBatches: m.session.MicroBatches(), StepsPerExecution: m.executions.Steps,
		Steps: m.steps(), StepSeconds: stats.Median(m.times),
		Growth: m.growth, GrowthText: m.growth.String(), Samples: m.samples.thin(400),
	}
	r.Timeline = newTimeline(m.operations)
	r.Parts = m.parts(m.operations)
	return r
}
