package gpuopts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/tfenv"
)

// Variable is an environment variable that TensorFlow, CUDA or the C library reads only once.
type Variable struct {
	Name, Value string
	// For is the option that needs the variable, with its value, such as "Options.OneDNN off".
	For string
	// Flags means that the variable contains a list of flags, and that Value is one of them.
	Flags bool
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
		// TensorFlow does not accept 1 and 0 for this variable.
		{Name: "TF_ENABLE_GPU_GARBAGE_COLLECTION", Value: strconv.FormatBool(o.GarbageCollection == on), For: o.setting("GarbageCollection")},
		{Name: oneDNN, Value: digit[o.OneDNN == on], Bool: true, For: o.setting("OneDNN")},
		{Name: systemAllocator, Value: "1", Bool: true, For: o.setting("OneDNNSystemAllocator")},
		{Name: poolLimit, Value: strconv.FormatInt(o.OneDNNPoolLimit, 10), For: o.setting("OneDNNPoolLimit")},
		{Name: "TF_SET_ONEDNN_FPMATH_MODE", Value: "BF16", For: o.setting("OneDNNMath")},
		{Name: xlaFlags, Value: "--tf_xla_min_cluster_size=" + strconv.Itoa(o.XLAMinCluster), Flags: true, For: o.setting("XLAMinCluster")},
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
		if v.heldBy(have) {
			continue
		}
		if !v.joins(have) {
			return nil, nil, contradiction(v.For, v.Name, have, fmt.Sprintf("the option needs %q", v.Value), "unset it")
		}
		v.Value = strings.TrimLeft(have+" "+v.Value, " ")
		with[i], missing = v.String(), append(missing, v)
	}
	return with, missing, nil
}

// heldBy reports whether have, the current value of the variable, already means Value.
func (v Variable) heldBy(have string) bool {
	switch {
	case v.Flags:
		return slices.Contains(strings.Fields(have), v.Value)
	case v.Bool:
		truth, ok := tfenv.Bool(have)
		return ok && truth == (v.Value == "1")
	}
	return have == v.Value
}

// joins reports whether the flag can be added to have, the current value of the variable. A value
// that does not begin with a dash is a file name (compiler/xla/parse_flags_from_env.cc).
func (v Variable) joins(have string) bool {
	flag, _, _ := strings.Cut(v.Value, "=")
	if _, set := flagIn(have, flag); !v.Flags || set {
		return false
	}
	have = strings.TrimSpace(have)
	return have == "" || strings.HasPrefix(have, "-")
}

func flagIn(list, flag string) (value string, ok bool) {
	for _, f := range strings.Fields(list) {
		name, v, _ := strings.Cut(f, "=")
		if name == flag {
			value, ok = v, true
		}
	}
	return value, ok
}
