package matrix

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/measure"
	"steadyfit/internal/lab/worker"
	"steadyfit/memory"
)

// single has the tests that answer a probe for each pair of a measurement and the measurement that
// it is compared with.
var single = map[string]func(v view, name, other string) evidence{
	"grows until collected": view.growsUntilCollected,
	"grows without end":     view.growsWithoutEnd,
	"grows with the batch":  view.growsWithBatch,
	"grows beyond":          view.growsBeyond,
	"is stable":             func(v view, name, _ string) evidence { return not(v.growsItself(name)) },
	"waits":                 view.waits,
	"waits if it grows":     view.waitsIfItGrows,
	"relieves":              view.relieves,
	"stops itself":          func(v view, name, other string) evidence { return v.ofGrowth(other, v.stops(name, other)) },
	"jumps":                 view.jumps,
	"releases":              view.releases,
	"lower":                 func(v view, name, other string) evidence { return v.byRatio(name, other, v.of, lower) },
	"higher":                func(v view, name, other string) evidence { return v.byRatio(name, other, v.of, higher) },
	"halves":                view.halves,
	"has a worse loss":      view.worsens,
	"fails on the GPU":      view.failsOnGPU,
	"has holes":             view.hasHoles,
	"holds less of the GPU": view.holdsLess,
}

// joint has the tests that answer a probe for all of its measurements together.
var joint = map[string]func(view, probe) []evidence{
	"is cured":         view.isCured,
	"curbs":            view.curbs,
	"stops per sample": view.stopsPerSample,
	"accumulates":      view.accumulates,
	"whole peak":       func(v view, p probe) []evidence { peak, _ := v.wholeSet(p.Runs); return []evidence{peak} },
	"whole crash":      func(v view, p probe) []evidence { _, crash := v.wholeSet(p.Runs); return []evidence{crash} },
}

// test answers a probe.
func (v view) test(p probe) (all []evidence) {
	if test, ok := joint[p.Test]; ok {
		return test(v, p)
	}
	v.of = p.Of
	for _, pair := range pairs(p) {
		all = append(all, single[p.Test](v, pair[0], pair[1]))
	}
	return all
}

// wholeSet answers whether feeding the dataset in parts lowers the peak, and whether it
// prevents crashes: yes if runs no longer run out of memory, in part if only the growth stops.
// Growth that waits for the garbage collector does not count, because smaller batches of data
// cause more collections.
func (v view) wholeSet(parts []string) (peak, crash evidence) {
	if !v.has("S0") || v.runtime == Keras && !v.has("S0/stream") {
		return evidence{}, evidence{}
	}
	whole, lags := v.collected("S0")
	growth := v.growsItself("S0")
	died, _, all := v.died(whole)
	fatal := died > 0 && 2*died >= all
	var peaks, cures []evidence
	for _, name := range parts {
		if !v.has(name) {
			continue
		}
		if fatal {
			spared, _, runs := v.died(name)
			cure := evidence{unclear, fmt.Sprintf("%s: %d of %d runs ran out of memory", name, spared, runs), v.on(name)}
			switch {
			case 2*spared >= runs:
				cure.answer = no
			case spared > 0 || v.measured(name).Verdict.Kind == memory.Crash:
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
	peak, crash = pool(peaks...), growth
	if fatal {
		peak = pool(cures...) // a crashed run has no peak to compare
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
	return peak, crash
}

// growsWithBatch answers whether a workload grows, and less with half the batch.
func (v view) growsWithBatch(w, _ string) evidence {
	e, half := v.growsItself(w), w+"/batch-half"
	if name, _ := v.collected(w); name != w {
		if e.answer == yes {
			e.answer = unclear // Growth that may wait for the collector is compared with half the batch.
		}
		return e
	}
	c, _ := v.compared(half, w)
	if c.Peak.OK {
		e.text = join(e.text, against(half, w, "peak", c.Peak))
	}
	if e.answer == yes {
		e.answer = unclear
		if c.Slope.OK {
			e.text = join(e.text, against(half, w, "slope per sample", c.Slope))
			if c.Slope.High < goesWithBatch {
				e.answer = yes
			} else if c.Slope.Low >= goesWithBatch {
				e.answer = no
			}
		}
	}
	return e
}

// waitsIfItGrows is like waits, but only for a workload that grows and was also run with a
// collection after each step.
func (v view) waitsIfItGrows(w, _ string) evidence {
	if c := v.combinations[v.id(w)]; c != nil && c.Verdict != nil && c.Verdict.Kind == memory.Leak && v.has(w+"/gc-step") {
		return v.waits(w, "")
	}
	return evidence{}
}

// waits answers whether dropped tensors wait for a garbage collector: a collection after each
// step, or each epoch, stops the growth or lowers sawteeth.
func (v view) waits(w, _ string) evidence {
	e := v.grows(w)
	c := v.measured(w)
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
		// A sawtooth may have another cause than the collector.
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

// curbs is like stops, for several results. If nothing grows, the peak shows whether the remedy
// frees anything.
func (v view) curbs(p probe) []evidence {
	var stopped, peaks []evidence
	for _, c := range pairs(p) {
		stopped = append(stopped, v.stops(c[0], c[1]))
		if p := v.peak(c[0], c[1]); p.answer != missing && stopped[len(stopped)-1].answer == missing {
			p.text += fmt.Sprintf(", %s alone does not grow", c[1])
			if p.answer == yes {
				p.answer = inPart
			}
			peaks = append(peaks, p)
		}
	}
	sum, rest := pool(stopped...), pool(peaks...)
	if sum.answer == missing {
		return []evidence{rest}
	}
	sum.text = sentences(sum.text, rest.text)
	return []evidence{sum}
}

// growsUntilCollected is like grows. Its text adds whether the growth remains with garbage
// collections.
func (v view) growsUntilCollected(w, _ string) evidence {
	e := v.grows(w)
	if e.answer != yes {
		return e
	}
	own := v.growsItself(w)
	if name, _ := v.collected(w); name == w {
		e.text = own.text
		return e
	}
	e.text = sentences(join(e.text, v.early(w)), own.text)
	if own.answer == no {
		e.text += ", so that the growth was the garbage collector's delay"
	}
	return e
}

func (v view) growsWithoutEnd(w, _ string) evidence {
	if e := v.grows(w); e.answer != yes {
		return e
	}
	return v.growsItself(w)
}

// stopsPerSample answers whether smaller batches stop the growth, or lower it per sample. Its
// text has the peaks of workloads that do not grow.
func (v view) stopsPerSample(p probe) (all []evidence) {
	var peaks []evidence
	for _, pair := range pairs(p) {
		name, w := pair[0], pair[1]
		e := v.stops(name, w)
		if c, ok := v.compared(name, w); ok && c.Slope.OK && e.answer != missing {
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
		} else if peak := v.peak(name, w); e.answer == missing && peak.answer.known() {
			peaks = append(peaks, peak)
		}
		all = append(all, v.ofGrowth(w, e))
	}
	return append(all, evidence{text: pool(peaks...).text})
}

// ofGrowth turns an answer to missing or unclear if the growth may only be garbage that waits
// for a collector, since any change of the loop can lower such growth.
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

// growsBeyond answers whether a workload grows where the compared one does not, or grows faster
// if the probe is about slopes.
func (v view) growsBeyond(name, other string) evidence {
	e := v.growsItself(name)
	if e.answer != yes {
		return e
	}
	control := v.growsItself(other)
	e.text = join(e.text, control.text)
	switch {
	case control.answer == no:
	case control.answer == yes && v.of != "":
		name, _ = v.collected(name)
		other, _ = v.collected(other)
		r, _ := v.ratio(name, other, v.of)
		e.answer, e.text = unclear, join(e.text, against(name, other, v.of, r))
		if r.OK && r.Low > 1/sameGrowth {
			e.answer = yes
		} else if r.OK && r.High <= 1/sameGrowth {
			e.answer = no
		}
	default:
		e.answer = min(control.answer, unclear)
	}
	return e
}

func (v view) isCured(p probe) (all []evidence) {
	for _, w := range p.Runs {
		e := v.grows(w)
		if e.answer == yes {
			var cures []evidence
			for _, remedy := range p.Remedies {
				cures = append(cures, v.stops(w+"/"+remedy, w))
			}
			cure := pool(cures...)
			e.answer, e.text = cure.answer, sentences(e.text, cure.text)
			if cure.answer == no && p.Otherwise != "" {
				e.answer, e.text = unclear, join(e.text, p.Otherwise)
			}
		}
		all = append(all, e)
	}
	return all
}

// accumulates answers whether workloads grow with everything released until runs run out of
// memory. Growth alone counts in part, as does growth that stops with a collection after each
// step.
func (v view) accumulates(p probe) (all []evidence) {
	grew, died := false, false
	for _, pair := range pairs(p) {
		name := pair[0]
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
	if grew && !died {
		all = append(all, evidence{text: "no run that grew ran out of memory"})
	}
	return all
}

// failsOnGPU answers whether the GPU's allocator fails in a workload but not in the compared
// one.
func (v view) failsOnGPU(name, other string) evidence {
	if !v.has(name) || !v.has(other) {
		return evidence{}
	}
	count := func(name string) (n, all int, crash bool) {
		for _, run := range v.runs[v.id(name)] {
			all++
			if outOfMemory(run) && strings.Contains(run.Cause, "GPU_") {
				n++
			}
		}
		return n, all, v.measured(name).Verdict.Kind == memory.Crash
	}
	died, all, crash := count(name)
	otherDied, otherAll, otherCrash := count(other)
	e := evidence{unclear, fmt.Sprintf("the GPU's allocator failed in %d of %d runs of %s and %d of %d of %s", died, all, name, otherDied, otherAll, other), v.on(name)}
	switch {
	case died == 0 && !crash:
		e.answer = no
	case died > 0 && otherDied == 0 && !otherCrash:
		e.answer = yes
	}
	return e
}

// hasHoles answers whether a GPU's pool is fragmented: the ratio of its size to its use is more
// than twice that of the compared workload, or an allocation failed.
func (v view) hasHoles(name, other string) evidence {
	slack := func(name string) float64 {
		c := v.measured(name + "/memory-growth")
		if c == nil || c.Figures.GPU == nil || c.Figures.GPUPool == nil || *c.Figures.GPUPool <= 0 {
			return 0
		}
		return float64(*c.Figures.GPU) / float64(*c.Figures.GPUPool)
	}
	if !v.has(name) || !v.has(other) {
		return evidence{}
	}
	var e evidence
	if a, b := slack(name), slack(other); a > 0 && b > 0 {
		e = evidence{no, fmt.Sprintf("a pool that grows as needed holds %.2f times what it hands out with varying batches (%s/memory-growth), %.2f times with fixed ones (%s/memory-growth), by medians", a, name, b, other), v.on(name)}
		if a > doubling*b {
			e.answer = yes
		}
	}
	if v.failsOnGPU(name, other).answer == yes {
		e.answer, e.on = yes, v.on(name)
	}
	return e
}

func (v view) holdsLess(name, w string) evidence {
	held, ok := v.ratio(name, w, gpuHeld)
	if !ok || !held.OK {
		return evidence{}
	}
	e := evidence{lower(held), against(name, w, gpuHeld, held), v.on(name)}
	if used, _ := v.ratio(name, w, gpuUsed); used.OK {
		e.text = join(e.text, against(name, w, "what TensorFlow's allocator hands out of it", used))
	}
	e.text = join(e.text, v.peak(name, w).text+" on the host")
	return e
}

// halves answers whether a remedy halves the peak or, on a GPU, the memory in use of
// TensorFlow's allocator. The answer is in part for a lower amount that is not halved.
func (v view) halves(name, w string) evidence {
	half := func(r compare.Ratio) answer {
		switch a := lower(r); {
		case a != yes, r.High <= halvedBelow:
			return a
		case r.Low > halvedBelow:
			return inPart
		}
		return unclear
	}
	peak, ok := v.ratio(name, w, "peak")
	if !ok {
		return evidence{}
	}
	e := evidence{half(peak), against(name, w, "peak", peak), v.on(name)}
	if used, _ := v.ratio(name, w, gpuUsed); used.OK && v.gpus {
		e.answer, e.text = half(used), join(against(name, w, gpuUsed, used), e.text+" on the host")
	}
	return v.doubted(name, e)
}

func loss(run *RunResult, fact string) (float64, bool) {
	x, err := strconv.ParseFloat(run.Facts[fact], 64)
	return x, err == nil
}

// worsens answers whether a remedy costs accuracy. Training losses cannot show that, because
// the model has seen the samples and all runs have one seed. Only a loss that becomes NaN or
// infinite decides the question.
func (v view) worsens(name, other string) evidence {
	if !v.has(name) || !v.has(other) {
		return evidence{}
	}
	var with, without spread
	broken := 0
	runs, others := v.paired(name, other)
	for i := range runs {
		a, ok := loss(runs[i], worker.FactLossLast)
		b, ok2 := loss(others[i], worker.FactLossLast)
		switch {
		case !ok || !ok2 || math.IsNaN(b) || math.IsInf(b, 0):
			continue
		case math.IsNaN(a) || math.IsInf(a, 0):
			broken++
		default:
			with, without = append(with, a), append(without, b)
		}
	}
	if broken > 0 {
		return evidence{yes, fmt.Sprintf("%s: the loss is no number at the end of %d runs, and is one in %s", name, broken, other), v.on(name)}
	}
	if len(with) == 0 {
		return evidence{unclear, "", nil}
	}
	text := fmt.Sprintf("%s against %s: the loss of training ends at %.4g against %.4g", name, other, measure.Median(with), measure.Median(without))
	if slices.Min(with) == slices.Max(with) && slices.Min(without) == slices.Max(without) && len(with) > 1 {
		text += fmt.Sprintf(", bit for bit the same in %d runs, so that it counts once", len(with))
	}
	return evidence{unclear, text, nil}
}
