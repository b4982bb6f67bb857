package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/stats"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// fact is a condition of the measurement.
type fact struct{ Name, Value string }

// trust sets the alarms, or the sentence that the calibration succeeded.
func (v *view) trust() {
	r := v.Result
	leaks, off, controls := 0, 0.01, 0 // off in percent
	for _, c := range r.Calibration {
		switch {
		case !c.OK:
			v.Alarms = append(v.Alarms, fmt.Sprintf("Calibration failed on %s, %s: %s", c.Runtime, c.Workload, sentence(c.Text)))
		case c.Expected == 0:
			controls++
		default:
			leaks++
			off = max(off, 100*math.Abs(c.Slope.Estimate/c.Expected-1))
		}
	}
	if len(r.Calibration) == 0 {
		v.Alarms = append(v.Alarms, "The matrix has no calibration, so nothing shows that its measurements can be trusted.")
	}
	if !r.Complete {
		v.Alarms = append(v.Alarms, fmt.Sprintf("The matrix is incomplete: it ended after %s, before all of its runs were "+
			"done.", texts.Count(len(r.Runs), "run")))
	}
	if len(v.Alarms) == 0 {
		v.Calibrated = "The calibration succeeded: " + strings.Join(present(
			when(leaks > 0, fmt.Sprintf("%s of known size measured to within %.2f%%", texts.Count(leaks, "leak"), off)),
			when(controls > 0, texts.Count(controls, "loop")+" without a leak judged as such")), ", and ") + "."
	}
}

// conditions returns six facts about the machine, three about the matrix, and others.
func conditions(r *matrix.Result) []fact {
	e, s := r.Environment, r.Settings
	var variables, versions []string
	for _, name := range slices.Sorted(maps.Keys(e.Variables)) {
		variables = append(variables, name+"="+e.Variables[name])
	}
	for _, name := range slices.Sorted(maps.Keys(e.TensorFlow)) {
		versions = append(versions, e.TensorFlow[name]+" ("+name+")")
	}
	seconds := 0.0
	for i := range r.Runs {
		seconds += r.Runs[i].Seconds
	}
	took := time.Duration(seconds * float64(time.Second)).Round(time.Second)
	return []fact{
		{"Processor", facts(e.CPU, when(e.Cores > 0, texts.Count(e.Cores, "core")))},
		{"Memory", facts(inBytes(e.Memory), when(e.Limit > 0, "limited to "+inBytes(e.Limit)))},
		{"GPUs", cmp.Or(strings.Join(e.GPUs, ", "), "none")},
		{"TensorFlow", strings.Join(versions, ", ")},
		{"Keras", facts(e.Keras, when(e.Python != "", "Python "+e.Python))},
		{"System", facts(strings.Trim(e.OS+"/"+e.Arch, "/"), e.Kernel)},
		{"Measured", r.Started.UTC().Format("2 January 2006 15:04 UTC")},
		{"Matrix", facts(texts.Count(len(r.Workloads), "workload"), fmt.Sprintf("%d remedies", max(len(r.Remedies)-1, 0)),
			fmt.Sprintf("%s in %s", texts.Count(len(r.Runs), "run"), took))},
		{"steadyfit", facts(r.Version, e.Go)},
		{"Variables", cmp.Or(strings.Join(variables, " "), "none that a measurement depends on")},
		{"Load before and after", fmt.Sprintf("%.2f, %.2f", e.LoadBefore, e.LoadAfter)},
		{"Settings", facts(texts.Count(s.Pairs, "pair")+" per remedy", fmt.Sprintf("seed %d", s.Seed),
			fmt.Sprintf("intervals of slopes at %g%%", 100*cmp.Or(s.Confidence, stats.Confidence)), when(s.Quick, "quick"))},
	}
}

// workloadFacts describes the length and limits of a workload.
func workloadFacts(w matrix.Workload) string {
	return facts(when(w.Model != "", "model "+w.Model), when(w.Steps > 0, texts.Count(w.Steps, "step")),
		when(w.Epoch > 0 && w.Epoch < w.Steps, fmt.Sprintf("epochs of %d", w.Epoch)),
		when(w.Every > 1, fmt.Sprintf("a sample every %d", w.Every)), when(w.Batch > 0, fmt.Sprintf("batch %d", w.Batch)),
		when(w.Budget > 0, "budget "+inBytes(w.Budget)+" per step"), when(w.Limit > 0, "under a limit of "+inBytes(w.Limit)))
}

// inBytes formats a size; empty for 0.
func inBytes(n int64) string { return when(n != 0, memory.Bytes(n).String()) }

// facts joins the parts of a line that are known.
func facts(parts ...string) string { return strings.Join(present(parts...), ", ") }

func present(parts ...string) []string {
	return slices.DeleteFunc(parts, func(s string) bool { return s == "" })
}
