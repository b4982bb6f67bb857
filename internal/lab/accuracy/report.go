package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"gonum.org/v1/gonum/stat"

	"steadyfit/internal/files"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/stats"
)

const confidence = 0.95

// report is the content of the JSON file.
type report struct {
	Versions []string `json:"versions"`
	CPU      string   `json:"cpu"`
	Cores    int      `json:"cores"`
	// Confidence is the level of the intervals. Seeds describes what a seed changes.
	Confidence float64  `json:"confidence"`
	Seeds      string   `json:"seeds"`
	Models     []model  `json:"models"`
	Rows       []row    `json:"rows"`
	Runs       []result `json:"runs"`
}

// A row is a precision of a model.
type row struct {
	Model     string `json:"model"`
	Precision string `json:"precision"`
	// Mean and Deviation are those of the accuracy over the seeds.
	Seeds     int     `json:"seeds"`
	Mean      float64 `json:"mean"`
	Deviation float64 `json:"standard_deviation"`
	// Difference is the paired difference to fp32; nil for fp32 and for fewer than two seeds.
	Difference *interval `json:"difference,omitempty"`
}

// An interval is a mean with Student's interval.
type interval struct {
	Pairs int     `json:"pairs"`
	Mean  float64 `json:"mean"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// pairedInterval returns the mean of at least two paired differences with its interval.
func pairedInterval(differences []float64) *interval {
	mean, low, high := stats.Mean(differences, confidence)
	return &interval{Pairs: len(differences), Mean: mean, Low: low, High: high}
}

func newReport(p *plan, results []result, version string) *report {
	e := machine.Read(nil)
	r := &report{CPU: e.CPU, Cores: e.Cores, Confidence: confidence, Runs: results,
		Seeds: "order of the data; all runs have the initial weights of the export"}
	for line := range strings.Lines(version) {
		// The last parentheses have the platform or the path of the library.
		line = strings.TrimSpace(line)
		if at := strings.LastIndex(line, " ("); at > 0 {
			line = line[:at]
		}
		r.Versions = append(r.Versions, line)
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

func accuracies(results []result, model, precision string) map[int]float64 {
	found := make(map[int]float64)
	for _, r := range results {
		if r.Model == model && r.Precision == precision {
			found[r.Seed] = r.Accuracy
		}
	}
	return found
}

// table writes a Markdown table in percent and percentage points.
func (r *report) table(w io.Writer) {
	fmt.Fprintln(w, "| model | precision | seeds | val_accuracy, % | difference to fp32, points | 95% interval |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, row := range r.Rows {
		difference, bounds := "", ""
		if d := row.Difference; d != nil {
			difference = fmt.Sprintf("%+.2f", 100*d.Mean)
			bounds = fmt.Sprintf("%+.2f to %+.2f", 100*d.Low, 100*d.High)
		}
		fmt.Fprintf(w, "| %s | %s | %d | %.2f | %s | %s |\n", row.Model, row.Precision, row.Seeds, 100*row.Mean, difference,
			bounds)
	}
}

func (r *report) write(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return files.Replace(path, append(text, '\n'))
}
