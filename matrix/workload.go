package matrix

import (
	"cmp"
	"maps"
)

// Runtimes, by the name that results and flags use.
const (
	Go      = "go"      // this project's packages
	Galeone = "galeone" // the Go binding that exists, as people use it
	Keras   = "keras"   // Keras in Python
)

// Runtimes are the names of all runtimes, in their order.
func Runtimes() []string { return []string{Go, Galeone, Keras} }

// Workload is a declaration: what runs, for how long, and what could change it.
type Workload struct {
	// ID is short, as in "W4"; Title says what it is in a few words; What says what
	// one step does.
	ID    string `json:"id"`
	Title string `json:"title"`
	What  string `json:"what"`
	// Expected is the prediction that was made before anything was measured.
	Expected string `json:"expected"`
	// Model is a built-in model, or empty.
	Model string `json:"model,omitempty"`
	// Steps, Every, Epoch and Batch are as in worker.Spec.
	Steps int `json:"steps"`
	Every int `json:"every"`
	Epoch int `json:"epoch"`
	Batch int `json:"batch"`
	// Budget is the growth in bytes per step that is no leak.
	Budget int64 `json:"budget_bytes"`
	// Leak is the slope that is built in, in bytes per step, for calibration; a
	// pointer to 0 is a control without a leak, nil is no calibration.
	Leak *int64 `json:"leak_bytes,omitempty"`
	// Limit is the memory in bytes that a child may use, 0 for no limit.
	Limit int64 `json:"limit_bytes,omitempty"`
	// Like is the ID of the workload that this one is a variant of, for its Params;
	// empty if it is none.
	Like string `json:"like,omitempty"`
	// Params are what the workload itself chooses, and Env what it adds to the
	// environment; those of a remedy come on top.
	Params map[string]string `json:"knobs,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	// Defaults are what knobs are at if nobody sets them, where that is what a remedy
	// would do, by runtime.
	Defaults map[string]map[string]string `json:"defaults,omitempty"`
	// On has what is different on a runtime.
	On map[string]Variant `json:"on,omitempty"`
	// NoSession means that no session of TensorFlow is opened, so that settings of
	// sessions have nothing to change.
	NoSession bool `json:"no_session,omitempty"`
	// Takes lists the knobs that the workload has beside those that every workload
	// has, by runtime. A runtime that is not listed cannot run the workload.
	Takes map[string][]string `json:"takes"`
}

// Variant is what a workload has different on one runtime. What is zero is the same
// there.
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

// does tells whether the workload does all that knobs say by itself.
func (w Workload) does(runtime string, knobs map[string]string) bool {
	for name, value := range knobs {
		set, ok := w.Params[name]
		if !ok {
			set, ok = w.Defaults[runtime][name]
		}
		if !ok || set != value {
			return false
		}
	}
	return len(knobs) > 0
}

// on is the workload as it is on a runtime.
func (w Workload) on(runtime string) Workload {
	v, ok := w.On[runtime]
	if !ok {
		return w
	}
	w.Steps, w.Every, w.Epoch = cmp.Or(v.Steps, w.Steps), cmp.Or(v.Every, w.Every), cmp.Or(v.Epoch, w.Epoch)
	w.Limit = cmp.Or(v.Limit, w.Limit)
	knobs := maps.Clone(w.Params)
	if knobs == nil {
		knobs = make(map[string]string)
	}
	maps.Copy(knobs, v.Params)
	w.Params = knobs
	return w
}
