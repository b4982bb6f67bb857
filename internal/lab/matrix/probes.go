package matrix

import (
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// tests has the tests that answer a probe.
var tests = map[string]func(view, probe) []evidence{
	"grows until collected": each(view.growsUntilCollected),
	"grows without end":     each(view.growsWithoutEnd),
	"grows with the batch":  each(view.growsWithBatch),
	"grows beyond":          each(view.growsBeyond),
	"is stable":             each(func(v view, name, _ string) evidence { return not(v.growsItself(name)) }),
	"waits":                 each(view.waits),
	"waits if it grows":     each(view.waitsIfItGrows),
	"relieves":              each(view.relieves),
	"stops itself": each(func(v view, name, other string) evidence {
		return v.ofGrowth(other,
			v.stops(name, other))
	}),
	"jumps":    each(view.jumps),
	"releases": each(view.releases),
	"lower": each(func(v view, name, other string) evidence {
		return v.byRatio(name, other, v.of,
			lower)
	}),
	"higher": each(func(v view, name, other string) evidence {
		return v.byRatio(name, other, v.of,
			higher)
	}),
	"halves":                each(view.halves),
	"has a worse loss":      each(view.worsens),
	"fails on the GPU":      each(view.failsOnGPU),
	"has holes":             each(view.hasHoles),
	"holds less of the GPU": each(view.holdsLess),
	"is cured":              view.isCured,
	"curbs":                 view.curbs,
	"stops per sample":      view.stopsPerSample,
	"accumulates":           view.accumulates,
	"whole peak":            func(v view, p probe) []evidence { peak, _ := v.wholeSet(p.Runs); return []evidence{peak} },
	"whole crash":           func(v view, p probe) []evidence { _, crash := v.wholeSet(p.Runs); return []evidence{crash} },
}

// each returns a test that calls test for each measurement of a probe and the measurement to
// compare it with.
func each(test func(v view, name, other string) evidence) func(view, probe) []evidence {
	return func(v view, p probe) (all []evidence) {
		v.of = p.Of
		for _, pair := range pairs(p) {
			all = append(all, test(v, pair[0], pair[1]))
		}
		return all
	}
}

// relieves answers whether a remedy lowers the slope of a workload that grows, or else the
// peak.
func (v view) relieves(name, other string) evidence {
	if e := v.stops(name, other); e.answer != missing {
		return e
	}
	return v.peak(name, other)
}

// jumps answers whether memory is higher after the first step than before.
func (v view) jumps(name, _ string) evidence {
	name, _ = v.collected(name)
	if !v.has(name) {
		return evidence{}
	}
	var amounts, parts spread
	for _, run := range v.use(name).runs {
		if l, ok := levels(run, worker.PhaseLoaded, worker.PhaseFirst); ok {
			amounts, parts = append(amounts, l[1]-l[0]), append(parts, (l[1]-l[0])/l[0])
		}
	}
	if len(parts) == 0 {
		return evidence{}
	}
	return found(above(slices.Min(parts), slices.Max(parts), noDifference), name,
		"%s: %v from loading to the end of the first step, %.0f%% of what was there", name, amounts, 100*stats.Median(parts))
}

// releases answers whether closing everything frees the memory that the steps added: yes if it
// does, "in part" if the memory stays, no if nothing was kept between steps.
func (v view) releases(name, _ string) evidence {
	if !v.has(name) {
		return evidence{}
	}
	m := v.use(name)
	var added, left, trimmed, parts, kept spread
	for _, run := range m.runs {
		l, ok := levels(run, worker.PhaseLoaded, worker.PhaseSteady, worker.PhaseClosed)
		if !ok {
			continue
		}
		a, stays := l[1]-l[0], l[2]-l[0]
		kept = append(kept, a/l[0])
		if a <= noDifference*l[0] {
			continue
		}
		added, left, parts = append(added, a), append(left, stays), append(parts, stays/a)
		if l, ok := levels(run, worker.PhaseLoaded, worker.PhaseTrimmed); ok {
			trimmed = append(trimmed, l[1]-l[0])
		}
	}
	traced, pool := "", m.Figures.Pool
	if pool != nil {
		traced = fmt.Sprintf("; TensorFlow's pool had handed out %v in a traced step", memory.Bytes(*pool))
	}
	switch {
	case len(kept) == 0:
		return evidence{}
	case slices.Max(kept) <= noDifference && pool != nil && m.Figures.Loaded != nil &&
		float64(*pool) > noDifference*float64(*m.Figures.Loaded):
		return found(no, name, "%s: the steps leave nothing behind%s", name, traced)
	case len(parts) < len(kept):
		return evidence{text: name + ": the steps add too little to tell"}
	}
	least, most := slices.Min(parts), slices.Max(parts)
	e := found(unclear, name, "%s: the steps added %v, of which %v were left after closing everything, %.0f%% [%.0f to "+
		"%.0f]",
		name, added, left, 100*stats.Median(parts), 100*least, 100*most)
	if len(trimmed) > 0 {
		e.text += fmt.Sprintf(", and %v after malloc_trim", trimmed)
	}
	e.text += traced
	if most <= freedBelow {
		e.answer = yes
	} else if least > freedBelow {
		e.answer = inPart
	}
	return e
}

// wholeSet answers whether feeding the dataset in parts lowers the peak, and whether it prevents
// crashes: yes if runs no longer run out of memory, "in part" if only the growth stops. Memory that
// a garbage collection would free does not count, because smaller batches of data cause more
// collections.
func (v view) wholeSet(parts []string) (peak, crash evidence) {
	if !v.has("S0") || v.runtime == Keras && !v.has("S0/stream") {
		return evidence{}, evidence{}
	}
	whole, lags := v.collected("S0")
	growth := v.growsItself("S0")
	died, _ := v.results[whole].died()
	all := len(v.results[whole].runs)
	fatal := died > 0 && 2*died >= all
	var peaks, cures []evidence
	for _, name := range parts {
		if !v.has(name) {
			continue
		}
		if fatal {
			cure := v.survives(name)
			if lags && cure.answer == yes {
				cure.answer, cure.text = unclear, cure.text+lateUnknown
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

// growsWithBatch answers whether a workload grows, and grows less with half the batch.
func (v view) growsWithBatch(w, _ string) evidence {
	e, half := v.growsItself(w), w+"/batch-half"
	if name, _ := v.collected(w); name != w {
		if e.answer == yes {
			e.answer = unclear // Half the batch was not run with a collection after each step.
		}
		return e
	}
	c, _ := v.compared(half, w)
	if c.Peak.OK {
		e.text = join(e.text, against(half, w, "peak", c.Peak))
	}
	if e.answer != yes {
		return e
	}
	if e.answer = unclear; c.Slope.OK {
		e.answer = below(c.Slope.Low, c.Slope.High, goesWithBatch)
		e.text = join(e.text, against(half, w, "slope per sample", c.Slope))
	}
	return e
}

// waitsIfItGrows is like waits, but has no answer unless the workload grows and was also run with a
// collection after each step.
func (v view) waitsIfItGrows(w, _ string) evidence {
	if v.has(w, w+"/gc-step") && v.results[w].Verdict.Kind == memory.Leak {
		return v.waits(w, "")
	}
	return evidence{}
}

// waits answers whether dropped tensors wait for a garbage collector: a collection after each
// step, or each epoch, stops the growth or lowers sawteeth.
func (v view) waits(w, _ string) evidence {
	if !v.has(w) {
		return evidence{}
	}
	e, verdict := v.grows(w), v.use(w).Verdict
	var collecting, peak evidence
	for _, name := range []string{w + "/gc-step", w + "/gc-epoch"} {
		if v.has(name) {
			collecting, peak = v.stops(name, w), v.peak(name, w)
			break
		}
	}
	switch {
	case verdict.Kind == memory.Sawtooth:
		// A sawtooth may have another cause than the garbage collector.
		e.answer, collecting = max(peak.answer, unclear), peak
	case e.answer == yes && verdict.Cause != memlayer.GCLag:
		e.answer = max(collecting.answer, unclear)
		if e.answer == unclear && verdict.Cause == memlayer.Unreleased {
			e.answer = no
		}
		if e.answer == no {
			collecting.text = join(collecting.text, "what is not released is not the collector's to free")
		}
	}
	e.text = join(e.text, collecting.text)
	return e
}

// curbs is like stops for several workloads. If none of them grows, the peak shows whether the
// remedy frees anything.
func (v view) curbs(p probe) []evidence {
	var stopped, peaks []evidence
	for _, c := range pairs(p) {
		stops, peak := v.stops(c[0], c[1]), v.peak(c[0], c[1])
		stopped = append(stopped, stops)
		if peak.answer != missing && stops.answer == missing {
			peak.text += fmt.Sprintf(", %s alone does not grow", c[1])
			if peak.answer == yes {
				peak.answer = inPart
			}
			peaks = append(peaks, peak)
		}
	}
	sum, rest := pool(stopped...), pool(peaks...)
	if sum.answer == missing {
		return []evidence{rest}
	}
	sum.text = sentences(sum.text, rest.text)
	return []evidence{sum}
}

// growsUntilCollected is like grows. The text of the result adds whether the growth remains with
// garbage collections.
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

// stopsPerSample answers whether smaller batches stop the growth, or lower it per sample. The text
// of the result has the peaks of workloads that do not grow.
func (v view) stopsPerSample(p probe) (all []evidence) {
	var peaks []evidence
	for _, pair := range pairs(p) {
		name, w := pair[0], pair[1]
		e := v.stops(name, w)
		if e.answer == missing {
			if peak := v.peak(name, w); peak.answer.known() {
				peaks = append(peaks, peak)
			}
		} else if c, _ := v.compared(name, w); c.Slope.OK {
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
		}
		all = append(all, v.ofGrowth(w, e))
	}
	return append(all, evidence{text: pool(peaks...).text})
}

// growsBeyond answers whether a workload grows and the compared one does not or, if the probe is
// about slopes, whether it grows faster.
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
		if r.OK {
			e.answer = above(r.Low, r.High, 1/sameGrowth)
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

// accumulates answers whether workloads grow until they run out of memory although they release
// everything. The answer is "in part" if they grow but do not run out of memory, or if the growth
// stops or is reduced with a collection after each step.
func (v view) accumulates(p probe) (all []evidence) {
	grew, died := false, false
	for _, pair := range pairs(p) {
		name := pair[0]
		e := v.grows(name)
		if e.answer == yes {
			collecting := v.stops(name+"/gc-step", name)
			_, grown := v.results[name].died()
			switch {
			case collecting.answer == unclear, v.runtime == Galeone && collecting.answer == missing:
				e.answer = unclear
			case collecting.answer >= inPart, grown == 0:
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
	if !v.has(name, other) {
		return evidence{}
	}
	count := func(m *measured) (n int) {
		for _, run := range m.runs {
			if outOfMemory(run) && strings.Contains(run.Cause, "GPU_") {
				n++
			}
		}
		return n
	}
	one, two := v.use(name), v.use(other)
	died, otherDied := count(one), count(two)
	e := found(unclear, name, "the GPU's allocator failed in %d of %d runs of %s and %d of %d of %s", died, len(one.runs),
		name, otherDied, len(two.runs), other)
	switch {
	case died == 0 && one.Verdict.Kind != memlayer.Crash:
		e.answer = no
	case died > 0 && otherDied == 0 && two.Verdict.Kind != memlayer.Crash:
		e.answer = yes
	}
	return e
}

// hasHoles answers whether a GPU's pool is fragmented: the ratio of its size to its use is more
// than twice that of the compared workload, or an allocation failed.
func (v view) hasHoles(name, other string) (e evidence) {
	if !v.has(name, other) {
		return e
	}
	slack := func(name string) float64 {
		if !v.has(name) {
			return 0
		}
		f := v.use(name).Figures
		if f.GPU == nil || f.GPUPool == nil || *f.GPUPool <= 0 {
			return 0
		}
		return float64(*f.GPU) / float64(*f.GPUPool)
	}
	if a, b := slack(name+"/memory-growth"), slack(other+"/memory-growth"); a > 0 && b > 0 {
		e = found(above(a, a, doubling*b), name, "a pool that grows as needed holds %.2f times what it hands out with "+
			"varying batches (%s/memory-growth), %.2f times with fixed ones (%s/memory-growth), by medians", a, name, b, other)
	}
	if failed := v.failsOnGPU(name, other); failed.answer == yes {
		e.answer, e.on = yes, failed.on
	}
	return e
}

func (v view) holdsLess(name, w string) evidence {
	held, _ := v.ratio(name, w, gpuHeld)
	if !held.OK {
		return evidence{}
	}
	text := against(name, w, gpuHeld, held)
	if used, _ := v.ratio(name, w, gpuUsed); used.OK {
		text = join(text, against(name, w, "what TensorFlow's allocator hands out of it", used))
	}
	return found(lower(held), name, "%s; %s on the host", text, v.peak(name, w).text)
}

// halves answers whether a remedy halves the peak or, on a GPU, the memory in use of
// TensorFlow's allocator.
func (v view) halves(name, w string) evidence {
	peak, ok := v.ratio(name, w, "peak")
	if !ok {
		return evidence{}
	}
	e := found(halved(peak), name, "%s", against(name, w, "peak", peak))
	if used, _ := v.ratio(name, w, gpuUsed); used.OK && v.gpus {
		e = found(halved(used), name, "%s; %s on the host", against(name, w, gpuUsed, used), e.text)
	}
	return v.doubted(name, e)
}

// worsens answers whether a remedy costs accuracy. Training losses cannot show that, because the
// model has seen the samples and all runs have one seed. Only a loss that becomes NaN or infinite
// answers the question.
func (v view) worsens(name, other string) evidence {
	if !v.has(name, other) {
		return evidence{}
	}
	var with, without spread
	broken := 0
	for _, p := range v.paired(name, other) {
		a, finite, ok := loss(p[0])
		b, sound, known := loss(p[1])
		switch {
		case !ok || !known || !sound:
		case !finite:
			broken++
		default:
			with, without = append(with, a), append(without, b)
		}
	}
	if broken > 0 {
		return found(yes, name, "%s: the loss is NaN or infinite at the end of %d runs, and finite in %s", name, broken,
			other)
	}
	if len(with) == 0 {
		return evidence{answer: unclear}
	}
	text := fmt.Sprintf("%s against %s: the loss of training ends at %.4g against %.4g", name, other, stats.Median(with),
		stats.Median(without))
	if slices.Min(with) == slices.Max(with) && slices.Min(without) == slices.Max(without) && len(with) > 1 {
		text += fmt.Sprintf(", bit for bit the same in %d runs, so that it counts once", len(with))
	}
	return evidence{answer: unclear, text: text}
}
