package matrix

import (
	"errors"
	"strconv"

	"steadyfit/gpuopts"
	"steadyfit/memory"
)

// ErrUnknown: no workload, remedy or runtime of that name.
var ErrUnknown = errors.New("unknown")

// Remedy is a declaration: what people do about growing memory.
type Remedy struct {
	ID string `json:"id"`
	// Group is "lifetimes", "data", "session", "allocator", "runtime",
	// "precision", "gpu", "keras" or "combination".
	Group string `json:"group"`
	Title string `json:"title"`
	// Goal is what it is meant to lower.
	Goal memory.Goal `json:"goal"`
	// Env is added to the child's environment.
	Env map[string]string `json:"env,omitempty"`
	// Preload names an allocator library that is loaded before everything else:
	// "jemalloc", "tcmalloc", "mimalloc".
	Preload string `json:"preload,omitempty"`
	// Device are settings of every session of the child.
	Device *gpuopts.Options `json:"device,omitempty"`
	// Traced says what a step that is traced shows if the remedy took: that there
	// are operations of a kind (a fact of package cell), or that there are none.
	Traced map[string]bool `json:"traced,omitempty"`
	// PoolThreads is how many threads run operations side by side if the remedy took,
	// fewer than without it; 0 is not looked at.
	PoolThreads int `json:"pool_threads,omitempty"`
	// OtherGraph means that a traced step has another number of operations, of some
	// kind or in all, than without the remedy if it took, or that the loss at the end is
	// another one.
	OtherGraph bool `json:"other_graph,omitempty"`
	// OtherLoss means that the loss at the end is another one than without the remedy if
	// it took: it changes how numbers are computed.
	OtherLoss bool `json:"other_loss,omitempty"`
	// Unseen says why nothing shows whether it took; empty if something does.
	Unseen string `json:"unseen,omitempty"`
	// Params are what the child itself does.
	Params map[string]string `json:"knobs,omitempty"`
	// On has how it is applied on a runtime where that is otherwise.
	On map[string]Applied `json:"on,omitempty"`
	// Runtimes that it makes sense for; empty means all.
	Runtimes []string `json:"runtimes,omitempty"`
	// NeedsGPU means that it can only be applied where there is a GPU.
	NeedsGPU bool `json:"needs_gpu,omitempty"`
}

// Applied is how a remedy is applied, in place of its own Env, Device and Params.
type Applied struct {
	Env    map[string]string `json:"env,omitempty"`
	Device *gpuopts.Options  `json:"device,omitempty"`
	Params map[string]string `json:"knobs,omitempty"`
}

// dividesBatch is what the batch is divided by; 1 if it is left whole.
func (r Remedy) dividesBatch() int {
	n, err := strconv.Atoi(r.Params[batchDivide])
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// on is the remedy as it is on a runtime.
func (r Remedy) on(runtime string) Remedy {
	if a, ok := r.On[runtime]; ok {
		r.Env, r.Device, r.Params = a.Env, a.Device, a.Params
	}
	return r
}
