package matrix

import (
	"time"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/runner"
	"steadyfit/memory"
)

// schemaVersion is the version of the format of matrix.json. ReadFile accepts no other version.
const schemaVersion = 1

// Result is the content of matrix.json.
type Result struct {
	Schema  int       `json:"schema"`
	Version string    `json:"steadyfit"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Complete is false if the matrix ended before all runs, for example because of
	// Plan.Within.
	Complete    bool                `json:"complete"`
	Environment machine.Environment `json:"environment"`
	Settings    Settings            `json:"settings"`
	// Calibration shows whether the measurement can be trusted.
	Calibration []Calibration `json:"calibration"`
	// Workloads and Remedies are copied from the plan, in the same order.
	Workloads []Workload `json:"workloads"`
	Remedies  []Remedy   `json:"remedies"`
	// Combinations are ordered by runtime, workload and remedy.
	Combinations []Combination `json:"cells"`
	// Runs are the child processes in the order of their start.
	Runs []RunResult `json:"runs"`
	// Claims are statements about TensorFlow's memory with the measured verdicts.
	Claims []Claim `json:"claims"`
}

// Settings are the settings of the plan.
type Settings struct {
	Pairs      int     `json:"pairs"`
	Seed       int64   `json:"seed"`
	Confidence float64 `json:"confidence"`
	Quick      bool    `json:"quick"`
	// Timeout and Within are Plan.Timeout and Plan.Within in seconds.
	Timeout float64 `json:"timeout_seconds"`
	Within  float64 `json:"within_seconds,omitempty"`
}

// Calibration is a measurement of a workload whose slope is known.
type Calibration struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	// Expected is the true slope in bytes per step; 0 for the workload without a leak.
	Expected float64 `json:"expected"`
	// Slope is the measured slope over all runs. Kinds are the verdicts of the runs.
	Slope memory.Interval `json:"slope"`
	Kinds []memory.Kind   `json:"kinds"`
	// OK means that most runs have the expected slope within 5%, or no leak if none is expected,
	// and that all other runs are inconclusive. Text is a sentence with the result.
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// Combination is a workload with a remedy on a runtime, with a summary of its runs.
type Combination struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	Remedy   string `json:"remedy"`
	// Effect is the effect of the remedy on the amount that it should lower.
	Effect compare.Effect `json:"effect"`
	// Reason explains Effect in a sentence.
	Reason string `json:"reason"`
	// Comparison has the figures relative to the baseline; nil for the baseline itself, and if
	// nothing could be compared.
	Comparison *compare.Comparison `json:"comparison,omitempty"`
	// Unverified is the reason why it is unknown whether the remedy took effect; empty if it
	// did.
	Unverified string `json:"unverified,omitempty"`
	// Verdict is the verdict of the run that represents all runs; see Middle.
	Verdict *memory.Verdict `json:"verdict,omitempty"`
	// Figures are medians over the runs.
	Figures Figures `json:"figures"`
	// Runs has the IDs of the runs. Base has the IDs of their baseline runs, in the same order.
	Runs []int `json:"runs"`
	Base []int `json:"base,omitempty"`
	// Crashes are the causes of the crashed runs.
	Crashes []string `json:"crashes,omitempty"`
}

// Figures are medians over runs. An amount that was not measured is null.
type Figures struct {
	// Slope is the growth of anonymous memory in bytes per step, with the range over runs.
	Slope memory.Interval `json:"slope"`
	// Peak is the largest resident memory in bytes from loading to the last step, or of the
	// whole run if the system cannot reset it. Loaded, Level, Closed and Trimmed are anonymous
	// memory in bytes: before the first step, after the last one, after everything was freed,
	// and after malloc_trim.
	Peak    *int64 `json:"peak_bytes"`
	Loaded  *int64 `json:"loaded_bytes"`
	Level   *int64 `json:"level_bytes"`
	Closed  *int64 `json:"closed_bytes"`
	Trimmed *int64 `json:"trimmed_bytes"`
	// Pool is the most memory that TensorFlow's CPU allocators held in the traced step, without
	// malloc. GPU is the most GPU memory of the process. GPUPool is the most memory that
	// TensorFlow's GPU allocator had handed out.
	Pool     *int64  `json:"pool_bytes,omitempty"`
	GPU      *int64  `json:"gpu_bytes,omitempty"`
	GPUPool  *int64  `json:"gpu_pool_bytes,omitempty"`
	StepTime *int64  `json:"step_ns"`
	Seconds  float64 `json:"seconds"`
}

// RunResult is the result of one child process.
type RunResult struct {
	ID       int    `json:"id"`
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	Remedy   string `json:"remedy"`
	// Pair and Group count from 0. The runs of a group share a baseline run.
	Pair  int `json:"pair"`
	Group int `json:"group"`
	// Key identifies the run with everything that its outcome depends on.
	Key     string          `json:"key"`
	Started time.Time       `json:"started"`
	Seconds float64         `json:"seconds"`
	Outcome compare.Outcome `json:"outcome"`
	// Phases has the samples between phases, by the names in packages program and runner.
	Phases map[string]memory.Sample `json:"phases"`
	// Facts are the facts that the child reported.
	Facts map[string]string `json:"facts,omitempty"`
	// Series has some of the samples between steps.
	Series *memory.Series `json:"series,omitempty"`
	// Unverified has the same meaning as in Combination.
	Unverified string `json:"unverified,omitempty"`
	// Failure is empty for a successful run. Cause is the cause of the failure.
	Failure runner.Failure `json:"failure,omitempty"`
	Cause   string         `json:"cause,omitempty"`
	// Log is the end of the standard error of a run whose process failed.
	Log string `json:"log,omitempty"`
}

// Claim is a statement that people make about TensorFlow's memory.
type Claim struct {
	ID   string `json:"id"`
	Text string `json:"text"`
	// Says is the answer that the source of the claim gives.
	Says string `json:"says"`
	// Verdicts has the verdict of each runtime that tested the claim.
	Verdicts []ClaimVerdict `json:"verdicts"`
	// Needs describes what a further test needs that this machine lacks. A claim without verdicts
	// and needs was not part of the matrix.
	Needs string `json:"needs,omitempty"`
}

// ClaimVerdict is the verdict on a claim on one runtime.
type ClaimVerdict struct {
	Runtime string `json:"runtime"`
	// Verdict is "holds", "holds in part", "does not hold", "undecided" or "not tested".
	Verdict string `json:"verdict"`
	// Text has the figures in sentences, or the reason why the runtime has no test.
	Text string `json:"text"`
	// Combinations names the combinations that the verdict is based on, as in "W4/close".
	Combinations []string `json:"cells"`
}
