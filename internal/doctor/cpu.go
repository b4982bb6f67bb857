package doctor

import (
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/cgroup"
)

// processor is the content of /proc/cpuinfo. gopsutil, which other packages use, reads only the
// running machine and does not identify the ARM core.
type processor struct {
	model string
	flags []string // as named by Linux
	// neoverseV1 is true for the only ARM core on which TensorFlow turns oneDNN on by default.
	neoverseV1 bool
}

func readProcessor(fsys fs.FS) (p processor) {
	text, _ := readText(fsys, "/proc/cpuinfo")
	p.model = field(text, "model name")
	p.flags = strings.Fields(field(text, "flags") + field(text, "Features"))
	p.neoverseV1 = field(text, "CPU implementer") == "0x41" && field(text, "CPU part") == "0xd40"
	return p
}

// field returns the first value in lines of "name : value".
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (p processor) known() bool { return len(p.flags) > 0 }

func (p processor) has(any ...string) bool {
	return slices.ContainsFunc(any, func(f string) bool { return slices.Contains(p.flags, f) })
}

func (p processor) x86() bool { return p.has("sse2") }

// tooOld reports a CPU without AVX, on which TensorFlow's x86 wheels crash when they are
// opened.
func (p processor) tooOld() bool { return p.x86() && !p.has("avx") }

func checkCPU(m machine, p processor) []Check {
	model := p.model
	if model == "" {
		model = "unknown (" + m.arch + ")"
	}
	return []Check{ok("model", model), instructions(p), halfPrecision(p), cores(m)}
}

// named are the instructions that matter for training: Linux's flag and the common name.
var named = []struct{ flag, name string }{
	{"avx", "AVX"}, {"avx2", "AVX2"}, {"fma", "FMA"}, {"avx512f", "AVX-512"}, {"avx512_vnni", "AVX512_VNNI"},
	{"avx512_bf16", "AVX512_BF16"}, {"avx512_fp16", "AVX512_FP16"}, {"avx_ne_convert", "AVX_NE_CONVERT"},
	{"amx_tile", "AMX"}, {"amx_bf16", "AMX_BF16"}, {"amx_fp16", "AMX_FP16"},
	{"asimd", "NEON"}, {"sve", "SVE"}, {"bf16", "BF16"}, {"i8mm", "I8MM"},
}

func instructions(p processor) Check {
	const name = "instructions"
	var have []string
	for _, n := range named {
		if p.has(n.flag) {
			have = append(have, n.name)
		}
	}
	found := strings.Join(have, ", ")
	switch {
	case !p.known():
		return note(name, "unknown: this system has no /proc/cpuinfo", "")
	case p.tooOld():
		return problem(name, "no AVX: TensorFlow's wheels crash on this CPU",
			"train on another machine, let the virtual machine show the host's CPU (`-cpu host` in QEMU), or build TensorFlow for this CPU")
	case p.x86() && !(p.has("avx2") && p.has("fma")):
		return warning(name, found+"; without AVX2 and FMA, matrix products run at a fraction of the speed",
			"let the virtual machine show the host's CPU (`-cpu host` in QEMU), or train on a newer one")
	}
	return ok(name, found)
}

// halfPrecision follows oneDNN's rules for the hardware that each type needs
// (tensorflow/core/util/util.cc).
func halfPrecision(p processor) Check {
	const name = "half precision"
	if !p.known() {
		return note(name, "unknown", "")
	}
	for _, h := range []struct{ flag, found string }{
		{"amx_bf16", "bfloat16 in hardware (AMX_BF16)"},
		{"avx512_bf16", "bfloat16 in hardware (AVX512_BF16)"},
		{"avx_ne_convert", "bfloat16 converted in hardware (AVX_NE_CONVERT)"},
	} {
		if p.has(h.flag) {
			fp16 := "float16 is slower than float32"
			if p.has("avx512_fp16", "amx_fp16", "avx_ne_convert") {
				fp16 = "float16 is in hardware, too"
			}
			return ok(name, h.found+": models exported in mixed_bfloat16 save memory and time; "+fp16)
		}
	}
	switch {
	case p.has("bf16"):
		return note(name, "bfloat16 in hardware (BF16): measure models exported with it before relying on it", "")
	case p.has("avx512f"):
		return note(name, "bfloat16 is emulated with AVX-512: it saves memory, not time", "")
	}
	return note(name, "no bfloat16 in hardware: measure models exported with it before relying on it", "")
}

// cores compares the number of CPUs that TensorFlow sees with the CPU quota. TensorFlow sizes
// its thread pools by the CPUs that the process may run on (sched_getaffinity) and ignores
// quotas, so most threads are throttled for part of each scheduling period. Go follows quotas
// by itself.
func cores(m machine) Check {
	c := ok("cores", "")
	online, _ := m.readText("/sys/devices/system/cpu/online")
	status, _ := m.readText("/proc/self/status")
	all, usable := countCPUs(online), countCPUs(field(status, "Cpus_allowed_list"))
	if usable == 0 {
		return note(c.Name, "unknown; GOMAXPROCS "+strconv.Itoa(m.goMaxProcs), "")
	}
	c.Found = fmt.Sprintf("%d usable", usable)
	if all > usable {
		c.Found += fmt.Sprintf(" of %d", all)
	}
	threads := usable
	if n, err := strconv.Atoi(m.env["TF_NUM_INTRAOP_THREADS"]); err == nil && n > 0 {
		threads = n
	}
	if quota, file := cgroup.Cores(m.fs); quota > 0 && quota < float64(usable) {
		n := int(math.Ceil(quota))
		c.Found += fmt.Sprintf(", quota of %.4g cores (%s)", quota, file)
		switch {
		case threads > n:
			c.Status = Warning
			c.Found += fmt.Sprintf("; TensorFlow ignores it and starts %d threads per pool", threads)
			c.Fix = fmt.Sprintf("`steadyfit fit --intra-threads %d --inter-threads %d`, or TF_NUM_INTRAOP_THREADS=%d TF_NUM_INTEROP_THREADS=%d", n, n, n, n)
		case m.goMaxProcs > n:
			c.Status, c.Fix = Note, "leave GOMAXPROCS unset: Go follows the quota by itself"
		}
	}
	c.Found += fmt.Sprintf("; GOMAXPROCS %d", m.goMaxProcs)
	return c
}

// countCPUs counts the CPUs in a list such as "0-3,8,10-11"; 0 if it is invalid.
func countCPUs(list string) (n int) {
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, span := strings.Cut(part, "-")
		if !span {
			to = from
		}
		a, errA := strconv.Atoi(from)
		b, errB := strconv.Atoi(to)
		if errA != nil || errB != nil || b < a {
			return 0
		}
		n += b - a + 1
	}
	return n
}
