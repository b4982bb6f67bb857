package resolved

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"

	"steadyfit/gpuopts"
	"steadyfit/internal/tfproto"
	"steadyfit/option"
)

// Later compares the serialized ConfigProto of a session with that of the process's first session.
// TensorFlow sets up GPUs and threads once, and would ignore other settings or fail. The error joins
// an *option.Error (gpuopts.ErrTooLate) for each setting that differs.
func Later(first, config []byte) error {
	var had, asks tfproto.ConfigProto
	if proto.Unmarshal(first, &had) != nil || proto.Unmarshal(config, &asks) != nil {
		return nil // TensorFlow reports an invalid message
	}
	var errs []error
	before := processWide(&had)
	for i, now := range processWide(&asks) {
		value, was := now.text(), before[i].text()
		if value == "" || value == was {
			continue
		}
		errs = append(errs, &option.Error{
			Option: now.option, Value: value,
			Reason: fmt.Sprintf("TensorFlow sets up %s once per process, and the first session did so with %s", now.what,
				cmp.Or(was, "TensorFlow's default")),
			Fix: now.fix, Err: gpuopts.ErrTooLate,
		})
	}
	return errors.Join(errs...)
}

// settled is an option that TensorFlow reads only from the first session. Zero means TensorFlow's
// default.
type settled struct {
	option    string
	value     any
	what, fix string
}

func (s settled) text() string {
	if reflect.ValueOf(s.value).IsZero() {
		return ""
	}
	return fmt.Sprint(s.value)
}

func processWide(c *tfproto.ConfigProto) []settled {
	const gpus, threads = "its GPUs", "its threads"
	const fix = "open the session that needs it first, or use another process"
	gpu := c.GetGpuOptions()
	experimental := gpu.GetExperimental()
	allocator := gpu.GetAllocatorType()
	if experimental.GetUseCudaMallocAsync() {
		allocator = "cuda_malloc_async"
	}
	inter := c.GetInterOpParallelismThreads()
	if c.GetUsePerSessionThreads() {
		inter = 0
	}
	var virtual [][]float32
	for _, d := range experimental.GetVirtualDevices() {
		virtual = append(virtual, d.GetMemoryLimitMb())
	}
	return []settled{
		{"Options.IntraThreads", c.GetIntraOpParallelismThreads(), threads, fix},
		{"Options.InterThreads", inter, threads, fix + ", or set {Options.PerSessionThreads}"},
		{"Options.MemoryGrowth", gpu.GetAllowGrowth(), gpus, fix},
		{"Options.MemoryFraction", gpu.GetPerProcessGpuMemoryFraction(), gpus, fix},
		{"Options.VisibleGPUs", gpu.GetVisibleDeviceList(), gpus, fix},
		{"Options.VirtualGPUs", virtual, gpus, fix},
		{"Options.GPUAllocator", allocator, gpus, fix},
		{"Options.UnifiedMemory", experimental.GetUseUnifiedMemory(), gpus, fix},
	}
}
