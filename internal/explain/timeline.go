package explain

import (
	"cmp"
	"slices"

	"steadyfit/memory"
)

// Timeline is the memory that the operations of a step hold in the course of the step.
type Timeline struct {
	// Micros are times since the beginning of the step, in microseconds.
	Micros []int64 `json:"micros"`
	// Series are the amounts at these times: activations, gradients, update and workspace.
	Series []Series `json:"series"`
	// Spans are the operations that hold most.
	Spans []Span `json:"spans"`
}

// Series has the amounts of one part.
type Series struct {
	Name  string         `json:"name"`
	Bytes []memory.Bytes `json:"bytes"`
}

// Span is the time in which an operation holds memory. To is the end of the step for memory that
// outlives it.
type Span struct {
	Holder
	Part string `json:"part"`
	From int64  `json:"from"`
	To   int64  `json:"to"`
}

const (
	moments = 240
	spans   = 24
	// A span is reported if it holds at least 1/leastSpan of the memory of the largest span.
	leastSpan = 1000
)

var stepParts = []string{Activations, Gradients, Update, Workspace}

// event is a change of the memory of an operation.
type event struct {
	micros int64
	of     int
	bytes  memory.Bytes
}

// events returns the records of all operations, and the end of each operation, in the order of time.
// Within a microsecond, deallocations come first.
func events(operations []operation) (list []event, begin, end int64) {
	for i, o := range operations {
		if i == 0 || o.Begin < begin {
			begin = o.Begin
		}
		end = max(end, o.End)
		list = append(list, event{o.End + 1, i, 0})
		for _, r := range o.Records {
			end = max(end, r.Micros)
			list = append(list, event{r.Micros, i, r.Bytes})
		}
	}
	slices.SortFunc(list, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.micros, b.micros), cmp.Compare(a.bytes, b.bytes))
	})
	return list, begin, end
}

func newTimeline(operations []operation) (t Timeline) {
	list, begin, end := events(operations)
	type state struct{ held, outputs, workspace memory.Bytes }
	states := make([]state, len(operations))
	t.Spans = make([]Span, len(operations))
	for i, o := range operations {
		t.Spans[i] = Span{Holder: Holder{Name: o.Name, Layer: o.layer, Type: o.Type}, Part: o.part, From: -1, To: end - begin}
	}
	for _, name := range stepParts {
		t.Series = append(t.Series, Series{Name: name})
	}
	totals := make([]memory.Bytes, len(stepParts))
	workspace := len(stepParts) - 1
	var most memory.Bytes // in the current bucket
	bucket := int64(-1)
	for _, e := range list {
		s, span, o := &states[e.of], &t.Spans[e.of], &operations[e.of]
		at := e.micros - begin
		s.held += e.bytes
		part := slices.Index(stepParts, o.part)
		totals[part] -= s.outputs
		totals[workspace] -= s.workspace
		s.outputs, s.workspace = o.split(s.held, e.micros)
		totals[part] += s.outputs
		totals[workspace] += s.workspace
		if s.held > 0 && span.From < 0 {
			span.From = at
		}
		if span.Bytes = max(span.Bytes, s.held); e.bytes != 0 {
			if span.To = end - begin; s.held <= 0 {
				span.To = at
			}
		}
		var sum memory.Bytes
		for _, b := range totals {
			sum += b
		}
		b := at * moments / max(end-begin, 1)
		if b == bucket && sum < most {
			continue
		}
		if b != bucket {
			bucket, most = b, 0
			t.Micros = append(t.Micros, at)
			for i := range t.Series {
				t.Series[i].Bytes = append(t.Series[i].Bytes, 0)
			}
		}
		most = max(most, sum)
		t.Micros[len(t.Micros)-1] = at
		for i, b := range totals {
			t.Series[i].Bytes[len(t.Micros)-1] = b
		}
	}
	slices.SortStableFunc(t.Spans, func(a, b Span) int { return cmp.Compare(b.Bytes, a.Bytes) })
	large := slices.IndexFunc(t.Spans, func(s Span) bool { return s.Bytes < t.Spans[0].Bytes/leastSpan })
	if large < 0 {
		large = len(t.Spans)
	}
	t.Spans = slices.Clone(t.Spans[:min(spans, large)])
	slices.SortStableFunc(t.Spans, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	return t
}
