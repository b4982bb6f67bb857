package autotune

import (
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/resolved"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

const (
	// share is the part of a training's time that trials may take.
	share = 0.02
	// minTime is the least time for which trials begin, since two processes have to open TensorFlow and
	// the model, and to warm up.
	minTime = 1500 * time.Millisecond
	// leastStep is less than the time of any step. The fastest measured step took 58 us, on a dense
	// model of 64 units, with XLA and one thread. copiedBytes is an upper bound of the bytes per
	// second at which a batch is copied.
	leastStep   = 50 * time.Microsecond
	copiedBytes = 20e9
)

// maxTime is the maximum time of trials.
var maxTime = 20 * time.Second

// Plan describes a training for which to choose a configuration.
type Plan struct {
	// Model is the model to train. Options are the options of its session before a choice.
	Model   *savedmodels.Model
	Options session.Options
	// Limits restrict the choice.
	Limits Limits
	// Data is the training data, of which trials use the first 64 MiB. Batch is the number of
	// samples per step.
	Data  data.Dataset
	Batch int
	// Steps is the number of train steps to do; 0 means unknown.
	Steps int64
	// LearningRate is the learning rate for a model that takes one.
	LearningRate float64
	// Budgeted is true for a training with a memory budget (package budget).
	Budgeted bool
	// Cache is the folder of earlier measurements, such as CacheDir(); empty disables the
	// cache.
	Cache string

	// searches is true for a search of Run: plain steps need not run, and each trial is stored.
	searches bool
}

// least returns a lower bound of the time of a step: leastStep plus the time to copy the batch.
func (p *Plan) least() time.Duration {
	return leastStep + seconds(float64(batchBytes(p.Data, p.Batch))/copiedBytes)
}

// allowed returns the maximum time of the trials for a given time per step.
func (p *Plan) allowed(step time.Duration) time.Duration {
	if p.Steps <= 0 {
		return maxTime
	}
	return time.Duration(min(share*float64(p.Steps)*float64(step), float64(maxTime)))
}

// batchBytes returns the size of a batch in bytes.
func batchBytes(ds data.Dataset, batch int) int64 { return data.Prefetch(ds, 0).PassBytes(batch) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Limits are the kinds of configurations that Choose may return. The zero value allows only
// plain steps. The model can exclude more. An option of the session that differs from its default keeps its value.
type Limits struct {
	// StepsPerExecution is the number of steps that can run without a pause, such as the steps
	// of an epoch. Below 2, each step is an execution.
	StepsPerExecution int
	// Compiled allows XLA-compiled signatures, which round differently than plain steps.
	Compiled bool
	// Threads allows another executor and other numbers of threads, some of which round
	// differently. It also lets trials choose the calling thread (Live).
	Threads bool
	// Restart allows another allocator and, with OneDNN, the opposite of the present use of
	// oneDNN, which rounds differently. The caller must then restart its program with the
	// variables of Configuration.Environment.
	Restart, OneDNN bool
}

// ThreadsSet reports whether the options or the environment set TensorFlow's threads. Float16 does, too, since
// resolving it initializes TensorFlow's devices with their threads.
func ThreadsSet(o session.Options) bool {
	d := o.Device
	return d.IntraThreads != 0 || d.InterThreads != 0 || d.Deterministic ||
		d.Precision != "" && d.Precision != gpuopts.BFloat16 ||
		os.Getenv("TF_NUM_INTRAOP_THREADS")+os.Getenv("TF_NUM_INTEROP_THREADS") != ""
}

// under returns the limits reduced by the options and the environment.
func (l Limits) under(o session.Options) Limits {
	if o.StepsPerExecution != 0 {
		l.StepsPerExecution = 0
	}
	l.Compiled = l.Compiled && !o.Compiled && !o.Device.Deterministic
	l.OneDNN = l.OneDNN && l.Restart && o.Device.OneDNN == "" && !o.Device.Deterministic
	l.Threads = l.Threads && !ThreadsSet(o)
	return l
}

// Within returns the configuration without the parts that the limits, the options of the
// session or the environment exclude.
func (c Configuration) Within(l Limits, o session.Options) Configuration {
	l = l.under(o)
	if l.StepsPerExecution < 2 {
		c.StepsPerExecution = 0
	}
	c.Compiled = c.Compiled && l.Compiled
	if !l.Threads || c.tooLate(o) != nil {
		c.Executor, c.IntraThreads, c.InterThreads = "", 0, 0
	}
	if missing, err := (Configuration{Allocator: c.Allocator}).Environment(); err != nil || len(missing) > 0 &&
		!l.Restart {
		c.Allocator = ""
	}
	if missing, err := (Configuration{OneDNN: c.OneDNN}).Environment(); err != nil || len(missing) > 0 && !l.OneDNN {
		c.OneDNN = ""
	}
	return c
}

// tooLate returns gpuopts.ErrTooLate if an earlier session of this process has set up TensorFlow's
// threads differently. o are the options of the session before the choice.
func (c Configuration) tooLate(o session.Options) error {
	first, _, opened := tfprocess.FirstSession()
	if !opened || c.threads().Plain() {
		return nil
	}
	config, err := c.threads().Apply(o).Device.ConfigProto()
	if err != nil {
		return err
	}
	return resolved.Later(first, config)
}

// space has the values from which configurations are composed: at most one of bases, and at most one of
// each group of settings.
type space struct {
	bases                       []Configuration
	prefetch, threads, memories []Configuration
}

// fastSpace returns the values from which Choose composes configurations: those that the plan allows
// and its options do not already set. The errors are those of session.Compile. TensorFlow must be open.
func (p *Plan) fastSpace() (s space, err error) {
	plan, err := session.Compile(p.Model, p.Options)
	if err != nil {
		return s, err
	}
	l := p.Limits.under(p.Options)
	s.bases = p.bases(plan, l)
	s.threads = p.threads(l)
	if c, ok := p.otherOneDNN(); ok && l.OneDNN {
		s.memories = append(s.memories, c)
	}
	s.memories = append(s.memories, p.allocators(tfprocess.Jemalloc)...)
	return s, nil
}

// goalSpace returns the values from which Run composes configurations.
func (p *Plan) goalSpace() (s space, err error) {
	if s, err = p.fastSpace(); err != nil {
		return s, err
	}
	if p.Options.MicroBatches < 2 {
		s.bases = append(p.split(), s.bases...)
	}
	for i := range s.threads {
		s.threads[i].Executor = "" // fit has no flag for it
	}
	s.prefetch = []Configuration{{NoPrefetch: true}}
	// Allocators and oneDNN are one group: both decide where memory comes from, so an effect of one
	// depends on the other.
	allocators := p.allocators(append(slices.Sorted(maps.Keys(tfprocess.Allocators)), tfprocess.Mmap)...)
	s.memories = allocators
	if c, ok := p.otherOneDNN(); ok && p.Limits.under(p.Options).OneDNN {
		for _, a := range append([]Configuration{{}}, allocators...) {
			s.memories = append(s.memories, a.over(c))
		}
	}
	return s, nil
}

// bases returns the configurations that differ from plain steps only in the signature or the steps
// per execution, most promising first.
func (p *Plan) bases(plan *session.Plan, l Limits) (bases []Configuration) {
	base := func(c Configuration) {
		with, err := session.Compile(p.Model, c.Apply(p.Options))
		if err == nil && with.Check(p.Batch, false) == nil {
			bases = append(bases, c)
		}
	}
	roles := plan.Roles()
	stack, compile := l.StepsPerExecution > 1, l.Compiled
	shape := dataShape(p.Model, roles.TrainNXLA)
	if stack && compile && len(shape) > 1 && shape[0] <= int64(l.StepsPerExecution) && shape[1] == int64(p.Batch) {
		base(Configuration{StepsPerExecution: int(shape[0]), Compiled: true})
	}
	if stack {
		if n, _ := plan.ChooseSteps(p.Data, p.Batch); n > 1 {
			base(Configuration{StepsPerExecution: min(n, l.StepsPerExecution)})
		}
	}
	if shape := dataShape(p.Model, roles.TrainXLA); compile && len(shape) > 0 && shape[0] == int64(p.Batch) {
		base(Configuration{Compiled: true})
	}
	return bases
}

// threads returns the settings of the executor and its threads. It leaves out those that an earlier
// session of this process excludes.
func (p *Plan) threads(l Limits) (settings []Configuration) {
	if d := p.Options.Device; !l.Threads || d.Executor != "" || d.PerSessionThreads {
		return nil
	}
	single := Configuration{Executor: gpuopts.SingleThreaded, IntraThreads: 1, InterThreads: 1}
	for _, c := range []Configuration{single, {IntraThreads: 1}} {
		if c.tooLate(p.Options) == nil {
			settings = append(settings, c)
		}
	}
	return settings
}

// otherOneDNN returns the opposite of the present use of oneDNN; ok is false if the options
// exclude it. TensorFlow must be open.
func (p *Plan) otherOneDNN() (c Configuration, ok bool) {
	on, known := tfprocess.OneDNN()
	c.OneDNN = "on"
	if on {
		c.OneDNN = "off"
	}
	_, err := c.Apply(p.Options).Device.Check(nil)
	return c, known && err == nil
}

// dataShape returns the shape of the first data input of a signature; nil if there is none.
func dataShape(m *savedmodels.Model, signature string) []int64 {
	sig, err := m.Signature(signature)
	if signature == "" || err != nil || len(sig.DataInputs()) == 0 {
		return nil
	}
	return sig.DataInputs()[0].Shape
}

// over returns the configuration with its zero fields taken from base. ok is false if the options
// of the plan exclude the combination.
func (p *Plan) over(c, base Configuration) (both Configuration, ok bool) {
	both = c.over(base)
	_, err := both.Apply(p.Options).Device.Check(nil)
	return both, err == nil
}

// inexact reports whether micro-batches change the update of the model.
func (p *Plan) inexact() bool {
	exact := p.Options
	exact.AllowInexactSplit = false
	plan, err := session.Compile(p.Model, exact)
	return err == nil && errors.Is(plan.CheckSplit(), session.ErrInexactSplit)
}

// split returns the numbers of micro-batches to measure: for each power of two, the next number
// that divides the batch, because micro-batches of two sizes take memory for both.
func (p *Plan) split() (bases []Configuration) {
	plan, err := session.Compile(p.Model, p.Options)
	if err != nil || plan.CheckSplit() != nil {
		return nil
	}
	for n := 2; n <= p.Batch; n *= 2 {
		parts := n
		for d := n; d < 2*n && d <= p.Batch; d++ {
			if p.Batch%d == 0 {
				parts = d
				break
			}
		}
		c := Configuration{MicroBatches: parts}
		if _, err := session.Compile(p.Model, c.Apply(p.Options)); err == nil {
			bases = append(bases, c)
		}
	}
	return bases
}

// allocators returns the installed allocators of these names that the process does not use, unless the
// limits or a variable exclude them.
func (p *Plan) allocators(names ...string) (settings []Configuration) {
	if !p.Limits.Restart {
		return nil
	}
	for _, name := range names {
		c := Configuration{Allocator: name}
		if missing, err := c.Environment(); err == nil && len(missing) > 0 {
			settings = append(settings, c)
		}
	}
	return settings
}
