package matrix

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// variant describes the five runs of a fixture, which differ from each other by one percent. Sizes are
// in MiB, slopes in KiB per step, times in milliseconds. Fields that are 0 have defaults.
type variant struct {
	name                          string // "W2/gc-step", or "W2" for the workload as it is
	kind                          memory.Kind
	slope, peak, step, gpu        float64
	rough                         float64 // a scatter that is too wide for any comparison
	loaded, first, steady, closed float64 // levels after phases
	failure                       runner.Failure
	died                          string // the cause of the failure
	stepped                       bool   // failed after the first step
	unverified                    string
}

const leak, unsure, oom = memory.Leak, memory.Inconclusive, runner.OutOfMemory

func mebi(v float64) memory.Reading { return memory.Known(memory.Bytes(v * (1 << 20))) }

func (a variant) runs(runtime string) (runs []RunResult) {
	workload, remedy, ok := strings.Cut(a.name, "/")
	if !ok {
		remedy = Baseline
	}
	for pair := range 5 {
		scatter := 1 + 0.01*float64(pair%3-1)
		if a.rough > 0 {
			scatter = 1 + a.rough*float64(2*(pair%2)-1)
		}
		run := RunResult{Runtime: runtime, Workload: workload, Remedy: remedy, Pair: pair, Failure: a.failure, Cause: a.died,
			Phases: map[string]memory.Sample{}, Outcome: compare.Outcome{
				Verdict: memory.Verdict{Kind: memory.Flat, Layer: memory.Anon, Per: memlayer.PerStep, Cause: memlayer.Unreleased},
				Peak:    mebi(cmp.Or(a.peak, 1000) * scatter), StepTime: memory.Known(memory.Bytes(cmp.Or(a.step, 10) * 1e6 * scatter)),
			}}
		if a.kind != "" {
			run.Outcome.Verdict.Kind = a.kind
		}
		slope := a.slope * 1024 * scatter
		run.Outcome.Verdict.Slope = memory.Interval{Estimate: slope, Low: slope - 10, High: slope + 10}
		if a.failure != "" {
			run.Outcome.Verdict = compare.Crashed(string(a.failure) + ": " + a.died)
		}
		if a.gpu > 0 {
			run.Outcome.GPU = mebi(a.gpu * scatter)
		}
		for name, level := range map[string]float64{program.Loaded: a.loaded, runner.First: cmp.Or(a.first, a.steady),
			runner.Steady: a.loaded + (a.steady-a.loaded)*scatter, program.Closed: a.closed} {
			var s memory.Sample
			if s.Set(memory.Anon, mebi(level)); a.loaded > 0 || name == runner.First && a.stepped {
				run.Phases[name] = s
			}
		}
		runs = append(runs, run)
	}
	return runs
}

// made returns a result of one runtime. Variants with a remedy follow the workload as it is.
func made(runtime string, gpus []string, variants ...variant) *Result {
	r := &Result{Schema: schemaVersion, Environment: machine.Environment{GPUs: gpus}}
	base := map[string][]RunResult{}
	for _, a := range variants {
		runs := a.runs(runtime)
		c := Combination{Runtime: runtime, Workload: runs[0].Workload, Remedy: runs[0].Remedy,
			Verdict: &runs[2].Outcome.Verdict, Unverified: a.unverified}
		if c.Remedy == Baseline {
			base[c.Workload] = runs
		}
		var pairs []compare.Pair
		for i, b := range base[c.Workload] {
			pairs = append(pairs, compare.Pair{Base: b.Outcome, Remedy: runs[i].Outcome})
			if c.Remedy == "batch-half" { // as for the slope per sample
				pairs[i].Remedy.Verdict.Slope.Estimate *= 2
			}
		}
		if c.Remedy != Baseline && len(pairs) > 0 {
			comparison := compare.Runs(pairs, compare.LowerPeak, 1)
			c.Comparison = &comparison
		}
		r.Combinations, r.Runs = append(r.Combinations, c), append(r.Runs, runs...)
	}
	return r
}

func TestClaims(t *testing.T) {
	grows := func(name string, slope float64) variant { return variant{name: name, kind: leak, slope: slope} }
	dies := func(name, cause string) variant { return variant{name: name, failure: oom, died: cause, stepped: true} }
	gpu := []string{"a GPU"}
	type list = []variant
	for _, test := range []struct {
		claim, name, runtime string
		gpus                 []string
		variants             []variant
		want                 string // "" means no verdict
		says                 string
	}{
		{"C1", "the whole set dies", Go, nil, list{dies("S0", ""), {name: "S0/stream"}}, holdsInPart,
			"S0: 5 of 5 runs ran out of memory. S0/stream: 0 of 5 runs ran out of memory. "},
		{"C1", "the same peak", Go, nil, list{{name: "S0"}, {name: "S0/stream", peak: 1010}}, doesNotHold,
			"S0/stream against S0: peak x1.01 [1.01, 1.01]"},
		{"C1", "an unclear peak", Go, nil, list{{name: "S0"}, {name: "S0/stream", rough: 0.6}}, undecided, ""},
		{"C1", "against a collected run", Galeone, nil,
			list{grows("S0", 100), {name: "S0/gc-step"}, {name: "S0/stream", peak: 300}}, holdsInPart,
			"S0/stream against S0/gc-step: peak x0.30 [0.29, 0.31]"},
		{"C2", "flat", Go, nil, list{{name: "W0"}, {name: "S1"}}, doesNotHold, "W0: flat. S1: flat"},
		{"C2", "grows with the batch", Keras, nil, list{grows("W0", 100), grows("W0/batch-half", 50), grows("S2", 100),
			grows("S2/batch-half", 50)}, holds, "slope per sample x1.00"},
		{"C2", "whatever the batch", Keras, nil, list{grows("W0", 100), grows("W0/batch-half", 100)}, doesNotHold, "x2.00"},
		{"C2", "growth is not decided", Keras, nil, list{{name: "W0", kind: unsure}}, undecided, "W0: inconclusive"},
		{"C3", "what does not grow is left out", Galeone, nil, list{grows("W2", 100), {name: "W2/gc-step"},
			{name: "S1", kind: unsure}, {name: "S1/gc-step"}}, holdsInPart, "It is shown on W2 alone"},
		{"C3", "a part of it", Galeone, nil, list{grows("W2", 100), grows("W2/gc-step", 60)}, holdsInPart, "x0.60"},
		{"C3", "not at all", Go, nil, list{grows("W2", 100), grows("W2/gc-step", 100)}, doesNotHold, "x1.00"},
		{"C3", "too rough", Go, nil, list{grows("W2", 100), {name: "W2/gc-step", slope: 70, rough: 0.3}}, undecided, ""},
		{"C3", "flat", Keras, nil, list{{name: "W2", kind: memory.Sawtooth}}, doesNotHold, "sawtooth"},
		{"C4", "lower peaks beside an unclear one", Go, nil, list{{name: "S3"}, {name: "S3/prefetch-16", peak: 800},
			{name: "S1"}, {name: "S1/prefetch-16", peak: 800}, {name: "S2"}, {name: "S2/prefetch-16", rough: 0.6}}, holdsInPart,
			"Not decided by 1 of 3 measurements"},
		{"C4", "tf.data's effect is not prefetch's", Keras, nil, list{{name: "S1"}, {name: "S1/tf-data", peak: 500},
			{name: "S1/prefetch-auto", peak: 500}}, doesNotHold, "S1/prefetch-auto against S1/tf-data: peak x1.00 [0.98, 1.02]"},
		{"C5", "a jump, then flat", Go, nil, list{{name: "S1", loaded: 100, steady: 150},
			{name: "S1d", loaded: 100, steady: 150}}, holds,
			"S1: what the first step adds to the memory after loading is x0.50 [0.50, 0.50] of it in 5 of 5 runs"},
		{"C6", "both", Go, nil, list{{name: "S1", loaded: 100, steady: 110}, {name: "S1/xla", loaded: 100, steady: 150},
			{name: "S1d", loaded: 100, steady: 200}, {name: "S1d/xla", loaded: 100, steady: 260}}, holdsInPart,
			"S1d against S1: jump from loading to the last step x10.0 [9.80, 10.2]"},
		{"C7", "closing frees", Go, nil, list{{name: "S3", loaded: 400, steady: 1000, closed: 420},
			{name: "W2/close", loaded: 400, steady: 1000, closed: 420}}, holds, "x0.03 [0.03, 0.03] of it"},
		{"C7", "never kept", Go, nil, list{{name: "S3", loaded: 400, steady: 402, closed: 400}}, doesNotHold, "unknown of it in 0 of 5"},
		{"C8", "a hang beside what is flat", Keras, nil, list{{name: "S1", failure: runner.Failed, died: "hang"}, {name: "S2"}},
			undecided, "hang"},
		{"C8", "out of memory later on", Keras, nil, list{dies("S1", "killed by the kernel")}, holdsInPart, "S1 alone"},
		{"C8", "out of memory at once", Keras, nil, list{{name: "S1", failure: oom}}, undecided, ""},
		{"C8", "malloc fails under a limit", Keras, nil, list{{name: "S1", failure: runner.Failed, stepped: true,
			died: "killed by signal aborted under a data limit of 768.0 MiB: what(): std::bad_alloc"}}, holdsInPart,
			"5 of 5 runs ran out of memory"},
		{"C9", "there is no growth to stop", Keras, nil, list{{name: "S1"}, {name: "S1/own-loop"}, {name: "S1/own-loop-del"}},
			doesNotHold, "S1/own-loop: flat"},
		{"C9", "del stops it", Keras, nil, list{{name: "S1"}, grows("S1/own-loop", 100), {name: "S1/own-loop-del"},
			{name: "S2"}, grows("S2/own-loop", 100), {name: "S2/own-loop-del"}}, holds, "against S2/own-loop: slope x0"},
		{"C10", "at a cost", Keras, nil, list{grows("W4", 100), {name: "W4/clear-session", step: 15}, grows("W5", 100),
			{name: "W5/clear-session", step: 15}}, holds, "time of a step x1.50"},
		{"C11", "half the growth is arithmetic", Go, nil, list{grows("W2", 100), grows("W2/batch-half", 50)}, doesNotHold, ""},
		{"C12", "grows alone", Keras, nil, list{grows("S2l", 10), {name: "S2"}}, holdsInPart, "A GRU was not tried"},
		{"C13", "the history", Go, nil, list{grows("W10", 10), {name: "W10/keep-last"}, grows("S4", 10),
			{name: "S4/keep-last"}}, holdsInPart, "Callbacks are Keras's alone"},
		{"C13", "both", Keras, nil, list{grows("W10", 10), {name: "W10/keep-last"}, grows("S4", 10), {name: "S4/keep-last"},
			{name: "S1"}, grows("S1/hoard", 10), {name: "S2"}, grows("S2/hoard", 10)}, holds, "S1/hoard: leak"},
		{"C14", "grows, and does not crash", Keras, nil, list{grows("S3", 100), grows("W4", 100)}, holdsInPart, "0 of 5 runs"},
		{"C14", "crashes", Keras, nil, list{dies("S1", ""), dies("S3", ""), dies("W4", "")}, holdsInPart,
			"What loading again adds is shown on W4 alone"},
		{"C15", "buffers survive", Keras, nil, list{dies("S3", ""), {name: "S3/buffers"}}, holdsInPart,
			"S3/buffers: 0 of 5 runs ran out of memory"},
		{"C16", "no GPU", Go, nil, list{dies("S3v", ""), {name: "S3"}}, "", ""},
		{"C16", "fails", Go, gpu, list{dies("S3v", "OOM by allocator GPU_0_bfc"), {name: "S3"}}, holdsInPart, "S3v alone"},
		{"C16", "the host's memory", Go, gpu, list{dies("S3v", "killed by the kernel"), {name: "S3"}}, undecided, ""},
		{"C17", "grows as S3 does", Go, nil, list{grows("S3a", 10), grows("S3", 10)}, undecided, ""},
		{"C18", "lower and slower", Keras, nil, list{{name: "S1"}, {name: "S1/eager", peak: 800, step: 30}, {name: "S2"},
			{name: "S2/eager", peak: 800, step: 30}}, holds, "S2/eager against S2: time of a step x3.00"},
		{"C18", "perhaps not applied", Keras, nil, list{{name: "S1"}, {name: "S1/eager", unverified: "no trace"}}, undecided,
			"whether the remedy took effect is not known: no trace"},
		{"C19", "holds less", Go, gpu, list{{name: "W0", gpu: 40000}, {name: "W0/memory-growth", gpu: 1000}}, holdsInPart,
			"was not tried"},
		{"C20", "halved", Go, nil, list{{name: "S3"}, {name: "S3/bf16", peak: 500}}, holdsInPart, "over at least 5 seeds"},
		{"C21", "less memory, more time", Go, nil, list{{name: "S1"}, {name: "S1/arenas-2", peak: 800, step: 30},
			{name: "W8"}, {name: "W8/arenas-2", peak: 800, step: 30}}, holds, ""},
		{"C24", "less without oneDNN", Go, nil, list{{name: "W3"}, {name: "W3/onednn-off", peak: 700}}, holdsInPart, "x0.70"},
		{"C25", "more than the pool", Go, gpu, list{{name: "S3"}, {name: "S3/memory-growth", gpu: 500},
			{name: "S3/cuda-async", gpu: 900}}, holdsInPart, "S3/cuda-async against S3/memory-growth: GPU memory x1.80"},
	} {
		t.Run(test.claim+" "+test.name, func(t *testing.T) {
			claims := ledgerOf(t, made(test.runtime, test.gpus, test.variants...))
			c := claims[slices.IndexFunc(claims, func(c Claim) bool { return c.ID == test.claim })]
			if test.want == "" {
				require.Empty(t, c.Verdicts)
				return
			}
			require.Len(t, c.Verdicts, 1)
			v := c.Verdicts[0]
			assert.Equal(t, test.want, v.Verdict, v.Text)
			assert.Contains(t, v.Text, test.says)
			assert.Equal(t, test.want == notTested, len(v.Combinations) == 0)
		})
	}
}

// A verdict names the combinations that decided it: not those that do not grow, and have nothing to stop.
func TestClaimsNameCombinations(t *testing.T) {
	for _, c := range ledgerOf(t, made(Keras, nil, variant{name: "W4", kind: leak, slope: 1}, variant{name: "W4/gc-epoch"},
		variant{name: "S3"}, variant{name: "S3/buffers"}, variant{name: "S3/gc-epoch"})) {
		if want := map[string][]string{"C15": {"S3/none"}, "C22": {"W4/gc-epoch", "W4/none"}}[c.ID]; want != nil {
			assert.Equal(t, want, c.Verdicts[0].Combinations)
		}
	}
}

// With galeone's binding every workload may grow, since finalizers run late. Only the claims about
// the garbage collector may hold because of such growth.
func TestLateFinalizersAreNoEvidence(t *testing.T) {
	var variants []variant
	for _, w := range []string{"W2", "S0", "S1", "S1d", "S2", "S2l", "S3"} {
		variants = append(variants, variant{name: w, kind: leak, slope: 100, loaded: 100, steady: 500, closed: 120},
			variant{name: w + "/batch-half", kind: leak, slope: 50, peak: 600, loaded: 100, steady: 300, closed: 120},
			variant{name: w + "/gc-step", loaded: 100, steady: 110, closed: 110})
	}
	verdicts := map[string]string{}
	for _, c := range ledgerOf(t, made(Galeone, nil, variants...)) {
		for _, v := range c.Verdicts {
			verdicts[c.ID] = v.Verdict
		}
	}
	assert.Equal(t, map[string]string{"C2": doesNotHold, "C3": holds, "C4": notTested, "C5": holds, "C6": notTested,
		"C7": holdsInPart, "C8": holdsInPart, "C9": notTested, "C10": notTested, "C11": doesNotHold, "C12": doesNotHold,
		"C13": notTested, "C14": holdsInPart, "C17": notTested, "C18": notTested, "C21": notTested, "C23": notTested,
		"C24": notTested},
		verdicts)
}

// ReadFile keeps the verdicts in a file, and adds verdicts on claims that are newer than the file.
func TestReadFileAddsClaims(t *testing.T) {
	r := made(Keras, nil, variant{name: "W9", kind: leak, slope: 100}, variant{name: "S1"})
	old := ClaimVerdict{Runtime: Keras, Verdict: holds, Text: "measured before", Combinations: []string{"S1/none"}}
	r.Claims = []Claim{{ID: "C8", Text: "an older sentence", Verdicts: []ClaimVerdict{old}}}
	path := filepath.Join(t.TempDir(), "matrix.json.gz")
	require.NoError(t, WriteFile(path, r))
	for range 2 {
		back, err := ReadFile(path)
		require.NoError(t, err)
		assert.Len(t, back.Claims, 27)
		assert.Equal(t, []ClaimVerdict{old}, back.Claims[0].Verdicts)
		assert.Equal(t, "Memory grows without bound per epoch by default", back.Claims[0].Text)
		assert.Equal(t, holdsInPart, back.Claims[slices.IndexFunc(back.Claims,
			func(c Claim) bool { return c.ID == "C23" })].Verdicts[0].Verdict)
		require.NoError(t, WriteFile(path, back))
	}
}

// Claims name existing workloads, remedies, states and amounts, and so does the command for the claims
// that need a GPU.
func TestClaimTable(t *testing.T) {
	run := variant{name: "S1", loaded: 100, steady: 200, closed: 100, gpu: 1}.runs(Go)[0]
	run.Facts = map[string]string{program.FactPool + "GPU_0_bfc": strconv.Itoa(int(mebi(1).Bytes))}
	table, err := claimTable()
	require.NoError(t, err)
	for _, c := range table {
		assert.Equal(t, slices.ContainsFunc(c.Rows, func(r row) bool { return r.GPU }), c.Needs != "", c.ID)
		var names []string
		for _, part := range strings.Fields(c.Needs) {
			if strings.Contains(part, ",") && part != "go,keras" {
				names = append(names, strings.Split(part, ",")...)
			}
		}
		for _, r := range c.Rows {
			assert.Subset(t, Runtimes(), r.Runtimes)
			for _, name := range append(r.Runs, r.Against) {
				names = append(names, strings.Split(name, "/")...)
			}
			names = append(names, r.Remedies...)
			switch amount := r.Of + r.Share; amount {
			case "":
				assert.Contains(t, []string{"growing", "not growing", "out of memory", "out of GPU memory"}, r.Is)
			case "time of a step", "slope per sample": // of comparisons alone
				assert.NotZero(t, r.Below+r.Above)
			default:
				assert.NotZero(t, r.Below+r.Above)
				assert.False(t, math.IsNaN(run.amount(amount)), "%s: %q is no amount", c.ID, amount)
			}
		}
		for _, name := range names {
			_, noWorkload := FindWorkload(name)
			_, noRemedy := FindRemedy(name)
			assert.True(t, name == "" || noWorkload == nil || noRemedy == nil, name)
		}
	}
	for _, c := range ledgerOf(t, made(Go, []string{"a GPU"})) {
		assert.Empty(t, c.Needs, c.ID)
	}
}

func TestSettle(t *testing.T) {
	of := func(a answer) evidence { return evidence{"it", a, fmt.Sprint(a), []string{"W0", "W1"}} }
	for _, test := range []struct {
		mainly      bool
		first, then answer
		want        string
	}{
		{false, yes, yes, holds}, {false, no, no, doesNotHold}, {false, yes, no, holdsInPart},
		{false, inPart, unclear, holdsInPart}, {false, inPart, missing, holdsInPart}, {false, yes, unclear, undecided},
		{false, no, unclear, undecided}, {false, unclear, unclear, undecided}, {false, yes, missing, ""},
		{false, unclear, missing, ""}, {false, missing, missing, ""}, {true, no, yes, doesNotHold},
		{true, no, unclear, doesNotHold}, {true, no, missing, doesNotHold}, {true, yes, no, holdsInPart},
		{true, yes, unclear, undecided}, {true, unclear, yes, undecided}, {true, missing, no, ""},
	} {
		verdict, text := claimEntry{Mainly: test.mainly}.settle(of(test.first), of(test.then))
		assert.Equal(t, test.want, verdict, "%d, %d", test.first, test.then)
		assert.Equal(t, verdict == "", text == "")
	}
	verdict, text := claimEntry{}.settle(evidence{"the one", yes, "W0: yes", []string{"W0"}}, of(yes))
	assert.Equal(t, holdsInPart, verdict)
	assert.Contains(t, text, "The one is shown on W0 alone")
}

func TestPool(t *testing.T) {
	for _, test := range []struct {
		answers []answer
		want    answer
	}{
		{nil, missing}, {[]answer{unclear, missing}, unclear}, {[]answer{yes, missing, yes}, yes},
		{[]answer{yes, unclear}, inPart}, {[]answer{yes, no, unclear}, inPart}, {[]answer{no, missing}, no},
		{[]answer{no, unclear}, unclear}, {[]answer{no, no, unclear}, no}, {[]answer{inPart, unclear, unclear}, inPart},
		{[]answer{inPart, yes}, inPart}, {[]answer{inPart, inPart}, inPart},
	} {
		var all []evidence
		for i, a := range test.answers {
			all = append(all, evidence{"", a, fmt.Sprint(i), []string{fmt.Sprint("W", 1-i%2)}})
		}
		assert.Equal(t, test.want, pool(all...).answer, "%v", test.answers)
	}
	same := evidence{"", no, "W0: flat", []string{"W0"}}
	assert.Equal(t, no, pool(same, evidence{"", unclear, "W1: unsure", nil}, same, evidence{"", no, "W2", nil}).answer)
	assert.Equal(t, unclear, pool(same, evidence{"", unclear, "W1: unsure", nil}, same).answer, "a measurement counts once")
}

func ledgerOf(t *testing.T, r *Result) []Claim {
	t.Helper()
	list, err := ledger(r)
	require.NoError(t, err)
	return list
}
