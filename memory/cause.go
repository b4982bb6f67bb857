package memory

import (
	"fmt"
	"math"
	"slices"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
)

const (
	// carries is the minimum share of the growth with which a layer counts as its carrier.
	carries = 0.5
	// flatShare is the maximum share of the growth for a layer that counts as flat.
	flatShare = 0.25
)

// Trend is the slope of one layer in the judged part of a series.
type Trend struct {
	Layer Layer    `json:"layer"`
	Slope Interval `json:"slope"`
	// Share is this layer's growth divided by the judged layer's growth; 0 for counts and times.
	Share float64 `json:"share"`
}

// attribute estimates the trends of all layers and finds the carrier and cause of the growth. The
// growth is the slope for a leak or possible leak, and the rise for a jump or plateau.
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
		x, y := s.points(layer, c.PerMinute)
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
		if memlayer.InBytes(layer) && growth != 0 {
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

// slopeOf estimates the slope of a layer. Most layers are constant and need no estimate.
func slopeOf(x, y []float64, c Criteria) Interval {
	step := quantum(y)
	if step == 0 {
		return Interval{}
	}
	t := estimate(x, y, step, c.Seed)
	half := t.half + step/(x[len(x)-1]-x[0])
	return Interval{t.slope, t.slope - half, t.slope + half}
}

type attribution struct {
	verdict *Verdict
	trends  map[Layer]Trend
	byRise  bool
}

// hidden finds objects and heaps that grow inside memory that the process already holds. If their
// growth alone would be a leak, the verdict becomes inconclusive. A heap varies more than its
// objects, so the growth of a heap must also exceed 1% of the level. A level that grows by less
// counts as flat.
func (a attribution) hidden() {
	v := a.verdict
	for _, layer := range []Layer{memlayer.LiveBytes, MallocUsed, memlayer.GoLive} {
		t, ok := a.trends[layer]
		heap := layer == MallocUsed || layer == memlayer.GoLive
		if !ok || t.Slope.Low <= 0 || v.Layer == layer || heap && v.Layer != Anon && v.Layer != RSS {
			continue
		}
		least := float64(MiB)
		if heap {
			least = max(least, 0.01*float64(v.Level))
		}
		if span := v.To - v.From; t.Slope.Low > float64(v.Budget) && t.Slope.Low*span > least {
			v.Kind, v.More = Inconclusive, whole(v.Per == memlayer.PerMinute, span)
			v.Reason = fmt.Sprintf("the level is constant, but %s grows by %s inside memory that is already held", layer,
				memlayer.Rate(layer, v.Per, t.Slope.Estimate, t.Slope.Low, t.Slope.High))
			return
		}
	}
}

// up reports whether a layer has most of the growth. A layer that is a count qualifies if it certainly grows.
func (a attribution) up(layer Layer) bool {
	t := a.trends[layer]
	if memlayer.InBytes(layer) {
		return t.Share >= carries && (a.byRise || t.Slope.Low > 0)
	}
	return !a.byRise && t.Slope.Low > 0
}

func (a attribution) find() {
	v := a.verdict
	// Growth of the Go heap may be garbage, so the live heap decides if it was sampled.
	live := Layer(memlayer.GoLive)
	if _, ok := a.trends[memlayer.GoLive]; !ok {
		live = memlayer.GoHeap
	}
	for _, rule := range []struct {
		layer Layer
		cause string
	}{
		{memlayer.CleanupCount, memlayer.GCLag},
		{memlayer.LiveBytes, memlayer.Unreleased},
		{live, memlayer.HostHistory},
		{memlayer.LiveCount, memlayer.Unreleased},
		{memlayer.GraphOperations, memlayer.RuntimeCache}, {memlayer.Executors, memlayer.RuntimeCache},
		{MallocUsed, memlayer.NativeHeap},
		{memlayer.GoHeap, memlayer.GoRuntime}, {memlayer.GoTotal, memlayer.GoRuntime},
	} {
		if a.up(rule.layer) {
			v.Cause, v.Carrier = rule.cause, rule.layer
			break
		}
	}
	used, known := a.trends[MallocUsed]
	switch {
	case v.Carrier == memlayer.GoHeap && v.Cause == memlayer.GoRuntime && v.Kind == Leak:
		// Growth by garbage ends at the next collection.
		v.Kind, v.More = Inconclusive, whole(v.Per == memlayer.PerMinute, v.To-v.From)
		v.Reason = "the Go heap grows, but its live part does not: the growth is garbage, or there were too few " +
			"collections to decide"
	case v.Cause != "":
	case known && math.Abs(used.Share) < flatShare:
		v.Cause, v.Carrier = memlayer.Retention, v.Layer
		for _, layer := range []Layer{MallocFree, memlayer.MallocArenas} {
			if a.up(layer) {
				v.Carrier = layer
				break
			}
		}
	default:
		v.Cause = memlayer.Unattributed
		if v.Layer == RSS && a.up(memlayer.File) {
			v.Cause, v.Carrier = memlayer.Files, memlayer.File
		}
	}
}

// retained judges the series without malloc's free memory, if that was sampled. glibc's malloc
// fragments: under TensorFlow without oneDNN, its free memory varies by tens of MiB per step and rises
// for hundreds of steps although the program holds nothing more.
//
// The new verdict replaces an inconclusive one in two cases. In the first, both series and malloc
// in use grow. In the second, the whole series may be flat, and neither the series without free
// memory nor malloc in use grows. Malloc in use is checked because part of the free memory is not
// resident after a trim.
func (s *Series) retained(v Verdict, c Criteria) Verdict {
	if v.Layer != Anon && v.Layer != RSS || v.NoiseFloor == 0 {
		return v
	}
	x, y := s.points(v.Layer, c.PerMinute)
	freeAt, free := s.points(MallocFree, c.PerMinute)
	usedAt, used := s.points(MallocUsed, c.PerMinute)
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
	w.Notes = append(w.Notes, fmt.Sprintf("malloc's free memory is excluded; including it, the slope is %s",
		memlayer.Rate(v.Layer, v.Per, v.Slope.Estimate, v.Slope.Low, v.Slope.High)))
	return w
}

// tolerated returns the slope that counts as no growth: the budget, or 1 MiB over the judged part.
func (v Verdict) tolerated() float64 {
	if v.Budget > 0 || v.To <= v.From {
		return float64(v.Budget)
	}
	return float64(MiB) / (v.To - v.From)
}
