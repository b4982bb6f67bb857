package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run with -update to make it")
	require.Equal(t, string(want), got)
}

func published(t *testing.T) *matrix.Result {
	t.Helper()
	r, err := matrix.ReadFile("../../../docs/results/matrix.json.gz")
	require.NoError(t, err)
	return r
}

func render(t *testing.T, write func(io.Writer, *matrix.Result) error, r *matrix.Result) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, write(&b, r))
	return b.String()
}

func inText(t *testing.T, r *matrix.Result, width int) string {
	t.Helper()
	return render(t, func(w io.Writer, r *matrix.Result) error { return Text(w, r, width) }, r)
}

// has and hasNot are like require.Contains and require.NotContains without the page in the message.
func has(t *testing.T, page string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		require.True(t, strings.Contains(page, want), "not in the page: %s", want)
	}
}

func hasNot(t *testing.T, page string, unwanted ...string) {
	t.Helper()
	for _, text := range unwanted {
		i := strings.Index(page, text)
		require.Negative(t, i, "in the page: ...%s", page[max(i-100, 0):min(max(i, 0)+100, len(page))])
	}
}

// visible returns the text of a page without markup, style and scripts.
func visible(page string) string {
	page = regexp.MustCompile(`(?s)<(style|script)[^>]*>.*?</(style|script)>`).ReplaceAllString(page, "")
	return strings.Join(strings.Fields(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " "))), " ")
}

// The page begins with what grows, the cheapest remedy that works, and its cost.
func TestAnswer(t *testing.T) {
	page := render(t, HTML, fixture())
	text := visible(page)
	has(t, text,
		"1 of 3 grow, 1 crash; a remedy works for 2 of these 2",
		"W4 model loaded anew grows +12.0 MiB/step ✓ load once slope ×0 step time ×0.22, peak ×0.31 890.0 MiB of 900.0 MiB",
		"S3 images under a limit crashes ✓ half the batch survives peak 700.1 MiB, 1.41ms per step –",
		"W0 all released flat at 300.0 MiB ◐ malloc_trim each epoch peak ×0.80 step time ×1.01 [0.98, 1.05]",
		"W1 one tensor kept grows +64.0 KiB/step on purpose no remedy was tried",
		"The calibration succeeded: 2 leaks of known size measured to within 0.04%, and 2 loops without a leak judged as such.",
		"grows +12.0 MiB/step [10.8, 13.2] over 2 runs",
		"Carried by live native bytes. Native objects are created and never released. Its 2 runs agree.",
		"crashes out of memory: killed by the kernel (2 of 2 runs)",
		"✓ works 0.0 B/step [0.0, 0.0]", "1.41ms ×1.42 [1.30, 1.50]", "Its steps do less work.",
		"=? not verified slope ×1.01 time ×1.01", "Not verified: nothing shows that it ran.",
		"! not applied – – – – No GPU.", "C3 the collector is out of step right holds in part W4 grows. W4/none, W4/close does not hold W4 is flat.",
	)
	require.Less(t, strings.Index(text, "W4 model"), strings.Index(text, "S3 images"))
	require.Less(t, strings.Index(text, "S3 images"), strings.Index(text, "W0 all"))
	require.Less(t, strings.Index(text, "W0 all"), strings.Index(text, "W1 one"))
	hasNot(t, text, "NaN", "%!", "<nil>")
}

// The page is well-formed, its links lead to a part of it, and it loads nothing.
func TestWellFormed(t *testing.T) {
	for name, r := range map[string]*matrix.Result{"fixture": fixture(), "published": published(t), "empty": {}} {
		page := render(t, HTML, r)
		require.Less(t, len(page), 800_000, name)
		require.Empty(t, regexp.MustCompile(`https?://|src=|@import|\burl\(|<link|<iframe|<object|<embed|import\(|\bfetch\(`).
			FindString(page), name)
		has(t, page, `default-src 'none'`)
		page = regexp.MustCompile(`(?s)(<(?:style|script)[^>]*>).*?(</(?:style|script)>)`).ReplaceAllString(page, "$1$2")
		d := xml.NewDecoder(strings.NewReader(page))
		d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "input", "br"}, xml.HTMLEntity
		ids, links := map[string]bool{}, []string{}
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
					case "href", "data-part", "data-best":
						links = append(links, strings.TrimPrefix(a.Value, "#"))
					case "data-curve":
						require.Regexp(t, `^\d+ \d+( \d+ \d+)+$`, a.Value)
					}
				}
			case xml.EndElement:
				require.Equal(t, open[len(open)-1], e.Name.Local)
				open = open[:len(open)-1]
			}
		}
		require.Empty(t, open)
		for _, link := range links {
			require.True(t, ids[link], "%s: link to #%s, which is not there", name, link)
		}
	}
}

// An amount without a measurement is a dash, never 0.
func TestUnknown(t *testing.T) {
	r := fixture()
	verdict := memory.Verdict{Kind: memory.Inconclusive, Reason: "too few samples", Samples: 3}
	r.Runs, r.Claims = nil, nil
	r.Combinations = []matrix.Combination{
		{Runtime: "go", Workload: "W0", Remedy: matrix.Baseline, Verdict: &verdict},
		{Runtime: "go", Workload: "W0", Remedy: "close", Effect: compare.Unclear, Verdict: &verdict,
			Comparison: &compare.Comparison{Effect: compare.Unclear, Goal: compare.LowerSlope}},
	}
	text := visible(render(t, HTML, r))
	has(t, text, "undecided no remedy is shown to lower it –", "undecided too few samples",
		"as it is undecided – – – –", "? unclear – – – –", "This result has no curves.")
	measured, _, _ := strings.Cut(text, "Conditions Calibration")
	hasNot(t, measured, " 0 B", "0.0 B/step")
}

// A failed calibration and an interruption are alarms at the top of every output.
func TestAlarms(t *testing.T) {
	r := fixture()
	hasNot(t, render(t, HTML, r), `class="alarm"`)
	r.Complete, r.Calibration[1].OK, r.Calibration[1].Text = false, false, "the leak was missed"
	page := render(t, HTML, r)
	top, _, _ := strings.Cut(page, "<nav")
	require.Equal(t, 2, strings.Count(top, `class="alarm"`))
	hasNot(t, page, "The calibration succeeded")
	has(t, visible(page), "+64.0 KiB/step [64.0, 64.1] FAILED The leak was missed.")
	text, _, _ := strings.Cut(inText(t, r, 0), "On go:")
	for _, out := range []string{top, text, render(t, Benchmark, r), render(t, Claims, r)} {
		has(t, out, "Calibration failed on go, W1: The leak was missed.", "The matrix is incomplete")
	}
	r.Calibration = nil
	has(t, render(t, HTML, r), "The matrix has no calibration")
}

// Names with markup or control characters are text in every output.
func TestHostile(t *testing.T) {
	const evil = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{.}}<!--\x1b[31m\nBenchmarkEvil 1 2 ns/op"
	r := fixture()
	r.Version, r.Environment.CPU, r.Environment.GPUs = evil, evil, []string{evil}
	r.Environment.Variables = map[string]string{evil: evil}
	for i := range r.Workloads {
		w := &r.Workloads[i]
		w.Title, w.What, w.Expected, w.Model = evil, evil, evil, evil
	}
	for i := range r.Remedies {
		r.Remedies[i].Title, r.Remedies[i].Group = evil, evil
	}
	for i := range r.Combinations {
		c := &r.Combinations[i]
		c.Reason, c.Unverified = evil, evil
		if c.Verdict != nil {
			c.Verdict.Reason, c.Verdict.Carrier, c.Verdict.Notes = evil, evil, []string{evil}
		}
		for j := range c.Crashes {
			c.Crashes[j] = evil
		}
	}
	for i := range r.Claims {
		c := &r.Claims[i]
		c.ID, c.Text, c.Says, c.Needs = evil, evil, evil, evil
		for j := range c.Verdicts {
			c.Verdicts[j].Verdict, c.Verdicts[j].Text = evil, evil
		}
	}
	for i := range r.Calibration {
		r.Calibration[i].Text = evil
	}
	for i := range r.Runs {
		r.Runs[i].Cause = evil
	}
	page := render(t, HTML, r)
	hasNot(t, page, "<script>alert", "<img", "<!--")
	require.Equal(t, 1, strings.Count(page, "</script>"))
	hasNot(t, render(t, Claims, r), "<script>", "<img")
	hasNot(t, inText(t, r, 0), "\x1b", "\nBenchmarkEvil")
	hasNot(t, render(t, Benchmark, r), "\x1b", "\nBenchmarkEvil")
}

func TestText(t *testing.T) {
	golden(t, "text.txt", inText(t, fixture(), 0))
	golden(t, "claims.md", render(t, Claims, fixture()))
	for _, width := range []int{1, 60, 132} {
		for line := range strings.Lines(inText(t, fixture(), width)) {
			require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), max(width, 40), line)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{rate(interval(4.5, 4.6, 4.7), true), "+4.6 B/step [4.5, 4.7]"},
		{rate(interval(-6.4, -3, 0.2), true), "−3.0 B/step [−6.4, 0.2]"},
		{duration(i64(131_000)), "131µs"}, {duration(nil), "–"}, {size(nil), "–"}, {size(i64(0)), "0 B"},
		{times(compare.Ratio{Interval: interval(0, 1, math.MaxFloat64), OK: true, Unbounded: true}, true), "×1.00 [0, ∞]"},
		{sentence("malloc_trim gave nothing"), "malloc_trim gave nothing."}, {sentence(" the peak is 0.5 times "),
			"The peak is 0.5 times."}, {sentence(""), ""},
	} {
		require.Equal(t, test.want, test.got)
	}
}

// The lines have the format of golang.org/design/14313-benchmark-format.
func TestBenchmark(t *testing.T) {
	r := fixture()
	r.Combinations[0].Runtime = "go"
	text := render(t, Benchmark, r)
	has(t, text, "goos: linux\n", "tensorflow-keras: 2.21.0\n", "Unit peak-bytes better=lower\n",
		"BenchmarkMatrix/runtime=go/workload=W0/remedy=none-2 1 1408123 ns/op 0 slope-B/step 314696256 peak-bytes "+
			"314572800 anon-bytes 314572800 closed-bytes\n",
		"# BenchmarkMatrix/runtime=go/workload=S3/remedy=none-2 has no figures: killed by the kernel\n")
	benchmark := regexp.MustCompile(`^BenchmarkMatrix(/[a-z]+=[^\s/=]+){3}-2 1( -?[\d.e+]+ [-a-zA-Z/]+){5}$`)
	other := regexp.MustCompile(`^([a-z][^\sA-Z:]*: \S.*|Unit \S+ better=lower|#.*|)$`)
	lines := 0
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "Benchmark") {
			require.Regexp(t, benchmark, line)
			lines++
		} else {
			require.Regexp(t, other, line)
		}
	}
	crashed := slices.DeleteFunc(slices.Clone(r.Runs), func(run matrix.RunResult) bool {
		return run.Outcome.Verdict.Kind != memlayer.Crash
	})
	require.Equal(t, len(r.Runs)-len(crashed), lines)
}

// A thinned result gives the same page, apart from curves and digits, and takes less space.
func TestThin(t *testing.T) {
	r := fixture()
	path := filepath.Join(t.TempDir(), "thin.json.gz")
	small, err := Thin(r)
	require.NoError(t, err)
	require.NoError(t, matrix.WriteFile(path, small))
	small, err = matrix.ReadFile(path)
	require.NoError(t, err)
	agreement, err := Compare(io.Discard, r, small, 0)
	require.NoError(t, err)
	require.InDelta(t, 1, agreement.Share(), 0)
	require.Equal(t, newView(r).Size, newView(small).Size)
	for i := range r.Combinations {
		full, thin := newView(r).sampled(&r.Combinations[i]), newView(small).sampled(&small.Combinations[i])
		require.Equal(t, full != nil, thin != nil)
		if full != nil {
			require.Equal(t, full.ID, thin.ID)
			require.LessOrEqual(t, len(thin.Series.Samples()), thinSamples)
			require.Equal(t, full.Series.Total(), thin.Series.Total())
		}
	}
	require.Empty(t, small.Runs[0].Key)
	require.InEpsilon(t, 30.123, small.Runs[0].Seconds, 1e-6)
	require.NotEmpty(t, r.Runs[0].Key, "the result itself is not changed")
	require.Len(t, r.Runs[0].Facts, 1)
	require.Equal(t, 1408123, int(r.Runs[0].Outcome.StepTime.Bytes))
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, Files(dir, fixture()))
	for _, name := range []string{"report.html", "matrix.txt", "claims.md"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
	require.Error(t, Files(filepath.Join(dir, "none"), fixture()))
}
