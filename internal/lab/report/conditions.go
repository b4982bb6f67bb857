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

// Alarms returns the warnings for the top of the page.
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
		list = append(list, fmt.Sprintf("The matrix is incomplete: it ended after %s, before all of its runs were done.",
			texts.Count(len(v.Runs), "run")))
	}
	return list
}

// Calibrated returns a sentence that says that the calibration succeeded, or "".
func (v *view) Calibrated() (string, error) {
	var n struct {
		Leaks, Controls int
		Off             float64 // in percent
		Names           string
	}
	n.Off = 0.01
	var names []string
	for _, c := range v.Calibration {
		if !slices.Contains(names, c.Runtime) {
			names = append(names, c.Runtime)
		}
		switch {
		case !c.OK:
			return "", nil
		case c.Expected == 0:
			n.Controls++
		default:
			n.Leaks++
			n.Off = max(n.Off, 100*math.Abs(c.Slope.Estimate/c.Expected-1))
		}
	}
	n.Names = texts.List(names, "and")
	return phrase("calibrated", n)
}

func calibrationText(c matrix.Calibration) string {
	if c.Text != "" {
		return sentence(c.Text)
	}
	return fmt.Sprintf("expected %s, measured %s.", rate(memory.Interval{Estimate: c.Expected, Low: c.Expected,
		High: c.Expected}, false), rate(c.Slope, true))
}

// facts joins the parts of a line that are known.
func facts(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " · ")
}

// known formats a value; the text is empty for the zero value.
func known[T comparable](v T, format string) string {
	if v == *new(T) {
		return ""
	}
	return fmt.Sprintf(format, v)
}

// above1 is like known, but also empty for 1.
func above1(n int, format string) string {
	if n <= 1 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

func counted(n int, noun string) string {
	if n <= 0 {
		return ""
	}
	return texts.Count(n, noun)
}

// Machine describes the environment in one line.
func (v *view) Machine() string {
	e := v.Environment
	versions := map[string]bool{}
	var names []string
	for _, name := range v.runtimes {
		if version := e.TensorFlow[name]; version != "" {
			names = append(names, version+" ("+name+")")
			versions[version] = true
		}
	}
	if len(versions) == 1 {
		names = []string{strings.Fields(names[0])[0]}
	}
	return facts(e.CPU, counted(e.Cores, "core"), known(memory.Bytes(e.Memory), "%v of memory"),
		known(memory.Bytes(e.Limit), "limited to %v"),
		cmp.Or(strings.Join(e.GPUs, ", "), "no GPU"), known(strings.Join(names, ", "), "TensorFlow %s"),
		known(e.Keras, "Keras %s"),
		v.platform())
}

func (v *view) platform() string { return strings.Trim(v.Environment.OS+"/"+v.Environment.Arch, "/") }

// System returns the operating system with its kernel.
func (v *view) System() string { return strings.TrimSpace(v.platform() + " " + v.Environment.Kernel) }

// When returns the time of the first run and the size of the matrix.
func (v *view) When() string {
	began, when := v.Started, ""
	for i := range v.Runs {
		if at := v.Runs[i].Started; !at.IsZero() && at.Before(began) {
			began = at
		}
	}
	if !began.IsZero() {
		when = began.UTC().Format("2 January 2006 15:04 UTC")
	}
	remedies := len(v.remedies) - 1
	size := fmt.Sprintf("%s × %d %s", texts.Count(len(v.workloads), "workload"), remedies,
		map[bool]string{true: "remedy", false: "remedies"}[remedies == 1])
	runs := texts.Count(len(v.Runs), "run")
	if took := v.seconds(); took > 0 {
		runs += " in " + lasted(time.Duration(took*float64(time.Second)))
	}
	return facts(when, size, known(counted(v.Settings.Pairs, "pair"), "%s per remedy"), runs,
		known(memory.Bytes(v.Settings.Limit), "runs limited to %v"), above1(v.Settings.Jobs, "%d runs at a time"),
		known(v.Version, "steadyfit %s"))
}

// workloadFacts describes the length and limits of a workload.
func workloadFacts(w matrix.Workload, runtime string) string {
	w = w.For(runtime)
	steps := counted(w.Steps, "step")
	if w.Epoch > 0 && w.Epoch < w.Steps {
		steps += fmt.Sprintf(" in epochs of %d", w.Epoch)
	}
	return facts(known(w.Model, "model %s"), steps, above1(w.Every, "a sample every %d"), known(w.Batch, "batch %d"),
		known(memory.Bytes(w.Budget), "budget %v per step"), known(memory.Bytes(w.Limit), "under a limit of %v"))
}

// Variables and the methods below it describe the conditions of the runs.
func (v *view) Variables() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(v.Environment.Variables)) {
		list = append(list, name+"="+v.Environment.Variables[name])
	}
	return cmp.Or(strings.Join(list, " "), "none that a measurement depends on")
}

func (v *view) How() string {
	s := v.Settings
	text := fmt.Sprintf("%s per remedy, seed %d, intervals of slopes at %s%%", texts.Count(s.Pairs, "pair"), s.Seed,
		significant(100*cmp.Or(s.Confidence, stats.Confidence), 2))
	if s.Quick {
		text += ", the quick form"
	}
	return text + known(counted(s.Jobs, "run"), ", %s at a time")
}

func (v *view) Limits() string {
	text := cmp.Or(known(memory.Bytes(v.Settings.Limit), "%v"), "none")
	if slices.ContainsFunc(v.workloads, func(w matrix.Workload) bool {
		return slices.ContainsFunc(v.runtimes, func(runtime string) bool { return w.For(runtime).Limit > 0 })
	}) {
		text += ", except for workloads with their own limit"
	}
	return text + known(v.Settings.LimitKind, "; enforced by %s")
}

func (v *view) Took() string {
	if took := v.seconds(); took > 0 {
		return fmt.Sprintf("%.0f s in %s", math.Round(took), texts.Count(len(v.Runs), "run"))
	}
	return ""
}

func (v *view) seconds() (sum float64) {
	for i := range v.Runs {
		sum += v.Runs[i].Seconds
	}
	return sum
}
