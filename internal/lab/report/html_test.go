package report

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/memory"
)

func render(t *testing.T, r *matrix.Result) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, HTML(&b, r))
	return unpack(t, b.String())
}

// has is require.Contains without the page in its message.
func has(t *testing.T, page, want string) {
	t.Helper()
	require.True(t, strings.Contains(page, want), "not in the page: %s", want)
}

// hasNot is require.NotContains without the page in its message.
func hasNot(t *testing.T, page, unwanted string) {
	t.Helper()
	i := strings.Index(page, unwanted)
	require.Negative(t, i, "in the page: ...%s", page[max(i-100, 0):min(max(i, 0)+100, len(page))])
}

// visible returns the text of a page without markup, style and scripts.
func visible(page string) string {
	page = regexp.MustCompile(`(?s)<(style|script)[^>]*>.*?</(style|script)>`).ReplaceAllString(page, "")
	return strings.Join(strings.Fields(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " "))), " ")
}

// unpack inserts the packed details of a page, as its script does.
func unpack(t *testing.T, page string) string {
	t.Helper()
	head, rest, ok := strings.Cut(page, `<script type="application/json" id="packed">`)
	require.True(t, ok, "no details")
	text, tail, ok := strings.Cut(rest, "</script>")
	require.True(t, ok)
	var packed []byte
	require.NoError(t, json.Unmarshal([]byte(text), &packed))
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	details, err := io.ReadAll(zip)
	require.NoError(t, err)
	before, after, ok := strings.Cut(head, `<div id="details">`)
	require.True(t, ok)
	return before + `<div id="details">` + string(details) + after + `<script type="application/json" id="packed"></script>` + tail
}

// data writes a thinned result as JSON and reads it again.
func data(t *testing.T, r *matrix.Result) (matrix.Result, string) {
	t.Helper()
	text, err := json.Marshal(Thin(r))
	require.NoError(t, err)
	var got matrix.Result
	require.NoError(t, json.Unmarshal(text, &got))
	return got, string(text)
}

func TestHTML(t *testing.T) {
	r := fixture(3, 1)
	page := render(t, r)
	if path := os.Getenv("STEADYFIT_REPORT"); path != "" {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644)) // for inspection in a browser
	}
	text := visible(page)
	for _, w := range r.Workloads {
		has(t, text, w.ID+" "+w.Title)
		has(t, text, w.Expected)
	}
	for _, m := range r.Remedies {
		has(t, text, m.Title)
	}
	for _, c := range r.Claims {
		has(t, text, c.Text)
		for _, d := range c.Verdicts {
			has(t, text, d.Verdict+" "+sentence(d.Text))
		}
	}
	for _, want := range []string{
		"galeone 4 of 7 workloads grow, 1 crashes; each has a remedy that cures it",
		"Not part of this matrix: set references to nil, GOMEMLIMIT=256MiB, a quarter of the batch,",
		"The calibration succeeded: a leak of known size was measured to within 0.04%, and the control without a leak " +
			"shows no growth, on go, galeone and keras.",
		"16.0 GiB of memory · no GPU · TensorFlow 2.21.0 · Keras 3.15.0 · linux/amd64",
		"waiting native bytes : unreachable native objects wait for the garbage collector",
		"Crashes without it and with it: killed by SIGKILL: memory limit of 1.5 GiB (3 of 3 runs).",
		"3 of 3 runs without it crashed, and none with it.",
		"Could not be applied: no GPU: allow_growth.",
		"For a further test: a GPU: steadyfit matrix --workloads W4 --remedies clear-session",
		"This matrix has no test of it.",
		"Needed: a GPU: steadyfit matrix --workloads W3 --remedies cuda-async",
	} {
		has(t, text, want)
	}
	hasNot(t, text, "NaN")
	hasNot(t, text, "%!")

	// Every measured combination has a row, and the table links to it.
	v := newView(r)
	for i := range r.Combinations {
		c := &r.Combinations[i]
		if !measured(c) {
			continue
		}
		anchor := v.rowAnchor(slices.Index(v.runtimes, c.Runtime), c.Workload, c.Remedy)
		has(t, page, `href="#`+anchor+`"`)
		_, row, ok := strings.Cut(page, `<tr id="`+anchor+`"`)
		require.True(t, ok, "no row %s", anchor)
		row, _, _ = strings.Cut(row, "</tr>")
		require.Contains(t, html.UnescapeString(row), v.title(c.Remedy)+"</button>")
		require.Contains(t, row, size(c.Figures.Peak))
		require.Contains(t, row, duration(c.Figures.StepTime))
		if c.Remedy != matrix.Baseline {
			require.Contains(t, row, lookOf(c).Symbol+" "+lookOf(c).Word)
		}
	}
}

// The memory of TensorFlow's own allocators has a column if a run measured it.
func TestHTMLPools(t *testing.T) {
	r := withoutCurves(fixture(2, 1))
	page := render(t, r)
	has(t, page, `<td class="native">123.0 MiB</td>`)
	hasNot(t, page, "GPU memory")
	for i := range r.Combinations {
		r.Combinations[i].Figures.Pool = nil
	}
	hasNot(t, render(t, r), `class="native"`)
	gpu := int64(3 << 30)
	r.Combinations[0].Figures.GPU = &gpu
	page = render(t, r)
	has(t, page, "GPU memory")
	has(t, page, `<td class="native">3.0 GiB</td>`)
}

// TestHTMLGPUGoal checks that GPU memory decides the effect of a remedy for GPU memory.
func TestHTMLGPUGoal(t *testing.T) {
	r := keptFixture()
	c := &r.Combinations[1]
	c.Effect = compare.Works
	c.Comparison.Goal, c.Comparison.GPU = compare.LowerGPU, exactly(0.4, compare.Works)
	text := visible(render(t, r))
	has(t, text, "✓ works GPU ×0.40")
	has(t, inText(t, r, TextOptions{}), "✓g0.40")
	require.Contains(t, newView(r).Cost(c), "GPU memory ×0.40")
}

// TestHTMLWellFormed parses the page as XML, as far as HTML allows that, and follows each link
// within it.
func TestHTMLWellFormed(t *testing.T) {
	page := render(t, fixture(2, 1))
	page = regexp.MustCompile(`(?s)(<(?:style|script)[^>]*>).*?(</(?:style|script)>)`).ReplaceAllString(page, "$1$2")
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "input", "br"}, xml.HTMLEntity
	ids, links := map[string]bool{}, map[string]bool{}
	var open []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			open = append(open, e.Name.Local)
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "id":
					require.False(t, ids[a.Value], "id %s twice", a.Value)
					ids[a.Value] = true
				case "href":
					require.True(t, strings.HasPrefix(a.Value, "#"), "link to %s", a.Value)
					links[a.Value[1:]] = true
				case "src", "srcset", "action", "style":
					require.NotContains(t, a.Value, ":/")
					require.NotContains(t, a.Value, "ZgotmplZ")
				case "data-curve":
					require.Regexp(t, `^\d+ \d+( \d+ \d+|\|\d+ \d+)+$`, a.Value)
				}
			}
			if e.Name.Local == "th" {
				require.NotEmpty(t, e.Attr, "a th without scope")
			}
		case xml.EndElement:
			require.Equal(t, open[len(open)-1], e.Name.Local)
			open = open[:len(open)-1]
		}
	}
	require.Empty(t, open)
	for link := range links {
		require.True(t, ids[link], "link to #%s, which is not there", link)
	}
	require.Greater(t, len(links), 100)
}

// TestHTMLLoadsNothing checks that markup, style and script have no external address.
func TestHTMLLoadsNothing(t *testing.T) {
	page := render(t, fixture(2, 1))
	require.Empty(t, regexp.MustCompile(`https?://|src=|@import|\burl\(|<link|<iframe|<object|<embed|import\(|\bfetch\(`).FindString(page))
	has(t, page, `default-src 'none'`)
}

func TestThin(t *testing.T) {
	r := fixture(2, 1)
	got, text := data(t, r)
	require.Equal(t, r.Schema, got.Schema)
	require.Len(t, got.Combinations, len(r.Combinations))
	require.Len(t, got.Runs, len(r.Runs))
	require.Equal(t, r.Environment, got.Environment)
	require.InEpsilon(t, r.Combinations[3].Comparison.Peak.Estimate, got.Combinations[3].Comparison.Peak.Estimate, 1e-4)
	hasNot(t, text, "<")
	for i := range got.Runs {
		want, have := &r.Runs[i], &got.Runs[i]
		require.Equal(t, want.ID, have.ID)
		if have.Outcome.Peak.OK {
			require.InEpsilon(t, float64(want.Outcome.Peak.Bytes), float64(have.Outcome.Peak.Bytes), 1e-3)
		}
		if have.Series == nil {
			continue
		}
		require.Equal(t, want.Series.Total(), have.Series.Total())
		require.InEpsilon(t, float64(want.Series.Max(memory.Anon).Bytes), float64(have.Series.Max(memory.Anon).Bytes), 1e-2)
		a, b := want.Series.Samples(), have.Series.Samples()
		require.LessOrEqual(t, len(b), 10)
		require.Equal(t, a[0].Step, b[0].Step)
		require.InEpsilon(t, float64(a[len(a)-1].Get(memory.Anon).Bytes), float64(b[len(b)-1].Get(memory.Anon).Bytes), 1e-2)
	}
	again, _ := data(t, &got)
	require.Equal(t, len(got.Runs), len(again.Runs))

	// A compressed result file with rounded numbers gives the same page.
	path := filepath.Join(t.TempDir(), "thin.json.gz")
	require.NoError(t, matrix.WriteFile(path, Thin(r)))
	small, err := matrix.ReadFile(path)
	require.NoError(t, err)
	agreement, err := Compare(io.Discard, r, small, TextOptions{})
	require.NoError(t, err)
	require.InDelta(t, 1, agreement.Share(), 0)
	require.Len(t, small.Runs, len(r.Runs))
	full, thin := newView(r), newView(small)
	for i := range r.Combinations {
		if want := full.middle(&r.Combinations[i]); want != nil {
			have := thin.middle(&small.Combinations[i])
			require.Equal(t, want.ID, have.ID)
			require.NotNil(t, have.Series)
		}
	}
	has(t, render(t, &got), `<tr id="`) // a page can be made from it
}

// TestHTMLHostile inserts text that could end a script, an attribute or a tag.
func TestHTMLHostile(t *testing.T) {
	const evil = `</script><script>alert(1)</script>"'><img src=x onerror=alert(2)>{{.}}<!--`
	r := fixture(2, 1)
	r.Version = evil
	r.Environment.CPU, r.Environment.Variables = evil, map[string]string{evil: evil}
	r.Environment.GPUs = []string{evil}
	for i := range r.Workloads {
		w := &r.Workloads[i]
		w.Title, w.What, w.Expected, w.Model = evil, evil, evil, evil
	}
	for i := range r.Remedies {
		r.Remedies[i].Title, r.Remedies[i].Group = evil, memoryGroup(i, evil)
	}
	for i := range r.Combinations {
		c := &r.Combinations[i]
		c.Reason = evil
		if len(c.Crashes) > 0 {
			c.Crashes[0] = evil
		}
		if c.Verdict != nil {
			d := *c.Verdict
			d.Reason, d.Carrier, d.Notes = evil, evil, []string{evil}
			c.Verdict = &d
		}
		if c.Workload == "W8" {
			c.Workload = evil
		}
	}
	for i := range r.Runs {
		r.Runs[i].Log, r.Runs[i].Cause = evil, evil
	}
	for i := range r.Claims {
		c := &r.Claims[i]
		c.ID, c.Text, c.Says = evil, evil, evil
		for j := range c.Verdicts {
			c.Verdicts[j] = matrix.ClaimVerdict{Runtime: evil, Verdict: evil, Text: evil, Combinations: []string{evil}}
		}
	}
	for i := range r.Calibration {
		r.Calibration[i].Text = evil
	}
	page := render(t, r)
	hasNot(t, page, "<script>alert")
	hasNot(t, page, "<img")
	hasNot(t, page, "<!--")
	require.Equal(t, 2, strings.Count(page, "</script>"))
	data(t, r)

	var b bytes.Buffer
	require.NoError(t, Claims(&b, r))
	hasNot(t, b.String(), "<script>")
	b.Reset()
	r.Environment.CPU = "a\x1b[31m\nb"
	require.NoError(t, Text(&b, r, TextOptions{}))
	hasNot(t, b.String(), "\x1b")
}

func memoryGroup(i int, name string) string { return fmt.Sprintf("%s%d", name, i/5) }

func TestHTMLAlarms(t *testing.T) {
	r := withoutCurves(fixture(2, 1))
	page := render(t, r)
	hasNot(t, page, `class="alarm"`)

	r.Complete = false
	c := &r.Calibration[1]
	c.OK, c.Text = false, "a leak of 65536 B/step was measured as 40000 B/step [39000, 41000]; 2 of 2 runs were wrong"
	page = render(t, r)
	top, _, ok := strings.Cut(page, "<nav")
	require.True(t, ok)
	require.Equal(t, 2, strings.Count(top, `class="alarm"`))
	has(t, top, "Calibration failed on go, W1: A leak of 65536 B/step was measured as 40000")
	has(t, top, "The matrix is incomplete")
	hasNot(t, page, "The calibration succeeded")
	if path := os.Getenv("STEADYFIT_REPORT"); path != "" {
		require.NoError(t, os.WriteFile(path+".alarm.html", []byte(page), 0o644))
	}

	r.Calibration = nil
	has(t, render(t, r), "The matrix has no calibration")
}

// TestHTMLUnknown checks that an amount without a measurement is always a dash.
func TestHTMLUnknown(t *testing.T) {
	r := fixture(2, 1)
	r.Workloads, r.Runs, r.Claims = r.Workloads[:1], nil, nil
	verdict := memory.Verdict{Kind: memory.Inconclusive, Reason: "too few samples"}
	r.Combinations = []matrix.Combination{
		{Runtime: "go", Workload: "W0", Remedy: matrix.Baseline, Verdict: &verdict},
		{Runtime: "go", Workload: "W0", Remedy: "close", Effect: compare.Unclear, Comparison: &compare.Comparison{Effect: compare.Unclear, Goal: compare.LowerSlope, More: 4}, Verdict: &verdict},
	}
	text := visible(render(t, r))
	has(t, text, "? unclear – – – – – About 4 more pairs would decide.")
	has(t, text, "Undecided W0 inconclusive: too few samples")
	hasNot(t, text, "B/step [0")
	has(t, text, "This result has no curves.")
}

// A quick matrix of the user's model begins with the verdict on that model, also if only the calibration grows.
func TestHTMLUser(t *testing.T) {
	r := fixture(3, 1)
	keep := func(id string) bool { return id == "W1" || id == matrix.User }
	r.Combinations = slices.DeleteFunc(r.Combinations, func(c matrix.Combination) bool {
		return c.Runtime != matrix.Go || c.Remedy != matrix.Baseline || c.Workload != "W0" && c.Workload != "W1"
	})
	for i := range r.Combinations {
		if r.Combinations[i].Workload == "W0" { // it does not grow
			r.Combinations[i].Workload, r.Combinations[i].Figures.Closed = matrix.User, nil
		}
	}
	for i := range r.Workloads {
		if r.Workloads[i].ID == "W0" {
			r.Workloads[i].ID = matrix.User
		}
	}
	r.Workloads = slices.DeleteFunc(r.Workloads, func(w matrix.Workload) bool { return !keep(w.ID) })
	r.Claims, r.Calibration = nil, nil
	page := render(t, r)
	if path := os.Getenv("STEADYFIT_REPORT_USER"); path != "" {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644)) // for inspection in a browser
	}
	own, purpose := strings.Index(page, `<article class="card own works">`), strings.Index(page, `<article class="card purpose">`)
	require.Positive(t, own)
	require.Greater(t, purpose, own, "the calibration comes after the user's model")
	has(t, page[own:purpose], "Does not grow")
	hasNot(t, page, `<table class="summary">`)
	require.NotRegexp(t, `<tbody>\s*</tbody>`, page)
}

func TestHTMLEmpty(t *testing.T) {
	for _, r := range []*matrix.Result{{}, {Combinations: []matrix.Combination{{Runtime: "x", Workload: "y", Remedy: "z"}}}} {
		page := render(t, r)
		has(t, visible(page), "The matrix has no calibration")
		data(t, r)
		for _, write := range []func(io.Writer, *matrix.Result) error{
			Benchmark, Claims, func(w io.Writer, r *matrix.Result) error { return Text(w, r, TextOptions{}) },
		} {
			require.NoError(t, write(io.Discard, r))
		}
	}
}

// scaled returns a fixture with the given numbers of workloads and remedies, which are copies of
// the existing ones. Of every seven combinations, measuring are measured, each with the given
// number of runs.
func scaled(workloads, remedies, measuring, runs int, runtimes ...string) *matrix.Result {
	small := fixture(2, 1)
	r := *small
	r.Workloads, r.Remedies, r.Combinations, r.Runs = nil, nil, nil, nil
	byID, cells := map[int]matrix.RunResult{}, map[combinationID]matrix.Combination{}
	for _, run := range small.Runs {
		byID[run.ID] = run
	}
	for _, c := range small.Combinations {
		cells[combinationID{c.Runtime, c.Workload, c.Remedy}] = c
	}
	name := func(id string, n int) string {
		if n == 0 {
			return id
		}
		return fmt.Sprintf("%s-%d", id, n)
	}
	from := map[string]string{}
	for i := range remedies {
		m := small.Remedies[i%len(small.Remedies)]
		n := i / len(small.Remedies)
		if n > 0 && m.ID == matrix.Baseline {
			m = small.Remedies[1]
			n += 100
		}
		id := name(m.ID, n)
		from[id] = m.ID
		m.ID, m.Title = id, name(m.Title, n)
		r.Remedies = append(r.Remedies, m)
	}
	slices.SortStableFunc(r.Remedies, func(x, y matrix.Remedy) int { return strings.Compare(x.Group, y.Group) })
	for i := range workloads {
		w := small.Workloads[i%len(small.Workloads)]
		old := w.ID
		w.ID = name(old, i/len(small.Workloads))
		r.Workloads = append(r.Workloads, w)
		for _, runtime := range runtimes {
			for _, m := range r.Remedies {
				c := cells[combinationID{runtime, old, from[m.ID]}]
				c.Workload, c.Remedy = w.ID, m.ID
				ids := c.Runs
				c.Runs = nil
				if len(ids) > 0 && len(r.Combinations)%7 >= measuring && m.ID != matrix.Baseline {
					c = matrix.Combination{Runtime: runtime, Workload: w.ID, Remedy: m.ID, Effect: compare.NotApplicable, Reason: w.ID + " has nothing that it could change"}
					ids = nil
				}
				for n := range runs * min(len(ids), 1) {
					run := byID[ids[n%len(ids)]]
					run.ID, run.Workload, run.Remedy = len(r.Runs)+1, w.ID, m.ID
					c.Runs = append(c.Runs, run.ID)
					r.Runs = append(r.Runs, run)
				}
				r.Combinations = append(r.Combinations, c)
			}
		}
	}
	return &r
}

// TestHTMLSize checks that a page of all workloads and remedies stays small.
func TestHTMLSize(t *testing.T) {
	runtimes := []string{"go"}
	if !testing.Short() {
		runtimes = []string{"go", "galeone", "keras"}
	}
	for _, test := range []struct{ measuring, runs, most int }{
		{3, 2, 650_000}, // 2,500 runs
		{3, 4, 650_000},
		{7, 1, 1_200_000}, // more than any real matrix: each remedy on each workload
	} {
		n := test.runs
		r := scaled(25, 70, test.measuring, test.runs, runtimes...)
		var b bytes.Buffer
		require.NoError(t, HTML(&b, r))
		page := b.String()
		t.Logf("%d combinations, %d runs: %.2f MB", len(r.Combinations), len(r.Runs), float64(len(page))/1e6)
		if path := os.Getenv("STEADYFIT_REPORT"); path != "" && n == 2 {
			require.NoError(t, os.WriteFile(path+".large.html", []byte(page), 0o644))
		}
		require.Less(t, len(page), test.most)
		thin := Thin(r)
		require.Len(t, thin.Combinations, len(r.Combinations))
		require.Len(t, thin.Runs, len(r.Runs))
	}
}

type failing struct{ after int }

var errFull = errors.New("no space left")

func (f *failing) Write(p []byte) (int, error) {
	if f.after -= len(p); f.after < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteErrors(t *testing.T) {
	r := fixture(2, 1)
	for name, write := range map[string]func(io.Writer) error{
		"html":      func(w io.Writer) error { return HTML(w, r) },
		"text":      func(w io.Writer) error { return Text(w, r, TextOptions{}) },
		"benchmark": func(w io.Writer) error { return Benchmark(w, r) },
		"claims":    func(w io.Writer) error { return Claims(w, r) },
		"compare":   func(w io.Writer) error { _, err := Compare(w, r, r, TextOptions{}); return err },
	} {
		require.ErrorIs(t, write(&failing{after: 100}), errFull, name)
	}
}
