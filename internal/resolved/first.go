package resolved

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"steadyfit/gpuopts"
	"steadyfit/internal/wire"
	"steadyfit/option"
)

// Later compares the serialized ConfigProto of a session with that of the process's first session.
// TensorFlow sets up GPUs and threads once, and would ignore other settings or fail. The error joins
// an *option.Error (gpuopts.ErrTooLate) for each setting that differs.
func Later(first, config []byte) error {
	var had, asks pb.ConfigProto
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
			Reason: fmt.Sprintf("TensorFlow sets up %s once per process, and the first session did so with %s", now.what, cmp.Or(was, "TensorFlow's default")),
			Fix:    now.fix, Err: gpuopts.ErrTooLate,
		})
	}
	return errors.Join(errs...)
}

// Unlimited returns the name of the allocator if it does not limit GPU memory: "cuda_malloc_async" or
// "cuda_malloc", which replace BFC (gpu_process_state.cc). Otherwise it returns "". first is the
// serialized ConfigProto of the process's first session, and env its environment.
func Unlimited(first []byte, env []string) string {
	allocator := ""
	for _, kv := range slices.Backward(env) { // the first entry for a name counts
		if name, value, _ := strings.Cut(kv, "="); name == "TF_GPU_ALLOCATOR" {
			allocator = value
		}
	}
	switch allocator {
	case cudaMallocAsync, "cuda_malloc":
		return allocator
	case "memory_guard": // wraps BFC
		return ""
	}
	var config pb.ConfigProto
	if err := proto.Unmarshal(first, &config); err == nil && config.GetGpuOptions().GetExperimental().GetUseCudaMallocAsync() {
		return cudaMallocAsync
	}
	return ""
}

const cudaMallocAsync = "cuda_malloc_async"

// hostMemoryLimit is the field gpu_host_mem_limit_in_mb of GPUOptions.Experimental, which the generated
// Go types lack.
const hostMemoryLimit protowire.Number = 13

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

func processWide(c *pb.ConfigProto) []settled {
	const gpus, threads = "its GPUs", "its threads"
	const fix = "open the session that needs it first, or use another process"
	gpu := c.GetGpuOptions()
	experimental := gpu.GetExperimental()
	allocator := gpu.GetAllocatorType()
	if experimental.GetUseCudaMallocAsync() {
		allocator = cudaMallocAsync
	}
	inter := c.GetInterOpParallelismThreads()
	if c.GetUsePerSessionThreads() {
		inter = 0
	}
	var virtual [][]float32
	for _, d := range experimental.GetVirtualDevices() {
		virtual = append(virtual, d.GetMemoryLimitMb())
	}
	var limit float32
	var err error // the message was parsed before
	for f := range wire.Fields(experimental.ProtoReflect().GetUnknown(), &err, func(_ int, cause error) error { return cause }) {
		if f.Num == hostMemoryLimit && f.Typ == protowire.Fixed32Type {
			limit = math.Float32frombits(binary.LittleEndian.Uint32(f.Raw[len(f.Raw)-4:]))
		}
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
		{"Options.HostMemoryLimit", limit, gpus, fix},
	}
}
