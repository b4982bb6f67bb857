package gpuopts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Variable is an environment variable that is read once: by TensorFlow when it is
// opened or at first use, by CUDA and the C library when they begin.
type Variable struct {
	Name, Value string
	// For is what asks for it, as in "Options.OneDNN off".
	For string
	// Flags means that the variable is a list of flags, of which Value is one: what
	// else is in it stays.
	Flags bool
	// Bool means that TensorFlow takes 1 and true, or 0 and false, for the same.
	Bool bool
}

func (v Variable) String() string { return v.Name + "=" + v.Value }

// xlaFlags are the flags of XLA in TensorFlow (compiler/jit/flags.cc).
const xlaFlags = "TF_XLA_FLAGS"

// Environment lists the variables that the options need, for what TensorFlow reads
// from nowhere else, in a fixed order.
func (o Options) Environment() ([]Variable, error) {
	if err := o.valid(); err != nil {
		return nil, err
	}
	var list []Variable
	add := func(v Variable, field string, value any) {
		v.For = fmt.Sprintf("Options.%s %v", field, value)
		list = append(list, v)
	}
	if len(o.VisibleGPUs) > 0 {
		add(Variable{Name: "CUDA_DEVICE_ORDER", Value: "PCI_BUS_ID"}, "VisibleGPUs", o.VisibleGPUs)
	}
	if o.GarbageCollection != "" {
		// Read without TensorFlow's usual function for truth: 1 and 0 are not understood.
		add(Variable{Name: "TF_ENABLE_GPU_GARBAGE_COLLECTION", Value: strconv.FormatBool(o.GarbageCollection == On)}, "GarbageCollection", o.GarbageCollection)
	}
	if o.OneDNN != "" {
		add(Variable{Name: oneDNN, Value: digit(o.OneDNN == On), Bool: true}, "OneDNN", o.OneDNN)
	}
	if o.OneDNNSystemAllocator {
		add(Variable{Name: systemAllocator, Value: "1", Bool: true}, "OneDNNSystemAllocator", true)
	}
	if o.OneDNNPoolLimit > 0 {
		add(Variable{Name: poolLimit, Value: strconv.FormatInt(o.OneDNNPoolLimit, 10)}, "OneDNNPoolLimit", o.OneDNNPoolLimit)
	}
	if o.OneDNNMath == BFloat16Math {
		add(Variable{Name: "TF_SET_ONEDNN_FPMATH_MODE", Value: "BF16"}, "OneDNNMath", o.OneDNNMath)
	}
	if o.XLAMinCluster > 0 {
		add(Variable{Name: xlaFlags, Value: "--tf_xla_min_cluster_size=" + strconv.Itoa(o.XLAMinCluster), Flags: true}, "XLAMinCluster", o.XLAMinCluster)
	}
	if o.Deterministic {
		add(Variable{Name: "TF_DETERMINISTIC_OPS", Value: "1", Bool: true}, "Deterministic", true)
	}
	if o.LogLevel != "" {
		level := slices.Index([]LogLevel{LogInfo, LogWarning, LogError, LogFatal}, o.LogLevel)
		add(Variable{Name: "TF_CPP_MIN_LOG_LEVEL", Value: strconv.Itoa(level)}, "LogLevel", o.LogLevel)
	}
	return list, nil
}

func digit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// With puts variables into an environment, a list of NAME=value as of os.Environ. It
// returns the whole, and those that were missing, with the value that they have now.
// What is set to something else is an *option.Error: it is not overwritten.
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
			return nil, nil, Contradiction(v.For, v.Name, have, fmt.Sprintf("would have to be %q", v.Value), "unset it")
		}
		v.Value = strings.TrimLeft(have+" "+v.Value, " ")
		with[i], missing = v.String(), append(missing, v)
	}
	return with, missing, nil
}

// heldBy reports whether a value of the variable says what is wanted.
func (v Variable) heldBy(have string) bool {
	switch {
	case v.Flags:
		return slices.Contains(strings.Fields(have), v.Value)
	case v.Bool:
		truth, ok := readBool(have)
		return ok && truth == (v.Value == "1")
	}
	return have == v.Value
}

// joins reports whether the wanted flag can be added to those that are there. A list
// that does not begin with a dash is the name of a file
// (compiler/xla/parse_flags_from_env.cc).
func (v Variable) joins(have string) bool {
	flag, _, _ := strings.Cut(v.Value, "=")
	if _, set := flagIn(have, flag); !v.Flags || set {
		return false
	}
	have = strings.TrimSpace(have)
	return have == "" || strings.HasPrefix(have, "-")
}

// flagIn finds a flag in a list; the last one counts.
func flagIn(list, flag string) (value string, ok bool) {
	for _, f := range strings.Fields(list) {
		name, v, _ := strings.Cut(f, "=")
		if name == flag {
			value, ok = v, true
		}
	}
	return value, ok
}

// readBool reads truth as TensorFlow does (tsl/util/env_var.cc).
func readBool(text string) (truth, ok bool) {
	switch strings.ToLower(text) {
	case "1", "true":
		return true, true
	case "0", "false":
		return false, true
	}
	return false, false
}
