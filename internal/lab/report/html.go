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
	"slices"
	"strings"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/uplot"
	"steadyfit/memory"
)

//go:embed page.tmpl page.css page.js
var assets embed.FS

var pageTemplate = uplot.Template(assets, template.FuncMap{
	"size": size, "duration": duration, "sentence": sentence, "spread": spread,
	"slope": func(c *matrix.Combination) string { return slopeText(c, false) },
	"best":  best, "slopeOf": rate, "calibration": calibrationText,
	"bytes":   func(n int64, none string) string { return cmp.Or(known(memory.Bytes(n), "%v"), none) },
	"exactly": func(v float64) string { return rate(memory.Interval{Estimate: v}, false) },
	"join":    func(list []string) string { return strings.Join(list, ", ") },
})

type page struct {
	*view
	// Packed is the table and the details: HTML, compressed with gzip, in base64, as a JSON
	// string.
	Packed template.JS
}

type onRuntime struct {
	Index   int
	Name    string
	Answers []answer
	Kept    []kept
}

// HTML writes the report as one file that loads nothing. The table and the details are
// compressed, and a script unpacks them, so that the report of a full matrix takes less than
// 400 KB.
func HTML(w io.Writer, r *matrix.Result) error {
	p := &page{view: newView(r)}
	var packed bytes.Buffer
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
	return uplot.Write(w, pageTemplate, p)
}

// Runtimes returns the answers by runtime.
func (v *view) Runtimes() []onRuntime {
	if v.answered == nil {
		for i, name := range v.runtimes {
			answers := v.answers(name)
			v.answered = append(v.answered, onRuntime{i, name, answers, v.keeps(answers)})
		}
	}
	return v.answered
}

func (r onRuntime) MostKept() []kept { return r.Kept[:min(len(r.Kept), mostKept)] }

func (r onRuntime) of(is func(answer) bool) []answer {
	return slices.DeleteFunc(slices.Clone(r.Answers), func(a answer) bool { return !is(a) })
}

// User returns the workload of the user's own model, if it neither grows nor crashes. Ill reports whether
// the summary has a row.
func (r onRuntime) User() []answer {
	return r.of(func(a answer) bool { return a.Workload.ID == matrix.User && !a.Grows() && !a.Crashes() })
}

func (r onRuntime) Ill() bool {
	return len(r.Kept) > 0 || slices.ContainsFunc(r.Bad(), func(a answer) bool { return !a.OnPurpose() })
}

// Bad returns the workloads that grow or crash, Peaks the other workloads that have a remedy for
// their peak, and Settled all remaining ones by their verdict.
func (r onRuntime) Bad() []answer {
	return r.of(func(a answer) bool { return a.Grows() || a.Crashes() })
}

func (r onRuntime) Peaks() []answer {
	return r.of(func(a answer) bool { return len(a.Peak) > 0 && !a.Grows() })
}

func (r onRuntime) Settled() (list []labelled) {
	for _, g := range []growth{settles, steady, undecided} {
		if some := r.of(func(a answer) bool { return a.growth == g }); len(some) > 0 {
			list = append(list, labelled{Label: g.heading, Answers: some})
		}
	}
	return list
}

func (v *view) Barren(r onRuntime) []labelled      { return v.barren(r.Answers) }
func (v *view) AllWorkloads() []matrix.Workload    { return v.workloads }
func (v *view) Title(c *matrix.Combination) string { return v.title(c.Remedy) }

// Cause returns the layer that grows, or the cause of a crash.
func (v *view) Cause(a answer) origin {
	if a.Crashes() {
		return origin{Text: sentence(v.crash(a.Base))}
	}
	return v.Why(a)
}

func (v *view) Anchor(a answer) string {
	return v.PartAnchor(slices.Index(v.runtimes, a.Runtime), a.Workload.ID)
}

func (v *view) PartAnchor(runtime int, workload string) string {
	i := slices.IndexFunc(v.workloads, func(w matrix.Workload) bool { return w.ID == workload })
	return fmt.Sprintf("w%d-%d", i, runtime)
}

func (v *view) RowAnchor(c *matrix.Combination) string {
	return v.rowAnchor(slices.Index(v.runtimes, c.Runtime), c.Workload, c.Remedy)
}

func (v *view) rowAnchor(runtime int, workload, remedy string) string {
	i := slices.IndexFunc(v.remedies, func(m matrix.Remedy) bool { return m.ID == remedy })
	return fmt.Sprintf("%s-%d", v.PartAnchor(runtime, workload), i)
}

func (v *view) Effects() []look { return looks }

func (a answer) Class() string   { return a.growth.class }
func (a answer) Heading() string { return a.growth.heading }

// Glance describes the baseline of a workload in two words.
func (v *view) Glance(runtime string, w matrix.Workload) (g struct {
	answer
	Word, Text string
}) {
	g.answer = v.answer(runtime, w)
	if g.Base == nil {
		g.Word = unknown
		if _, runs := w.Takes[runtime]; !runs && len(w.Takes) > 0 {
			g.Word = "cannot run it"
		}
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

// group has the rows of a group of remedies, with a cell for each workload.
type group struct {
	Name string
	Rows []tableRow
}

type tableRow struct {
	Title string
	Cells []tableCell
}

type tableCell struct{ Href, Class, Symbol, Word, Figure, Time, Why string }

func (v *view) Columns(runtime string) []matrix.Workload {
	return slices.DeleteFunc(slices.Clone(v.workloads), func(w matrix.Workload) bool {
		return v.combination(runtime, w.ID, matrix.Baseline) == nil
	})
}

func (v *view) Groups(runtime string) []group {
	var list []group
	columns := v.Columns(runtime)
	for _, m := range v.remedies {
		row, has := tableRow{Title: v.title(m.ID)}, false
		for _, w := range columns {
			c := v.combination(runtime, w.ID, m.ID)
			row.Cells = append(row.Cells, v.tableCell(c))
			has = has || c != nil && c.Effect != compare.NotApplicable
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

// Unmeasured returns the remedies for a runtime that the matrix did not try on it.
func (v *view) Unmeasured(runtime string) []matrix.Remedy {
	return slices.DeleteFunc(matrix.Remedies(), func(m matrix.Remedy) bool {
		return len(m.Runtimes) > 0 && !slices.Contains(m.Runtimes, runtime) ||
			slices.ContainsFunc(v.Combinations, func(c matrix.Combination) bool {
				return c.Runtime == runtime &&
					c.Remedy == m.ID
			})
	})
}

func (v *view) tableCell(c *matrix.Combination) tableCell {
	if c == nil {
		return tableCell{}
	}
	l := lookOf(c)
	t := tableCell{Class: l.Class, Symbol: l.Symbol, Word: l.Word}
	if c.Remedy == matrix.Baseline {
		t.Symbol, t.Word, t.Figure = " ", verdictWord(c), "peak "+size(c.Figures.Peak)
		switch growthOf(c) {
		case grows:
			t.Figure = slopeText(c, false)
		case crashes:
			t.Figure = ""
		}
		if c.Figures.StepTime != nil {
			t.Time = duration(c.Figures.StepTime)
		}
		if measured(c) {
			t.Href = v.RowAnchor(c)
		}
		return t
	}
	if !measured(c) {
		t.Why = c.Reason
		return t
	}
	t.Href = v.RowAnchor(c)
	d := c.Comparison
	switch {
	case crashesToo(c):
		t.Figure = "crashes too"
	case d != nil && c.Effect == compare.Harmful && 2*d.RemedyCrashes >= max(d.Pairs, 1):
		t.Figure = "crashes"
	case d != nil && c.Effect == compare.Works && d.BaseCrashes > 0:
		t.Figure = "survives"
	default:
		if name, r := v.goalRatio(c); r.OK {
			t.Figure = name + " " + times(r, false)
		}
	}
	if d != nil && d.StepTime.OK {
		t.Time = "time " + times(d.StepTime, false)
		if d.StepTime.Effect == compare.Unclear {
			t.Time += " ?"
		}
	}
	return t
}
