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
	"steadyfit/internal/lab/measure"
	"steadyfit/internal/stats"
	"steadyfit/matrix"
)

// Report is the content of bench.json.
type Report struct {
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Commit is the commit of the source, with "+" if files differ from it; empty outside of a
	// repository.
	Commit      string             `json:"commit,omitempty"`
	Environment matrix.Environment `json:"environment"`
	// Turns is the number of requested turns, and Done that of completed ones.
	Turns     int        `json:"turns"`
	Done      int        `json:"turns_done"`
	Workloads []Workload `json:"workloads"`
	// Summary has a row for each variant of each workload, computed from Runs.
	Summary []Row    `json:"summary"`
	Absent  []Absent `json:"absent"`
	Runs    []Run    `json:"runs"`
}

// Absent is a variant without figures on a workload.
type Absent struct {
	Workload string `json:"workload"`
	Variant  string `json:"arm"`
	Reason   string `json:"reason"`
	// Failed is true if the variant ran, and crashed or did different work than the others.
	Failed bool `json:"failed,omitempty"`
}

// Estimate is a median over turns with a 95% interval. Low and High are 0 if there is no
// interval, as with a single turn.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low,omitempty"`
	High  float64 `json:"high,omitempty"`
}

// Row is a variant on a workload. Amounts are medians over the turns; 0 is unknown.
type Row struct {
	Workload string `json:"workload"`
	Variant  string `json:"arm"`
	Turns    int    `json:"turns"`
	// StepNS is the time of a step; of each run, it takes the median over the epochs.
	StepNS         Estimate `json:"step_ns"`
	StepsPerSecond float64  `json:"steps_per_second"`
	// ToBase and ToKeras are ratios of that time to those of the variants c and keras-fit,
	// paired by turn: 2 means twice the time. 0 is unknown.
	ToBase  Estimate `json:"to_c,omitzero"`
	ToKeras Estimate `json:"to_keras_fit,omitzero"`
	// CPUNS is the processor time of a step, summed over all processors. FirstStepNS is the time
	// from the start of the process to the end of the first step.
	CPUNS       float64 `json:"cpu_ns"`
	FirstStepNS float64 `json:"first_step_ns,omitempty"`
	// Anon is the anonymous memory after the last step and Peak the largest resident memory, in
	// bytes. Growth is the slope of the anonymous memory over the measured epochs, in bytes per
	// step.
	Anon   float64 `json:"anon_bytes"`
	Peak   float64 `json:"peak_bytes"`
	Growth float64 `json:"growth_bytes_per_step"`
}

func newReport(ctx context.Context) *Report {
	return &Report{Started: time.Now().UTC(), Commit: measure.Commit(ctx), Environment: matrix.ReadEnvironment(nil), Absent: []Absent{}}
}

func (r *Report) absent(workload, variant, reason string, failed bool) {
	r.Runs = slices.DeleteFunc(r.Runs, func(run Run) bool { return run.Workload == workload && run.Variant == variant })
	r.Absent = append(r.Absent, Absent{workload, variant, reason, failed})
}

func (r *Report) isAbsent(workload, variant string) bool {
	return slices.ContainsFunc(r.Absent, func(a Absent) bool { return a.Workload == workload && a.Variant == variant })
}

// failed is the error about variants that ran without a usable result.
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

// finish computes the summary after a number of turns.
func (r *Report) finish(done int) {
	r.Done, r.Ended, r.Environment.LoadAfter = done, time.Now().UTC(), matrix.LoadAverage()
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

// growth returns the slope of the anonymous memory per step.
func growth(run *Run, steps int) float64 {
	var at, held []float64
	for i, anon := range run.Anon {
		at, held = append(at, float64(i*steps)), append(held, float64(anon))
	}
	return measure.TheilSen(at, held)
}

// overTurns returns the median of positive amounts with the interval of their geometric mean.
func overTurns(column map[int]float64) Estimate {
	var logs []float64
	for _, turn := range slices.Sorted(maps.Keys(column)) { // a fixed order gives sums with the same bits
		logs = append(logs, math.Log(column[turn]))
	}
	e := Estimate{Value: middle(column)}
	if len(logs) > 1 {
		_, low, high := stats.Mean(logs, 0.95)
		e.Low, e.High = math.Exp(low), math.Exp(high)
	}
	return e
}

// ratio returns the ratio of two variants in the same turns.
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

// write writes bench.json, bench.txt and bench.svg.
func (r *Report) write(dir string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	var lines, picture bytes.Buffer
	r.benchmark(&lines)
	r.picture(&picture)
	return errors.Join(
		files.Replace(filepath.Join(dir, "bench.json"), append(text, '\n')),
		files.Replace(filepath.Join(dir, "bench.txt"), lines.Bytes()),
		files.Replace(filepath.Join(dir, "bench.svg"), picture.Bytes()))
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
		fmt.Fprintf(w, "BenchmarkStep/workload=%s/arm=%s-%d\t%d\t%.0f ns/op\t%.1f steps/s\t%d anon-bytes\t%d peak-bytes\t%.0f cpu-ns/op", run.Workload, run.Variant, e.Cores,
			run.Steps, step, 1e9/step, run.Anon[len(run.Anon)-1], run.Peak, float64(run.CPU)/float64(run.Steps))
		if run.FirstStepNS > 0 {
			fmt.Fprintf(w, "\t%d first-step-ns", run.FirstStepNS)
		}
		fmt.Fprintln(w)
	}
}

// table writes the summary for the terminal.
func (r *Report) table(out io.Writer) {
	e := r.Environment
	fmt.Fprintf(out, "%s, %d cores, %d of %d turns; load average %.1f before, %.1f after\n", e.CPU, e.Cores, r.Done, r.Turns, e.LoadBefore, e.LoadAfter)
	for _, w := range r.Workloads {
		fmt.Fprintf(out, "\n%s: batch %d, %d steps after %d\n", w.Name, w.Batch, w.Steps*w.Epochs, w.Steps)
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(t, "variant\tus/step\t[95%%]\tsteps/s\tx %s\t[95%%]\tx %s\t[95%%]\tCPU us/step\tfirst step ms\tanon MB\tpeak MB\tKB/step\t\n", baseVariant, kerasVariant)
		for _, row := range r.Summary {
			if row.Workload == w.Name {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.0f\t%.1f\t\n", row.Variant, row.StepNS.cells(1e3), number(row.StepsPerSecond, 1),
					row.ToBase.cells(1), row.ToKeras.cells(1), number(row.CPUNS, 1e3), number(row.FirstStepNS, 1e6), row.Anon/1e6, row.Peak/1e6, row.Growth/1e3)
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
		fmt.Fprintf(out, "\n~ Intervals from %d turns are wide; take 5 or more.\n", r.Done)
	}
}

// chosen lists the choices of the variants with --auto.
func (r *Report) chosen(workload string) []string {
	var lines []string
	for _, run := range r.Runs {
		if line := run.Variant + ": " + run.Auto; run.Workload == workload && run.Auto != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// number formats an amount in a unit with at least three significant digits; 0 is unknown.
func number(v, unit float64) string {
	if v == 0 {
		return "-"
	}
	if v /= unit; v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// cells returns two cells of a table: the value and the interval.
func (e Estimate) cells(unit float64) string {
	interval := ""
	if e.High > 0 {
		interval = fmt.Sprintf("[%s, %s]", number(e.Low, unit), number(e.High, unit))
	}
	return number(e.Value, unit) + "\t" + interval
}
