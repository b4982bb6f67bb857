package autotune

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// Configuration is a way to run the steps of a training. The zero value is plain: one step per
// execution, the signature as exported, and the settings of the options.
type Configuration struct {
	// MicroBatches has the meaning of session.Options; 0 means whole batches. Choose never sets it.
	MicroBatches int `json:"micro_batches,omitempty"`
	// StepsPerExecution is the number of steps of an execution; 0 means 1.
	StepsPerExecution int `json:"steps_per_execution,omitempty"`
	// Compiled uses the XLA-compiled signature.
	Compiled bool `json:"compiled,omitempty"`
	// Executor, IntraThreads and InterThreads have the meaning of gpuopts.Options; zero values
	// change nothing.
	Executor     string `json:"executor,omitempty"`
	IntraThreads int    `json:"intra_threads,omitempty"`
	InterThreads int    `json:"inter_threads,omitempty"`
	// OneDNN turns oneDNN on or off, and Allocator replaces malloc (a name of
	// tfprocess.FindAllocator, or tfprocess.Mmap), both with the variables of Environment.
	OneDNN    string `json:"onednn,omitempty"`
	Allocator string `json:"allocator,omitempty"`
	// NoPrefetch disables reading batches ahead. Choose never sets it.
	NoPrefetch bool `json:"no_prefetch,omitempty"`
}

// Plain reports whether the configuration changes nothing.
func (c Configuration) Plain() bool { return c == Configuration{} }

// String returns the configuration in words, as in "50 steps per execution, XLA-compiled".
func (c Configuration) String() string {
	var words []string
	add := func(when bool, format string, args ...any) {
		if when {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(c.OneDNN != "", "oneDNN %s", c.OneDNN)
	add(c.MicroBatches > 1, "%d micro-batches", c.MicroBatches)
	add(c.StepsPerExecution > 1, "%d steps per execution", c.StepsPerExecution)
	add(c.Compiled, "XLA-compiled")
	add(c.Executor != "", "single-threaded executor")
	add(c.Executor == "" && c.InterThreads > 0, "inter threads %d", c.InterThreads)
	add(c.IntraThreads > 0, "intra threads %d", c.IntraThreads)
	add(c.Allocator != "", "%s", c.Allocator)
	add(c.NoPrefetch, "no prefetching")
	return cmp.Or(strings.Join(words, ", "), "plain")
}

// Environment lists the variables that the configuration needs and this process does not have, for a child
// process. It returns an error if the allocator is not installed, or a variable of it has another value.
func (c Configuration) Environment() (missing []gpuopts.Variable, err error) {
	oneDNN, err := gpuopts.Options{OneDNN: c.OneDNN}.Environment()
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	_, missing, err = gpuopts.With(env, oneDNN)
	if err != nil {
		missing = oneDNN // the child gets this value instead of the present one
	}
	var wanted []gpuopts.Variable
	variable := func(name, value string) {
		wanted = append(wanted, gpuopts.Variable{Name: name, Value: value, For: c.Allocator})
	}
	switch c.Allocator {
	case "":
	case tfprocess.Mmap:
		if c.OneDNN != "off" {
			variable("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
		}
		variable("MALLOC_MMAP_THRESHOLD_", strconv.Itoa(tfprocess.MmapThreshold))
	default:
		path, err := tfprocess.FindAllocator(c.Allocator)
		if err != nil {
			return nil, err
		}
		variable("LD_PRELOAD", path)
		if c.Allocator == tfprocess.Jemalloc {
			variable("MALLOC_CONF", tfprocess.JemallocKeeps)
		}
	}
	_, preload, err := gpuopts.With(env, wanted)
	return append(missing, preload...), err
}

// Freezes reports whether a model has a matrix, or a larger tensor, that training does not change, so
// that its user may expect cached features.
func Freezes(m *savedmodels.Model) bool {
	return slices.ContainsFunc(m.Variables, func(v savedmodels.Variable) bool { return v.Frozen && len(v.Shape) > 1 })
}

// Apply returns the options of a session with the configuration applied. The process must have
// the variables of Environment.
func (c Configuration) Apply(o session.Options) session.Options {
	o.MicroBatches = cmp.Or(c.MicroBatches, o.MicroBatches)
	o.StepsPerExecution = cmp.Or(c.StepsPerExecution, o.StepsPerExecution)
	o.Compiled = c.Compiled || o.Compiled
	d := &o.Device
	d.Executor = cmp.Or(c.Executor, d.Executor)
	d.IntraThreads = cmp.Or(c.IntraThreads, d.IntraThreads)
	d.InterThreads = cmp.Or(c.InterThreads, d.InterThreads)
	d.OneDNN = cmp.Or(c.OneDNN, d.OneDNN)
	return o
}

// over returns the configuration with its zero fields taken from base.
func (c Configuration) over(base Configuration) Configuration {
	return Configuration{
		MicroBatches:      cmp.Or(c.MicroBatches, base.MicroBatches),
		NoPrefetch:        c.NoPrefetch || base.NoPrefetch,
		StepsPerExecution: cmp.Or(c.StepsPerExecution, base.StepsPerExecution),
		Compiled:          c.Compiled || base.Compiled,
		Executor:          cmp.Or(c.Executor, base.Executor),
		IntraThreads:      cmp.Or(c.IntraThreads, base.IntraThreads),
		InterThreads:      cmp.Or(c.InterThreads, base.InterThreads),
		OneDNN:            cmp.Or(c.OneDNN, base.OneDNN),
		Allocator:         cmp.Or(c.Allocator, base.Allocator),
	}
}

// threads returns the part of the configuration that sets the executor and its threads.
func (c Configuration) threads() Configuration {
	return Configuration{Executor: c.Executor, IntraThreads: c.IntraThreads, InterThreads: c.InterThreads}
}

// Rounds reports whether steps may round differently than plain ones
// (RoundingOf). Otherwise results are the same bit for bit.
func (c Configuration) Rounds() bool {
	return RoundingOf(c.Apply(session.Options{})) != Rounding{}
}

// changes counts the differences from plain steps. Of configurations with about the same speed, the
// one with fewer differences is chosen.
func (c Configuration) changes() int {
	n := 0
	for _, change := range []bool{
		c.MicroBatches > 1, c.NoPrefetch, c.StepsPerExecution > 1, c.Executor != "",
		c.IntraThreads+c.InterThreads > 0, c.OneDNN != "", c.Allocator != "", c.Compiled, c.Rounds(),
	} {
		if change {
			n++
		}
	}
	return n
}
