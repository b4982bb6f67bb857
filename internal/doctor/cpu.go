package doctor

import (
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"steadyfit/internal/cgroup"
)

// processor is what /proc/cpuinfo says. It is read here rather than through a
// library of host facts so that recorded machines can be examined, and because
// the flags must be those of Linux, which TensorFlow's own names follow.
type processor struct {
	model string
	flags map[string]bool
	// neoverseV1 is the one ARM core on which TensorFlow turns oneDNN on by itself.
	neoverseV1 bool
}

func readProcessor(fsys fs.FS) processor {
	p := processor{flags: map[string]bool{}}
	text, _ := readText(fsys, "/proc/cpuinfo")
	implementer, part := "", ""
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case key == "model name" && p.model == "":
			p.model = value
		case (key == "flags" || key == "Features") && len(p.flags) == 0:
			for _, f := range strings.Fields(value) {
				p.flags[f] = true
			}
		case key == "CPU implementer":
			implementer = value
		case key == "CPU part":
			part = value
		}
	}
	p.neoverseV1 = implementer == "0x41" && part == "0xd40"
	return p
}

func (p processor) known() bool { return len(p.flags) > 0 }

func (p processor) has(any ...string) bool {
	for _, f := range any {
		if p.flags[f] {
			return true
		}
	}
	return false
}

func (p processor) x86() bool { return p.has("sse2") }

// tooOld reports a CPU on which TensorFlow's x86 wheels end the process when
// they are opened: they are compiled for AVX.
func (p processor) tooOld() bool { return p.x86() && !p.has("avx") }

func checkCPU(m machine, p processor) []Check {
	model := Check{Name: "model", Found: p.model}
	if p.model == "" {
		model.Found = "unknown (" + m.arch + ")"
	}
	return []Check{model, instructions(p), halfPrecision(p), cores(m)}
}

// named are the instructions that matter for training, with the name of each as
// people write it.
var named = []struct{ flag, name string }{
	{"avx", "AVX"}, {"avx2", "AVX2"}, {"fma", "FMA"}, {"avx512f", "AVX-512"}, {"avx512_vnni", "AVX512_VNNI"},
	{"avx512_bf16", "AVX512_BF16"}, {"avx512_fp16", "AVX512_FP16"}, {"avx_ne_convert", "AVX_NE_CONVERT"},
	{"amx_tile", "AMX"}, {"amx_bf16", "AMX_BF16"}, {"amx_fp16", "AMX_FP16"},
	{"asimd", "NEON"}, {"sve", "SVE"}, {"bf16", "BF16"}, {"i8mm", "I8MM"},
}

func instructions(p processor) Check {
	c := Check{Name: "instructions"}
	if !p.known() {
		c.Status, c.Found = Note, "unknown: this system has no /proc/cpuinfo"
		return c
	}
	var have []string
	for _, n := range named {
		if p.flags[n.flag] {
			have = append(have, n.name)
		}
	}
	c.Found = strings.Join(have, ", ")
	switch {
	case p.tooOld():
		c.Status = Problem
		c.Found = "no AVX: the wheels of TensorFlow end the process on this CPU"
		c.Fix = "train on another machine, let the virtual machine show the host's CPU (`-cpu host` in QEMU), or build TensorFlow for this CPU"
	case p.x86() && !(p.has("avx2") && p.has("fma")):
		c.Status = Warning
		c.Found += "; without AVX2 and FMA, matrix products run at a fraction of the speed"
		c.Fix = "let the virtual machine show the host's CPU (`-cpu host` in QEMU), or train on a newer one"
	}
	return c
}

// halfPrecision follows oneDNN's own rules of what it computes in which type
// (tensorflow/core/util/util.cc).
func halfPrecision(p processor) Check {
	c := Check{Name: "half precision"}
	bf16, fp16 := "", "float16 is slower than float32"
	switch {
	case !p.known():
		c.Status, c.Found = Note, "unknown"
		return c
	case p.has("amx_bf16"):
		bf16 = "bfloat16 in hardware (AMX_BF16)"
	case p.has("avx512_bf16"):
		bf16 = "bfloat16 in hardware (AVX512_BF16)"
	case p.has("avx_ne_convert"):
		bf16 = "bfloat16 converted in hardware (AVX_NE_CONVERT)"
	case p.has("bf16"):
		c.Status = Note
		c.Found = "bfloat16 in hardware (BF16): measure models exported with it before relying on it"
		return c
	case p.has("avx512f"):
		c.Status = Note
		c.Found = "bfloat16 is emulated with AVX-512: it saves memory, not time"
		return c
	default:
		c.Status = Note
		c.Found = "no bfloat16 in hardware: measure models exported with it before relying on it"
		return c
	}
	if p.has("avx512_fp16", "amx_fp16", "avx_ne_convert") {
		fp16 = "float16 is in hardware, too"
	}
	c.Found = bf16 + ": models exported in mixed_bfloat16 save memory and time; " + fp16
	return c
}

// cores compares what TensorFlow sees with what it gets: its thread pools are
// sized by the CPUs that the process may run on (sched_getaffinity) and know
// nothing of quotas, so in a container with a quota most of them stand still
// for part of each scheduling period. Go heeds quotas by itself.
func cores(m machine) Check {
	c := Check{Name: "cores"}
	online, _ := m.readText("/sys/devices/system/cpu/online")
	status, _ := m.readText("/proc/self/status")
	usable := 0
	for line := range strings.Lines(status) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			usable = countCPUs(list)
		}
	}
	all := countCPUs(online)
	quota, quotaFile := cgroup.Cores(m.fs)
	if usable == 0 {
		c.Status, c.Found = Note, "unknown; GOMAXPROCS "+strconv.Itoa(m.goMaxProcs)
		return c
	}
	c.Found = fmt.Sprintf("%d usable", usable)
	if all > usable {
		c.Found += fmt.Sprintf(" of %d", all)
	}
	threads := threadsOf(m.env["TF_NUM_INTRAOP_THREADS"], usable)
	if quota > 0 && quota < float64(usable) {
		n := int(math.Ceil(quota))
		c.Found += fmt.Sprintf(", quota of %.4g cores (%s)", quota, quotaFile)
		switch {
		case threads > n:
			c.Status = Warning
			c.Found += fmt.Sprintf("; TensorFlow starts %d threads per pool all the same", threads)
			c.Fix = fmt.Sprintf("`steadyfit fit --intra-threads %d --inter-threads %d`, or TF_NUM_INTRAOP_THREADS=%d TF_NUM_INTEROP_THREADS=%d", n, n, n, n)
		case m.goMaxProcs > n:
			c.Status = Note
			c.Fix = "leave GOMAXPROCS unset: Go follows the quota by itself"
		}
	}
	c.Found += fmt.Sprintf("; GOMAXPROCS %d", m.goMaxProcs)
	return c
}

func threadsOf(variable string, otherwise int) int {
	if n, err := strconv.Atoi(variable); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// countCPUs counts a list such as "0-3,8,10-11"; 0 if it is none.
func countCPUs(list string) int {
	n := 0
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
