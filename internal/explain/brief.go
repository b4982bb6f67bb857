package explain

import (
	"fmt"
	"strings"

	"steadyfit/data"
	"steadyfit/memory"
	"steadyfit/savedmodels"
)

// Brief describes in three lines what holds the memory of this process now, without running a step: the
// arrays of a dataset, the variables of an open model by role, and malloc. ds may be nil. Brief is empty
// if the system does not report the memory of the process.
func Brief(m *savedmodels.Model, ds *data.InMemory) string {
	p, err := readPhase()
	usage, unread := memory.Read()
	if err != nil || unread != nil {
		return ""
	}
	var held memory.Bytes
	if ds != nil {
		held = min(memory.Bytes(ds.HeapBytes()), p.arenas)
	}
	var sum memory.Bytes
	var roles []string
	all := variables(m)
	for _, name := range []string{Weights, Optimizer, OtherVars} {
		if bytes := newPart(name, all[name]).Bytes; bytes > 0 {
			sum += bytes
			roles = append(roles, fmt.Sprintf("%s %s", name, size(bytes)))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "resident memory is %s, of which %s is anonymous; the peak was %v\n", size(usage.RSS.Bytes), size(usage.Anon.Bytes), usage.Peak)
	fmt.Fprintf(&b, "%s %s, other memory of Go %s, variables %s (%s)", Dataset, size(held), size(p.arenas-held), size(sum), strings.Join(roles, ", "))
	if p.malloc.InUse >= 0 {
		fmt.Fprintf(&b, ", malloc %s in use, with TensorFlow's pool and variables of the CPU, and %s free", size(memory.Bytes(p.malloc.InUse)), size(memory.Bytes(max(p.malloc.Free, 0))))
	}
	b.WriteString("\nsteadyfit explain shows which operations hold the peak of a step")
	return b.String()
}
