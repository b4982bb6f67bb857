package report

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

func amount(mib int64) *int64 { return i64(mib << 20) }

func exactly(estimate float64, effect compare.Effect) compare.Ratio {
	return compare.Ratio{Interval: memory.Interval{Estimate: estimate, Low: estimate, High: estimate}, OK: true,
		Effect: effect}
}

// keptFixture returns measurements of generated images: 807 MiB in the loop, almost all of which
// stay after close.
func keptFixture() *matrix.Result {
	r := &matrix.Result{Complete: true,
		Workloads: []matrix.Workload{{ID: "S3", Title: "images from a generator"}},
		Remedies: []matrix.Remedy{
			{ID: "trim", Title: "malloc_trim each epoch", Goal: compare.LowerReset},
			{ID: "system-allocator", Title: "no pool", Goal: compare.LowerReset, Env: map[string]string{bypass: "1"}},
			{ID: "system-trim", Title: "no pool, malloc_trim each epoch", Goal: compare.LowerReset,
				Env: map[string]string{bypass: "1"}},
			{ID: "buffers", Title: "one buffer", Goal: compare.LowerSlope},
			{ID: "batch-half", Title: "half the batch", Goal: compare.LowerPeak,
				Params: map[string]string{"batch_divide": "2"}}}}
	var closed memory.Sample
	closed.Set(memory.MallocUsed, memory.Known(1210*memory.MiB))
	closed.Set(memory.MallocFree, memory.Known(27*memory.MiB))
	var loaded memory.Sample
	loaded.Set(memory.MallocUsed, memory.Known(93*memory.MiB))
	loaded.Set(memory.MallocFree, memory.Known(6*memory.MiB))
	r.Runs = []matrix.RunResult{{ID: 1, Runtime: "go", Workload: "S3", Remedy: matrix.Baseline,
		Phases: map[string]memory.Sample{"loaded": loaded, "closed": closed}}}
	add := func(remedy string, level, closed, trimmed int64, reset, time compare.Ratio) {
		c := matrix.Combination{Runtime: "go", Workload: "S3", Remedy: remedy, Effect: reset.Effect,
			Verdict: &memory.Verdict{Kind: memory.Jump, Samples: 64, Start: 710 * memory.MiB, Level: 807 * memory.MiB},
			Figures: matrix.Figures{Loaded: amount(109), Level: amount(level), Closed: amount(closed), Trimmed: amount(trimmed)}}
		if remedy == matrix.Baseline {
			c.Runs = []int{1}
		} else {
			c.Comparison = &compare.Comparison{Goal: compare.LowerReset, Pairs: 3, Reset: reset, StepTime: time,
				Peak: exactly(1, compare.NoEffect), Effect: reset.Effect}
		}
		r.Combinations = append(r.Combinations, c)
	}
	add(matrix.Baseline, 807, 789, 777, compare.Ratio{}, compare.Ratio{})
	add("trim", 802, 783, 777, exactly(0.99, compare.NoEffect), exactly(1, compare.NoEffect))
	add("system-allocator", 286, 209, 45, exactly(0.27, compare.Works), exactly(2.16, compare.Harmful))
	add("system-trim", 280, 44, 44, exactly(0.06, compare.Works), exactly(2.2, compare.Harmful))
	add("buffers", 330, 320, 310, exactly(0.4, compare.Works), exactly(0.9, compare.Partly))
	add("batch-half", 430, 400, 390, exactly(0.5, compare.Works), exactly(0.5, compare.Works))
	return r
}

// TestKept checks the memory that stays after close, the allocator that keeps it, and the
// remedies that return it, with their cost.
func TestKept(t *testing.T) {
	r := keptFixture()
	for _, page := range []string{visible(render(t, r)), strings.Join(strings.Fields(inText(t, r, TextOptions{})), " ")} {
		has(t, page, "109.0 MiB before the first step, 807.0 MiB in the loop, 789.0 MiB after everything was closed, "+
			"777.0 MiB after malloc_trim in addition.")
		has(t, page, "TensorFlow's pool keeps freed memory: without the pool it comes back; malloc, from which the pool "+
			"takes its memory, counts 1.2 GiB as in use and 27.0 MiB as free.")
		has(t, page, "45.0 MiB after malloc_trim; step time ×2.16")
	}
	page := render(t, r)
	has(t, visible(page), "789.0 MiB kept ✓ Comes back to 44.0 MiB with no pool, malloc_trim each epoch step time "+
		"×2.20; peak as before (×1.00)")
	_, rest, _ := strings.Cut(page, `<article class="card kept">`)
	article, _, _ := strings.Cut(rest, "</article>")
	card := visible(article)
	require.Less(t, strings.Index(card, "to 44.0 MiB with no pool, malloc_trim each epoch"),
		strings.Index(card, "to 209.0 MiB with no pool"), "what returns most comes first")
	// it took less memory from the beginning, so none is returned
	has(t, card, "✓ Less is taken 320.0 MiB with one buffer")
	has(t, card, "= As much malloc_trim each epoch")
	hasNot(t, card, "half the batch") // its steps do less work

	// The size of TensorFlow's pool shows the allocator that keeps the memory.
	r.Combinations[0].Figures.Pool = amount(640)
	has(t, visible(render(t, r)), "a step takes up to 640.0 MiB from it; malloc, from which the pool")
	r.Combinations[0].Figures.Pool = nil

	// Without a comparison, the page makes no statement about remedies.
	r.Combinations = r.Combinations[:1]
	text := visible(render(t, r))
	has(t, text, "no setting was compared")
	has(t, text, "TensorFlow keeps it, in a pool or in a cache; malloc")

	// Workloads that return their memory or hold little are not shown.
	for _, closed := range []int64{109 + 63, 120} {
		r.Combinations[0].Figures.Closed = amount(closed)
		hasNot(t, render(t, r), "keeps its memory")
	}
	r.Combinations[0].Figures.Closed = nil
	hasNot(t, render(t, r), "keeps its memory")
}

// TestKeptByMalloc checks memory that malloc counts as free.
func TestKeptByMalloc(t *testing.T) {
	r := keptFixture()
	s := r.Runs[0].Phases["closed"]
	s.Set(memory.MallocUsed, memory.Known(90*memory.MiB))
	s.Set(memory.MallocFree, memory.Known(700*memory.MiB))
	r.Runs[0].Phases["closed"] = s
	has(t, visible(render(t, r)), "malloc keeps 700.0 MiB of freed memory.")
	r.Runs = nil
	r.Combinations = slices.DeleteFunc(r.Combinations,
		func(c matrix.Combination) bool { return strings.HasPrefix(c.Remedy, "system") })
	has(t, visible(render(t, r)), "No figure shows which allocator keeps it.")
}

// TestSurvivors checks that the page shows the memory of a workload that crashes at a limit,
// and the remedies with which it survives.
func TestSurvivors(t *testing.T) {
	r := keptFixture()
	r.Combinations = r.Combinations[:1]
	r.Combinations[0].Figures.Peak, r.Combinations[0].Figures.StepTime = amount(1090), i64(136e6)
	r.Workloads = append(r.Workloads, matrix.Workload{ID: "S3m", Title: "images under a memory limit", Like: "S3",
		Limit: 768 << 20})
	crashed := compare.Crashed("killed by the kernel: memory limit of 768.0 MiB")
	r.Combinations = append(r.Combinations,
		matrix.Combination{Runtime: "go", Workload: "S3m", Remedy: matrix.Baseline, Verdict: &crashed,
			Crashes: []string{"killed"}},
		matrix.Combination{Runtime: "go", Workload: "S3m", Remedy: "batch-half", Effect: compare.Works,
			Figures: matrix.Figures{Peak: amount(717), StepTime: i64(70e6)},
			Verdict: &memory.Verdict{Kind: memory.Flat}, Comparison: &compare.Comparison{Effect: compare.Works, Pairs: 2,
				BaseCrashes: 2}},
		matrix.Combination{Runtime: "go", Workload: "S3m", Remedy: "trim", Effect: compare.NoEffect, Verdict: &crashed,
			Crashes:    []string{"killed", "killed"},
			Comparison: &compare.Comparison{Effect: compare.NoEffect, Pairs: 2, BaseCrashes: 2, RemedyCrashes: 2}})
	text := visible(render(t, r))
	has(t, text, "✓ Survives with half the batch peak 717.0 MiB; 70.0 ms per smaller step Without the limit (S3): peak "+
		"1.1 GiB; 136 ms per step.")
	has(t, text, "= Crashes too with malloc_trim each epoch")
	has(t, inText(t, r, TextOptions{Width: 200}), "Without the limit (S3): peak 1.1 GiB; 136 ms per step.")
	r.Workloads[0].Limit = 1 << 30
	hasNot(t, visible(render(t, r)), "Without the limit")
}

// TestWaiting checks that a runtime without an explicit release refers to the runtime that has
// one.
func TestWaiting(t *testing.T) {
	r := &matrix.Result{Workloads: []matrix.Workload{{ID: "W2", Title: "input tensors left to the collector"}}}
	leak := func(cause string) *memory.Verdict {
		return &memory.Verdict{Kind: memory.Leak, Slope: memory.Interval{Estimate: 5e6, Low: 5e6, High: 5e6}, Samples: 96,
			Cause: cause, Carrier: memlayer.WaitingBytes, Layer: memory.Anon}
	}
	r.Combinations = []matrix.Combination{
		{Runtime: "galeone", Workload: "W2", Remedy: matrix.Baseline, Verdict: leak(memlayer.GCLag),
			Figures: matrix.Figures{StepTime: i64(45e6)}},
		{Runtime: "go", Workload: "W2", Remedy: matrix.Baseline, Verdict: leak(memlayer.Unreleased)}}
	const nothing = "No remedy on galeone releases them explicitly."
	text := visible(render(t, r))
	has(t, text, nothing)
	hasNot(t, text, "The same workload on go")
	r.Combinations = append(r.Combinations, matrix.Combination{Runtime: "go", Workload: "W2", Remedy: "close",
		Effect: compare.Works, Verdict: &memory.Verdict{Kind: memory.Flat, Level: 361 * memory.MiB, Samples: 96},
		Comparison: &compare.Comparison{Effect: compare.Works, Goal: compare.LowerSlope, Slope: exactly(0, compare.Works)},
		Figures:    matrix.Figures{StepTime: i64(40e6)}})
	r.Remedies = []matrix.Remedy{{ID: "close", Title: "close tensors", Runtimes: []string{"go"}}}
	want := nothing + " The same workload on go with “close tensors”: flat at 361.0 MiB; a step takes 40.0 ms, 45.0 ms " +
		"here."
	has(t, visible(render(t, r)), want)
	has(t, inText(t, r, TextOptions{Width: 1000}), want)
	// A run without a collection does not show endless growth.
	const early = "The runs took at most 3 s, and Go may wait 120 s for a collection."
	hasNot(t, visible(render(t, r)), early)
	r.Runs = []matrix.RunResult{{ID: 1, Seconds: 2.9}}
	r.Combinations[0].Runs = []int{1}
	has(t, visible(render(t, r)), early)
	has(t, inText(t, r, TextOptions{Width: 1000}), early)
	r.Remedies[0].Runtimes = nil
	text = visible(render(t, r))
	hasNot(t, text, nothing)
	has(t, text, "Release them explicitly.")
}

// TestBarren checks that a remedy only does nothing on workloads that grow by themselves, which
// are named.
func TestBarren(t *testing.T) {
	r := fixture(2, 1)
	v := newView(r)
	names := func() map[string]string {
		m := map[string]string{}
		for _, l := range v.barren(v.answers("go")) {
			for _, i := range l.Items {
				m[i.ID] = l.Label
			}
		}
		return m
	}
	require.Equal(t, "W4, W8 and W10", names()["gogc-20"])
	require.NotContains(t, names(), "trim", "it works on W8")
	for i := range r.Combinations {
		if c := &r.Combinations[i]; c.Runtime == "go" && c.Workload != "W1" && c.Workload != "W4" &&
			c.Remedy == matrix.Baseline {
			c.Verdict = &memory.Verdict{Kind: memory.Flat}
		}
	}
	v = newView(r)
	require.Equal(t, "W4", names()["gogc-20"], "W1 grows on purpose")
}

// TestUnverified checks that the page never says that a remedy does nothing if it may not have
// been applied.
func TestUnverified(t *testing.T) {
	const reason = "threads that share an operation have no name to count them by"
	r := withoutCurves(fixture(2, 1))
	change := func(change func(*matrix.Combination)) {
		for i := range r.Combinations {
			if c := &r.Combinations[i]; c.Runtime == "go" && c.Remedy == "gogc-20" && c.Comparison != nil {
				change(c)
			}
		}
	}
	card := func() string {
		_, cards, _ := strings.Cut(render(t, r), "<article")
		_, rest, _ := strings.Cut(visible(cards), "W4 model loaded anew each step")
		text, _, _ := strings.Cut(rest, "W8 bursts")
		return text
	}
	list := func(text, from, to string) string {
		_, rest, ok := strings.Cut(text, from)
		require.True(t, ok, "%s: %s", from, text)
		rest, _, _ = strings.Cut(rest, to)
		return rest
	}
	require.Contains(t, list(card(), "= Does nothing", "?"), "GOGC=20")
	require.NotContains(t, card(), "=?")
	terminal := TextOptions{Width: 1000}
	require.Regexp(t, `Did nothing: .*gogc-20`, inText(t, r, terminal))

	change(func(c *matrix.Combination) { c.Unverified = reason })
	require.NotContains(t, list(card(), "= Does nothing", "=?"), "GOGC=20")
	require.Contains(t, list(card(), "=? Not verified, no difference seen", "W8"), "GOGC=20")
	for _, line := range strings.Split(inText(t, r, terminal), "\n") {
		if strings.Contains(line, "Did nothing") && strings.Contains(line, "gogc-20") {
			require.NotContains(t, line, "W4") // the remedy was applied on other runtimes
		}
	}
	text, _, _ := strings.Cut(inText(t, r, terminal), "On galeone")
	require.NotRegexp(t, `Did nothing.*gogc-20`, text)
	require.Contains(t, text, "Not verified, no difference seen: gogc-20.")
	require.Contains(t, inText(t, r, terminal), "=?s1.00")
	v := newView(r)
	for _, l := range v.barren(v.answers("go")) {
		for _, i := range l.Items {
			require.NotEqual(t, "gogc-20", i.ID)
		}
	}
	page := render(t, r)
	_, row, _ := strings.Cut(page, `<tr id="`+v.rowAnchor(0, "W4", "gogc-20")+`"`)
	row, _, _ = strings.Cut(row, "</tr>")
	require.Contains(t, row, `class="effect unclear">=? not verified`)
	require.Contains(t, row, reason)
	has(t, visible(page), "=? not verified no difference was seen, but nothing shows that the remedy was applied")

	// A remedy that makes a difference counts as applied.
	change(func(c *matrix.Combination) {
		c.Effect = compare.Partly
		c.Comparison.Slope.Effect, c.Comparison.Effect = compare.Partly, compare.Partly
	})
	require.NotContains(t, card(), "=?")

	// If the only remedy was not applied, no effect is known.
	r = keptFixture()
	r.Combinations = r.Combinations[:2]
	leak := &memory.Verdict{Kind: memory.Leak, Samples: 64, Slope: memory.Interval{Estimate: 5e6, Low: 5e6, High: 5e6}}
	r.Combinations[0].Verdict, r.Combinations[1].Unverified = leak, reason
	r.Combinations[1].Comparison.Goal, r.Combinations[1].Comparison.Slope = compare.LowerSlope,
		exactly(1, compare.NoEffect)
	has(t, visible(render(t, r)), "no remedy is shown to cure that")
	has(t, inText(t, r, terminal), "No remedy is shown to remove it.")
	r.Combinations[1].Unverified = ""
	has(t, visible(render(t, r)), "no remedy that was tried cures that")

	// For memory that stays after close, and for crashes, no effect is known either.
	r = keptFixture()
	r.Combinations[1].Unverified = reason
	has(t, visible(render(t, r)), "=? Not verified, no difference seen malloc_trim each epoch")
	hasNot(t, visible(render(t, r)), "= As much")
	has(t, inText(t, r, terminal), "Not verified, no difference seen: trim.")
	crashed := compare.Crashed("killed by the kernel")
	r.Combinations = r.Combinations[:2]
	r.Combinations[0].Verdict, r.Combinations[1].Verdict = &crashed, &crashed
	r.Combinations[1].Comparison = &compare.Comparison{Effect: compare.NoEffect, Pairs: 2, BaseCrashes: 2,
		RemedyCrashes: 2}
	text = visible(render(t, r))
	hasNot(t, text, "Crashes too with")
	has(t, text, "=? Not verified, no difference seen malloc_trim each epoch")
}

// TestFactsByRuntime checks that a workload may have other steps and another limit on each
// runtime.
func TestFactsByRuntime(t *testing.T) {
	w := matrix.Workload{Steps: 2400, Every: 24, Epoch: 240, Batch: 300}
	require.NoError(t, json.Unmarshal([]byte(`{"on": {"keras": {"steps": 240, "every": 3, "epoch": 24, "limit_bytes": 1073741824}}}`), &w))
	require.Equal(t, "2400 steps in epochs of 240 · a sample every 24 · batch 300", workloadFacts(w, "go"))
	require.Equal(t, "240 steps in epochs of 24 · a sample every 3 · batch 300 · under a limit of 1.0 GiB",
		workloadFacts(w, "keras"))
}

// TestSettings checks the limit and its kind, the number of parallel runs, and the remedies
// that may not have taken effect.
func TestSettings(t *testing.T) {
	r := keptFixture()
	r.Settings = matrix.Settings{Pairs: 3, Jobs: 2, Limit: 2 << 30, LimitKind: "control group"}
	r.Combinations[1].Unverified = "its step cannot be traced"
	text := visible(render(t, r))
	has(t, text, "runs limited to 2.0 GiB · 2 runs at a time")
	has(t, text, "Limit of each run 2.0 GiB; enforced by control group")
	has(t, text, "2 runs at a time Limit of each run")
	has(t, text, "Not verified: its step cannot be traced.")
	has(t, inText(t, r, TextOptions{}), "Applied, but not verified\n  trim on go: its step cannot be traced")
	r.Settings.Limit, r.Settings.LimitKind, r.Workloads[0].Limit = 0, "", 1<<30
	has(t, visible(render(t, r)), "Limit of each run none, except for workloads with their own limit")
}
