package matrix

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// Thresholds of the tests.
const (
	// noDifference is the relative difference up to which two amounts count as equal.
	noDifference = 0.05
	// halvedBelow is the maximum ratio that counts as halved.
	halvedBelow = 0.6
	// Memory of the steps counts as freed if at most this fraction of it remains.
	freedBelow = 0.2
	// sameGrowth is the smallest ratio of slopes that counts as the same growth; slopes scatter
	// more than amounts.
	sameGrowth = 0.8
	// goesWithBatch is the largest ratio of the slope per sample with half the batch to that with
	// the whole batch at which growth counts as dependent on the batch. The ratio is 1 if growth is
	// proportional to the batch, and 2 if growth per step is the same.
	goesWithBatch = 1.5
	// doubling is the largest ratio of a pool's size to its use without fragmentation, if the
	// pool doubles when it is full.
	doubling = 2
)

// measured is a result with its runs.
type measured struct {
	*Combination
	runs []*RunResult
}

// view has the results of a runtime by name ("W4/close", or "W4" for the baseline), and records
// those that a verdict uses.
type view struct {
	runtime string
	gpus    bool
	seed    uint64
	results map[string]*measured
	used    map[string]bool
	of      string // field Of of the current probe
}

func resultName(workload, remedy string) string {
	if remedy == Baseline {
		return workload
	}
	return workload + "/" + remedy
}

func newView(r *Result, runtime string) view {
	v := view{runtime: runtime, gpus: len(r.Environment.GPUs) > 0, seed: uint64(r.Settings.Seed),
		results: make(map[string]*measured), used: make(map[string]bool)}
	for i := range r.Combinations {
		if c := &r.Combinations[i]; c.Runtime == runtime && c.Verdict != nil {
			v.results[resultName(c.Workload, c.Remedy)] = &measured{Combination: c}
		}
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if m := v.results[resultName(run.Workload, run.Remedy)]; m != nil && run.Runtime == runtime {
			m.runs = append(m.runs, run)
		}
	}
	return v
}

func (v view) has(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return v.results[name] == nil })
}

// use returns a result and records its use.
func (v view) use(name string) *measured {
	m := v.results[name]
	v.used[m.Workload+"/"+m.Remedy] = true
	return m
}

func found(a answer, name, format string, args ...any) evidence {
	workload, _, _ := strings.Cut(name, "/")
	return evidence{a, fmt.Sprintf(format, args...), []string{workload}}
}

// above answers whether an interval is above a threshold.
func above(low, high, threshold float64) answer {
	switch {
	case low > threshold:
		return yes
	case high <= threshold:
		return no
	}
	return unclear
}

func below(low, high, threshold float64) answer { return above(-high, -low, -threshold) }

func lower(r compare.Ratio) answer {
	if !r.OK {
		return unclear
	}
	return below(r.Low, r.High, 1-noDifference)
}

func higher(r compare.Ratio) answer {
	if !r.OK {
		return unclear
	}
	return above(r.Low, r.High, 1+noDifference)
}

// halved answers whether an amount is halved: "in part" if it is lower, but not halved.
func halved(r compare.Ratio) answer {
	a := lower(r)
	if a != yes || r.High <= halvedBelow {
		return a
	}
	if r.Low > halvedBelow {
		return inPart
	}
	return unclear
}

// outOfMemory reports whether TensorFlow or the kernel reported a lack of memory, or an
// allocation failed under a limit.
func outOfMemory(run *RunResult) bool {
	if run.Failure != worker.Failed {
		return run.Failure == worker.OutOfMemory
	}
	return strings.Contains(run.Cause, " limit of ") && slices.ContainsFunc(
		[]string{"bad_alloc", "MemoryError", "out of memory", "OOM", "annot allocate memory"},
		func(word string) bool { return strings.Contains(run.Cause, word) })
}

// died returns the number of runs that ran out of memory, and how many of these had completed their
// first step.
func (m *measured) died() (starved, grown int) {
	for _, run := range m.runs {
		if outOfMemory(run) {
			starved++
			if _, stepped := run.Phases[worker.PhaseFirst]; stepped {
				grown++
			}
		}
	}
	return starved, grown
}

// grows answers whether memory grows, or ran out after the first step. A sawtooth does not count as growth.
// A crash with another cause leaves the question open.
func (v view) grows(name string) evidence {
	if !v.has(name) {
		return evidence{}
	}
	m := v.use(name)
	// outline omits the method and, for a change other than growth, the cause.
	outline := *m.Verdict
	outline.NoiseFloor = 0
	if outline.Kind != memory.Leak && outline.Kind != memory.Inconclusive {
		outline.Cause = ""
	}
	e := found(unclear, name, "%s: %v", name, outline)
	starved, grown := m.died()
	most := grown > 0 && 2*grown >= len(m.runs)
	switch m.Verdict.Kind {
	case memory.Leak:
		e.answer = yes
	case memory.Flat, memory.Jump, memory.Plateau, memory.Sawtooth:
		e.answer = no
		if most {
			e = found(yes, name, "%s: %d of %d runs ran out of memory after the first step", name, grown, len(m.runs))
		}
	case memlayer.Crash:
		if most {
			e.answer = yes
		} else if starved > 0 {
			e.text += " (before the end of the first step: no growth)"
		}
	}
	return e
}

// collected returns the name of the result that shows the growth of the workload itself. galeone's
// binding frees a tensor after Go's garbage collector has run its finalizer, so all dropped tensors
// look like growth until then. With a collection after each step, only the growth of the workload
// remains. lags is true if runs with such collections were not measured.
func (v view) collected(workload string) (name string, lags bool) {
	if v.runtime != Galeone {
		return workload, false
	}
	if w, err := FindWorkload(workload); err == nil && w.For(Galeone).Params["gc"] == "step" {
		return workload, false
	}
	if name = workload + "/gc-step"; v.has(name) {
		return name, false
	}
	return workload, true
}

const lateUnknown = ", which may only wait for the garbage collector: gc-step was not run"

// growsItself is like grows, but does not count objects that only wait for the garbage collector.
func (v view) growsItself(workload string) evidence {
	name, lags := v.collected(workload)
	e := v.grows(name)
	switch {
	case e.answer != yes:
	case lags:
		e.answer, e.text = unclear, join(e.text+lateUnknown, v.early(name))
	case v.use(name).Verdict.Cause == memlayer.GCLag:
		e.answer, e.text = no, join(e.text+", which only waits for the garbage collector", v.early(name))
	}
	return e
}

func (v view) early(name string) string { return Early(v.results[name].runs) }

// paired pairs the runs of two results that have the same pair number and, if several runs of the
// other result have that number, the same group. It leaves out runs that crashed for a reason other
// than memory.
func (v view) paired(name, other string) (pairs [][2]*RunResult) {
	usable := func(run *RunResult) bool { return run.Failure == "" || outOfMemory(run) }
	for _, run := range v.results[name].runs {
		var match *RunResult
		for _, o := range v.results[other].runs {
			if usable(o) && o.Pair == run.Pair && (match == nil || o.Group == run.Group) {
				match = o
			}
		}
		again := run.Remedy == Baseline && slices.ContainsFunc(pairs,
			func(p [2]*RunResult) bool { return p[0].Pair == run.Pair })
		if usable(run) && match != nil && !again {
			pairs = append(pairs, [2]*RunResult{run, match})
		}
	}
	return pairs
}

// compared returns the comparison of two results. ok is false if one was not measured. With
// fewer than two pairs the comparison is empty.
func (v view) compared(name, other string) (c compare.Comparison, ok bool) {
	if !v.has(name, other) {
		return c, false
	}
	one, two := v.use(name), v.use(other)
	if two.Remedy == Baseline && two.Workload == one.Workload {
		if one.Comparison != nil {
			c = *one.Comparison
		}
		return c, true
	}
	divided := 1
	if remedy, err := FindRemedy(one.Remedy); err == nil {
		divided = remedy.dividesBatch()
	}
	var pairs []compare.Pair
	for _, p := range v.paired(name, other) {
		pair := compare.Pair{Base: p[1].Outcome, Remedy: p[0].Outcome}
		pair.Remedy.Verdict = perSample(pair.Remedy.Verdict, divided)
		pairs = append(pairs, pair)
	}
	return v.runs(pairs, compare.LowerSlope), true
}

func (v view) runs(pairs []compare.Pair, goal compare.Goal) compare.Comparison {
	if len(pairs) < 2 {
		return compare.Comparison{}
	}
	return compare.Runs(pairs, goal, v.seed)
}

// Names of amounts that compare.Comparison does not have.
const (
	gpuHeld = "memory that the process holds of the GPU"
	gpuUsed = "what TensorFlow's allocator hands out of the GPU"
)

var amounts = map[string]func(*RunResult) memory.Reading{
	"jump from loading to the last step": func(run *RunResult) memory.Reading {
		l, ok := levels(run, worker.PhaseLoaded, worker.PhaseSteady)
		return memory.Reading{Bytes: memory.Bytes(l[1] - l[0]), OK: ok}
	},
	gpuHeld: func(run *RunResult) memory.Reading {
		if run.Series == nil {
			return memory.Reading{}
		}
		return run.Series.Max(memlayer.GPUProcess)
	},
	gpuUsed: gpuPool,
}

// ratio returns the ratio of an amount in two results. ok is false if one of the results was not
// measured. If the map amounts has the amount, r.OK is false unless the amount is above 0 in all
// runs.
func (v view) ratio(name, other, of string) (r compare.Ratio, ok bool) {
	get := amounts[of]
	if get == nil {
		c, ok := v.compared(name, other)
		return map[string]compare.Ratio{"peak": c.Peak, "slope": c.Slope, "time of a step": c.StepTime}[of], ok
	}
	if !v.has(name, other) {
		return r, false
	}
	v.use(name)
	v.use(other)
	var pairs []compare.Pair
	for _, p := range v.paired(name, other) {
		if p[0].Failure != "" || p[1].Failure != "" {
			continue
		}
		a, b := get(p[0]), get(p[1])
		if !a.OK || !b.OK || a.Bytes <= 0 || b.Bytes <= 0 {
			return r, true
		}
		flat := memory.Verdict{Kind: memory.Flat}
		pairs = append(pairs, compare.Pair{Base: compare.Outcome{Verdict: flat, Peak: b},
			Remedy: compare.Outcome{Verdict: flat, Peak: a}})
	}
	return v.runs(pairs, compare.LowerPeak).Peak, true
}

func against(name, other, what string, r compare.Ratio) string {
	if !strings.Contains(other, "/") {
		other += " as it is"
	}
	if !r.OK {
		return fmt.Sprintf("%s against %s: the pairs do not show the %s", name, other, what)
	}
	return fmt.Sprintf("%s against %s: %s %s", name, other, what, r.Times(true))
}

// doubted changes the answer no to unclear if the remedy may not have been applied.
func (v view) doubted(name string, e evidence) evidence {
	if why := v.results[name].Unverified; why != "" && e.answer == no {
		e.answer, e.text = unclear, fmt.Sprintf("%s (whether the remedy took effect is not known: %s)", e.text, why)
	}
	return e
}

func (v view) byRatio(name, other, of string, decide func(compare.Ratio) answer) evidence {
	r, ok := v.ratio(name, other, of)
	if !ok {
		return evidence{}
	}
	return v.doubted(name, found(decide(r), name, "%s", against(name, other, of, r)))
}

func (v view) peak(name, other string) evidence { return v.byRatio(name, other, "peak", lower) }

// stops answers whether a remedy stops growth. The answer is missing if nothing grows without
// it.
func (v view) stops(name, other string) evidence {
	c, ok := v.compared(name, other)
	if !ok {
		return evidence{}
	}
	growth := v.grows(other)
	switch {
	case growth.answer == no:
		return evidence{}
	case growth.answer == unclear:
		return evidence{answer: unclear, text: growth.text}
	case v.use(other).Verdict.Kind == memlayer.Crash:
		e := v.survives(name)
		e.text = join(growth.text, e.text)
		return e
	}
	e := found(unclear, name, "%s", against(name, other, "slope", c.Slope))
	switch {
	case !c.Slope.OK:
		return evidence{answer: unclear, text: e.text}
	case c.Slope.Effect == compare.Works:
		e.answer = yes
	case c.Slope.Effect == compare.Partly:
		e.answer = inPart
	case c.Slope.Effect == compare.NoEffect, c.Slope.Effect == compare.Harmful, c.Slope.Low >= sameGrowth:
		e.answer = no
	}
	return v.doubted(name, e)
}

// survives answers whether no run runs out of memory.
func (v view) survives(name string) evidence {
	m := v.use(name)
	starved, _ := m.died()
	e := found(unclear, name, "%s: %d of %d runs ran out of memory", name, starved, len(m.runs))
	if starved == 0 && m.Verdict.Kind != memlayer.Crash {
		e.answer = yes
	} else if 2*starved >= len(m.runs) {
		e.answer = no
	}
	return e
}

// ofGrowth replaces an answer by missing or unclear if the growth may only be garbage that waits
// for a collector, since any change of the loop can lower such growth.
func (v view) ofGrowth(workload string, e evidence) evidence {
	if e.answer < inPart {
		return e
	}
	switch own := v.growsItself(workload); own.answer {
	case no:
		return evidence{}
	case unclear:
		return evidence{answer: unclear, text: join(e.text, own.text)}
	}
	return e
}

// levels returns the anonymous memory of a run at phases. ok is false if the run crashed or if
// an amount is unknown.
func levels(run *RunResult, phases ...string) (at []float64, ok bool) {
	ok = run.Failure == ""
	for _, phase := range phases {
		sample := run.Phases[phase]
		r := sample.Get(memory.Anon)
		at, ok = append(at, float64(r.Bytes)), ok && r.OK
	}
	return at, ok && at[0] > 0
}

type spread []float64

func (s spread) String() string {
	if len(s) == 1 {
		return fmt.Sprintf("%v in 1 run", memory.Bytes(s[0]))
	}
	return fmt.Sprintf("%v [%v to %v in %d runs]", memory.Bytes(stats.Median(s)), memory.Bytes(slices.Min(s)),
		memory.Bytes(slices.Max(s)), len(s))
}

func loss(run *RunResult) (x float64, finite, ok bool) {
	x, err := strconv.ParseFloat(run.Facts[worker.FactLossLast], 64)
	return x, !math.IsNaN(x) && !math.IsInf(x, 0), err == nil
}
