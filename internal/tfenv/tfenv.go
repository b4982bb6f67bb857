// Package tfenv reads environment variables as TensorFlow does.
package tfenv

import (
	"slices"
	"strings"
)

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

// prefixes are those of variables that TensorFlow, XLA, oneDNN, CUDA, Keras, Go and allocators read.
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
