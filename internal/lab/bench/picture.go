package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

const (
	pictureWidth = 860
	pictureLeft  = 190 // right end of the names
	pictureRight = 690 // rightmost end of the bars
	rowHeight    = 18
)

type scale struct{ low, high float64 }

func (s scale) at(ratio float64) float64 {
	share := math.Log(ratio/s.low) / math.Log(s.high/s.low)
	return pictureLeft + (pictureRight-pictureLeft)*min(max(share, 0), 1)
}

func (s scale) ticks() []float64 {
	var out []float64
	for power := math.Pow(10, math.Floor(math.Log10(s.low))); power <= s.high; power *= 10 {
		for _, f := range []float64{1, 2, 5} {
			if v := f * power; v >= s.low*0.999 && v <= s.high*1.001 {
				out = append(out, v)
			}
		}
	}
	return out
}

// family returns the CSS class of a variant's bar.
func family(variant string) string {
	for _, f := range []string{"steadyfit", "keras", "tf-"} {
		if strings.HasPrefix(variant, f) {
			return strings.TrimSuffix(f, "-")
		}
	}
	return "go"
}

// picture draws the step time of each variant relative to the C loop, as a bar from 1 with an
// interval. Faster variants are to the left. The colours follow the viewer's light or dark
// mode.
func (r *Report) picture(w io.Writer) {
	s := scale{1, 1}
	rows := make(map[string][]Row)
	for _, row := range r.Summary {
		if row.ToBase.Value > 0 {
			rows[row.Workload] = append(rows[row.Workload], row)
			s.low, s.high = min(s.low, row.ToBase.Value), max(s.high, row.ToBase.Value)
		}
	}
	s.low, s.high = s.low/1.3, s.high*1.3
	height := 88
	for _, list := range rows {
		height += 34 + rowHeight*len(list)
	}
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title">
<title id="title">Time of a train step relative to a bare C loop, by workload and variant</title>
<style>
text{font:12px system-ui,sans-serif;fill:#1b1f24}.head{font-weight:600}.soft{fill:#5b636d}
.ground{fill:#fbfbfa}.grid{stroke:#e2e4e7}.one{stroke:#5b636d}.span{stroke:#1b1f24;stroke-width:1.5}
.steadyfit{fill:#22629f}.keras{fill:#b3352d}.tf{fill:#84620f}.go{fill:#737b85}
@media (prefers-color-scheme:dark){text{fill:#e6e8ea}.soft{fill:#a0a8b1}.ground{fill:#14171a}.grid{stroke:#32383e}.one{stroke:#a0a8b1}.span{stroke:#e6e8ea}
.steadyfit{fill:#5d97d6}.keras{fill:#d8695f}.tf{fill:#b8923c}.go{fill:#8d959e}}
</style>
<rect class="ground" width="%d" height="%d"/>
<text class="head" x="12" y="22">Time of a train step relative to a bare C loop</text>
<text class="soft" x="12" y="40">Left of 1 is less time. Median over %s, lines are 95%% intervals, the axis is logarithmic.</text>
<text class="soft" x="12" y="56">%s, %d cores</text>
`, pictureWidth, height, pictureWidth, height, pictureWidth, height, plural(r.Done, "turn"), html.EscapeString(r.Environment.CPU), r.Environment.Cores)
	for _, t := range s.ticks() {
		class := "grid"
		if t == 1 {
			class = "one"
		}
		fmt.Fprintf(w, `<path class="%s" d="M%.1f 80V%d"/><text class="soft" x="%.1f" y="76" text-anchor="middle">%s</text>`+"\n",
			class, s.at(t), height-8, s.at(t), strconv.FormatFloat(t, 'g', 3, 64))
	}
	y := 80
	for _, load := range r.Workloads {
		if len(rows[load.Name]) == 0 {
			continue
		}
		y += 24
		fmt.Fprintf(w, `<text class="head" x="12" y="%d">%s, batch %d</text>`+"\n", y, html.EscapeString(load.Name), load.Batch)
		y += 10
		for _, row := range rows[load.Name] {
			from, to := s.at(1), s.at(row.ToBase.Value)
			center := float64(y) + rowHeight/2
			fmt.Fprintf(w, `<text x="%d" y="%.1f" text-anchor="end">%s</text><rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%d"/>`,
				pictureLeft-8, center+4, html.EscapeString(row.Variant), family(row.Variant), min(from, to), center-6, max(math.Abs(to-from), 1), 12)
			if row.ToBase.High > 0 {
				fmt.Fprintf(w, `<path class="span" d="M%.1f %.1fH%.1f"/>`, s.at(row.ToBase.Low), center, s.at(row.ToBase.High))
			}
			fmt.Fprintf(w, `<text x="%d" y="%.1f">%s</text><text class="soft" x="%d" y="%.1f">%s</text>`+"\n", pictureRight+10, center+4,
				"×"+strconv.FormatFloat(row.ToBase.Value, 'f', 2, 64), pictureRight+75, center+4, microseconds(row.StepNS.Value))
			y += rowHeight
		}
	}
	fmt.Fprintln(w, "</svg>")
}

func microseconds(ns float64) string {
	if ns >= 1e6 {
		return strconv.FormatFloat(ns/1e6, 'f', 1, 64) + " ms"
	}
	return strconv.FormatFloat(ns/1e3, 'f', 0, 64) + " µs"
}

func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}
