package tfprocess

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// LogLevel is the variable for the lowest level that TensorFlow logs, with its values.
const (
	LogLevel    = "TF_CPP_MIN_LOG_LEVEL"
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

// Lookup returns the value of a variable in an environment, a list of NAME=value, or "". If there are
// several entries, the first one counts.
func Lookup(environ []string, name string) string {
	for _, v := range environ {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// ParseBool parses a boolean by TensorFlow's rules (tsl/util/env_var.cc).
func ParseBool(text string) (on, ok bool) {
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
var prefixes = []string{"TF_", "XLA_", "ONEDNN_", "DNNL_", "MKL_", "OMP_", "KMP_", "MALLOC_", "TCMALLOC_", "MIMALLOC_",
	"LD_PRELOAD",
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
