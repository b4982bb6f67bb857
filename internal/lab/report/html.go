package report

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/lab/worker"
	"steadyfit/matrix"
	"steadyfit/memory"
)

// The charts are drawn by uPlot 1.6.32 (MIT, uplot.LICENSE), from
// https://registry.npmjs.org/uplot/-/uplot-1.6.32.tgz:
//
//	dist/uPlot.iife.min.js  sha256 19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f
//	dist/uPlot.min.css      sha256 df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04
//
//go:embed page.tmpl style.css script.js uplot.js uplot.css
var assets embed.FS

func asset(name string) string {
	text, _ := assets.ReadFile(name) // embedded, so there
	return string(text)
}

var pageTemplate = template.Must(template.New("page.tmpl").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(asset("uplot.css") + asset("style.css")) },
	"script": func() template.JS {
		_, chart, _ := strings.Cut(asset("uplot.js"), "*/") // without its address, which a page may not have
		return template.JS("/* uPlot 1.6.32, MIT License, (c) 2022 Leon Sorokin */" + chart + asset("script.js"))
	},
	"size": size, "duration": duration, "sentence": sentence, "spread": spread,
	"slope": func(c *matrix.Cell) string { return slopeText(c, false) },
}).ParseFS(assets, "page.tmpl"))

// page is what page.tmpl shows.
type page struct {
	*view
	Runtimes []onRuntime
	// Packed is the table and the details: HTML, in gzip, in base64, as a JSON string.
	Packed template.JS
}

// onRuntime is the answers on a runtime.
type onRuntime struct {
	Index   int
	Name    string
	Answers []answer
	Kept    []kept
}

// HTML writes the report as one file that loads nothing from elsewhere: the answers,
// the table of all cells, the details of each workload with curves and figures, the
// ledger of claims and the environment. A script unpacks the table and the details,
// which are compressed, so that a full matrix takes less than 400 KB.
func HTML(w io.Writer, r *matrix.Result) error {
	p := &page{view: newView(r)}
	for i, name := range p.runtimes {
		answers := p.answers(name)
		p.Runtimes = append(p.Runtimes, onRuntime{i, name, answers, p.keeps(answers)})
	}
	var packed, out bytes.Buffer
	packed.WriteByte('"')
	text := base64.NewEncoder(base64.StdEncoding, &packed)
	zip, err := gzip.NewWriterLevel(text, gzip.BestCompression)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := pageTemplate.ExecuteTemplate(zip, "details", p); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := cmp.Or(zip.Close(), text.Close()); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	packed.WriteByte('"')
	p.Packed = template.JS(packed.String())
	if err := pageTemplate.Execute(&out, p); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err = out.WriteTo(w)
	return err
}

func (r onRuntime) Tally() string       { return tally(r.Answers) }
func (r onRuntime) Settled() []labelled { return settled(r.Answers) }
func (r onRuntime) MostKept() []kept    { return r.Kept[:min(len(r.Kept), mostKept)] }

// Bad are the answers on workloads that grow or die, Peaks those with a remedy for the
// peak of a workload that does not grow.
func (r onRuntime) Bad() []answer {
	return slices.DeleteFunc(slices.Clone(r.Answers), func(a answer) bool { return !a.Grows() && !a.Dies() })
}

func (r onRuntime) Peaks() []answer {
	return slices.DeleteFunc(slices.Clone(r.Answers), func(a answer) bool { return len(a.Peak) == 0 || a.Grows() })
}

func (v *view) When() string                    { return v.when() }
func (v *view) Machine() string                 { return v.machine() }
func (v *view) Alarms() []string                { return v.alarms() }
func (v *view) Calibrated() string              { return v.calibrated() }
func (v *view) KeptLead(r onRuntime) string     { return v.keptLead(r.Kept) }
func (v *view) Barren(r onRuntime) []labelled   { return v.barren(r.Answers) }
func (v *view) AllWorkloads() []matrix.Workload { return v.workloads }
func (v *view) Title(c *matrix.Cell) string     { return v.title(c.Remedy) }

// Cause is what carries the growth of an answer, or what a workload dies of.
func (v *view) Cause(a answer) (cause struct{ Layer, Text string }) {
	if a.Dies() {
		cause.Text = sentence(v.death(a.Base))
		return cause
	}
	return v.Why(a)
}

// Why is what carries the growth of an answer.
func (v *view) Why(a answer) (cause struct{ Layer, Text string }) {
	cause.Layer, cause.Text = v.why(a)
	return cause
}

// Anchor is PartAnchor of an answer.
func (v *view) Anchor(a answer) string {
	return v.PartAnchor(slices.Index(v.runtimes, a.Runtime), a.Workload.ID)
}

// PartAnchor names the part of the page on a workload on a runtime.
func (v *view) PartAnchor(runtime int, workload string) string {
	i := slices.IndexFunc(v.workloads, func(w matrix.Workload) bool { return w.ID == workload })
	return fmt.Sprintf("w%d-%d", i, runtime)
}

// CellAnchor names the row of a cell.
func (v *view) CellAnchor(c *matrix.Cell) string {
	return v.rowAnchor(slices.Index(v.runtimes, c.Runtime), c.Workload, c.Remedy)
}

func (v *view) rowAnchor(runtime int, workload, remedy string) string {
	i := slices.IndexFunc(v.remedies, func(m matrix.Remedy) bool { return m.ID == remedy })
	return fmt.Sprintf("%s-%d", v.PartAnchor(runtime, workload), i)
}

// effectHelp explains an effect in the legend.
type effectHelp struct{ Symbol, Class, Word, Text string }

func (v *view) Effects() []effectHelp {
	var list []effectHelp
	for _, e := range effects {
		c := &matrix.Cell{Effect: e}
		list = append(list, effectHelp{symbol(c), effectClass(c), word(c), effectMeaning[e]})
		if e == memory.NoEffect {
			c.Unverified = unseenMeaning
			list = append(list, effectHelp{symbol(c), effectClass(c), word(c), unseenMeaning})
		}
	}
	return list
}

// unseenMeaning explains unseenSymbol.
const unseenMeaning = "no difference was seen, but nothing shows that the remedy was in force"

// effectMeaning repeats the thresholds of memory.Compare for a reader.
var effectMeaning = map[memory.Effect]string{
	memory.Works:         "of a slope at most a tenth is left (or less than half, and no run grows); a peak or level is lower by a fifth or more",
	memory.Partly:        "lower beyond doubt and by 5% or more, but not as much as that",
	memory.NoEffect:      "within 10% of what it is without the remedy, or lower by less than 5%",
	memory.Harmful:       "higher by more than 10%, or the runs die with it",
	memory.Unclear:       "the interval holds both an effect and none",
	memory.CouldNotApply: "it could not be set here; the reason stands beside it",
	memory.NotApplicable: "the workload or the runtime has nothing that it could change",
}

// effectClass is the style of a cell.
func effectClass(c *matrix.Cell) string {
	switch {
	case c.Remedy == matrix.Baseline:
		return "base"
	case unseen(c):
		return "unclear"
	}
	return map[memory.Effect]string{memory.Works: "works", memory.Partly: "partly", memory.NoEffect: "none", memory.Harmful: "harm",
		memory.Unclear: "unclear", memory.CouldNotApply: "absent", memory.NotApplicable: "na"}[c.Effect]
}

var growthClass = map[growth]string{grows: "harm", dies: "harm", settles: "partly", steady: "works", undecided: "unclear"}

func (a answer) Class() string { return growthClass[a.growth] }

// Glance is a workload as it is on a runtime, in two words.
func (v *view) Glance(runtime string, w matrix.Workload) (g struct {
	answer
	Word, Text string
}) {
	g.answer = v.answer(runtime, w)
	if g.Base == nil {
		g.Word = unknown
		return g
	}
	g.Word = verdictWord(g.Base)
	switch d := g.Base.Verdict; {
	case g.Grows():
		g.Text = slopeText(g.Base, false)
	case g.growth == settles:
		g.Text = "+" + (d.Level - d.Start).String()
	case g.growth == steady && d.Kind == memory.Sawtooth:
		g.Text = d.Depth.String() + " deep"
	case g.growth == steady:
		g.Text = d.Level.String()
	}
	return g
}

// group is the remedies of one group, with their cells on each workload of a runtime.
type group struct {
	Name string
	Rows []tableRow
}

type tableRow struct {
	Title string
	Cells []tableCell
}

type tableCell struct{ Href, Class, Symbol, Word, Figure, Time, Why string }

// Columns are the workloads that ran on a runtime.
func (v *view) Columns(runtime string) []matrix.Workload {
	return slices.DeleteFunc(slices.Clone(v.workloads), func(w matrix.Workload) bool {
		return v.cell(runtime, w.ID, matrix.Baseline) == nil
	})
}

// Groups are the rows of the table of a runtime.
func (v *view) Groups(runtime string) []group {
	var list []group
	columns := v.Columns(runtime)
	for _, m := range v.remedies {
		row, has := tableRow{Title: v.title(m.ID)}, false
		for _, w := range columns {
			c := v.cell(runtime, w.ID, m.ID)
			row.Cells = append(row.Cells, v.tableCell(c))
			has = has || c != nil && c.Effect != memory.NotApplicable
		}
		if !has {
			continue
		}
		name := cmp.Or(m.Group, "other")
		i := slices.IndexFunc(list, func(g group) bool { return g.Name == name })
		if i < 0 {
			i = len(list)
			list = append(list, group{Name: name})
		}
		list[i].Rows = append(list[i].Rows, row)
	}
	return list
}

func (v *view) tableCell(c *matrix.Cell) tableCell {
	if c == nil {
		return tableCell{}
	}
	t := tableCell{Class: effectClass(c), Symbol: symbol(c), Word: word(c)}
	if c.Remedy == matrix.Baseline {
		t.Symbol, t.Word, t.Figure = " ", verdictWord(c), "peak "+size(c.Figures.Peak)
		switch growthOf(c) {
		case grows:
			t.Figure = slopeText(c, false)
		case dies:
			t.Figure = ""
		}
		if c.Figures.StepTime != nil {
			t.Time = duration(c.Figures.StepTime)
		}
		if measured(c) {
			t.Href = v.CellAnchor(c)
		}
		return t
	}
	if !measured(c) {
		t.Why = c.Reason
		return t
	}
	t.Href = v.CellAnchor(c)
	d := c.Comparison
	switch {
	case diesToo(c):
		t.Figure = "dies too"
	case d != nil && c.Effect == memory.Harmful && 2*d.RemedyCrashes >= max(d.Pairs, 1):
		t.Figure = "dies"
	case d != nil && c.Effect == memory.Works && d.BaseCrashes > 0:
		t.Figure = "survives"
	default:
		if name, r := v.goalRatio(c); r.OK {
			t.Figure = name + " " + times(r, false)
		}
	}
	if d != nil && d.StepTime.OK {
		t.Time = "time " + times(d.StepTime, false)
		if d.StepTime.Effect == memory.Unclear {
			t.Time += " ?"
		}
	}
	return t
}

// part is the details of a workload on a runtime.
type part struct {
	answer
	Index  int // of the runtime
	Rows   []row
	Absent []labelled
	// Why is whether a row has a remark, Less whether a step of one does less work.
	Why, Less bool
	Native    []nativeColumn
	Front     []row // of the lowest peak for their step time
}

// row is a cell with the data of its curve and of its point.
type row struct {
	*matrix.Cell
	Why   string
	Less  bool
	Curve string // "step KiB step KiB ..." of the middle run, then of others, after "|"
	Died  bool
	Point bool // has a peak and a step time to be compared
	Front int  // on the front, from 1
}

// nativeColumn is a figure beside the phases, shown where a cell has it.
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

// Parts are the details of a workload on each runtime that it ran on.
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
	shown := []*matrix.Cell{a.Base}
	for _, m := range v.remedies {
		c := v.cell(a.Runtime, a.Workload.ID, m.ID)
		switch {
		case c == nil || m.ID == matrix.Baseline:
			continue
		case measured(c):
			shown = append(shown, c)
			continue
		}
		label := "Not applicable"
		if c.Effect == memory.CouldNotApply {
			label = "Could not be applied" + orEmpty(": ", c.Reason)
		}
		i := slices.IndexFunc(p.Absent, func(l labelled) bool { return l.Label == label })
		if i < 0 {
			i = len(p.Absent)
			p.Absent = append(p.Absent, labelled{Label: label})
		}
		p.Absent[i].Items = append(p.Absent[i].Items, m)
	}
	// The best effect first; what works by cost.
	slices.SortStableFunc(shown[1:], func(x, y *matrix.Cell) int {
		if n := cmp.Compare(slices.Index(effects, x.Effect), slices.Index(effects, y.Effect)); n != 0 || x.Effect != memory.Works {
			return n
		}
		return v.byCost(x, y)
	})
	for _, c := range shown {
		r := row{Cell: c, Why: v.remark(c), Less: v.lessWork(c.Remedy)}
		r.Curve, r.Died = v.curves(c)
		r.Point = c.Figures.Peak != nil && c.Figures.StepTime != nil && 2*len(c.Crashes) < max(len(c.Runs), 1)
		p.Why, p.Less = p.Why || r.Why != "", p.Less || r.Point && r.Less
		p.Rows = append(p.Rows, r)
	}
	for _, n := range nativeColumns {
		if slices.ContainsFunc(shown, func(c *matrix.Cell) bool { return n.figure(&c.Figures) != nil }) {
			p.Native = append(p.Native, n)
		}
	}
	p.front()
	return p
}

// front numbers the rows that no other row beats in both peak and step time.
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

// Facts is how the workload runs, in a line, Kinds how many runs have its verdict.
func (p part) Facts() string { return workloadFacts(p.Workload, p.Runtime) }

func (v *view) Kinds(p part) string {
	if p.Dies() {
		return "" // the verdict counts the deaths
	}
	return v.kinds(p.Base)
}

func (p part) HasCurves() bool {
	return slices.ContainsFunc(p.Rows, func(r row) bool { return r.Curve != "" })
}

// Word is the effect of a row; of the workload as it is, its verdict.
func (r row) Word() string {
	if r.Remedy == matrix.Baseline {
		return verdictWord(r.Cell)
	}
	return symbol(r.Cell) + " " + word(r.Cell)
}

func (r row) Class() string { return effectClass(r.Cell) }

// Range is the range of the slope, without its estimate.
func (r row) Range() string {
	_, bounds, ok := strings.Cut(slopeText(r.Cell, true), " [")
	if !ok {
		return ""
	}
	return "[" + bounds
}

func (r row) Slope() string {
	head, _, _ := strings.Cut(slopeText(r.Cell, true), " [")
	return head
}

// Ratios are the slope, peak, step time and level after close over those without the
// remedy; empty where unknown.
func (r row) Ratios() [4]string {
	var list [4]string
	if d := r.Comparison; d != nil {
		for i, ratio := range []memory.Ratio{d.Slope, d.Peak, d.StepTime, d.Reset} {
			if ratio.OK {
				list[i] = times(ratio, true)
			}
		}
	}
	return list
}

var phaseNames = []string{worker.PhaseStart, worker.PhaseLibrary, worker.PhaseLoaded, worker.PhaseFirst, worker.PhaseSteady, worker.PhaseClosed, worker.PhaseTrimmed}

func (v *view) PhaseNames() []string { return phaseNames }

// Phases are the anonymous memory of a cell at the turning points; nil if unknown.
func (v *view) Phases(c *matrix.Cell) []string {
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

// PhaseLine is the phases of the first row that has them, in a line.
func (v *view) PhaseLine(p part) string {
	for _, r := range p.Rows {
		var parts []string
		for i, value := range v.Phases(r.Cell) {
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

// remark is what the figures of a cell do not say.
func (v *view) remark(c *matrix.Cell) string {
	if c.Remedy == matrix.Baseline {
		return ""
	}
	var parts []string
	if _, r := v.goalRatio(c); !r.OK && !diesToo(c) {
		parts = append(parts, sentence(c.Reason)) // where the ratio is known the reason repeats it
	}
	switch {
	case diesToo(c):
		parts = append(parts, "Dies without it and with it: "+v.death(c)+".")
	case len(c.Crashes) > 0 && !strings.Contains(c.Reason, "died"):
		parts = append(parts, "Deaths: "+v.death(c)+".")
	}
	if c.Unverified != "" {
		parts = append(parts, "Not verified: "+strings.TrimSuffix(c.Unverified, ".")+".")
	}
	if d := c.Comparison; d != nil && d.More > 0 && c.Effect == memory.Unclear && !diesToo(c) {
		parts = append(parts, fmt.Sprintf("About %s would decide.", plural(d.More, "more pair", "more pairs")))
	}
	return strings.Join(parts, " ")
}

// mostPoints and mostRepeats limit the points of a curve and the curves of the workload
// as it is beside that of its middle run.
const mostPoints, mostRepeats = 24, 6

// point is a step and what was held after it.
type point struct{ x, y float64 }

// thinned keeps at most so many points in the order of time: the lowest and the
// highest of each stretch, so that extremes remain.
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

// curves is the curve of the middle run of a cell, and those of other runs of the
// workload as it is; died is whether the middle run ended before its time.
func (v *view) curves(c *matrix.Cell) (text string, died bool) {
	middle := matrix.Middle(v.runsOf(c))
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
	return strings.Join(list, "|"), middle.Failure != "" || middle.Outcome.Verdict.Kind == memory.Crash
}

// curve is the anonymous memory of a run, or the resident memory where that is unknown.
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

// On is the verdict on a claim on a runtime.
func (c claim) On(runtime string) (s struct{ Verdict, Class, Text, Cells string }) {
	s.Verdict = claimVerdict(c.Claim, runtime)
	s.Class = map[string]string{matrix.Holds: "works", matrix.HoldsInPart: "partly", matrix.DoesNotHold: "harm", matrix.Undecided: "unclear"}[s.Verdict]
	for _, d := range c.Verdicts {
		if d.Runtime == runtime {
			s.Text, s.Cells = sentence(d.Text), strings.Join(d.Cells, ", ")
		}
	}
	return s
}

// claim is an entry of the ledger.
type claim struct{ matrix.Claim }

func (v *view) Ledger() (list []claim) {
	for _, c := range v.Claims {
		list = append(list, claim{c})
	}
	return list
}

// ClaimRuntimes heads the columns of the ledger.
func (v *view) ClaimRuntimes() []string {
	if names := v.claimRuntimes(); len(names) > 0 {
		return names
	}
	return []string{"measured"}
}

// Calibrations are the rows of the table of calibrations.
func (v *view) Calibrations() (rows [][]string) {
	for _, c := range v.Calibration {
		verdict, class := "held", "works"
		if !c.OK {
			verdict, class = "FAILED", "harm"
		}
		rows = append(rows, []string{c.Runtime, c.Workload, rate(memory.Interval{Estimate: c.Expected}, false), rate(c.Slope, true), verdict, calibrationText(c), class})
	}
	return rows
}
