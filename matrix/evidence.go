package matrix

import (
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/measure"
	"steadyfit/internal/lab/worker"
	"steadyfit/memory"
)

// Thresholds of the tests.
const (
	// noDifference is the relative difference up to which two amounts count as equal.
	noDifference = 0.05
	// halvedBelow is the largest ratio that counts as a half.
	halvedBelow = 0.6
	// freedBelow is the largest remaining fraction of what the steps added that counts as freed.
	freedBelow = 0.2
	// sameGrowth is the smallest ratio of slopes that counts as the same growth; slopes scatter
	// more than amounts.
	sameGrowth = 0.8
	// goesWithBatch is a ratio of slopes per sample for half the batch. The growth depends on
	// the batch if the ratio is lower; 2 means the same amount per step.
	goesWithBatch = 1.5
	// doubling is the largest ratio of a pool's size to its use without fragmentation, if the
	// pool doubles when it is full.
	doubling = 2
)

// view has the results of a runtime, and records those that a verdict uses.
type view struct {
	runtime      string
	gpus         bool
	seed         uint64
	combinations map[combinationID]*Combination
	runs         map[combinationID][]*RunResult
	used         map[string]bool
	of           string // of the current probe
}

func (v view) id(name string) combinationID {
	w, r, ok := strings.Cut(name, "/")
	if !ok {
		r = Baseline
	}
	return combinationID{v.runtime, w, r}
}

// measured returns the result with a name such as "W4/close", or "W4" for the baseline. It returns
// nil if there is no such result.
func (v view) measured(name string) *Combination {
	id := v.id(name)
	c := v.combinations[id]
	if c == nil || c.Verdict == nil {
		return nil
	}
	v.used[id.workload+"/"+id.remedy] = true
	return c
}

func (v view) on(name string) []string { return []string{v.id(name).workload} }

// has reports whether a name was measured, without recording a use.
func (v view) has(name string) bool {
	c := v.combinations[v.id(name)]
	return c != nil && c.Verdict != nil
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

// died counts the runs that ran out of memory, those of them that completed their first step,
// and all runs.
func (v view) died(name string) (starved, grown, all int) {
	for _, run := range v.runs[v.id(name)] {
		all++
		if outOfMemory(run) {
			starved++
			if _, stepped := run.Phases[worker.PhaseFirst]; stepped {
				grown++
			}
		}
	}
	return starved, grown, all
}

// grows answers whether memory grows, or ran out after the first step. A sawtooth is no growth.
// A crash with another cause leaves the question open.
func (v view) grows(name string) evidence {
	c := v.measured(name)
	if c == nil {
		return evidence{}
	}
	e := evidence{unclear, name + ": " + outline(*c.Verdict), v.on(name)}
	starved, grown, all := v.died(name)
	switch c.Verdict.Kind {
	case memory.Leak:
		e.answer = yes
	case memory.Flat, memory.Jump, memory.Plateau, memory.Sawtooth:
		e.answer = no
		if 2*grown >= all && all > 0 {
			e.answer, e.text = yes, fmt.Sprintf("%s: %d of %d runs ran out of memory after the first step", name, grown, all)
		}
	case memory.Crash:
		if grown > 0 && 2*grown >= all {
			e.answer = yes
		} else if starved > 0 {
			e.text += " (before the end of the first step: no growth)"
		}
	}
	return e
}

// outline formats a verdict without its method, and without the cause of a change that is no
// growth.
func outline(v memory.Verdict) string {
	v.NoiseFloor = 0
	if v.Kind != memory.Leak && v.Kind != memory.Inconclusive {
		v.Cause = ""
	}
	return v.String()
}

// collected returns the name of the result that shows the growth of the workload itself.
// galeone's binding frees a tensor after Go's garbage collector has run its finalizer, so all
// dropped tensors look like growth until then. With a collection after each step, only the
// growth of the workload remains. lags means that this was not measured.
func (v view) collected(workload string) (name string, lags bool) {
	if v.runtime != Galeone {
		return workload, false
	}
	if w, err := FindWorkload(workload); err == nil && w.on(Galeone).Params["gc"] == "step" {
		return workload, false
	}
	if name = workload + "/gc-step"; v.has(name) {
		return name, false
	}
	return workload, true
}

// growsItself is like grows, but does not count objects that only wait for the garbage collector.
func (v view) growsItself(workload string) evidence {
	name, lags := v.collected(workload)
	e := v.grows(name)
	switch c := v.combinations[v.id(name)]; {
	case e.answer != yes:
	case lags:
		e.answer, e.text = unclear, join(e.text+lateUnknown, v.early(name))
	case c.Verdict.Cause == memory.GCLag:
		e.answer, e.text = no, join(e.text+", which only waits for the garbage collector", v.early(name))
	}
	return e
}

const lateUnknown = ", which may only wait for the garbage collector: gc-step was not run"

func (v view) early(name string) string {
	return compare.Early(v.runtime != Keras, v.runs[v.id(name)], func(run *RunResult) float64 { return run.Seconds })
}

// paired returns the runs of equal pairs, and of the same group if there are several. It leaves
// out runs that crashed for a reason other than memory.
func (v view) paired(name, other string) (runs, others []*RunResult) {
	usable := func(run *RunResult) bool { return run.Failure == "" || outOfMemory(run) }
	for _, run := range v.runs[v.id(name)] {
		if !usable(run) {
			continue
		}
		var match *RunResult
		for _, o := range v.runs[v.id(other)] {
			if usable(o) && o.Pair == run.Pair && (match == nil || o.Group == run.Group) {
				match = o
			}
		}
		if match != nil && !slices.ContainsFunc(runs, func(r *RunResult) bool { return r.Pair == run.Pair && v.id(name).remedy == Baseline }) {
			runs, others = append(runs, run), append(others, match)
		}
	}
	return runs, others
}

// compared returns the comparison of two results. ok is false if one was not measured. With
// fewer than two pairs the comparison is empty.
func (v view) compared(name, other string) (c compare.Comparison, ok bool) {
	if !v.has(name) || !v.has(other) {
		return c, false
	}
	one := v.measured(name)
	v.measured(other)
	if id := v.id(other); id.remedy == Baseline && id.workload == v.id(name).workload {
		if one.Comparison != nil {
			c = *one.Comparison
		}
		return c, true
	}
	runs, others := v.paired(name, other)
	if len(runs) < 2 {
		return c, true
	}
	divided := 1
	if remedy, err := FindRemedy(v.id(name).remedy); err == nil {
		divided = remedy.dividesBatch()
	}
	pairs := make([]compare.Pair, len(runs))
	for i := range runs {
		pairs[i] = compare.Pair{Base: others[i].Outcome, Remedy: runs[i].Outcome}
		pairs[i].Remedy.Verdict = perSample(pairs[i].Remedy.Verdict, divided)
	}
	return compare.Runs(pairs, compare.LowerSlope, v.seed), true
}

// Amounts that no comparison has.
const (
	gpuHeld = "memory that the process holds of the GPU"
	gpuUsed = "what TensorFlow's allocator hands out of the GPU"
)

var amounts = map[string]func(*RunResult) memory.Reading{
	"jump from loading to the last step": func(run *RunResult) memory.Reading {
		a, _, ok := added(run)
		return memory.Reading{Bytes: memory.Bytes(a), OK: ok}
	},
	gpuHeld: func(run *RunResult) memory.Reading {
		if run.Series == nil {
			return memory.Reading{}
		}
		return run.Series.Max(memory.GPUProcess)
	},
	gpuUsed: gpuPool,
}

// ratio returns the ratio of an amount. ok is false if one of the results was not measured.
func (v view) ratio(name, other, of string) (r compare.Ratio, ok bool) {
	if get, ok := amounts[of]; ok {
		return v.amounts(name, other, get)
	}
	c, ok := v.compared(name, other)
	return map[string]compare.Ratio{"peak": c.Peak, "slope": c.Slope, "time of a step": c.StepTime}[of], ok
}

// amounts is like ratio, for an amount that no comparison has. r.OK is false unless the amount is
// above 0 in all runs.
func (v view) amounts(name, other string, get func(*RunResult) memory.Reading) (r compare.Ratio, ok bool) {
	if !v.has(name) || !v.has(other) {
		return r, false
	}
	v.measured(name)
	v.measured(other)
	runs, others := v.paired(name, other)
	var pairs []compare.Pair
	for i := range runs {
		if runs[i].Failure != "" || others[i].Failure != "" {
			continue
		}
		a, b := get(runs[i]), get(others[i])
		if !a.OK || !b.OK || a.Bytes <= 0 || b.Bytes <= 0 {
			return compare.Ratio{}, true
		}
		flat := memory.Verdict{Kind: memory.Flat}
		pairs = append(pairs, compare.Pair{Base: compare.Outcome{Verdict: flat, Peak: b}, Remedy: compare.Outcome{Verdict: flat, Peak: a}})
	}
	if len(pairs) < 2 {
		return compare.Ratio{}, true
	}
	return compare.Runs(pairs, compare.LowerPeak, v.seed).Peak, true
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

func lower(r compare.Ratio) answer {
	switch {
	case !r.OK:
		return unclear
	case r.High < 1-noDifference:
		return yes
	case r.Low >= 1-noDifference:
		return no
	}
	return unclear
}

func higher(r compare.Ratio) answer {
	switch {
	case !r.OK:
		return unclear
	case r.Low > 1+noDifference:
		return yes
	case r.High <= 1+noDifference:
		return no
	}
	return unclear
}

// doubted changes the answer no to unclear if the remedy may not have been applied.
func (v view) doubted(name string, e evidence) evidence {
	if c := v.combinations[v.id(name)]; c != nil && c.Unverified != "" && e.answer == no {
		e.answer, e.text = unclear, fmt.Sprintf("%s (whether the remedy took effect is not known: %s)", e.text, c.Unverified)
	}
	return e
}

func (v view) peak(name, other string) evidence { return v.byRatio(name, other, "peak", lower) }

func (v view) byRatio(name, other, of string, decide func(compare.Ratio) answer) evidence {
	r, ok := v.ratio(name, other, of)
	if !ok {
		return evidence{}
	}
	return v.doubted(name, evidence{decide(r), against(name, other, of, r), v.on(name)})
}

// stops answers whether a remedy stops growth. The answer is missing if nothing grows without
// it.
func (v view) stops(name, other string) evidence {
	c, ok := v.compared(name, other)
	if !ok {
		return evidence{}
	}
	switch growth := v.grows(other); {
	case growth.answer == no:
		return evidence{}
	case growth.answer == unclear:
		return evidence{unclear, growth.text, nil}
	case v.measured(other).Verdict.Kind == memory.Crash:
		starved, _, all := v.died(name)
		e := evidence{unclear, join(growth.text, fmt.Sprintf("%s: %d of %d runs ran out of memory", name, starved, all)), v.on(name)}
		if starved == 0 && v.measured(name).Verdict.Kind != memory.Crash {
			e.answer = yes
		} else if 2*starved >= all {
			e.answer = no
		}
		return e
	case !c.Slope.OK:
		return evidence{unclear, against(name, other, "slope", compare.Ratio{}), nil}
	}
	e := evidence{unclear, against(name, other, "slope", c.Slope), v.on(name)}
	switch c.Slope.Effect {
	case compare.Works:
		e.answer = yes
	case compare.Partly:
		e.answer = inPart
	case compare.NoEffect, compare.Harmful:
		e.answer = no
	default:
		if c.Slope.Low >= sameGrowth {
			e.answer = no
		}
	}
	return v.doubted(name, e)
}

// relieves answers whether a remedy lowers the slope of a workload that grows, or else the
// peak.
func (v view) relieves(name, other string) evidence {
	if e := v.stops(name, other); e.answer != missing {
		return e
	}
	return v.peak(name, other)
}

// added returns the memory that the steps of a run added, and the memory before.
func added(run *RunResult) (added, loaded float64, ok bool) {
	from, to := run.Phases[worker.PhaseLoaded], run.Phases[worker.PhaseSteady]
	a, b := from.Get(memory.Anon), to.Get(memory.Anon)
	return float64(b.Bytes - a.Bytes), float64(a.Bytes), run.Failure == "" && a.OK && b.OK && a.Bytes > 0
}

type spread []float64

func (s spread) String() string {
	if len(s) == 1 {
		return fmt.Sprintf("%v in 1 run", memory.Bytes(s[0]))
	}
	return fmt.Sprintf("%v [%v to %v in %d runs]", memory.Bytes(measure.Median(s)), memory.Bytes(slices.Min(s)), memory.Bytes(slices.Max(s)), len(s))
}

// jumps answers whether memory is higher after the first step than before.
func (v view) jumps(name, _ string) evidence {
	name, _ = v.collected(name)
	if v.measured(name) == nil {
		return evidence{}
	}
	var amounts, parts spread
	for _, run := range v.runs[v.id(name)] {
		from, to := run.Phases[worker.PhaseLoaded], run.Phases[worker.PhaseFirst]
		a, b := from.Get(memory.Anon), to.Get(memory.Anon)
		if run.Failure == "" && a.OK && b.OK && a.Bytes > 0 {
			amount := float64(b.Bytes - a.Bytes)
			amounts, parts = append(amounts, amount), append(parts, amount/float64(a.Bytes))
		}
	}
	if len(parts) == 0 {
		return evidence{}
	}
	e := evidence{unclear, fmt.Sprintf("%s: %v from loading to the end of the first step, %.0f%% of what was there", name, amounts, 100*measure.Median(parts)), v.on(name)}
	if slices.Min(parts) > noDifference {
		e.answer = yes
	} else if slices.Max(parts) <= noDifference {
		e.answer = no
	}
	return e
}

// releases answers whether closing everything frees the memory that the steps added: yes if it
// does, in part if the memory stays, no if nothing was kept between steps.
func (v view) releases(name, _ string) evidence {
	c := v.measured(name)
	if c == nil {
		return evidence{}
	}
	var levels, left, trimmed, parts, kept spread
	for _, run := range v.runs[v.id(name)] {
		a, loaded, ok := added(run)
		phase := run.Phases[worker.PhaseClosed]
		closed := phase.Get(memory.Anon)
		if !ok || !closed.OK {
			continue
		}
		kept = append(kept, a/loaded)
		if a <= noDifference*loaded {
			continue
		}
		levels, left, parts = append(levels, a), append(left, float64(closed.Bytes)-loaded), append(parts, (float64(closed.Bytes)-loaded)/a)
		phase = run.Phases[worker.PhaseTrimmed]
		if t := phase.Get(memory.Anon); t.OK {
			trimmed = append(trimmed, float64(t.Bytes)-loaded)
		}
	}
	traced := ""
	if c.Figures.Pool != nil {
		traced = fmt.Sprintf("; TensorFlow's pool had handed out %v in a traced step", memory.Bytes(*c.Figures.Pool))
	}
	switch {
	case len(kept) == 0:
		return evidence{}
	case slices.Max(kept) <= noDifference && c.Figures.Pool != nil && c.Figures.Loaded != nil && float64(*c.Figures.Pool) > noDifference*float64(*c.Figures.Loaded):
		return evidence{no, fmt.Sprintf("%s: the steps leave nothing behind%s", name, traced), v.on(name)}
	case len(parts) < len(kept):
		return evidence{missing, fmt.Sprintf("%s: the steps add too little to tell", name), nil}
	}
	e := evidence{unclear, fmt.Sprintf("%s: the steps added %v, of which %v were left after closing everything, %.0f%% [%.0f to %.0f]",
		name, levels, left, 100*measure.Median(parts), 100*slices.Min(parts), 100*slices.Max(parts)), v.on(name)}
	if len(trimmed) > 0 {
		e.text += fmt.Sprintf(", and %v after malloc_trim", trimmed)
	}
	e.text += traced
	if slices.Max(parts) <= freedBelow {
		e.answer = yes
	} else if slices.Min(parts) > freedBelow {
		e.answer = inPart
	}
	return e
}
