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
	l.add(Files, b.RSS.Bytes-b.Anon.Bytes)
	ofGo := min(m.start.ofGo(b), b.Anon.Bytes)
	held := min(memory.Bytes(m.data.HeapBytes()), ofGo)
	ahead := min(memory.Bytes(m.executions.Ahead.PassBytes(m.plan.Batch)), ofGo-held)
	l.add(Dataset, held)
	l.add(Prefetched, ahead)
	l.add(GoRuntime, ofGo-held-ahead)

	// All other memory is native, including what the step adds.
	l.rest = b.Anon.Bytes - ofGo + max(m.peak-b.RSS.Bytes, 0)
	if !m.onGPU() {
		for name, list := range variables(m.plan.Model) {
			l.blocks(name, list)
		}
	}
	variables := l.small
	for name, list := range atPeak(operations) {
		l.blocks(name, list)
	}
	step := l.small - variables
	l.native(Inputs, b.buffers)
	l.native(Tensors, b.tensors)
	// Loading TensorFlow takes memory from malloc, and pages of its libraries that relocation changes.
	l.native(Registries, m.nativeOf(&m.loaded)-m.nativeOf(&m.start))
	opened, before := l.inUse(&m.opened), l.inUse(b)
	if !l.pool || b.malloc.Mapped >= 0 { // otherwise malloc's figures may include the regions of the pool
		l.native(Graph, opened-l.inUse(&m.loaded)-variables)
		l.native(Executors, before-opened-l.fromMalloc(b.buffers, b.steps)-l.fromMalloc(b.tensors, b.open))
	}
	l.unwritten()
	if l.pool && b.malloc.Mapped >= 0 {
		mapped := memory.Bytes(b.malloc.Mapped - max(m.loaded.malloc.Mapped, 0))
		l.native(PoolSlack, min(mapped-l.pooled, l.rest))
	}
	// The step takes its small blocks from malloc's free memory. Without a pool, the memory that the step
	// adds to the process is malloc's too.
	free := memory.Bytes(max(b.malloc.Free, 0)) - step
	if !l.pool {
		free += max(m.peak-b.RSS.Bytes, 0)
	}
	l.native(MallocSlack, min(free, l.rest))
	l.add(Unattributed, l.rest)
	slices.SortStableFunc(l.parts, func(a, b Part) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return l.parts
}

// nativeOf returns the native memory in a phase, without malloc's free memory.
func (m *measurement) nativeOf(p *phase) memory.Bytes {
	return p.Anon.Bytes - m.start.ofGo(p) - memory.Bytes(max(p.malloc.Free, 0))
}

// onGPU reports whether operations of the traced step allocate memory of a GPU. Variables are then on the
// GPU too.
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
	// from the pool, and small the size of the blocks from malloc.
	pool          bool
	pooled, small memory.Bytes
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

// fromMalloc returns bytes if some blocks come from malloc, and 0 if their mean size means that
// they come from the pool.
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

// unwritten subtracts the excess of the parts over the peak from the workspace of kernels. Pages that a kernel
// never wrote are not resident. For example, the kernel for the gradient of a convolution without oneDNN
// allocates workspace for a cache of 30 MiB, but writes only what the batch needs (conv_grad_input_ops.cc).
func (l *list) unwritten() {
	for i := range l.parts {
		if p := &l.parts[i]; p.Name == Workspace && l.rest < 0 {
			p.Unwritten = min(-l.rest, p.Bytes)
			p.Bytes -= p.Unwritten
			l.rest += p.Unwritten
		}
	}
}
