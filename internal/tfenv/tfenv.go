// Package tfenv reads environment variables as TensorFlow does.
package tfenv

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// LogLevel is the variable for the lowest level that TensorFlow logs, with its values.
const (
	LogLevel    = "TF_CPP_MIN_LOG_LEVEL"
	LogAll      = "0"
	LogWarnings = "1"
	LogErrors   = "2"
)

// SetLogLevel sets LogLevel for a TensorFlow that this process opens later, unless it is set.
func SetLogLevel(level string) error {
	if _, set := os.LookupEnv(LogLevel); set {
		return nil
	}
	if err := os.Setenv(LogLevel, level); err != nil {
		return fmt.Errorf("set %s: %w", LogLevel, err)
	}
	return nil
}

// Bool parses a boolean by TensorFlow's rules (tsl/util/env_var.cc).
func Bool(text string) (on, ok bool) {
	switch strings.ToLower(text) {
	case "1", "true":
		return true, true
	case "0", "false":
		return false, true
	}
	return false, false
}

// prefixes begin the names of variables that TensorFlow, XLA, oneDNN, CUDA, Keras, Go and
// allocators read.
var prefixes = []string{"TF_", "XLA_", "ONEDNN_", "DNNL_", "MKL_", "OMP_", "KMP_", "MALLOC_", "TCMALLOC_", "MIMALLOC_", "LD_PRELOAD",
	"CUDA_", "NVIDIA_", "GLIBC_TUNABLES", "KERAS_", "GOGC", "GOMEMLIMIT", "GODEBUG", "GOMAXPROCS"}

// Influential returns the variables, as NAME=value and sorted, that can change the time or the memory of
// a step. Variables that begin with TF_CPP_ only affect logging, and those with TF_CLI_ are of Terraform.
func Influential(environ []string) (found []string) {
	for _, v := range environ {
		begins := func(prefix string) bool { return strings.HasPrefix(v, prefix) }
		if slices.ContainsFunc(prefixes, begins) && !begins("TF_CPP_") && !begins("TF_CLI_") {
			found = append(found, v)
		}
	}
	slices.Sort(found)
	return found
}

// Unread maps variables that TensorFlow 2.21 does not read, but that advice on the Internet
// mentions or other programs read, to settings that work. Braces mark options (option.Error). The
// library contains none of the names that begin with TF_ and XLA_.
var Unread = map[string]string{
	"TF_GPU_MEMORY_ALLOW_GROWTH":          "TF_FORCE_GPU_ALLOW_GROWTH=true, or {Options.MemoryGrowth}",
	"TF_GPU_ALLOW_GROWTH":                 "TF_FORCE_GPU_ALLOW_GROWTH=true, or {Options.MemoryGrowth}",
	"TF_GPU_MEMORY_FRACTION":              "{Options.MemoryFraction X}",
	"TF_GPU_MEMORY_LIMIT":                 "{Options.VirtualGPUs}, or {Options.MemoryFraction X}",
	"TF_MEMORY_ALLOCATION":                "{Options.MemoryFraction X}",
	"TF_CUDA_HOST_MEM_LIMIT_IN_MB":        "TF_GPU_HOST_MEM_LIMIT_IN_MB",
	"TF_DISABLE_MKL":                      "TF_ENABLE_ONEDNN_OPTS=0",
	"TF_ENABLE_MKL":                       "TF_ENABLE_ONEDNN_OPTS=1",
	"TF_ENABLE_MKLDNN":                    "TF_ENABLE_ONEDNN_OPTS=1",
	"TF_INTRA_OP_PARALLELISM_THREADS":     "TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}",
	"TF_INTER_OP_PARALLELISM_THREADS":     "TF_NUM_INTEROP_THREADS, or {Options.InterThreads N}",
	"TF_ENABLE_AUTO_MIXED_PRECISION":      "{Options.Precision float16-gpu}",
	"TF_ENABLE_TENSOR_FLOAT_32_EXECUTION": "NVIDIA_TF32_OVERRIDE=0, which cuBLAS and cuDNN read; TensorFlow itself can be set only from Python",
	"TF_XLA_AUTO_JIT":                     "TF_XLA_FLAGS=--tf_xla_auto_jit=2, or {Options.XLA}",
	"XLA_PYTHON_CLIENT_PREALLOCATE":       "TF_FORCE_GPU_ALLOW_GROWTH=true, or {Options.MemoryGrowth} (JAX reads this one)",
	"XLA_PYTHON_CLIENT_MEM_FRACTION":      "{Options.MemoryFraction X} (JAX reads this one)",
	// The wheels run oneDNN in TensorFlow's own thread pool, not with OpenMP.
	"OMP_NUM_THREADS": "TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}",
	"MKL_NUM_THREADS": "TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}",
	"KMP_BLOCKTIME":   "nothing: the wheels do not use OpenMP",
	"KMP_AFFINITY":    "nothing: the wheels do not use OpenMP",
}
