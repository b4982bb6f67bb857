package gpuopts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/tfprocess"
)

// Variable is an environment variable that TensorFlow, CUDA or the C library reads only once.
type Variable struct {
	Name, Value string
	// For is the option that needs the variable, with its value, such as "Options.OneDNN off".
	For string
	// Bool means that 1 equals true and 0 equals false.
	Bool bool
}

func (v Variable) String() string { return v.Name + "=" + v.Value }

// xlaFlags is the variable for TensorFlow's XLA flags (compiler/jit/flags.cc).
const xlaFlags = "TF_XLA_FLAGS"

// logLevels are the values of LogLevel in the order of TF_CPP_MIN_LOG_LEVEL.
var logLevels = []string{"info", "warning", "error", "fatal"}

// Environment returns the variables for the options that TensorFlow reads only from the environment,
// in a fixed order.
func (o Options) Environment() ([]Variable, error) {
	if err := o.valid(); err != nil {
		return nil, err
	}
	digit := map[bool]string{true: "1", false: "0"}
	level := slices.Index(logLevels, o.LogLevel)
	list := []Variable{
		{Name: "CUDA_DEVICE_ORDER", Value: "PCI_BUS_ID", For: o.setting("VisibleGPUs")},
		{Name: oneDNN, Value: digit[o.OneDNN == on], Bool: true, For: o.setting("OneDNN")},
		{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1", Bool: true, For: o.setting("OneDNNSystemAllocator")},
		{Name: "TF_SET_ONEDNN_FPMATH_MODE", Value: "BF16", For: o.setting("OneDNNMath")},
		{Name: "TF_DETERMINISTIC_OPS", Value: "1", Bool: true, For: o.setting("Deterministic")},
		{Name: "TF_CPP_MIN_LOG_LEVEL", Value: strconv.Itoa(level), For: o.setting("LogLevel")},
	}
	return slices.DeleteFunc(list, func(v Variable) bool { return v.For == "" }), nil
}

// With adds the variables in want to an environment, a list of NAME=value like os.Environ. It
// returns the new environment and the variables that were missing. A variable that has a different
// value is an *option.Error.
func With(env []string, want []Variable) (with []string, missing []Variable, err error) {
	with = slices.Clone(env)
	for _, v := range want {
		i := slices.IndexFunc(with, func(kv string) bool { return strings.HasPrefix(kv, v.Name+"=") })
		if i < 0 {
			with, missing = append(with, v.String()), append(missing, v)
			continue
		}
		have := with[i][len(v.Name)+1:]
		if !v.heldBy(have) {
			return nil, nil, contradiction(v.For, v.Name, have, fmt.Sprintf("the option needs %q", v.Value), "unset it")
		}
	}
	return with, missing, nil
}

// heldBy reports whether have, the current value of the variable, has the same meaning as Value.
func (v Variable) heldBy(have string) bool {
	if v.Bool {
		truth, ok := tfprocess.ParseBool(have)
		return ok && truth == (v.Value == "1")
	}
	return have == v.Value
}

// flagIn returns the last value of a flag in a list of flags.
func flagIn(list, flag string) (value string, ok bool) {
	for _, f := range strings.Fields(list) {
		name, v, _ := strings.Cut(f, "=")
		if name == flag {
			value, ok = v, true
		}
	}
	return value, ok
}
