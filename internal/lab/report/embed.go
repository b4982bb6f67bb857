package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"steadyfit/matrix"
	"steadyfit/memory"
)

// detail is how much of the runs goes into a page.
type detail struct {
	points int            // samples of a series
	layers []memory.Layer // nil is all
	trends bool
	phases bool // of all runs, not only of the middle ones
	others bool // runs that are not the middle one of their cell
	log    int  // bytes of a log
	bare   bool // of cells with a remedy only the effect and the figures
}

var someLayers = []memory.Layer{memory.Anon, memory.RSS, memory.MallocUsed, memory.MallocFree, memory.GoHeap, memory.TFUsed, memory.LiveBytes, memory.WaitingBytes}

// details from all to the least that a report can be drawn from again.
var details = []detail{
	{points: 256, trends: true, phases: true, others: true, log: 4000},
	{points: 64, layers: someLayers, trends: true, phases: true, others: true, log: 1000},
	{points: 32, layers: []memory.Layer{memory.Anon}, phases: true, others: true, log: 300},
	{points: 24, layers: []memory.Layer{memory.Anon}, others: true, log: 100},
	{points: 16, layers: []memory.Layer{memory.Anon}, log: 100},
	{bare: true},
}

// embedded is the result as JSON that can stand in a page, with as much detail as
// fits into limit bytes, and what was left out of it, in words. encoding/json escapes
// <, > and &, so the text cannot end the script that it stands in.
func embedded(r *matrix.Result, limit int) (data []byte, left string, err error) {
	v := newView(r)
	shown := map[int]bool{}
	for i := range r.Cells {
		if m := matrix.Middle(v.runsOf(&r.Cells[i])); m != nil {
			shown[m.ID] = true
		}
	}
	for i, d := range details {
		last := i == len(details)-1
		// A few runs tell how large all of them will be.
		if n := len(r.Runs); n > 200 && !last {
			size := 0
			for i := range 50 {
				run, err := d.run(&r.Runs[i*n/50], shown)
				if err != nil {
					return nil, "", err
				}
				text, err := json.Marshal(run)
				if err != nil {
					return nil, "", err
				}
				size += len(text)
			}
			if size/50*n > limit {
				continue
			}
		}
		if data, err = d.marshal(r, shown); err != nil {
			return nil, "", err
		}
		if len(data) <= limit || last {
			return data, d.left(r, shown), nil
		}
	}
	return data, left, nil
}

// left says what a page of this detail leaves out of a result.
func (d detail) left(r *matrix.Result, shown map[int]bool) string {
	var runs, curves, thinned, logs, trends, layers, phases int
	for i := range r.Runs {
		run := &r.Runs[i]
		if !d.others && (!shown[run.ID] || d.points == 0) {
			runs++
			continue
		}
		whole := d.phases || shown[run.ID]
		if run.Series != nil && run.Series.Len() > 0 {
			switch {
			case !whole:
				curves++
			case run.Series.Len() > d.points:
				thinned++
			}
		}
		if !whole && len(run.Phases) > 0 {
			phases++
		}
		if d.layers != nil && whole {
			layers++
		}
		if len(run.Log) > d.log {
			logs++
		}
		if !d.trends && (len(run.Outcome.Verdict.Trends) > 0 || len(run.Facts) > 0) {
			trends++
		}
	}
	var parts []string
	add := func(n int, format string, args ...any) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(runs, "%d of the %s (those that no verdict of a cell is from)", runs, count(len(r.Runs), "run"))
	if kept := len(r.Runs) - runs; kept > 0 {
		add(curves, "the curves of %s", count(curves, "run"))
		add(thinned, "of %s all but %d samples", count(thinned, "curve"), d.points)
		add(phases, "the turning points of %s", count(phases, "run"))
		if layers > 0 {
			names := make([]string, len(d.layers))
			for i, l := range d.layers {
				names[i] = string(l)
			}
			parts = append(parts, "all layers but "+and(names))
		}
		add(logs, "of %s all but the last %d bytes", count(logs, "log"), d.log)
		add(trends, "the trends of layers and the facts of runs")
	}
	if d.bare {
		parts = append(parts, "the verdicts of runs with a remedy, and all but 4 digits of their ratios")
	}
	if len(parts) == 0 {
		return "It is all that matrix.json has. runs.jsonl, where it was kept, has every sample of every run."
	}
	return "Left out, so that the page stays small: " + strings.Join(parts, "; ") +
		". matrix.json, written beside the report, has these; runs.jsonl, where it was kept, has every sample of every run."
}

// embeddedResult is a matrix.Result whose lists are thinned; its JSON reads back as
// one.
type embeddedResult struct {
	*matrix.Result
	Cells []matrix.Cell  `json:"cells"`
	Runs  []*embeddedRun `json:"runs"`
	// Thinned says that this is not all of matrix.json.
	Thinned string `json:"thinned"`
}

type embeddedRun struct {
	matrix.RunResult
	Series json.RawMessage          `json:"series,omitempty"`
	Phases map[string]memory.Sample `json:"phases"`
}

func (d detail) marshal(r *matrix.Result, shown map[int]bool) ([]byte, error) {
	out := embeddedResult{Result: r, Cells: slices.Clone(r.Cells), Runs: []*embeddedRun{},
		Thinned: d.left(r, shown)}
	for i := range out.Cells {
		if c := &out.Cells[i]; c.Verdict != nil && !d.trends {
			verdict := *c.Verdict
			verdict.Trends = nil
			c.Verdict = &verdict
		}
		if c := &out.Cells[i]; d.bare && c.Remedy != matrix.Baseline {
			c.Verdict, c.Runs, c.Base = nil, nil, nil
			c.Figures.Slope = rounded(c.Figures.Slope)
			if c.Comparison != nil {
				comparison := *c.Comparison
				comparison.Reason = "" // Cell.Reason is the same
				for _, r := range []*memory.Ratio{&comparison.Slope, &comparison.Peak, &comparison.Reset, &comparison.StepTime} {
					r.Interval = rounded(r.Interval)
				}
				c.Comparison = &comparison
			}
		}
	}
	for i := range r.Runs {
		run, err := d.run(&r.Runs[i], shown)
		if err != nil {
			return nil, err
		}
		if run != nil {
			out.Runs = append(out.Runs, run)
		}
	}
	return json.Marshal(out)
}

// rounded is an interval with 4 significant digits.
func rounded(i memory.Interval) memory.Interval {
	for _, v := range []*float64{&i.Estimate, &i.Low, &i.High} {
		if r, err := strconv.ParseFloat(strconv.FormatFloat(*v, 'g', 4, 64), 64); err == nil {
			*v = r
		}
	}
	return i
}

// run is what is left of a run; nil is nothing.
func (d detail) run(r *matrix.RunResult, shown map[int]bool) (*embeddedRun, error) {
	if !d.others && (!shown[r.ID] || d.points == 0) {
		return nil, nil
	}
	out := &embeddedRun{RunResult: *r, Phases: r.Phases}
	if !d.trends {
		out.Outcome.Verdict.Trends, out.Facts = nil, nil
	}
	if len(out.Log) > d.log {
		out.Log = out.Log[len(out.Log)-d.log:]
	}
	if d.layers != nil || !d.phases {
		out.Phases = map[string]memory.Sample{}
		for name, sample := range r.Phases {
			if d.phases || shown[r.ID] {
				out.Phases[name] = d.only(sample)
			}
		}
	}
	if r.Series != nil && (d.phases || shown[r.ID]) {
		var err error
		if out.Series, err = d.series(r.Series); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// only keeps the layers of a sample that are wanted.
func (d detail) only(s memory.Sample) memory.Sample {
	if d.layers == nil {
		return s
	}
	out := memory.Sample{Step: s.Step, At: s.At}
	for _, value := range s.Values {
		if slices.Contains(d.layers, value.Layer) {
			out.Values = append(out.Values, value)
		}
	}
	return out
}

// series thins the columns of a series in its JSON form, which keeps the number of
// samples taken and their extremes.
func (d detail) series(s *memory.Series) (json.RawMessage, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var columns struct {
		Samples json.RawMessage           `json:"samples"`
		Start   json.RawMessage           `json:"start"`
		Steps   []json.RawMessage         `json:"steps"`
		Seconds []json.RawMessage         `json:"seconds"`
		Layers  map[memory.Layer][]*int64 `json:"layers"`
		Min     map[memory.Layer]int64    `json:"min"`
		Max     map[memory.Layer]int64    `json:"max"`
	}
	if err := json.Unmarshal(text, &columns); err != nil {
		return nil, err
	}
	n := len(columns.Steps)
	var rows []int
	for i := range min(n, d.points) {
		rows = append(rows, i*(n-1)/max(min(n, d.points)-1, 1))
	}
	columns.Steps, columns.Seconds = pick(columns.Steps, rows), pick(columns.Seconds, rows)
	unwanted := func(layer memory.Layer) bool {
		return d.layers != nil && !slices.Contains(d.layers, layer.Whole())
	}
	maps.DeleteFunc(columns.Layers, func(layer memory.Layer, _ []*int64) bool { return unwanted(layer) })
	maps.DeleteFunc(columns.Min, func(layer memory.Layer, _ int64) bool { return unwanted(layer) })
	maps.DeleteFunc(columns.Max, func(layer memory.Layer, _ int64) bool { return unwanted(layer) })
	for layer, values := range columns.Layers {
		columns.Layers[layer] = pick(values, rows)
	}
	return json.Marshal(columns)
}

func pick[T any](list []T, rows []int) []T {
	out := make([]T, 0, len(rows))
	for _, i := range rows {
		out = append(out, list[i])
	}
	return out
}
