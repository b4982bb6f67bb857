package explain

import (
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strconv"

	"steadyfit/internal/uplot"
	"steadyfit/memory"
)

//go:embed page.tmpl page.css page.js
var assets embed.FS

var pageTemplate = uplot.Template(assets, template.FuncMap{
	"share":  func(part, whole memory.Bytes) string { return percent(part, whole) },
	"width":  func(part, whole any) string { return fmt.Sprintf("%.3f%%", 100*number(part)/max(number(whole), 1)) },
	"micros": micros,
	"size":   size,

	"execution": (*Report).execution,
	"higher":    (*Report).higher,
})

func number(v any) float64 {
	switch n := v.(type) {
	case memory.Bytes:
		return float64(n)
	case int64:
		return float64(n)
	}
	return 0
}

func percent(part, whole memory.Bytes) string {
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(max(whole, 1)))
}

func micros(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d µs", n)
	}
	return fmt.Sprintf("%s ms", strconv.FormatFloat(float64(n)/1000, 'f', max(0, 3-len(strconv.FormatInt(n/1000, 10))),
		64))
}

// page adds what the template computes to a report.
type page struct {
	*Report
	// Duration is the time of the traced step in microseconds. Data is the data of the charts.
	Duration int64
	Charts   template.JS
}

// Lasts returns the duration of a span.
func (s Span) Lasts() int64 { return s.To - s.From }

// Class returns the class of a part in the style sheet.
func (p Part) Class() string { return class(p.Name) }

// Class returns the class of the part of a span.
func (s Span) Class() string { return class(s.Part) }

func class(part string) string {
	switch part {
	case Activations, Gradients, Workspace:
		return part[:4]
	case Update:
		return "upda"
	case Weights, Optimizer, OtherVars:
		return "vars"
	case Dataset, Prefetched, Inputs:
		return "data"
	case PoolSlack, MallocSlack:
		return "slack"
	case Unattributed:
		return "rest"
	}
	return "base"
}

// HTML writes the report as one file that loads nothing.
func (r *Report) HTML(w io.Writer) error {
	p := page{Report: r}
	for _, s := range r.Timeline.Spans {
		p.Duration = max(p.Duration, s.To)
	}
	for _, at := range r.Timeline.Micros {
		p.Duration = max(p.Duration, at)
	}
	charts, err := json.Marshal(map[string]any{"timeline": r.Timeline, "samples": r.Samples})
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	p.Charts = template.JS(charts) // json.Marshal escapes <, > and &
	return uplot.Write(w, pageTemplate, p)
}
