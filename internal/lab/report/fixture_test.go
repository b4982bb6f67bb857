package report

import (
	"time"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

const mib, kib = memory.MiB, memory.KiB

func i64(v int64) *int64 { return &v }

func interval(low, estimate, high float64) memory.Interval {
	return memory.Interval{Estimate: estimate, Low: low, High: high}
}

func ratio(low, estimate, high float64, effect compare.Effect) compare.Ratio {
	return compare.Ratio{Interval: interval(low, estimate, high), OK: true, Effect: effect}
}

// builder makes a result of combinations with two runs each.
type builder struct{ *matrix.Result }

// add adds a combination whose runs have a verdict, a slope in bytes per step, and a memory after the last
// step. The runs of a crash have no figures.
func (b builder) add(runtime, workload, remedy string, kind memory.Kind, slope float64, level memory.Bytes,
) *matrix.Combination {
	c := matrix.Combination{Runtime: runtime, Workload: workload, Remedy: remedy}
	v := memory.Verdict{Kind: kind, Layer: memory.Anon, Per: memlayer.PerStep, Slope: interval(0.9*slope, slope, 1.1*slope),
		Confidence: 0.99, Samples: 40, Start: 100 * mib, Level: level}
	for pair := range 2 {
		run := matrix.RunResult{ID: len(b.Runs) + 1, Runtime: runtime, Workload: workload, Remedy: remedy, Pair: pair,
			Key: "key", Seconds: 30.123456, Facts: map[string]string{"allocator": "glibc"}, Phases: map[string]memory.Sample{},
			Started: b.Started.Add(time.Duration(len(b.Runs)) * time.Minute), Outcome: compare.Outcome{Verdict: v}}
		if kind == memlayer.Crash {
			run.Failure, run.Cause = "out of memory", "killed by the kernel"
			c.Crashes = append(c.Crashes, "out of memory: killed by the kernel")
		} else {
			run.Series = &memory.Series{}
			run.Outcome.Peak, run.Outcome.StepTime = memory.Known(level+123456), memory.Known(1408123)
			for i := range 40 {
				var s memory.Sample
				s.Step = i
				s.Set(memory.Anon, memory.Known(level-memory.Bytes(slope)*memory.Bytes(40-i)))
				run.Series.Append(&s)
			}
			var s memory.Sample
			s.Set(memory.Anon, memory.Known(level))
			run.Phases["steady"], run.Phases["closed"] = s, s
		}
		b.Runs, c.Runs = append(b.Runs, run), append(c.Runs, run.ID)
	}
	if kind == memlayer.Crash {
		v = compare.Crashed("killed by the kernel")
	} else {
		c.Figures = matrix.Figures{Slope: v.Slope, Peak: i64(int64(level + 123456)), Level: i64(int64(level)),
			Closed: i64(int64(level - 10*mib)), StepTime: i64(1408123)}
	}
	c.Verdict = &v
	b.Combinations = append(b.Combinations, c)
	return &b.Combinations[len(b.Combinations)-1]
}

// compared sets the effect of the last combination.
func compared(c *matrix.Combination, goal compare.Goal, slope, peak, time compare.Ratio) {
	d := &compare.Comparison{Goal: goal, Pairs: 2, Slope: slope, Peak: peak, StepTime: time, Confidence: 0.95}
	d.Effect = slope.Effect
	if goal == compare.LowerPeak {
		d.Effect = peak.Effect
	}
	c.Comparison, c.Effect = d, d.Effect
}

// fixture returns a small matrix of two runtimes with a control, a calibration, a leak, and a workload that
// crashes.
func fixture() *matrix.Result {
	start := time.Date(2026, 11, 20, 22, 4, 0, 0, time.UTC)
	b := builder{&matrix.Result{Schema: 1, Version: "0.1.0", Started: start, Complete: true,
		Settings: matrix.Settings{Pairs: 2, Seed: 1},
		Environment: machine.Environment{OS: "linux", Arch: "amd64", Kernel: "6.1.0", CPU: "Xeon", Cores: 2, Memory: 16 << 30,
			Go: "go1.26.0", TensorFlow: map[string]string{"go": "2.21.0", "keras": "2.21.0"}, Keras: "3.15.0"},
		Workloads: []matrix.Workload{
			{ID: "W0", Title: "all released", What: "one train step", Expected: "flat", Steps: 40, Leak: i64(0)},
			{ID: "W1", Title: "one tensor kept", What: "one train step", Expected: "a line", Steps: 40, Leak: i64(65536)},
			{ID: "W4", Title: "model loaded anew", What: "load, then a step", Expected: "a line", Steps: 40, Budget: 2048},
			{ID: "S3", Title: "images under a limit", What: "a train step", Expected: "a crash", Steps: 40, Limit: 768 << 20},
		},
		Remedies: []matrix.Remedy{
			{ID: matrix.Baseline, Group: "baseline", Title: "as it is"},
			{ID: "close", Group: "lifetimes", Title: "close everything"},
			{ID: "reuse", Group: "lifetimes", Title: "load once"},
			{ID: "batch-half", Group: "data", Title: "half the batch", Params: map[string]string{"batch_divide": "2"}},
			{ID: "trim", Group: "allocator", Title: "malloc_trim each epoch"},
			{ID: "memory-growth", Group: "gpu", Title: "allow_growth"},
		},
		Claims: []matrix.Claim{
			{ID: "C3", Text: "the collector is out of step", Says: "right", Verdicts: []matrix.ClaimVerdict{
				{Runtime: "go", Verdict: "holds in part", Text: "W4 grows", Combinations: []string{"W4/none", "W4/close"}},
				{Runtime: "keras", Verdict: "does not hold", Text: "W4 is flat", Combinations: []string{"W4/none"}}}},
			{ID: "C16", Text: "shapes fragment memory", Says: "right, device pools", Needs: "a GPU"},
		}}}
	same := ratio(0.98, 1.01, 1.05, compare.NoEffect)
	for _, runtime := range []string{"go", "keras"} {
		b.add(runtime, "W0", "none", memory.Flat, 0, 300*mib)
		compared(b.add(runtime, "W0", "trim", memory.Flat, 0, 240*mib), compare.LowerPeak, compare.Ratio{},
			ratio(0.78, 0.8, 0.82, compare.Partly), same)
		b.add(runtime, "W1", "none", memory.Leak, 65536, 400*mib)
		w4 := b.add(runtime, "W4", "none", memory.Leak, float64(12*mib), 900*mib).Verdict
		w4.Cause, w4.Carrier, w4.Notes = memlayer.Unreleased, memlayer.LiveBytes, []string{"its 2 runs agree"}
		compared(b.add(runtime, "W4", "close", memory.Flat, 0, 300*mib), compare.LowerSlope,
			ratio(-0.01, 0.02, 0.03, compare.Works), ratio(0.3, 0.33, 0.35, compare.Works), ratio(1.3, 1.42, 1.5, compare.Harmful))
		compared(b.add(runtime, "W4", "reuse", memory.Flat, 0, 280*mib), compare.LowerSlope,
			ratio(0, 0, 0, compare.Works), ratio(0.3, 0.31, 0.35, compare.Works), ratio(0.2, 0.22, 0.25, compare.Works))
		compared(b.add(runtime, "W4", "batch-half", memory.Flat, 0, 280*mib), compare.LowerSlope,
			ratio(0, 0, 0, compare.Works), same, ratio(0.1, 0.12, 0.15, compare.Works))
		trim := b.add(runtime, "W4", "trim", memory.Leak, float64(12*mib), 890*mib)
		compared(trim, compare.LowerSlope, same, same, same)
		trim.Unverified = "nothing shows that it ran"
		b.add(runtime, "S3", "none", memlayer.Crash, 0, 0)
		survives := b.add(runtime, "S3", "batch-half", memory.Flat, 0, 700*mib)
		survives.Effect, survives.Reason = compare.Works, "2 of 2 runs without it crashed, and none with it"
		survives.Comparison = &compare.Comparison{Effect: compare.Works, Goal: compare.LowerPeak, Pairs: 2, BaseCrashes: 2}
		b.Combinations = append(b.Combinations, matrix.Combination{Runtime: runtime, Workload: "W0", Remedy: "memory-growth",
			Effect: compare.CouldNotApply, Reason: "no GPU"})
		b.Calibration = append(b.Calibration,
			matrix.Calibration{Runtime: runtime, Workload: "W0", OK: true, Slope: interval(-12, 0, 25), Text: "called flat"},
			matrix.Calibration{Runtime: runtime, Workload: "W1", OK: true, Expected: 65536, Slope: interval(65530, 65561, 65602),
				Text: "a leak of 65536 B/step was measured as 65561 B/step"})
	}
	return b.Result
}
