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

// split returns the sums of blocks that come from the pool and from malloc.
func split(pool bool, list []Holder) (pooled, small memory.Bytes) {
	for _, h := range list {
		if pool && h.Bytes >= poolBlock {
			pooled += h.Bytes
		} else {
			small += h.Bytes
		}
	}
	return pooled, small
}

// parts attributes the peak; see the package comment.
func (m *measurement) parts(operations []operation) []Part {
	b := &m.before
	var parts []Part
	add := func(name string, bytes memory.Bytes) {
		if bytes > 0 {
			parts = append(parts, Part{Name: name, Bytes: bytes})
		}
	}
	add(Libraries, b.libraries)
	add(Stacks, b.stacks)
	add(Code, b.code)
	if len(b.files) > 0 {
		parts = append(parts, newPart(MappedData, b.files))
	}
	// Go
	// Before TensorFlow is loaded, native memory is that of the Go runtime. Its own figure includes pages
	// that were never written.
	metadata := max(m.start.native-memory.Bytes(max(m.start.malloc.InUse, 0))+b.metadata-m.start.metadata, 0)
	goAll := b.arenas + metadata
	held := memory.Bytes(m.data.HeapBytes())
	ahead := memory.Bytes(int64(m.ahead.Ahead()+1) * m.ahead.BatchBytes(m.plan.Batch))
	held = min(held, goAll)
	ahead = min(ahead, goAll-held)
	add(Dataset, held)
	add(Prefetched, ahead)
	add(GoRuntime, goAll-held-ahead)
	// native memory. What the step adds to the resident memory is native, too.
	rest := b.native - metadata + max(m.peak-b.total(), 0)
	vars, ops := variables(m.plan.Model), atPeak(operations)
	pool := m.trace.Allocators["mklcpu"].Peak
	var pooled, small, stepPooled memory.Bytes
	for _, group := range []map[string][]Holder{vars, ops} {
		for name, list := range group {
			p := newPart(name, list)
			if p.Bytes > 0 {
				parts = append(parts, p)
			}
			in, out := split(pool.OK, list)
			if rest -= p.Bytes; name == Weights || name == Optimizer || name == OtherVars {
				pooled, small = pooled+in, small+out
			} else {
				stepPooled += in
			}
		}
	}
	add(Inputs, b.buffers)
	add(Tensors, b.tensors)
	rest -= b.buffers + b.tensors
	libraries := memory.Bytes(max(m.loaded.malloc.InUse-m.start.malloc.InUse, 0))
	add(Registries, libraries)
	rest -= libraries

	inUse := memory.Bytes(b.malloc.InUse)
	if pool.OK {
		inUse -= memory.Bytes(max(b.malloc.Mapped, 0)) // regions of the pool
	}
	graph := max(inUse-memory.Bytes(m.loaded.malloc.InUse)-small, 0)
	if !pool.OK {
		graph = max(graph-b.buffers-b.tensors, 0)
	}
	graph = min(graph, max(rest, 0))
	add(Session, graph)
	rest -= graph

	free := memory.Bytes(max(b.malloc.Free, 0))
	if pool.OK {
		free = m.trimmed
	}
	free = min(free, max(rest, 0))
	add(MallocSlack, free)
	rest -= free
	if pool.OK {
		reserved := memory.Bytes(max(b.malloc.Mapped-m.loaded.malloc.Mapped, 0))
		slack := min(max(reserved-pooled-stepPooled, 0), max(rest, 0))
		add(PoolSlack, slack)
		rest -= slack
	}
	add(Unattributed, rest)
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return parts
}
