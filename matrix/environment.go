package matrix

import (
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/shirou/gopsutil/v3/cpu"
	"github.com/shirou/gopsutil/v3/host"
	"github.com/shirou/gopsutil/v3/load"
	"github.com/shirou/gopsutil/v3/mem"

	"steadyfit/memory"
)

var read = []string{"TF_", "ONEDNN_", "DNNL_", "XLA_", "CUDA_", "NVIDIA_", "GOGC", "GOMEMLIMIT", "GODEBUG", "GOMAXPROCS", "MALLOC_", "LD_PRELOAD", "OMP_", "GLIBC_TUNABLES", "KERAS_", "TCMALLOC_", "MIMALLOC_"}

// reads reports whether TensorFlow, Go or an allocator reads a variable.
func reads(name string) bool {
	return slices.ContainsFunc(read, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) &&
		!strings.HasPrefix(name, "TF_CLI_") // variables of Terraform
}

// ReadEnvironment describes the machine with these GPUs. Unknown facts are empty.
func ReadEnvironment(gpus []string) Environment {
	e := Environment{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version(),
		TensorFlow: make(map[string]string), GPUs: append([]string{}, gpus...), Variables: make(map[string]string)}
	if kernel, err := host.KernelVersion(); err == nil {
		e.Kernel = kernel
	}
	if info, err := cpu.Info(); err == nil && len(info) > 0 {
		e.CPU = info[0].ModelName
	}
	if m, err := mem.VirtualMemory(); err == nil {
		e.Memory = int64(m.Total)
	}
	e.LoadBefore = LoadAverage()
	if s, err := memory.NewSampler(memory.SamplerOptions{}); err == nil {
		var sample memory.Sample
		if err := s.Sample(0, &sample); err == nil {
			e.Limit = int64(sample.Get(memory.CgroupLimit).Bytes)
		}
		s.Close()
	}
	for _, pair := range os.Environ() {
		if name, value, _ := strings.Cut(pair, "="); reads(name) {
			e.Variables[name] = value
		}
	}
	return e
}

// LoadAverage returns the load average over a minute; 0 if unknown.
func LoadAverage() float64 {
	if l, err := load.Avg(); err == nil {
		return l.Load1
	}
	return 0
}

func (e *Environment) finish(runs []RunResult) {
	e.LoadAfter = LoadAverage()
	for _, run := range runs {
		if version, ok := run.Facts["tensorflow"]; ok {
			e.TensorFlow[run.Runtime] = version
		}
		if version, ok := run.Facts["keras"]; ok {
			e.Keras = version
		}
		if version, ok := run.Facts["python"]; ok {
			e.Python = version
		}
	}
}
