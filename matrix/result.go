package matrix

import (
	"time"

	"steadyfit/internal/lab/worker"
	"steadyfit/memory"
)

// SchemaVersion is the version of matrix.json that this package writes. It refuses a file of a
// later version.
const SchemaVersion = 1

// Result is the result of a matrix, the content of matrix.json.
type Result struct {
	Schema  int       `json:"schema"`
	Version string    `json:"steadyfit"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Complete is false if the matrix was interrupted before all runs were done.
	Complete    bool        `json:"complete"`
	Environment Environment `json:"environment"`
	Settings    Settings    `json:"settings"`
	// Calibration shows whether the measurements can be trusted.
	Calibration []Calibration `json:"calibration"`
	// Workloads and Remedies describe those that took part, in their order.
	Workloads []Workload `json:"workloads"`
	Remedies  []Remedy   `json:"remedies"`
	// Cells are ordered by runtime, workload and remedy. A cell with the remedy Baseline is the
	// workload without a remedy.
	Cells []Cell `json:"cells"`
	// Runs are the child processes, in the order in which they ran.
	Runs []RunResult `json:"runs"`
	// Claims is the ledger: each claim with the measured answer.
	Claims []Claim `json:"claims"`
}

// Environment describes the machine that the matrix ran on.
type Environment struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`
	Limit  int64  `json:"memory_limit_bytes,omitempty"` // memory limit of the control group; 0 is none
	Go     string `json:"go"`
	// TensorFlow, Keras and Python have versions by the name of the runtime ("go", "galeone",
	// "keras") for the runtimes that took part.
	TensorFlow map[string]string `json:"tensorflow"`
	Keras      string            `json:"keras,omitempty"`
	Python     string            `json:"python,omitempty"`
	// GPUs names each GPU; empty if there is none.
	GPUs []string `json:"gpus"`
	// Variables are the environment variables that TensorFlow, Go or an allocator reads and that
	// were set when the matrix started.
	Variables map[string]string `json:"variables"`
	// LoadBefore and LoadAfter are load averages over a minute.
	LoadBefore float64 `json:"load_before"`
	LoadAfter  float64 `json:"load_after"`
}

// Settings are the settings of the matrix.
type Settings struct {
	Pairs      int     `json:"pairs"`
	Seed       int64   `json:"seed"`
	Confidence float64 `json:"confidence"`
	Quick      bool    `json:"quick"`
	// Jobs is the number of runs at the same time.
	Jobs int `json:"jobs"`
	// Limit is the memory limit of each child in bytes, unless its workload has its own limit; 0
	// is none. LimitKind is the kind of limit, "control group" or "RLIMIT_DATA"; empty if no
	// child has one.
	Limit     int64  `json:"limit_bytes,omitempty"`
	LimitKind string `json:"limit_kind,omitempty"`
	// Timeout is the longest time between two messages of a child, in seconds.
	Timeout float64 `json:"timeout_seconds"`
}

// Calibration is a test of the measurement with a workload whose slope is known.
type Calibration struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	// Expected is the true slope in bytes per step; 0 for the control without a leak.
	Expected float64 `json:"expected"`
	// Slope is the measured slope over all runs. Kinds has the verdict of each run.
	Slope memory.Interval `json:"slope"`
	Kinds []memory.Kind   `json:"kinds"`
	// OK is true if every run recovered the leak within 5%, or called the control flat. Text is
	// a sentence with the result.
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// Cell is one workload with one remedy on one runtime.
type Cell struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	Remedy   string `json:"remedy"`
	// Effect is the effect of the remedy on the amount that it is meant to lower.
	Effect memory.Effect `json:"effect"`
	// Reason is the reason for the effect, in a sentence, or why the remedy could not be
	// applied.
	Reason string `json:"reason"`
	// Comparison has the figures; it is nil for the baseline and for cells that could not be
	// compared.
	Comparison *memory.Comparison `json:"comparison,omitempty"`
	// Unverified is the reason why it is not known whether the remedy took effect, as in "its
	// step cannot be traced"; empty if it is known.
	Unverified string `json:"unverified,omitempty"`
	// Verdict is that of the run that represents the runs with the remedy; see Middle.
	Verdict *memory.Verdict `json:"verdict,omitempty"`
	// Figures are medians over the runs with the remedy.
	Figures Figures `json:"figures"`
	// Runs has the IDs of the runs with the remedy, and Base those of the baseline runs that
	// they were paired with, in the same order.
	Runs []int `json:"runs"`
	Base []int `json:"base,omitempty"`
	// Crashes are the causes of the runs that crashed.
	Crashes []string `json:"crashes,omitempty"`
}

// Figures are medians over runs. An amount that was not measured is null.
type Figures struct {
	// Slope is that of anonymous memory in bytes per step, with the range over runs.
	Slope memory.Interval `json:"slope"`
	// Peak is the largest resident memory in bytes from loading to the end of the steps, or of
	// the whole run if the system cannot reset it. The others are anonymous memory in bytes:
	// Loaded before the first step, Level after the last one, Closed after everything was freed,
	// Trimmed after an additional malloc_trim.
	Peak    *int64 `json:"peak_bytes"`
	Loaded  *int64 `json:"loaded_bytes"`
	Level   *int64 `json:"level_bytes"`
	Closed  *int64 `json:"closed_bytes"`
	Trimmed *int64 `json:"trimmed_bytes"`
	// Pool is the most that TensorFlow's CPU allocators held at the end of an operation of the
	// traced step, without what they take from malloc. GPU is the most GPU memory that the
	// process held, and GPUPool the most that TensorFlow's GPU allocator had handed out.
	Pool    *int64 `json:"pool_bytes,omitempty"`
	GPU     *int64 `json:"gpu_bytes,omitempty"`
	GPUPool *int64 `json:"gpu_pool_bytes,omitempty"`
	// StepTime is in nanoseconds.
	StepTime *int64 `json:"step_ns"`
	// Seconds is the time of a whole run.
	Seconds float64 `json:"seconds"`
}

// RunResult is one child process.
type RunResult struct {
	ID       int    `json:"id"`
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	Remedy   string `json:"remedy"`
	// Pair counts from 0. Group is the group of remedies that shares a baseline.
	Pair  int `json:"pair"`
	Group int `json:"group"`
	// Key names the run and everything that its outcome depends on. A resumed matrix reuses a
	// run with the same key.
	Key     string         `json:"key"`
	Started time.Time      `json:"started"`
	Seconds float64        `json:"seconds"`
	Outcome memory.Outcome `json:"outcome"`
	// Phases has the samples between the phases of a run, by their names in package worker.
	Phases map[string]memory.Sample `json:"phases"`
	// Facts are those of the child, and "threads tf_Compute", which the parent counts at the end
	// of the steps.
	Facts map[string]string `json:"facts,omitempty"`
	// Series has a part of the samples between steps.
	Series *memory.Series `json:"series,omitempty"`
	// Unverified is as in Cell.
	Unverified string `json:"unverified,omitempty"`
	// Failure is empty if the run succeeded; Cause is the cause of the failure.
	Failure worker.Failure `json:"failure,omitempty"`
	Cause   string         `json:"cause,omitempty"`
	// Log is the end of the standard error of a failed run.
	Log string `json:"log,omitempty"`
}

// Claim is a statement that people make about TensorFlow's memory, with the measured answer.
type Claim struct {
	ID   string `json:"id"`
	Text string `json:"text"`
	// Says is the answer of the literature.
	Says string `json:"says"`
	// Verdicts has one entry for each runtime that tested the claim.
	Verdicts []ClaimVerdict `json:"verdicts"`
	// Needs says what a further test needs that this machine lacks, with its command. If it is
	// empty and there are no verdicts, the matrix had no test of the claim.
	Needs string `json:"needs,omitempty"`
}

// ClaimVerdict is the verdict on a claim on one runtime.
type ClaimVerdict struct {
	Runtime string `json:"runtime"`
	// Verdict is "holds", "holds in part", "does not hold", or "undecided".
	Verdict string `json:"verdict"`
	// Text is a sentence with the figures.
	Text string `json:"text"`
	// Cells are those that the verdict rests on, as "W4/close".
	Cells []string `json:"cells"`
}
