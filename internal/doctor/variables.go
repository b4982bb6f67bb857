package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/nearest"
	"steadyfit/internal/tfenv"
	"steadyfit/memory"
)

// reader identifies the program that reads a variable.
type reader int

const (
	byTensorFlow reader = iota // the runtime, in every build
	byGPU                      // GPU builds, or CUDA
	byPython                   // Keras or the Python package, which steadyfit does not run
	byXLA                      // clients of XLA other than TensorFlow's sessions, such as JAX
	bySteadyfit                // this program
	byNobody                   // nothing, although some guides recommend it
)

// variable describes an environment variable.
type variable struct {
	reader reader
	does   string
	// accepts reports whether TensorFlow can parse the value; nil means that it accepts any.
	accepts func(string) bool
	// want describes the values that accepts allows. For byNobody and byXLA it is the
	// alternative.
	want string
}

func isBool(v string) bool  { _, ok := tfenv.Bool(v); return ok }
func isCount(v string) bool { n, err := strconv.ParseInt(v, 10, 64); return err == nil && n >= 0 }

// isLowerBool accepts the values that gpu_bfc_allocator.cc reads.
func isLowerBool(v string) bool { return v == "true" || v == "false" }

const (
	wantBool      = "0, 1, true or false"
	wantLowerBool = "true or false, in lower case (1 and 0 are not recognized)"
	wantCount     = "a whole number"
)

// variables were checked against the strings in the CPU and the GPU library of TensorFlow 2.21,
// and their values against its sources. gpuopts adds the variables that nothing reads.
var variables = map[string]variable{
	"TF_ENABLE_ONEDNN_OPTS":          {byTensorFlow, "turns oneDNN on or off", isBool, wantBool},
	"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": {byTensorFlow, "takes oneDNN's blocks from malloc rather than from its pool", isBool, wantBool},
	"TF_MKL_ALLOC_MAX_BYTES":         {byTensorFlow, "limits oneDNN's pool; a step that needs more fails", isCount, "a number of bytes without a unit"},
	"TF_CPU_ALLOCATOR_USE_BFC":       {byTensorFlow, "asks for TensorFlow's pool on the CPU", isBool, wantBool},
	"TF_NUM_INTRAOP_THREADS":         {byTensorFlow, "threads that share one operation", isCount, wantCount},
	"TF_NUM_INTEROP_THREADS":         {byTensorFlow, "threads that run operations side by side", isCount, wantCount},
	"TF_DETERMINISTIC_OPS":           {byTensorFlow, "repeatable results, at a price in speed", isBool, wantBool},
	"TF_SET_ONEDNN_FPMATH_MODE":      {reader: byTensorFlow, does: "lets oneDNN compute float32 products in a shorter type"},
	"TF_CPP_MIN_LOG_LEVEL":           {byTensorFlow, "hides log lines below this level", isCount, wantCount},
	"TF_CPP_MAX_VLOG_LEVEL":          {byTensorFlow, "prints debugging lines up to this level", isCount, wantCount},
	"TF_CPP_VMODULE":                 {reader: byTensorFlow, does: "prints debugging lines of some files"},
	"TF_XLA_FLAGS":                   {reader: byTensorFlow, does: "options of XLA in TensorFlow"},
	"XLA_FLAGS":                      {reader: byTensorFlow, does: "options of the XLA compiler"},

	"TF_FORCE_GPU_ALLOW_GROWTH": {byGPU, "takes GPU memory as it is needed, whatever the session asks for",
		isLowerBool, wantLowerBool},
	"TF_GPU_ALLOCATOR":               {reader: byGPU, does: "chooses the allocator of GPU memory"},
	"TF_PER_DEVICE_MEMORY_LIMIT_MB":  {byGPU, "limits the memory of each GPU", isCount, "a number of MB without a unit"},
	"TF_DEVICE_MIN_SYS_MEMORY_IN_MB": {byGPU, "leaves this much of each GPU free and takes the rest, instead of --gpu-memory-fraction", isCount, "a number of MB without a unit"},
	"TF_GPU_HOST_MEM_LIMIT_IN_MB":    {byGPU, "limits the pinned host memory of GPUs", isCount, "a number of MB without a unit"},
	"TF_GPU_THREAD_MODE":             {reader: byGPU, does: "which threads start work on a GPU"},
	"TF_GPU_THREAD_COUNT":            {byGPU, "how many threads start work on a GPU", isCount, wantCount},
	"TF_CUDNN_USE_AUTOTUNE":          {reader: byGPU, does: "tries cuDNN's algorithms and keeps the fastest"},
	"TF_CUDNN_DETERMINISTIC":         {reader: byGPU, does: "repeatable results of cuDNN (TF_DETERMINISTIC_OPS covers all operations)"},
	"NVIDIA_TF32_OVERRIDE":           {reader: byGPU, does: "0 keeps cuBLAS and cuDNN from computing float32 in TensorFloat-32"},
	"CUDA_VISIBLE_DEVICES":           {reader: byGPU, does: "which GPUs CUDA shows"},
	"CUDA_DEVICE_ORDER":              {reader: byGPU, does: "the order in which CUDA counts GPUs"},
	"TF_ENABLE_GPU_GARBAGE_COLLECTION": {byGPU, "gives free regions of GPU memory back before an allocation fails",
		isLowerBool, wantLowerBool},

	"TF_FORCE_UNIFIED_MEMORY": {reader: byXLA, want: "Options.UnifiedMemory of gpuopts, in Go"}, // xla/pjrt/gpu/gpu_helpers.cc

	"TF_USE_LEGACY_KERAS": {reader: byPython, does: "chooses Keras 2 in Python"},
	"KERAS_BACKEND":       {reader: byPython, does: "chooses the backend of Keras in Python"},

	"STEADYFIT_TENSORFLOW": {reader: bySteadyfit, does: "names the TensorFlow to use"},
	"TF_CONFIG":            {reader: bySteadyfit, does: "describes a cluster, which fit joins"},
}

func init() {
	for name, instead := range tfenv.Unread {
		variables[name] = variable{reader: byNobody, want: instead}
	}
}

// searched reports whether only TensorFlow could read the name, so that the strings of its
// library decide.
func searched(name string) bool {
	return strings.HasPrefix(name, "TF_") || strings.HasPrefix(name, "XLA_")
}

func checkVariables(m machine, t tensorFlow) (checks []Check) {
	var names, search []string
	for _, name := range slices.Sorted(maps.Keys(m.env)) {
		if _, known := variables[name]; known || searched(name) {
			names = append(names, name)
		}
		if searched(name) {
			search = append(search, name)
		}
	}
	if len(names) == 0 {
		return []Check{ok("variables", "none set that TensorFlow reads")}
	}
	var held map[string]bool
	if files := t.files(); len(files) > 0 && len(search) > 0 {
		held, _ = m.contains(files, search) // without a library, the table alone decides
	}
	for _, name := range names {
		checks = append(checks, checkVariable(name, m.env[name], t, held))
	}
	return checks
}

// checkVariable judges one variable. held are the names that the library contains; nil if
// unknown.
func checkVariable(name, value string, t tensorFlow, held map[string]bool) Check {
	v, known := variables[name]
	if !known {
		return unknownVariable(name, t, held)
	}
	shown := shorten(value)
	does := shown + ": " + v.does
	unread := fmt.Sprintf("%s: not read by %v, so it changes nothing", shown, t)
	instead := fmt.Sprintf("`unset %s`; alternative: %s", name, v.want)
	switch {
	case v.reader == byNobody && held[name] && searched(name):
		return ok(name, fmt.Sprintf("%s: read by %v", shown, t))
	case v.reader == byNobody:
		return warning(name, unread, instead)
	case v.reader == byXLA:
		return warning(name, shown+": read by XLA's own clients, such as JAX, and not by a session of TensorFlow, so it changes nothing", instead)
	case v.reader == byPython:
		return note(name, does+"; steadyfit does not run Python for training", "")
	case v.accepts != nil && !v.accepts(value):
		return warning(name, shown+": TensorFlow cannot read this value", fmt.Sprintf("set %s to %s", name, v.want))
	case v.reader == byGPU && t.found && !t.gpu:
		return note(name, does+"; without effect in a build for the CPU", "")
	case v.reader == byTensorFlow && held != nil && searched(name) && !held[name]:
		return warning(name, unread, "`unset "+name+"`, or use TensorFlow 2.21")
	case name == "TF_MKL_ALLOC_MAX_BYTES":
		n, _ := strconv.ParseInt(value, 10, 64) // accepts has checked the value
		return ok(name, fmt.Sprintf("%s (%v): %s", value, memory.Bytes(n), v.does))
	}
	return ok(name, does)
}

// unknownVariable does not show the value, which may be another program's secret. For example,
// Terraform's names also begin with TF_.
func unknownVariable(name string, t tensorFlow, held map[string]bool) Check {
	var read []string
	for known, v := range variables {
		if v.reader != byNobody {
			read = append(read, known)
		}
	}
	meant := nearest.Meant(name, read)
	switch {
	case held[name]:
		return ok(name, fmt.Sprintf("read by %v", t))
	case meant != "":
		return warning(name, "not read by TensorFlow; did you mean "+meant+"?", fmt.Sprintf("`unset %s; export %s=...`", name, meant))
	case held == nil:
		return note(name, "not known to steadyfit", "")
	}
	return note(name, fmt.Sprintf("not read by %v; it may be another program's", t), "")
}

// shorten shortens a value to one short line.
func shorten(value string) string {
	const most = 60
	value = oneLine(value)
	if runes := []rune(value); len(runes) > most {
		value = string(runes[:most-3]) + "..."
	}
	return cmp.Or(value, `""`)
}
