package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"steadyfit/internal/lab/cell"
	"steadyfit/matrix"
	"steadyfit/memory"
)

//go:embed page.tmpl
var pageText string

//go:embed style.css
var pageStyle string

//go:embed script.js
var pageScript string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// HTML writes the report as one file that loads nothing from elsewhere: the answer
// in words, then for each workload the curves, the remedies with their figures and
// the picture of peak against step time, the table of all cells, the ledger of
// claims, the environment, and the data. Without JavaScript everything is shown;
// with it one runtime at a time.
//
// The data are those of the result without what no reader of a report misses, so
// that the file stays below a few megabytes: matrix.json has all of it.
func HTML(w io.Writer, r *matrix.Result) error {
	v := newView(r)
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, v.page()); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	data, left, err := embedded(r, max(pageLimit-b.Len(), pageLimit/4))
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	head, rest, okData := bytes.Cut(b.Bytes(), []byte(leftMark))
	between, tail, okLeft := bytes.Cut(rest, []byte(rawMark))
	if !okData || !okLeft {
		return fmt.Errorf("report: the page has no place for its data")
	}
	for _, part := range [][]byte{head, []byte(template.HTMLEscapeString(left)), between, data, tail} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// pageLimit is the size in bytes that a page should stay below, data included.
const pageLimit = 3_000_000

// rawMark is where the data go. It has the form of what it is replaced by, so that
// the template sees a script of JSON.
const rawMark = `{"the":"data"}`

// leftMark is where the words go about what was left out of the data. No text of a
// result can be it, since a template escapes that.
const leftMark = `<span id="left"></span>`

type page struct {
	Style  template.CSS
	Script template.JS
	Raw    template.JS

	When, Machine, Calibrated string
	Alarms                    []string
	Lead, Kept                []string
	Runtimes                  []runtimeName
	Answers                   []answerBlock
	Glance                    []glanceRow
	Tables                    []cellTable
	Workloads                 []workloadBlock
	ClaimRuntimes             []string
	ClaimColumns              int
	Claims                    []claimRow
	Calibration               []calibrationRow
	Environment               [][2]string
	Effects                   []effectHelp
}

type runtimeName struct {
	Index int
	Name  string
}

type effectHelp struct{ Symbol, Class, Word, Text string }

type answerBlock struct {
	Runtime runtimeName
	Tally   string
	Cards   []card
	Kept    []keptBlock
	Settled []labelled
	Barren  []labelled
	Peaks   []peakLine
}

type labelled struct {
	Label string
	Items []linked
}

type linked struct{ Href, Name, Text string }

type peakLine struct {
	Href, Workload, Amount, Remedy, Cost string
}

type card struct {
	Href             string
	ID, Title        string
	Purpose, Dies    bool
	Figure, Spread   string
	Layer, Cause     string
	Removed          string // the words before the list
	Unlimited        string // what it takes without a limit
	None             string // the words where nothing removes it
	Removes, Lowers  []costed
	MoreRemoves      int
	Nothing, Harms   []string
	Unclear, Unseen  []string
	NothingLabel     string
	Spark            template.HTML
	SparkDescription string
}

// keptBlock is a workload that keeps its memory after the close.
type keptBlock struct {
	Href, ID, Title string
	Figure, Of      string
	Course, Keeper  string
	Compared        bool
	Back, Fewer     []costed
	More            int
	ALittle, Same   []string
	Unseen          []string
}

type costed struct{ Title, Left, Cost string }

type glanceRow struct {
	ID, Title, Expected string
	Cells               []glanceCell
}

type glanceCell struct {
	Href, Word, Text, Class string
}

type cellTable struct {
	Runtime   runtimeName
	Workloads []linked
	Groups    []cellGroup
}

type cellGroup struct {
	Name string
	Rows []cellRow
}

type cellRow struct {
	ID, Title string
	Cells     []tableCell
}

type tableCell struct {
	Href, Class, Symbol, Word, Figure, Time, Why string
}

type workloadBlock struct {
	Anchor    string
	ID, Title string
	What      string
	Expected  string
	Parts     []workloadPart
}

type workloadPart struct {
	Anchor     string
	Runtime    runtimeName
	Verdict    string
	Kinds      string
	Facts      string
	Class      string
	Layer      string
	Cause      string
	Chart      *chart
	ChartLabel string
	Rows       []remedyRow
	HasWhy     bool
	Absent     []labelled
	Pareto     *pareto
	PhaseNames []string
	// NativeNames heads the columns of phaseRow.Native.
	NativeNames []string
	Phases      []phaseRow
	PhaseLine   string
}

type remedyRow struct {
	Index                         int
	Anchor                        string
	ID, Title                     string
	Class, Symbol, Word           string
	Slope, SlopeRange, SlopeRatio string
	Peak, PeakRatio               string
	Time, TimeRatio               string
	Closed, ClosedRatio, Trimmed  string
	Why                           string
	Less                          bool
}

type phaseRow struct {
	Title  string
	Values []string
	Native []string
}

// nativeColumn is a figure beside the phases, shown where a cell has it.
type nativeColumn struct {
	name   string
	figure func(*matrix.Figures) *int64
}

var nativeColumns = []nativeColumn{
	{"TensorFlow's pool in a step", func(f *matrix.Figures) *int64 { return f.Pool }},
	{"GPU memory", func(f *matrix.Figures) *int64 { return f.GPU }},
	{"TensorFlow's GPU pool in a step", func(f *matrix.Figures) *int64 { return f.GPUPool }},
}

type claimRow struct {
	ID, Text, Says, Needs string
	// Untested is whether no runtime tested it.
	Untested bool
	Verdicts []claimCell
}

type claimCell struct{ Verdict, Class, Text, Cells string }

type calibrationRow struct {
	Runtime, Workload, Expected, Measured, Verdict, Class, Text string
}

func (v *view) page() *page {
	p := &page{Style: template.CSS(pageStyle), Script: template.JS(pageScript), Raw: template.JS(rawMark),
		When: v.when(), Machine: v.machine(), Calibrated: v.calibrated(), Alarms: v.alarms()}
	for _, e := range effects {
		c := &matrix.Cell{Effect: e}
		p.Effects = append(p.Effects, effectHelp{symbol(c), effectClass(c), word(c), effectMeaning[e]})
		if e == memory.NoEffect {
			c.Unverified = unseenMeaning
			p.Effects = append(p.Effects, effectHelp{symbol(c), effectClass(c), word(c), unseenMeaning})
		}
	}
	curves := 0
	for i := range v.Cells {
		if len(v.Cells[i].Runs) > 0 {
			curves++
		}
	}
	// A page of many curves has shorter ones.
	most := min(max(40_000/max(curves, 1), 24), 160)

	all := make([][]answer, len(v.runtimes))
	for i, name := range v.runtimes {
		all[i] = v.answers(name)
		p.Runtimes = append(p.Runtimes, runtimeName{i, name})
		p.Lead = append(p.Lead, fmt.Sprintf("On %s %s.", name, tally(all[i])))
		if text := v.keptLead(v.keeps(all[i])); text != "" {
			p.Kept = append(p.Kept, text)
		}
		p.Answers = append(p.Answers, v.answerBlock(i, all[i]))
		p.Tables = append(p.Tables, v.cellTable(i))
	}
	for n, w := range v.workloads {
		row := glanceRow{ID: w.ID, Title: w.Title, Expected: w.Expected}
		block := workloadBlock{Anchor: fmt.Sprintf("w%d", n), ID: w.ID, Title: w.Title, What: sentence(w.What), Expected: w.Expected}
		for i := range v.runtimes {
			a := answer{}
			for _, x := range all[i] {
				if x.workload.ID == w.ID {
					a = x
				}
			}
			row.Cells = append(row.Cells, v.glance(a, v.partAnchor(i, w.ID)))
			if a.base != nil {
				block.Parts = append(block.Parts, v.part(i, a, most))
			}
		}
		p.Glance = append(p.Glance, row)
		if len(block.Parts) > 0 {
			p.Workloads = append(p.Workloads, block)
		}
	}
	p.ClaimRuntimes = v.claimRuntimes()
	if len(p.ClaimRuntimes) == 0 && len(v.Claims) > 0 {
		p.ClaimRuntimes = []string{"measured"}
	}
	p.ClaimColumns = len(p.ClaimRuntimes)
	for _, c := range v.Claims {
		row := claimRow{ID: c.ID, Text: c.Text, Says: c.Says, Needs: c.Needs, Untested: len(c.Verdicts) == 0}
		for _, name := range p.ClaimRuntimes {
			d := claimCell{Verdict: claimVerdict(c, name)}
			for _, x := range c.Verdicts {
				if x.Runtime == name {
					d.Text, d.Cells = sentence(x.Text), strings.Join(x.Cells, ", ")
				}
			}
			d.Class = claimClass[d.Verdict]
			row.Verdicts = append(row.Verdicts, d)
		}
		p.Claims = append(p.Claims, row)
	}
	for _, c := range v.Calibration {
		row := calibrationRow{Runtime: c.Runtime, Workload: c.Workload, Expected: rate(memory.Interval{Estimate: c.Expected}, false),
			Measured: rate(c.Slope, true), Verdict: "held", Class: "works", Text: calibrationText(c)}
		if !c.OK {
			row.Verdict, row.Class = "FAILED", "harm"
		}
		p.Calibration = append(p.Calibration, row)
	}
	p.Environment = v.environment()
	return p
}

var claimClass = map[string]string{matrix.Holds: "works", matrix.HoldsInPart: "partly", matrix.DoesNotHold: "harm", matrix.Undecided: "unclear"}

func effectWord(e memory.Effect) string {
	switch e {
	case memory.NotApplicable:
		return "n/a"
	case memory.CouldNotApply:
		return "not applied"
	case "":
		return unknown
	}
	return string(e)
}

// word is what a table says of a cell.
func word(c *matrix.Cell) string {
	if unseen(c) {
		return unseenWord
	}
	return effectWord(c.Effect)
}

// unseenMeaning is what unseenSymbol says.
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

func (v *view) partAnchor(runtime int, workload string) string {
	n := slices.IndexFunc(v.workloads, func(w matrix.Workload) bool { return w.ID == workload })
	return fmt.Sprintf("w%d-%d", n, runtime)
}

func (v *view) titles(cells []*matrix.Cell) []string {
	var list []string
	for _, c := range cells {
		list = append(list, v.title(c.Remedy))
	}
	return list
}

// mostNames is how many remedies a list of an answer names; the table has all.
const mostNames = 16

// mostSurvivors is how many remedies are named that save a workload from its death,
// mostKept how many workloads that keep their memory are shown, and mostReturns how
// many remedies that bring it back.
const mostSurvivors, mostKept, mostReturns = 8, 6, 4

// shorten cuts lists to what an answer names.
func shorten(lists ...*[]string) {
	for _, list := range lists {
		if n := len(*list) - mostNames; n > 1 {
			*list = append((*list)[:mostNames:mostNames], fmt.Sprintf("and %d more", n))
		}
	}
}

func (v *view) keptBlock(runtime int, k kept) keptBlock {
	b := keptBlock{Href: "#" + v.partAnchor(runtime, k.workload.ID), ID: k.workload.ID, Title: k.workload.Title,
		Figure: k.closed.String(), Of: fmt.Sprintf("held after the close, of %s in the loop", k.level),
		Course: sentence(k.course()), Keeper: v.keeper(k), Compared: k.compared > 0, ALittle: v.titles(k.alittle), Same: v.titles(k.same), Unseen: v.titles(k.unseen)}
	for _, list := range []struct {
		from []*matrix.Cell
		to   *[]costed
	}{{k.back, &b.Back}, {k.fewer, &b.Fewer}} {
		for i, c := range list.from {
			if i == mostReturns {
				b.More += len(list.from) - i
				break
			}
			*list.to = append(*list.to, costed{Title: v.title(c.Remedy), Left: size(c.Figures.Closed), Cost: v.afterClose(c)})
		}
	}
	shorten(&b.ALittle, &b.Same, &b.Unseen)
	return b
}

func (v *view) answerBlock(runtime int, all []answer) answerBlock {
	b := answerBlock{Runtime: runtimeName{runtime, v.runtimes[runtime]}, Tally: tally(all)}
	settled := map[growth][]linked{}
	for _, a := range all {
		href := "#" + v.partAnchor(runtime, a.workload.ID)
		if a.growth != grows && a.growth != dies {
			settled[a.growth] = append(settled[a.growth], linked{href, a.workload.ID, v.verdict(a.base)})
			continue
		}
		c := card{Href: href, ID: a.workload.ID, Title: a.workload.Title, Purpose: a.onPurpose(), Dies: a.growth == dies,
			Removed: "Removed by", NothingLabel: "Does nothing", Spark: v.spark(a), None: "no remedy that was tried"}
		most := 3
		if c.Dies {
			c.Figure, c.Removed, c.NothingLabel, most = "dies", "Survives with", "Dies too with", mostSurvivors
			c.Cause, c.Unlimited = sentence(v.death(a.base)), v.unlimited(a)
		} else {
			c.Figure, c.Spread = slopeText(a.base, false), spread(a.base)
			c.Layer, c.Cause = v.why(a)
		}
		if len(a.unclear)+len(a.unseen) > 0 {
			c.None = "nothing, as far as was shown"
		}
		for i, m := range a.removes {
			if i == most {
				c.MoreRemoves = len(a.removes) - i
				break
			}
			c.Removes = append(c.Removes, costed{Title: v.title(m.Remedy), Cost: v.cost(m)})
		}
		for i, m := range a.lowers {
			if i == 2 {
				break
			}
			left := ""
			if m.Comparison != nil && m.Comparison.Slope.OK {
				left = "slope " + times(m.Comparison.Slope, false)
			}
			c.Lowers = append(c.Lowers, costed{Title: v.title(m.Remedy), Left: left, Cost: v.cost(m)})
		}
		c.Nothing, c.Unseen, c.Harms, c.Unclear = v.titles(a.nothing), v.titles(a.unseen), v.titles(a.harms), v.titles(a.unclear)
		shorten(&c.Nothing, &c.Unseen, &c.Harms, &c.Unclear)
		b.Cards = append(b.Cards, c)
	}
	for _, g := range []struct {
		growth growth
		label  string
	}{{settles, "Rises, then levels off"}, {steady, "Does not grow"}, {undecided, "Undecided"}} {
		if len(settled[g.growth]) > 0 {
			b.Settled = append(b.Settled, labelled{g.label, settled[g.growth]})
		}
	}
	for i, k := range v.keeps(all) {
		if i < mostKept {
			b.Kept = append(b.Kept, v.keptBlock(runtime, k))
		}
	}
	b.Barren = v.barren(all)
	for _, a := range all {
		if len(a.peak) > 0 && a.growth != grows {
			c := a.peak[0]
			b.Peaks = append(b.Peaks, peakLine{"#" + v.partAnchor(runtime, a.workload.ID), a.workload.ID, size(c.Figures.Peak), v.title(c.Remedy), v.cost(c)})
		}
	}
	return b
}

func (v *view) glance(a answer, anchor string) glanceCell {
	if a.base == nil {
		return glanceCell{Word: unknown}
	}
	c := glanceCell{Href: "#" + anchor, Word: verdictWord(a.base), Class: map[growth]string{grows: "harm", dies: "harm", settles: "partly", steady: "works", undecided: "unclear"}[a.growth]}
	switch d := a.base.Verdict; {
	case a.growth == grows:
		c.Text = slopeText(a.base, false)
	case a.growth == settles:
		c.Text = "+" + (d.Level - d.Start).String()
	case a.growth == steady && d.Kind == memory.Sawtooth:
		c.Text = d.Depth.String() + " deep"
	case a.growth == steady:
		c.Text = d.Level.String()
	}
	return c
}

func (v *view) cellTable(runtime int) cellTable {
	name := v.runtimes[runtime]
	t := cellTable{Runtime: runtimeName{runtime, name}}
	var columns []matrix.Workload
	for _, w := range v.workloads {
		if v.cell(name, w.ID, matrix.Baseline) == nil {
			continue
		}
		columns = append(columns, w)
		t.Workloads = append(t.Workloads, linked{"#" + v.partAnchor(runtime, w.ID), w.ID, w.Title})
	}
	for _, m := range v.remedies {
		row := cellRow{ID: m.ID, Title: v.title(m.ID)}
		has := false
		for _, w := range columns {
			c := v.cell(name, w.ID, m.ID)
			cell := v.tableCell(c)
			if m.ID == matrix.Baseline {
				cell = v.baseCell(c)
			}
			if cell.Symbol != "" && c != nil && measured(c) {
				cell.Href = "#" + v.rowAnchor(runtime, w.ID, m.ID)
			}
			has = has || c != nil && c.Effect != memory.NotApplicable
			row.Cells = append(row.Cells, cell)
		}
		if !has {
			continue
		}
		group := cmp.Or(m.Group, "other")
		i := slices.IndexFunc(t.Groups, func(g cellGroup) bool { return g.Name == group })
		if i < 0 {
			i = len(t.Groups)
			t.Groups = append(t.Groups, cellGroup{Name: group})
		}
		t.Groups[i].Rows = append(t.Groups[i].Rows, row)
	}
	return t
}

func (v *view) rowAnchor(runtime int, workload, remedy string) string {
	return fmt.Sprintf("%s-%d", v.partAnchor(runtime, workload), v.index(remedy))
}

func (v *view) baseCell(c *matrix.Cell) tableCell {
	t := tableCell{Class: "base", Symbol: " ", Word: verdictWord(c)}
	switch growthOf(c) {
	case grows:
		t.Figure = slopeText(c, false)
	case dies:
	default:
		t.Figure = "peak " + size(c.Figures.Peak)
	}
	if c.Figures.StepTime != nil {
		t.Time = duration(c.Figures.StepTime)
	}
	return t
}

func (v *view) tableCell(c *matrix.Cell) tableCell {
	if c == nil {
		return tableCell{}
	}
	t := tableCell{Class: effectClass(c), Symbol: symbol(c), Word: word(c)}
	if !measured(c) {
		t.Why = c.Reason
		return t
	}
	switch {
	case diesToo(c):
		t.Figure = "dies too"
	case c.Comparison != nil && c.Effect == memory.Harmful && 2*c.Comparison.RemedyCrashes >= max(c.Comparison.Pairs, 1):
		t.Figure = "dies"
	case c.Comparison != nil && c.Effect == memory.Works && c.Comparison.BaseCrashes > 0:
		t.Figure = "survives"
	default:
		if name, r := v.goalRatio(c); r.OK {
			t.Figure = name + " " + times(r, false)
		}
	}
	if c.Comparison != nil && c.Comparison.StepTime.OK {
		t.Time = "time " + times(c.Comparison.StepTime, false) + orEmptyIf(c.Comparison.StepTime.Effect == memory.Unclear, " ?")
	}
	return t
}

var phaseNames = []string{cell.PhaseStart, cell.PhaseLibrary, cell.PhaseLoaded, cell.PhaseFirst, cell.PhaseSteady, cell.PhaseClosed, cell.PhaseTrimmed}

func (v *view) part(runtime int, a answer, most int) workloadPart {
	p := workloadPart{Anchor: v.partAnchor(runtime, a.workload.ID), Runtime: runtimeName{runtime, v.runtimes[runtime]},
		Verdict: sentence(v.verdict(a.base)), Kinds: v.kinds(a.base), PhaseNames: phaseNames,
		Class: map[growth]string{grows: "harm", dies: "harm", settles: "partly", steady: "works", undecided: "unclear"}[a.growth]}
	if a.growth == dies {
		p.Kinds = "" // the verdict counts the deaths
	}
	p.Layer, p.Cause = v.why(a)
	p.Facts = workloadFacts(a.workload, a.runtime)
	shown := []*matrix.Cell{a.base}
	reasons := map[string]int{}
	for _, m := range v.remedies {
		c := v.cell(a.runtime, a.workload.ID, m.ID)
		switch {
		case c == nil || m.ID == matrix.Baseline:
		case measured(c):
			shown = append(shown, c)
		default:
			label := "Not applicable"
			if c.Effect == memory.CouldNotApply {
				label = "Could not be applied" + orEmpty(": ", c.Reason)
			}
			if _, ok := reasons[label]; !ok {
				reasons[label] = len(p.Absent)
				p.Absent = append(p.Absent, labelled{Label: label})
			}
			i := reasons[label]
			p.Absent[i].Items = append(p.Absent[i].Items, linked{Name: v.title(m.ID)})
		}
	}
	// Best first; within an effect as declared, what works by cost.
	order := func(c *matrix.Cell) int {
		if c == a.base {
			return -1
		}
		return slices.Index(effects, c.Effect)
	}
	slices.SortStableFunc(shown, func(x, y *matrix.Cell) int {
		if n := cmp.Compare(order(x), order(y)); n != 0 || x.Effect != memory.Works {
			return n
		}
		return v.byCost(x, y)
	})
	p.Chart = v.chart(a, shown, most)
	p.ChartLabel = fmt.Sprintf("Anonymous memory over steps of %s on %s, one curve for each of %s. The table below has the figures.",
		a.workload.ID, a.runtime, plural(len(shown), "arm", "arms"))
	p.Pareto = v.pareto(a, shown)
	var native []nativeColumn
	for _, n := range nativeColumns {
		if slices.ContainsFunc(shown, func(c *matrix.Cell) bool { return n.figure(&c.Figures) != nil }) {
			native = append(native, n)
			p.NativeNames = append(p.NativeNames, n.name)
		}
	}
	for _, c := range shown {
		p.Rows = append(p.Rows, v.remedyRow(runtime, c))
		p.HasWhy = p.HasWhy || p.Rows[len(p.Rows)-1].Why != ""
		row := phaseRow{Title: v.title(c.Remedy)}
		known := false
		for _, name := range phaseNames {
			r := v.phase(c, name)
			known = known || r.OK
			row.Values = append(row.Values, reading(r))
		}
		for _, n := range native {
			row.Native = append(row.Native, size(n.figure(&c.Figures)))
		}
		if known {
			p.Phases = append(p.Phases, row)
		}
	}
	if len(p.Phases) > 0 {
		var parts []string
		for i, value := range p.Phases[0].Values {
			if value != unknown {
				parts = append(parts, phaseNames[i]+" "+value)
			}
		}
		p.PhaseLine = strings.Join(parts, " → ")
	}
	return p
}

func (v *view) remedyRow(runtime int, c *matrix.Cell) remedyRow {
	r := remedyRow{Index: v.index(c.Remedy), Anchor: v.rowAnchor(runtime, c.Workload, c.Remedy), ID: c.Remedy, Title: v.title(c.Remedy),
		Class: effectClass(c), Symbol: symbol(c), Word: word(c),
		Slope: slopeText(c, false), Peak: size(c.Figures.Peak), Time: duration(c.Figures.StepTime),
		Closed: size(c.Figures.Closed), Trimmed: size(c.Figures.Trimmed), Less: v.lessWork(c.Remedy)}
	if head, bounds, ok := strings.Cut(slopeText(c, true), " ["); ok {
		r.Slope, r.SlopeRange = head, "["+bounds // in one unit
	}
	if c.Remedy == matrix.Baseline {
		r.Symbol, r.Word = "", verdictWord(c)
	}
	if d := c.Comparison; d != nil {
		r.SlopeRatio, r.PeakRatio, r.TimeRatio, r.ClosedRatio = times(d.Slope, true), times(d.Peak, true), times(d.StepTime, true), times(d.Reset, true)
		for _, text := range []*string{&r.SlopeRatio, &r.PeakRatio, &r.TimeRatio, &r.ClosedRatio} {
			if *text == unknown {
				*text = ""
			}
		}
	}
	r.Why = v.remark(c)
	return r
}

// remark is what the figures of a cell do not say.
func (v *view) remark(c *matrix.Cell) string {
	if c.Remedy == matrix.Baseline {
		return ""
	}
	var parts []string
	if _, r := v.goalRatio(c); !r.OK && !diesToo(c) {
		// Where the ratio is known the reason repeats it.
		parts = append(parts, sentence(c.Reason))
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

func notes(d *memory.Verdict) string {
	if d == nil {
		return ""
	}
	var list []string
	for _, n := range d.Notes {
		list = append(list, sentence(n))
	}
	return strings.Join(list, " ")
}

// workloadFacts is how a workload runs on a runtime, in a line.
func workloadFacts(w matrix.Workload, runtime string) string {
	d := w.On[runtime] // what is 0 there is the same as elsewhere
	steps, every, epoch := cmp.Or(d.Steps, w.Steps), cmp.Or(d.Every, w.Every), cmp.Or(d.Epoch, w.Epoch)
	var parts []string
	if w.Model != "" {
		parts = append(parts, "model "+w.Model)
	}
	if steps > 0 {
		text := count(steps, "step")
		if epoch > 0 && epoch < steps {
			text += fmt.Sprintf(" in epochs of %d", epoch)
		}
		parts = append(parts, text)
	}
	if every > 1 {
		parts = append(parts, fmt.Sprintf("a sample every %d", every))
	}
	if w.Batch > 0 {
		parts = append(parts, fmt.Sprintf("batch %d", w.Batch))
	}
	if w.Budget > 0 {
		parts = append(parts, fmt.Sprintf("budget %s per step", memory.Bytes(w.Budget)))
	}
	if limit := limitOf(w, runtime); limit > 0 {
		parts = append(parts, "under a limit of "+memory.Bytes(limit).String())
	}
	return strings.Join(parts, " · ")
}

func (v *view) environment() [][2]string {
	e, s := v.Environment, v.Settings
	var rows [][2]string
	add := func(name, value string) {
		if value == "" {
			value = unknown
		}
		rows = append(rows, [2]string{name, value})
	}
	amount := func(b int64) string {
		if b <= 0 {
			return ""
		}
		return memory.Bytes(b).String()
	}
	add("Processor", e.CPU)
	cores := ""
	if e.Cores > 0 {
		cores = fmt.Sprint(e.Cores)
	}
	add("Cores", cores)
	add("Memory", amount(e.Memory))
	if e.Limit > 0 {
		add("Limit of the control group", amount(e.Limit))
	} else {
		add("Limit of the control group", "none")
	}
	add("System", strings.TrimSpace(strings.Trim(e.OS+"/"+e.Arch, "/")+" "+e.Kernel))
	gpus := "none"
	if len(e.GPUs) > 0 {
		gpus = strings.Join(e.GPUs, ", ")
	}
	add("GPUs", gpus)
	for _, name := range v.runtimes {
		add("TensorFlow of "+name, e.TensorFlow[name])
	}
	if e.Keras != "" || e.Python != "" {
		add("Keras", e.Keras)
		add("Python", e.Python)
	}
	add("Go", e.Go)
	var names []string
	for name := range e.Variables {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = name + "=" + e.Variables[name]
	}
	variables := "none that matters"
	if len(names) > 0 {
		variables = strings.Join(names, " ")
	}
	add("Variables", variables)
	add("Load before and after", fmt.Sprintf("%.2f, %.2f", e.LoadBefore, e.LoadAfter))
	settings := fmt.Sprintf("%s per cell, seed %d, intervals of slopes at %s%%", count(s.Pairs, "pair"), s.Seed, significant(100*cmp.Or(s.Confidence, memory.DefaultConfidence), 2))
	if s.Quick {
		settings += ", the quick form"
	}
	if s.Jobs > 0 {
		settings += ", " + plural(s.Jobs, "run at a time", "runs at a time")
	}
	add("Settings", settings)
	limit := "none"
	if s.Limit > 0 {
		limit = memory.Bytes(s.Limit).String()
	}
	limited := slices.ContainsFunc(v.workloads, func(w matrix.Workload) bool {
		return slices.ContainsFunc(v.runtimes, func(runtime string) bool { return limitOf(w, runtime) > 0 })
	})
	if limited {
		limit += ", but for workloads that have one of their own"
	}
	if s.LimitKind != "" {
		limit += "; held by " + s.LimitKind
	}
	add("Limit of each run", limit)
	total := 0.0
	for i := range v.Runs {
		total += v.Runs[i].Seconds
	}
	if total > 0 {
		add("Time in runs", fmt.Sprintf("%.0f s in %s", math.Round(total), count(len(v.Runs), "run")))
	}
	return rows
}
