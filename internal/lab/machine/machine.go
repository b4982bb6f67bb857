// Package machine describes the machine of a measurement.
package machine

import (
	"os"
	"runtime"
	"strings"

	"github.com/shirou/gopsutil/v3/cpu"
	"github.com/shirou/gopsutil/v3/host"
	"github.com/shirou/gopsutil/v3/load"
	"github.com/shirou/gopsutil/v3/mem"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/tfprocess"
)

// Environment describes the machine.
type Environment struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`
	Limit  int64  `json:"memory_limit_bytes,omitempty"` // memory limit of the control group; 0 is none
	Go     string `json:"go"`
	// TensorFlow, Keras and Python are versions. TensorFlow has one for each runtime, by its
	// name.
	TensorFlow map[string]string `json:"tensorflow"`
	Keras      string            `json:"keras,omitempty"`
	Python     string            `json:"python,omitempty"`
	// GPUs has the names of the GPUs.
	GPUs []string `json:"gpus"`
	// Variables are the environment variables of the start that TensorFlow, Go or an allocator
	// reads.
	Variables map[string]string `json:"variables"`
	// LoadBefore and LoadAfter are load averages over a minute.
	LoadBefore float64 `json:"load_before"`
	LoadAfter  float64 `json:"load_after"`
}

// Read describes the machine with these GPUs. Unknown facts are empty.
func Read(gpus []string) Environment {
	e := Environment{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version(),
		TensorFlow: make(map[string]string), GPUs: append([]string{}, gpus...), Variables: make(map[string]string)}
	e.Kernel, _ = host.KernelVersion()
	if info, err := cpu.Info(); err == nil && len(info) > 0 {
		e.CPU = info[0].ModelName
	}
	if m, err := mem.VirtualMemory(); err == nil {
		e.Memory = int64(m.Total)
	}
	e.LoadBefore = LoadAverage()
	e.Limit = cgroup.ReadMemory(os.DirFS("/"), "self").Limit.Bytes
	for _, pair := range tfprocess.Influential(os.Environ()) {
		name, value, _ := strings.Cut(pair, "=")
		e.Variables[name] = value
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
