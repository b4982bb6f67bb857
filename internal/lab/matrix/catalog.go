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
	"sync"

	"go.yaml.in/yaml/v3"

	"steadyfit/gpuopts"
	"steadyfit/internal/lab/compare"
)

// The runtimes, as results and flags name them.
const (
	Go      = "go"      // this project's packages
	Galeone = "galeone" // the Go binding galeone/tensorflow, as its users use it
	Keras   = "keras"   // Keras in Python
	Program = "program" // a program of the user; also the ID of its workload
)

// Runtimes returns the names of the runtimes that a plan may choose.
func Runtimes() []string { return []string{Go, Galeone, Keras} }

// User is the ID of the workload that trains the user's own model. Baseline is the ID of the
// remedy that changes nothing.
const (
	User     = "user"
	Baseline = "none"
)

// ErrUnknown means that no workload, remedy or runtime has the name.
var ErrUnknown = errors.New("unknown")

// Workload is a training loop or a part of one, with its length and parameters.
type Workload struct {
	// ID is short, as in "W4". The field What describes one step.
	ID    string `json:"id"`
	Title string `json:"title"`
	What  string `json:"what"`
	// Expected is a prediction from before the first measurement.
	Expected string `json:"expected"`
	// Model is the name of a built-in model, or empty.
	Model string `json:"model,omitempty"`
	// Steps is the number of steps of a run. One sample is taken every Every steps. Epoch is
	// the number of steps per epoch, Batch the number of training samples per step.
	Steps int `json:"steps"`
	Every int `json:"every"`
	Epoch int `json:"epoch"`
	Batch int `json:"batch"`
	// Budget is the growth in bytes per step that is not yet a leak.
	Budget int64 `json:"budget_bytes"`
	// Leak is the known growth in bytes per step of a calibration workload; nil for other
	// workloads.
	Leak *int64 `json:"leak_bytes,omitempty"`
	// Limit is the memory limit of the child process in bytes; 0 is no limit.
	Limit int64 `json:"limit_bytes,omitempty"`
	// Like is the ID of the workload whose program runs with these Params; empty means the workload's own. Script is the
	// file of the program on Keras, and Mark matches the lines of its output that end a step, if it has no other marks.
	Like   string `json:"like,omitempty"`
	Script string `json:"script,omitempty"`
	Mark   string `json:"mark,omitempty"`
	// Params and Env are parameters and environment variables of the child. A remedy's Params and
	// Env override them.
	Params map[string]string `json:"knobs,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	// Defaults has the values, by runtime, of parameters that are not set.
	Defaults map[string]map[string]string `json:"defaults,omitempty"`
	// On has the values that differ on a runtime. Zero values are ignored.
	On map[string]struct {
		Steps  int               `json:"steps,omitempty"`
		Every  int               `json:"every,omitempty"`
		Epoch  int               `json:"epoch,omitempty"`
		Limit  int64             `json:"limit_bytes,omitempty"`
		Params map[string]string `json:"knobs,omitempty"`
	} `json:"on,omitempty"`
	// NoSession means that session settings have no effect, as no session is opened.
	NoSession bool `json:"no_session,omitempty" yaml:"no_session"`
	// Takes lists the options of the program by runtime, besides gc and trim. The workload does not run on other runtimes.
	Takes map[string][]string `json:"takes"`
}

// runsOn reports whether a runtime can run the workload.
func (w Workload) runsOn(runtime string) bool {
	_, ok := w.Takes[runtime]
	return ok
}

// does reports whether the workload without a remedy already has these values of these parameters.
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

// For returns the workload as it runs on a runtime.
func (w Workload) For(runtime string) Workload {
	v := w.On[runtime]
	w.Steps, w.Every, w.Epoch = cmp.Or(v.Steps, w.Steps), cmp.Or(v.Every, w.Every), cmp.Or(v.Epoch, w.Epoch)
	w.Limit = cmp.Or(v.Limit, w.Limit)
	w.Params = merged(w.Params, v.Params)
	return w
}

func merged(a, b map[string]string) map[string]string {
	all := make(map[string]string)
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// Remedy is a setting or a change of the training loop that is said to lower memory, with the
// signs that it took effect.
type Remedy struct {
	ID string `json:"id"`
	// Group is the section of the report, as in "allocator".
	Group string `json:"group"`
	Title string `json:"title"`
	// Goal is the amount that the remedy should lower.
	Goal compare.Goal `json:"goal"`
	// Env is added to the child's environment.
	Env map[string]string `json:"env,omitempty"`
	// Preload is an allocator to load before all other libraries: "jemalloc", "tcmalloc" or
	// "mimalloc".
	Preload string `json:"preload,omitempty"`
	// Device has settings for every session of the child.
	Device *gpuopts.Options `json:"device,omitempty"`
	// Traced has kinds of operations, by the names of facts. A traced step with the remedy has
	// such an operation if the value is true, and none if it is false.
	Traced map[string]bool `json:"traced,omitempty"`
	// OtherGraph means that the remedy changes the operations of a traced step, or the final
	// loss.
	OtherGraph bool `json:"other_graph,omitempty" yaml:"other_graph"`
	// OtherLoss means that the remedy changes the final loss.
	OtherLoss bool `json:"other_loss,omitempty" yaml:"other_loss"`
	// Unseen is the reason why no run can show that the remedy took effect; empty if one can.
	Unseen string `json:"unseen,omitempty"`
	// Params are parameters of the child.
	Params map[string]string `json:"knobs,omitempty"`
	// Change is the name of a change that watch makes in a Python program.
	Change string `json:"change,omitempty"`
	// On replaces Env, Device, Params and Change on a runtime.
	On map[string]struct {
		Change string            `json:"change,omitempty"`
		Env    map[string]string `json:"env,omitempty"`
		Device *gpuopts.Options  `json:"device,omitempty"`
		Params map[string]string `json:"knobs,omitempty"`
	} `json:"on,omitempty"`
	// Runtimes lists the runtimes that can have the remedy; empty means all.
	Runtimes []string `json:"runtimes,omitempty"`
	NeedsGPU bool     `json:"needs_gpu,omitempty" yaml:"needs_gpu"`
}

// batchDivide is the parameter by whose value Batch is divided. The parent process divides Batch,
// because that works the same way on all runtimes.
const batchDivide = "batch_divide"

func (r Remedy) dividesBatch() int {
	n, err := strconv.Atoi(r.Params[batchDivide])
	if err != nil || n < 1 {
		return 1
	}
	return n
}

func (r Remedy) on(runtime string) Remedy {
	if a, ok := r.On[runtime]; ok {
		r.Env, r.Device, r.Params, r.Change = a.Env, a.Device, a.Params, a.Change
	}
	return r
}

//go:embed workloads.yaml
var workloadsYAML []byte

//go:embed remedies.yaml
var remediesYAML []byte

// parse decodes YAML into a value, and refuses unknown fields.
func parse(text []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	return d.Decode(into)
}

// catalog parses the embedded tables. A test reports their errors.
var catalog = sync.OnceValues(func() (all struct {
	workloads []Workload
	remedies  []Remedy
}, err error) {
	err = errors.Join(parse(workloadsYAML, &all.workloads), parse(remediesYAML, &all.remedies))
	return all, err
})

// Workloads returns all workloads in the order of the report.
func Workloads() []Workload {
	all, _ := catalog()
	return slices.Clone(all.workloads)
}

// Remedies returns all remedies in the order of the report. The first one is the baseline.
func Remedies() []Remedy {
	all, _ := catalog()
	return slices.Clone(all.remedies)
}

// FindWorkload returns the workload with an ID.
func FindWorkload(id string) (Workload, error) {
	return find("workload", id, Workloads(), func(w Workload) string { return w.ID })
}

// FindRemedy returns the remedy with an ID.
func FindRemedy(id string) (Remedy, error) {
	return find("remedy", id, Remedies(), func(r Remedy) string { return r.ID })
}

func find[T any](kind, id string, all []T, name func(T) string) (found T, err error) {
	for _, x := range all {
		if name(x) == id {
			return x, nil
		}
	}
	return found, fmt.Errorf("%w: %s %q; the help of matrix lists them", ErrUnknown, kind, id)
}
