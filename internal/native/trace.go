package native

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/dtype"
	"steadyfit/internal/tfproto"
	"steadyfit/memory"
)

// Use is what a traced execution used of one of TensorFlow's allocators.
type Use struct {
	// InUse is the amount allocated in the whole process at the end of the execution's last
	// allocating operation. Peak is the maximum over all allocating operations. Both are
	// unknown if the allocator does not count.
	InUse, Peak memory.Reading
}

// Trace is the summary of a traced execution.
type Trace struct {
	// Allocators maps the names of TensorFlow's allocators to their use.
	//
	//   - "mklcpu" is the allocator of CPUs with oneDNN. It counts blocks of 256 KiB and more, which
	//     come from its pool. Smaller blocks, and all blocks with TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1,
	//     come from malloc and are not counted.
	//   - "cpu" is the allocator of CPUs without oneDNN. It uses malloc and does not count.
	//   - "GPU_0_bfc" and so on count all blocks of a GPU, and "gpu_host_bfc" pinned host memory.
	Allocators map[string]Use
	// Allocations has an entry for each operation and allocator that it used.
	Allocations []Allocations
	// Operations is the number of operations that ran, including those in functions. XLA-compiled
	// code counts as one. 0 means that the executor cannot trace.
	Operations int
	// These fields count operations created by graph rewriting: casts of auto_mixed_precision,
	// activations recomputed to save memory, clusters compiled by XLA, and kernels of oneDNN. Calls
	// counts calls of functions that were not inlined.
	BFloat16Casts, Float16Casts, Recomputed, XLAClusters, OneDNN, Calls int
	// Casts is the number of casts of auto_mixed_precision that ran, including casts back to
	// float32 but not casts of constants, which run only once.
	Casts int
	// Matrix counts the operations that multiply matrices or convolve, by the element type of the first
	// floating-point output. It includes gradients but not XLA-compiled code. Operations of a branch that was
	// not taken have no outputs.
	Matrix map[dtype.DType]int
}

// ReadTrace parses the serialized tensorflow.RunMetadata of [steadyfit/tfbind.Step.Trace].
func ReadTrace(metadata []byte) (Trace, error) {
	var run tfproto.RunMetadata
	if err := proto.Unmarshal(metadata, &run); err != nil {
		return Trace{}, fmt.Errorf("read RunMetadata: %w", err)
	}
	t := Trace{Allocators: map[string]Use{}, Matrix: map[dtype.DType]int{}}
	last := map[string]int64{} // end time of the operation that reported InUse
	for _, device := range run.GetStepStats().GetDevStats() {
		for _, node := range device.GetNodeStats() {
			t.count(node)
			end := node.GetAllStartNanos() + node.GetAllEndRelNanos()
			for _, m := range node.GetMemory() {
				name := m.GetAllocatorName()
				u := t.Allocators[name]
				// The message does not distinguish 0 from absent, but an allocator that counts cannot report 0
				// after an allocation.
				if b := memory.Bytes(m.GetAllocatorBytesInUse()); b > 0 {
					u.Peak = memory.Known(max(u.Peak.Bytes, b))
					if end >= last[name] {
						u.InUse, last[name] = memory.Known(b), end
					}
				}
				t.Allocators[name] = u
				t.Allocations = append(t.Allocations, allocations(node, m))
			}
		}
	}
	return t, nil
}

// count adds an operation. Casts have names of the pass (grappler/optimizers/auto_mixed_precision.cc), and
// recomputed operations the prefix "Recomputed" (grappler/optimizers/memory_optimizer.cc).
func (t *Trace) count(node *tfproto.NodeExecStats) {
	t.Operations++
	name := node.GetNodeName()
	switch {
	case strings.Contains(name, "CastToBf16"):
		t.BFloat16Casts++
	case strings.Contains(name, "CastToFp16"):
		t.Float16Casts++
	case strings.Contains(name, "Recomputed/"):
		t.Recomputed++
	}
	kind := typeOf(node)
	switch {
	case kind == "_XlaRun", kind == "XlaLaunch":
		t.XLAClusters++
	case strings.HasPrefix(kind, "_Mkl"):
		t.OneDNN++
	case kind == "PartitionedCall", kind == "StatefulPartitionedCall":
		t.Calls++
	case kind == "Cast" && strings.HasSuffix(name, "-AutoMixedPrecision"):
		t.Casts++
	}
	for _, output := range node.GetOutput() {
		if d := dtype.DType(output.GetTensorDescription().GetDtype()); matrix(kind) && floating(d) {
			t.Matrix[d]++
			return
		}
	}
}

func floating(d dtype.DType) bool {
	return d == dtype.Float32 || d == dtype.Float64 || d == dtype.Float16 || d == dtype.BFloat16
}

// matrix reports whether operations of a type multiply matrices or convolve, including fused operations
// (_FusedConv2D) and recurrent ones (CudnnRNN).
func matrix(kind string) bool {
	return slices.ContainsFunc([]string{"MatMul", "Einsum", "Conv1D", "Conv2D", "Conv2d", "Conv3D", "CudnnRNN",
		"BlockLSTM", "LSTMBlock", "GRUBlock"},
		func(part string) bool { return strings.Contains(kind, part) })
}
