package watch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/gpu"
	"steadyfit/internal/texts"
	"steadyfit/internal/tfprocess"
)

// Remedy is a change that is made to a program from outside.
type Remedy struct {
	Name string
	// What says what is changed.
	What string
	// Permanent has the lines that make the change part of the program. Variables of Env are exported instead.
	Permanent string
	// Env has the variables of a remedy that sets some, as NAME=VALUE. probe/remedies.py makes the other changes.
	Env []string
	// library is part of the name of a library that reads the variables.
	library string
}

// Libraries that read variables.
const (
	glibc      = "/libc.so.6"
	tensorflow = "/libtensorflow"
)

// Remedies are all remedies, in the order in which they are tried. Each is one that reports about memory recommend.
var Remedies = []Remedy{
	{Name: "tensors", What: "pass Python numbers to a retraced tf.function as tensors",
		Permanent: "function(..., tf.constant(number))  # or tf.constant(number, tf.float32), where it meets floats"},
	{Name: "reduce-retracing", What: "reduce_retracing of every tf.function",
		Permanent: "@tf.function(reduce_retracing=True)"},
	{Name: "jit-off", What: "no jit_compile in compile() and tf.function",
		Permanent: "model.compile(..., jit_compile=False)  # and @tf.function without jit_compile"},
	{Name: "graph", What: "no run_eagerly in compile(), and no tf.config.run_functions_eagerly",
		Permanent: "model.compile(..., run_eagerly=False)"},
	{Name: "clear-session", What: "keras.backend.clear_session() after each fit",
		Permanent: "model.fit(...)\nkeras.backend.clear_session()"},
	{Name: "collect", What: "gc.collect() after each epoch and fit, and every 50 steps of other loops",
		Permanent: "import gc\n\nclass Collect(keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs=None):\n" +
			"        gc.collect()\n\nmodel.fit(..., callbacks=[Collect()])\ngc.collect()"},
	{Name: "jemalloc", What: "jemalloc instead of malloc", library: "/" + tfprocess.Allocators[tfprocess.Jemalloc].File},
	{Name: "arenas", What: "two arenas of malloc", Env: []string{"MALLOC_ARENA_MAX=2"}, library: glibc},
	{Name: "trim", What: "malloc returns free blocks of 64 KiB and more",
		Env: []string{"MALLOC_TRIM_THRESHOLD_=65536", "MALLOC_MMAP_THRESHOLD_=65536"}, library: glibc},
	{Name: "onednn-off", What: "TensorFlow without oneDNN", Env: []string{"TF_ENABLE_ONEDNN_OPTS=0"}, library: tensorflow},
	{Name: "gpu-growth", What: "memory of GPUs is reserved as needed", Env: []string{"TF_FORCE_GPU_ALLOW_GROWTH=true"},
		library: tensorflow},
	{Name: "gpu-async", What: "CUDA's asynchronous allocator", Env: []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"},
		library: tensorflow},
}

// suggestions are the remedies that may help against a cause. Nothing from outside helps against other causes.
var suggestions = map[string][]string{
	"retracing":                   {"tensors", "reduce-retracing"},
	"XLA compiles each shape":     {"jit-off", "reduce-retracing"},
	"models built again":          {"clear-session", "collect"},
	"functions made again":        {"clear-session", "collect"},
	"optimizers made again":       {"clear-session", "collect"},
	"pipelines made again":        {"collect"},
	"cycles that nobody collects": {"collect"},
	"objects kept in Python":      {"collect"},
	"memory that malloc keeps":    {"jemalloc", "arenas", "trim"},
	unknown:                       {"jemalloc", "arenas", "trim", "onednn-off", "collect", "graph"},
}

// Choices of remedies.
const (
	Auto = "auto"
	All  = "all"
)

// ParseRemedies checks a choice of remedies: auto for those that the cause suggests, all, or names with commas.
func ParseRemedies(text string) (string, error) {
	if text == Auto || text == All {
		return text, nil
	}
	var names []string
	for _, r := range Remedies {
		names = append(names, r.Name)
	}
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(names, name) {
			return "", fmt.Errorf("the remedy %q is not known; expected auto, all, or a list of %s", name,
				texts.List(names, "and"))
		}
	}
	return text, nil
}

// chosen returns the remedies of a choice for a cause.
func chosen(choice, cause string) (list []Remedy) {
	names := strings.Split(choice, ",")
	if choice == Auto {
		names = suggestions[cause]
	}
	for _, r := range Remedies {
		if choice == All || slices.Contains(names, r.Name) {
			list = append(list, r)
		}
	}
	return list
}

// prepare completes the variables of a remedy for this machine. python says whether the program has the probe of
// Python. An error says what is missing.
func (r *Remedy) prepare(python bool) error {
	switch {
	case r.Name == tfprocess.Jemalloc:
		preload, err := preloaded()
		if err != nil {
			return err
		}
		r.Env = []string{preload}
	case len(r.Env) == 0 && !python:
		return errors.New("the program has no probe of Python")
	case strings.HasPrefix(r.Name, "gpu-") && len(gpu.Kernel(os.DirFS("/"))) == 0:
		return errors.New("this machine has no GPU of NVIDIA")
	}
	for _, v := range r.Env {
		if slices.Contains(os.Environ(), v) {
			return fmt.Errorf("the program has %s already", v)
		}
	}
	return nil
}

// preloaded returns the variable that preloads jemalloc.
func preloaded() (string, error) {
	path, err := tfprocess.FindAllocator(tfprocess.Jemalloc)
	if before := os.Getenv("LD_PRELOAD"); before != "" {
		path += ":" + before
	}
	return "LD_PRELOAD=" + path, err
}

// Lines returns the lines that make the change permanent.
func (r *Remedy) Lines() []string {
	var lines []string
	for _, v := range r.Env {
		lines = append(lines, "export "+v)
	}
	if len(lines) == 0 {
		lines = strings.Split(r.Permanent, "\n")
	}
	return lines
}

// reads reports whether a process has the variables of a remedy, and a library that reads them.
func (r *Remedy) reads(pid int) bool {
	folder := filepath.Join("/proc", strconv.Itoa(pid))
	environment, _ := os.ReadFile(filepath.Join(folder, "environ")) // the process may have ended
	has := strings.Split(string(environment), "\x00")
	if slices.ContainsFunc(r.Env, func(v string) bool { return !slices.Contains(has, v) }) {
		return false
	}
	maps, _ := os.ReadFile(filepath.Join(folder, "maps"))
	return bytes.Contains(maps, []byte(r.library))
}
