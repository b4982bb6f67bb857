// Package gpuopts turns device settings into what TensorFlow reads: the bytes
// of a tensorflow.ConfigProto. Its values are plain structs with useful zeros:
// an Options{} leaves every choice to TensorFlow.
//
// It does not decide anything and does not look at the machine. A value flows
// from the caller through Options.ConfigProto into session.Options.
package gpuopts

import (
	"fmt"
	"strconv"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"
)

// Options are settings of TensorFlow's devices for one session. TensorFlow sets
// up its devices once per process, with the options of the first session; GPU
// options of later sessions are ignored by it.
type Options struct {
	// IntraThreads is the number of threads that share one operation; 0 means
	// one per core. The pool is made by the first session of the process.
	IntraThreads int
	// InterThreads is the number of threads that run operations side by side; 0
	// means one per core. It too belongs to the first session.
	InterThreads int
	// MemoryGrowth makes TensorFlow take GPU memory as it is needed, rather than
	// nearly all at the start (GPUOptions.allow_growth). It applies to all GPUs
	// alike, and frees nothing before the process ends.
	MemoryGrowth bool
	// MemoryFraction is the part of each GPU's memory that TensorFlow may take,
	// in (0, 1]; 0 leaves it to TensorFlow.
	MemoryFraction float64
	// VisibleGPUs are the indices of the GPUs to use; empty means all.
	VisibleGPUs []int
}

// ConfigProto returns the serialized tensorflow.ConfigProto of the options; no
// bytes if there is nothing to say.
func (o Options) ConfigProto() ([]byte, error) {
	if o.IntraThreads < 0 || o.InterThreads < 0 {
		return nil, fmt.Errorf("threads: got %d intra and %d inter; expected 0 (one per core) or more", o.IntraThreads, o.InterThreads)
	}
	if !(o.MemoryFraction >= 0 && o.MemoryFraction <= 1) {
		return nil, fmt.Errorf("GPU memory fraction: got %v; expected a number above 0 and up to 1, or 0 for TensorFlow's default", o.MemoryFraction)
	}
	visible := make([]string, len(o.VisibleGPUs))
	for i, gpu := range o.VisibleGPUs {
		if gpu < 0 {
			return nil, fmt.Errorf("visible GPUs: got %d; expected indices from 0", gpu)
		}
		visible[i] = strconv.Itoa(gpu)
	}
	config := &pb.ConfigProto{
		IntraOpParallelismThreads: int32(o.IntraThreads),
		InterOpParallelismThreads: int32(o.InterThreads),
	}
	if o.MemoryGrowth || o.MemoryFraction > 0 || len(visible) > 0 {
		config.GpuOptions = &pb.GPUOptions{
			AllowGrowth:                 o.MemoryGrowth,
			PerProcessGpuMemoryFraction: o.MemoryFraction,
			VisibleDeviceList:           strings.Join(visible, ","),
		}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(config)
}
