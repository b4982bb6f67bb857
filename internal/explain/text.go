package explain

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

const (
	// mostLines is the maximum number of lines of the parts, so that the report fits on a screen.
	mostLines = 22
	// least is the least share of the peak for a part to have its own line. leastHolder is the
	// same for a holder.
	least, leastHolder = 0.004, 0.01
	mostHolders        = 2
	nameWidth          = 64
)

// WriteText writes the report on one screen.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, batch %s peaks at %v of resident memory; between steps it is %v, of which %v is anonymous.\n",
		texts.Printable(r.Model), r.execution(), size(r.PeakBytes), size(r.BeforeBytes), size(r.AnonBytes))
	fmt.Fprintf(&b, "TensorFlow %s, oneDNN %s, malloc of %s, %d steps of %s.%s\n\n",
		r.TensorFlow, onOff(r.OneDNN), r.Malloc, r.Steps, micros(int64(r.StepSeconds*1e6)), r.higher())
	if r.OnGPU {
		b.WriteString("Operations run on a GPU. Its memory, with the variables there, is not part of these amounts.\n\n")
	}
	b.WriteString(r.table())
	fmt.Fprintf(&b, "%10s  sum of the parts", size(r.Sum()))
	if excess := r.Exceeding(); excess != "" {
		b.WriteString("; the parts exceed the peak by " + excess)
	}
	fmt.Fprintf(&b, "\n\nFrom step to step: %s.\n", r.GrowthText)
	for _, line := range r.growing() {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// execution describes the batch, its micro-batches and the steps per execution.
func (r *Report) execution() string {
	switch {
	case r.MicroBatches > 1:
		return fmt.Sprintf("%d in %d micro-batches: a step", r.Batch, r.MicroBatches)
	case r.StepsPerExecution > 1:
		return fmt.Sprintf("%d: an execution of %d steps", r.Batch, r.StepsPerExecution)
	}
	return fmt.Sprintf("%d: a step", r.Batch)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// higher returns a sentence if the process needed more memory before the explained step.
func (r *Report) higher() string {
	if float64(r.ProcessPeakBytes) < 1.05*float64(r.PeakBytes) {
		return ""
	}
	return fmt.Sprintf(" The process peaked at %s before, while it loaded the model or ran the first steps.",
		size(r.ProcessPeakBytes))
}

// leastRest is the least unattributed amount, or excess over the peak, that the text shows.
const leastRest = 64 * memory.KiB

// Exceeding formats the excess; empty if it is small.
func (r *Report) Exceeding() string {
	if r.Excess() < leastRest {
		return ""
	}
	return fmt.Sprintf("%s (%.1f%%)", size(r.Excess()), 100*float64(r.Excess())/float64(r.PeakBytes))
}

// size formats an amount. Up to 10 GiB it shows tenths of a MiB, so that the parts visibly add up
// to the sum.
func size(b memory.Bytes) string {
	if b < memory.MiB || b >= 10*memory.GiB {
		return b.String()
	}
	return fmt.Sprintf("%.1f MiB", float64(b)/float64(memory.MiB))
}

// table returns a line for each large part, and lines for the largest holders.
func (r *Report) table() string {
	var b strings.Builder
	var small memory.Bytes
	count, left := 0, mostLines
	for i, p := range r.Parts {
		left = min(left, mostLines-i)
		share := float64(p.Bytes) / float64(r.PeakBytes)
		if !r.hasLine(p) {
			small, count = small+p.Bytes, count+1
			continue
		}
		fmt.Fprintf(&b, "%10s %5.1f%%  %s\n", size(p.Bytes), 100*share, p.Name)
		left--
		for k, h := range p.Of {
			others := r.above(i + 1)
			if k == mostHolders || float64(h.Bytes) < leastHolder*float64(r.PeakBytes) || left <= others {
				break
			}
			fmt.Fprintf(&b, "%19s  %10s  %s\n", "", size(h.Bytes), h.Short())
			left--
		}
	}
	if count > 0 {
		fmt.Fprintf(&b, "%10s %5.1f%%  %d smaller parts\n", size(small), 100*float64(small)/float64(r.PeakBytes), count)
	}
	return b.String()
}

// hasLine reports whether a part has its own line.
func (r *Report) hasLine(p Part) bool {
	return float64(p.Bytes) >= least*float64(r.PeakBytes) || p.Name == Unattributed && p.Bytes >= leastRest
}

// above counts the parts from index i on that have their own line.
func (r *Report) above(i int) (n int) {
	for _, p := range r.Parts[min(i, len(r.Parts)):] {
		if r.hasLine(p) {
			n++
		}
	}
	return n
}

// Short names an operation by its layer, the last part of its name and its type. Other holders keep
// their names. A long name loses its beginning.
func (h Holder) Short() string {
	name := h.Name
	if h.Type != "" {
		name = strings.TrimPrefix(h.Layer+"/"+h.Name[strings.LastIndex(h.Name, "/")+1:], "/")
		name += " (" + strings.TrimPrefix(h.Type, "_") + ")"
	}
	name = texts.Printable(name)
	if n := utf8.RuneCountInString(name); n > nameWidth {
		name = "..." + string([]rune(name)[n-nameWidth+3:])
	}
	return name
}

// growing lists the layers that carry a leak, the layer of the cause first.
func (r *Report) growing() (lines []string) {
	v := r.Growth
	if v.Kind != memory.Leak {
		return nil
	}
	lines = append(lines, fmt.Sprintf("it grows since step %.0f; the cause is likely: %s", v.From, v.Cause))
	for _, carrier := range []bool{true, false} {
		for _, t := range v.Trends {
			if t.Layer != v.Layer && (t.Layer == v.Carrier) == carrier && (carrier || t.Share > 0.1) && t.Slope.Low > 0 &&
				len(lines) < 4 {
				lines = append(lines, fmt.Sprintf("%s %s", t.Layer,
					memlayer.Rate(t.Layer, v.Per, t.Slope.Estimate, t.Slope.Low, t.Slope.High)))
			}
		}
	}
	return lines
}
