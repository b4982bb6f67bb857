package matrix

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"

	"steadyfit/gpuopts"
	"steadyfit/internal/nearest"
	"steadyfit/memory"
)

// Runtimes, by the names that results and flags use.
const (
	Go      = "go"      // this project's packages
	Galeone = "galeone" // the Go binding galeone/tensorflow, as its users use it
	Keras   = "keras"   // Keras in Python
)

// Runtimes returns the names of all runtimes, in their order.
func Runtimes() []string { return []string{Go, Galeone, Keras} }

// User is the ID of the workload that trains the user's own model. Baseline is the ID of the
// remedy that changes nothing.
const (
	User     = "user"
	Baseline = "none"
)

// ErrUnknown means that no workload, remedy or runtime has the name.
var ErrUnknown = errors.New("unknown")

// Workload is a training loop or a part of one: its code, its length and its parameters.
type Workload struct {
	// ID is short, as in "W4". What describes one step.
	ID    string `json:"id"`
	Title string `json:"title"`
	What  string `json:"what"`
	// Expected is the prediction that was made before anything was measured.
	Expected string `json:"expected"`
	// Model is the name of a built-in model, or empty.
	Model string `json:"model,omitempty"`
	// Steps is the length of a run, of which every Every-th step is sampled. Epoch is the number
	// of steps per epoch, and Batch the number of samples per step.
	Steps int `json:"steps"`
	Every int `json:"every"`
	Epoch int `json:"epoch"`
	Batch int `json:"batch"`
	// Budget is the growth in bytes per step that does not count as a leak.
	Budget int64 `json:"budget_bytes"`
	// Leak is the built-in slope in bytes per step, for calibration. It is 0 for a control
	// without a leak and nil for a workload without calibration.
	Leak *int64 `json:"leak_bytes,omitempty"`
	// Limit is the memory limit of a child in bytes; 0 is no limit.
	Limit int64 `json:"limit_bytes,omitempty"`
	// Like is the ID of the workload whose code runs with these Params; empty for its own code.
	Like string `json:"like,omitempty"`
	// Params and Env are the parameters and environment variables that the workload sets. A
	// remedy overrides them.
	Params map[string]string `json:"knobs,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	// Defaults are the values, by runtime, of parameters that are not set. A remedy that sets
	// the same value changes nothing.
	Defaults map[string]map[string]string `json:"defaults,omitempty"`
	// On has the differences of the workload on a runtime.
	On map[string]Variant `json:"on,omitempty"`
	// NoSession means that the workload opens no session, so that session settings have no
	// effect.
	NoSession bool `json:"no_session,omitempty" yaml:"no_session"`
	// Takes lists the parameters that the workload takes, by runtime. All workloads also take gc
	// and trim. The workload does not run on a runtime that is not listed.
	Takes map[string][]string `json:"takes"`
}

// Variant has the values of a workload that differ on one runtime; zero values mean no
// difference.
type Variant struct {
	Steps  int               `json:"steps,omitempty"`
	Every  int               `json:"every,omitempty"`
	Epoch  int               `json:"epoch,omitempty"`
	Limit  int64             `json:"limit_bytes,omitempty"`
	Params map[string]string `json:"knobs,omitempty"`
}

// RunsOn reports whether a runtime can run the workload.
func (w Workload) RunsOn(runtime string) bool {
	_, ok := w.Takes[runtime]
	return ok
}

// does reports whether the workload sets all of these parameters itself.
func (w Workload) does(runtime string, params map[string]string) bool {
	for name, value := range params {
		set, ok := w.Params[name]
		if !ok {
			set, ok = w.Defaults[runtime][name]
		}
		if !ok || set != value {
			return false
		}
	}
	return len(params) > 0
}

// on returns the workload with its differences on a runtime applied.
func (w Workload) on(runtime string) Workload {
	v := w.On[runtime]
	w.Steps, w.Every, w.Epoch = cmp.Or(v.Steps, w.Steps), cmp.Or(v.Every, w.Every), cmp.Or(v.Epoch, w.Epoch)
	w.Limit = cmp.Or(v.Limit, w.Limit)
	w.Params = merged(w.Params, v.Params)
	return w
}

// merged returns the entries of both maps; those of the second one override.
func merged(a, b map[string]string) map[string]string {
	all := make(map[string]string)
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// Remedy is a measure that people take against growing memory: its settings, and the signs in a
// run that it took effect.
type Remedy struct {
	ID string `json:"id"`
	// Group is the section of the report, as in "lifetimes" or "allocator".
	Group string `json:"group"`
	Title string `json:"title"`
	// Goal is the amount that the remedy is meant to lower.
	Goal memory.Goal `json:"goal"`
	// Env is added to the child's environment.
	Env map[string]string `json:"env,omitempty"`
	// Preload is an allocator that is loaded before all other libraries: "jemalloc", "tcmalloc"
	// or "mimalloc".
	Preload string `json:"preload,omitempty"`
	// Device has settings for every session of the child.
	Device *gpuopts.Options `json:"device,omitempty"`
	// Traced lists kinds of operations, by their facts: true if a traced step has such
	// operations when the remedy took effect, false if it has none.
	Traced map[string]bool `json:"traced,omitempty"`
	// PoolThreads is the number of inter-op threads when the remedy took effect, which is fewer
	// than without it. It is not checked if it is 0.
	PoolThreads int `json:"pool_threads,omitempty" yaml:"pool_threads"`
	// OtherGraph means that the remedy changes the number of operations of some kind in a traced
	// step, or the loss at the end.
	OtherGraph bool `json:"other_graph,omitempty" yaml:"other_graph"`
	// OtherLoss means that the remedy changes the loss at the end.
	OtherLoss bool `json:"other_loss,omitempty" yaml:"other_loss"`
	// Unseen is the reason why no run shows whether the remedy took effect; empty if one does.
	Unseen string `json:"unseen,omitempty"`
	// Params are parameters of the child.
	Params map[string]string `json:"knobs,omitempty"`
	// On has the settings for runtimes where they differ.
	On map[string]Applied `json:"on,omitempty"`
	// Runtimes lists the runtimes that the remedy makes sense for; empty means all.
	Runtimes []string `json:"runtimes,omitempty"`
	// NeedsGPU means that the remedy can only be applied on a machine with a GPU.
	NeedsGPU bool `json:"needs_gpu,omitempty" yaml:"needs_gpu"`
}

// Applied has settings that replace the Env, Device and Params of a remedy.
type Applied struct {
	Env    map[string]string `json:"env,omitempty"`
	Device *gpuopts.Options  `json:"device,omitempty"`
	Params map[string]string `json:"knobs,omitempty"`
}

// batchDivide is the only parameter that the parent applies, since it is the same for all
// runtimes: it divides the batch of the Spec and changes nothing else (worker.Spec.SetSize).
const batchDivide = "batch_divide"

// dividesBatch returns the divisor of the batch; 1 if the batch stays whole.
func (r Remedy) dividesBatch() int {
	n, err := strconv.Atoi(r.Params[batchDivide])
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// on returns the remedy with its settings for a runtime.
func (r Remedy) on(runtime string) Remedy {
	if a, ok := r.On[runtime]; ok {
		r.Env, r.Device, r.Params = a.Env, a.Device, a.Params
	}
	return r
}

//go:embed workloads.yaml
var workloadsYAML []byte

//go:embed remedies.yaml
var remediesYAML []byte

// sets are the names in workloads.yaml that stand for several parameters, by runtime.
var sets = map[string]map[string][]string{
	"$trainer": {
		Go:      {"reset", "micro", "prefetch", "eager", "model"},
		Galeone: {"release", "reset", "model"},
		Keras:   {"loop", "clear_session", "del", "eager", "data", "prefetch", "cache", "callback", "mixed", "reset"},
	},
	"$runtime": {Keras: {"intra", "inter", "jit", "grappler", "bf16"}},
}

// catalog parses the embedded tables. A test checks them for errors.
var catalog = sync.OnceValues(func() (all struct {
	workloads []Workload
	remedies  []Remedy
}, err error) {
	parse := func(text []byte, into any) error {
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		return d.Decode(into)
	}
	err = errors.Join(parse(workloadsYAML, &all.workloads), parse(remediesYAML, &all.remedies))
	for _, w := range all.workloads {
		for runtime, names := range w.Takes {
			full := []string{}
			for _, name := range names {
				if set, ok := sets[name]; ok {
					full = append(full, set[runtime]...)
				} else {
					full = append(full, name)
				}
			}
			w.Takes[runtime] = full
		}
	}
	return all, err
})

// Workloads returns all workloads of the matrix, in the order of the report.
func Workloads() []Workload {
	all, _ := catalog()
	return slices.Clone(all.workloads)
}

// Remedies returns all remedies of the matrix, in the order of the report. The first one is the
// baseline.
func Remedies() []Remedy {
	all, _ := catalog()
	return slices.Clone(all.remedies)
}

// FindWorkload returns the workload with an ID. Its error suggests the nearest IDs.
func FindWorkload(id string) (Workload, error) {
	return find("workload", id, Workloads(), func(w Workload) string { return w.ID })
}

// FindRemedy returns the remedy with an ID. Its error suggests the nearest IDs.
func FindRemedy(id string) (Remedy, error) {
	return find("remedy", id, Remedies(), func(r Remedy) string { return r.ID })
}

func find[T any](kind, id string, all []T, name func(T) string) (found T, err error) {
	var names []string
	for _, x := range all {
		if name(x) == id {
			return x, nil
		}
		names = append(names, name(x))
	}
	names = nearest.Sort(id, names)
	return found, fmt.Errorf("%w: %s %q; the nearest are %s", ErrUnknown, kind, id, strings.Join(names[:min(5, len(names))], ", "))
}
