package explain

import (
	"cmp"
	"slices"
	"strings"

	"steadyfit/memory"
	"steadyfit/savedmodels"
)

// poolBlock is the size from which oneDNN's allocator takes blocks from its pool instead of malloc
// (common_runtime/mkl_cpu_allocator.h).
const poolBlock = 256 * memory.KiB

// variables returns the holders of variables by part.
func variables(m *savedmodels.Model) map[string][]Holder {
	parts := map[string][]Holder{}
	weights := slices.ContainsFunc(m.Variables, func(v savedmodels.Variable) bool { return v.Weight })
	for _, v := range m.Variables {
		h := Holder{Name: cmp.Or(v.WeightName(), v.Name), Bytes: memory.Bytes(v.Bytes())}
		part := OtherVars
		switch {
		case v.Frozen, v.Weight, !weights && v.Trained:
			part = Weights
		case v.Trained && !strings.Contains(strings.ToLower(h.Name), "accumul"):
			part = Optimizer
		}
		parts[part] = append(parts[part], h)
	}
	return parts
}

// parts attributes the peak; see the package comment.
func (m *measurement) parts(operations []operation) []Part {
	b := &m.before
	l := &list{pool: m.trace.Allocators["mklcpu"].Peak.OK}
	l.add(Libraries, b.libraries)
	l.add(Stacks, b.stacks)
	l.add(Code, b.code)
	l.holders(MappedFiles, b.files)

	// Before TensorFlow is loaded, native memory is that of the Go runtime. The Go runtime's own figure
	// includes pages that were never written.
	metadata := max(m.start.native-memory.Bytes(max(m.start.malloc.InUse, 0))+b.metadata-m.start.metadata, 0)
	ofGo := b.arenas + metadata
	held := min(memory.Bytes(m.data.HeapBytes()), ofGo)
	ahead := min(memory.Bytes(m.executions.Ahead.PassBytes(m.plan.Batch)), ofGo-held)
	l.add(Dataset, held)
	l.add(Prefetched, ahead)
	l.add(GoRuntime, ofGo-held-ahead)

	// What the step adds to the resident memory is native, too.
	l.rest = b.native - metadata + max(m.peak-b.total(), 0)
	if !m.onGPU() {
		for name, list := range variables(m.plan.Model) {
			l.blocks(name, list)
		}
	}
	variables := l.small
	for name, list := range atPeak(operations) {
		l.blocks(name, list)
	}
	l.step = l.small - variables
	l.native(Inputs, b.buffers)
	l.native(Tensors, b.tensors)
	loaded, opened, before := l.inUse(&m.loaded), l.inUse(&m.opened), l.inUse(b)
	l.native(Registries, loaded-l.inUse(&m.start))
	if !l.pool || b.malloc.Mapped >= 0 { // otherwise malloc's figures may include the regions of the pool
		l.native(Graph, opened-loaded-variables)
		l.native(Executors, before-opened-l.fromMalloc(b.buffers, b.steps)-l.fromMalloc(b.tensors, b.open))
	}
	l.slack(m)
	l.unwritten(m.plan.Budgeted)
	l.add(Unattributed, l.rest)
	slices.SortStableFunc(l.parts, func(a, b Part) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return l.parts
}

// onGPU reports whether operations of the traced step allocate memory of a GPU, where variables then are.
func (m *measurement) onGPU() bool {
	for name := range m.trace.Allocators {
		if ofGPU(name) {
			return true
		}
	}
	return false
}

// list collects parts.
type list struct {
	parts []Part
	// pool is true if TensorFlow takes large blocks from a pool. pooled is the size of the blocks
	// from there, small that of the blocks from malloc.
	pool          bool
	pooled, small memory.Bytes
	// step is the size of the step's blocks from malloc.
	step memory.Bytes
	// rest is the native memory without the parts so far. It is negative if these exceed the peak.
	rest memory.Bytes
}

func (l *list) add(name string, bytes memory.Bytes) {
	if bytes > 0 {
		l.parts = append(l.parts, Part{Name: name, Bytes: bytes})
	}
}

func (l *list) holders(name string, all []Holder) {
	if p := newPart(name, all); p.Bytes > 0 {
		l.parts = append(l.parts, p)
	}
}

// native adds a part of native memory.
func (l *list) native(name string, bytes memory.Bytes) {
	l.add(name, bytes)
	l.rest -= max(bytes, 0)
}

// blocks adds blocks of TensorFlow's allocator.
func (l *list) blocks(name string, all []Holder) {
	l.holders(name, all)
	for _, h := range all {
		l.rest -= h.Bytes
		if l.pool && h.Bytes >= poolBlock {
			l.pooled += h.Bytes
		} else {
			l.small += h.Bytes
		}
	}
}

// fromMalloc returns the part of some blocks that comes from malloc, by their mean size.
func (l *list) fromMalloc(bytes memory.Bytes, blocks int64) memory.Bytes {
	if l.pool && bytes >= memory.Bytes(blocks)*poolBlock {
		return 0
	}
	return bytes
}

// inUse returns malloc's memory in use, without the regions of the pool.
func (l *list) inUse(p *phase) memory.Bytes {
	in := max(p.malloc.InUse, 0)
	if l.pool {
		in -= max(p.malloc.Mapped, 0)
	}
	return memory.Bytes(in)
}

// unwritten subtracts the excess of the parts over the peak from the workspace and from malloc's free
// memory, in proportion to their sizes. Pages of these parts may never have been written, and are then not
// resident. Kernels for the gradient of a convolution without oneDNN allocate for a cache of 30 MiB, but
// write what the batch needs (conv_grad_input_ops.cc). trimmed means that malloc's free memory comes first:
// with a memory budget, a trim makes an unknown part of it non-resident.
func (l *list) unwritten(trimmed bool) {
	var all memory.Bytes
	var parts []*Part
	for i := range l.parts {
		if p := &l.parts[i]; p.Name == MallocSlack || p.Name == Workspace {
			parts, all = append(parts, p), all+p.Bytes
		}
	}
	excess := min(max(-l.rest, 0), all)
	slices.SortFunc(parts, func(a, b *Part) int { return cmp.Compare(a.Name, b.Name) }) // malloc's first
	for _, p := range parts {
		p.Unwritten = memory.Bytes(float64(excess) * float64(p.Bytes) / float64(all))
		if trimmed {
			p.Unwritten = min(p.Bytes, excess)
		}
		all, excess = all-p.Bytes, excess-p.Unwritten
		p.Bytes -= p.Unwritten
		l.rest += p.Unwritten
	}
}

// slack adds the free memory of malloc and of the pool. Each amount is measured, and not calculated as
// the difference of the peak and the other parts.
func (l *list) slack(m *measurement) {
	b := &m.before
	if l.pool && b.malloc.Mapped >= 0 { // otherwise the mappings may belong to malloc instead of the pool
		// Blocks of the pool are larger than what was asked for, and the difference counts as slack.
		l.native(PoolSlack, b.large-m.loaded.large-(b.metadata-m.loaded.metadata)-l.pooled)
	}
	// The step takes its small blocks from malloc's free memory and, without a pool, from what it adds to
	// the process.
	free := memory.Bytes(max(b.malloc.Free, 0)) - l.step
	if !l.pool {
		free += max(m.peak-b.total(), 0)
	}
	l.native(MallocSlack, free)
}
