package watch

import (
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/uplot"
	"steadyfit/memory"
)

//go:embed page.tmpl page.css page.js
var assets embed.FS

var pageTemplate = uplot.Template(assets, template.FuncMap{
	"rate":  func(r *Report, l Layer) string { return r.rate(l.Slope) },
	"label": label,
	"stack": (*Report).stack,
})

// page adds what the template shows to a report.
type page struct {
	*Report
	Charts template.JS
	Ends   bool // whether the curves have lines at the ends of epochs
}

// mostEnds is the maximum number of epochs whose ends the page shows.
const mostEnds = 40

// HTML writes the report as one file that loads nothing.
func (r *Report) HTML(w io.Writer) error {
	type line struct {
		Name   string   `json:"name"`
		Values []*int64 `json:"values"`
	}
	var x []float64
	var layers, counts []line
	samples := r.series.Samples()
	for i, s := range samples {
		x = append(x, position(r.kind, s, samples[0]))
		for _, v := range s.Values {
			list := &layers
			if v.Layer == memory.Anon && len(r.Shown()) == 1 {
				continue // it is all of the memory
			}
			if !shown(v.Layer) {
				if !counted(v.Layer) {
					continue
				}
				list = &counts
			}
			k := 0
			for k < len(*list) && (*list)[k].Name != label(v.Layer) {
				k++
			}
			if k == len(*list) {
				*list = append(*list, line{Name: label(v.Layer), Values: make([]*int64, len(samples))})
			}
			if v.Reading.OK {
				n := int64(v.Reading.Bytes)
				(*list)[k].Values[i] = &n
			}
		}
	}
	ends := r.ends
	if len(ends) > mostEnds {
		ends = nil
	}
	charts, err := json.Marshal(map[string]any{"x": x, "unit": r.Unit, "layers": layers, "counts": counts, "from": r.From,
		"epochs": ends})
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return uplot.Write(w, pageTemplate, page{r, template.JS(charts), len(ends) > 0}) // json.Marshal escapes <, > and &
}

// shown reports whether the page has a curve of a layer.
func shown(l memory.Layer) bool {
	switch l {
	case Total, memory.Anon, memlayer.Shared, memlayer.File, memory.MallocUsed, memory.MallocFree:
		return true
	}
	return false
}

// counted reports whether a layer is a count of the probe.
func counted(l memory.Layer) bool {
	if l == "python block count" {
		return true
	}
	for _, r := range rules {
		if r.count == l {
			return true
		}
	}
	return false
}
