package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/shirou/gopsutil/v3/cpu"
	"gonum.org/v1/gonum/stat"

	"steadyfit/internal/files"
	"steadyfit/internal/stats"
)

// confidence is the confidence level of each interval.
const confidence = 0.95

// report is the JSON file.
type report struct {
	// Versions is the output of `steadyfit version` without paths.
	Versions []string `json:"versions"`
	CPU      string   `json:"cpu"`
	Cores    int      `json:"cores"`
	// Confidence is that of the intervals. Seeds says what differs between the runs.
	Confidence float64  `json:"confidence"`
	Seeds      string   `json:"seeds"`
	Models     []model  `json:"models"`
	Rows       []row    `json:"rows"`
	Runs       []result `json:"runs"`
}

// A row is one precision of one model.
type row struct {
	Model     string `json:"model"`
	Precision string `json:"precision"`
	// Mean and Deviation are those of the accuracy over Seeds runs.
	Seeds     int     `json:"seeds"`
	Mean      float64 `json:"mean"`
	Deviation float64 `json:"standard_deviation"`
	// Difference is the difference to fp32 over the seeds that both have. It is nil for fp32,
	// and with fewer than two seeds.
	Difference *interval `json:"difference,omitempty"`
}

// An interval is the mean of paired differences, with Student's interval.
type interval struct {
	Pairs int     `json:"pairs"`
	Mean  float64 `json:"mean"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// pairedInterval needs at least two differences. If all are equal, the interval has no width.
func pairedInterval(differences []float64) *interval {
	mean, low, high := stats.Mean(differences, confidence)
	return &interval{Pairs: len(differences), Mean: mean, Low: low, High: high}
}

func newReport(p *plan, results []result, version string) *report {
	r := &report{Cores: runtime.NumCPU(), Confidence: confidence, Runs: results,
		Seeds: "order of the data; initial weights are those of the export, alike in all runs"}
	for line := range strings.Lines(version) {
		// The last parentheses hold the platform, or the path of the library.
		line = strings.TrimSpace(line)
		if at := strings.LastIndex(line, " ("); at > 0 {
			line = line[:at]
		}
		r.Versions = append(r.Versions, line)
	}
	if info, err := cpu.Info(); err == nil && len(info) > 0 {
		r.CPU = info[0].ModelName
	}
	for i := range r.Runs {
		r.Runs[i].Args = nil
	}
	for _, m := range models {
		reference := accuracies(results, m.Name, precisions[0].Name)
		some := false
		for _, q := range precisions {
			of := accuracies(results, m.Name, q.Name)
			if len(of) < 2 {
				continue
			}
			some = true
			var values, differences []float64
			for seed := 1; seed <= p.seeds; seed++ {
				value, ok := of[seed]
				if !ok {
					continue
				}
				values = append(values, value)
				if before, ok := reference[seed]; ok && q != precisions[0] {
					differences = append(differences, value-before)
				}
			}
			next := row{Model: m.Name, Precision: q.Name, Seeds: len(values)}
			next.Mean, next.Deviation = stat.MeanStdDev(values, nil)
			if len(differences) > 1 {
				next.Difference = pairedInterval(differences)
			}
			r.Rows = append(r.Rows, next)
		}
		if some {
			r.Models = append(r.Models, m)
		}
	}
	return r
}

// accuracies returns those of a model in a precision, by seed.
func accuracies(results []result, model, precision string) map[int]float64 {
	found := make(map[int]float64)
	for _, r := range results {
		if r.Model == model && r.Precision == precision {
			found[r.Seed] = r.Accuracy
		}
	}
	return found
}

// table writes Markdown, in percent and percentage points.
func (r *report) table(w io.Writer) {
	fmt.Fprintln(w, "| model | precision | seeds | val_accuracy, % | difference to fp32, points | 95% interval |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, row := range r.Rows {
		difference, bounds := "", ""
		if d := row.Difference; d != nil {
			difference = fmt.Sprintf("%+.2f", 100*d.Mean)
			bounds = fmt.Sprintf("%+.2f to %+.2f", 100*d.Low, 100*d.High)
		}
		fmt.Fprintf(w, "| %s | %s | %d | %.2f | %s | %s |\n", row.Model, row.Precision, row.Seeds, 100*row.Mean, difference, bounds)
	}
}

// write writes the JSON file.
func (r *report) write(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return files.Replace(path, append(text, '\n'))
}
