package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// part has the details of a workload on a runtime.
type part struct {
	answer
	Index  int // of the runtime
	Rows   []row
	Absent []labelled
	// Why is true if a row has a remark, and Less is true if the steps of a row do less work.
	Why, Less bool
	Native    []nativeColumn
	Front     []row // rows with the lowest peak for their step time
}

// row is a row of a part, with the data of its curve and of its point.
type row struct {
	*matrix.Combination
	Why     string
	Less    bool
	Curve   string // "step KiB step KiB ..." of the middle run, then of other runs, after "|"
	Crashed bool
	Point   bool // has a peak and a step time that can be compared
	Front   int  // number on the front, from 1
}

// nativeColumn is a column with an amount of TensorFlow's memory. It is shown if a row has the
// amount.
type nativeColumn struct {
	Name   string
	figure func(*matrix.Figures) *int64
}

func (n nativeColumn) Of(r row) string { return size(n.figure(&r.Figures)) }

var nativeColumns = []nativeColumn{
	{"TensorFlow's pool in a step", func(f *matrix.Figures) *int64 { return f.Pool }},
	{"GPU memory", func(f *matrix.Figures) *int64 { return f.GPU }},
	{"TensorFlow's GPU pool in a step", func(f *matrix.Figures) *int64 { return f.GPUPool }},
}

func (p *page) Parts(w matrix.Workload) []part {
	var list []part
	for i, name := range p.runtimes {
		if a := p.answer(name, w); a.Base != nil {
			list = append(list, p.part(i, a))
		}
	}
	return list
}

func (v *view) part(runtime int, a answer) part {
	p := part{answer: a, Index: runtime}
	shown := []*matrix.Combination{a.Base}
	for _, m := range v.remedies {
		c := v.combination(a.Runtime, a.Workload.ID, m.ID)
		switch {
		case c == nil || m.ID == matrix.Baseline:
			continue
		case measured(c):
			shown = append(shown, c)
			continue
		}
		label := "Not applicable"
		if c.Effect == compare.CouldNotApply {
			label = "Could not be applied" + known(c.Reason, ": %s")
		}
		p.Absent = addTo(p.Absent, label, m)
	}
	// Rows are sorted by effect, the best one first. Remedies that work are sorted by cost.
	slices.SortStableFunc(shown[1:], func(x, y *matrix.Combination) int {
		if n := cmp.Compare(rank(x.Effect), rank(y.Effect)); n != 0 || x.Effect != compare.Works {
			return n
		}
		return v.byCost(x, y)
	})
	for _, c := range shown {
		r := row{Combination: c, Why: v.remark(c), Less: v.lessWork(c.Remedy)}
		r.Curve, r.Crashed = v.curves(c)
		r.Point = c.Figures.Peak != nil && c.Figures.StepTime != nil && 2*len(c.Crashes) < max(len(c.Runs), 1)
		p.Why, p.Less = p.Why || r.Why != "", p.Less || r.Point && r.Less
		p.Rows = append(p.Rows, r)
	}
	for _, n := range nativeColumns {
		if slices.ContainsFunc(shown, func(c *matrix.Combination) bool { return n.figure(&c.Figures) != nil }) {
			p.Native = append(p.Native, n)
		}
	}
	p.front()
	return p
}

// front numbers the rows with the lowest peak for their step time.
func (p *part) front() {
	var order []*row
	for i := range p.Rows {
		if r := &p.Rows[i]; r.Point {
			order = append(order, r)
		}
	}
	if len(order) < 2 {
		return
	}
	slices.SortStableFunc(order, func(x, y *row) int {
		return cmp.Or(cmp.Compare(*x.Figures.StepTime, *y.Figures.StepTime), cmp.Compare(*x.Figures.Peak, *y.Figures.Peak))
	})
	lowest := int64(math.MaxInt64)
	for _, r := range order {
		if *r.Figures.Peak < lowest && !r.Less {
			lowest = *r.Figures.Peak
			r.Front = len(p.Front) + 1
			p.Front = append(p.Front, *r)
		}
	}
}

func (p part) Facts() string { return workloadFacts(p.Workload, p.Runtime) }

func (v *view) Kinds(p part) string {
	if p.Crashes() {
		return "" // the verdict already counts the crashes
	}
	return v.kinds(p.Base)
}

func (p part) HasCurves() bool {
	return slices.ContainsFunc(p.Rows, func(r row) bool { return r.Curve != "" })
}

// Word names the effect of the remedy or, for a baseline, its verdict.
func (r row) Word() string {
	if r.Remedy == matrix.Baseline {
		return verdictWord(r.Combination)
	}
	l := lookOf(r.Combination)
	return l.Symbol + " " + l.Word
}

func (r row) Class() string { return lookOf(r.Combination).Class }

func (r row) Range() string {
	_, bounds, ok := strings.Cut(slopeText(r.Combination, true), " [")
	if !ok {
		return ""
	}
	return "[" + bounds
}

func (r row) Slope() string {
	head, _, _ := strings.Cut(slopeText(r.Combination, true), " [")
	return head
}

// Ratios returns the ratios to the baseline of slope, peak, step time and memory after close; a
// text is empty if unknown.
func (r row) Ratios() [4]string {
	var list [4]string
	if d := r.Comparison; d != nil {
		for i, ratio := range []compare.Ratio{d.Slope, d.Peak, d.StepTime, d.Reset} {
			if ratio.OK {
				list[i] = times(ratio, true)
			}
		}
	}
	return list
}

var phaseNames = []string{worker.PhaseStart, worker.PhaseLibrary, worker.PhaseLoaded, worker.PhaseFirst,
	worker.PhaseSteady, worker.PhaseClosed, worker.PhaseTrimmed}

func (v *view) PhaseNames() []string { return phaseNames }

// Phases returns the anonymous memory between phases; nil if unknown.
func (v *view) Phases(c *matrix.Combination) []string {
	var list []string
	known := false
	for _, name := range phaseNames {
		r := v.phase(c, name, memory.Anon)
		known = known || r.OK
		list = append(list, reading(r))
	}
	if !known {
		return nil
	}
	return list
}

// PhaseLine formats the phases of the first row that has them.
func (v *view) PhaseLine(p part) string {
	for _, r := range p.Rows {
		var parts []string
		for i, value := range v.Phases(r.Combination) {
			if value != unknown {
				parts = append(parts, phaseNames[i]+" "+value)
			}
		}
		if len(parts) > 0 {
			return strings.Join(parts, " → ")
		}
	}
	return ""
}

// remark returns the text that is shown next to the figures of a remedy.
func (v *view) remark(c *matrix.Combination) string {
	if c.Remedy == matrix.Baseline {
		return ""
	}
	var parts []string
	if _, r := v.goalRatio(c); !r.OK && !crashesToo(c) {
		parts = append(parts, sentence(c.Reason)) // with a known ratio, the reason would repeat it
	}
	switch {
	case crashesToo(c):
		parts = append(parts, "Crashes without it and with it: "+v.crash(c)+".")
	case len(c.Crashes) > 0 && !strings.Contains(c.Reason, "died"):
		parts = append(parts, "Crashes: "+v.crash(c)+".")
	}
	if c.Unverified != "" {
		parts = append(parts, "Not verified: "+strings.TrimSuffix(c.Unverified, ".")+".")
	}
	if d := c.Comparison; d != nil && d.More > 0 && c.Effect == compare.Unclear && !crashesToo(c) {
		parts = append(parts, fmt.Sprintf("About %s would decide.", texts.Count(d.More, "more pair")))
	}
	return strings.Join(parts, " ")
}

// mostPoints is the maximum number of points of a curve. mostRepeats is the maximum number of
// additional curves of the baseline.
const mostPoints, mostRepeats = 24, 6

// point is the memory after a step.
type point struct{ x, y float64 }

// thinned returns at most most points: the first, the last, and the lowest and highest of each
// section between.
func thinned(list []point, most int) []point {
	if len(list) <= most || most < 6 {
		return list
	}
	buckets := (most - 2) / 2
	out := make([]point, 0, most)
	out = append(out, list[0])
	inner := list[1 : len(list)-1]
	for b := range buckets {
		part := inner[b*len(inner)/buckets : (b+1)*len(inner)/buckets]
		if len(part) == 0 {
			continue
		}
		low, high := 0, 0
		for i := range part {
			if part[i].y < part[low].y {
				low = i
			}
			if part[i].y > part[high].y {
				high = i
			}
		}
		out = append(out, part[min(low, high)])
		if low != high {
			out = append(out, part[max(low, high)])
		}
	}
	return append(out, list[len(list)-1])
}

// curves returns the curve of the middle run and, for the baseline, the curves of other runs.
func (v *view) curves(c *matrix.Combination) (text string, crashed bool) {
	middle := v.middle(c)
	if middle == nil {
		return "", false
	}
	list := []string{curve(middle)}
	if list[0] == "" {
		return "", false
	}
	if c.Remedy == matrix.Baseline {
		for _, r := range v.runsOf(c) {
			if other := curve(r); r != middle && other != "" && len(list) <= mostRepeats {
				list = append(list, other)
			}
		}
	}
	return strings.Join(list, "|"), middle.Failure != "" || middle.Outcome.Verdict.Kind == memlayer.Crash
}

// curve returns the anonymous memory of a run, or the resident memory if that is unknown.
func curve(r *matrix.RunResult) string {
	if r.Series == nil {
		return ""
	}
	samples := r.Series.Samples()
	for _, layer := range []memory.Layer{memory.Anon, memory.RSS} {
		var list []point
		for i := range samples {
			if held := samples[i].Get(layer); held.OK {
				list = append(list, point{float64(samples[i].Step), float64(held.Bytes)})
			}
		}
		if len(list) < 2 {
			continue
		}
		unit := 1.0 // a power of 2 that is less than a thousandth of the largest value
		for high := slices.MaxFunc(list, func(p, q point) int { return cmp.Compare(p.y, q.y) }).y; unit*2048 < high; {
			unit *= 2
		}
		var b []byte
		for _, p := range thinned(list, mostPoints) {
			b = strconv.AppendInt(append(b, ' '), int64(p.x), 10)
			b = strconv.AppendInt(append(b, ' '), int64(math.Round(p.y/unit)*unit/1024), 10)
		}
		return string(b[1:])
	}
	return ""
}
