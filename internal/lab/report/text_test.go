package report

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

func inText(t *testing.T, r *matrix.Result, o TextOptions) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Text(&b, r, o))
	return b.String()
}

func TestText(t *testing.T) {
	r := fixture(3, 1)
	golden(t, "matrix.txt", []byte(inText(t, r, TextOptions{})))
	for _, width := range []int{1, 40, 60, 80, 132} {
		for i, line := range strings.Split(inText(t, r, TextOptions{Width: width}), "\n") {
			require.LessOrEqual(t, columns(line), max(width, 40), "width %d, line %d: %s", width, i+1, line)
		}
	}
}

// TestTextColor checks that colours appear only on request, and do not change the text.
func TestTextColor(t *testing.T) {
	r := fixture(2, 1)
	plain, colored := inText(t, r, TextOptions{}), inText(t, r, TextOptions{Color: true})
	require.NotContains(t, plain, "\x1b")
	require.Contains(t, colored, "\x1b[32m")
	stripped := regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(colored, "")
	stripped = regexp.MustCompile(`(?m) +$`).ReplaceAllString(stripped, "")
	require.True(t, plain == stripped, "the text differs")
}

func TestTextAlarms(t *testing.T) {
	r := fixture(2, 1)
	require.NotContains(t, inText(t, r, TextOptions{}), "!  ")
	r.Complete, r.Calibration[1].OK, r.Calibration[1].Text = false, false, "the leak was missed; 2 of 2 runs were wrong"
	got := inText(t, r, TextOptions{})
	first, _, _ := strings.Cut(got, "On go:")
	require.Contains(t, first, "! Calibration failed on go, W1: The leak was missed; 2 of 2 runs were wrong.")
	require.Contains(t, first, "! The matrix is incomplete")
	require.NotContains(t, got, "The calibration succeeded")
}

func TestFormat(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{rate(memory.Interval{Estimate: 4.6 * mib, Low: 4.5 * mib, High: 4.7 * mib}, true), "+4.6 MiB/step [4.5, 4.7]"},
		{rate(memory.Interval{Estimate: -3, Low: -6.4, High: 0.2}, true), "−3.0 B/step [−6.4, 0.2]"},
		{rate(memory.Interval{}, true), "0.0 B/step [0.0, 0.0]"},
		{rate(memory.Interval{Estimate: 100, Low: -3 * kib, High: 4 * kib}, true), "+0.1 KiB/step [−3.0, 4.0]"},
		{rate(memory.Interval{Estimate: 100, Low: -3 * kib, High: 4 * kib}, false), "+100 B/step"},
		{duration(i64(131_000)), "131 µs"}, {duration(i64(1_520_000)), "1.52 ms"}, {duration(i64(2_100_000_000)), "2.10 s"},
		{duration(nil), "–"}, {duration(i64(0)), "0 ns"},
		{size(nil), "–"}, {size(i64(0)), "0 B"}, {reading(memory.Reading{}), "–"},
		{times(compare.Ratio{}, true), "–"},
		{times(compare.Ratio{Interval: memory.Interval{Estimate: -0.001, Low: -0.02, High: 0.004}, OK: true}, true),
			"×0 [−0.02, 0]"},
		{times(compare.Ratio{Interval: memory.Interval{Estimate: 0.004, Low: 0.0034, High: 0.011}, OK: true}, true),
			"×0.004 [0.003, 0.01]"},
		{times(compare.Ratio{Interval: memory.Interval{Estimate: 19.8}, OK: true}, false), "×19.8"},
		{times(unboundedRatio, true), "×1.00 [0, ∞]"},
		{sentence("malloc_trim gave nothing"), "malloc_trim gave nothing."},
		{sentence(" the peak is 0.5 times "), "The peak is 0.5 times."}, {sentence(""), ""},
	} {
		require.Equal(t, test.want, test.got)
	}
}

// unboundedRatio has no upper bound.
var unboundedRatio = compare.Ratio{Interval: memory.Interval{Estimate: 1, High: math.MaxFloat64}, OK: true,
	Unbounded: true, Effect: compare.Unclear}

// TestUnbounded checks that a missing bound never appears as a number of 309 digits.
func TestUnbounded(t *testing.T) {
	r := fixture(2, 1)
	for i := range r.Combinations {
		if c := r.Combinations[i].Comparison; c != nil {
			c.Slope, c.Peak, c.Reset, c.StepTime = unboundedRatio, unboundedRatio, unboundedRatio, unboundedRatio
		}
	}
	page := render(t, r)
	has(t, visible(page), "×1.00 [0, ∞]")
	var b bytes.Buffer
	require.NoError(t, Claims(&b, r))
	_, err := Compare(&b, r, r, TextOptions{})
	require.NoError(t, err)
	long := regexp.MustCompile(`\d{20}`)
	for _, text := range []string{visible(page), inText(t, r, TextOptions{}), b.String()} {
		require.Empty(t, long.FindString(text))
	}
	got, text := data(t, r)
	require.Contains(t, text, `"unbounded":true`)
	for i := range got.Combinations {
		if c := got.Combinations[i].Comparison; c != nil {
			require.True(t, c.Peak.Unbounded)
		}
	}
}

// TestThinned checks that the ends and the extremes of a curve remain.
func TestThinned(t *testing.T) {
	var list []point
	for i := range 1000 {
		list = append(list, point{float64(i), float64(i % 97)})
	}
	list[500].y, list[700].y = 1000, -1000
	got := thinned(list, 60)
	require.LessOrEqual(t, len(got), 60)
	require.Equal(t, list[0], got[0])
	require.Equal(t, list[999], got[len(got)-1])
	require.Contains(t, got, list[500])
	require.Contains(t, got, list[700])
	require.True(t, slices.IsSortedFunc(got, func(a, b point) int { return int(a.x - b.x) }))
}

func TestClaims(t *testing.T) {
	r := fixture(2, 1)
	var b bytes.Buffer
	require.NoError(t, Claims(&b, r))
	golden(t, "claims.md", b.Bytes())

	r.Claims[0].Text = "a | b\nc <b>"
	b.Reset()
	require.NoError(t, Claims(&b, r))
	require.Contains(t, b.String(), `| C2 | a \| b c &lt;b&gt; |`)
}

var (
	configLine    = regexp.MustCompile(`^[a-z][^\sA-Z:]*: \S.*$`)
	unitLine      = regexp.MustCompile(`^Unit \S+ better=lower$`)
	benchmarkLine = regexp.MustCompile(`^BenchmarkMatrix/runtime=[^\s/=]+/workload=[^\s/=]+/remedy=[^\s/=]+-\d+ 1((?: \S+ \S+)+)$`)
)

// TestBenchmark checks the format of golang.org/design/14313-benchmark-format.
func TestBenchmark(t *testing.T) {
	r := fixture(2, 1)
	r.Runs = slices.DeleteFunc(r.Runs, func(run matrix.RunResult) bool {
		return run.Workload != "S3" ||
			run.Runtime == "keras"
	})
	for i := range r.Runs {
		if run := &r.Runs[i]; run.Failure != "" && run.Remedy == "xla" {
			run.Outcome.StepTime = memory.Reading{}
		}
	}
	r.Remedies[2].Title, r.Environment.CPU = "x", "a\nBenchmarkEvil 1 2 ns/op"
	var b bytes.Buffer
	require.NoError(t, Benchmark(&b, r))
	golden(t, "bench.txt", b.Bytes())

	lines, comments := 0, 0
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		switch m := benchmarkLine.FindStringSubmatch(line); {
		case m != nil:
			lines++
			fields := strings.Fields(m[1])
			for i := 0; i < len(fields); i += 2 {
				_, err := strconv.ParseFloat(fields[i], 64)
				require.NoError(t, err, line)
				require.Contains(t, []string{"ns/op", "slope-B/step", "peak-bytes", "anon-bytes", "closed-bytes"}, fields[i+1])
			}
		case strings.HasPrefix(line, "# BenchmarkMatrix/"):
			comments++
		case line == "", configLine.MatchString(line), unitLine.MatchString(line):
		default:
			t.Errorf("what is this line? %s", line)
		}
	}
	require.Equal(t, len(r.Runs), lines+comments)
	require.Positive(t, comments, "a run that died at once has no figures")

	run := &r.Runs[0]
	require.Contains(t, b.String(), fmt.Sprintf("BenchmarkMatrix/runtime=go/workload=S3/remedy=none-2 1 %d ns/op",
		run.Outcome.StepTime.Bytes))
	run.Remedy, r.Runs = "a b/c=d-4", r.Runs[:1]
	b.Reset()
	require.NoError(t, Benchmark(&b, r))
	require.Contains(t, b.String(), "/remedy=a_b_c_d-4-2 1 ", "the last number is that of the cores")
}

func comparePage(t *testing.T, a, b *matrix.Result) (string, Agreement) {
	t.Helper()
	var out bytes.Buffer
	got, err := Compare(&out, a, b, TextOptions{})
	require.NoError(t, err)
	return out.String(), got
}

func TestCompareSame(t *testing.T) {
	r := fixture(2, 1)
	out, got := comparePage(t, r, r)
	require.Equal(t, got.Combinations, got.Same)
	require.Equal(t, 24, got.Baselines)
	require.Equal(t, 24, got.SameBaselines)
	require.Empty(t, got.Disagreements)
	require.InDelta(t, 1, got.Share(), 0)
	require.Equal(t, 24, got.SameKinds)
	require.Empty(t, got.OtherKinds)
	require.Contains(t, out, "24 of 24 (100.0%); 24 of them with the same kind of verdict.")
	require.Contains(t, out, fmt.Sprintf("In sum: %d of %d (100.0%%).", got.Combinations+24, got.Combinations+24))
	n := 0
	for i := range r.Combinations {
		if r.Combinations[i].Remedy != matrix.Baseline && measured(&r.Combinations[i]) {
			n++
		}
	}
	require.Equal(t, n, got.Combinations, "combinations that were not measured do not count")
	open := 0
	for i := range r.Combinations {
		if r.Combinations[i].Effect == compare.Unclear {
			open++
		}
	}
	require.Positive(t, open)
	require.Equal(t, open, got.Open)
	require.Contains(t, out, fmt.Sprintf("%d of them unclear in both.", open))
	require.InDelta(t, 1, Agreement{}.Share(), 0)
}

// TestCompare changes single results in one of two equal matrices.
func TestCompare(t *testing.T) {
	ratio := func(low, estimate, high float64) compare.Ratio {
		return compare.Ratio{Interval: memory.Interval{Estimate: estimate, Low: low, High: high}, OK: true}
	}
	cell := func(effect compare.Effect, slope compare.Ratio) matrix.Combination {
		return matrix.Combination{Runtime: "go", Workload: "W4", Remedy: "trim", Effect: effect,
			Comparison: &compare.Comparison{Effect: effect, Goal: compare.LowerSlope, Slope: slope, Pairs: 5}}
	}
	base := func(kind memory.Kind, slope memory.Interval) matrix.Combination {
		return matrix.Combination{Runtime: "go", Workload: "W4", Remedy: matrix.Baseline,
			Verdict: &memory.Verdict{Kind: kind, Slope: slope, Samples: 64}, Figures: matrix.Figures{Slope: slope},
			Runs: []int{1, 2}}
	}
	dead := cell(compare.Harmful, ratio(0.9, 0.91, 0.92))
	dead.Comparison.RemedyCrashes = 3
	peak := cell(compare.Works, compare.Ratio{})
	peak.Comparison.Goal, peak.Comparison.Peak = compare.LowerPeak, ratio(0.2, 0.3, 0.4)
	for _, test := range []struct {
		name string
		a, b []matrix.Combination
		why  string // "" is a contradiction, "same" no disagreement
	}{
		{"unclear", []matrix.Combination{cell(compare.Works, ratio(0, 0.02, 0.05))},
			[]matrix.Combination{cell(compare.Unclear, ratio(-0.5, 0.1, 0.9))}, "B was unclear"},
		{"overlap", []matrix.Combination{cell(compare.Works, ratio(0.03, 0.06, 0.09))},
			[]matrix.Combination{cell(compare.Partly, ratio(0.05, 0.1, 0.15))},
			"the intervals overlap, and the estimates differ by only 0.04; the threshold 0.1 lies within"},
		{"close", []matrix.Combination{cell(compare.Works, ratio(0.07, 0.08, 0.09))},
			[]matrix.Combination{cell(compare.Partly, ratio(0.1, 0.11, 0.12))},
			"the estimates differ by only 0.03; the threshold 0.1 lies within"},
		{"one run grew", []matrix.Combination{cell(compare.Works, ratio(0.2, 0.25, 0.3))},
			[]matrix.Combination{cell(compare.Partly, ratio(0.22, 0.26, 0.31))},
			"they differ in whether single runs with the remedy grow"},
		{"contradiction", []matrix.Combination{cell(compare.Works, ratio(0, 0.01, 0.02))},
			[]matrix.Combination{cell(compare.NoEffect, ratio(0.98, 1, 1.02))}, ""},
		{"death", []matrix.Combination{cell(compare.Partly, ratio(0.9, 0.91, 0.92))}, []matrix.Combination{dead}, ""},
		{"not applied in one", []matrix.Combination{cell(compare.Works, ratio(0, 0.01, 0.02))},
			[]matrix.Combination{{Runtime: "go", Workload: "W4", Remedy: "trim", Effect: compare.CouldNotApply,
				Reason: "no library"}}, ""},
		{"same", []matrix.Combination{cell(compare.Works, ratio(0, 0.01, 0.02))},
			[]matrix.Combination{cell(compare.Works, ratio(0, 0.09, 0.1))}, "same"},
		{"other goal, contradiction", []matrix.Combination{base(memory.Leak,
			memory.Interval{Estimate: 100, Low: 90, High: 110}), cell(compare.NoEffect, ratio(0.98, 1, 1.02))},
			[]matrix.Combination{base(memory.Flat, memory.Interval{}), peak}, ""},
		{"other goal, near", []matrix.Combination{base(memory.Leak, memory.Interval{Estimate: 100, Low: 10, High: 110}),
			cell(compare.NoEffect, ratio(0.98, 1, 1.02))},
			[]matrix.Combination{base(memory.Inconclusive, memory.Interval{}), peak}, "B was inconclusive"},
		{"baselines overlap", []matrix.Combination{base(memory.Leak, memory.Interval{Estimate: 100, Low: 10, High: 110})},
			[]matrix.Combination{base(memory.Plateau, memory.Interval{Estimate: 20, Low: -5, High: 30})}, "the slopes agree"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, got := comparePage(t, &matrix.Result{Combinations: test.a}, &matrix.Result{Combinations: test.b})
			if test.why == "same" {
				require.Empty(t, got.Disagreements)
				return
			}
			require.NotEmpty(t, got.Disagreements)
			for _, d := range got.Disagreements {
				if test.why == "" {
					require.Empty(t, d.Why)
					require.Contains(t, out, "They contradict each other.")
				} else {
					require.Contains(t, d.Why, test.why)
				}
			}
			require.Less(t, got.Share(), 1.0)
			require.Equal(t, test.why == "", got.Unexplained() > 0)
		})
	}
}

// TestCompareClasses checks that different kinds of verdicts without growth are no
// disagreement, nor are classes that differ between the runs of a matrix.
func TestCompareClasses(t *testing.T) {
	result := func(kinds ...memory.Kind) *matrix.Result {
		r := &matrix.Result{Workloads: []matrix.Workload{{ID: "W0", Budget: 2048}}}
		c := matrix.Combination{Runtime: "go", Workload: "W0", Remedy: matrix.Baseline,
			Verdict: &memory.Verdict{Kind: kinds[0], Samples: 9, Reason: "too few turns"},
			Figures: matrix.Figures{Slope: memory.Interval{Estimate: 10, Low: 1, High: 20}}}
		for i, kind := range kinds {
			r.Runs = append(r.Runs, matrix.RunResult{ID: i + 1, Runtime: "go", Workload: "W0",
				Outcome: compare.Outcome{Verdict: memory.Verdict{Kind: kind}}})
			c.Runs = append(c.Runs, i+1)
		}
		if kinds[0] == memlayer.Crash {
			c.Crashes = []string{"killed"}
		}
		r.Combinations = append(r.Combinations, c)
		return r
	}
	for _, kind := range []memory.Kind{memory.Plateau, memory.Jump, memory.Sawtooth} {
		out, got := comparePage(t, result(memory.Flat), result(kind))
		require.Equal(t, 1, got.SameBaselines)
		require.Zero(t, got.SameKinds)
		require.Empty(t, got.Disagreements)
		require.InDelta(t, 1, got.Share(), 0)
		require.Contains(t, out, fmt.Sprintf("go W0 (flat, %s)", kind))
	}
	for _, test := range []struct {
		a, b []memory.Kind
		why  string
	}{
		{[]memory.Kind{memory.Flat}, []memory.Kind{memory.Inconclusive}, "B was inconclusive"},
		{[]memory.Kind{memory.Flat, memory.Leak, memory.Plateau}, []memory.Kind{memory.Leak, memory.Leak},
			"1 of 3 runs of A have the verdict of B, and 0 of 2 runs of B have that of A"},
		{[]memory.Kind{memory.Flat, memory.Flat}, []memory.Kind{memory.Leak, memory.Leak}, "the budget is 2.0 KiB/step"},
		{[]memory.Kind{memory.Flat, memlayer.Crash}, []memory.Kind{memlayer.Crash, memlayer.Crash}, "1 of 2 runs of A"},
		{[]memory.Kind{memory.Inconclusive, memory.Flat}, []memory.Kind{memory.Inconclusive, memory.Leak}, "same"},
	} {
		_, got := comparePage(t, result(test.a...), result(test.b...))
		if test.why == "same" {
			require.Empty(t, got.Disagreements)
			continue
		}
		require.Len(t, got.Disagreements, 1)
		require.Zero(t, got.SameBaselines)
		require.Contains(t, got.Disagreements[0].Why, test.why)
	}
}

func TestCompareText(t *testing.T) {
	a, b := fixture(3, 1), fixture(3, 2)
	b.Complete = false
	b.Combinations = b.Combinations[:len(b.Combinations)-3]
	for i := range b.Combinations {
		if c := &b.Combinations[i]; c.Runtime == "go" && c.Workload == "W8" && c.Remedy == "trim" {
			c.Effect = compare.NoEffect
			c.Comparison.Slope = compare.Ratio{Interval: memory.Interval{Estimate: 1, Low: 0.97, High: 1.02}, OK: true}
		}
	}
	out, got := comparePage(t, a, b)
	golden(t, "compare.txt", []byte(out))
	require.Equal(t, 3, got.OnlyA)
	require.Zero(t, got.OnlyB)
	require.Positive(t, got.Unexplained())
	_, back := comparePage(t, b, a)
	require.Equal(t, got.Same, back.Same)
	require.Equal(t, 3, back.OnlyB)
}
