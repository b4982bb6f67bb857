package native

import (
	"cmp"
	"slices"
	"strings"

	"steadyfit/internal/tfproto"
	"steadyfit/memory"
)

// Allocations are what one operation took from one of TensorFlow's allocators in a traced execution.
type Allocations struct {
	// Name and Type are those of the operation in the graph that ran. An operation in a loop
	// has an entry for each iteration.
	Name, Type string
	Allocator  string
	// Begin and End are the start and the end of the operation, in microseconds on the clock of the records.
	Begin, End int64
	// Outputs is the size of the operation's outputs, including outputs that use the memory of an
	// input.
	Outputs memory.Bytes
	// Records are in no order. Memory that outlives the execution has no deallocation.
	Records []Record
}

// Record is an allocation, or a deallocation with negative bytes.
type Record struct {
	Micros int64
	Bytes  memory.Bytes
}

// Held returns the amount allocated at the end of a microsecond.
func (a *Allocations) Held(micros int64) (held memory.Bytes) {
	for _, r := range a.Records {
		if r.Micros <= micros {
			held += r.Bytes
		}
	}
	return held
}

// Peak sorts records by time. It returns the maximum amount held at the end of a microsecond, and
// the first such microsecond. Within a microsecond, deallocations come first.
func Peak(records []Record) (most memory.Bytes, micros int64) {
	slices.SortFunc(records, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Micros, b.Micros), cmp.Compare(a.Bytes, b.Bytes))
	})
	var held memory.Bytes
	for _, r := range records {
		if held += r.Bytes; held > most {
			most, micros = held, r.Micros
		}
	}
	return most, micros
}

func allocations(node *tfproto.NodeExecStats, m *tfproto.AllocatorMemoryUsed) Allocations {
	begin := node.GetAllStartNanos()
	a := Allocations{
		Name: node.GetNodeName(), Type: typeOf(node), Allocator: m.GetAllocatorName(),
		Begin: begin / 1000, End: (begin + node.GetAllEndRelNanos()) / 1000,
	}
	for _, output := range node.GetOutput() {
		d := output.GetTensorDescription().GetAllocationDescription()
		if d.GetAllocatorName() == a.Allocator {
			a.Outputs += memory.Bytes(max(d.GetAllocatedBytes(), d.GetRequestedBytes()))
		}
	}
	for _, r := range m.GetAllocationRecords() {
		a.Records = append(a.Records, Record{r.GetAllocMicros(), memory.Bytes(r.GetAllocBytes())})
	}
	return a
}

// typeOf returns the type of an operation. Its label has the form "name = Type(inputs)".
func typeOf(node *tfproto.NodeExecStats) string {
	_, kind, _ := strings.Cut(node.GetTimelineLabel(), " = ")
	kind, _, _ = strings.Cut(kind, "(")
	return kind
}
