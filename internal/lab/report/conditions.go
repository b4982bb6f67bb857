package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"steadyfit/internal/english"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// Alarms are warnings that stand above everything.
func (v *view) Alarms() []string {
	var list []string
	for _, c := range v.Calibration {
		if !c.OK {
			list = append(list, fmt.Sprintf("Calibration failed on %s, %s: %s", c.Runtime, c.Workload, calibrationText(c)))
		}
	}
	if len(v.Calibration) == 0 {
		list = append(list, "The matrix has no calibration, so nothing shows that its measurements can be trusted.")
	}
	if !v.Complete {
		list = append(list, fmt.Sprintf("The matrix is incomplete: it ended after %s, before all of its runs were done.", english.Count(len(v.Runs), "run")))
	}
	return list
}

// Calibrated is a sentence that the calibration succeeded, or "".
func (v *view) Calibrated() string {
	var leaks, controls int
	var names []string
	off := 0.0
	for _, c := range v.Calibration {
		if !slices.Contains(names, c.Runtime) {
			names = append(names, c.Runtime)
		}
		switch {
		case !c.OK:
			return ""
		case c.Expected == 0:
			controls++
		default:
			leaks++
			off = max(off, math.Abs(c.Slope.Estimate/c.Expected-1))
		}
	}
	var parts []string
	if leaks > 0 {
		parts = append(parts, fmt.Sprintf("a leak of known size was measured to within %.2f%%", max(100*off, 0.01)))
	}
	if controls > 0 {
		parts = append(parts, "the control without a leak shows no growth")
	}
	if len(parts) == 0 {
		return ""
	}
	return "The calibration succeeded: " + strings.Join(parts, ", and ") + orEmpty(", on ", english.List(names, "and")) + "."
}

func calibrationText(c matrix.Calibration) string {
	if c.Text != "" {
		return sentence(c.Text)
	}
	return fmt.Sprintf("expected %s, measured %s.", rate(memory.Interval{Estimate: c.Expected, Low: c.Expected, High: c.Expected}, false), rate(c.Slope, true))
}

// Machine describes the environment in one line.
func (v *view) Machine() string {
	e := v.Environment
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if e.CPU != "" {
		add("%s", e.CPU)
	}
	if e.Cores > 0 {
		add("%s", english.Count(e.Cores, "core"))
	}
	if e.Memory > 0 {
		add("%s of memory", memory.Bytes(e.Memory))
	}
	if e.Limit > 0 {
		add("limited to %s", memory.Bytes(e.Limit))
	}
	if len(e.GPUs) > 0 {
		add("%s", strings.Join(e.GPUs, ", "))
	} else {
		add("no GPU")
	}
	versions := map[string]bool{}
	var names []string
	for _, name := range v.runtimes {
		if version := e.TensorFlow[name]; version != "" {
			names = append(names, version+" ("+name+")")
			versions[version] = true
		}
	}
	switch len(versions) {
	case 0:
	case 1:
		add("TensorFlow %s", strings.Fields(names[0])[0])
	default:
		add("TensorFlow %s", strings.Join(names, ", "))
	}
	if e.Keras != "" {
		add("Keras %s", e.Keras)
	}
	if e.OS != "" {
		add("%s/%s", e.OS, e.Arch)
	}
	return strings.Join(parts, " · ")
}

// When is the time of the first run and the size of the matrix.
func (v *view) When() string {
	var parts []string
	began, took := v.Started, v.seconds()
	for i := range v.Runs {
		if at := v.Runs[i].Started; !at.IsZero() && at.Before(began) {
			began = at
		}
	}
	if !began.IsZero() {
		parts = append(parts, began.UTC().Format("2 January 2006 15:04 UTC"))
	}
	remedies := len(v.remedies) - 1
	parts = append(parts, fmt.Sprintf("%s × %d %s", english.Count(len(v.workloads), "workload"), remedies, map[bool]string{true: "remedy", false: "remedies"}[remedies == 1]))
	if v.Settings.Pairs > 0 {
		parts = append(parts, english.Count(v.Settings.Pairs, "pair")+" per remedy")
	}
	runs := english.Count(len(v.Runs), "run")
	if took > 0 {
		runs += " in " + lasted(time.Duration(took*float64(time.Second)))
	}
	parts = append(parts, runs)
	if v.Settings.Limit > 0 {
		parts = append(parts, "runs limited to "+memory.Bytes(v.Settings.Limit).String())
	}
	if v.Settings.Jobs > 1 {
		parts = append(parts, fmt.Sprintf("%d runs at a time", v.Settings.Jobs))
	}
	if v.Version != "" {
		parts = append(parts, "steadyfit "+v.Version)
	}
	return strings.Join(parts, " · ")
}

// workloadFacts describes the length and limits of a workload.
func workloadFacts(w matrix.Workload, runtime string) string {
	d := w.On[runtime] // 0 means no difference on this runtime
	steps, every, epoch := cmp.Or(d.Steps, w.Steps), cmp.Or(d.Every, w.Every), cmp.Or(d.Epoch, w.Epoch)
	var parts []string
	if w.Model != "" {
		parts = append(parts, "model "+w.Model)
	}
	if steps > 0 {
		text := english.Count(steps, "step")
		if epoch > 0 && epoch < steps {
			text += fmt.Sprintf(" in epochs of %d", epoch)
		}
		parts = append(parts, text)
	}
	if every > 1 {
		parts = append(parts, fmt.Sprintf("a sample every %d", every))
	}
	if w.Batch > 0 {
		parts = append(parts, fmt.Sprintf("batch %d", w.Batch))
	}
	if w.Budget > 0 {
		parts = append(parts, fmt.Sprintf("budget %s per step", memory.Bytes(w.Budget)))
	}
	if limit := limitOf(w, runtime); limit > 0 {
		parts = append(parts, "under a limit of "+memory.Bytes(limit).String())
	}
	return strings.Join(parts, " · ")
}

// Conditions returns the machine and the settings, as names and values.
func (v *view) Conditions() [][2]string {
	e, s := v.Environment, v.Settings
	amount := func(bytes int64, none string) string {
		if bytes <= 0 {
			return none
		}
		return memory.Bytes(bytes).String()
	}
	number := func(n int) string {
		if n <= 0 {
			return unknown
		}
		return fmt.Sprint(n)
	}
	rows := [][2]string{
		{"Processor", e.CPU}, {"Cores", number(e.Cores)}, {"Memory", amount(e.Memory, unknown)},
		{"Limit of the control group", amount(e.Limit, "none")},
		{"System", strings.TrimSpace(strings.Trim(e.OS+"/"+e.Arch, "/") + " " + e.Kernel)},
		{"GPUs", cmp.Or(strings.Join(e.GPUs, ", "), "none")},
	}
	for _, name := range v.runtimes {
		rows = append(rows, [2]string{"TensorFlow of " + name, e.TensorFlow[name]})
	}
	if e.Keras != "" || e.Python != "" {
		rows = append(rows, [2]string{"Keras", e.Keras}, [2]string{"Python", e.Python})
	}
	var variables []string
	for _, name := range slices.Sorted(maps.Keys(e.Variables)) {
		variables = append(variables, name+"="+e.Variables[name])
	}
	settings := fmt.Sprintf("%s per remedy, seed %d, intervals of slopes at %s%%", english.Count(s.Pairs, "pair"), s.Seed, significant(100*cmp.Or(s.Confidence, stats.Confidence), 2))
	if s.Quick {
		settings += ", the quick form"
	}
	if s.Jobs > 0 {
		settings += ", " + english.Count(s.Jobs, "run") + " at a time"
	}
	limit := amount(s.Limit, "none")
	if slices.ContainsFunc(v.workloads, func(w matrix.Workload) bool {
		return slices.ContainsFunc(v.runtimes, func(runtime string) bool { return limitOf(w, runtime) > 0 })
	}) {
		limit += ", except for workloads with their own limit"
	}
	if s.LimitKind != "" {
		limit += "; enforced by " + s.LimitKind
	}
	rows = append(rows, [2]string{"Go", e.Go},
		[2]string{"Variables", cmp.Or(strings.Join(variables, " "), "none that a measurement depends on")},
		[2]string{"Load before and after", fmt.Sprintf("%.2f, %.2f", e.LoadBefore, e.LoadAfter)},
		[2]string{"Settings", settings}, [2]string{"Limit of each run", limit})
	if took := v.seconds(); took > 0 {
		rows = append(rows, [2]string{"Time in runs", fmt.Sprintf("%.0f s in %s", math.Round(took), english.Count(len(v.Runs), "run"))})
	}
	for i := range rows {
		rows[i][1] = cmp.Or(rows[i][1], unknown)
	}
	return rows
}

func (v *view) seconds() (sum float64) {
	for i := range v.Runs {
		sum += v.Runs[i].Seconds
	}
	return sum
}
