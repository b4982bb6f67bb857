// Package explain shows what holds memory at the peak of a training step, and what grows from step
// to step. It is for one model with its data on this machine; package matrix compares remedies.
//
// # Measurement
//
// [Measure] trains in this process, which must be new: it reads the memory after each phase (data read,
// TensorFlow loaded, model open, steps). After the warm-up, Measure resets the kernel's peak before each of
// some steps and keeps the highest one. It then traces one more step. The Go heap is measured after a
// garbage collection, since that is its size in a longer training. The model is not saved.
//
// # Parts
//
// The peak is resident memory (VmHWM). Its parts come from four sources:
//
//   - /proc/self/status and the Go runtime: pages of files, Go's memory, and all other anonymous memory,
//     which is native memory.
//   - The model and the dataset: sizes of variables by role, and of arrays.
//   - The trace: the operations that hold memory at the moment when their total is highest.
//   - malloc's statistics: memory in use after each phase, which gives what TensorFlow needs for itself,
//     and memory that is free.
//
// The free memory of TensorFlow's pool and of malloc is a part as well. It is limited to what malloc
// reports and to what the other parts leave. The rest of the peak is the part [Unattributed]. The sum of
// the parts may exceed the peak, since memory that was never written is not resident. [Part.Unwritten] is
// the amount of such memory in the workspace of kernels. [Report.Excess] is the excess that remains.
package explain

import (
	"cmp"
	"slices"

	"steadyfit/memory"
)

// Report is the result of a measurement.
type Report struct {
	// Model and Data are names. Batch is the number of samples of a step, at most that of the
	// dataset.
	Model string `json:"model"`
	Data  string `json:"data"`
	Batch int    `json:"batch"`
	// MicroBatches is the number of micro-batches of a batch. The peak is measured over one execution
	// of StepsPerExecution steps.
	MicroBatches      int `json:"micro_batches"`
	StepsPerExecution int `json:"steps_per_execution"`
	// TensorFlow is the version of the library. OneDNN reports whether oneDNN is on, and Malloc
	// names the allocator of the process.
	TensorFlow string `json:"tensorflow"`
	OneDNN     bool   `json:"onednn"`
	Malloc     string `json:"malloc"`
	// OnGPU is true if operations allocate memory of a GPU. Variables are then not in Parts.
	OnGPU bool `json:"on_gpu"`
	// PeakBytes is the largest resident memory during the explained step.
	PeakBytes memory.Bytes `json:"peak_bytes"`
	// BeforeBytes is the resident memory before that step, AnonBytes its anonymous part.
	BeforeBytes memory.Bytes `json:"before_bytes"`
	AnonBytes   memory.Bytes `json:"anon_bytes"`
	// ProcessPeakBytes is the largest resident memory of the process. It may have occurred while
	// the model was loaded or in the first steps.
	ProcessPeakBytes memory.Bytes `json:"process_peak_bytes"`
	// Steps is the number of steps before the explained one, StepSeconds their median time.
	Steps       int     `json:"steps"`
	StepSeconds float64 `json:"step_seconds"`
	// Parts sum up to PeakBytes, or to more; see Excess. The largest is first.
	Parts []Part `json:"parts"`
	// Growth is the verdict on the steps before the explained one.
	Growth memory.Verdict `json:"growth"`
	// GrowthText describes Growth in one line.
	GrowthText string `json:"growth_text"`
	// Samples is the anonymous memory after these steps.
	Samples Samples `json:"samples"`
	// Timeline is the memory that operations hold in the course of a step.
	Timeline Timeline `json:"timeline"`
}

// Samples is the anonymous memory after some of the steps: Anon[i] after step Steps[i].
type Samples struct {
	Steps []int          `json:"steps"`
	Anon  []memory.Bytes `json:"anon"`
}

// The names of parts.
const (
	Files        = "pages of files"
	GoRuntime    = "go runtime"
	Dataset      = "dataset in memory"
	Prefetched   = "prefetched batches"
	Inputs       = "input buffers"
	Tensors      = "open tensors"
	Weights      = "weights"
	Optimizer    = "optimizer state"
	OtherVars    = "other variables"
	Activations  = "activations"
	Gradients    = "gradients"
	Update       = "update of weights"
	Workspace    = "workspace of kernels"
	Registries   = "tensorflow registries"
	Graph        = "graph of the model"
	Executors    = "executors of steps"
	PoolSlack    = "pool slack"
	MallocSlack  = "malloc slack"
	Unattributed = "unattributed"
)

// Part is a part of the peak.
type Part struct {
	Name  string       `json:"name"`
	Bytes memory.Bytes `json:"bytes"`
	// Unwritten is memory of the part that was allocated but never written. It is not resident, and not
	// included in Bytes.
	Unwritten memory.Bytes `json:"unwritten_bytes,omitempty"`
	// Of are the largest holders: operations, variables or files. Their amounts include memory that
	// was never written.
	Of []Holder `json:"of,omitempty"`
	// More is the number of smaller holders.
	More int `json:"more,omitempty"`
}

// Holder is an operation, a variable or a file that holds memory.
type Holder struct {
	Name  string       `json:"name"`
	Bytes memory.Bytes `json:"bytes"`
	// Layer is the layer of the model that an operation comes from, and Type the operation's type.
	Layer string `json:"layer,omitempty"`
	Type  string `json:"type,omitempty"`
}

// Total returns the number of holders.
func (p Part) Total() int { return len(p.Of) + p.More }

// holders is the maximum length of Part.Of.
const holders = 8

// newPart makes a part of holders, which are merged by name.
func newPart(name string, all []Holder) Part {
	p := Part{Name: name}
	at := map[string]int{}
	for _, h := range all {
		p.Bytes += h.Bytes
		i, ok := at[h.Name]
		if !ok {
			i = len(p.Of)
			at[h.Name] = i
			p.Of = append(p.Of, Holder{Name: h.Name, Layer: h.Layer, Type: h.Type})
		}
		p.Of[i].Bytes += h.Bytes
	}
	slices.SortFunc(p.Of, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	if len(p.Of) > holders {
		p.More = len(p.Of) - holders
		p.Of = p.Of[:holders]
	}
	return p
}

// Sum returns the sum of the parts.
func (r *Report) Sum() (sum memory.Bytes) {
	for _, p := range r.Parts {
		sum += p.Bytes
	}
	return sum
}

// Excess returns by how much the parts exceed the peak.
func (r *Report) Excess() memory.Bytes { return max(r.Sum()-r.PeakBytes, 0) }

// Part returns the size of a part; 0 if there is none.
func (r *Report) Part(name string) memory.Bytes {
	for _, p := range r.Parts {
		if p.Name == name {
			return p.Bytes
		}
	}
	return 0
}
