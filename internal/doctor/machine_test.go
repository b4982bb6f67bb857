package doctor

import (
	"io/fs"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/tflibrary"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// tree is a recorded machine: the content of its files by path.
type tree map[string]string

func (t tree) fs() fs.FS {
	m := fstest.MapFS{}
	for path, text := range t {
		m[relative(path)] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

// with returns a copy with more files.
func (t tree) with(more tree) tree {
	all := tree{}
	for k, v := range t {
		all[k] = v
	}
	for k, v := range more {
		all[k] = v
	}
	return all
}

const (
	newCPU = "model name\t: AMD EPYC 9755\nflags\t\t: sse2 avx avx2 fma avx512f avx512_vnni avx512_bf16\n"
	zen2   = "model name\t: AMD EPYC 7742\nflags\t\t: sse2 avx avx2 fma\n"
)

// plain is a machine of 16 GiB and 8 CPUs without control groups or a GPU.
var plain = tree{
	"/proc/cpuinfo": newCPU,
	"/proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   " +
		"12582912 kB\n",
}

// box returns a machine with a TensorFlow that works and was built for the CPU.
func box(files tree, env map[string]string) machine {
	location := tflibrary.Location{
		Library:   "/opt/site-packages/tensorflow/libtensorflow_cc.so.2",
		Framework: "/opt/site-packages/tensorflow/libtensorflow_framework.so.2",
		Source:    "python3",
	}
	field := func(file, name string) string {
		_, rest, _ := strings.Cut(files[file], name)
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(strings.TrimLeft(line, "\t :"))
	}
	amount := func(name string) memory.Reading {
		n, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", name), " kB"), 10, 64)
		return memory.Reading{Bytes: memory.Bytes(n) * memory.KiB, OK: err == nil}
	}
	return machine{
		fs: files.fs(), env: env, cores: 8,
		cpu:   processor{field("/proc/cpuinfo", "model name"), strings.Fields(field("/proc/cpuinfo", "flags"))},
		total: amount("MemTotal"), available: amount("MemAvailable"),
		locate: func(string) (tflibrary.Location, error) { return location, nil },
		load: func(string) (tfbind.Info, error) {
			return tfbind.Info{Library: location.Library, Framework: location.Framework, Source: location.Source,
				Version: "2.21.0"}, nil
		},
		try: func() ([]tfbind.Device, error) {
			return []tfbind.Device{{Name: "/job:localhost/replica:0/task:0/device:CPU:0", Type: "CPU", MemoryBytes: 1 << 28}},
				nil
		},
		realFolder:  func(string) string { return "/opt/site-packages/tensorflow" },
		builtForGPU: func(string) bool { return false },
		gpus:        func() gpuList { return gpuList{} },
	}
}

// gpuBuild gives the machine the GPU wheel.
func gpuBuild(m machine) machine {
	m.builtForGPU = func(string) bool { return true }
	return m
}

// check finds a check by name, and fails if it is not there exactly once.
func check(t *testing.T, checks []Check, name string) Check {
	t.Helper()
	var found []Check
	for _, c := range checks {
		if c.Name == name {
			found = append(found, c)
		}
	}
	require.Len(t, found, 1, "checks named %q in %v", name, checks)
	return found[0]
}
