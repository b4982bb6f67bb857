package doctor

import (
	"context"
	"io/fs"
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
	"/proc/cpuinfo":                               newCPU,
	"/proc/meminfo":                               "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\nSwapTotal:       2097152 kB\nSwapFree:        2097152 kB\n",
	"/proc/self/status":                           "Name:\tsteadyfit\nCpus_allowed_list:\t0-7\n",
	"/proc/self/limits":                           "Limit                     Soft Limit           Hard Limit           Units\nMax address space         unlimited            unlimited            bytes\n",
	"/proc/self/maps":                             "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n",
	"/sys/devices/system/cpu/online":              "0-7\n",
	"/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
}

const runPath = "$ORIGIN/:$ORIGIN/../nvidia/cublas/lib:$ORIGIN/../nvidia/cudnn/lib:$ORIGIN/../nvidia/cusparse/lib"

// box returns a machine with a TensorFlow that works and was built for the CPU.
func box(files tree, env map[string]string) machine {
	location := tflibrary.Location{
		Library:   "/opt/site-packages/tensorflow/libtensorflow_cc.so.2",
		Framework: "/opt/site-packages/tensorflow/libtensorflow_framework.so.2",
		Source:    "python3",
	}
	return machine{
		fs: files.fs(), env: env, goMaxProcs: 8, arch: "amd64",
		folders: []folder{{"working folder", "/data", "write elsewhere"}},
		locate:  func(string) (tflibrary.Location, error) { return location, nil },
		load: func(string) (tfbind.Info, error) {
			return tfbind.Info{Library: location.Library, Framework: location.Framework, Source: location.Source, Version: "2.21.0"}, nil
		},
		try: func(context.Context) ([]tfbind.Device, error) {
			return []tfbind.Device{{Name: "/job:localhost/replica:0/task:0/device:CPU:0", Type: "CPU", MemoryBytes: 1 << 28}}, nil
		},
		runPath: func(string) ([]string, error) { return nil, nil },
		contains: func(_, names []string) (map[string]bool, error) {
			held := map[string]bool{}
			for _, n := range names {
				v, known := variables[n]
				held[n] = n == "TF_GRAPH_CACHING" || known && v.reader == byTensorFlow
			}
			return held, nil
		},
		space: func(string) (space, error) { return space{memory.Known(50 * memory.GiB), true}, nil },
		gpus:  func() gpuList { return gpuList{} },
	}
}

// gpuBuild gives the machine the GPU wheel.
func gpuBuild(m machine) machine {
	m.runPath = func(string) ([]string, error) { return splitRunPath(runPath, "/opt/site-packages/tensorflow"), nil }
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
