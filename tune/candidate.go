package tune

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/allocator"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// Candidate is a way to run a training. The zero value is plain: one step per call, as
// exported, with the settings that the training has anyway.
type Candidate struct {
	// StepsPerExecution is the number of steps in a call; 0 is one.
	StepsPerExecution int `json:"steps_per_execution,omitempty"`
	// Compiled takes the XLA twin of the signature.
	Compiled bool `json:"compiled,omitempty"`
	// Executor, IntraThreads and InterThreads are those of gpuopts.Options; zero leaves
	// them as they are.
	Executor     gpuopts.Executor `json:"executor,omitempty"`
	IntraThreads int              `json:"intra_threads,omitempty"`
	InterThreads int              `json:"inter_threads,omitempty"`
	// CallerRuns is that of session.Options.
	CallerRuns bool `json:"caller_runs,omitempty"`
	// Allocator is what takes the place of malloc, "jemalloc", preloaded with the
	// variables of Environment.
	Allocator string `json:"allocator,omitempty"`
	// Precision is that of gpuopts.Options; it changes what the training computes.
	Precision gpuopts.Precision `json:"precision,omitempty"`
}

// Plain reports whether the candidate changes nothing.
func (c Candidate) Plain() bool { return c == Candidate{} }

// String is the candidate in words, as in "fused 50 steps, XLA twin".
func (c Candidate) String() string {
	var words []string
	add := func(when bool, format string, args ...any) {
		if when {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(c.StepsPerExecution > 1, "fused %d steps", c.StepsPerExecution)
	add(c.Compiled, "XLA twin")
	add(c.Executor != "", "single-threaded executor")
	add(c.Executor == "" && c.InterThreads > 0, "inter threads %d", c.InterThreads)
	add(c.IntraThreads > 0, "intra threads %d", c.IntraThreads)
	add(c.CallerRuns, "in the calling thread")
	add(c.Allocator != "", "%s", c.Allocator)
	add(c.Precision != "", "%s", c.Precision)
	if len(words) == 0 {
		return "plain"
	}
	return strings.Join(words, ", ")
}

// Environment lists the variables that this process has not, and would have to be started
// with to run this way: session.StartAnew does that. There is an error if an allocator is not
// on this machine, or a variable is set to something else.
func (c Candidate) Environment() (missing []gpuopts.Variable, err error) {
	if c.Allocator == "" {
		return nil, nil
	}
	path, err := allocator.Find(c.Allocator)
	if err != nil {
		return nil, err
	}
	_, missing, err = gpuopts.With(os.Environ(), []gpuopts.Variable{
		{Name: "LD_PRELOAD", Value: path, For: c.Allocator}, {Name: "MALLOC_CONF", Value: allocator.JemallocKeeps, For: c.Allocator},
	})
	return missing, err
}

// Apply is the options of a session that runs this way, in a process that has what Environment
// lists.
func (c Candidate) Apply(o session.Options) session.Options {
	if c.StepsPerExecution > 1 {
		o.StepsPerExecution = c.StepsPerExecution
	}
	o.Compiled = o.Compiled || c.Compiled
	if c.Executor != "" {
		o.Device.Executor = c.Executor
	}
	if c.IntraThreads > 0 {
		o.Device.IntraThreads = c.IntraThreads
	}
	if c.InterThreads > 0 {
		o.Device.InterThreads = c.InterThreads
	}
	o.CallerRuns = o.CallerRuns || c.CallerRuns
	if c.Precision != "" {
		o.Device.Precision = c.Precision
	}
	return o
}

// ofThreads is what it changes of the executor and its threads.
func (c Candidate) ofThreads() Candidate {
	return Candidate{Executor: c.Executor, IntraThreads: c.IntraThreads, InterThreads: c.InterThreads, CallerRuns: c.CallerRuns}
}

// over is the candidate with what another one changes on top of it.
func (c Candidate) over(base Candidate) Candidate {
	if c.StepsPerExecution > 1 {
		base.StepsPerExecution = c.StepsPerExecution
	}
	base.Compiled = base.Compiled || c.Compiled
	if c.Executor != "" {
		base.Executor = c.Executor
	}
	if c.IntraThreads > 0 {
		base.IntraThreads = c.IntraThreads
	}
	if c.InterThreads > 0 {
		base.InterThreads = c.InterThreads
	}
	base.CallerRuns = base.CallerRuns || c.CallerRuns
	if c.Allocator != "" {
		base.Allocator = c.Allocator
	}
	if c.Precision != "" {
		base.Precision = c.Precision
	}
	return base
}

// Rounds reports whether steps may round differently this way than plain ones do, by
// session.Options.Rounding: with XLA twins, 16 bits, another number of threads that share an
// operation, and several steps in a call of the single-threaded executor. If not, they are
// the same steps bit for bit.
func (c Candidate) Rounds() bool {
	return c.Apply(session.Options{}).Rounding() != session.Rounding{}
}

// changes counts what differs from plain steps, and one more if they round differently:
// among candidates of about the same speed, the one with fewer wins.
func (c Candidate) changes() int {
	n := 0
	for _, change := range []struct {
		there  bool
		weight int
	}{
		{c.StepsPerExecution > 1, 1}, {c.Executor != "", 1}, {c.IntraThreads+c.InterThreads > 0, 1}, {c.CallerRuns, 1}, {c.Allocator != "", 1}, {c.Compiled, 1}, {c.Precision != "", 3}, {c.Rounds(), 1},
	} {
		if change.there {
			n += change.weight
		}
	}
	return n
}

// Limits say what may be chosen, where the model and the options leave it open. The zero
// value leaves plain steps.
type Limits struct {
	// Fuse is how many steps can come one after the other without a pause, as in an
	// epoch; 0 and 1 fuse none.
	Fuse int `json:"fuse,omitempty"`
	// Compiled allows XLA twins. They round differently than plain steps.
	Compiled bool `json:"compiled,omitempty"`
	// Threads allows another executor, other numbers of threads, and to run in the
	// calling thread. Some of it rounds differently: Candidate.Rounds.
	Threads bool `json:"threads,omitempty"`
	// Traced means that a step is going to be traced, which an executor that runs in one
	// thread cannot: it is not allowed.
	Traced bool `json:"traced,omitempty"`
	// Preload allows another allocator. The caller then starts its program anew with what
	// Candidate.Environment lists.
	Preload bool `json:"preload,omitempty"`
	// Precision allows to compute in 16 bits, where that is measured to be faster. It
	// changes the training.
	Precision bool `json:"precision,omitempty"`
}

// ThreadVariable is the variable of the environment that sets one of TensorFlow's numbers of
// threads, where there is one: Limits.Threads is then taken for false.
func ThreadVariable() string {
	for _, name := range []string{"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"} {
		if os.Getenv(name) != "" {
			return name
		}
	}
	return ""
}

// under are the limits with what the options and the environment do not allow:
// Deterministic leaves out what adds up in another order.
func (l Limits) under(o session.Options) Limits {
	l.Compiled = l.Compiled && !o.Device.Deterministic
	l.Threads = l.Threads && !o.Device.Deterministic && ThreadVariable() == ""
	return l
}

// Within is the candidate without what the limits, the options of the session or the
// environment do not allow.
func (c Candidate) Within(l Limits, o session.Options) Candidate {
	l = l.under(o)
	if l.Fuse < 2 {
		c.StepsPerExecution = 0
	}
	c.Compiled = c.Compiled && l.Compiled
	if !l.Threads {
		c.Executor, c.IntraThreads, c.InterThreads, c.CallerRuns = "", 0, 0, false
	}
	if l.Traced {
		c.Executor = ""
	}
	if missing, err := c.Environment(); err != nil || len(missing) > 0 && !l.Preload {
		c.Allocator = ""
	}
	if !l.Precision {
		c.Precision = ""
	}
	return c
}

// usualFuse is how many batches a race runs on, at most.
const usualFuse = 50

// Candidates lists the ways that a model offers to train on batches of a dataset, most
// promising first, and the settings that may be put on top of any of them or of plain
// steps. What the options set already is not among them. The errors are those of
// session.Compile.
func Candidates(m *savedmodels.Model, o session.Options, ds data.Dataset, batch int, l Limits) (ways, settings []Candidate, err error) {
	plan, err := session.Compile(m, o)
	if err != nil {
		return nil, nil, err
	}
	roles := plan.Roles()
	offer := func(c Candidate) {
		if with, err := session.Compile(m, c.Apply(o)); err == nil && with.CheckBatch(batch) == nil {
			ways = append(ways, c)
		}
	}
	l = l.under(o)
	fusible := l.Fuse > 1 && o.StepsPerExecution < 2
	compilable := l.Compiled && !o.Compiled
	if sizes := sizesOf(m, roles.TrainNXLA); fusible && compilable && len(sizes) > 1 && sizes[0] <= int64(l.Fuse) && sizes[1] == int64(batch) {
		offer(Candidate{StepsPerExecution: int(sizes[0]), Compiled: true})
	}
	if fusible {
		// Where it is 1, the model or the data do not allow more. With fewer steps than
		// a fixed number in train_n there is nothing to offer.
		if n, _ := plan.ChooseSteps(ds, batch); n > 1 {
			offer(Candidate{StepsPerExecution: min(n, l.Fuse)})
		}
	}
	if sizes := sizesOf(m, roles.TrainXLA); compilable && len(sizes) > 0 && sizes[0] == int64(batch) {
		offer(Candidate{Compiled: true})
	}
	d := o.Device
	if l.Threads && d.Executor == "" && d.IntraThreads == 0 && d.InterThreads == 0 && !d.PerSessionThreads {
		if !l.Traced {
			settings = append(settings, Candidate{Executor: gpuopts.SingleThreaded, IntraThreads: 1, InterThreads: 1})
		}
		settings = append(settings, Candidate{IntraThreads: 1}, Candidate{InterThreads: 1})
		if !o.CallerRuns {
			settings = append(settings, Candidate{CallerRuns: true})
		}
	}
	if j := (Candidate{Allocator: allocator.Jemalloc}); l.Preload {
		if missing, err := j.Environment(); err == nil && len(missing) > 0 {
			settings = append(settings, j)
		}
	}
	if l.Precision && d.Precision == "" && !d.GrapplerOff {
		settings = append(settings, Candidate{Precision: gpuopts.BFloat16})
	}
	return ways, settings, nil
}

// parts are a candidate's way, and its settings, one at most of each kind. Those that are
// plain are not there.
func (c Candidate) parts() (way Candidate, settings []Candidate) {
	for _, s := range []Candidate{
		c.ofThreads(), {Allocator: c.Allocator}, {Precision: c.Precision},
	} {
		if !s.Plain() {
			settings = append(settings, s)
		}
	}
	return Candidate{StepsPerExecution: c.StepsPerExecution, Compiled: c.Compiled}, settings
}

// like reports whether what was measured of a way says what another one is like: they are
// the same, or differ only in the number of steps of a call that has no fixed one, up to
// two times.
func like(a, b Candidate) bool {
	return a == b || !a.Compiled && !b.Compiled && min(a.StepsPerExecution, b.StepsPerExecution) > 1 &&
		max(a.StepsPerExecution, b.StepsPerExecution) <= 2*min(a.StepsPerExecution, b.StepsPerExecution)
}

// offered finds the candidate that is like one that was measured, and is one of the ways, or
// plain, with settings on top. ok is false if there is none.
func offered(c Candidate, ways, settings []Candidate) (now Candidate, ok bool) {
	way, on := c.parts()
	if !way.Plain() {
		i := slices.IndexFunc(ways, func(w Candidate) bool { return like(w, way) })
		if i < 0 {
			return Candidate{}, false
		}
		c.StepsPerExecution = ways[i].StepsPerExecution
	}
	ok = !slices.ContainsFunc(on, func(s Candidate) bool { return !slices.Contains(settings, s) })
	return c, ok
}

// sizesOf is the shape of the first input of data of a signature that was compiled for
// fixed shapes; nil if there is none.
func sizesOf(m *savedmodels.Model, signature string) []int64 {
	if signature == "" {
		return nil
	}
	sig, err := m.Signature(signature)
	if err != nil || len(sig.DataInputs()) == 0 {
		return nil
	}
	return sig.DataInputs()[0].Shape
}
