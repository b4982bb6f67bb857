package matrix

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"steadyfit/memory"
)

// What a claim came to.
const (
	Holds       = "holds"
	HoldsInPart = "holds in part"
	DoesNotHold = "does not hold"
	Undecided   = "undecided"
)

// claims are what question-and-answer articles say of TensorFlow's memory, and
// what the literature says of that.
func claims() []claim {
	return []claim{
		{id: "C1", text: "Loading the whole set is what crashes fit; a generator or tf.data cures it", says: "peak yes, growth no", test: wholeSet},
		{id: "C2", text: "Intermediates of a step stay until released explicitly, more with larger batches", says: "wrong for a compiled step: peak, not slope", test: intermediates},
		{id: "C3", text: "The language's garbage collector is out of step with TensorFlow's memory", says: "right, and in Go it is the main cause", test: outOfStep},
		{id: "C4", text: "prefetch relieves memory", says: "nil or opposite", test: prefetch},
		{id: "C5", text: "Memory jumps when training starts and is stable then: that is no leak", says: "right", test: jumpThenStable},
		{id: "C6", text: "The jump grows with the model; XLA makes it larger", says: "plausible", test: largerJump},
		{id: "C7", text: "Pools are kept until the session or the process ends", says: "process: right; session: wrong, closing it frees nothing", test: keptPools},
		{id: "C8", text: "Memory grows without bound per epoch by default", says: "not for one live model", test: endless},
		{id: "C9", text: "A tf.function step with del of tape, gradients, predictions and loss stops growth", says: "the del is a no-op there", test: deletion},
		{id: "C10", text: "clear_session each epoch stops growth, at some cost in speed", says: "folk for a live model; the cost is unmeasured", test: clearSession},
		{id: "C11", text: "Smaller batches and generators stop growth", says: "peak, not slope", test: smallerBatches},
		{id: "C12", text: "LSTM and GRU layers keep previous computations", says: "no evidence", test: recurrent},
		{id: "C13", text: "Stored history and custom callbacks leak", says: "real, on the host's side", test: history},
		{id: "C14", text: "fit in a loop crashes from gradual accumulation", says: "depends on who releases", test: accumulation},
		{id: "C15", text: "A generator that makes tensors builds memory up; buffers do not", says: "unproven", test: generators},
		{id: "C16", text: "Dynamic shapes fragment memory until an allocation fails though enough is free", says: "right, for device pools", test: fragments,
			needs: "pools of a fixed size are a GPU's (what W3 and S3v add on a CPU are caches and a pool that fills up, and no allocation can fail): " + gpuCommand},
		{id: "C17", text: "Augmentation pipelines accumulate temporaries", says: "unproven", test: augmentation},
		{id: "C18", text: "Running functions eagerly lowers memory at the cost of speed", says: "the opposite", test: eagerly},
		{id: "C19", text: "set_memory_growth must be the same on all GPUs and come before initialisation; it saves memory", says: "a reservation only, no effect on the host", test: memoryGrowth,
			needs: "a GPU: " + gpuCommand},
		{id: "C20", text: "Mixed precision halves memory and may cost accuracy", says: "activations only", test: mixedPrecision,
			needs: "the same of a GPU's memory: " + gpuCommand},
	}
}

// C1. The whole set is to blame if feeding it in parts lowers the peak; and for a crash,
// if the runs with the whole set die of memory and those with parts do not. Growth that
// stops with parts is no crash, so that it tells in part at most; and what a garbage
// collector is late with is no growth: large data put its collections off, and reading
// in parts brings them on. On Keras a generator or tf.data over arrays has the whole set
// in memory, too, so that the claim takes files there.
func wholeSet(v view) (string, string) {
	if !v.has("S0") || v.runtime == Keras && !v.has("S0/stream") {
		return "", ""
	}
	whole, lags := v.collected("S0")
	growth := v.growsItself("S0")
	died, _, all := v.died(whole)
	fatal := died > 0 && 2*died >= all
	var peaks, cures []evidence
	for _, name := range []string{"S0/stream", "S0/graph-data", "S0/generator", "S0/tf-data", "S0/from-generator"} {
		if !v.has(name) {
			continue
		}
		if fatal {
			spared, _, runs := v.died(name)
			cure := evidence{unclear, fmt.Sprintf("%s: %d of %d runs ran out of memory", name, spared, runs), v.on(name)}
			switch {
			case 2*spared >= runs:
				cure.answer = no
			case spared > 0 || v.cell(name).Verdict.Kind == memory.Crash:
			case lags:
				cure.text += lateUnknown
			default:
				cure.answer = yes
			}
			cures = append(cures, cure)
			continue
		}
		peak := v.peak(name, whole)
		if lags && peak.answer == yes && growth.answer != no {
			peak.answer = unclear
			peak.text += ", with what waits for the garbage collector in it"
		}
		peaks = append(peaks, peak)
		if growth.answer == yes {
			cure := v.stops(name, whole)
			cure.answer = min(cure.answer, inPart)
			cures = append(cures, cure)
		}
	}
	peak, crash := pool(peaks...), growth
	if fatal {
		peak = pool(cures...) // who dies has no peak to compare
		peak.text = ""
	}
	if len(cures) > 0 {
		crash = pool(cures...)
		crash.text = sentences(growth.text, crash.text)
	}
	switch {
	case died == 0:
		crash.answer = min(crash.answer, inPart)
		crash.text = sentences(crash.text, "none of the runs ran out of memory")
	case !fatal:
		crash.answer = unclear
		crash.text = sentences(crash.text, fmt.Sprintf("%d of %d runs of %s ran out of memory", died, all, whole))
	}
	return settle(mainly, half{"the peak", peak}, half{"the crash", crash})
}

// C2. Intermediates stay if plain train steps grow, and grow less with half the batch.
// What grows by the same amount with half the batch is something else.
func intermediates(v view) (string, string) {
	var all []evidence
	for _, w := range []string{"W0", "S1", "S1d", "S2"} {
		e := v.growsItself(w)
		var c *memory.Comparison
		if name, _ := v.collected(w); name == w { // else half the batch is told from what lags
			c, _ = v.compared(w+"/batch-half", w)
		}
		if c != nil && c.Peak.OK {
			e.text = join(e.text, against(w+"/batch-half", w, "peak", c.Peak))
		}
		if e.answer == yes {
			e.answer = unclear
			if c != nil && c.Slope.OK {
				e.text = join(e.text, against(w+"/batch-half", w, "slope per sample", c.Slope))
				if c.Slope.High < goesWithBatch {
					e.answer = yes
				} else if c.Slope.Low >= goesWithBatch {
					e.answer = no
				}
			}
		}
		all = append(all, e)
	}
	return one(pool(all...))
}

// C3. The collector is out of step if dropped tensors wait for it, or if collecting after
// each step (where that is not to be had: each epoch) stops their growth, or keeps
// saw-teeth down. If collecting changes nothing, or nothing waits for it where that is
// counted, they were never its to free. Where all tensors are left to it, other workloads
// that grow tell, too.
func outOfStep(v view) (string, string) {
	all := []evidence{v.waits("W2")}
	for _, w := range []string{"S0", "S1", "S1d", "S2", "S2l"} {
		if c := v.cells[v.id(w)]; v.runtime == Galeone && c != nil && c.Verdict != nil && c.Verdict.Kind == memory.Leak && v.has(w+"/gc-step") {
			all = append(all, v.waits(w))
		}
	}
	return one(pool(all...))
}

// waits answers whether what a workload drops waits for a garbage collector.
func (v view) waits(w string) evidence {
	e := v.grows(w)
	c := v.cell(w)
	if c == nil {
		return e
	}
	collecting, peak := evidence{}, evidence{}
	for _, name := range []string{w + "/gc-step", w + "/gc-epoch"} {
		if v.has(name) {
			collecting, peak = v.stops(name, w), v.peak(name, w)
			break
		}
	}
	switch {
	case c.Verdict.Kind == memory.Sawtooth:
		// What comes down by itself may be anybody's.
		e.answer, collecting = max(peak.answer, unclear), peak
	case e.answer != yes:
	case c.Verdict.Cause == memory.GCLag:
	default:
		e.answer = max(collecting.answer, unclear)
		if e.answer == unclear && c.Verdict.Cause == memory.Unreleased {
			e.answer = no
		}
		if e.answer == no {
			collecting.text = join(collecting.text, "what is not released is not the collector's to free")
		}
	}
	e.text = join(e.text, collecting.text)
	return e
}

// C4. Prefetching relieves if the slope, or where nothing grows the peak, is lower. On
// Keras it is told from tf.data, without which it is not to be had.
func prefetch(v view) (string, string) {
	var all []evidence
	for _, w := range ownGrowth() {
		for _, remedy := range []string{"prefetch-1", "prefetch-4", "prefetch-16"} {
			if v.runtime != Keras || w == "W11" {
				all = append(all, v.relieves(w+"/"+remedy, w))
			}
		}
		all = append(all, v.relieves(w+"/prefetch-auto", w+"/tf-data"))
	}
	return one(pool(all...))
}

// C5. First that it is stable; then that it jumped with the first step, by more than a
// twentieth of what was there.
func jumpThenStable(v view) (string, string) {
	var stable, jumped []evidence
	for _, w := range []string{"S1", "S1d"} {
		name, _ := v.collected(w)
		stable, jumped = append(stable, not(v.growsItself(w))), append(jumped, v.jumps(name))
	}
	return settle(mainly, half{"whether it is stable", pool(stable...)}, half{"the jump", pool(jumped...)})
}

// C6. Two questions: whether the larger model's jump is larger, and whether XLA's is. The
// models differ in more than their size, so that the first is answered in part at most.
func largerJump(v view) (string, string) {
	ratio := func(name, other string) evidence {
		r, ok := v.amounts(name, other, addedReading)
		if !ok {
			return evidence{}
		}
		return v.doubted(name, evidence{higher(r), against(name, other, "jump from loading to the last step", r), v.on(name)})
	}
	if v.runtime == Galeone {
		return "", "" // all growth from loading on has what lags in it
	}
	model := ratio("S1d", "S1")
	model.answer = min(model.answer, inPart)
	if model.answer != missing {
		model.text += " (234,497 weights against 6,529, but the width of the inputs, the batch, the dropout and the time of the runs differ as well)"
	}
	xla := pool(ratio("S1/xla", "S1"), ratio("S1d/xla", "S1d"))
	return settle(equally, half{"the size of the model", model}, half{"XLA", xla})
}

// C7. Holds if closing everything gives back at least four fifths of what the steps
// added; in part if it is kept until the process ends; not if the steps themselves
// leave nothing behind. Only cells that close everything can tell.
func keptPools(v view) (string, string) {
	names := map[string][]string{Go: {"S3", "W2/close", "W4/close-all"}, Galeone: {"S3/gc-step"}, Keras: {"S3", "W2"}}[v.runtime]
	var all []evidence
	for _, name := range names {
		all = append(all, v.releases(name))
	}
	e := pool(all...)
	verdict, text := one(e)
	if e.answer == inPart {
		text = sentences(text, "what is left goes when the process ends")
	}
	return verdict, text
}

// C8. Two questions: whether memory grows, and whether that has no end. What only waits
// for a garbage collector ends when it comes, which in Go it does.
func endless(v view) (string, string) {
	var growth, end []evidence
	for _, w := range []string{"S1", "S1d", "S2"} {
		e := v.grows(w)
		own := e
		if e.answer == yes {
			own = v.growsItself(w)
			if name, _ := v.collected(w); name == w {
				e.text = own.text
			} else {
				e.text = sentences(join(e.text, v.early(w)), own.text)
				if own.answer == no {
					e.text += ", so that the growth was the garbage collector's delay"
				}
			}
		}
		growth, end = append(growth, e), append(end, own)
	}
	forever := pool(end...)
	forever.text = "" // it is that of the growth
	return settle(mainly, half{"the growth", pool(growth...)}, half{"that it has no end", forever})
}

// C9. The step with del against the same step without. Where that does not grow, a peak
// that stays says that there was nothing to delete.
func deletion(v view) (string, string) {
	var cells [][2]string
	for _, w := range []string{"W0", "W2", "S1", "S1d", "S2", "S2l", "S3"} {
		cells = append(cells, [2]string{w + "/own-loop-del", w + "/own-loop"})
	}
	return one(v.curbs(cells...))
}

// C10. First that growth stops, where there is any; then that a step takes longer.
func clearSession(v view) (string, string) {
	var cells [][2]string
	var cost []evidence
	for _, w := range ownGrowth() {
		name := w + "/clear-session"
		cells, cost = append(cells, [2]string{name, w}), append(cost, v.slower(name, w))
	}
	return settle(mainly, half{"whether growth stops", v.curbs(cells...)}, half{"the cost in speed", pool(cost...)})
}

// C11. Growth has to stop, or to be less per sample: half a batch that makes half the
// growth is arithmetic. What a generator does is told where the workload has none by
// itself. Workloads that vary the batch are left out, since smaller batches vary less.
func smallerBatches(v view) (string, string) {
	var all, peaks []evidence
	for _, w := range Workloads() {
		if slices.Contains([]string{"W1", "W3", "W9", "S3v", User}, w.ID) || w.Limit > 0 {
			continue
		}
		for _, remedy := range []string{"batch-half", "batch-quarter"} {
			name := w.ID + "/" + remedy
			e := v.stops(name, w.ID)
			if c, ok := v.compared(name, w.ID); ok && c != nil && c.Slope.OK && e.answer != missing {
				e.text += " per sample"
				switch {
				case e.answer == yes:
				case c.Slope.Low >= sameGrowth:
					e.answer = no
				case c.Slope.High < 1-noDifference:
					e.answer = inPart
				default:
					e.answer = unclear
				}
			} else if p := v.peak(name, w.ID); e.answer == missing && p.answer.known() {
				peaks = append(peaks, p)
			}
			all = append(all, v.ofGrowth(w.ID, e))
		}
	}
	for _, name := range []string{"S0/stream", "S0/generator", "S1/generator", "S1d/generator", "S2/generator", "W2/from-generator", "S3/from-generator"} {
		w := v.id(name).workload
		all = append(all, v.ofGrowth(w, v.stops(name, w)))
	}
	e := pool(all...)
	if e.answer == missing {
		return "", ""
	}
	e.text = sentences(e.text, pool(peaks...).text)
	return one(e)
}

// ofGrowth takes back that the growth of a workload was stopped or lowered if that growth
// is only what a garbage collector is late with: how late it is depends on how much is
// made, so that less of anything brings it on.
func (v view) ofGrowth(workload string, e evidence) evidence {
	if e.answer < inPart {
		return e
	}
	switch own := v.growsItself(workload); own.answer {
	case no:
		return evidence{}
	case unclear:
		return evidence{unclear, join(e.text, own.text), nil}
	}
	return e
}

// C12. An LSTM keeps something if it grows where a dense classifier does not.
func recurrent(v view) (string, string) {
	e := v.growsItself("S2l")
	if e.answer == yes {
		control := v.growsItself("S2")
		e.text = join(e.text, control.text)
		if control.answer != no {
			e.answer = min(control.answer, unclear)
		}
	}
	if e.answer != missing {
		e.text = sentences(e.text, "a GRU was not tried")
	}
	return one(e)
}

// C13. A history leaks if memory grows and does not once only the last is kept. If it
// grows all the same, that is of something else, which may hide what a history adds. A
// callback leaks if memory grows only where there is one, and that keeps what it sees.
// Only Keras has callbacks, so that elsewhere the claim holds in part at most.
func history(v view) (string, string) {
	var stored, called []evidence
	for _, w := range []string{"W10", "S4"} {
		e := v.grows(w)
		if e.answer == yes {
			last := v.stops(w+"/keep-last", w)
			e.answer, e.text = last.answer, join(e.text, last.text)
			if last.answer == no {
				e.answer = unclear
				e.text = join(e.text, "what else grows may hide what the history adds")
			}
		}
		stored = append(stored, e)
	}
	if v.runtime != Keras {
		e := pool(stored...)
		e.answer = min(e.answer, inPart)
		verdict, text := one(e)
		if verdict == HoldsInPart {
			text = sentences(text, "callbacks are Keras's alone")
		}
		return verdict, text
	}
	for _, w := range ownGrowth() {
		e := v.grows(w + "/hoard")
		if e.answer == yes {
			without := v.grows(w)
			e.text = join(e.text, without.text)
			if without.answer != no {
				e.answer = min(without.answer, unclear)
			}
		}
		called = append(called, e)
	}
	return settle(equally, half{"a stored history", pool(stored...)}, half{"a callback that keeps what it sees", pool(called...)})
}

// C14. A loop accumulates if it grows with everything released that people release, and
// crashes of that if runs die of it after their first step; growth alone is a part, and
// so is what collecting garbage after each step stops. Epochs on one model are one
// question, a model loaded again and again another one. Workloads that drop things on
// purpose are left out.
func accumulation(v view) (string, string) {
	ask := func(names ...string) evidence {
		var all []evidence
		grew, died := false, false
		for _, name := range names {
			e := v.grows(name)
			if e.answer == yes {
				collecting := v.stops(name+"/gc-step", name)
				_, grown, _ := v.died(name)
				switch {
				case collecting.answer == yes, collecting.answer == inPart:
					e.answer = inPart
				case collecting.answer == unclear, v.runtime == Galeone && collecting.answer == missing:
					e.answer = unclear
				case grown == 0:
					e.answer = inPart
				}
				e.text = join(e.text, v.early(name), collecting.text)
				grew, died = true, died || grown > 0
			}
			all = append(all, e)
		}
		sum := pool(all...)
		if grew && !died {
			sum.text = sentences(sum.text, "no run that grew ran out of memory")
		}
		return sum
	}
	epochs := half{"what epochs add", ask("S1", "S1d", "S2", "S3")}
	again := half{"what loading again adds", ask(map[string]string{Go: "W4/close-all", Keras: "W4"}[v.runtime])}
	if again.answer == missing {
		return one(epochs.evidence)
	}
	if epochs.answer == missing {
		return one(again.evidence)
	}
	return settle(equally, epochs, again)
}

// C15. Holds if the tensors' memory grows and that of buffers does not. Where this
// binding is told not to close its tensors, they leak by construction.
func generators(v view) (string, string) {
	names := []string{"S3"}
	if v.runtime == Keras {
		names = append(names, "W2")
	}
	var all []evidence
	for _, w := range names {
		e := v.grows(w)
		if e.answer == yes {
			instead := pool(v.stops(w+"/buffers", w), v.stops(w+"/from-generator", w))
			e.answer, e.text = instead.answer, sentences(e.text, instead.text)
		}
		all = append(all, e)
	}
	return one(pool(all...))
}

// C16, on a GPU. An allocation failed if runs with varying batches die of the GPU's
// allocator and those with fixed ones do not. The pool is fragmented if, when it grows as
// needed, it holds more than twice as much for what it hands out; a pool that doubles
// comes to that by itself.
func fragments(v view) (string, string) {
	if !v.gpus || !v.has("S3v") || !v.has("S3") {
		return "", ""
	}
	died := func(name string) (n, all int) {
		for _, run := range v.runs[v.id(name)] {
			all++
			if outOfMemory(run) && strings.Contains(run.Cause, "GPU_") {
				n++
			}
		}
		return n, all
	}
	varying, all := died("S3v")
	fixed, allFixed := died("S3")
	v.cell("S3v")
	v.cell("S3")
	fails := evidence{unclear, fmt.Sprintf("the GPU's allocator failed in %d of %d runs of S3v and %d of %d of S3", varying, all, fixed, allFixed), v.on("S3v")}
	switch {
	case varying == 0 && v.cell("S3v").Verdict.Kind != memory.Crash:
		fails.answer = no
	case varying > 0 && fixed == 0 && v.cell("S3").Verdict.Kind != memory.Crash:
		fails.answer = yes
	}
	slack := func(name string) (float64, bool) {
		c := v.cell(name)
		if c == nil || c.Figures.GPU == nil || c.Figures.GPUPool == nil || *c.Figures.GPUPool <= 0 {
			return 0, false
		}
		return float64(*c.Figures.GPU) / float64(*c.Figures.GPUPool), true
	}
	var holes evidence
	if a, ok := slack("S3v/memory-growth"); ok {
		if b, ok := slack("S3/memory-growth"); ok {
			holes = evidence{no, fmt.Sprintf("a pool that grows as needed holds %.2f times what it hands out with varying batches (S3v/memory-growth), %.2f times with fixed ones (S3/memory-growth), by medians", a, b), v.on("S3v")}
			if a > doubling*b {
				holes.answer = yes
			}
		}
	}
	if fails.answer == yes {
		holes = evidence{yes, holes.text, v.on("S3v")}
	}
	return settle(equally, half{"an allocation that fails", fails}, half{"fragmentation", holes})
}

// C17. Temporaries accumulate if the step with augmentation grows where that without
// does not, or grows faster.
func augmentation(v view) (string, string) {
	e := v.growsItself("S3a")
	if e.answer == yes {
		plain := v.growsItself("S3")
		e.text = join(e.text, plain.text)
		if e.answer = min(plain.answer, unclear); plain.answer == no {
			e.answer = yes
		} else if plain.answer == yes {
			name, _ := v.collected("S3a")
			other, _ := v.collected("S3")
			var slope memory.Ratio
			if c, ok := v.compared(name, other); ok && c != nil {
				slope = c.Slope
			}
			e.answer = unclear
			if slope.OK && slope.Low > 1/sameGrowth {
				e.answer = yes
			} else if slope.OK && slope.High <= 1/sameGrowth {
				e.answer = no
			}
			e.text = join(e.text, against(name, other, "slope", slope))
		}
	}
	return one(e)
}

// C18. First that the peak is lower, then that a step takes longer.
func eagerly(v view) (string, string) {
	var peaks, cost []evidence
	for _, w := range []string{"S1", "S1d", "S2", "S2l", "S3"} {
		peaks, cost = append(peaks, v.peak(w+"/eager", w)), append(cost, v.slower(w+"/eager", w))
	}
	return settle(mainly, half{"the peak", pool(peaks...)}, half{"the cost in speed", pool(cost...)})
}

// C19, on a GPU. What is tested is that memory is saved: what a process holds of the
// GPU. That it has to be the same everywhere and come first is TensorFlow's rule, so that
// it can hold in part at most.
func memoryGrowth(v view) (string, string) {
	if !v.gpus {
		return "", ""
	}
	var all []evidence
	for _, w := range ownGrowth() {
		name := w + "/memory-growth"
		held, ok := v.onDevice(name, w, true)
		if !ok {
			continue
		}
		e := evidence{lower(held), against(name, w, "memory that the process holds of the GPU", held), v.on(name)}
		if used, ok := v.onDevice(name, w, false); ok {
			e.text = join(e.text, against(name, w, "what TensorFlow's allocator hands out of it", used))
		}
		e.text = join(e.text, v.peak(name, w).text+" on the host")
		all = append(all, e)
	}
	verdict, text := one(pool(all...))
	if verdict == Holds {
		verdict = HoldsInPart
	}
	if verdict != "" {
		text = sentences(text, "that it has to be alike on all GPUs and come first was not tried")
	}
	return verdict, text
}

// C20. Two questions: whether the peak, or on a GPU what TensorFlow's allocator hands
// out, is halved, in part if it is lower; and whether it costs accuracy, which no matrix
// decides unless the training breaks.
func mixedPrecision(v view) (string, string) {
	var amounts, losses []evidence
	for _, w := range []string{"S1d", "S3"} {
		for _, remedy := range []string{"bf16", "fp16", "mixed-bf16", "mixed-fp16"} {
			name := w + "/" + remedy
			if !v.has(name) || !v.has(w) {
				continue
			}
			var peak memory.Ratio
			if c, _ := v.compared(name, w); c != nil {
				peak = c.Peak
			}
			amount := evidence{halves(peak), against(name, w, "peak", peak), v.on(name)}
			if used, ok := v.onDevice(name, w, false); ok && v.gpus {
				amount.answer, amount.text = halves(used), join(against(name, w, "what TensorFlow's allocator hands out of the GPU", used), amount.text+" on the host")
			}
			amounts, losses = append(amounts, v.doubted(name, amount)), append(losses, v.worsens(name, w))
		}
	}
	accuracy := pool(losses...)
	if accuracy.answer == unclear {
		accuracy.text = sentences(accuracy.text, "losses of training do not tell the accuracy: metrics of validation would, over at least 5 seeds (docs/gpu.md)")
	}
	return settle(equally, half{"the memory", pool(amounts...)}, half{"the cost in accuracy", accuracy})
}

// ledger tests every claim on every runtime that took part.
func ledger(r *Result) []Claim {
	cells, runs := make(map[cellID]*Cell), make(map[cellID][]*RunResult)
	for i := range r.Cells {
		c := &r.Cells[i]
		cells[cellID{c.Runtime, c.Workload, c.Remedy}] = c
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		id := cellID{run.Runtime, run.Workload, run.Remedy}
		runs[id] = append(runs[id], run)
	}
	gpus := len(r.Environment.GPUs) > 0
	var out []Claim
	for _, c := range claims() {
		entry := Claim{ID: c.id, Text: c.text, Says: c.says, Verdicts: []ClaimVerdict{}, Needs: c.needs}
		if gpus {
			entry.Needs = ""
		}
		for _, runtime := range Runtimes() {
			v := view{runtime: runtime, gpus: gpus, seed: uint64(r.Settings.Seed), cells: cells, runs: runs, used: make(map[string]bool)}
			if verdict, text := c.test(v); verdict != "" {
				entry.Verdicts = append(entry.Verdicts, ClaimVerdict{Runtime: runtime, Verdict: verdict, Text: text, Cells: slices.Sorted(maps.Keys(v.used))})
			}
		}
		out = append(out, entry)
	}
	return out
}
