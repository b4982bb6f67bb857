package report

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with a file. If they differ, it writes got to FILE.got.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run with -update to make it")
	if string(want) != string(got) {
		require.NoError(t, os.WriteFile(path+".got", got, 0o644))
		lines, had := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
		for i := range min(len(lines), len(had)) {
			require.Equal(t, had[i], lines[i], "line %d; see %s.got", i+1, path)
		}
		t.Fatalf("%d lines instead of %d; see %s.got", len(lines), len(had), path)
	}
}

// course is the memory of a fixture workload at each step, in bytes.
type course struct {
	kind  memory.Kind // Leak, Flat, Plateau, Sawtooth, Crash
	level float64     // bytes before the first step
	slope float64     // of a leak, bytes per step
	rise  float64     // level of a plateau; depth of a sawtooth
	peak  float64     // additional memory in the middle of a step
	time  float64     // nanoseconds of a step
	cause memory.Layer
	trim  float64 // memory that a trim returns
}

// change is the effect of a remedy on a workload, as factors.
type change struct {
	slope, peak, time float64
	crashes, lives    bool
}

type fixtureWorkload struct {
	matrix.Workload
	course  map[string]course
	changes map[string]change
}

func i64(v int64) *int64 { return &v }

const mib, kib = float64(memory.MiB), float64(memory.KiB)

// withoutCurves removes the series of the runs, which take most of the space of a page.
func withoutCurves(r *matrix.Result) *matrix.Result {
	for i := range r.Runs {
		r.Runs[i].Series = nil
	}
	return r
}

// fixtures caches fixture matrices, because creating one takes a second.
var fixtures = map[string]*matrix.Result{}

// fixture returns a matrix with pairs runs of each combination. It copies the parts that tests
// change.
func fixture(pairs int, seed uint64) *matrix.Result {
	key := fmt.Sprint(pairs, seed)
	if fixtures[key] == nil {
		fixtures[key] = makeFixture(pairs, seed)
	}
	r := *fixtures[key]
	r.Workloads, r.Remedies, r.Runs = slices.Clone(r.Workloads), slices.Clone(r.Remedies), slices.Clone(r.Runs)
	r.Combinations, r.Calibration, r.Claims = slices.Clone(r.Combinations), slices.Clone(r.Calibration),
		slices.Clone(r.Claims)
	for i := range r.Combinations {
		c := &r.Combinations[i]
		c.Crashes = slices.Clone(c.Crashes)
		if c.Comparison != nil {
			comparison := *c.Comparison
			c.Comparison = &comparison
		}
	}
	for i := range r.Claims {
		r.Claims[i].Verdicts = slices.Clone(r.Claims[i].Verdicts)
	}
	return &r
}

func makeFixture(pairs int, seed uint64) *matrix.Result {
	same := func(c course) map[string]course {
		k, g := c, c
		k.level, k.time = c.level+300*mib, c.time*6
		g.time = c.time * 1.5
		return map[string]course{matrix.Go: c, matrix.Galeone: g, matrix.Keras: k}
	}
	waiting := same(course{kind: memory.Sawtooth, level: 350 * mib, rise: 300 * mib, peak: 200 * mib, time: 21e6})
	w2 := waiting[matrix.Galeone]
	w2.kind, w2.slope, w2.cause = memory.Leak, 4.6*mib, memlayer.WaitingBytes
	waiting[matrix.Galeone] = w2
	w2 = waiting[matrix.Keras]
	w2.kind = memory.Flat
	waiting[matrix.Keras] = w2
	workloads := []fixtureWorkload{
		{matrix.Workload{ID: "W0", Title: "all released, fixed shapes",
			What: "One train step on digits, batch 32; every tensor is closed.", Expected: "a jump, then flat (control)",
			Model: "digits-cnn", Steps: 1600, Every: 10, Epoch: 100, Batch: 32, Leak: i64(0)},
			same(course{kind: memory.Flat, level: 320 * mib, peak: 90 * mib, time: 1.9e6}),
			map[string]change{"micro-4": {1, 0.62, 1.31, false, false}, "xla": {1, 1.4, 3.1, false, false},
				"bf16": {1, 0.78, 0.91, false, false}}},
		{matrix.Workload{ID: "W1", Title: "one fetched tensor never released",
			What:     "W0's step, and one fetched tensor of 64 KiB that stays open.",
			Expected: "an exact line of 64 KiB per step (calibration)", Steps: 1600, Every: 10, Epoch: 100, Batch: 32,
			Leak: i64(65536)},
			same(course{kind: memory.Leak, level: 320 * mib, slope: 65536, peak: 90 * mib, time: 2e6,
				cause: memlayer.LiveBytes}),
			map[string]change{"close": {0, 0.8, 1, false, false}}},
		{matrix.Workload{ID: "W2", Title: "input tensors left to the garbage collector",
			What: "One train step on 8 images of 224x224x3; input tensors are made anew each step and left to the garbage " +
				"collector.", Expected: "a line or a saw-tooth", Model: "image-224", Steps: 160, Every: 2, Epoch: 20, Batch: 8},
			waiting, map[string]change{"close": {0, 0.55, 0.98, false, false}, "gc-step": {0, 0.57, 1.42, false, false},
				"gc-epoch": {0, 0.7, 1.04, false, false}, "gogc-20": {0.45, 0.9, 1.1, false, false},
				"buffers": {0, 0.52, 0.81, false, false}, "batch-half": {0.5, 0.7, 0.52, false, false}}},
		{matrix.Workload{ID: "W3", Title: "a new batch size each step",
			What: "Batch size drawn anew each step from 1..600, oneDNN on.", Expected: "a long ramp, then a plateau",
			Model: "digits-cnn", Steps: 1600, Every: 10, Epoch: 100, Batch: 600},
			same(course{kind: memory.Plateau, level: 330 * mib, rise: 260 * mib, peak: 90 * mib, time: 8e6}),
			map[string]change{"pad": {0, 0.7, 1.9, false, false}, "bucket": {0, 0.75, 1.2, false, false}}},
		{matrix.Workload{ID: "W4", Title: "model loaded anew each step",
			What:     "The image model is loaded anew each step, one train step on it; the session is dropped.",
			Expected: "a line without close; a plateau with it", Model: "image-224", Steps: 64, Every: 1, Epoch: 8, Batch: 8},
			same(course{kind: memory.Leak, level: 380 * mib, slope: 12.4 * mib, peak: 400 * mib, time: 410e6,
				cause: memlayer.Of[memory.Layer](memlayer.TFUsed, "mklcpu")}),
			map[string]change{"close-session": {0.93, 0.97, 1, false, false}, "close-all": {0.02, 0.61, 1.03, false, false},
				"reuse": {0, 0.58, 0.31, false, false}, "jemalloc": {1, 1.08, 0.94, false, false},
				"system-trim": {0.31, 0.5, 1.6, false, false}, "arenas-1": {1, 0.98, 1.24, false, false}}},
		{matrix.Workload{ID: "W8", Title: "bursts freed out of order",
			What:     "8 threads allocate 40 tensors each of 64-256 KiB, freed out of order.",
			Expected: "a ratchet with malloc in use flat", Steps: 640, Every: 5, Epoch: 40, Batch: 1},
			same(course{kind: memory.Leak, level: 60 * mib, slope: 210 * kib, peak: 50 * mib, time: 11e6,
				cause: memory.MallocFree, trim: 0.8}),
			map[string]change{"trim": {0, 0.5, 1.05, false, false}, "arenas-1": {0.05, 0.55, 1.9, false, false},
				"arenas-2": {0.4, 0.7, 1.4, false, false}, "jemalloc": {0, 0.45, 0.88, false, false},
				"tcmalloc": {1.6, 1.5, 0.85, false, false}}},
		{matrix.Workload{ID: "W10", Title: "outputs kept as history",
			What: "Every step's predictions are kept in a slice of the program.", Expected: "a line on the host heap",
			Steps: 800, Every: 5, Epoch: 50, Batch: 256},
			same(course{kind: memory.Leak, level: 310 * mib, slope: 40 * kib, peak: 60 * mib, time: 1.2e6,
				cause: "go heap live"}),
			map[string]change{"keep-last": {0, 0.85, 1, false, false}}},
		{matrix.Workload{ID: "S3", Title: "image training under a memory limit",
			What:     "224x224x3 images made by a generator each step, batch 32, Conv32-pool-Dense10.",
			Expected: "crash or not under a limit of 1.5 GiB", Model: "image-224", Steps: 80, Every: 1, Epoch: 10, Batch: 32,
			Limit: 3 << 29},
			map[string]course{matrix.Go: {kind: memory.Flat, level: 640 * mib, peak: 470 * mib, time: 140e6},
				matrix.Galeone: {kind: memlayer.Crash, level: 640 * mib, slope: 18 * mib, peak: 470 * mib, time: 230e6},
				matrix.Keras:   {kind: memlayer.Crash, level: 960 * mib, slope: 30 * mib, peak: 520 * mib, time: 240e6}},
			map[string]change{"buffers": {0, 0.6, 0.9, false, true}, "micro-4": {0.4, 0.48, 1.3, false, true},
				"micro-4-bf16": {0.3, 0.45, 1.04, false, true}, "bf16": {0.6, 0.7, 0.74, false, true},
				"pool-cap": {1, 0.7, 1, true, false}, "batch-half": {0.5, 0.66, 0.53, false, true}}},
	}
	var result matrix.Result
	for _, w := range workloads {
		w.Workload.Takes = map[string][]string{matrix.Go: {}, matrix.Galeone: {}, matrix.Keras: {}}
		result.Workloads = append(result.Workloads, w.Workload)
	}
	for _, line := range strings.Split(strings.TrimSpace(fixtureRemedies), "\n") {
		f := strings.Split(line, "|")
		m := matrix.Remedy{ID: f[0], Group: f[1], Goal: compare.Goal(f[2]), Title: f[3]}
		if len(f) > 4 {
			m.Runtimes = strings.Fields(f[4])
		}
		m.NeedsGPU = m.Group == "gpu"
		if strings.HasPrefix(m.ID, "batch") {
			m.Params = map[string]string{"batch_divide": "2"}
		}
		result.Remedies = append(result.Remedies, m)
	}
	start := time.Date(2026, 11, 20, 22, 4, 0, 0, time.UTC)
	result.Schema, result.Version, result.Complete = 1, "0.3.0", true
	result.Started, result.Ended = start, start.Add(3*time.Hour+12*time.Minute+40*time.Second)
	result.Environment = machine.Environment{OS: "linux", Arch: "amd64", Kernel: "6.1.0",
		CPU:   "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
		Cores: 2, Memory: 16 << 30, Go: "go1.26.0", TensorFlow: map[string]string{"go": "2.21.0", "galeone": "2.21.0",
			"keras": "2.21.0"},
		Keras: "3.15.0", Python: "3.12.4", GPUs: []string{},
		Variables: map[string]string{"TF_CPP_MIN_LOG_LEVEL": "2", "GOMAXPROCS": "2"}, LoadBefore: 0.08, LoadAfter: 1.1}
	result.Settings = matrix.Settings{Pairs: pairs, Seed: 1, Confidence: stats.Confidence, Timeout: 120}
	for _, runtime := range []string{matrix.Go, matrix.Galeone, matrix.Keras} {
		for _, w := range workloads {
			var base []compare.Outcome
			var baseIDs []int
			for _, m := range result.Remedies {
				c := matrix.Combination{Runtime: runtime, Workload: w.ID, Remedy: m.ID}
				if reason := fixtureAbsent(runtime, w.ID, m); reason != "" {
					c.Effect, c.Reason = compare.NotApplicable, reason
					if m.NeedsGPU || m.ID == "mimalloc" {
						c.Effect = compare.CouldNotApply
					}
					result.Combinations = append(result.Combinations, c)
					continue
				}
				var outcomes []compare.Outcome
				for pair := range pairs {
					run := fixtureRun(runtime, w, m.ID, pair, seed)
					run.ID = len(result.Runs) + 1
					run.Started = start.Add(time.Duration(run.ID) * 5 * time.Second)
					if run.Failure != "" {
						c.Crashes = append(c.Crashes, string(run.Failure)+": "+run.Cause)
					}
					c.Runs = append(c.Runs, run.ID)
					outcomes = append(outcomes, run.Outcome)
					result.Runs = append(result.Runs, run)
				}
				fixtureFigures(&c, result.Runs[len(result.Runs)-pairs:])
				if m.ID == matrix.Baseline {
					base, baseIDs = outcomes, c.Runs
					c.Reason = c.Verdict.String()
				} else {
					c.Base = baseIDs
					var list []compare.Pair
					for i := range outcomes {
						list = append(list, compare.Pair{Base: base[i], Remedy: outcomes[i]})
					}
					goal := m.Goal
					if base[0].Verdict.Kind == memory.Leak {
						goal = compare.LowerSlope
					} else if goal == compare.LowerSlope {
						goal = compare.LowerPeak
					}
					comparison := compare.Runs(list, goal, 1)
					c.Comparison, c.Effect, c.Reason = &comparison, comparison.Effect, comparison.Reason
				}
				result.Combinations = append(result.Combinations, c)
			}
		}
		result.Calibration = append(result.Calibration,
			matrix.Calibration{Runtime: runtime, Workload: "W0", OK: true,
				Kinds: []memory.Kind{memory.Flat, memory.Flat, memory.Flat},
				Slope: memory.Interval{Estimate: 0, Low: -12, High: 25}, Text: "a loop without a leak was called flat in 3 runs"},
			matrix.Calibration{Runtime: runtime, Workload: "W1", OK: true, Expected: 65536,
				Kinds: []memory.Kind{memory.Leak, memory.Leak, memory.Leak},
				Slope: memory.Interval{Estimate: 65561, Low: 65530, High: 65602},
				Text:  "a leak of 65536 B/step was measured as 65561 B/step [65530, 65602] in 3 runs"})
	}
	result.Claims = []matrix.Claim{
		{ID: "C2", Text: "intermediates of a step stay until they are released explicitly, more with larger batches",
			Says: "wrong for a compiled step: peak, not slope", Verdicts: []matrix.ClaimVerdict{
				{Runtime: "go", Verdict: "does not hold", Text: "W0 is flat at 410 MiB; with half the batch it is flat too",
					Combinations: []string{"W0/none", "W0/batch-half"}},
				{Runtime: "keras", Verdict: "does not hold", Text: "W0 is flat", Combinations: []string{"W0/none"}}}},
		{ID: "C3", Text: "the language's GC is out of step with TensorFlow's memory",
			Says: "right, and in Go it is the main cause (tensorflow#57356)", Verdicts: []matrix.ClaimVerdict{
				{Runtime: "go", Verdict: "holds in part", Text: "W2 is a saw-tooth 300 MiB deep and does not grow",
					Combinations: []string{"W2/none"}},
				{Runtime: "galeone", Verdict: "holds", Text: "W2 grows by 4.6 MiB per step; waiting native bytes carry it",
					Combinations: []string{"W2/none", "W2/close"}},
				{Runtime: "keras", Verdict: "does not hold", Text: "W2 is flat: CPython counts references",
					Combinations: []string{"W2/none"}}}},
		{ID: "C10", Text: "clear_session each epoch stops growth, at some cost in speed",
			Says: "folk for a live model; the cost is unmeasured", Verdicts: []matrix.ClaimVerdict{
				{Runtime: "keras", Verdict: "undecided", Text: "the interval of the ratio of slopes is [0.71, 1.3]",
					Combinations: []string{"W4/clear-session"}}},
			Needs: "a GPU: steadyfit matrix --workloads W4 --remedies clear-session"},
		{ID: "C12", Text: "LSTM and GRU layers keep previous computations", Says: "no evidence"},
		{ID: "C16", Text: "dynamic shapes fragment memory until an allocation fails though enough is free",
			Says: "right, device pools", Needs: "a GPU: steadyfit matrix --workloads W3 --remedies cuda-async"},
	}
	return &result
}

// fixtureRemedies has a line with the ID, group, goal, title and runtimes of each remedy.
const fixtureRemedies = `
none|baseline|slope|as it is
close|lifetimes|slope|close tensors when they are done with|go galeone
gc-epoch|lifetimes|slope|collect garbage after each epoch
gc-step|lifetimes|slope|collect garbage after each step
gogc-20|lifetimes|slope|GOGC=20|go galeone
batch-half|data|peak|half the batch
micro-4|data|peak|4 micro-batches, same update|go galeone
buffers|data|slope|one input buffer, used again
prefetch-1|data|slope|prefetch 1 batch
prefetch-16|data|slope|prefetch 16 batches
pad|data|slope|pad shapes to the largest
bucket|data|slope|round shapes up to powers of two
keep-last|data|slope|keep only the last outputs
close-session|session|slope|close the session only|go galeone
close-all|session|slope|close session, graph and buffers|go galeone
reuse|session|slope|load once, use again
trim|allocator|slope|malloc_trim each epoch
arenas-1|allocator|slope|MALLOC_ARENA_MAX=1
arenas-2|allocator|slope|MALLOC_ARENA_MAX=2
jemalloc|allocator|slope|jemalloc
tcmalloc|allocator|slope|tcmalloc
mimalloc|allocator|slope|mimalloc
system-trim|combination|reset|system allocator, malloc_trim each epoch
pool-cap|allocator|peak|TF_MKL_ALLOC_MAX_BYTES of 300 MB
xla|runtime|peak|XLA for the whole graph|go galeone
bf16|precision|peak|bfloat16 by rewriting the graph
micro-4-bf16|combination|peak|4 micro-batches in bfloat16|go galeone
memory-growth|gpu|peak|allow_growth
clear-session|keras|slope|clear_session each epoch|keras
eager|keras|peak|run_functions_eagerly|keras
`

func fixtureAbsent(runtime, workload string, m matrix.Remedy) string {
	only := map[string][]string{"close": {"W1", "W2"}, "buffers": {"W2", "S3"}, "pad": {"W3"}, "bucket": {"W3"},
		"keep-last":     {"W10"},
		"close-session": {"W4"}, "close-all": {"W4"}, "reuse": {"W4"}, "micro-4": {"W0", "S3"}, "micro-4-bf16": {"W0", "S3"},
		"batch-half": {"W0", "W2", "S3"}}
	switch list, ok := only[m.ID]; {
	case m.NeedsGPU:
		return "no GPU"
	case m.ID == "mimalloc":
		return "libmimalloc.so.2 was not found in /usr/lib; apt-get install libmimalloc2.0"
	case len(m.Runtimes) > 0 && !slices.Contains(m.Runtimes, runtime):
		return "it makes no sense on " + runtime
	case ok && !slices.Contains(list, workload):
		return workload + " has nothing that it could change"
	}
	return ""
}

// judged caches series and verdicts, because a verdict takes several milliseconds.
var judged = struct {
	m map[string]*memory.Series
	v map[string]memory.Verdict
}{m: map[string]*memory.Series{}, v: map[string]memory.Verdict{}}

func fixtureRun(runtime string, w fixtureWorkload, remedy string, pair int, seed uint64) matrix.RunResult {
	c := w.course[runtime]
	d, ok := w.changes[remedy]
	if !ok {
		d = change{slope: 1, peak: 1, time: 1}
		switch remedy { // remedies that cost time or memory on every workload
		case "gc-step":
			d.time = 1.35
		case "eager":
			d.peak, d.time = 1.3, 4.1
		case "xla":
			d.peak, d.time = 1.15, 1.6
		}
	}
	switch {
	case d.crashes:
		c.kind, c.slope = memlayer.Crash, max(c.slope, 18*mib)
	case d.lives && c.kind == memlayer.Crash:
		c.kind = memory.Flat
	case d.slope == 0 && c.kind == memory.Leak:
		c.kind = memory.Flat
	}
	c.slope *= d.slope
	c.rise *= d.slope
	hash := fnv.New64a()
	fmt.Fprint(hash, runtime, w.ID, remedy, pair, seed)
	random := rand.New(rand.NewPCG(hash.Sum64(), 2))
	course := pair
	if d != (change{slope: 1, peak: 1, time: 1}) {
		course += 100
	}
	jitter := func(v, share float64) int64 { return int64(v * (1 + share*random.NormFloat64())) }
	run := matrix.RunResult{Runtime: runtime, Workload: w.ID, Remedy: remedy, Pair: pair,
		Key:   fmt.Sprintf("%016x", hash.Sum64()),
		Facts: map[string]string{"allocator": "glibc 2.36"}}
	series, verdict := fixtureSeries(c, w.Workload, seed*1000+uint64(course))
	run.Series = series
	run.Outcome = compare.Of(series, verdict)
	run.Outcome.StepTime = memory.Known(memory.Bytes(jitter(c.time*d.time, 0.01)))
	end := series.Max(memory.Anon)
	run.Outcome.Peak = memory.Known(memory.Bytes(jitter((float64(end.Bytes)+c.peak)*d.peak, 0.005)))
	run.Seconds = c.time * d.time * float64(w.Steps) / 1e9
	samples := series.Samples()
	last := samples[len(samples)-1].Get(memory.Anon).Bytes
	phase := func(v float64) memory.Sample {
		var s memory.Sample
		s.At = time.Unix(1_700_000_000, 0).UTC()
		s.Set(memory.Anon, memory.Known(memory.Bytes(v)))
		s.Set(memory.RSS, memory.Known(memory.Bytes(v+180*mib)))
		s.Set("pss", memory.Reading{})
		return s
	}
	run.Phases = map[string]memory.Sample{"start": phase(3 * mib), "library": phase(60 * mib),
		"loaded": phase(c.level * 0.6), "first": phase(c.level)}
	if c.kind == memlayer.Crash {
		run.Failure, run.Cause = "failed", "killed by SIGKILL: memory limit of 1.5 GiB"
		if remedy == "pool-cap" {
			run.Failure, run.Cause = "out of memory", "RESOURCE_EXHAUSTED: OOM when allocating tensor with shape[32,222,222,32]"
		}
		run.Outcome = compare.Outcome{Verdict: compare.Crashed(run.Cause), StepTime: run.Outcome.StepTime}
		run.Log = "2026-11-20 22:04:11: W tensorflow/core/framework/op_kernel.cc: OOM when allocating " +
			"</script><script>alert(1)</script>"
		return run
	}
	run.Phases["steady"] = phase(float64(last))
	run.Phases["closed"] = phase(float64(last) * 0.97)
	trimmed := float64(last) * (1 - c.trim) * 0.96
	if c.trim == 0 {
		trimmed = float64(last) * 0.95
	}
	run.Phases["trimmed"] = phase(trimmed)
	if runtime == matrix.Go {
		traced := memory.Sample{}
		traced.Set(memlayer.Of[memory.Layer](memlayer.TFPeak, "mklcpu"), memory.Known(123*memory.MiB))
		run.Phases["traced"] = traced
	}
	closed := run.Phases["closed"]
	run.Outcome.Reset = closed.Get(memory.Anon)
	if runtime == matrix.Keras && w.ID == "W0" {
		delete(run.Phases, "library") // like a runtime that does not report it
		s := run.Phases["trimmed"]
		s.Set(memory.Anon, memory.Reading{})
		run.Phases["trimmed"] = s
	}
	return run
}

func fixtureSeries(c course, w matrix.Workload, seed uint64) (*memory.Series, memory.Verdict) {
	key := fmt.Sprintf("%+v %d %d %d", c, w.Steps, w.Every, seed)
	if s, ok := judged.m[key]; ok {
		return s, judged.v[key]
	}
	random := rand.New(rand.NewPCG(seed, 7))
	s := &memory.Series{}
	var sample memory.Sample
	start := time.Unix(1_700_000_000, 0).UTC()
	n := w.Steps / w.Every
	if c.kind == memlayer.Crash {
		n = n * 3 / 5
	}
	offset := 2 * mib * random.Float64()
	for i := range n {
		step := float64((i + 1) * w.Every)
		grown := 0.0
		switch c.kind {
		case memory.Leak, memlayer.Crash:
			grown = c.slope * step
		case memory.Plateau:
			grown = c.rise * (1 - math.Exp(-step/(float64(w.Steps)/8)))
		case memory.Sawtooth:
			grown = c.rise * math.Mod(step/float64(w.Epoch)*1.3, 1)
		}
		held := c.level + offset + grown + 24*kib*random.NormFloat64()
		sample.Step, sample.At = int(step), start.Add(time.Duration(step*c.time))
		set := func(l memory.Layer, v float64) { sample.Set(l, memory.Known(memory.Bytes(4096*math.Round(v/4096)))) }
		set(memory.Anon, held)
		set(memory.RSS, held+180*mib)
		set(memory.MallocUsed, c.level*0.7)
		set(memlayer.GoHeap, 4*mib)
		sample.Set(memlayer.GPUUsed, memory.Reading{})
		if c.cause != "" {
			carried := grown
			if c.cause == "go heap live" {
				set(memlayer.GoHeap, 4*mib+grown)
			} else if c.cause != memory.MallocFree {
				set(memory.MallocUsed, c.level*0.7+grown)
			}
			set(c.cause, 1*mib+carried)
		}
		sample.Set(memlayer.StepTime, memory.Known(memory.Bytes(c.time*(1+0.02*random.NormFloat64()))))
		s.Append(&sample)
	}
	v := compare.Crashed("")
	if c.kind != memlayer.Crash {
		v = s.Judge(memory.Criteria{Budget: 2048})
	}
	if c.trim > 0 {
		v.Notes = append(v.Notes, "trimming gave 110.0 MiB back, of 131.0 MiB grown: freed memory was kept")
	}
	judged.m[key], judged.v[key] = s, v
	return s, v
}

func fixtureFigures(c *matrix.Combination, runs []matrix.RunResult) {
	var slopes, seconds []float64
	var alive []*matrix.RunResult
	for i := range runs {
		if runs[i].Failure == "" {
			alive = append(alive, &runs[i])
			slopes = append(slopes, runs[i].Outcome.Verdict.Slope.Estimate)
			seconds = append(seconds, runs[i].Seconds)
		}
	}
	if len(alive) == 0 {
		c.Verdict = &runs[0].Outcome.Verdict
		return
	}
	slices.SortStableFunc(alive, func(a, b *matrix.RunResult) int {
		return int(math.Copysign(1, a.Outcome.Verdict.Slope.Estimate-b.Outcome.Verdict.Slope.Estimate))
	})
	middle := alive[(len(alive)-1)/2]
	c.Verdict = &middle.Outcome.Verdict
	slices.Sort(slopes)
	c.Figures.Slope = memory.Interval{Estimate: slopes[len(slopes)/2], Low: slopes[0], High: slopes[len(slopes)-1]}
	c.Figures.Seconds = seconds[0]
	amount := func(get func(*matrix.RunResult) memory.Reading) *int64 {
		if r := get(middle); r.OK {
			return i64(int64(r.Bytes))
		}
		return nil
	}
	phase := func(name string) *int64 {
		return amount(func(r *matrix.RunResult) memory.Reading { s := r.Phases[name]; return s.Get(memory.Anon) })
	}
	c.Figures.Peak = amount(func(r *matrix.RunResult) memory.Reading { return r.Outcome.Peak })
	c.Figures.StepTime = amount(func(r *matrix.RunResult) memory.Reading { return r.Outcome.StepTime })
	c.Figures.Pool = amount(func(r *matrix.RunResult) memory.Reading {
		s := r.Phases["traced"]
		return s.Get(memlayer.Of[memory.Layer](memlayer.TFPeak, "mklcpu"))
	})
	c.Figures.Loaded, c.Figures.Level, c.Figures.Closed, c.Figures.Trimmed = phase("loaded"), phase("steady"),
		phase("closed"), phase("trimmed")
}
