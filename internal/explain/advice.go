package explain

import (
	"fmt"
	"strings"

	"golang.org/x/sys/cpu"

	"steadyfit/memory"
	"steadyfit/tfbind"
)

// advise adds advice to the large parts, where it applies to this training.
func (m *measurement) advise(r *Report) {
	batch := m.smallerBatch(r)
	for i := range r.Parts {
		p := &r.Parts[i]
		switch {
		case float64(p.Bytes) < leastHolder*float64(r.PeakBytes):
		case p.Name == Activations, p.Name == Workspace,
			// The gradients of weights do not become smaller with the batch.
			p.Name == Gradients && p.Bytes > 2*r.Part(Weights):
			p.Advice, batch = batch, ""
		default:
			p.Advice = m.advice(r, p)
		}
		if p.Name == Workspace && p.Unwritten > 0 {
			p.Advice = strings.TrimPrefix(p.Advice+"; ", "; ") + size(p.Unwritten) + " more is allocated, but not written"
		}
	}
}

// advice returns the advice for a part that does not depend on the batch, or "".
func (m *measurement) advice(r *Report, p *Part) string {
	switch p.Name {
	case Dataset:
		if m.plan.OnDisk {
			return "{Data.OnDisk always} leaves the arrays on disk"
		}
	case Prefetched:
		if n := m.executions.Ahead.Ahead(); n > 1 {
			return fmt.Sprintf("{Config.Prefetch 1} instead of %d batches ahead", n)
		}
	case Graph:
		if p.Bytes >= r.PeakBytes/10 && m.plan.Model.Roles.Apply != "" {
			return "each signature has its own copy, so export fewer of them; {Budget.Limit} needs those of micro-batches to split batches"
		}
	case Optimizer:
		if p.Bytes >= r.Part(Weights) {
			return "an optimizer with less state, at export"
		}
	case PoolSlack, MallocSlack:
		if p.Bytes >= 16*memory.MiB {
			return "steadyfit tune measures whether another {Config.Allocator} needs less"
		}
	case Unattributed:
		if r.Malloc != "glibc" && r.OneDNN {
			return "with the graph, executors and TensorFlow's pool: " + r.Malloc + " does not tell them apart"
		}
	case Libraries, MappedFiles:
		return "pages of files, which the system can drop"
	}
	return ""
}

// smallerBatch suggests options that reduce the memory of the operations. The result is empty if the
// batch has one sample.
func (m *measurement) smallerBatch(r *Report) string {
	if r.Batch < 2 {
		return ""
	}
	advice := "a smaller {Loop.Batch}"
	switch {
	case r.MicroBatches > 1 && r.MicroBatches < r.Batch:
		advice += ", or more {Options.MicroBatches}"
	case r.MicroBatches <= 1 && m.session.CheckSplit() == nil:
		advice += ", or {Budget.Limit}, which splits batches"
	}
	if m.plan.Options.Device.Precision == "" && r.OneDNN && cpu.X86.HasAVX512F && m.trace.Matrix[tfbind.Float32] > 0 {
		advice += "; {Options.Precision bfloat16}"
	}
	return advice
}
