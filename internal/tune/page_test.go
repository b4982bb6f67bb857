package tune

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/english"
	"steadyfit/memory"
)

// pageEnv names a prefix for the paths of pages that TestPage keeps, for inspection in a browser.
const pageEnv = "STEADYFIT_TUNE_PAGE"

type chart struct {
	Dots, Path  []dot
	Lines       []limit
	Logarithmic bool
}

// write returns a page as text, and the data of its chart.
func write(t *testing.T, p *Page) (text string, c chart) {
	t.Helper()
	p.Numbers = func(q Point) string {
		return map[bool]string{true: "rounding", false: "same bits"}[q.Configuration.Rounds()]
	}
	var out bytes.Buffer
	require.NoError(t, p.HTML(&out))
	text = out.String()
	_, data, ok := strings.Cut(text, `<script type="application/json" id="data">`)
	require.True(t, ok)
	data, _, _ = strings.Cut(data, "</script>")
	require.NoError(t, json.Unmarshal([]byte(data), &c))
	return text, c
}

func TestPage(t *testing.T) {
	for name, g := range map[string]Goal{
		"budget": {Budget: 600 * memory.MiB}, "time": {Step: 150 * time.Millisecond}, "product": {}, "none": {Budget: 300 * memory.MiB, Anon: true},
	} {
		m := &machine{figures: image, fails: func(c configuration) string { return map[bool]string{true: "it </script> hangs"}[c.Executor != ""] }}
		p := &Page{Result: find(t, m, g), Goal: g, Model: "a<b>", Data: "train.npz", Batch: 32, Why: "the fastest under the budget", File: "my/tuned.yaml"}
		text, c := write(t, p)
		if path := os.Getenv(pageEnv); path != "" {
			require.NoError(t, os.WriteFile(path+name+".html", []byte(text), 0o644))
		}
		assert.Equal(t, 2, strings.Count(text, "</script>"), "of data and code")
		assert.Empty(t, regexp.MustCompile(`https?://|src=|@import|\burl\(|<link|fetch\(|<b>|ZgotmplZ|%!\w\(`).FindString(strings.ReplaceAll(text, "Chosen: <b>", "")))

		// The table and the dots have the default, the front and the choice under the same numbers.
		rows := p.Rows()
		require.True(t, rows[0].Configuration.Plain())
		places, labelled := map[configuration]dot{}, 0
		for _, d := range c.Dots {
			if d.Label != "" {
				require.Equal(t, fmt.Sprint(labelled+1), d.Label)
				places[rows[labelled].Configuration] = d
				labelled++
			}
		}
		require.Len(t, places, len(rows))
		assert.Len(t, c.Dots, len(p.Points), "each measured configuration once")
		for i, q := range rows {
			d := places[q.Configuration]
			assert.Equal(t, [3]int64{q.StepLow.Nanoseconds(), q.Step.Nanoseconds(), q.StepHigh.Nanoseconds()}, [3]int64{d.Low, d.X, d.High})
			assert.Equal(t, [2]memory.Bytes{q.PeakLow, q.Peak}, [2]memory.Bytes{d.Bottom, d.Y})
			_, row, ok := strings.Cut(text, fmt.Sprintf(`<tr><td class="n">%d</td>`, i+1))
			require.True(t, ok)
			row, _, _ = strings.Cut(row, "</tr>")
			for _, want := range []string{q.Configuration.String(), q.Peak.String(), english.Duration(q.Step), english.Duration(q.StepLow), p.Numbers(q)} {
				assert.Contains(t, html.UnescapeString(row), want)
			}
		}
		assert.True(t, places[configuration{}].Square)
		assert.Contains(t, places[configuration{}].Note, "default")
		marked, word := p.Chosen, "chosen"
		if name == "none" {
			marked, word = p.Nearest, "nearest"
		}
		require.NotNil(t, marked, name)
		assert.Equal(t, word, places[marked.Configuration].Note)
		assert.Equal(t, "choice", places[marked.Configuration].Tone)
		require.Len(t, c.Path, len(p.Front))
		for i, q := range p.Front {
			assert.Equal(t, [2]int64{q.Step.Nanoseconds(), int64(q.Peak)}, [2]int64{c.Path[i].X, int64(c.Path[i].Y)})
		}

		assert.Equal(t, p.Chosen != nil, strings.Contains(text, "<code>steadyfit fit --config my/tuned.yaml --epochs N --out DIR</code>"))
		assert.Equal(t, c.Logarithmic, strings.Contains(text, "The axis of time is logarithmic;"))
		assert.Equal(t, !c.Logarithmic, strings.Contains(text, "The axis of time is linear;"))
		assert.Contains(t, text, map[bool]string{false: "Peak of resident memory", true: "Peak of anonymous memory"}[g.Anon])
		assert.Contains(t, html.UnescapeString(text), "it </script> hangs")
		switch {
		case g.Budget > 0:
			require.Len(t, c.Lines, 2)
			assert.Equal(t, [2]memory.Bytes{g.Budget, g.Limit()}, [2]memory.Bytes{c.Lines[0].Y, c.Lines[1].Y})
		case g.Step > 0:
			require.Len(t, c.Lines, 1)
			assert.Equal(t, g.Step.Nanoseconds(), c.Lines[0].X)
		default:
			assert.Empty(t, c.Lines)
		}
	}
}

// The axis of time is logarithmic if the times, including the time of the goal, differ by more than a factor
// of 5.
func TestLogarithmic(t *testing.T) {
	at := func(step time.Duration) Point { return Point{Step: step, StepLow: step, StepHigh: step, Peak: 1} }
	p := Page{Result: Result{Points: []Point{at(100), at(500)}}}
	assert.False(t, p.Logarithmic())
	p.Points = append(p.Points, at(501))
	assert.True(t, p.Logarithmic())
	p.Points, p.Goal = p.Points[:1], Goal{Step: 10}
	assert.True(t, p.Logarithmic())
}

// The rows have the choice, also if it has fewer changes than a point of the front that is about as
// good.
func TestRowsHaveTheChoice(t *testing.T) {
	at := func(c configuration, step time.Duration, peak memory.Bytes) Point {
		return Point{Configuration: c, Step: step, Peak: peak}
	}
	plain, fast := at(configuration{}, 100, 900), at(bfloat16, 70, 500)
	chosen, small := at(configuration{NoPrefetch: true}, 71, 501), at(parts[0], 80, 400)
	other := at(parts[1], 90, 800)
	r := Result{Default: &plain, Points: []Point{fast, chosen, small, other, plain}, Front: []Point{fast, small}, Chosen: &chosen}
	assert.Equal(t, []Point{plain, fast, chosen, small}, r.Rows())
}
