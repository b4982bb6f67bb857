package resolved

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"steadyfit/gpuopts"
	"steadyfit/internal/tfproto"
)

// Later compares the serialized ConfigProto of a session with that of the process's first session.
// TensorFlow sets up GPUs and threads once, and would ignore other settings or fail. The error is
// gpuopts.ErrTooLate. A setting that a later session leaves unset is no difference.
func Later(first, config []byte) error {
	var had, asks tfproto.ConfigProto
	if proto.Unmarshal(first, &had) != nil || proto.Unmarshal(config, &asks) != nil {
		return nil // TensorFlow reports an invalid message
	}
	before, later := processWide(&had), processWide(&asks)
	both := proto.CloneOf(before)
	if len(later.GetGpuOptions().GetExperimental().GetVirtualDevices()) > 0 {
		both.GpuOptions.Experimental.VirtualDevices = nil // which the later ones replace
	}
	proto.Merge(both, later)
	if proto.Equal(before, both) {
		return nil
	}
	return fmt.Errorf("%w: TensorFlow sets up its threads and GPUs once per process, and the first session did so with "+
		"(%v), not with (%v); open the session that needs other settings first, or use another process",
		gpuopts.ErrTooLate, before, later)
}

// processWide returns the fields that TensorFlow reads only from the first session.
func processWide(c *tfproto.ConfigProto) *tfproto.ConfigProto {
	gpu, experimental := c.GetGpuOptions(), c.GetGpuOptions().GetExperimental()
	out := &tfproto.ConfigProto{
		IntraOpParallelismThreads: c.GetIntraOpParallelismThreads(),
		GpuOptions: &tfproto.GPUOptions{
			AllowGrowth: gpu.GetAllowGrowth(), PerProcessGpuMemoryFraction: gpu.GetPerProcessGpuMemoryFraction(),
			VisibleDeviceList: gpu.GetVisibleDeviceList(), AllocatorType: gpu.GetAllocatorType(),
			Experimental: &tfproto.GPUOptions_Experimental{
				VirtualDevices: experimental.GetVirtualDevices(), UseUnifiedMemory: experimental.GetUseUnifiedMemory(),
				UseCudaMallocAsync: experimental.GetUseCudaMallocAsync(),
			},
		},
	}
	if !c.GetUsePerSessionThreads() {
		out.InterOpParallelismThreads = c.GetInterOpParallelismThreads()
	}
	return out
}
