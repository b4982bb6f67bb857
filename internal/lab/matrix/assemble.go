package matrix

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// assemble derives everything in a result from its runs.
func (p *Plan) assemble(r *Result, settled map[combinationID]Combination, jobs []job) (err error) {
	r.Ended = time.Now()
	r.Workloads, r.Remedies = p.Workloads, append([]Remedy{Remedies()[0]},
		slices.DeleteFunc(slices.Clone(p.Remedies), func(x Remedy) bool { return x.ID == Baseline })...)
	runs := make(map[combinationID][]*RunResult)
	for i := range r.Runs {
		run := &r.Runs[i]
		id := combinationID{run.Runtime, run.Workload, run.Remedy}
		runs[id] = append(runs[id], run)
	}
	wanted := make(map[combinationID]bool)
	for _, j := range jobs {
		wanted[j.id()] = true
	}
	for _, runtime := range p.Runtimes {
		for _, w := range p.Workloads {
			base := runs[combinationID{runtime, w.ID, Baseline}]
			for _, remedy := range r.Remedies {
				id := combinationID{runtime, w.ID, remedy.ID}
				if c, ok := settled[id]; ok {
					r.Combinations = append(r.Combinations, c)
				} else if wanted[id] && len(runs[id]) > 0 {
					r.Combinations = append(r.Combinations, p.combine(remedy, runs[id], base))
				}
			}
			if c, ok := calibrate(runtime, w, base); ok {
				r.Calibration = append(r.Calibration, c)
			}
		}
	}
	finish(&r.Environment, r.Runs)
	r.Claims, err = ledger(r)
	thin(r, runs)
	return err
}

// finish adds the facts that the runs reported.
func finish(e *machine.Environment, runs []RunResult) {
	e.LoadAfter = machine.LoadAverage()
	for _, run := range runs {
		if version, ok := run.Facts["tensorflow"]; ok {
			e.TensorFlow[run.Runtime] = version
		}
		if version, ok := run.Facts["keras"]; ok {
			e.Keras = version
		}
		if version, ok := run.Facts["python"]; ok {
			e.Python = version
		}
	}
}

func neverRan(run *RunResult) bool { return unmeasurable(run.Failure) }

// paired pairs runs with the baseline runs of the same pair and group. without has these baseline
// runs.
func paired(runs, base []*RunResult) (pairs []compare.Pair, without []*RunResult) {
	for _, run := range runs {
		for _, b := range base {
			if b.Pair == run.Pair && b.Group == run.Group {
				without = append(without, b)
				pairs = append(pairs, compare.Pair{Base: b.Outcome, Remedy: run.Outcome})
			}
		}
	}
	return pairs, without
}

// combine summarizes the runs of a combination.
func (p *Plan) combine(remedy Remedy, runs, base []*RunResult) Combination {
	c := Combination{Runtime: runs[0].Runtime, Workload: runs[0].Workload, Remedy: remedy.ID, Figures: figures(runs)}
	for _, run := range runs {
		c.Runs = append(c.Runs, run.ID)
		if run.Failure != "" {
			c.Crashes = append(c.Crashes, fmt.Sprintf("%s: %s", run.Failure, run.Cause))
		}
		if run.Failure == "" {
			c.Unverified = cmp.Or(c.Unverified, run.Unverified)
		}
	}
	verdict := Middle(runs).Outcome.Verdict
	if parts := kindsOf(runs); len(parts) > 1 {
		verdict.Notes = append(slices.Clone(verdict.Notes),
			fmt.Sprintf("its %d runs differ: %s", len(runs), strings.Join(parts, ", ")))
	}
	c.Verdict = &verdict
	if remedy.ID == Baseline {
		c.Reason = c.Verdict.String()
		return c
	}
	pairs, without := paired(runs, base)
	for _, b := range without {
		c.Base = append(c.Base, b.ID)
	}
	if n := slices.IndexFunc(runs, neverRan); n >= 0 {
		c.Effect, c.Reason = compare.CouldNotApply, runs[n].Cause
		if runs[n].Failure == runner.NotApplicable {
			c.Effect = compare.NotApplicable
		}
		c.Verdict = nil
		return c
	}
	c.Unverified = cmp.Or(c.Unverified, unseenTrace(remedy, without), unseenPairs(remedy, runs, without))
	if len(pairs) < 2 {
		c.Effect, c.Reason = compare.Unclear, fmt.Sprintf("%d pair: a comparison takes 2", len(pairs))
		return c
	}
	comparison := compare.Runs(pairs, goal(remedy, without), uint64(p.Seed))
	if divided := remedy.dividesBatch(); divided > 1 && comparison.Goal == compare.LowerSlope {
		perStep := comparison.Effect
		for i := range pairs {
			pairs[i].Remedy.Verdict = perSample(pairs[i].Remedy.Verdict, divided)
		}
		comparison = compare.Runs(pairs, compare.LowerSlope, uint64(p.Seed))
		comparison.Reason += ", for as many samples"
		if comparison.Effect == compare.Harmful { // an unchanged slope per step is not, although that per sample is larger
			comparison.Effect = perStep
		}
	}
	c.Comparison, c.Effect, c.Reason = &comparison, comparison.Effect, comparison.Reason
	return c
}

// perSample multiplies the slopes of a run whose batch was divided by the divisor. The slopes are
// then those of a step on the whole batch.
func perSample(v memory.Verdict, divided int) memory.Verdict {
	if v.Net != nil { // the stored verdict shares v.Net
		net := *v.Net
		v.Net = &net
		for _, slope := range []*float64{&net.Estimate, &net.Low, &net.High} {
			*slope *= float64(divided)
		}
	}
	for _, slope := range []*float64{&v.Slope.Estimate, &v.Slope.Low, &v.Slope.High, &v.NoiseFloor} {
		*slope *= float64(divided)
	}
	return v
}

// goal returns the goal of a comparison. GPU memory stays the goal of a remedy for GPU memory. For
// other remedies, the goal is the slope if memory grows without the remedy. If memory does not
// grow, it is the remedy's own goal, or the peak if that goal is the slope.
func goal(remedy Remedy, base []*RunResult) compare.Goal {
	switch {
	case remedy.Goal == compare.LowerGPU:
		return compare.LowerGPU
	case compare.Leaks(outcomes(base)):
		return compare.LowerSlope
	case remedy.Goal == compare.LowerSlope:
		return compare.LowerPeak
	}
	return remedy.Goal
}

// kindsOf returns the kinds of verdicts, each with its number, as in "2 flat".
func kindsOf(runs []*RunResult) (parts []string) {
	for _, kind := range kinds {
		if n := len(ofKind(runs, kind)); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind))
		}
	}
	return parts
}

func figures(runs []*RunResult) Figures {
	median := func(of string) *int64 {
		x, n := over(runs, of)
		if n == 0 {
			return nil
		}
		m := int64(x.Estimate)
		return &m
	}
	slope, _ := over(runs, "slope")
	seconds, _ := over(runs, "seconds")
	return Figures{Slope: slope.Interval, Seconds: seconds.Estimate, Peak: median("peak"),
		StepTime: median("time of a step"),
		Loaded:   median(program.Loaded), Level: median(runner.Steady), Closed: median(program.Closed),
		Trimmed: median(program.Trimmed), Pool: median("memory that TensorFlow hands out"), GPU: median("GPU memory"),
		GPUPool: median("GPU memory that TensorFlow hands out")}
}

// pools returns the most memory that allocators of TensorFlow held in the traced step.
func pools(run *RunResult, wanted func(name string) bool) (sum memory.Reading) {
	for fact, value := range run.Facts {
		name, is := strings.CutPrefix(fact, program.FactPool)
		if n, err := strconv.ParseInt(value, 10, 64); is && err == nil && wanted(name) {
			sum = memory.Known(sum.Bytes + memory.Bytes(n))
		}
	}
	return sum
}

// onGPU reports whether an allocator is a GPU's. The allocator gpu_host_bfc has memory of the host.
func onGPU(allocator string) bool { return strings.HasPrefix(allocator, "GPU_") }

// recovered is the maximum relative error with which a calibration succeeds.
const recovered = 0.05

func calibrate(runtime string, w Workload, base []*RunResult) (Calibration, bool) {
	if w.Leak == nil || len(base) == 0 {
		return Calibration{}, false
	}
	c := Calibration{Runtime: runtime, Workload: w.ID, Expected: float64(*w.Leak)}
	var slopes []float64
	wrong, undecided := 0, 0
	for _, run := range base {
		v := run.Outcome.Verdict
		c.Kinds = append(c.Kinds, v.Kind)
		slopes = append(slopes, v.Slope.Estimate)
		good := v.Kind == memory.Leak && math.Abs(v.Slope.Estimate-c.Expected) <= recovered*c.Expected
		if c.Expected == 0 {
			good = v.Kind == memory.Flat || v.Kind == memory.Jump || v.Kind == memory.Plateau
		}
		switch {
		case good:
		case v.Kind == memory.Inconclusive: // for example while another process keeps the machine busy
			undecided++
		default:
			wrong++
		}
	}
	c.OK = wrong == 0 && 2*undecided < len(base)
	c.Slope = memory.Interval{Estimate: stats.Median(slopes), Low: slices.Min(slopes), High: slices.Max(slopes)}
	what := fmt.Sprintf("a leak of %.0f B/step was measured as %.0f B/step [%.0f, %.0f]", c.Expected, c.Slope.Estimate,
		c.Slope.Low, c.Slope.High)
	if c.Expected == 0 {
		what = "a loop without a leak was called " + strings.Join(kindsOf(base), ", ")
	}
	c.Text = fmt.Sprintf("%s in %d runs", what, len(base))
	if wrong+undecided > 0 {
		c.Text += fmt.Sprintf("; %d of them were wrong, and %d inconclusive", wrong, undecided)
	}
	return c, true
}

// shownSamples is the number of samples per curve in a report.
const shownSamples = 96

// thin drops the data that only runs.jsonl has: trends, and all curves except those of the middle run of
// each combination. A curve is anonymous memory.
func thin(r *Result, runs map[combinationID][]*RunResult) {
	shown := make(map[int]bool)
	for _, all := range runs {
		shown[Middle(all).ID] = true
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		run.Outcome.Verdict.Trends = nil
		if run.Series != nil && shown[run.ID] {
			run.Series = run.Series.Thin(shownSamples, AnonOnly)
		} else {
			run.Series = nil
		}
	}
}

// AnonOnly returns the anonymous memory of a sample.
func AnonOnly(sample memory.Sample) memory.Sample {
	only := memory.Sample{Step: sample.Step, At: sample.At}
	if r := sample.Get(memory.Anon); r.OK {
		only.Set(memory.Anon, r)
	}
	return only
}
