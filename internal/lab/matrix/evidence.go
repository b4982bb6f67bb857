package matrix

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// measured is a combination with its runs. Its name is as in "W4/close", or "W4" without a remedy.
type measured struct {
	*Combination
	name string
	runs []*RunResult
}

// view has the measurements of a runtime by name, and records the combinations that a verdict uses.
type view struct {
	runtime string
	gpu     bool
	results map[string]*measured
	used    map[string]bool
}

func newView(r *Result, runtime string) view {
	v := view{runtime, len(r.Environment.GPUs) > 0, make(map[string]*measured), make(map[string]bool)}
	for i, c := range r.Combinations {
		m := &measured{&r.Combinations[i], strings.TrimSuffix(c.Workload+"/"+c.Remedy, "/"+Baseline), nil}
		if c.Runtime == runtime && c.Verdict != nil {
			v.results[m.name] = m
		}
	}
	for i, run := range r.Runs {
		m := v.results[strings.TrimSuffix(run.Workload+"/"+run.Remedy, "/"+Baseline)]
		if run.Runtime == runtime && m != nil {
			m.runs = append(m.runs, &r.Runs[i])
		}
	}
	return v
}

// answers answers a row for each of its measurements.
func (v view) answers(r row) (all []evidence) {
	remedies, rest := r.Remedies, ""
	if len(remedies) == 0 {
		remedies = []string{Baseline}
	}
	for _, run := range r.Runs {
		workload, _, _ := strings.Cut(run, "/")
		other := r.Against
		if strings.HasPrefix(other, "/") || other == "" && r.Of != "" {
			other = strings.TrimSuffix(workload+other, "/"+Baseline)
		}
		for _, remedy := range remedies {
			m := v.results[strings.TrimSuffix(run+"/"+remedy, "/"+Baseline)]
			e := v.ask(r, m, v.results[other], other != "")
			if e.answer == no && m != nil && m.Unverified != "" {
				e.answer = unclear
				e.text = fmt.Sprintf("%s (whether the remedy took effect is not known: %s)", e.text, m.Unverified)
			}
			if e.on = []string{workload}; e.answer != missing && r.Rest != "" {
				e.answer, rest = min(e.answer, inPart), r.Rest
			}
			all = append(all, e)
		}
	}
	return append(all, evidence{text: rest})
}

// ask answers a row for a measurement m and, if compared is set, the measurement o to compare it
// with. They are nil if they were not measured.
func (v view) ask(r row, m, o *measured, compared bool) (e evidence) {
	if o != nil && strings.HasPrefix(r.Of, "slope") {
		if growth := o.state("growing"); growth.answer != yes && r.MustGrow {
			v.use(o)
			return growth
		} else if growth.answer != yes {
			return e
		}
	}
	if m == nil || compared && o == nil {
		return e
	}
	if v.use(m); !compared {
		return m.alone(r)
	}
	v.use(o)
	if r.Of == "" {
		e = m.alone(r)
		control := o.alone(r)
		if e.text = sentences(e.text, control.text); e.answer == yes && control.answer != no {
			e.answer = unclear
		}
		return e
	}
	if died := o.state("out of memory"); died.answer == yes && r.Below > 0 {
		// The amount that o needs is unknown. It is more than that of m if m has enough memory.
		e = m.state("not out of memory")
		e.text = sentences(died.text, e.text)
		return e
	}
	x := m.ratio(r.Of, o)
	return evidence{answer: r.decide(x), text: fmt.Sprintf("%s against %s: %s %s", m.name, o.name, r.Of, x.Times(true))}
}

func (v view) use(m *measured) { v.used[m.Workload+"/"+m.Remedy] = true }

// alone answers a row about a state or a share.
func (m *measured) alone(r row) evidence {
	if r.Is != "" {
		return m.state(r.Is)
	}
	x, n := over(m.runs, r.Share)
	return evidence{answer: r.decide(x), text: fmt.Sprintf("%s: what %s is %s of it in %d of %d runs", m.name, r.Share,
		x.Times(true), n, len(m.runs))}
}

// state answers whether a measurement is growing, out of memory, or out of GPU memory, or "not" so.
// Runs that ran out of memory after the first step were growing. A sawtooth is no growth.
func (m *measured) state(is string) (e evidence) {
	if is, ok := strings.CutPrefix(is, "not "); ok {
		if e = m.state(is); e.known() {
			e.answer = no + yes - e.answer
		}
		return e
	}
	growth, kind := is == "growing", m.Verdict.Kind
	died := m.died(is == "out of GPU memory", growth)
	switch {
	case died > 0 && 2*died >= len(m.runs), growth && kind == memory.Leak:
		e.answer = yes
	case died > 0, kind == memlayer.Crash, growth && kind == memory.Inconclusive:
		e.answer = unclear
	default:
		e.answer = no
	}
	e.text = fmt.Sprintf("%s: %d of %d runs ran out of memory", m.name, died, len(m.runs))
	if outline := *m.Verdict; growth && died == 0 {
		if outline.NoiseFloor = 0; e.answer == no {
			outline.Cause = ""
		}
		e.text = fmt.Sprintf("%s: %v", m.name, outline)
	}
	return e
}

// died returns how many runs ran out of memory, of a GPU only or after the first step only.
// TensorFlow or the kernel reported the lack of memory, or an allocation failed under a limit.
func (m *measured) died(gpu, stepped bool) (n int) {
	words := []string{"bad_alloc", "MemoryError", "out of memory", "OOM", "annot allocate memory"}
	for _, run := range m.runs {
		has := func(word string) bool { return strings.Contains(run.Cause, word) }
		limited := run.Failure == runner.Failed && has(" limit of ") && slices.ContainsFunc(words, has)
		_, first := run.Phases[runner.First]
		if (run.Failure == runner.OutOfMemory || limited) && (first || !stepped) && (!gpu || has("GPU_")) {
			n++
		}
	}
	return n
}

// amount returns an amount or a share of a run, or NaN if it is unknown.
func (run *RunResult) amount(of string) float64 {
	level := func(phase string) float64 {
		sample := run.Phases[phase]
		return number(sample.Get(memory.Anon))
	}
	loaded, steps := level(program.Loaded), level(runner.Steady)-level(program.Loaded)
	switch of {
	case program.Loaded, runner.Steady, program.Closed, program.Trimmed:
		return level(of)
	case "seconds":
		return run.Seconds
	case "time of a step":
		return number(run.Outcome.StepTime)
	case "peak":
		return number(run.Outcome.Peak)
	case "slope":
		return run.Outcome.Verdict.Slope.Estimate
	case "GPU memory":
		return number(run.Outcome.GPU)
	case "GPU memory that TensorFlow hands out":
		return number(pools(run, onGPU))
	case "memory that TensorFlow hands out":
		return number(pools(run, func(name string) bool { return !onGPU(name) }))
	case "jump from loading to the last step":
		return steps
	case "the first step adds to the memory after loading":
		return (level(runner.First) - loaded) / loaded
	case "the steps add to the memory after loading":
		return steps / loaded
	case "closing leaves of the memory that the steps added":
		if steps > 0.05*loaded { // or there is too little to tell
			return (level(program.Closed) - loaded) / steps
		}
	}
	return math.NaN()
}

func number(r memory.Reading) float64 {
	if !r.OK {
		return math.NaN()
	}
	return float64(r.Bytes)
}

// over returns the median and the range of an amount over the n successful runs that have it.
func over(runs []*RunResult, of string) (x compare.Ratio, n int) {
	var all []float64
	for _, run := range runs {
		if a := run.amount(of); run.Failure == "" && !math.IsNaN(a) {
			all = append(all, a)
		}
	}
	if len(all) > 0 {
		x.OK, x.Estimate, x.Low, x.High = true, stats.Median(all), slices.Min(all), slices.Max(all)
	}
	return x, len(all)
}

// ratio returns the ratio of an amount to that of another measurement: from the comparison with the
// runs without the remedy, or else from the ranges over at least three runs.
func (m *measured) ratio(of string, o *measured) (x compare.Ratio) {
	if c := m.Comparison; c != nil && o.Remedy == Baseline && o.Workload == m.Workload {
		if x, ok := map[string]compare.Ratio{"peak": c.Peak, "slope": c.Slope, "slope per sample": c.Slope,
			"time of a step": c.StepTime, "GPU memory": c.GPU}[of]; ok {
			return x
		}
	}
	a, n := over(m.runs, of)
	b, k := over(o.runs, of)
	x.OK, x.Estimate = min(n, k) > 2 && b.Low > 0, a.Estimate/b.Estimate
	x.Low, x.High = min(a.Low/b.High, a.Low/b.Low), max(a.High/b.Low, a.High/b.High)
	return x
}

// decide answers whether a ratio is below or above the threshold, by its whole interval. If the
// threshold is well below 1, the answer is "in part" for what is certainly lower than 1, and no from
// 0.8, since slopes scatter.
func (r row) decide(x compare.Ratio) answer {
	switch {
	case !x.OK:
	case r.Above > 0 && x.Low > r.Above, r.Below > 0 && x.High <= r.Below:
		return yes
	case r.Below > 0 && r.Below < 0.95 && x.High < 0.95:
		return inPart
	case r.Above > 0 && x.High <= r.Above, r.Below > 0 && x.Low >= max(0.8, r.Below):
		return no
	}
	return unclear
}
