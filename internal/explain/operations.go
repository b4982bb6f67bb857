package explain

import (
	"regexp"
	"slices"
	"strings"

	"steadyfit/internal/native"
	"steadyfit/memory"
)

// operation is the memory that one operation of a traced step takes from malloc or from a CPU pool.
type operation struct {
	native.Allocations
	// part is Activations, Gradients or Update. Memory beyond the outputs is Workspace as long as
	// the operation runs.
	part  string
	layer string
}

// ofGPU reports whether an allocator of TensorFlow is that of a GPU.
func ofGPU(allocator string) bool { return strings.HasPrefix(allocator, "GPU_") }

// classify returns the operations that allocate memory of the CPU.
func classify(list []native.Allocations) (operations []operation) {
	for _, a := range list {
		if ofGPU(a.Allocator) || len(a.Records) == 0 {
			continue
		}
		o := operation{Allocations: a, layer: layerOf(a.Name), part: Activations}
		switch {
		case updates.MatchString(a.Type):
			o.part = Update
		case backward.MatchString(a.Name) || backwardTypes.MatchString(a.Type):
			o.part = Gradients
		case optimizers.MatchString(a.Name):
			o.part = Update
		}
		operations = append(operations, o)
	}
	model := commonRoot(operations)
	for i := range operations {
		operations[i].layer = strings.TrimPrefix(operations[i].layer, model)
	}
	return operations
}

// commonRoot returns the name, with a slash, of the model that contains most of the nested layers; empty if
// there is none.
func commonRoot(operations []operation) string {
	roots, layers := map[string]int{}, 0
	for _, o := range operations {
		if root, _, nested := strings.Cut(o.layer, "/"); nested {
			roots[root+"/"]++
			layers++
		}
	}
	for root, n := range roots {
		if 2*n > layers {
			return root
		}
	}
	return ""
}

// These patterns match names of TensorFlow's gradient functions (eager/backprop.py,
// ops/gradients_util.py) and of Keras' optimizers.
var (
	updates       = regexp.MustCompile(`^(Resource(Sparse)?Apply|Assign)`)
	backward      = regexp.MustCompile(`(^|/)(gradient_tape|gradients?(_\d+)?)/|_grad(_\d+)?(/|$)`)
	backwardTypes = regexp.MustCompile(`Grad(V\d)?$|Backprop`)
	optimizers    = regexp.MustCompile(`(?i)(^|/)(adam|adamw|adamax|nadam|adagrad|adadelta|adafactor|sgd|rmsprop|ftrl|lion|lamb|muon|loss_scale_optimizer|optimizer)(_\d+)?/`)
	// wrappers are parts of names that do not belong to a layer.
	wrappers = regexp.MustCompile(`^(StatefulPartitionedCall|PartitionedCall|gradient_tape|gradients?|Func|while|cond|body|branch\w*|then|else|input|output|\w*_grad)?(_\d+)?$`)
)

// layerOf returns the layer in the name of an operation: the part between the calls of functions and the
// operation itself.
func layerOf(name string) string {
	path := strings.Split(name, "/")
	path = slices.DeleteFunc(path[:len(path)-1], func(s string) bool { return s == "" || wrappers.MatchString(s) })
	return strings.Join(path, "/")
}

// split divides the memory that an operation holds at a moment into outputs and workspace.
func (o *operation) split(held memory.Bytes, micros int64) (outputs, workspace memory.Bytes) {
	outputs = max(held, 0)
	if micros <= o.End {
		workspace = max(outputs-o.Outputs, 0)
	}
	return outputs - workspace, workspace
}

// peakOf returns the maximum memory that the operations hold together, and the time of the maximum.
func peakOf(operations []operation) (memory.Bytes, int64) {
	var records []native.Record
	for _, o := range operations {
		records = append(records, o.Records...)
	}
	return native.Peak(records)
}

// atPeak returns the holders by part at the time of the maximum that peakOf returns.
func atPeak(operations []operation) map[string][]Holder {
	_, at := peakOf(operations)
	parts := map[string][]Holder{}
	for _, o := range operations {
		outputs, workspace := o.split(o.Held(at), at)
		for _, h := range []struct {
			part  string
			bytes memory.Bytes
		}{{o.part, outputs}, {Workspace, workspace}} {
			if h.bytes > 0 {
				parts[h.part] = append(parts[h.part], Holder{Name: o.Name, Bytes: h.bytes, Layer: o.layer, Type: o.Type})
			}
		}
	}
	return parts
}
