package matrix

import (
	"fmt"
	"slices"
	"strings"

	"steadyfit/memory"
)

// What a claim came to.
const (
	Holds        = "holds"
	HoldsInPart  = "holds in part"
	DoesNotHold  = "does not hold"
	Undecided    = "undecided"
	gpuCommand   = "steadyfit matrix --workloads W0,W3,S3 --remedies memory-growth,memory-fraction,cuda-async on a machine with a GPU"
	noDifference = 0.05 // of a peak: less is none
)

// claim is an entry of the ledger, with its test.
type claim struct {
	id, text, says string
	// test says what one runtime's cells show; "" if they do not tell.
	test func(v view) (verdict, text string)
	// needs is what a test takes that the machine lacks; empty for what every
	// machine can test.
	needs string
}

// view is the cells of one runtime, and remembers which were looked at.
type view struct {
	runtime string
	cells   map[cellID]*Cell
	used    *[]string
}

func (v view) cell(workload, remedy string) *Cell {
	c := v.cells[cellID{v.runtime, workload, remedy}]
	if c != nil && c.Verdict != nil {
		*v.used = append(*v.used, workload+"/"+remedy)
		return c
	}
	return nil
}

// grows tells whether the workload as it is grows, or dies; known is false if it was
// not run, or not decided. A saw-tooth that does not climb is no growth.
func (v view) grows(workload string) (grows, known bool, text string) {
	c := v.cell(workload, Baseline)
	if c == nil || c.Verdict.Kind == memory.Inconclusive {
		return false, false, ""
	}
	return c.Verdict.Kind == memory.Leak || c.Verdict.Kind == memory.Crash,
		true, fmt.Sprintf("%s: %s", workload, c.Verdict)
}

// grown sums up several workloads: which of them grow, and a sentence.
func (v view) grown(workloads ...string) (growing, flat []string, text string) {
	var parts []string
	for _, w := range workloads {
		grows, known, text := v.grows(w)
		if !known {
			continue
		}
		if grows {
			growing = append(growing, w)
		} else {
			flat = append(flat, w)
		}
		parts = append(parts, text)
	}
	return growing, flat, strings.Join(parts, "; ")
}

// peak is the ratio of the peak with a remedy to that without.
func (v view) peak(workload, remedy string) (memory.Ratio, bool) {
	c := v.cell(workload, remedy)
	if c == nil || c.Comparison == nil || !c.Comparison.Peak.OK {
		return memory.Ratio{}, false
	}
	return c.Comparison.Peak, true
}

// peaks lists the ratios of the peak of cells "workload/remedy" that were measured.
func (v view) peaks(cells ...string) (lower, same, higher int, text string) {
	var parts []string
	for _, name := range cells {
		w, r, _ := strings.Cut(name, "/")
		ratio, ok := v.peak(w, r)
		if !ok {
			continue
		}
		switch {
		case ratio.High < 1-noDifference:
			lower++
		case ratio.Low > 1+noDifference:
			higher++
		default:
			same++
		}
		parts = append(parts, fmt.Sprintf("%s: peak x%.2f [%.2f, %.2f]", name, ratio.Estimate, ratio.Low, ratio.High))
	}
	return lower, same, higher, strings.Join(parts, "; ")
}

// stops lists what cells "workload/remedy" did to a slope.
func (v view) stops(cells ...string) (yes, no int, text string) {
	var parts []string
	for _, name := range cells {
		w, r, _ := strings.Cut(name, "/")
		c := v.cell(w, r)
		if c == nil || c.Comparison == nil || c.Comparison.Goal != memory.LowerSlope {
			continue
		}
		switch c.Comparison.Slope.Effect {
		case memory.Works, memory.Partly:
			yes++
		case memory.NoEffect, memory.Harmful:
			no++
		}
		parts = append(parts, fmt.Sprintf("%s: %s, slope x%.2f [%.2f, %.2f]", name, c.Comparison.Slope.Effect,
			c.Comparison.Slope.Estimate, c.Comparison.Slope.Low, c.Comparison.Slope.High))
	}
	return yes, no, strings.Join(parts, "; ")
}

// jump is the growth of anonymous memory from before the first step to the end.
func (v view) jump(workload string) (memory.Bytes, bool) {
	c := v.cell(workload, Baseline)
	if c == nil || c.Figures.Loaded == nil || c.Figures.Level == nil {
		return 0, false
	}
	return memory.Bytes(*c.Figures.Level - *c.Figures.Loaded), true
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}

// decide is the verdict from two counts: for and against.
func decide(yes, no int) string {
	switch {
	case yes > 0 && no > 0:
		return HoldsInPart
	case yes > 0:
		return Holds
	case no > 0:
		return DoesNotHold
	}
	return Undecided
}

// claims are what question-and-answer articles say of TensorFlow's memory, and
// what the literature says of that.
func claims() []claim {
	lowersPeakOnly := func(v view, slopes, peaks []string) (string, string) {
		yes, no, slopeText := v.stops(slopes...)
		lower, same, higher, peakText := v.peaks(peaks...)
		text := join(slopeText, peakText)
		if text == "" {
			return "", ""
		}
		return decide(yes+lower, no+same+higher), text
	}
	grow := func(workloads ...string) func(v view) (string, string) {
		return func(v view) (string, string) {
			growing, flat, text := v.grown(workloads...)
			if text == "" {
				return "", ""
			}
			return decide(len(growing), len(flat)), text
		}
	}
	return []claim{
		{id: "C1", text: "Loading the whole set is what crashes fit; a generator or tf.data cures it", says: "peak yes, growth no",
			test: func(v view) (string, string) {
				_, _, growth := v.grown("S0")
				lower, same, higher, text := v.peaks("S0/stream", "S0/graph-data", "S0/generator", "S0/tf-data")
				if text == "" {
					return "", ""
				}
				verdict := decide(lower, same+higher)
				if verdict == Holds {
					verdict = HoldsInPart // of the peak; nothing grew to be cured
				}
				return verdict, join(text, growth)
			}},
		{id: "C2", text: "Intermediates of a step stay until released explicitly, more with larger batches", says: "wrong for a compiled step: peak, not slope",
			test: grow("W0", "S1", "S1d", "S2")},
		{id: "C3", text: "The language's garbage collector is out of step with TensorFlow's memory", says: "right, and in Go it is the main cause",
			test: func(v view) (string, string) {
				grows, known, text := v.grows("W2")
				if !known {
					return "", ""
				}
				_, _, stops := v.stops("W2/gc-step", "W2/gc-epoch", "W2/gogc-20", "W2/close")
				if c := v.cell("W2", Baseline); !grows && c.Verdict.Kind != memory.Sawtooth {
					return DoesNotHold, join(text, stops)
				}
				return Holds, join(text, stops)
			}},
		{id: "C4", text: "prefetch relieves memory", says: "nil or opposite",
			test: func(v view) (string, string) {
				return lowersPeakOnly(v, []string{"S3/prefetch-1", "S3/prefetch-16"},
					[]string{"S0/prefetch-1", "S0/prefetch-16", "S1/prefetch-16", "S3/prefetch-1", "S3/prefetch-16", "S1/prefetch-auto", "S3/prefetch-auto"})
			}},
		{id: "C5", text: "Memory jumps when training starts and is stable then: that is no leak", says: "right",
			test: func(v view) (string, string) {
				growing, flat, text := v.grown("S1", "S1d")
				for _, w := range []string{"S1", "S1d"} {
					if jump, ok := v.jump(w); ok {
						text = join(text, fmt.Sprintf("%s: %v from loading to the last step", w, jump))
					}
				}
				return decide(len(flat), len(growing)), text
			}},
		{id: "C6", text: "The jump grows with the model; XLA makes it larger", says: "plausible",
			test: func(v view) (string, string) {
				small, ok := v.jump("S1")
				large, ok2 := v.jump("S1d")
				if !ok || !ok2 {
					return "", ""
				}
				yes, no := 0, 0
				if large > small {
					yes++
				} else {
					no++
				}
				_, _, higher, text := v.peaks("S1/xla", "S1d/xla")
				if text != "" && higher > 0 {
					yes++
				} else if text != "" {
					no++
				}
				return decide(yes, no), join(fmt.Sprintf("S1 (6,529 weights): %v; S1d (234,497 weights): %v", small, large), text)
			}},
		{id: "C7", text: "Pools are kept until the session or the process ends", says: "process: right; session: wrong, closing it frees nothing",
			test: func(v view) (string, string) {
				var parts []string
				kept, freed := 0, 0
				for _, w := range []string{"S3", "W4", "W2"} {
					c := v.cell(w, Baseline)
					if c == nil || c.Figures.Level == nil || c.Figures.Closed == nil || c.Figures.Loaded == nil {
						continue
					}
					level, closed := *c.Figures.Level, *c.Figures.Closed
					if float64(closed) > 0.8*float64(level) {
						kept++
					} else {
						freed++
					}
					parts = append(parts, fmt.Sprintf("%s: %v at the last step, %v after closing everything", w, memory.Bytes(level), memory.Bytes(closed)))
				}
				if len(parts) == 0 {
					return "", ""
				}
				if kept > 0 && freed == 0 {
					return HoldsInPart, join(append(parts, "so the end of a session is not the end of its pool")...)
				}
				return decide(freed, kept), join(parts...)
			}},
		{id: "C8", text: "Memory grows without bound per epoch by default", says: "not for one live model", test: grow("S1", "S1d", "S2")},
		{id: "C9", text: "A tf.function step with del of tape, gradients, predictions and loss stops growth", says: "the del is a no-op there",
			test: func(v view) (string, string) {
				return lowersPeakOnly(v, []string{"W2/own-loop-del", "W3/own-loop-del", "S3/own-loop-del"}, []string{"S1/own-loop-del", "S1d/own-loop-del", "S3/own-loop-del"})
			}},
		{id: "C10", text: "clear_session each epoch stops growth, at some cost in speed", says: "folk for a live model; the cost is unmeasured",
			test: func(v view) (string, string) {
				return lowersPeakOnly(v, []string{"W4/clear-session", "W2/clear-session", "W3/clear-session"}, []string{"S1/clear-session", "S1d/clear-session", "S2/clear-session"})
			}},
		{id: "C11", text: "Smaller batches and generators stop growth", says: "peak, not slope",
			test: func(v view) (string, string) {
				yes, no, text := v.stops("W2/batch-half", "W2/batch-quarter", "W3/batch-half", "S3/batch-half", "S3/generator", "W2/generator")
				lower, _, _, peaks := v.peaks("S3/batch-half", "S3/batch-quarter", "S1/batch-half")
				if text == "" && peaks == "" {
					return "", ""
				}
				if yes == 0 && lower > 0 && text != "" {
					return HoldsInPart, join(text, peaks)
				}
				return decide(yes, no), join(text, peaks)
			}},
		{id: "C12", text: "LSTM and GRU layers keep previous computations", says: "no evidence", test: grow("S2l")},
		{id: "C13", text: "Stored history and custom callbacks leak", says: "real, on the host's side",
			test: func(v view) (string, string) {
				growing, flat, text := v.grown("W10", "S4")
				_, _, stops := v.stops("W10/keep-last", "S4/keep-last")
				if text == "" {
					return "", ""
				}
				return decide(len(growing), len(flat)), join(text, stops)
			}},
		{id: "C14", text: "fit in a loop crashes from gradual accumulation", says: "depends on who releases", test: grow("W2", "S3")},
		{id: "C15", text: "A generator that makes tensors builds memory up; buffers do not", says: "unproven",
			test: func(v view) (string, string) {
				_, known, text := v.grows("S3")
				if !known {
					return "", ""
				}
				growing, flat, _ := v.grown("S3")
				_, _, stops := v.stops("S3/buffers", "W2/buffers")
				return decide(len(growing), len(flat)), join(text, stops)
			}},
		{id: "C16", text: "Dynamic shapes fragment memory until an allocation fails though enough is free", says: "right, for device pools",
			test: grow("W3", "S3v"), needs: "device pools need a GPU: " + gpuCommand},
		{id: "C17", text: "Augmentation pipelines accumulate temporaries", says: "unproven", test: grow("S3a")},
		{id: "C18", text: "Running functions eagerly lowers memory at the cost of speed", says: "the opposite",
			test: func(v view) (string, string) {
				lower, same, higher, text := v.peaks("S1/eager", "S1d/eager", "S2/eager", "S3/eager")
				return decide(lower, same+higher), text
			}},
		{id: "C19", text: "set_memory_growth must be the same on all GPUs and come before initialisation; it saves memory", says: "a reservation only, no effect on the host",
			needs: "a GPU: " + gpuCommand},
		{id: "C20", text: "Mixed precision halves memory and may cost accuracy", says: "activations only",
			test: func(v view) (string, string) {
				var parts []string
				halved, less, same := 0, 0, 0
				for _, name := range []string{"S3/bf16", "S1d/bf16", "S3/mixed-bf16", "S1d/mixed-bf16"} {
					w, r, _ := strings.Cut(name, "/")
					ratio, ok := v.peak(w, r)
					if !ok {
						continue
					}
					switch {
					case ratio.Estimate < 0.6:
						halved++
					case ratio.High < 1-noDifference:
						less++
					default:
						same++
					}
					parts = append(parts, fmt.Sprintf("%s: peak x%.2f [%.2f, %.2f]", name, ratio.Estimate, ratio.Low, ratio.High))
				}
				switch {
				case len(parts) == 0:
					return "", ""
				case less > 0 || halved > 0 && same > 0:
					return HoldsInPart, join(parts...)
				}
				return decide(halved, same), join(parts...)
			}},
	}
}

// ledger tests every claim on every runtime that took part.
func ledger(r *Result) []Claim {
	cells := make(map[cellID]*Cell)
	for i := range r.Cells {
		c := &r.Cells[i]
		cells[cellID{c.Runtime, c.Workload, c.Remedy}] = c
	}
	var out []Claim
	for _, c := range claims() {
		entry := Claim{ID: c.id, Text: c.text, Says: c.says, Verdicts: []ClaimVerdict{}, Needs: c.needs}
		for _, runtime := range Runtimes() {
			if c.test == nil {
				continue
			}
			var used []string
			verdict, text := c.test(view{runtime, cells, &used})
			if verdict == "" || text == "" {
				continue
			}
			slices.Sort(used)
			entry.Verdicts = append(entry.Verdicts, ClaimVerdict{Runtime: runtime, Verdict: verdict, Text: text, Cells: slices.Compact(used)})
		}
		out = append(out, entry)
	}
	return out
}
