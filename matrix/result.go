package matrix

import (
	"time"

	"steadyfit/internal/lab/worker"
	"steadyfit/memory"
)

// SchemaVersion is the version of matrix.json that this package writes. A file of
// a later version is refused.
const SchemaVersion = 1

// Result is a whole matrix: what matrix.json holds.
type Result struct {
	Schema  int       `json:"schema"`
	Version string    `json:"steadyfit"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// Complete is false if the matrix was interrupted before all runs were done.
	Complete    bool        `json:"complete"`
	Environment Environment `json:"environment"`
	Settings    Settings    `json:"settings"`
	// Calibration says whether the instrument can be trusted.
	Calibration []Calibration `json:"calibration"`
	// Workloads and Remedies describe those that took part, in their order.
	Workloads []Workload `json:"workloads"`
	Remedies  []Remedy   `json:"remedies"`
	// Cells are ordered by runtime, workload, remedy. The cell with the remedy
	// Baseline is the workload as it is.
	Cells []Cell `json:"cells"`
	// Runs are the child processes, in the order in which they ran.
	Runs []RunResult `json:"runs"`
	// Claims is the ledger: what people say, and what was measured.
	Claims []Claim `json:"claims"`
}

// Environment is the machine that the matrix ran on.
type Environment struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`
	Limit  int64  `json:"memory_limit_bytes,omitempty"` // of the control group; 0 is none
	Go     string `json:"go"`
	// TensorFlow, Keras and Python are versions by runtime name, "go", "galeone",
	// "keras", of those that took part.
	TensorFlow map[string]string `json:"tensorflow"`
	Keras      string            `json:"keras,omitempty"`
	Python     string            `json:"python,omitempty"`
	// GPUs names each GPU; empty if there is none.
	GPUs []string `json:"gpus"`
	// Variables are the variables of the environment that TensorFlow, Go or an
	// allocator reads and that were set when the matrix started.
	Variables map[string]string `json:"variables"`
	// LoadBefore and LoadAfter are load averages over a minute.
	LoadBefore float64 `json:"load_before"`
	LoadAfter  float64 `json:"load_after"`
}

// Settings are what the matrix was asked for.
type Settings struct {
	Pairs      int     `json:"pairs"`
	Seed       int64   `json:"seed"`
	Confidence float64 `json:"confidence"`
	Quick      bool    `json:"quick"`
	// Jobs is how many runs there were at the same time.
	Jobs int `json:"jobs"`
	// Limit is the memory in bytes that each child could use, unless its workload has
	// a limit of its own; 0 is none. LimitKind is how children are held to a limit,
	// "control group" or "RLIMIT_DATA"; empty if none has one.
	Limit     int64  `json:"limit_bytes,omitempty"`
	LimitKind string `json:"limit_kind,omitempty"`
	// Timeout is the longest time, in seconds, from one message of a child to the
	// next.
	Timeout float64 `json:"timeout_seconds"`
}

// Calibration is a test of the instrument: a workload whose slope is known.
type Calibration struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	// Expected is the true slope in bytes per step: 0 for the control without a
	// leak.
	Expected float64 `json:"expected"`
	// Slope is what was measured, of all runs; Kinds the verdicts, one per run.
	Slope memory.Interval `json:"slope"`
	Kinds []memory.Kind   `json:"kinds"`
	// OK is true if a leak was recovered within 5%, or the control called flat, in
	// every run. Text says so in a sentence.
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// Cell is one workload with one remedy on one runtime.
type Cell struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	Remedy   string `json:"remedy"`
	// Effect is what the remedy did to what it is meant to lower.
	Effect memory.Effect `json:"effect"`
	// Reason says in a sentence why, also why a remedy could not be applied.
	Reason string `json:"reason"`
	// Comparison has the figures; it is nil for the baseline and for cells that
	// could not be compared.
	Comparison *memory.Comparison `json:"comparison,omitempty"`
	// Unverified says why it is not known whether the remedy took, as in "its step
	// cannot be traced"; empty if that was seen.
	Unverified string `json:"unverified,omitempty"`
	// Verdict is that of the run with the remedy that represents the others; see Middle.
	Verdict *memory.Verdict `json:"verdict,omitempty"`
	// Figures are medians over the runs with the remedy.
	Figures Figures `json:"figures"`
	// Runs are the IDs of the runs with the remedy; the IDs of the runs that they
	// were paired with are in Base, in the same order.
	Runs []int `json:"runs"`
	Base []int `json:"base,omitempty"`
	// Crashes are the causes of the runs that crashed.
	Crashes []string `json:"crashes,omitempty"`
}

// Figures are medians over runs. An amount that was not measured is null.
type Figures struct {
	// Slope is in bytes per step, of anonymous memory, with the range over runs.
	Slope memory.Interval `json:"slope"`
	// Peak is the largest resident memory in bytes from loading to the end of the steps, or
	// of the whole run where the system cannot reset it. The others are anonymous memory:
	// Loaded before the first step, Level after the last one, Closed after everything was
	// freed, Trimmed after malloc_trim in addition.
	Peak    *int64 `json:"peak_bytes"`
	Loaded  *int64 `json:"loaded_bytes"`
	Level   *int64 `json:"level_bytes"`
	Closed  *int64 `json:"closed_bytes"`
	Trimmed *int64 `json:"trimmed_bytes"`
	// Pool is the most that TensorFlow's allocators on the CPU held at the end of an
	// operation of the traced step, without what they take from malloc. GPU is the most that
	// the process held of a GPU's memory, and GPUPool the most that TensorFlow's allocator
	// on the GPU had given out.
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
	// Pair counts from 0; Group is the group of remedies that shares a baseline.
	Pair  int `json:"pair"`
	Group int `json:"group"`
	// Key names the run and everything that its outcome depends on; a resumed
	// matrix takes a run over if the key agrees.
	Key     string         `json:"key"`
	Started time.Time      `json:"started"`
	Seconds float64        `json:"seconds"`
	Outcome memory.Outcome `json:"outcome"`
	// Phases are the samples at the turning points, by the names of package worker.
	Phases map[string]memory.Sample `json:"phases"`
	// Facts are those of the child, and "threads tf_Compute", which the parent counts at
	// the end of the steps.
	Facts map[string]string `json:"facts,omitempty"`
	// Series are the samples between steps, thinned.
	Series *memory.Series `json:"series,omitempty"`
	// Unverified is as in Cell.
	Unverified string `json:"unverified,omitempty"`
	// Failure is empty if the run succeeded; Cause is why it did not.
	Failure worker.Failure `json:"failure,omitempty"`
	Cause   string         `json:"cause,omitempty"`
	// Log is the end of what a run that failed wrote to standard error.
	Log string `json:"log,omitempty"`
}

// Claim is something that people say about TensorFlow's memory, with what was
// measured.
type Claim struct {
	ID   string `json:"id"`
	Text string `json:"text"`
	// Says is what the literature says of it.
	Says string `json:"says"`
	// Verdicts has one entry per runtime that tested it.
	Verdicts []ClaimVerdict `json:"verdicts"`
	// Needs is what a further test needs that this machine lacks, and its command. If it
	// is empty and there are no verdicts, the matrix had no test of the claim.
	Needs string `json:"needs,omitempty"`
}

// ClaimVerdict is what was measured of a claim on one runtime.
type ClaimVerdict struct {
	Runtime string `json:"runtime"`
	// Verdict is "holds", "holds in part", "does not hold", or "undecided".
	Verdict string `json:"verdict"`
	// Text has the figures, in a sentence.
	Text string `json:"text"`
	// Cells are what it rests on, as "W4/close".
	Cells []string `json:"cells"`
}
