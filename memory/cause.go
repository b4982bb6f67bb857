package memory

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"steadyfit/internal/stats"
)

// Cause is the source of growth, as far as the sampled layers show it.
type Cause string

// The causes, in the order in which they are checked. The first one that fits is the closest to
// what a program can change.
const (
	// GCLag: unreachable native objects wait for the garbage collector, which does not know
	// their size.
	GCLag Cause = "garbage collection lag"
	// Unreleased: native objects are created and not released.
	Unreleased Cause = "unreleased objects"
	// HostHistory: the Go heap grows, so the program retains objects.
	HostHistory Cause = "host history"
	// RuntimeCache: TensorFlow's allocators hold more while the number of objects is constant,
	// so a cache or the graph grows.
	RuntimeCache Cause = "runtime cache or graph"
	// NativeHeap: malloc has allocated more, and no other layer shows for whom.
	NativeHeap Cause = "native heap"
	// GoRuntime: the Go runtime holds more than live objects need: uncollected garbage, stacks,
	// fragmentation, memory that is not yet returned.
	GoRuntime Cause = "go runtime"
	// Retention: resident memory grows while malloc in use is flat, so freed memory is
	// retained. [Verdict.Trimmed] proves it.
	Retention Cause = "retention"
	// Files: pages of files became resident.
	Files Cause = "file pages"
	// Unattributed: no sampled layer grows with the judged one.
	Unattributed Cause = "unattributed"
)

const (
	// carries is the least part of the growth that a carrier must have.
	carries = 0.5
	// flatShare is the largest part of the growth that a flat layer may have.
	flatShare = 0.25
)

// Trend is the slope of one layer in the judged part, in the unit of the layer.
type Trend struct {
	Layer Layer    `json:"layer"`
	Slope Interval `json:"slope"`
	// Share is the growth of this layer as a part of the growth of the judged layer; 0 for
	// layers that are not bytes.
	Share float64 `json:"share"`
}

// attribute fills in the trends of all layers and finds the layer that carries the growth.
// Growth is the slope if the series leaks or may leak, and the rise if it jumped or levelled
// off.
func (s *Series) attribute(v *Verdict, c Criteria) {
	if v.NoiseFloor == 0 {
		return // no slope was estimated
	}
	byRise := v.Kind == Jump || v.Kind == Plateau
	growth := v.Slope.Estimate
	if byRise {
		growth = float64(v.Level - v.Start)
	}
	a := attribution{verdict: v, byRise: byRise, trends: map[Layer]Trend{}}
	for _, layer := range s.layers {
		x, y := s.points(layer, c.Per)
		from, _ := slices.BinarySearch(x, v.From)
		if len(y)-from < fewTail {
			continue
		}
		trend := Trend{Layer: layer, Slope: v.Slope}
		if layer != v.Layer {
			trend.Slope = slopeOf(x[from:], y[from:], c)
		}
		change := trend.Slope.Estimate
		if byRise {
			change = stats.Median(y[from:]) - y[0]
		}
		if layer.unit() == inBytes && growth != 0 {
			trend.Share = change / growth
		}
		v.Trends = append(v.Trends, trend)
		a.trends[layer] = trend
	}
	if growth > 0 && (v.Kind == Leak || byRise || v.Kind == Inconclusive && v.Slope.Low > 0) {
		a.find()
	}
	if v.Kind == Flat || v.Kind == Plateau || v.Kind == Jump {
		a.hidden()
	}
}

// slopeOf estimates the slope of a layer. Constant layers, which are most of them, cost
// nothing.
func slopeOf(x, y []float64, c Criteria) Interval {
	step := quantum(y)
	if step == 0 {
		return Interval{}
	}
	t := estimate(x, y, step, c.Confidence, c.Seed)
	half := t.half + step/(x[len(x)-1]-x[0])
	return Interval{t.slope, t.slope - half, t.slope + half}
}

type attribution struct {
	verdict *Verdict
	trends  map[Layer]Trend
	byRise  bool
}

// hidden finds objects that fill memory that is already held. If their growth would itself be a
// leak, the verdict becomes inconclusive.
func (a attribution) hidden() {
	v := a.verdict
	for _, layer := range []Layer{LiveBytes, WaitingBytes, LiveCount} {
		t, ok := a.trends[layer]
		if !ok || t.Slope.Low <= 0 || v.Layer.Whole() == layer {
			continue
		}
		amount := Rate(layer, t.Slope, v.Per, true)
		if span := v.To - v.From; layer.unit() == inBytes && t.Slope.Low > float64(v.Budget) && t.Slope.Low*span > float64(MiB) {
			v.Kind, v.More = Inconclusive, whole(v.Per, span)
			v.Reason = fmt.Sprintf("it stands still, but %s grows by %s, inside of memory that is held already", layer, amount)
			return
		}
		v.Notes = append(v.Notes, fmt.Sprintf("%s grows all the same, by %s, inside of memory that is held already", layer, amount))
		return
	}
}

// up returns the layer, or the part of a layer, that carries most of the growth. Counts carry
// it if they certainly grow.
func (a attribution) up(whole Layer) (Layer, bool) {
	var best Trend
	for layer, t := range a.trends {
		if layer.Whole() != whole || !a.byRise && t.Slope.Low <= 0 {
			continue
		}
		if layer.unit() == inBytes && t.Share < carries || layer.unit() != inBytes && a.byRise {
			continue
		}
		if best.Layer == "" || t.Share > best.Share || t.Share == best.Share && layer < best.Layer {
			best = t
		}
	}
	return best.Layer, best.Layer != ""
}

func (a attribution) find() {
	v := a.verdict
	// Growth of the Go heap may be garbage. It counts as retained only if live objects are
	// unknown.
	live := GoLive
	if _, ok := a.trends[GoLive]; !ok {
		live = GoHeap
	}
	for _, rule := range []struct {
		layer Layer
		cause Cause
	}{
		{WaitingBytes, GCLag}, {WaitingCount, GCLag}, {CleanupCount, GCLag},
		{LiveBytes, Unreleased},
		{live, HostHistory},
		{LiveCount, Unreleased},
		{TFUsed, RuntimeCache},
		{MallocUsed, NativeHeap},
		{GoHeap, GoRuntime}, {GoTotal, GoRuntime},
	} {
		if carrier, ok := a.up(rule.layer); ok {
			v.Cause, v.Carrier = rule.cause, carrier
			break
		}
	}
	used, known := a.trends[MallocUsed]
	switch {
	case v.Carrier.Whole() == GoHeap && v.Cause == GoRuntime && v.Kind == Leak:
		// If it is garbage, the growth ends at the next collection.
		v.Kind, v.More = Inconclusive, whole(v.Per, v.To-v.From)
		v.Reason = "the Go heap grows, but not what was live after a collection: garbage that waits for the next one, or too few collections to tell"
	case v.Cause != "":
	case known && math.Abs(used.Share) < flatShare:
		v.Cause, v.Carrier = Retention, v.Layer
		for _, layer := range []Layer{MallocFree, MallocArenas} {
			if carrier, ok := a.up(layer); ok {
				v.Carrier = carrier
				break
			}
		}
	default:
		v.Cause = Unattributed
		if carrier, ok := a.up(File); ok && v.Layer == RSS {
			v.Cause, v.Carrier = Files, carrier
		}
	}
	a.notes()
}

// notes adds notes for questions that the verdict raises.
func (a attribution) notes() {
	v := a.verdict
	if v.Cause == Unattributed {
		var missing []string
		for _, layer := range []Layer{GoHeap, MallocUsed, LiveBytes} {
			if _, ok := a.trends[layer]; !ok {
				missing = append(missing, string(layer))
			}
		}
		note := "no sampled layer grows along"
		if len(missing) > 0 {
			note += "; not sampled: " + strings.Join(missing, ", ")
		}
		v.Notes = append(v.Notes, note)
	}
	if a.byRise {
		return
	}
	_, counted := a.trends[LiveCount] // with a count, objects would be the cause
	if t, ok := a.trends[GCCycles]; ok && !counted && t.Slope == (Interval{}) && (v.Cause == NativeHeap || v.Cause == Unattributed || v.Cause == RuntimeCache) {
		v.Notes = append(v.Notes, "no garbage collection ran in the judged part: native objects that are left to it were not released")
	}
	if t, ok := a.trends[Threads]; ok && t.Slope.Low > 0 {
		v.Notes = append(v.Notes, "the number of threads grows, and each has a stack")
	}
}

// retained judges the memory without malloc's free memory, if that is sampled. glibc's malloc
// fragments: under TensorFlow without oneDNN its free memory varies by tens of MiB from step to
// step, and rises for hundreds of steps although the program holds nothing more.
//
// An inconclusive verdict is replaced by the verdict on the rest in two cases: both the whole
// and the rest grow, or the whole may not grow and malloc hands out no more. malloc counts
// address space as free, and after a trim not all of it is resident.
func (s *Series) retained(v Verdict, c Criteria) Verdict {
	if v.Layer != Anon && v.Layer != RSS || v.NoiseFloor == 0 {
		return v
	}
	x, y := s.points(v.Layer, c.Per)
	freeAt, free := s.points(MallocFree, c.Per)
	usedAt, used := s.points(MallocUsed, c.Per)
	if !slices.Equal(x, freeAt) || !slices.Equal(x, usedAt) {
		return v
	}
	for i := range y {
		y[i] -= free[i]
	}
	w := judge(x, y, c)
	from, _ := slices.BinarySearch(x, v.From)
	handedOut := slopeOf(x[from:], used[from:], c)
	if handedOut.High <= v.tolerated() {
		v.Net = &w.Slope
	}
	grows := v.Slope.Low > float64(c.Budget)
	switch {
	case v.Kind != Inconclusive:
		return v
	case grows && w.Kind == Leak && handedOut.Low > float64(c.Budget):
	case !grows && v.Net != nil && (w.Kind == Flat || w.Kind == Plateau || w.Kind == Jump):
	default:
		return v
	}
	w.Net = v.Net
	w.Notes = append(w.Notes, fmt.Sprintf("what malloc holds free was left out; with it, the slope is %s", Rate(v.Layer, v.Slope, v.Per, true)))
	return w
}

// tolerated is the slope that counts as no growth: the budget, or 1 MiB in the judged part.
func (v Verdict) tolerated() float64 {
	if v.Budget > 0 || v.To <= v.From {
		return float64(v.Budget)
	}
	return float64(MiB) / (v.To - v.From)
}

// Kept is the part of a growth, above Start, that remained when the program had closed
// everything, and after a trim of the allocator. It is negative if more was released than had
// grown, since closing also frees memory from before the start. So it is a lower bound.
type Kept struct {
	Closed  Bytes `json:"closed"`
	Trimmed Bytes `json:"trimmed"`
}

// Trimmed adds the field Kept and a note to a verdict: what remained of the growth. It takes
// one sample from after all sessions and tensors were closed, and one from after the allocator
// was then trimmed. It does not change verdicts without growth, or with samples without the
// judged layer.
//
// If half of the growth or more remained after closing, and the trim returned as much, freed
// memory was retained: the cause becomes Retention if none was known. If the trim returned
// less, the rest is in pools that a trim does not reach, or was not released.
func (v Verdict) Trimmed(closed, trimmed *Sample) Verdict {
	a, b := closed.Get(v.Layer), trimmed.Get(v.Layer)
	rose := v.Kind == Leak || v.Kind == Jump || v.Kind == Plateau || v.Kind == Inconclusive && v.Slope.Low > 0
	if !a.OK || !b.OK || !rose || v.Level <= v.Start {
		return v
	}
	growth, left, back := float64(v.Level-v.Start), float64(a.Bytes-v.Start), float64(a.Bytes-b.Bytes)
	v.Kept = &Kept{Closed: a.Bytes - v.Start, Trimmed: b.Bytes - v.Start}
	amount := v.Layer.amount
	var note string
	switch {
	case left < growth*carries:
		note = fmt.Sprintf("closing everything gave back most of %s grown: %s was left above the start", amount(growth), amount(max(left, 0)))
	case back >= growth*carries:
		if v.Cause == "" || v.Cause == Unattributed || v.Cause == Retention {
			v.Cause, v.Carrier = Retention, cmp.Or(v.Carrier, v.Layer)
		}
		note = fmt.Sprintf("closing everything left %s of %s grown, and a trim gave %s back: freed memory was kept", amount(left), amount(growth), amount(back))
	default:
		note = fmt.Sprintf("closing everything left %s of %s grown, and a trim gave back only %s: it sits in pools that a trim does not reach, or was not released",
			amount(left), amount(growth), amount(max(back, 0)))
	}
	v.Notes = append(slices.Clone(v.Notes), note)
	return v
}
