package doctor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/cgroup"
)

type processor struct {
	model string
	flags []string // as named by Linux
}

func (p processor) has(any ...string) bool {
	return slices.ContainsFunc(any, func(f string) bool { return slices.Contains(p.flags, f) })
}

func (p processor) x86() bool { return p.has("sse2") }

// tooOld reports a CPU without AVX, on which TensorFlow's x86 wheels crash when they are
// opened.
func (p processor) tooOld() bool { return p.x86() && !p.has("avx") }

func checkCPU(m machine) []Check {
	return []Check{ok("model", cmp.Or(m.cpu.model, "unknown")), instructions(m.cpu), cores(m)}
}

// named are the instructions that matter for training: Linux's flag and the common name.
var named = []struct{ flag, name string }{
	{"avx", "AVX"},
	{"avx2", "AVX2"},
	{"fma", "FMA"},
	{"avx512f", "AVX-512"},
	{"avx512_vnni", "AVX512_VNNI"},
	{"avx512_bf16", "AVX512_BF16"},
	{"avx512_fp16", "AVX512_FP16"},
	{"amx_bf16", "AMX_BF16"},
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
	case !p.x86():
		return note(name, "unknown", "")
	case p.tooOld():
		return problem(name, "no AVX: TensorFlow's wheels crash on this CPU",
			"train on another machine, let the virtual machine show the host's CPU (`-cpu host` in QEMU), "+
				"or build TensorFlow for this CPU")
	case !p.has("avx2") || !p.has("fma"):
		return warning(name, found+"; without AVX2 and FMA, matrix products run at a fraction of the speed",
			"let the virtual machine show the host's CPU (`-cpu host` in QEMU), or train on a newer one")
	}
	return ok(name, found)
}

// cores compares the number of CPUs that TensorFlow sees with the CPU quota. TensorFlow sizes
// its thread pools by the CPUs that the process may run on (sched_getaffinity) and ignores
// quotas, so most threads are throttled for part of each scheduling period.
func cores(m machine) Check {
	const name = "cores"
	found := fmt.Sprintf("%d usable", m.cores)
	quota, file := cgroup.Cores(m.fs)
	if quota <= 0 || quota >= float64(m.cores) {
		return ok(name, found)
	}
	found += fmt.Sprintf(", quota of %.4g cores (%s)", quota, file)
	threads := m.cores
	if n, err := strconv.Atoi(m.env["TF_NUM_INTRAOP_THREADS"]); err == nil && n > 0 {
		threads = n
	}
	n := int(math.Ceil(quota))
	if threads <= n {
		return ok(name, found)
	}
	return warning(name, fmt.Sprintf("%s; TensorFlow ignores it and starts %d threads per pool", found, threads),
		fmt.Sprintf("`steadyfit fit --intra-threads %d --inter-threads %d`, or "+
			"TF_NUM_INTRAOP_THREADS=%d TF_NUM_INTEROP_THREADS=%d", n, n, n, n))
}
