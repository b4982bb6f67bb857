package matrix

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// variant describes runs of a fixture, which differ from each other by one percent. Sizes are in
// MiB, slopes in KiB per step, times in milliseconds. A field that is 0 has a default.
type variant struct {
	name  string // "W2/gc-step", or "W2" for the workload as it is
	kind  memory.Kind
	cause string
	slope float64
	peak  float64
	step  float64
	// rough is a scatter of slope, peak, time, added memory and loss that is too wide for any
	// comparison.
	rough float64
	// These are the levels of memory after loading, at the first step, at the last step, and after
	// closing. The default of first is steady.
	loaded, first, steady, closed float64
	loss                          float64
	// gpu is the GPU memory of the process, and pool the part that TensorFlow's allocators handed
	// out.
	gpu, pool float64
	// cpuPool is the memory that TensorFlow's pool handed out on the CPU.
	cpuPool float64
	failure worker.Failure
	died    string // cause of the crash
	stepped bool   // crashed after the first step
	// epochEnds is the time of every tenth sample, in milliseconds.
	epochEnds  float64
	unverified string
	pairs      int
	// seconds is the time of a run. Losses of different runs scatter unless repeats is set.
	seconds float64
	repeats bool
}

const flat, leak = memory.Flat, memory.Leak

func or(v, otherwise float64) float64 {
	if v == 0 {
		return otherwise
	}
	return v
}

func mebi(v float64) memory.Reading { return memory.Known(memory.Bytes(v * (1 << 20))) }

func (a variant) runs(runtime string) (runs []RunResult) {
	workload, remedy, ok := strings.Cut(a.name, "/")
	if !ok {
		remedy = Baseline
	}
	if a.kind == "" {
		a.kind = flat
	}
	if a.pairs == 0 {
		a.pairs = 5
	}
	for pair := range a.pairs {
		scatter := 1 + 0.01*float64(pair%3-1)
		if a.rough > 0 {
			scatter = 1 + a.rough*float64(2*(pair%2)-1)
		}
		slope := a.slope * 1024 * scatter
		run := RunResult{Runtime: runtime, Workload: workload, Remedy: remedy, Pair: pair, Failure: a.failure, Cause: a.died,
			Unverified: a.unverified, Seconds: a.seconds, Phases: map[string]memory.Sample{}, Facts: map[string]string{},
			Series: &memory.Series{}}
		run.Outcome = compare.Outcome{
			Verdict: memory.Verdict{Kind: a.kind, Layer: memory.Anon, Per: memlayer.PerStep, Cause: a.cause,
				Slope: memory.Interval{Estimate: slope, Low: slope - 10, High: slope + 10}},
			Peak: mebi(or(a.peak, 1000) * scatter), StepTime: memory.Known(memory.Bytes(or(a.step, 10) * 1e6 * scatter)),
		}
		if a.failure != "" {
			run.Outcome.Verdict = compare.Crashed(string(a.failure) + ": " + a.died)
		}
		phase := func(name string, values ...memory.Value) {
			var s memory.Sample
			for _, v := range values {
				s.Set(v.Layer, v.Reading)
			}
			run.Phases[name] = s
		}
		if a.failure == "" || a.stepped {
			phase(worker.PhaseFirst)
		}
		if a.loaded > 0 {
			phase(worker.PhaseLoaded, memory.Value{Layer: memory.Anon, Reading: mebi(a.loaded)})
			phase(worker.PhaseFirst, memory.Value{Layer: memory.Anon, Reading: mebi(or(a.first, a.steady))})
			phase(worker.PhaseSteady, memory.Value{Layer: memory.Anon, Reading: mebi(a.loaded + (a.steady-a.loaded)*scatter)})
			phase(worker.PhaseClosed, memory.Value{Layer: memory.Anon, Reading: mebi(a.closed)})
		}
		if a.pool > 0 {
			phase(worker.PhaseTraced, memory.Value{Layer: memlayer.Of[memory.Layer](memlayer.TFPeak, "GPU_0_bfc"),
				Reading: mebi(a.pool * scatter)})
		}
		if a.loss != 0 {
			run.Facts["loss_first"] = "2"
			run.Facts["loss_last"] = strconv.FormatFloat(a.loss*scatter, 'g', -1, 64)
			if a.repeats {
				run.Facts["loss_last"] = strconv.FormatFloat(a.loss, 'g', -1, 64)
			}
		}
		for i := range 20 {
			s := memory.Sample{Step: i + 1, At: time.Unix(int64(i), 0)}
			if a.gpu > 0 {
				s.Set(memlayer.GPUProcess, mebi(a.gpu))
			}
			if a.epochEnds > 0 {
				t := or(a.step, 10)
				if i%10 == 9 {
					t = a.epochEnds
				}
				s.Set(memlayer.StepTime, memory.Known(memory.Bytes(t*1e6)))
			}
			run.Series.Append(&s)
		}
		if a.epochEnds > 0 {
			run.Outcome.StepTime = compare.Of(run.Series, run.Outcome.Verdict).StepTime
		}
		runs = append(runs, run)
	}
	return runs
}

// made returns a result of one runtime.
func made(runtime string, gpus []string, variants ...variant) *Result {
	r := &Result{Environment: machine.Environment{GPUs: gpus}, Settings: Settings{Seed: 1}}
	base := map[string][]RunResult{}
	for _, a := range variants {
		if !strings.Contains(a.name, "/") {
			base[a.name] = a.runs(runtime)
		}
	}
	for _, a := range variants {
		runs := a.runs(runtime)
		c := Combination{Runtime: runtime, Workload: runs[0].Workload, Remedy: runs[0].Remedy,
			Verdict: &runs[0].Outcome.Verdict, Unverified: a.unverified}
		c.Verdict = &runs[len(runs)/2].Outcome.Verdict
		number := func(v float64) *int64 {
			if v == 0 {
				return nil
			}
			n := int64(v * (1 << 20))
			return &n
		}
		c.Figures = Figures{Loaded: number(a.loaded), Level: number(a.steady), Closed: number(a.closed), GPU: number(a.gpu),
			GPUPool: number(a.pool), Pool: number(a.cpuPool)}
		if c.Remedy != Baseline {
			divided := 1
			if remedy, err := FindRemedy(c.Remedy); err == nil {
				divided = remedy.dividesBatch()
			}
			var pairs []compare.Pair
			for i, b := range base[c.Workload] {
				if i < len(runs) {
					pairs = append(pairs, compare.Pair{Base: b.Outcome, Remedy: runs[i].Outcome})
					pairs[i].Remedy.Verdict = perSample(pairs[i].Remedy.Verdict, divided)
				}
			}
			if len(pairs) >= 2 {
				comparison := compare.Runs(pairs, compare.LowerPeak, 1)
				c.Comparison = &comparison
			}
		}
		r.Combinations = append(r.Combinations, c)
		r.Runs = append(r.Runs, runs...)
	}
	for i := range r.Runs {
		r.Runs[i].ID = i
	}
	return r
}

func TestClaims(t *testing.T) {
	importError := "exit status 1: ModuleNotFoundError: No module named 'keras'"
	gpuOOM := "OOM when allocating tensor by allocator GPU_0_bfc"
	gpu := []string{"a GPU"}
	for _, test := range []struct {
		claim, name, runtime string
		gpus                 []string
		variants             []variant
		want                 string // "" means no verdict
		says                 string
	}{
		{"C1", "the whole set dies", Go, nil, []variant{{name: "S0", failure: worker.OutOfMemory,
			died: "killed by the kernel"}, {name: "S0/stream"}}, holdsInPart,
			"S0/stream: 0 of 5 runs ran out of memory. The peak is shown on S0 alone. The crash is shown on S0 alone"},
		{"C1", "both die", Go, nil, []variant{{name: "S0", failure: worker.OutOfMemory},
			{name: "S0/stream", failure: worker.OutOfMemory}}, doesNotHold, ""},
		{"C1", "another death", Go, nil, []variant{{name: "S0", failure: worker.Failed, died: importError},
			{name: "S0/stream"}}, undecided, ""},
		{"C1", "a peak, no growth", Go, nil, []variant{{name: "S0"}, {name: "S0/stream", peak: 500}}, holdsInPart,
			"None of the runs ran out of memory"},
		{"C1", "growth that stops is no crash", Go, nil,
			[]variant{{name: "S0", kind: leak, slope: 100}, {name: "S0/stream", peak: 500, slope: 0.1}}, holdsInPart,
			"None of the runs ran out of memory"},
		{"C1", "growth that may be the collector's lag", Galeone, nil,
			[]variant{{name: "S0", kind: leak, slope: 100, cause: memlayer.GCLag}, {name: "S0/stream", peak: 300, slope: 0.1}},
			undecided, "with what waits for the garbage collector in it"},
		{"C1", "growth that is the collector's lag", Galeone, nil,
			[]variant{{name: "S0", kind: leak, slope: 100}, {name: "S0/gc-step"}, {name: "S0/stream", peak: 300, slope: 0.1}},
			holdsInPart, "S0/stream against S0/gc-step: peak x0.30"},
		{"C1", "lag that kills", Galeone, nil, []variant{{name: "S0", failure: worker.OutOfMemory, stepped: true},
			{name: "S0/stream"}}, undecided, "gc-step was not run"},
		{"C1", "the collector saves it", Galeone, nil, []variant{{name: "S0", failure: worker.OutOfMemory, stepped: true},
			{name: "S0/gc-step"}, {name: "S0/stream"}}, doesNotHold, ""},
		{"C1", "the same peak", Go, nil, []variant{{name: "S0"}, {name: "S0/stream", peak: 1010}}, doesNotHold,
			"S0/stream against S0 as it is: peak x1.01"},
		{"C1", "an unclear peak", Go, nil, []variant{{name: "S0"}, {name: "S0/stream", rough: 0.6}}, undecided,
			"The peak is not decided"},
		{"C1", "an array in memory is no stream", Keras, nil, []variant{{name: "S0"}, {name: "S0/tf-data", peak: 1500}}, "",
			""},

		{"C2", "flat", Go, nil, []variant{{name: "W0"}, {name: "W0/batch-half", peak: 700}, {name: "S1"}}, doesNotHold,
			"W0/batch-half against W0 as it is: peak x0.70"},
		{"C2", "grows with the batch", Keras, nil, []variant{{name: "W0", kind: leak, slope: 100},
			{name: "W0/batch-half", kind: leak, slope: 50}, {name: "S2", kind: leak, slope: 100},
			{name: "S2/batch-half", kind: leak, slope: 50}}, holds, "slope per sample x1.00"},
		{"C2", "grows with the batch, on one workload", Keras, nil,
			[]variant{{name: "W0", kind: leak, slope: 100}, {name: "W0/batch-half", kind: leak, slope: 50}}, holdsInPart,
			"It is shown on W0 alone"},
		{"C2", "one grows with the batch", Keras, nil, []variant{{name: "W0", kind: leak, slope: 100},
			{name: "W0/batch-half", kind: leak, slope: 50}, {name: "S1"}}, holdsInPart, ""},
		{"C2", "grows whatever the batch", Keras, nil, []variant{{name: "W0", kind: leak, slope: 100},
			{name: "W0/batch-half", kind: leak, slope: 100}}, doesNotHold, ""},
		{"C2", "grows, and no more is known", Keras, nil, []variant{{name: "W0", kind: leak, slope: 100}}, undecided, ""},
		{"C2", "finalizers lag", Galeone, nil, []variant{{name: "S1", kind: leak, slope: 100},
			{name: "S1/batch-half", kind: leak, slope: 50}}, undecided, "may only wait for"},
		{"C2", "collected, it is flat", Galeone, nil, []variant{{name: "S1", kind: leak, slope: 100}, {name: "S1/gc-step"}},
			doesNotHold, "S1/gc-step: flat"},
		{"C2", "an import error", Keras, nil, []variant{{name: "W0", failure: worker.Failed, died: importError}}, undecided,
			"ModuleNotFoundError"},
		{"C2", "the collector is late", Go, nil, []variant{{name: "S1", kind: leak, slope: 100, cause: memlayer.GCLag}},
			doesNotHold, "only waits for"},

		{"C3", "a saw-tooth of unknown origin", Keras, nil, []variant{{name: "W2", kind: memory.Sawtooth}}, undecided,
			"sawtooth"},
		{"C3", "a saw-tooth that collecting keeps down", Keras, nil,
			[]variant{{name: "W2", kind: memory.Sawtooth}, {name: "W2/gc-step", peak: 500}}, holdsInPart,
			"peak x0.50 [0.50, 0.50]. It is shown on W2 alone"},
		{"C3", "a saw-tooth that collecting leaves as it is", Keras, nil,
			[]variant{{name: "W2", kind: memory.Sawtooth}, {name: "W2/gc-epoch"}}, doesNotHold, ""},
		{"C3", "collecting stops it", Galeone, nil, []variant{{name: "W2", kind: leak, slope: 100},
			{name: "W2/gc-step", slope: 0.1}}, holdsInPart, "It is shown on W2 alone"},
		{"C3", "collecting stops it everywhere", Galeone, nil,
			[]variant{{name: "W2", kind: leak, slope: 100}, {name: "W2/gc-step", slope: 0.1},
				{name: "S1", kind: leak, slope: 100}, {name: "S1/gc-step", slope: 0.1}}, holds, ""},
		{"C3", "waiting objects", Galeone, nil, []variant{{name: "W2", kind: leak, slope: 100, cause: memlayer.GCLag}},
			holdsInPart, ""},
		{"C3", "collecting helps some", Galeone, nil, []variant{{name: "W2", kind: leak, slope: 100},
			{name: "W2/gc-step", kind: leak, slope: 60}}, holdsInPart, ""},
		{"C3", "not the collector's", Go, nil, []variant{{name: "W2", kind: leak, slope: 100, cause: memlayer.Unreleased},
			{name: "W2/gc-step", kind: leak, slope: 100}}, doesNotHold, "not the collector's to free"},
		{"C3", "flat", Keras, nil, []variant{{name: "W2"}}, doesNotHold, ""},
		{"C3", "a leak and no more", Go, nil, []variant{{name: "W2", kind: leak, slope: 100}}, undecided, ""},

		{"C4", "a lower peak", Go, nil, []variant{{name: "S3"}, {name: "S3/prefetch-16", peak: 800}, {name: "S1"},
			{name: "S1/prefetch-16", peak: 800}}, holds, ""},
		{"C4", "a lower peak of one workload", Go, nil, []variant{{name: "S3"}, {name: "S3/prefetch-16", peak: 800}},
			holdsInPart, "It is shown on S3 alone"},
		{"C4", "a lower peak beside an unclear one", Go, nil,
			[]variant{{name: "S3"}, {name: "S3/prefetch-16", peak: 800}, {name: "S1"}, {name: "S1/prefetch-16", peak: 800},
				{name: "S2"}, {name: "S2/prefetch-16", rough: 0.6}}, holdsInPart, "Not decided by 1 of 3 measurements"},
		{"C4", "a higher peak", Go, nil, []variant{{name: "S3"}, {name: "S3/prefetch-16", peak: 1200}}, doesNotHold, ""},
		{"C4", "growth goes before the peak", Go, nil, []variant{{name: "S3", kind: leak, slope: 100},
			{name: "S3/prefetch-16", kind: leak, slope: 100, peak: 800}}, doesNotHold, "slope x1.00"},
		{"C4", "once lower, once not", Go, nil, []variant{{name: "S3"}, {name: "S3/prefetch-1", peak: 800},
			{name: "S3/prefetch-16", peak: 1200}}, holdsInPart, ""},
		{"C4", "unclear", Go, nil, []variant{{name: "S3"}, {name: "S3/prefetch-16", rough: 0.6}}, undecided, ""},
		{"C4", "unclear beside a higher peak", Go, nil, []variant{{name: "S3"}, {name: "S3/prefetch-1", rough: 0.6},
			{name: "S3/prefetch-16", peak: 1200}}, undecided, "Not decided by 1 of 2 measurements"},
		{"C4", "unclear beside higher peaks", Go, nil, []variant{{name: "S3"}, {name: "S3/prefetch-1", rough: 0.6},
			{name: "S3/prefetch-4", peak: 1100}, {name: "S3/prefetch-16", peak: 1200}}, doesNotHold,
			"Not decided by 1 of 3 measurements"},
		{"C4", "tf.data's effect is not prefetch's", Keras, nil,
			[]variant{{name: "S1"}, {name: "S1/tf-data", peak: 500}, {name: "S1/prefetch-auto", peak: 500}}, doesNotHold,
			"S1/prefetch-auto against S1/tf-data: peak x1.00"},
		{"C4", "without tf.data alone it cannot be told", Keras, nil,
			[]variant{{name: "S1"}, {name: "S1/prefetch-auto", peak: 500}}, "", ""},

		{"C5", "a jump, then flat", Go, nil, []variant{{name: "S1", loaded: 100, steady: 150},
			{name: "S1d", loaded: 100, steady: 150}}, holds, "50% of what was there"},
		{"C5", "no jump with the first step", Go, nil, []variant{{name: "S1", loaded: 100, first: 102, steady: 150},
			{name: "S1d", loaded: 100, first: 102, steady: 150}}, holdsInPart, "2% of what was there"},
		{"C5", "one jump", Go, nil, []variant{{name: "S1", loaded: 100, steady: 150}}, holdsInPart,
			"The jump is shown on S1 alone"},
		{"C5", "two jumps, of which one may go on", Go, nil,
			[]variant{{name: "S1", loaded: 100, steady: 150},
				{name: "S1d", kind: memory.Inconclusive, loaded: 100, steady: 150}}, holdsInPart,
			"Not decided by 1 of 2 measurements"},
		{"C5", "no jump", Go, nil, []variant{{name: "S1", loaded: 100, steady: 100}}, holdsInPart, ""},
		{"C5", "a leak", Go, nil, []variant{{name: "S1", kind: leak, slope: 10, loaded: 100, steady: 150}}, doesNotHold, ""},
		{"C5", "not decided", Go, nil, []variant{{name: "S1", kind: memory.Inconclusive, loaded: 100, steady: 150}},
			undecided, "Whether it is stable is not decided"},

		{"C6", "both", Go, nil, jumps(110, 200, 150, 260), holdsInPart, "the width of the inputs, the batch, the dropout"},
		{"C6", "XLA alone", Go, nil, jumps(150, 150, 220, 220), holdsInPart, "S1/xla against S1 as it is: jump"},
		{"C6", "the model alone", Go, nil, jumps(110, 200, 110, 200), holdsInPart, ""},
		{"C6", "neither", Go, nil, jumps(150, 150, 150, 150), doesNotHold, ""},
		{"C6", "larger by a byte", Go, nil, jumps(150, 150.00001, 150, 150), doesNotHold, ""},
		{"C6", "the model scatters", Go, nil, append(jumps(150, 150, 150, 150)[1:],
			variant{name: "S1", loaded: 100, steady: 150, rough: 0.8}), undecided, "The size of the model is not decided"},
		{"C6", "XLA scatters", Go, nil, append(jumps(110, 200, 0, 0)[:2],
			variant{name: "S1/xla", loaded: 100, steady: 110, rough: 0.8}), holdsInPart, "XLA is not decided"},
		{"C6", "without XLA", Go, nil, jumps(110, 200, 0, 0)[:2], holdsInPart, "XLA was not part of this matrix"},
		{"C6", "no larger, and without XLA", Go, nil, jumps(150, 150, 0, 0)[:2], "", ""},

		{"C7", "closing frees", Go, nil, []variant{{name: "S3", loaded: 400, steady: 1000, closed: 420},
			{name: "W2/close", loaded: 400, steady: 1000, closed: 420}}, holds, "3% [3 to 3]"},
		{"C7", "closing frees on one workload", Go, nil, []variant{{name: "S3", loaded: 400, steady: 1000, closed: 420}},
			holdsInPart, "It is shown on S3 alone"},
		{"C7", "closing frees nothing", Go, nil, []variant{{name: "S3", loaded: 400, steady: 1000, closed: 990,
			cpuPool: 500}}, holdsInPart, "when the process ends"},
		{"C7", "never kept", Go, nil, []variant{{name: "S3", loaded: 400, steady: 402, closed: 400, cpuPool: 500}},
			doesNotHold, ""},
		{"C7", "a fifth is left, more or less", Go, nil,
			[]variant{{name: "S3", loaded: 400, steady: 1000, closed: 520, rough: 0.5}}, undecided, ""},
		{"C7", "sessions left open on purpose say nothing", Go, nil,
			[]variant{{name: "W4", kind: leak, loaded: 100, steady: 500, closed: 500},
				{name: "W2", kind: leak, loaded: 100, steady: 500, closed: 500}}, "", ""},

		{"C8", "flat", Keras, nil, []variant{{name: "S1"}, {name: "S2"}}, doesNotHold, ""},
		{"C8", "leaks", Keras, nil, []variant{{name: "S1", kind: leak, slope: 10}, {name: "S2", kind: leak, slope: 10}},
			holds, ""},
		{"C8", "a leak", Keras, nil, []variant{{name: "S1", kind: leak, slope: 10}}, holdsInPart,
			"The growth is shown on S1 alone"},
		{"C8", "growth that ends with a collection", Galeone, nil,
			[]variant{{name: "S1", kind: leak, slope: 100, cause: memlayer.GCLag, seconds: 12}, {name: "S1/gc-step"},
				{name: "S2", kind: leak, slope: 100, seconds: 12}, {name: "S2/gc-step"}}, holdsInPart,
			"the runs took at most 12 s, and Go may wait 120 s for a collection. S1/gc-step: flat"},
		{"C8", "growth that may end with a collection", Galeone, nil,
			[]variant{{name: "S1", kind: leak, slope: 100, cause: memlayer.GCLag, seconds: 12},
				{name: "S2", kind: leak, slope: 100, seconds: 12}}, undecided, "That it has no end is not decided"},
		{"C8", "growth that no collection ends", Galeone, nil,
			[]variant{{name: "S1", kind: leak, slope: 100, seconds: 12}, {name: "S1/gc-step", kind: leak, slope: 100},
				{name: "S2", kind: leak, slope: 100}, {name: "S2/gc-step", kind: leak, slope: 100}}, holds, ""},
		{"C8", "waiting objects", Go, nil, []variant{{name: "S1", kind: leak, slope: 100, cause: memlayer.GCLag},
			{name: "S2", kind: leak, slope: 100, cause: memlayer.GCLag}}, holdsInPart,
			"which only waits for the garbage collector"},
		{"C8", "one of two", Keras, nil, []variant{{name: "S1", kind: leak, slope: 10}, {name: "S2"}}, holdsInPart, ""},
		{"C8", "an import error", Keras, nil, []variant{{name: "S1", failure: worker.Failed, died: importError}}, undecided,
			""},
		{"C8", "a hang beside what is flat", Keras, nil,
			[]variant{{name: "S1", failure: worker.Failed, died: "hang: no message for 2m0s"}, {name: "S2"}}, undecided, ""},
		{"C8", "a hang beside what is flat twice", Keras, nil,
			[]variant{{name: "S1", failure: worker.Failed, died: "hang: no message for 2m0s"}, {name: "S1d"}, {name: "S2"}},
			doesNotHold, ""},
		{"C8", "out of memory later on", Keras, nil, []variant{{name: "S1", failure: worker.OutOfMemory,
			died: "killed by the kernel", stepped: true}}, holdsInPart, "S1 alone"},
		{"C8", "out of memory at once", Keras, nil, []variant{{name: "S1", failure: worker.OutOfMemory,
			died: "killed by the kernel"}}, undecided, "no growth"},
		{"C8", "malloc fails under a limit", Keras, nil,
			[]variant{{name: "S1", failure: worker.Failed, died: "killed by signal aborted under a data limit of 768.0 MiB: " +
				"what(): std::bad_alloc", stepped: true}}, holdsInPart, "S1 alone"},

		{"C9", "the loop itself helps, del does not", Keras, nil,
			[]variant{{name: "S1", kind: leak, slope: 100}, {name: "S1/own-loop", peak: 500},
				{name: "S1/own-loop-del", peak: 500}}, doesNotHold, "S1/own-loop-del against S1/own-loop: peak x1.00"},
		{"C9", "del stops it", Keras, nil, []variant{{name: "S1"}, {name: "S1/own-loop", kind: leak, slope: 100},
			{name: "S1/own-loop-del", slope: 0.1}, {name: "S2"}, {name: "S2/own-loop", kind: leak, slope: 100},
			{name: "S2/own-loop-del", slope: 0.1}}, holds, ""},
		{"C9", "del stops half", Keras, nil, []variant{{name: "S1"}, {name: "S1/own-loop", kind: leak, slope: 100},
			{name: "S1/own-loop-del", kind: leak, slope: 50}}, holdsInPart, ""},
		{"C9", "del lowers a peak", Keras, nil, []variant{{name: "S1"}, {name: "S1/own-loop"},
			{name: "S1/own-loop-del", peak: 700}}, holdsInPart, "does not grow"},
		{"C9", "unclear", Keras, nil, []variant{{name: "S1"}, {name: "S1/own-loop"}, {name: "S1/own-loop-del", rough: 0.6}},
			undecided, ""},
		{"C9", "without the loop alone", Keras, nil, []variant{{name: "S1"}, {name: "S1/own-loop-del", peak: 500}}, "", ""},

		{"C10", "stops, at a cost", Keras, nil, []variant{{name: "W4", kind: leak, slope: 100},
			{name: "W4/clear-session", slope: 0.1, step: 15}, {name: "W5", kind: leak, slope: 100},
			{name: "W5/clear-session", slope: 0.1, step: 15}}, holds, "time of a step x1.50"},
		{"C10", "stops on one workload, at a cost", Keras, nil,
			[]variant{{name: "W4", kind: leak, slope: 100}, {name: "W4/clear-session", slope: 0.1, step: 15}, {name: "S1"},
				{name: "S1/clear-session", step: 15}}, holdsInPart, "Whether growth stops is shown on W4 alone"},
		{"C10", "stops, and costs nothing", Keras, nil, []variant{{name: "W4", kind: leak, slope: 100},
			{name: "W4/clear-session", slope: 0.1}}, holdsInPart, ""},
		{"C10", "the cost is at the epochs' ends", Keras, nil,
			[]variant{{name: "W4", kind: leak, slope: 100, epochEnds: 10},
				{name: "W4/clear-session", slope: 0.1, epochEnds: 60}}, holdsInPart, "The cost in speed is shown on W4 alone"},
		{"C10", "the cost is unclear", Keras, nil, []variant{{name: "W4", kind: leak, slope: 100},
			{name: "W4/clear-session", slope: 0.1, rough: 0.6}}, undecided, "The cost in speed is not decided"},
		{"C10", "stops nothing, at a cost", Keras, nil, []variant{{name: "W4", kind: leak, slope: 100},
			{name: "W4/clear-session", kind: leak, slope: 100, step: 15}}, doesNotHold, ""},
		{"C10", "a live model has nothing to clear", Keras, nil, []variant{{name: "S1"}, {name: "S1/clear-session"}},
			doesNotHold, "S1 alone does not grow"},

		{"C11", "half the growth with half the batch is arithmetic", Go, nil,
			[]variant{{name: "W2", kind: leak, slope: 100}, {name: "W2/batch-half", kind: leak, slope: 50}}, doesNotHold,
			"slope x1.00 [1.00, 1.00] per sample"},
		{"C11", "stops", Go, nil, []variant{{name: "W2", kind: leak, slope: 100}, {name: "W2/batch-half", slope: 1},
			{name: "S1", kind: leak, slope: 100}, {name: "S1/batch-half", slope: 1}}, holds, ""},
		{"C11", "a stream brings collections on", Galeone, nil,
			[]variant{{name: "S0", kind: leak, slope: 100}, {name: "S0/stream", slope: 0.1},
				{name: "W2", kind: leak, slope: 100}, {name: "W2/batch-half", kind: leak, slope: 50}}, undecided,
			"which may only wait for the garbage collector"},
		{"C11", "what waits for a collection is no growth to stop", Galeone, nil,
			[]variant{{name: "S0", kind: leak, slope: 100}, {name: "S0/gc-step"}, {name: "S0/stream", slope: 0.1},
				{name: "W2", kind: leak, slope: 100}, {name: "W2/batch-half", kind: leak, slope: 50}}, doesNotHold,
			"slope x1.00 [1.00, 1.00] per sample"},
		{"C11", "less per sample", Go, nil, []variant{{name: "W2", kind: leak, slope: 100},
			{name: "W2/batch-half", kind: leak, slope: 25}}, holdsInPart, "slope x0.50 [0.50, 0.50] per sample"},
		{"C11", "unclear", Go, nil, []variant{{name: "W2", kind: leak, slope: 100},
			{name: "W2/batch-half", kind: leak, slope: 50, rough: 0.9}}, undecided, ""},
		{"C11", "a generator where there is one anyway", Keras, nil,
			[]variant{{name: "S3", kind: leak, slope: 100}, {name: "S3/generator", slope: 1}}, "", ""},
		{"C11", "nothing grows", Keras, nil, []variant{{name: "S3"}, {name: "S3/batch-half", peak: 600}}, "", ""},

		{"C12", "flat", Keras, nil, []variant{{name: "S2l"}}, doesNotHold, ""},
		{"C12", "grows alone", Keras, nil, []variant{{name: "S2l", kind: leak, slope: 10}, {name: "S2"}}, holdsInPart,
			"A GRU was not tried. It is shown on S2l alone"},
		{"C12", "everything grows", Keras, nil, []variant{{name: "S2l", kind: leak, slope: 10},
			{name: "S2", kind: leak, slope: 10}}, undecided, ""},
		{"C12", "finalizers lag", Galeone, nil, []variant{{name: "S2l", kind: leak, slope: 10}, {name: "S2"}}, undecided, ""},

		{"C13", "the history", Go, nil, []variant{{name: "W10", kind: leak, slope: 10}, {name: "W10/keep-last", slope: 0.01},
			{name: "S4", kind: leak, slope: 10}, {name: "S4/keep-last", slope: 0.01}}, holdsInPart,
			"Callbacks are Keras's alone"},
		{"C13", "a history, and one too small to see", Go, nil,
			[]variant{{name: "W10", kind: leak, slope: 10}, {name: "W10/keep-last", slope: 0.01},
				{name: "S4", kind: memory.Inconclusive}, {name: "S4/keep-last"}}, holdsInPart,
			"Not decided by 1 of 2 measurements"},
		{"C13", "no history to see", Go, nil, []variant{{name: "W10"}, {name: "S4"}}, doesNotHold, ""},
		{"C13", "growth that is not the history's hides it", Galeone, nil,
			[]variant{{name: "W10", kind: leak, slope: 10}, {name: "W10/keep-last", kind: leak, slope: 10}}, undecided,
			"may hide what the history adds"},
		{"C13", "growth of unknown origin", Go, nil, []variant{{name: "W10", kind: leak, slope: 10}}, "", ""},
		{"C13", "both", Keras, nil, []variant{{name: "W10", kind: leak, slope: 10}, {name: "W10/keep-last", slope: 0.01},
			{name: "S4", kind: leak, slope: 10}, {name: "S4/keep-last", slope: 0.01}, {name: "S1"},
			{name: "S1/hoard", kind: leak, slope: 10}, {name: "S2"}, {name: "S2/hoard", kind: leak, slope: 10}}, holds, ""},
		{"C13", "one of each", Keras, nil, []variant{{name: "W10", kind: leak, slope: 10},
			{name: "W10/keep-last", slope: 0.01}, {name: "S1"}, {name: "S1/hoard", kind: leak, slope: 10}}, holdsInPart,
			"A stored history is shown on W10 alone"},
		{"C13", "the callback does not", Keras, nil, []variant{{name: "W10", kind: leak, slope: 10},
			{name: "W10/keep-last", slope: 0.01}, {name: "S1"}, {name: "S1/hoard"}}, holdsInPart, ""},
		{"C13", "everything grows", Keras, nil, []variant{{name: "W10", kind: leak, slope: 10},
			{name: "W10/keep-last", slope: 0.01}, {name: "S1", kind: leak, slope: 10},
			{name: "S1/hoard", kind: leak, slope: 10}}, undecided, ""},
		{"C13", "callbacks were not tried", Keras, nil, []variant{{name: "W10", kind: leak, slope: 10},
			{name: "W10/keep-last", slope: 0.01}}, "", ""},

		{"C14", "flat", Go, nil, []variant{{name: "S1"}, {name: "S3"}}, doesNotHold, ""},
		{"C14", "grows, and does not crash", Keras, nil,
			[]variant{{name: "S3", kind: leak, slope: 100}, {name: "S1", kind: leak, slope: 100}}, holdsInPart,
			"No run that grew ran out of memory"},
		{"C14", "grew, and may have been collected later", Galeone, nil,
			[]variant{{name: "S1", kind: leak, slope: 100, seconds: 2.2}, {name: "S1/gc-step", slope: 0.1}}, holdsInPart,
			"the runs took at most 2 s"},
		{"C14", "crashes", Keras, nil, []variant{{name: "S3", failure: worker.OutOfMemory, stepped: true},
			{name: "S1", failure: worker.OutOfMemory, stepped: true}}, holds, ""},
		{"C14", "epochs add nothing, loading again may", Go, nil,
			[]variant{{name: "S1"}, {name: "S1d"}, {name: "S2"}, {name: "S3"},
				{name: "W4/close-all", kind: memory.Inconclusive}}, undecided, "What loading again adds is not decided"},
		{"C14", "neither adds", Go, nil, []variant{{name: "S1"}, {name: "W4/close-all", kind: memory.Plateau}}, doesNotHold,
			""},
		{"C14", "loading again adds", Go, nil, []variant{{name: "S1"}, {name: "W4/close-all", kind: leak, slope: 1000}},
			holdsInPart, ""},
		{"C14", "a leak by construction", Go, nil, []variant{{name: "W2", kind: leak, slope: 100}, {name: "S3"}}, doesNotHold,
			""},
		{"C14", "collecting stops it", Galeone, nil, []variant{{name: "S3", kind: leak, slope: 100},
			{name: "S3/gc-step", slope: 0.1}}, holdsInPart, ""},
		{"C14", "finalizers may lag", Galeone, nil, []variant{{name: "S3", kind: leak, slope: 100}}, undecided, ""},

		{"C15", "buffers are flat", Keras, nil, []variant{{name: "S3", kind: leak, slope: 100},
			{name: "S3/buffers", slope: 0.1}, {name: "W2", kind: leak, slope: 100}, {name: "W2/buffers", slope: 0.1}}, holds,
			""},
		{"C15", "one workload", Keras, nil, []variant{{name: "S3", kind: leak, slope: 100}, {name: "S3/buffers", slope: 0.1}},
			holdsInPart, "S3 alone"},
		{"C15", "buffers grow too", Keras, nil, []variant{{name: "S3", kind: leak, slope: 100},
			{name: "S3/buffers", kind: leak, slope: 100}}, doesNotHold, ""},
		{"C15", "one way out of two", Keras, nil, []variant{{name: "S3", kind: leak, slope: 100},
			{name: "S3/buffers", slope: 0.1}, {name: "S3/from-generator", kind: leak, slope: 100}}, holdsInPart, ""},
		{"C15", "tensors do not grow", Keras, nil, []variant{{name: "S3"}, {name: "S3/buffers"}}, doesNotHold, ""},
		{"C15", "unclear", Keras, nil, []variant{{name: "S3", kind: memory.Inconclusive}}, undecided, ""},
		{"C15", "tensors run out of memory", Keras, nil,
			[]variant{{name: "S3", failure: worker.OutOfMemory, stepped: true}, {name: "S3/buffers"}}, holdsInPart,
			"S3/buffers: 0 of 5 runs ran out of memory"},
		{"C15", "buffers run out of memory, too", Keras, nil,
			[]variant{{name: "S3", failure: worker.OutOfMemory, stepped: true},
				{name: "S3/buffers", failure: worker.OutOfMemory, stepped: true}}, doesNotHold, ""},
		{"C15", "buffers that never started", Keras, nil,
			[]variant{{name: "S3", failure: worker.OutOfMemory, stepped: true},
				{name: "S3/buffers", failure: worker.Failed, died: importError}}, undecided, ""},
		{"C15", "no buffers to compare with", Galeone, nil, []variant{{name: "S3", kind: leak, slope: 100}}, "", ""},

		{"C16", "no GPU", Go, nil, []variant{{name: "S3v", kind: leak, slope: 100}, {name: "S3"},
			{name: "W3", kind: leak, slope: 10}}, "", ""},
		{"C16", "fails", Go, gpu, []variant{{name: "S3v", failure: worker.OutOfMemory, died: gpuOOM}, {name: "S3"}},
			holdsInPart, "The GPU's allocator failed in 5 of 5 runs of S3v and 0 of 5 of S3"},
		{"C16", "holes, but no failure", Go, gpu, []variant{{name: "S3v"}, {name: "S3"},
			{name: "S3v/memory-growth", gpu: 4000, pool: 500}, {name: "S3/memory-growth", gpu: 1000, pool: 500}}, holdsInPart,
			"8.00 times"},
		{"C16", "neither", Go, gpu, []variant{{name: "S3v"}, {name: "S3"}, {name: "S3v/memory-growth", gpu: 1200, pool: 600},
			{name: "S3/memory-growth", gpu: 1000, pool: 500}}, doesNotHold, ""},
		{"C16", "both fail", Go, gpu, []variant{{name: "S3v", failure: worker.OutOfMemory, died: gpuOOM},
			{name: "S3", failure: worker.OutOfMemory, died: gpuOOM}, {name: "S3v/memory-growth", gpu: 1200, pool: 600},
			{name: "S3/memory-growth", gpu: 1000, pool: 500}}, undecided, ""},
		{"C16", "the host's memory is not the GPU's", Go, gpu,
			[]variant{{name: "S3v", failure: worker.OutOfMemory, died: "killed by the kernel"}, {name: "S3"},
				{name: "S3v/memory-growth", gpu: 1200, pool: 600}, {name: "S3/memory-growth", gpu: 1000, pool: 500}}, undecided,
			""},

		{"C17", "flat", Keras, nil, []variant{{name: "S3a"}, {name: "S3"}}, doesNotHold, ""},
		{"C17", "grows alone", Keras, nil, []variant{{name: "S3a", kind: leak, slope: 500}, {name: "S3"}}, holdsInPart,
			"S3a alone"},
		{"C17", "grows faster", Keras, nil, []variant{{name: "S3a", kind: leak, slope: 900},
			{name: "S3", kind: leak, slope: 500}}, holdsInPart, "S3a against S3 as it is: slope x1.80"},
		{"C17", "grows as S3 does", Galeone, nil, []variant{{name: "S3a", kind: leak, slope: 500},
			{name: "S3a/gc-step", kind: leak, slope: 500}, {name: "S3", kind: leak, slope: 500},
			{name: "S3/gc-step", kind: leak, slope: 500}}, doesNotHold, "S3a/gc-step against S3/gc-step"},
		{"C17", "finalizers lag", Galeone, nil, []variant{{name: "S3a", kind: leak, slope: 500},
			{name: "S3", kind: leak, slope: 500}}, undecided, ""},

		{"C18", "lower and slower", Keras, nil, []variant{{name: "S1"}, {name: "S1/eager", peak: 800, step: 30}, {name: "S2"},
			{name: "S2/eager", peak: 800, step: 30}}, holds, "time of a step x3.00"},
		{"C18", "lower and slower on one workload", Keras, nil,
			[]variant{{name: "S1"}, {name: "S1/eager", peak: 800, step: 30}}, holdsInPart,
			"The peak is shown on S1 alone. The cost in speed is shown on S1 alone"},
		{"C18", "lower and as fast", Keras, nil, []variant{{name: "S1"}, {name: "S1/eager", peak: 800}}, holdsInPart, ""},
		{"C18", "higher and slower", Keras, nil, []variant{{name: "S1"}, {name: "S1/eager", peak: 1500, step: 30}},
			doesNotHold, ""},
		{"C18", "unclear", Keras, nil, []variant{{name: "S1"}, {name: "S1/eager", rough: 0.6}}, undecided, ""},
		{"C18", "perhaps not applied", Keras, nil, []variant{{name: "S1"},
			{name: "S1/eager", unverified: "its step cannot be traced"}}, undecided,
			"whether the remedy took effect is not known"},

		{"C19", "no GPU", Go, nil, []variant{{name: "W0"}, {name: "W0/memory-growth"}}, "", ""},
		{"C19", "holds less", Go, gpu, []variant{{name: "W0", gpu: 40000, pool: 500},
			{name: "W0/memory-growth", gpu: 1000, pool: 500}}, holdsInPart, "hands out of it x1.00"},
		{"C19", "holds as much", Go, gpu, []variant{{name: "W0", gpu: 40000}, {name: "W0/memory-growth", gpu: 40000}},
			doesNotHold, ""},
		{"C19", "not read", Go, gpu, []variant{{name: "W0"}, {name: "W0/memory-growth"}}, "", ""},

		{"C20", "half, and a worse loss", Go, nil, []variant{{name: "S3", loss: 0.5}, {name: "S3/bf16", peak: 500, loss: 0.8},
			{name: "S1d", loss: 0.5}, {name: "S1d/bf16", peak: 500, loss: 0.8}}, undecided,
			"the loss of training ends at 0.8 against 0.5"},
		{"C20", "half, and as good", Go, nil, []variant{{name: "S3", loss: 0.5}, {name: "S3/bf16", peak: 500, loss: 0.501}},
			undecided, "that takes validation metrics over at least 5 seeds"},
		{"C20", "losses that repeat", Go, nil, []variant{{name: "S3", loss: 0.5, repeats: true},
			{name: "S3/bf16", peak: 690, loss: 0.8, repeats: true}}, holdsInPart,
			"bit for bit the same in 5 runs, so that it counts once"},
		{"C20", "less, whatever the loss", Go, nil, []variant{{name: "S3", loss: 0.5},
			{name: "S3/bf16", peak: 800, loss: 0.5}}, holdsInPart, "The cost in accuracy is not decided"},
		{"C20", "as much, and as good", Go, nil, []variant{{name: "S1d", loss: 0.5}, {name: "S1d/bf16", loss: 0.5}},
			undecided, "peak x1.00"},
		{"C20", "a loss near nothing", Go, nil, []variant{{name: "S1d", loss: 1e-9, rough: 0.9},
			{name: "S1d/bf16", loss: 3e-9}}, undecided, ""},
		{"C20", "half, and it diverges", Go, nil, []variant{{name: "S1d", loss: 0.5},
			{name: "S1d/bf16", peak: 500, loss: math.NaN()}, {name: "S3", loss: 0.5},
			{name: "S3/bf16", peak: 500, loss: math.NaN()}}, holds, "the loss is NaN or infinite"},
		{"C20", "one diverges", Go, nil, []variant{{name: "S1d", loss: 0.5}, {name: "S1d/bf16", peak: 500, loss: math.NaN()},
			{name: "S3", loss: 0.5}, {name: "S3/bf16", peak: 500, loss: 0.5}}, holdsInPart, "the loss is NaN or infinite"},
		{"C20", "unclear", Go, nil, []variant{{name: "S1d", loss: 0.5}, {name: "S1d/bf16", rough: 0.6, loss: 0.5}}, undecided,
			"The memory is not decided"},
		{"C20", "half, and no loss was told", Go, nil, []variant{{name: "S1d"}, {name: "S1d/bf16", peak: 500}}, undecided,
			"The cost in accuracy is not decided"},
		{"C20", "perhaps not applied", Galeone, nil, []variant{{name: "S1d"},
			{name: "S1d/bf16", unverified: "its step cannot be traced"}}, undecided,
			"whether the remedy took effect is not known"},
		{"C20", "the GPU's memory counts there", Keras, gpu,
			[]variant{{name: "S3", loss: 0.5, pool: 1000}, {name: "S3/mixed-bf16", loss: 0.9, pool: 500}}, undecided,
			"hands out of the GPU x0.50"},

		{"C21", "less memory, more time", Go, nil, []variant{{name: "S1"}, {name: "S1/arenas-2", peak: 800, step: 30},
			{name: "W8"}, {name: "W8/arenas-2", peak: 800, step: 30}}, holds,
			"W8/arenas-2 against W8 as it is: time of a step x3.00"},
		{"C21", "no difference", Go, nil, []variant{{name: "S1"}, {name: "S1/arenas-2"}}, doesNotHold, "peak x1.00"},
		{"C22", "a collection stops it", Galeone, nil, []variant{{name: "W2", kind: leak, slope: 100},
			{name: "W2/gc-epoch", slope: 0.1}, {name: "S1", kind: leak, slope: 100}, {name: "S1/gc-epoch", slope: 0.1}}, holds,
			""},
		{"C22", "a collection changes nothing", Keras, nil,
			[]variant{{name: "W4", kind: leak, slope: 100}, {name: "W4/gc-epoch", kind: leak, slope: 100}}, doesNotHold,
			"slope x1.00"},
		{"C23", "grows with each shape", Go, nil, []variant{{name: "W9", kind: leak, slope: 100}}, holdsInPart,
			"It is shown on W9 alone"},
		{"C23", "flat", Keras, nil, []variant{{name: "W9"}}, doesNotHold, ""},
		{"C24", "a plateau, and less without oneDNN", Go, nil, []variant{{name: "W3"}, {name: "W3/onednn-off", peak: 700}},
			holdsInPart, "The number of entries is not measured"},
		{"C24", "no end, and no less without oneDNN", Go, nil,
			[]variant{{name: "W3", kind: leak, slope: 100}, {name: "W3/onednn-off"}}, doesNotHold, ""},
		{"C25", "holds more than the pool", Go, gpu, []variant{{name: "S3"}, {name: "S3/memory-growth", gpu: 500},
			{name: "S3/cuda-async", gpu: 900}}, holdsInPart, "S3/cuda-async against S3/memory-growth"},
		{"C26", "holds more", Go, gpu, []variant{{name: "S3", gpu: 500}, {name: "S3/memory-growth", gpu: 900}}, holdsInPart,
			"x1.80"},
		{"C27", "a third, and slower", Keras, gpu, []variant{{name: "S3", pool: 900},
			{name: "S3/mixed-fp16", pool: 300, step: 15}}, holdsInPart, "hands out of the GPU x0.33"},
	} {
		t.Run(test.claim+" "+test.name, func(t *testing.T) {
			for _, c := range ledgerOf(t, made(test.runtime, test.gpus, test.variants...)) {
				if c.ID != test.claim {
					continue
				}
				if test.want == "" {
					require.Empty(t, c.Verdicts)
					return
				}
				require.Len(t, c.Verdicts, 1)
				v := c.Verdicts[0]
				assert.Equal(t, test.want, v.Verdict, v.Text)
				assert.Contains(t, v.Text, test.says)
				assert.Equal(t, test.runtime, v.Runtime)
				assert.NotEmpty(t, v.Combinations)
				assert.NotContains(t, v.Text, "%!")
				return
			}
			t.Fatalf("no claim %s", test.claim)
		})
	}
}

// jumps returns the variants S1 and S1d, without and with XLA, whose memory is 100 MiB after
// loading and the given MiB after the last step.
func jumps(s1, s1d, s1XLA, s1dXLA float64) []variant {
	return []variant{
		{name: "S1", loaded: 100, steady: s1}, {name: "S1d", loaded: 100, steady: s1d},
		{name: "S1/xla", loaded: 100, steady: s1XLA}, {name: "S1d/xla", loaded: 100, steady: s1dXLA},
	}
}

// With galeone's binding every workload may grow, since finalizers run late. Only the claim about
// the garbage collector may hold because of such growth.
func TestLateFinalizersAreNoEvidence(t *testing.T) {
	var variants []variant
	for _, w := range Workloads() {
		if w.runsOn(Galeone) && w.On[Galeone].Params["gc"] != "step" {
			variants = append(variants, variant{name: w.ID, kind: leak, slope: 100, peak: 1000, loaded: 100, steady: 500,
				closed: 120})
			variants = append(variants, variant{name: w.ID + "/batch-half", kind: leak, slope: 50, peak: 600, loaded: 100,
				steady: 300, closed: 120})
			if w.ID == "S3" || w.ID == "W2" {
				variants = append(variants, variant{name: w.ID + "/gc-step", loaded: 100, steady: 300, closed: 290})
			}
		}
	}
	for _, c := range ledgerOf(t, made(Galeone, nil, variants...)) {
		for _, v := range c.Verdicts {
			switch c.ID {
			case "C3", "C7", "C14": // claims about the collector, which gc-step decides
				assert.Equal(t, holdsInPart, v.Verdict, c.ID)
			default:
				assert.NotContains(t, []string{holds, holdsInPart}, v.Verdict, "%s: %s", c.ID, v.Text)
			}
		}
	}
}

func TestClaimsOfAPartialMatrix(t *testing.T) {
	for _, c := range ledgerOf(t, &Result{}) {
		assert.Empty(t, c.Verdicts, c.ID)
		assert.Equal(t, slices.Contains([]string{"C16", "C19", "C20", "C25", "C26", "C27"}, c.ID), c.Needs != "", c.ID)
	}
	// These are the runs of --quick, with one result that could not be compared and one remedy
	// that was refused.
	r := made(Go, nil, variant{name: "W2", kind: leak, slope: 100, pairs: 3},
		variant{name: "W2/batch-half", kind: leak, slope: 50, pairs: 1},
		variant{name: "S3", loaded: 400, steady: 1000, closed: 900, pairs: 3},
		variant{name: "S3/batch-half", peak: 600, pairs: 3})
	r.Combinations = append(r.Combinations, Combination{Runtime: Go, Workload: "S3", Remedy: "bf16",
		Effect: compare.CouldNotApply, Reason: "no"})
	verdicts := map[string]string{}
	for _, c := range ledgerOf(t, r) {
		for _, v := range c.Verdicts {
			verdicts[c.ID] = v.Verdict
		}
	}
	assert.Equal(t, map[string]string{"C3": undecided, "C7": holdsInPart, "C9": notTested, "C10": notTested,
		"C11": undecided, "C14": doesNotHold, "C15": doesNotHold}, verdicts)
}

// ReadFile keeps the verdicts in a file, and adds verdicts on claims that are newer than the file.
func TestReadFileAddsClaims(t *testing.T) {
	r := made(Keras, nil, variant{name: "W9", kind: leak, slope: 100}, variant{name: "S1"})
	r.Schema = schemaVersion
	old := ClaimVerdict{Runtime: Keras, Verdict: holds, Text: "measured before", Combinations: []string{"S1/none"}}
	r.Claims = []Claim{{ID: "C8", Text: "an older sentence", Verdicts: []ClaimVerdict{old}}}
	path := filepath.Join(t.TempDir(), "matrix.json.gz")
	require.NoError(t, WriteFile(path, r))
	for range 2 {
		back, err := ReadFile(path)
		require.NoError(t, err)
		claims := map[string]Claim{}
		for _, c := range back.Claims {
			claims[c.ID] = c
		}
		assert.Len(t, claims, len(back.Claims))
		assert.Equal(t, []ClaimVerdict{old}, claims["C8"].Verdicts)
		assert.Equal(t, "Memory grows without bound per epoch by default", claims["C8"].Text)
		assert.Equal(t, holdsInPart, claims["C23"].Verdicts[0].Verdict)
		require.Len(t, claims["C21"].Verdicts, 1)
		assert.Equal(t, notTested, claims["C21"].Verdicts[0].Verdict)
		assert.Contains(t, claims["C21"].Verdicts[0].Text, "measured on go alone")
		require.NoError(t, WriteFile(path, back))
	}
}

func TestClaimsNeedNothingWhereThereIsAGPU(t *testing.T) {
	for _, c := range ledgerOf(t, made(Go, []string{"a GPU"})) {
		assert.Empty(t, c.Needs, c.ID)
	}
}

// The command for the claims that need a GPU has the remedies and workloads of their tests. The
// claims only name existing remedies and workloads.
func TestClaimsNameWhatThereIs(t *testing.T) {
	command := func(flag string) []string {
		_, rest, ok := strings.Cut(gpuCommand, flag+" ")
		require.True(t, ok)
		list, _, _ := strings.Cut(rest, " ")
		return strings.Split(list, ",")
	}
	for _, w := range command("--workloads") {
		_, err := FindWorkload(w)
		assert.NoError(t, err)
	}
	for _, r := range command("--remedies") {
		_, err := FindRemedy(r)
		assert.NoError(t, err)
	}
	assert.Subset(t, command("--workloads"), []string{"S3", "S3v"})
	assert.Contains(t, command("--remedies"), "memory-growth")

	table, err := claimTable()
	require.NoError(t, err)
	for _, c := range table {
		for _, q := range c.Questions {
			for _, p := range q.Probes {
				assert.True(t, tests[p.Test] != nil, "%s: test %q", c.ID, p.Test)
				for _, pair := range pairs(p) {
					for _, name := range pair {
						w, remedy, ok := strings.Cut(name, "/")
						_, err := FindWorkload(w)
						assert.NoError(t, err, name)
						if ok {
							_, err = FindRemedy(remedy)
							assert.NoError(t, err, name)
						}
					}
				}
			}
		}
	}
}

func TestSettle(t *testing.T) {
	of := func(a answer) half { return half{"it", evidence{a, fmt.Sprint(a), []string{"W0", "W1"}}} }
	for _, test := range []struct {
		mainly      bool
		first, then answer
		want        string
	}{
		{false, yes, yes, holds}, {false, no, no, doesNotHold}, {false, yes, no, holdsInPart},
		{false, inPart, inPart, holdsInPart},
		{false, inPart, unclear, holdsInPart}, {false, inPart, missing, holdsInPart},
		{false, yes, unclear, undecided}, {false, no, unclear, undecided}, {false, unclear, unclear, undecided},
		{false, yes, missing, ""}, {false, unclear, missing, ""}, {false, missing, missing, ""},
		{true, no, yes, doesNotHold}, {true, no, unclear, doesNotHold}, {true, no, missing, doesNotHold},
		{true, yes, no, holdsInPart}, {true, yes, yes, holds}, {true, yes, unclear, undecided},
		{true, unclear, yes, undecided},
		{true, missing, yes, ""}, {true, missing, no, ""},
	} {
		verdict, text := claimEntry{Mainly: test.mainly}.settle(of(test.first), of(test.then))
		assert.Equal(t, test.want, verdict, "%d, %d", test.first, test.then)
		assert.Equal(t, verdict == "", text == "")
	}

	alone := half{"the one", evidence{yes, "W0: yes", []string{"W0"}}}
	verdict, text := claimEntry{}.settle(alone, of(yes))
	assert.Equal(t, holdsInPart, verdict)
	assert.Contains(t, text, "The one is shown on W0 alone")
	verdict, text = claimEntry{}.settle(half{"", evidence{no, "W0: no", []string{"W0"}}})
	assert.Equal(t, doesNotHold, verdict, "one workload refutes what is said of all")
	assert.Equal(t, "W0: no", text)
}

// The answer is yes only if all workloads answer yes, and no only if all decided workloads answer
// no and are more than the undecided ones. Mixed answers are "in part".
func TestPool(t *testing.T) {
	for _, test := range []struct {
		answers []answer
		want    answer
	}{
		{nil, missing}, {[]answer{missing, missing}, missing}, {[]answer{unclear, missing}, unclear},
		{[]answer{yes, missing, yes}, yes}, {[]answer{yes, unclear}, inPart}, {[]answer{yes, no}, inPart},
		{[]answer{yes, no, unclear}, inPart},
		{[]answer{no, missing}, no}, {[]answer{no, unclear}, unclear}, {[]answer{no, no, unclear}, no},
		{[]answer{inPart, unclear, unclear}, inPart}, {[]answer{inPart, yes}, inPart}, {[]answer{inPart, inPart}, inPart},
	} {
		var all []evidence
		for i, a := range test.answers {
			all = append(all, evidence{a, "", []string{fmt.Sprint("W", 1-i%2)}})
		}
		sum := pool(all...)
		assert.Equal(t, test.want, sum.answer, "%v", test.answers)
		if test.want == yes {
			assert.Equal(t, []string{"W1"}, sum.on, "each workload once, if it answers")
		}
	}
}

func TestSentences(t *testing.T) {
	assert.Equal(t, "S0/stream: flat. The rest is open. malloc_trim helps. bf16 as well",
		sentences("S0/stream: flat", "", "the rest is open.", "malloc_trim helps", "bf16 as well", "the rest is open"))
	assert.Empty(t, sentences())
}

func ledgerOf(t *testing.T, r *Result) []Claim {
	t.Helper()
	list, err := ledger(r)
	require.NoError(t, err)
	return list
}
