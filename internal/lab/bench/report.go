package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"steadyfit/internal/files"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/stats"
)

// Report is the content of bench.json.
type Report struct {
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Commit is the commit of the source, with "-dirty" if files differ from it.
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

// Row has medians over the turns.
type Row struct {
	Workload string `json:"workload"`
	Variant  string `json:"arm"`
	// StepNS is the time of a step, from the median epoch of each run.
	StepNS Estimate `json:"step_ns"`
	// ToBase and ToAuto are the ratios of StepNS to that of the variants c and steadyfit-auto in
	// the same turn: 2 means twice the time.
	ToBase Estimate `json:"to_c,omitzero"`
	ToAuto Estimate `json:"to_auto,omitzero"`
	// FirstStepNS is the time from the start of the process to the end of its first step.
	FirstStepNS float64 `json:"first_step_ns"`
	// Anon is the anonymous memory after the last step, Peak the largest resident memory, both
	// in bytes. Growth is the slope of anonymous memory in bytes per step.
	Anon   float64 `json:"anon_bytes"`
	Peak   float64 `json:"peak_bytes"`
	Growth float64 `json:"growth_bytes_per_step"`
}

func newReport(ctx context.Context) *Report {
	r := &Report{Started: time.Now().UTC(), Environment: machine.Read(nil), Absent: []Absent{}}
	if out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=40").Output(); err == nil {
		r.Commit = strings.TrimSpace(string(out))
	}
	return r
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

// finish makes the summary after a turn.
func (r *Report) finish(done int) {
	r.Done, r.Ended, r.Environment.LoadAfter = done, time.Now().UTC(), machine.LoadAverage()
	r.Summary = nil
	for _, w := range r.Workloads {
		base := r.column(w.Name, baseVariant, (*Run).stepNS)
		auto := r.column(w.Name, autoVariant, (*Run).stepNS)
		for _, v := range variants {
			own := r.column(w.Name, v.name, (*Run).stepNS)
			if len(own) == 0 {
				continue
			}
			median := func(amount func(*Run) float64) float64 { return overTurns(r.column(w.Name, v.name, amount)).Value }
			row := Row{Workload: w.Name, Variant: v.name, StepNS: overTurns(own),
				FirstStepNS: median(func(run *Run) float64 { return float64(run.FirstStepNS) }),
				Anon:        median(func(run *Run) float64 { return float64(run.Anon[len(run.Anon)-1]) }),
				Peak:        median(func(run *Run) float64 { return float64(run.Peak) }),
				Growth:      median(func(run *Run) float64 { return growth(run, w.Steps) }),
			}
			if v.name != baseVariant {
				row.ToBase = ratio(own, base)
			}
			if v.name != autoVariant {
				row.ToAuto = ratio(own, auto)
			}
			r.Summary = append(r.Summary, row)
		}
	}
	for _, run := range r.Runs {
		r.Environment.TensorFlow[run.Variant] = run.Versions["tensorflow"]
		if v := run.Versions["keras"]; v != "" {
			r.Environment.Keras, r.Environment.Python = v, run.Versions["python"]
		}
	}
}

// column returns an amount of the runs of a variant, by turn.
func (r *Report) column(workload, variant string, amount func(*Run) float64) map[int]float64 {
	values := make(map[int]float64)
	for i := range r.Runs {
		if run := &r.Runs[i]; run.Workload == workload && run.Variant == variant {
			values[run.Turn] = amount(run)
		}
	}
	return values
}

func growth(run *Run, steps int) float64 {
	var at, held []float64
	for i, anon := range run.Anon {
		at, held = append(at, float64(i*steps)), append(held, float64(anon))
	}
	if len(at) < 2 {
		return 0
	}
	return stats.NewSlopes(at).Median(held)
}

// overTurns returns the median with the interval of the geometric mean.
func overTurns(column map[int]float64) Estimate {
	var values, logs []float64
	for _, turn := range slices.Sorted(maps.Keys(column)) { // a fixed order gives reproducible sums
		values, logs = append(values, column[turn]), append(logs, math.Log(column[turn]))
	}
	e := Estimate{Value: stats.Median(values)}
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
		if b, ok := base[turn]; ok {
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
	return files.Replace(filepath.Join(dir, "bench.json"), append(text, '\n'))
}

func (r *Report) table(out io.Writer) {
	e := r.Environment
	fmt.Fprintf(out, "%s, %d cores, %d of %d turns; load average %.1f before, %.1f after\n", e.CPU, e.Cores, r.Done,
		r.Turns, e.LoadBefore, e.LoadAfter)
	for _, w := range r.Workloads {
		fmt.Fprintf(out, "\n%s: batch %d, %d steps after %d\n", w.Name, w.Batch, w.Steps*w.Epochs, w.Steps)
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(t, "variant\tus/step\t[95%%]\tx %s\t[95%%]\tx %s\t[95%%]\tfirst step ms\tanon MB\tpeak MB\tKB/step\t\n",
			baseVariant, autoVariant)
		for _, row := range r.Summary {
			if row.Workload == w.Name {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.0f\t%.0f\t%.1f\t\n", row.Variant, row.StepNS.cells(1e3), row.ToBase.cells(1),
					row.ToAuto.cells(1), number(row.FirstStepNS, 1e6), row.Anon/1e6, row.Peak/1e6, row.Growth/1e3)
			}
		}
		t.Flush()
		if auto := r.chosen(w.Name); auto != "" {
			fmt.Fprintf(out, "  %s: %s\n", autoVariant, auto)
		}
		for _, a := range r.Absent {
			if a.Workload == w.Name {
				fmt.Fprintf(out, "  no %s: %s\n", a.Variant, a.Reason)
			}
		}
	}
	if r.Done < 4 {
		fmt.Fprintf(out, "\n~ Intervals from %d turns are wide; use at least 5 turns.\n", r.Done)
	}
}

// chosen returns what fit reported about the choice of --auto for a workload.
func (r *Report) chosen(workload string) string {
	for _, run := range r.Runs {
		if run.Workload == workload && run.Variant == autoVariant {
			return run.Auto
		}
	}
	return ""
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
