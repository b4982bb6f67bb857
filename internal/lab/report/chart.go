package report

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/matrix"
	"steadyfit/memory"
)

// A plot is drawn into a box of this size and stretched to where it is shown. Text
// stands beside it as HTML, so it is not stretched.
const (
	plotWidth  = 4000
	plotHeight = 2000
)

// axis maps amounts to a share of a plot.
type axis struct {
	Low, High float64
	Ticks     []tick
}

type tick struct {
	At   float64 // in percent from the low end
	Text string
}

// End is whether the text would stand out at the high end of a horizontal axis.
func (t tick) End() bool { return t.At > 95 }

func (a axis) at(v float64) float64 { return (v - a.Low) / (a.High - a.Low) }

// byteAxis has round ticks in a power of 1024. It begins at 0, unless that would
// leave most of the plot empty.
func byteAxis(low, high float64, ticks int) axis {
	if high <= 0 {
		high = 1
	}
	begin := 0.0
	if low > high/2 {
		span := max(high-low, high/10)
		begin = max(low-span/4, 0)
		high = max(high, low+span)
	}
	unit, name := 1.0, "B"
	for _, u := range []memory.Bytes{memory.GiB, memory.MiB, memory.KiB} {
		if high >= float64(u) {
			// One unit for all ticks, with the decimals that it takes.
			unit, name = float64(u), strings.Fields(u.String())[1]
			break
		}
	}
	a := axis{Low: begin, High: high}
	a.round(unit, ticks, func(v float64) string {
		return strconv.FormatFloat(math.Round(v/unit*1e6)/1e6, 'f', -1, 64) + " " + name
	})
	return a
}

// numberAxis has round ticks in the unit given.
func numberAxis(low, high, unit float64, ticks int, text func(float64) string) axis {
	if high <= low {
		high = low + max(math.Abs(low)/10, unit)
	}
	a := axis{Low: low, High: high}
	a.round(unit, ticks, text)
	return a
}

// round moves the ends of the axis to round numbers and sets the ticks.
func (a *axis) round(unit float64, ticks int, text func(float64) string) {
	step := (a.High - a.Low) / unit / float64(ticks)
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, f := range []float64{1, 2, 2.5, 5, 10} {
		if step <= f*power*1.0001 {
			step = f * power
			break
		}
	}
	step *= unit
	a.Low, a.High = math.Floor(a.Low/step+1e-9)*step, math.Ceil(a.High/step-1e-9)*step
	n := int(math.Round((a.High - a.Low) / step))
	last := ""
	for i := range n + 1 {
		v := a.Low + float64(i)*step
		name := text(v)
		if math.Abs(v) < step/1e6 {
			name = "0"
		}
		if name == last {
			continue // finer than the text tells
		}
		last = name
		a.Ticks = append(a.Ticks, tick{At: percent(a.at(v)), Text: name})
	}
}

// percent rounds to what a screen can show, so that the page stays small.
func percent(share float64) float64 { return math.Round(share*1e4) / 100 }

// point is a step and what was held after it.
type point struct{ x, y float64 }

// points of anonymous memory of a run, or of resident memory where the system does
// not tell that.
func points(s *memory.Series) []point {
	if s == nil {
		return nil
	}
	samples := s.Samples()
	for _, layer := range []memory.Layer{memory.Anon, memory.RSS} {
		var list []point
		for i := range samples {
			if r := samples[i].Get(layer); r.OK {
				list = append(list, point{float64(samples[i].Step), float64(r.Bytes)})
			}
		}
		if len(list) > 1 {
			return list
		}
	}
	return nil
}

// thinned keeps at most so many points, in the order of time: of each stretch the
// lowest and the highest, so that teeth and peaks remain.
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

// path is a curve as an SVG path with whole relative coordinates, which is the
// shortest form.
func path(list []point, x, y axis) string {
	var b strings.Builder
	px, py := 0, 0
	for i, p := range list {
		cx := int(math.Round(plotWidth * x.at(p.x)))
		cy := int(math.Round(plotHeight * (1 - y.at(p.y))))
		dx, dy := cx-px, cy-py
		if i == 0 {
			b.WriteByte('M')
		} else if i == 1 {
			b.WriteByte('l')
		} else if dx >= 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Itoa(dx))
		if dy >= 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Itoa(dy))
		px, py = cx, cy
	}
	return b.String()
}

type chart struct {
	X, Y   axis
	Curves []curve
	Labels []chartLabel
	// FromZero is false if the vertical axis does not begin at 0.
	FromZero bool
	Height   int
}

type curve struct {
	Index int // of the remedy; 0 is the baseline
	Class string
	Path  string
	// Died is where the run ended before its time.
	Died         bool
	EndX, EndTop float64
}

type chartLabel struct {
	Text  string
	Class string
	Top   float64
}

// chart draws the middle run of each cell of a workload, and the other runs of the
// baseline thin, as far as the result has them.
func (v *view) chart(a answer, cells []*matrix.Cell, most int) *chart {
	type line struct {
		cell   *matrix.Cell
		points []point
		died   bool
		repeat bool
	}
	var lines []line
	add := func(c *matrix.Cell, r *matrix.RunResult, repeat bool) {
		if p := points(r.Series); len(p) > 1 {
			lines = append(lines, line{c, thinned(p, most), r.Failure != "" || r.Outcome.Verdict.Kind == memory.Crash, repeat})
		}
	}
	for _, c := range cells {
		if m := matrix.Middle(v.runsOf(c)); m != nil {
			add(c, m, false)
			if c != a.base {
				continue
			}
			others := 0
			for _, r := range v.runsOf(c) {
				if r != m && others < 6 {
					add(c, r, true)
					others++
				}
			}
		}
	}
	if len(lines) == 0 {
		return nil
	}
	low, high, first, last := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, l := range lines {
		for _, p := range l.points {
			low, high = min(low, p.y), max(high, p.y)
			first, last = min(first, p.x), max(last, p.x)
		}
	}
	out := &chart{Height: plotHeight}
	out.Y = byteAxis(low, high, 5)
	out.FromZero = out.Y.Low == 0
	out.X = numberAxis(0, last, 1, 5, func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) })
	// The last sample is the end of the axis, without room to the next round number.
	out.X.cut(last)
	// Drawn last is on top: the baseline, and before it what works.
	slices.SortStableFunc(lines, func(x, y line) int { return cmp.Compare(drawOrder(x.cell, a), drawOrder(y.cell, a)) })
	for _, l := range lines {
		end := l.points[len(l.points)-1]
		c := curve{Index: v.index(l.cell.Remedy), Class: effectClass(l.cell), Path: path(l.points, out.X, out.Y), Died: l.died,
			EndX: percent(out.X.at(end.x)), EndTop: percent(1 - out.Y.at(end.y))}
		if l.repeat {
			c.Class, c.Index, c.Died = "rep", -1, false
		}
		out.Curves = append(out.Curves, c)
		best := len(a.removes) > 0 && l.cell == a.removes[0]
		if !l.repeat && (l.cell == a.base || best) {
			out.Labels = append(out.Labels, chartLabel{v.title(l.cell.Remedy), c.Class, c.EndTop})
		}
	}
	if len(out.Labels) == 2 {
		x, y := &out.Labels[0], &out.Labels[1]
		if x.Top > y.Top {
			x, y = y, x
		}
		if gap := 9 - (y.Top - x.Top); gap > 0 {
			x.Top, y.Top = x.Top-gap/2, y.Top+gap/2
		}
	}
	for i := range out.Labels {
		out.Labels[i].Top = min(max(out.Labels[i].Top, 4), 96)
	}
	return out
}

// cut ends the axis at v.
func (a *axis) cut(v float64) {
	share := a.at(v)
	if share <= 0 || share >= 1 {
		return
	}
	a.High = v
	ticks := a.Ticks[:0]
	for _, t := range a.Ticks {
		if t.At = math.Round(t.At/share*100) / 100; t.At <= 100 {
			ticks = append(ticks, t)
		}
	}
	a.Ticks = ticks
}

func drawOrder(c *matrix.Cell, a answer) int {
	switch {
	case c == a.base:
		return 9
	case len(a.removes) > 0 && c == a.removes[0]:
		return 8
	}
	return map[memory.Effect]int{memory.Works: 4, memory.Partly: 3, memory.Harmful: 2, memory.Unclear: 1}[c.Effect]
}

// index of a remedy in the view, which names it in the page.
func (v *view) index(remedy string) int {
	return slices.IndexFunc(v.remedies, func(m matrix.Remedy) bool { return m.ID == remedy })
}

// spark is a small picture of the workload as it is, and with the best remedy.
func (v *view) spark(a answer) template.HTML {
	if a.base == nil {
		return ""
	}
	m := matrix.Middle(v.runsOf(a.base))
	if m == nil {
		return ""
	}
	base := thinned(points(m.Series), 40)
	var best []point
	if len(a.removes) > 0 {
		if m := matrix.Middle(v.runsOf(a.removes[0])); m != nil {
			best = thinned(points(m.Series), 40)
		}
	}
	all := slices.Concat(base, best)
	if len(base) < 2 {
		return ""
	}
	high, last := 0.0, 0.0
	for _, p := range all {
		high, last = max(high, p.y), max(last, p.x)
	}
	x, y := axis{Low: 0, High: max(last, 1)}, axis{Low: 0, High: max(high, 1) * 1.05}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="spark" viewBox="0 0 %d %d" preserveAspectRatio="none" aria-hidden="true">`, plotWidth, plotHeight)
	if len(best) > 1 {
		fmt.Fprintf(&b, `<path class="l works" d="%s"/>`, path(best, x, y))
	}
	fmt.Fprintf(&b, `<path class="l base" d="%s"/></svg>`, path(base, x, y))
	return template.HTML(b.String()) // numbers only
}

// pareto is the picture of peak memory against step time.
type pareto struct {
	X, Y   axis
	Points []dot
	Front  []dot
	// Less is whether some points do less work per step.
	Less bool
}

type dot struct {
	Index      int
	Left, Top  float64
	Class      string
	Title      string
	Number     int // on the front, from 1
	Less       bool
	Peak, Time string
	peak, ns   float64
	label      string
}

func (d dot) Label() string { return d.label }

func (v *view) pareto(a answer, cells []*matrix.Cell) *pareto {
	var out pareto
	for _, c := range cells {
		f := c.Figures
		if f.Peak == nil || f.StepTime == nil || 2*len(c.Crashes) >= max(len(c.Runs), 1) {
			continue
		}
		d := dot{Index: v.index(c.Remedy), Class: effectClass(c), Title: v.title(c.Remedy), Peak: size(f.Peak), Time: duration(f.StepTime),
			peak: float64(*f.Peak), ns: float64(*f.StepTime), Less: v.lessWork(c.Remedy)}
		out.Less = out.Less || d.Less
		d.label = fmt.Sprintf("%s: peak %s, %s per step", d.Title, d.Peak, d.Time)
		if d.Less {
			d.label += ", of less work"
		}
		out.Points = append(out.Points, d)
	}
	if len(out.Points) < 2 {
		return nil
	}
	slices.SortStableFunc(out.Points, func(x, y dot) int { return cmp.Or(cmp.Compare(x.ns, y.ns), cmp.Compare(x.peak, y.peak)) })
	lowest := math.Inf(1)
	lowX, highX, lowY, highY := math.Inf(1), 0.0, math.Inf(1), 0.0
	for i := range out.Points {
		d := &out.Points[i]
		lowX, highX = min(lowX, d.ns), max(highX, d.ns)
		lowY, highY = min(lowY, d.peak), max(highY, d.peak)
		if d.peak < lowest && !d.Less {
			lowest = d.peak
			d.Number = len(out.Front) + 1
			out.Front = append(out.Front, *d)
		}
	}
	unit, name := 1.0, " ns"
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, " s"}, {1e6, " ms"}, {1e3, " µs"}} {
		if highX >= u.size {
			unit, name = u.size, u.name
			break
		}
	}
	out.Y = byteAxis(lowY, highY, 4)
	begin := 0.0
	if lowX > highX/2 {
		begin = max(lowX-max(highX-lowX, highX/20)/4, 0)
	}
	out.X = numberAxis(begin, highX, unit, 4, func(v float64) string {
		return strconv.FormatFloat(math.Round(v/unit*1e6)/1e6, 'f', -1, 64) + name
	})
	for i := range out.Points {
		out.Points[i].Left, out.Points[i].Top = percent(out.X.at(out.Points[i].ns)), percent(1-out.Y.at(out.Points[i].peak))
	}
	return &out
}

// lessWork is whether a step does less with a remedy, so that its time is no fair
// comparison.
func (v *view) lessWork(remedy string) bool {
	knobs := v.remedy[remedy].Knobs
	return knobs["batch_divide"] != "" || knobs["batch"] != ""
}

// effectClass is the style of an effect.
func effectClass(c *matrix.Cell) string {
	if c.Remedy == matrix.Baseline {
		return "base"
	}
	if unseen(c) {
		return "unclear"
	}
	return map[memory.Effect]string{memory.Works: "works", memory.Partly: "partly", memory.NoEffect: "none", memory.Harmful: "harm",
		memory.Unclear: "unclear", memory.CouldNotApply: "absent", memory.NotApplicable: "na"}[c.Effect]
}
