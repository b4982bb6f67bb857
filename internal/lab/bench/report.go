package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"steadyfit/internal/files"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/measure"
	"steadyfit/internal/stats"
)

// Report is the content of bench.json.
type Report struct {
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Commit is the commit of the source; see measure.Commit.
	Commit      string              `json:"commit,omitempty"`
	Environment machine.Environment `json:"environment"`
	// Done of the requested Turns are complete.
	Turns     int        `json:"turns"`
	Done      int        `json:"turns_done"`
	Workloads []Workload `json:"workloads"`
	// Summary has a row for each variant of each workload.
	Summary []Row    `json:"summary"`
	Absent  []Absent `json:"absent"`
	Runs    []Run    `json:"runs"`
}

// Absent is a variant without figures.
type Absent struct {
	Workload string `json:"workload"`
	Variant  string `json:"arm"`
	Reason   string `json:"reason"`
	// Failed means that the variant crashed or did different work than the others.
	Failed bool `json:"failed,omitempty"`
}

// Estimate is a median over turns with a 95% interval. A single turn has no interval: Low and
// High are 0.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low,omitempty"`
	High  float64 `json:"high,omitempty"`
}

// Row has medians over the turns; 0 is unknown.
type Row struct {
	Workload string `json:"workload"`
	Variant  string `json:"arm"`
	Turns    int    `json:"turns"`
	// StepNS is the time of a step, from the median epoch of each run.
	StepNS         Estimate `json:"step_ns"`
	StepsPerSecond float64  `json:"steps_per_second"`
	// ToBase and ToKeras are the ratios of StepNS to that of the variants c and keras-fit in
	// the same turn: 2 means twice the time.
	ToBase  Estimate `json:"to_c,omitzero"`
	ToKeras Estimate `json:"to_keras_fit,omitzero"`
	// CPUNS is the processor time of a step on all processors. FirstStepNS is the time from the
	// start of the process to the end of its first step.
	CPUNS       float64 `json:"cpu_ns"`
	FirstStepNS float64 `json:"first_step_ns,omitempty"`
	// Anon is the anonymous memory after the last step, Peak the largest resident memory, both
	// in bytes. Growth is the slope of anonymous memory in bytes per step.
	Anon   float64 `json:"anon_bytes"`
	Peak   float64 `json:"peak_bytes"`
	Growth float64 `json:"growth_bytes_per_step"`
}

func newReport(ctx context.Context) *Report {
	return &Report{Started: time.Now().UTC(), Commit: measure.Commit(ctx), Environment: machine.Read(nil),
		Absent: []Absent{}}
}

func (r *Report) absent(workload, variant, reason string, failed bool) {
	r.Runs = slices.DeleteFunc(r.Runs, func(run Run) bool { return run.Workload == workload && run.Variant == variant })
	r.Absent = append(r.Absent, Absent{workload, variant, reason, failed})
}

func (r *Report) isAbsent(workload, variant string) bool {
	return slices.ContainsFunc(r.Absent, func(a Absent) bool { return a.Workload == workload && a.Variant == variant })
}

func (r *Report) failed() error {
	var names []string
	for _, a := range r.Absent {
		if a.Failed {
			names = append(names, a.Workload+"/"+a.Variant)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("failed or refused: %s", strings.Join(names, ", "))
}

func (r *Report) finish(done int) {
	r.Done, r.Ended, r.Environment.LoadAfter = done, time.Now().UTC(), machine.LoadAverage()
	r.Summary = nil
	for _, w := range r.Workloads {
		times := make(map[string]map[int]float64)
		for _, a := range variants {
			times[a.name] = r.column(w.Name, a.name, (*Run).stepNS)
		}
		for _, a := range variants {
			own := times[a.name]
			if len(own) == 0 {
				continue
			}
			column := func(amount func(*Run) float64) float64 { return middle(r.column(w.Name, a.name, amount)) }
			row := Row{Workload: w.Name, Variant: a.name, Turns: len(own), StepNS: overTurns(own),
				CPUNS:       column(func(run *Run) float64 { return float64(run.CPU) / float64(run.Steps) }),
				FirstStepNS: column(func(run *Run) float64 { return float64(run.FirstStepNS) }),
				Anon:        column(func(run *Run) float64 { return float64(run.Anon[len(run.Anon)-1]) }),
				Peak:        column(func(run *Run) float64 { return float64(run.Peak) }),
				Growth:      column(func(run *Run) float64 { return growth(run, w.Steps) }),
			}
			row.StepsPerSecond = 1e9 / row.StepNS.Value
			if a.name != baseVariant {
				row.ToBase = ratio(own, times[baseVariant])
			}
			if a.name != kerasVariant {
				row.ToKeras = ratio(own, times[kerasVariant])
			}
			r.Summary = append(r.Summary, row)
		}
	}
	r.Environment.TensorFlow = map[string]string{}
	for _, run := range r.Runs {
		if v := run.Versions["tensorflow"]; v != "" {
			r.Environment.TensorFlow[run.Variant] = v
		}
		if v := run.Versions["keras"]; v != "" {
			r.Environment.Keras, r.Environment.Python = v, run.Versions["python"]
		}
	}
}

func growth(run *Run, steps int) float64 {
	var at, held []float64
	for i, anon := range run.Anon {
		at, held = append(at, float64(i*steps)), append(held, float64(anon))
	}
	return measure.TheilSen(at, held)
}

// overTurns returns the median with the interval of the geometric mean.
func overTurns(column map[int]float64) Estimate {
	var logs []float64
	for _, turn := range slices.Sorted(maps.Keys(column)) { // a fixed order gives reproducible sums
		logs = append(logs, math.Log(column[turn]))
	}
	e := Estimate{Value: middle(column)}
	if len(logs) > 1 {
		_, low, high := stats.Mean(logs, 0.95)
		e.Low, e.High = math.Exp(low), math.Exp(high)
	}
	return e
}

// ratio returns the ratio of two variants, which are compared within each turn.
func ratio(own, base map[int]float64) Estimate {
	ratios := make(map[int]float64)
	for turn, v := range own {
		if b, ok := base[turn]; ok && b > 0 {
			ratios[turn] = v / b
		}
	}
	if len(ratios) == 0 {
		return Estimate{}
	}
	return overTurns(ratios)
}

func (r *Report) write(dir string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	r.benchmark(&lines)
	return errors.Join(
		files.Replace(filepath.Join(dir, "bench.json"), append(text, '\n')),
		files.Replace(filepath.Join(dir, "bench.txt"), lines.Bytes()))
}

// benchmark writes a line per run in Go benchmark format. An op is a step.
func (r *Report) benchmark(w io.Writer) {
	e := r.Environment
	for _, line := range [][2]string{
		{"goos", e.OS}, {"goarch", e.Arch}, {"pkg", "steadyfit/bench"}, {"cpu", e.CPU}, {"kernel", e.Kernel},
		{"go-version", e.Go}, {"commit", r.Commit}, {"tensorflow", e.TensorFlow[baseVariant]}, {"keras", e.Keras},
	} {
		if line[1] != "" {
			fmt.Fprintf(w, "%s: %s\n", line[0], line[1])
		}
	}
	fmt.Fprint(w, "\nUnit steps/s better=higher\n")
	for _, unit := range []string{"cpu-ns/op", "first-step-ns", "anon-bytes", "peak-bytes"} {
		fmt.Fprintf(w, "Unit %s better=lower\n", unit)
	}
	fmt.Fprintln(w)
	for i := range r.Runs {
		run := &r.Runs[i]
		step := run.stepNS()
		fmt.Fprintf(w, "BenchmarkStep/workload=%s/arm=%s-%d\t%d\t%.0f ns/op\t%.1f steps/s\t%d anon-bytes\t%d "+
			"peak-bytes\t%.0f cpu-ns/op", run.Workload, run.Variant, e.Cores,
			run.Steps, step, 1e9/step, run.Anon[len(run.Anon)-1], run.Peak, float64(run.CPU)/float64(run.Steps))
		if run.FirstStepNS > 0 {
			fmt.Fprintf(w, "\t%d first-step-ns", run.FirstStepNS)
		}
		fmt.Fprintln(w)
	}
}

func (r *Report) table(out io.Writer) {
	e := r.Environment
	fmt.Fprintf(out, "%s, %d cores, %d of %d turns; load average %.1f before, %.1f after\n", e.CPU, e.Cores, r.Done,
		r.Turns, e.LoadBefore, e.LoadAfter)
	for _, w := range r.Workloads {
		fmt.Fprintf(out, "\n%s: batch %d, %d steps after %d\n", w.Name, w.Batch, w.Steps*w.Epochs, w.Steps)
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(t, "variant\tus/step\t[95%%]\tsteps/s\tx %s\t[95%%]\tx %s\t[95%%]\tCPU us/step\tfirst step ms\tanon "+
			"MB\tpeak MB\tKB/step\t\n", baseVariant, kerasVariant)
		for _, row := range r.Summary {
			if row.Workload == w.Name {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.0f\t%.1f\t\n", row.Variant, row.StepNS.cells(1e3),
					number(row.StepsPerSecond, 1),
					row.ToBase.cells(1), row.ToKeras.cells(1), number(row.CPUNS, 1e3), number(row.FirstStepNS, 1e6), row.Anon/1e6,
					row.Peak/1e6, row.Growth/1e3)
			}
		}
		t.Flush()
		for _, line := range r.chosen(w.Name) {
			fmt.Fprintf(out, "  %s\n", line)
		}
		for _, a := range r.Absent {
			if a.Workload == w.Name {
				fmt.Fprintf(out, "  no %s: %s\n", a.Variant, a.Reason)
			}
		}
	}
	switch {
	case r.Done == 1:
		fmt.Fprintln(out, "\n~ One turn gives no intervals.")
	case r.Done < 4:
		fmt.Fprintf(out, "\n~ Intervals from %d turns are wide; use at least 5 turns.\n", r.Done)
	}
}

func (r *Report) chosen(workload string) []string {
	var lines []string
	for _, run := range r.Runs {
		if line := run.Variant + ": " + run.Auto; run.Workload == workload && run.Auto != "" &&
			!slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// number formats an amount with at least three significant digits; 0 is unknown.
func number(v, unit float64) string {
	if v == 0 {
		return "-"
	}
	if v /= unit; v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func (e Estimate) cells(unit float64) string {
	interval := ""
	if e.High > 0 {
		interval = fmt.Sprintf("[%s, %s]", number(e.Low, unit), number(e.High, unit))
	}
	return number(e.Value, unit) + "\t" + interval
}
