package tune

import (
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"time"

	"steadyfit/internal/autotune"
	"steadyfit/internal/english"
	"steadyfit/internal/uplot"
	"steadyfit/memory"
)

//go:embed page.tmpl page.css page.js
var assets embed.FS

var pageTemplate = uplot.Template(assets, template.FuncMap{
	"duration": english.Duration,
	"inc":      func(i int) int { return i + 1 },
})

// Page is a page with a result and the chart of its front.
type Page struct {
	Result
	Goal Goal
	// Model and Data are names. Batch is the number of samples of a step.
	Model, Data string
	Batch       int
	// Why says how the goal chooses.
	Why string
	// File is the configuration file with the choice.
	File string
	// Numbers describes how the results of a point relate to those of plain steps.
	Numbers func(Point) string
}

// Memory returns the name of the memory that was measured.
func (p *Page) Memory() string {
	if p.Goal.Anon {
		return "anonymous memory"
	}
	return "resident memory"
}

// Note says what a point is, such as the choice, if it is not only a point of the front.
func (p *Page) Note(q Point) string {
	switch is := func(other *Point) bool { return other != nil && other.Configuration == q.Configuration }; {
	case is(p.Chosen) && is(p.Default):
		return "chosen, default"
	case is(p.Chosen):
		return "chosen"
	case is(p.Nearest):
		return "nearest"
	case is(p.Default):
		return "default"
	}
	return ""
}

// Class returns the CSS class of a point, which is also the tone of its dot.
func (p *Page) Class(q Point) string {
	switch p.Note(q) {
	case "":
		return "front"
	case "default":
		return "ink"
	}
	return "choice"
}

// dot and limit are the JSON that the function scatter of package uplot takes.
type dot struct {
	X      int64        `json:"x"`
	Low    int64        `json:"low"`
	High   int64        `json:"high"`
	Y      memory.Bytes `json:"y"`
	Bottom memory.Bytes `json:"bottom"`
	Top    memory.Bytes `json:"top"`
	Radius float64      `json:"r"`
	Square bool         `json:"square,omitempty"`
	Tone   string       `json:"tone"`
	Label  string       `json:"label,omitempty"`
	Note   string       `json:"note,omitempty"`
	Text   string       `json:"text"`
}

type limit struct {
	X     int64        `json:"x,omitempty"`
	Y     memory.Bytes `json:"y,omitempty"`
	Dash  []int        `json:"dash,omitempty"`
	Below bool         `json:"below,omitempty"`
	Tone  string       `json:"tone"`
	Text  string       `json:"text"`
}

func newDot(p Point, radius float64, tone string) dot {
	return dot{
		X: p.Step.Nanoseconds(), Low: p.StepLow.Nanoseconds(), High: p.StepHigh.Nanoseconds(),
		Y: p.Peak, Bottom: p.PeakLow, Top: p.Peak, Radius: radius, Tone: tone,
		Text: fmt.Sprintf("%v\n%v, %s per step", p.Configuration, p.Peak, english.Duration(p.Step)),
	}
}

// dots returns the dots of all points, and those of the front for its line. Points with a row in the
// table come last, so that they are drawn on top, and their labels are the numbers of the rows.
func (p *Page) dots() (dots, front []dot) {
	rows := p.Rows()
	numbered := map[autotune.Configuration]bool{}
	for _, q := range rows {
		numbered[q.Configuration] = true
	}
	for _, q := range p.Points {
		if !numbered[q.Configuration] {
			d := newDot(q, 3.5, "other")
			d.Low, d.High, d.Bottom, d.Top = d.X, d.X, d.Y, d.Y // intervals of many points would hide the front
			dots = append(dots, d)
		}
	}
	for i, q := range rows {
		d := newDot(q, 8, p.Class(q))
		d.Label, d.Note = strconv.Itoa(i+1), p.Note(q)
		d.Square = p.Default != nil && q.Configuration == p.Default.Configuration
		dots = append(dots, d)
	}
	for _, q := range p.Front {
		front = append(front, newDot(q, 0, "front"))
	}
	return dots, front
}

// limits returns the lines in the chart that show the goal.
func (p *Page) limits() []limit {
	switch g := p.Goal; {
	case g.Budget > 0:
		return []limit{
			{Y: g.Budget, Tone: "goal", Text: fmt.Sprintf("budget %v", g.Budget)},
			{Y: g.Limit(), Dash: []int{6, 4}, Below: true, Tone: "goal", Text: fmt.Sprintf("highest peak to choose %v", g.Limit())},
		}
	case g.Step > 0:
		return []limit{{X: g.Step.Nanoseconds(), Tone: "goal", Text: fmt.Sprintf("%v per step", g.Step)}}
	}
	return nil
}

// logarithmic is the ratio of the ends of the axis of time above which it is logarithmic.
const logarithmic = 5

// Logarithmic reports whether the axis of time is logarithmic.
func (p *Page) Logarithmic() bool {
	left, right := int64(math.MaxInt64), int64(0)
	if g := p.Goal; g.Budget == 0 && g.Step > 0 {
		left, right = g.Step.Nanoseconds(), g.Step.Nanoseconds()
	}
	dots, _ := p.dots()
	for _, d := range dots {
		left, right = min(left, d.X, d.Low), max(right, d.X, d.High)
	}
	return right > logarithmic*left
}

// Date returns the day on which the page is made.
func (*Page) Date() string { return time.Now().Format(time.DateOnly) }

// Chart returns the data of the chart as JSON.
func (p *Page) Chart() (template.JS, error) {
	dots, front := p.dots()
	text, err := json.Marshal(map[string]any{"dots": dots, "path": front, "lines": p.limits(), "logarithmic": p.Logarithmic()})
	return template.JS(text), err // json.Marshal escapes <, > and &
}

// HTML writes the page as one file that loads nothing.
func (p *Page) HTML(w io.Writer) error { return uplot.Write(w, pageTemplate, p) }
