package autotune

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/allocator"
	"steadyfit/internal/reexec"
	"steadyfit/internal/resolved"
	"steadyfit/internal/tfprocess"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// Configuration is a way to run the steps of a training. The zero value is plain: one step per
// execution, the signature as exported, and the settings of the options.
type Configuration struct {
	// MicroBatches has the meaning of session.Options; 0 means whole batches. Choose never sets it.
	MicroBatches int `json:"micro_batches,omitempty"`
	// StepsPerExecution is the number of steps of an execution; 0 means 1.
	StepsPerExecution int `json:"steps_per_execution,omitempty"`
	// Compiled uses the XLA-compiled signature.
	Compiled bool `json:"compiled,omitempty"`
	// Executor, IntraThreads and InterThreads have the meaning of gpuopts.Options; zero values
	// change nothing.
	Executor     string `json:"executor,omitempty"`
	IntraThreads int    `json:"intra_threads,omitempty"`
	InterThreads int    `json:"inter_threads,omitempty"`
	// OneDNN turns oneDNN on or off, and Allocator replaces malloc (a name of package allocator),
	// both with the variables of Environment.
	OneDNN    string `json:"onednn,omitempty"`
	Allocator string `json:"allocator,omitempty"`
	// Precision has the meaning of gpuopts.Options. It changes the results of the training.
	Precision gpuopts.Precision `json:"precision,omitempty"`
	// NoPrefetch disables reading batches ahead. Choose never sets it.
	NoPrefetch bool `json:"no_prefetch,omitempty"`
	// CachedFeatures trains on features: the results of the frozen part of the model, computed before
	// the first step. Choose never sets it.
	CachedFeatures bool `json:"cached_features,omitempty"`
}

// ChosenEnv is the environment variable that passes a Configuration to the restarted program, as JSON.
const ChosenEnv = "STEADYFIT_CHOSEN"

// Plain reports whether the configuration changes nothing.
func (c Configuration) Plain() bool { return c == Configuration{} }

// String returns the configuration in words, as in "50 steps per execution, XLA-compiled".
func (c Configuration) String() string {
	var words []string
	add := func(when bool, format string, args ...any) {
		if when {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(c.OneDNN != "", "oneDNN %s", c.OneDNN)
	add(c.CachedFeatures, "cached features")
	add(c.MicroBatches > 1, "%d micro-batches", c.MicroBatches)
	add(c.StepsPerExecution > 1, "%d steps per execution", c.StepsPerExecution)
	add(c.Compiled, "XLA-compiled")
	add(c.Executor != "", "single-threaded executor")
	add(c.Executor == "" && c.InterThreads > 0, "inter threads %d", c.InterThreads)
	add(c.IntraThreads > 0, "intra threads %d", c.IntraThreads)
	add(c.Allocator != "", "%s", c.Allocator)
	add(c.Precision != "", "%s", c.Precision)
	add(c.NoPrefetch, "no prefetching")
	return cmp.Or(strings.Join(words, ", "), "plain")
}

// Environment lists the variables that the configuration needs and this process does not have;
// reexec.With restarts the program with them. It returns an error if the allocator is not
// installed, or a variable of the allocator has another value.
func (c Configuration) Environment() (missing []gpuopts.Variable, err error) {
	oneDNN, err := gpuopts.Options{OneDNN: c.OneDNN}.Environment()
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	_, missing, err = gpuopts.With(env, oneDNN)
	if err != nil {
		missing = oneDNN // the restart replaces the present value
	}
	if c.Allocator == "" {
		return missing, nil
	}
	wanted, err := c.allocatorVariables()
	if err != nil {
		return nil, err
	}
	_, preload, err := gpuopts.With(env, wanted)
	return append(missing, preload...), err
}

// Freezes reports whether a model has a matrix, or a larger tensor, that training does not change, so
// that its user may expect cached features.
func Freezes(m *savedmodels.Model) bool {
	return slices.ContainsFunc(m.Variables, func(v savedmodels.Variable) bool { return v.Frozen && len(v.Shape) > 1 })
}

// UseEnvironment restarts the program if the options of devices, the release profile or an allocator
// need environment variables that are not set. The warnings are options without an effect.
func UseEnvironment(device gpuopts.Options, release bool, malloc string) (warnings []*option.Error, err error) {
	warnings, err = device.Check(os.Environ())
	if err == nil {
		err = session.UseEnvironment(device, release)
	}
	if err != nil || malloc == "" {
		return warnings, err
	}
	missing, err := Configuration{Allocator: malloc, OneDNN: device.OneDNN}.Environment()
	if err == nil {
		err = reexec.With(missing)
	}
	if err != nil {
		err = &option.Error{Option: "Config.Allocator", Value: malloc, Reason: err.Error(), Err: err}
	}
	return warnings, err
}

func (c Configuration) allocatorVariables() (list []gpuopts.Variable, err error) {
	variable := func(name, value string) {
		list = append(list, gpuopts.Variable{Name: name, Value: value, For: c.Allocator})
	}
	if c.Allocator == allocator.Mmap {
		if c.OneDNN != "off" {
			variable("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
		}
		variable("MALLOC_MMAP_THRESHOLD_", strconv.Itoa(allocator.MmapThreshold))
		return list, nil
	}
	path, err := allocator.Find(c.Allocator)
	variable("LD_PRELOAD", path)
	if c.Allocator == allocator.Jemalloc {
		variable("MALLOC_CONF", allocator.JemallocKeeps)
	}
	return list, err
}

// Apply returns the options of a session with the configuration applied. The process must have
// the variables of Environment.
func (c Configuration) Apply(o session.Options) session.Options {
	o.MicroBatches = cmp.Or(c.MicroBatches, o.MicroBatches)
	o.StepsPerExecution = cmp.Or(c.StepsPerExecution, o.StepsPerExecution)
	o.Compiled = c.Compiled || o.Compiled
	d := &o.Device
	d.Executor = cmp.Or(c.Executor, d.Executor)
	d.IntraThreads = cmp.Or(c.IntraThreads, d.IntraThreads)
	d.InterThreads = cmp.Or(c.InterThreads, d.InterThreads)
	d.OneDNN = cmp.Or(c.OneDNN, d.OneDNN)
	d.Precision = cmp.Or(c.Precision, d.Precision)
	return o
}

// over returns the configuration with its zero fields taken from base.
func (c Configuration) over(base Configuration) Configuration {
	return Configuration{
		MicroBatches:      cmp.Or(c.MicroBatches, base.MicroBatches),
		NoPrefetch:        c.NoPrefetch || base.NoPrefetch,
		CachedFeatures:    c.CachedFeatures || base.CachedFeatures,
		StepsPerExecution: cmp.Or(c.StepsPerExecution, base.StepsPerExecution),
		Compiled:          c.Compiled || base.Compiled,
		Executor:          cmp.Or(c.Executor, base.Executor),
		IntraThreads:      cmp.Or(c.IntraThreads, base.IntraThreads),
		InterThreads:      cmp.Or(c.InterThreads, base.InterThreads),
		OneDNN:            cmp.Or(c.OneDNN, base.OneDNN),
		Allocator:         cmp.Or(c.Allocator, base.Allocator),
		Precision:         cmp.Or(c.Precision, base.Precision),
	}
}

// threads returns the part of the configuration that sets the executor and its threads.
func (c Configuration) threads() Configuration {
	return Configuration{Executor: c.Executor, IntraThreads: c.IntraThreads, InterThreads: c.InterThreads}
}

// parts returns the base of a configuration (steps per execution, and whether the compiled signature
// runs) and its settings, at most one of each kind. Fields that Choose never sets are left out.
func (c Configuration) parts() (base Configuration, settings []Configuration) {
	for _, s := range []Configuration{c.threads(), {OneDNN: c.OneDNN}, {Allocator: c.Allocator}, {Precision: c.Precision}} {
		if !s.Plain() {
			settings = append(settings, s)
		}
	}
	return Configuration{StepsPerExecution: c.StepsPerExecution, Compiled: c.Compiled}, settings
}

// Rounds reports whether steps may round differently than plain ones
// (session.Options.Rounding). Otherwise results are the same bit for bit.
func (c Configuration) Rounds() bool {
	return c.Apply(session.Options{}).Rounding() != session.Rounding{}
}

// Changes counts the differences from plain steps. Of configurations with about the same speed, the
// one with fewer differences is chosen.
func (c Configuration) Changes() int {
	n := 0
	for _, change := range []bool{
		c.CachedFeatures, c.MicroBatches > 1, c.NoPrefetch, c.StepsPerExecution > 1, c.Executor != "", c.IntraThreads+c.InterThreads > 0, c.OneDNN != "", c.Allocator != "", c.Compiled, c.Rounds(),
	} {
		if change {
			n++
		}
	}
	if c.Precision != "" {
		n += 3
	}
	return n
}

// Fixed selects options of a session that Choose does not change. An option that differs from its
// default is always fixed.
type Fixed struct{ StepsPerExecution, Compiled, Threads, OneDNN, Precision bool }

// With also selects the options that are set in o.
func (f Fixed) With(o session.Options) Fixed {
	return Fixed{
		StepsPerExecution: f.StepsPerExecution || o.StepsPerExecution > 1,
		Compiled:          f.Compiled || o.Compiled,
		// Resolving float16 initializes TensorFlow's devices with their threads.
		Threads: f.Threads || o.Device.IntraThreads != 0 || o.Device.InterThreads != 0 ||
			o.Device.Precision != "" && o.Device.Precision != gpuopts.BFloat16,
		OneDNN:    f.OneDNN || o.Device.OneDNN != "",
		Precision: f.Precision || o.Device.Precision != "",
	}
}

// Limits returns the limits for a session with the options o. steps is the maximum number of steps
// per execution, and precision allows 16-bit types.
func (f Fixed) Limits(o session.Options, steps int, precision bool) Limits {
	f = f.With(o)
	if f.StepsPerExecution {
		steps = 0
	}
	return Limits{StepsPerExecution: steps, Compiled: !f.Compiled, Threads: !f.Threads, OneDNN: !f.OneDNN, Precision: precision && !f.Precision}
}

// Limits are the kinds of configurations that Choose may return. The zero value allows only
// plain steps. The model and the options of the session can exclude more.
type Limits struct {
	// StepsPerExecution is the number of steps that can run without a pause, such as the steps
	// of an epoch. Below 2, each step is an execution.
	StepsPerExecution int
	// Compiled allows XLA-compiled signatures, which round differently than plain steps.
	Compiled bool
	// Threads allows another executor and other numbers of threads, some of which round
	// differently. It also lets trials choose the calling thread (Live).
	Threads bool
	// Traced means that a step will be traced, which excludes the single-threaded executor.
	Traced bool
	// Restart allows another allocator and, with OneDNN, the opposite of the present use of
	// oneDNN, which rounds differently. The caller must then restart its program with the
	// variables of Configuration.Environment.
	Restart, OneDNN bool
	// Precision allows computing in 16 bits, which changes the results of the training.
	Precision bool
	// Features allows cached features in Trials. FeatureRounding also allows them if steps then
	// round differently.
	Features, FeatureRounding bool
}

// ThreadVariable returns the name of a set environment variable that sets a number of
// TensorFlow's threads, or "". Limits.Threads then has no effect.
func ThreadVariable() string {
	for _, name := range []string{"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"} {
		if os.Getenv(name) != "" {
			return name
		}
	}
	return ""
}

// under returns the limits reduced by the options and the environment.
func (l Limits) under(o session.Options) Limits {
	l.Compiled = l.Compiled && !o.Device.Deterministic
	l.OneDNN = l.OneDNN && l.Restart && !o.Device.Deterministic
	l.Threads = l.Threads && !o.Device.Deterministic && ThreadVariable() == ""
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
	if !l.Threads || c.TooLate(o) != nil {
		c.Executor, c.IntraThreads, c.InterThreads = "", 0, 0
	}
	if l.Traced {
		c.Executor = ""
	}
	if missing, err := (Configuration{Allocator: c.Allocator}).Environment(); err != nil || len(missing) > 0 && !l.Restart {
		c.Allocator = ""
	}
	if missing, err := (Configuration{OneDNN: c.OneDNN}).Environment(); err != nil || len(missing) > 0 && !l.OneDNN {
		c.OneDNN = ""
	}
	if !l.Precision {
		c.Precision = ""
	}
	return c
}

// TooLate returns gpuopts.ErrTooLate if an earlier session of this process has set up TensorFlow's
// threads differently. o are the options of the session before the choice.
func (c Configuration) TooLate(o session.Options) error {
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

// offer is the set of configurations to choose from: bases (see Configuration.parts), the most
// promising first, and settings to add to a base or to plain steps. tooLate has settings that could
// be chosen if this process had not opened a session.
type offer struct{ bases, settings, tooLate []Configuration }

// newOffer returns the configurations that a plan allows and its options do not already set.
// The errors are those of session.Compile.
func newOffer(p *Plan) (offer, error) {
	plan, err := session.Compile(p.Model, p.Options)
	if err != nil {
		return offer{}, err
	}
	l := p.Limits.under(p.Options)
	o := offer{bases: p.bases(plan, l)}
	o.settings, o.tooLate = p.settings(l)
	return o, nil
}

// bases returns the configurations that differ from plain steps only in the signature or the steps
// per execution, most promising first.
func (p *Plan) bases(plan *session.Plan, l Limits) (bases []Configuration) {
	base := func(c Configuration) {
		if with, err := session.Compile(p.Model, c.Apply(p.Options)); err == nil && with.Check(p.Batch, false, false) == nil {
			bases = append(bases, c)
		}
	}
	roles := plan.Roles()
	stack := l.StepsPerExecution > 1 && p.Options.StepsPerExecution < 2
	compile := l.Compiled && !p.Options.Compiled
	if shape := dataShape(p.Model, roles.TrainNXLA); stack && compile && len(shape) > 1 && shape[0] <= int64(l.StepsPerExecution) && shape[1] == int64(p.Batch) {
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

// settings returns the settings to add to a base or to plain steps, and those for which it is too
// late.
func (p *Plan) settings(l Limits) (settings, tooLate []Configuration) {
	d := p.Options.Device
	threads := func(c Configuration) {
		if c.TooLate(p.Options) != nil {
			tooLate = append(tooLate, c)
		} else {
			settings = append(settings, c)
		}
	}
	if l.Threads && d.Executor == "" && d.IntraThreads == 0 && d.InterThreads == 0 && !d.PerSessionThreads {
		if !l.Traced {
			threads(Configuration{Executor: gpuopts.SingleThreaded, IntraThreads: 1, InterThreads: 1})
		}
		threads(Configuration{IntraThreads: 1})
	}
	if c, ok := p.otherOneDNN(); ok && l.OneDNN {
		settings = append(settings, c)
	} else if _, _, opened := tfprocess.FirstSession(); ok && opened && p.Limits.OneDNN && !p.Limits.Restart {
		tooLate = append(tooLate, c)
	}
	if j := (Configuration{Allocator: allocator.Jemalloc}); l.Restart {
		if missing, err := j.Environment(); err == nil && len(missing) > 0 {
			settings = append(settings, j)
		}
	}
	if l.Precision && d.Precision == "" && !d.GrapplerOff {
		settings = append(settings, Configuration{Precision: gpuopts.BFloat16})
	}
	return settings, tooLate
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
	return c, known && err == nil && p.Options.Device.OneDNN == ""
}

// dataShape returns the shape of the first data input of a signature; nil if there is none.
func dataShape(m *savedmodels.Model, signature string) []int64 {
	sig, err := m.Signature(signature)
	if signature == "" || err != nil || len(sig.DataInputs()) == 0 {
		return nil
	}
	return sig.DataInputs()[0].Shape
}

// like returns the configuration in the offer that is most like a measured one. Numbers of steps
// per execution are alike if they differ at most twofold and the steps are not compiled.
func (o offer) like(c Configuration) (now Configuration, ok bool) {
	base, settings := c.parts()
	if !base.Plain() {
		i := slices.IndexFunc(o.bases, func(b Configuration) bool {
			a := base
			return a == b || !a.Compiled && !b.Compiled && min(a.StepsPerExecution, b.StepsPerExecution) > 1 &&
				max(a.StepsPerExecution, b.StepsPerExecution) <= 2*min(a.StepsPerExecution, b.StepsPerExecution)
		})
		if i < 0 {
			return Configuration{}, false
		}
		c.StepsPerExecution = o.bases[i].StepsPerExecution
	}
	ok = !slices.ContainsFunc(settings, func(s Configuration) bool { return !slices.Contains(o.settings, s) })
	return c, ok
}
