package native

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	stats "github.com/galeone/tensorflow/tensorflow/go/core/framework/step_stats_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/memory"
	"steadyfit/tfbind"
)

// Use is what is known of one of TensorFlow's allocators from a traced run.
type Use struct {
	// InUse is what the allocator had handed out to the whole process when the last
	// operation of the run ended that allocated from it, and Peak the most at the
	// end of any such operation; what an operation takes and frees before its end
	// is not seen. They are unknown if the allocator keeps no count.
	InUse, Peak memory.Reading
	// RunPeak is the most that the run itself held at one time, from the record of
	// each allocation: without variables, inputs, and what other runs hold. It is
	// there for every allocator, to the microsecond that the records have.
	RunPeak memory.Bytes
	// Requested is what the operations of the run asked for in sum, no matter what
	// was freed meanwhile.
	Requested memory.Bytes
	// Operations is how many operations allocated.
	Operations int
}

// Trace is what is known of a traced run.
type Trace struct {
	// Allocators has what TensorFlow's allocators did, by their names.
	//
	//   - "mklcpu" is that of a CPU with oneDNN. It counts blocks of 256 KiB and more,
	//     which come from its pool; smaller ones it passes on to malloc uncounted, and
	//     with TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1 all of them.
	//   - "cpu" is that without oneDNN; it passes all on to malloc uncounted.
	//   - "GPU_0_bfc" and the like count all of a GPU, "gpu_host_bfc" pinned memory.
	Allocators map[string]Use
	// Operations is how many operations ran, those inside of functions included;
	// what XLA compiled is one. 0 is an executor that does not trace.
	Operations int
	// What rewriting left in the graph, as numbers of operations: casts of the pass
	// auto_mixed_precision, activations that are computed twice to save memory,
	// clusters that XLA compiled, kernels of oneDNN, and functions that were called
	// and not inlined.
	BFloat16Casts, Float16Casts, Recomputed, XLAClusters, OneDNN, Calls int
	// Casts is how many casts of that pass ran, back to float32 included, and without
	// those that were done once, to constants.
	Casts int
	// Devices is Operations by the name of the device.
	Devices map[string]int
	// Floating is how many operations gave out floating-point numbers, by the element
	// type of the first such output, and Matrix how many of these multiply matrices or
	// convolve, gradients included. What XLA compiled is one operation, and none of
	// Matrix. An operation of a branch that was not taken gives nothing out.
	Floating, Matrix map[tfbind.DType]int
}

// ReadTrace reads the serialized tensorflow.RunMetadata that
// [steadyfit/tfbind.Step.Trace] returns.
func ReadTrace(metadata []byte) (Trace, error) {
	var run pb.RunMetadata
	if err := proto.Unmarshal(metadata, &run); err != nil {
		return Trace{}, fmt.Errorf("read RunMetadata: %w", err)
	}
	t := Trace{Allocators: map[string]Use{}, Devices: map[string]int{}, Floating: map[tfbind.DType]int{}, Matrix: map[tfbind.DType]int{}}
	last := map[string]int64{} // when the operation ended that InUse is from
	records := map[string][]record{}
	for _, device := range run.GetStepStats().GetDevStats() {
		for _, node := range device.GetNodeStats() {
			t.count(node)
			t.Devices[device.GetDevice()]++
			end := node.GetAllStartNanos() + node.GetAllEndRelNanos()
			for _, m := range node.GetMemory() {
				name := m.GetAllocatorName()
				u := t.Allocators[name]
				u.Requested += memory.Bytes(m.GetTotalBytes())
				u.Operations++
				// The message cannot tell 0 from absent, and an allocator that counts
				// has handed out something when an operation has got something.
				if b := memory.Bytes(m.GetAllocatorBytesInUse()); b > 0 {
					u.Peak = memory.Known(max(u.Peak.Bytes, b))
					if end >= last[name] {
						u.InUse, last[name] = memory.Known(b), end
					}
				}
				t.Allocators[name] = u
				for _, r := range m.GetAllocationRecords() {
					records[name] = append(records[name], record{r.GetAllocMicros(), r.GetAllocBytes()})
				}
			}
		}
	}
	for name, r := range records {
		u := t.Allocators[name]
		u.RunPeak = peak(r)
		t.Allocators[name] = u
	}
	return t, nil
}

// count takes up an operation. The names of casts are those that the pass gives
// them (grappler/optimizers/auto_mixed_precision.cc), and "Recomputed" is the prefix
// of the memory optimizer's (grappler/optimizers/memory_optimizer.cc). The label is
// "name = Type(inputs)".
func (t *Trace) count(node *stats.NodeExecStats) {
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
	_, kind, _ := strings.Cut(node.GetTimelineLabel(), " = ")
	kind, _, _ = strings.Cut(kind, "(")
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
		d := tfbind.DType(output.GetTensorDescription().GetDtype())
		if !floating(d) {
			continue
		}
		t.Floating[d]++
		if matrix(kind) {
			t.Matrix[d]++
		}
		break
	}
}

func floating(d tfbind.DType) bool {
	return d == tfbind.Float32 || d == tfbind.Float64 || d == tfbind.Float16 || d == tfbind.BFloat16
}

// matrix tells whether operations of a type multiply matrices or convolve, be it
// together with something else, as in _FusedConv2D, or many times, as in CudnnRNN.
func matrix(kind string) bool {
	return slices.ContainsFunc([]string{"MatMul", "Einsum", "Conv1D", "Conv2D", "Conv2d", "Conv3D", "CudnnRNN", "BlockLSTM", "LSTMBlock", "GRUBlock"},
		func(part string) bool { return strings.Contains(kind, part) })
}

// record is an allocation, or with negative bytes the end of one.
type record struct{ micros, bytes int64 }

// peak is the most that was held at one time. What is freed in the microsecond in
// which something else is taken is counted as freed first.
func peak(records []record) memory.Bytes {
	slices.SortFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.micros, b.micros), cmp.Compare(a.bytes, b.bytes))
	})
	var held, most int64
	for _, r := range records {
		held += r.bytes
		most = max(most, held)
	}
	return memory.Bytes(most)
}
