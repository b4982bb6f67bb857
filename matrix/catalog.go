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

// Runtimes, by the name that results and flags use.
const (
	Go      = "go"      // this project's packages
	Galeone = "galeone" // the Go binding that exists, as people use it
	Keras   = "keras"   // Keras in Python
)

// Runtimes are the names of all runtimes, in their order.
func Runtimes() []string { return []string{Go, Galeone, Keras} }

// User is the ID of the workload that trains the user's own model, and Baseline that of
// the remedy that changes nothing.
const (
	User     = "user"
	Baseline = "none"
)

// ErrUnknown means that there is no workload, remedy or runtime of that name.
var ErrUnknown = errors.New("unknown")

// Workload is a training loop or a part of one: what runs, for how long, and which
// parameters it has.
type Workload struct {
	// ID is short, as in "W4". What says what one step does.
	ID    string `json:"id"`
	Title string `json:"title"`
	What  string `json:"what"`
	// Expected is the prediction that was made before anything was measured.
	Expected string `json:"expected"`
	// Model is a built-in model, or empty.
	Model string `json:"model,omitempty"`
	// Steps of a run, of which every Every-th is sampled. Epoch is the steps of an epoch,
	// and Batch the samples of a step.
	Steps int `json:"steps"`
	Every int `json:"every"`
	Epoch int `json:"epoch"`
	Batch int `json:"batch"`
	// Budget is the growth in bytes per step that is no leak.
	Budget int64 `json:"budget_bytes"`
	// Leak is the slope that is built in, in bytes per step, for calibration: 0 for a
	// control without a leak, nil for no calibration.
	Leak *int64 `json:"leak_bytes,omitempty"`
	// Limit is the memory in bytes that a child may use, 0 for no limit.
	Limit int64 `json:"limit_bytes,omitempty"`
	// Like is the ID of the workload that runs with these Params; empty for its own.
	Like string `json:"like,omitempty"`
	// Params are parameters that the workload sets, and Env variables. A remedy
	// overrides them.
	Params map[string]string `json:"knobs,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	// Defaults are the values of parameters that nobody sets, by runtime, where a remedy
	// would set the same.
	Defaults map[string]map[string]string `json:"defaults,omitempty"`
	// On has what is different on a runtime.
	On map[string]Variant `json:"on,omitempty"`
	// NoSession means that no session is opened, so that settings of sessions change
	// nothing.
	NoSession bool `json:"no_session,omitempty" yaml:"no_session"`
	// Takes lists the parameters of the workload by runtime, beside gc and trim, which
	// all have. It does not run on a runtime that is not listed.
	Takes map[string][]string `json:"takes"`
}

// Variant is what a workload has different on one runtime; zero is the same.
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

// on is the workload as it is on a runtime.
func (w Workload) on(runtime string) Workload {
	v := w.On[runtime]
	w.Steps, w.Every, w.Epoch = cmp.Or(v.Steps, w.Steps), cmp.Or(v.Every, w.Every), cmp.Or(v.Epoch, w.Epoch)
	w.Limit = cmp.Or(v.Limit, w.Limit)
	w.Params = merged(w.Params, v.Params)
	return w
}

// merged are the entries of both maps; those of the second one override.
func merged(a, b map[string]string) map[string]string {
	all := make(map[string]string)
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// Remedy is what people do about growing memory: what it sets, and how a run shows that
// it took effect.
type Remedy struct {
	ID string `json:"id"`
	// Group is a chapter of the report, as in "lifetimes" or "allocator".
	Group string `json:"group"`
	Title string `json:"title"`
	// Goal is what it is meant to lower.
	Goal memory.Goal `json:"goal"`
	// Env is added to the child's environment.
	Env map[string]string `json:"env,omitempty"`
	// Preload is an allocator that is loaded before everything else: "jemalloc",
	// "tcmalloc", "mimalloc".
	Preload string `json:"preload,omitempty"`
	// Device are settings of every session of the child.
	Device *gpuopts.Options `json:"device,omitempty"`
	// Traced is what a traced step shows if the remedy took effect: operations of a kind
	// (by their facts), or none.
	Traced map[string]bool `json:"traced,omitempty"`
	// PoolThreads is the number of threads that run operations side by side if the remedy
	// took effect, fewer than without it; 0 is not checked.
	PoolThreads int `json:"pool_threads,omitempty" yaml:"pool_threads"`
	// OtherGraph means that a traced step then differs in its number of operations of
	// some kind, or the loss at the end differs.
	OtherGraph bool `json:"other_graph,omitempty" yaml:"other_graph"`
	// OtherLoss means that the loss at the end then differs.
	OtherLoss bool `json:"other_loss,omitempty" yaml:"other_loss"`
	// Unseen is why nothing shows whether it took effect; empty if something does.
	Unseen string `json:"unseen,omitempty"`
	// Params are parameters of the child.
	Params map[string]string `json:"knobs,omitempty"`
	// On has how it is applied on a runtime where that differs.
	On map[string]Applied `json:"on,omitempty"`
	// Runtimes that it makes sense for; empty means all.
	Runtimes []string `json:"runtimes,omitempty"`
	// NeedsGPU means that it can only be applied where there is a GPU.
	NeedsGPU bool `json:"needs_gpu,omitempty" yaml:"needs_gpu"`
}

// Applied is how a remedy is applied, in place of its own Env, Device and Params.
type Applied struct {
	Env    map[string]string `json:"env,omitempty"`
	Device *gpuopts.Options  `json:"device,omitempty"`
	Params map[string]string `json:"knobs,omitempty"`
}

// batchDivide is the one parameter that the parent applies, since it is the same for all
// runtimes: it divides the batch of the Spec, and nothing else (worker.Spec.SetSize).
const batchDivide = "batch_divide"

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

//go:embed workloads.yaml
var workloadsYAML []byte

//go:embed remedies.yaml
var remediesYAML []byte

// sets are the names that stand for several parameters in workloads.yaml, by runtime.
var sets = map[string]map[string][]string{
	"$trainer": {
		Go:      {"reset", "micro", "prefetch", "eager", "model"},
		Galeone: {"release", "reset", "model"},
		Keras:   {"loop", "clear_session", "del", "eager", "data", "prefetch", "cache", "callback", "mixed", "reset"},
	},
	"$runtime": {Keras: {"intra", "inter", "jit", "grappler", "bf16"}},
}

// catalog parses the embedded tables, which a test checks for errors.
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

// Workloads are all workloads of the matrix, in the order of the report.
func Workloads() []Workload {
	all, _ := catalog()
	return slices.Clone(all.workloads)
}

// Remedies are all remedies of the matrix, in the order of the report. The first one is
// the baseline.
func Remedies() []Remedy {
	all, _ := catalog()
	return slices.Clone(all.remedies)
}

// FindWorkload finds a workload by its ID; the error offers the nearest ones.
func FindWorkload(id string) (Workload, error) {
	return find("workload", id, Workloads(), func(w Workload) string { return w.ID })
}

// FindRemedy finds a remedy by its ID; the error offers the nearest ones.
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
