package watch

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

const (
	unknown = "not known"
	fills   = "a pool or a cache fills up"

	keptByMalloc = "memory that malloc keeps"
	keptInPython = "objects kept in Python"
)

// rule is a cause that a count reveals.
type rule struct {
	count memory.Layer
	cause string
	// one and many name what is counted.
	one, many string
	// least is the memory that one of them takes at least. If the growth for each is less, something else grows.
	least memory.Bytes
	// most is the memory that one of them takes at most; 0 means any.
	most memory.Bytes
	// change is what to do.
	change string
}

// rules are in the order in which they are tried: a model that is made again also makes functions, and traces them.
var rules = []rule{
	{"model count", "models built again", "model", "models", 16 * memory.KiB, 0,
		"Build and compile the model once, before the loop. To begin again with other weights, use model.set_weights. If a " +
			"loop needs new models, train each in a process of its own; keras.backend.clear_session() and gc.collect() return " +
			"only a part."},
	{"dataset of a generator count", "pipelines made again", "dataset of a generator", "datasets of generators",
		memory.KiB, 0,
		"Make the dataset or the keras.utils.PyDataset once, before the loop: TensorFlow keeps each generator."},
	{"function count", "functions made again", "tf.function", "tf.functions", 4 * memory.KiB, 0,
		"Define the tf.function once, outside the loop, and call it with tensors. Compile a model once. model.predict " +
			"makes functions for the pipeline of each array: in a loop, call model.predict_on_batch with inputs of equal " +
			"shapes."},
	{"retrace count", "retracing", "trace", "traces", 2 * memory.KiB, 0,
		"Pass tensors instead of Python numbers, as in tf.constant(step), and pad inputs to equal shapes, or use " +
			"@tf.function(reduce_retracing=True) or an input_signature with None for sizes that vary."},
	{"compiled shape count", "XLA compiles each shape", "compiled shape", "compiled shapes", 4 * memory.KiB, 0,
		"Pad inputs to a few shapes, or leave out jit_compile for this function."},
	{"graph operation count", "operations added to a graph", "operation", "operations", 64, 0,
		"Build all operations before the loop and only run them in it. tf.Graph.finalize() turns the mistake into an error."},
	{"optimizer count", "optimizers made again", "optimizer", "optimizers", 4 * memory.KiB, 0,
		"Make the optimizer once, before the loop."},
	{"dataset count", "pipelines made again", "tf.data.Dataset", "tf.data.Datasets", memory.KiB, 0,
		"Make the dataset once, before the loop. Each pass may have an iterator of its own."},
	{"eager py_function count", "tf.py_function outside of a tf.function", "call", "calls",
		4 * memory.KiB, 128 * memory.KiB,
		"Call tf.numpy_function, or call tf.py_function in a tf.function: TensorFlow keeps a kernel for each call outside."},
	{"thread count", "threads left", "thread", "threads", 4 * memory.KiB, 16 * memory.MiB,
		"End and join the threads, or use one pool."},
	{"process count", "child processes left", "process", "processes", 64 * memory.KiB, 0,
		"Wait for the child processes, or use one pool of them."},
	{memlayer.Goroutines, "goroutines left", "goroutine", "goroutines", memory.KiB, memory.MiB,
		"End the goroutines: cancel their context, or close the channel that they read."},
	{"uncollected object count", "cycles that nobody collects", "object", "objects", 32, 4 * memory.KiB,
		"The garbage collector of Python is disabled. Enable it, or call gc.collect() after each epoch."},
}

// trend returns the slope of a layer in the judged part. It is zero for a layer that was not sampled.
func trend(v memory.Verdict, layer memory.Layer) (slope memory.Interval, sampled bool) {
	for _, t := range v.Trends {
		if t.Layer == layer {
			return t.Slope, true
		}
	}
	return memory.Interval{}, false
}

// counted looks for a count that grows with the memory.
func (r *recorder) counted(out *Report, v memory.Verdict) bool {
	for _, rule := range rules {
		rate, sampled := trend(v, rule.count)
		if !sampled || rate.Low <= 0 || rate.Estimate*(v.To-v.From) < leastEvents {
			if sampled {
				out.exclude("%s: the number of %s does not grow", rule.cause, rule.many)
			}
			continue
		}
		each := v.Slope.Estimate / rate.Estimate
		if each < float64(rule.least) || rule.most > 0 && each > float64(rule.most) {
			out.exclude("%s: %v for each %s does not agree", rule.cause, memory.Bytes(each), rule.one)
			continue
		}
		if apart(out, v, rule.count) {
			out.exclude("%s: the memory grows as much between them", rule.cause)
			continue
		}
		place, name, detail := r.place(strings.TrimSuffix(string(rule.count), " count"))
		evidence := fmt.Sprintf("%s, %v for each", rule.often(rate.Estimate, out.Unit), memory.Bytes(each))
		if name != "" {
			evidence += "; " + name
		}
		if detail != "" {
			evidence += ": " + detail
		}
		out.Cause, out.Why = rule.cause, &Cause{Evidence: evidence, Place: place, Change: rule.change}
		return true
	}
	return false
}

// apart reports whether the memory grows between the events of a count as much as with them. Counts of the probe are
// those of the last mark, so it does not tell by time.
func apart(r *Report, v memory.Verdict, count memory.Layer) bool {
	const part, asMuch = 0.25, 0.7
	if r.kind == byTime {
		return false
	}
	samples := r.series.Samples()
	var grown, width float64
	for i, s := range samples[1:] {
		before, at := samples[i], position(r.kind, s, samples[0])
		if from := position(r.kind, before, samples[0]); from >= v.From && before.Get(count) == s.Get(count) {
			grown += float64(s.Get(Total).Bytes - before.Get(Total).Bytes)
			width += at - from
		}
	}
	ratio := grown / max(v.Slope.Estimate*width, 1e-9)
	return width > part*(v.To-v.From) && ratio > asMuch && ratio < 1/asMuch
}

// often says how often something happens.
func (r rule) often(rate float64, unit string) string {
	switch {
	case rate < 0.5:
		return fmt.Sprintf("1 %s in %.0f %ss", r.one, 1/rate, unit)
	case rate < 1.005:
		return fmt.Sprintf("%.3g %s per %s", rate, r.one, unit)
	}
	return fmt.Sprintf("%.3g %s per %s", rate, r.many, unit)
}

// attribute names the part of the memory that grows, if no count explains it.
func attribute(v memory.Verdict, unit string) (cause string, why *Cause) {
	slope := v.Slope.Estimate
	switch blocks, _ := trend(v, "python block count"); {
	case v.Cause == memlayer.HostHistory:
		return "objects kept in Go", &Cause{Evidence: "the live heap of Go grows with the memory",
			Change: "Compare two heap profiles of the running program: go tool pprof -diff_base first.pb.gz second.pb.gz"}
	case blocks.Low*blockSize > agreesFrom*slope:
		return keptInPython, &Cause{Share: min(blocks.Estimate*blockSize/slope, 1), Evidence: fmt.Sprintf(
			"%.3g more blocks of Python's allocator per %s; no container that was found explains them", blocks.Estimate, unit)}
	case retained(v):
		return keptByMalloc, &Cause{Evidence: "malloc's free memory rises, and its memory in use does not",
			Change: "Run the program with jemalloc (LD_PRELOAD), or with MALLOC_ARENA_MAX=2."}
	}
	return unknown, &Cause{Evidence: "no count that watch knows explains the growth"}
}

// retained reports whether the free memory that malloc keeps grows, and not the memory in use.
func retained(v memory.Verdict) bool {
	free, _ := trend(v, memory.MallocFree)
	return v.Cause == memlayer.Retention && free.Low > 0
}

// exclude adds a cause that does not explain the growth.
func (r *Report) exclude(format string, args ...any) {
	r.Excluded = append(r.Excluded, fmt.Sprintf(format, args...))
}

const (
	// slightGrowth is the part of the memory up to which growth needs an explanation to be a leak.
	slightGrowth = 0.05
	// leastEvents is how often something must have happened in the judged part to be a cause.
	leastEvents = 4
	// blockSize is the mean size of a block of Python's allocator in programs that keep objects.
	blockSize = 80
)

// seen is what a message says about a container, and when.
type seen struct {
	container
	at     time.Time
	search int // the number of the search
}

// containerKey tells containers apart, since their IDs are reused.
type containerKey struct {
	of   *peer
	id   int64
	name string
}

// follow remembers the last message about a container.
func (r *recorder) follow(c container, p *peer) {
	r.containers[containerKey{p, c.ID, c.Name}] = seen{c, time.Now(), p.searches}
}

// span returns the steps or minutes in which a container has grown.
func (r *recorder) span(c seen, kind string) float64 {
	first := c.at.Add(-time.Duration(c.Seconds * float64(time.Second)))
	if kind == byTime {
		return c.at.Sub(first).Minutes()
	}
	samples := r.series[kind].Samples()
	return stepAt(samples, c.at) - stepAt(samples, first)
}

// stepAt returns the step at a time. The steps between two samples take equal times.
func stepAt(samples []memory.Sample, at time.Time) float64 {
	i := slices.IndexFunc(samples, func(s memory.Sample) bool { return s.At.After(at) })
	switch i {
	case 0:
		return float64(samples[0].Step)
	case -1:
		return float64(samples[len(samples)-1].Step)
	}
	from, to := samples[i-1], samples[i]
	part := float64(at.Sub(from.At)) / float64(to.At.Sub(from.At))
	return float64(from.Step) + part*float64(to.Step-from.Step)
}

// part is a container that explains a part of the growth.
type part struct {
	container
	perStep, share float64
}

// kept looks for a container whose growth explains the growth of the memory, or for several that do together. own means
// the containers of the program's own variables.
func (r *recorder) kept(out *Report, slope float64, own bool) bool {
	var agree, small []part
	for key, last := range r.containers {
		span := r.span(last, out.kind)
		stays := key.of == r.main && len(r.main.Steps) > 0
		gone := key.of.ended && !stays && r.last.Sub(key.of.endedAt) > time.Second
		if span <= 0 || last.Own != own || gone || last.search < key.of.searches-1 { // it does not grow any more
			continue
		}
		elements := float64(last.Length-last.First) / span
		p := part{last.container, elements, elements * last.Bytes / slope}
		switch {
		case p.share > agreesTo, !own && p.share < agreesFrom && !p.ofGraph():
			out.exclude("%s grows, but %.2g times as much as the memory", last.named(), p.share)
		case p.share < agreesFrom && !p.ofGraph():
			small = append(small, p)
		default:
			agree = append(agree, p)
		}
	}
	together := 0.0
	for _, p := range small {
		together += p.share
	}
	switch {
	case len(agree) > 0:
		out.name(slices.MinFunc(agree, func(a, b part) int {
			return cmp.Compare(math.Abs(math.Log(a.share)), math.Abs(math.Log(b.share)))
		}))
		return true
	case together >= agreesFrom:
		slices.SortFunc(small, func(a, b part) int { return cmp.Compare(b.share, a.share) })
		out.name(small[0])
		out.Why.Share = min(together, 1)
		var others []string
		for _, p := range small[1:] {
			others = append(others, p.named())
		}
		out.Why.Evidence += fmt.Sprintf("; together with %s it explains the growth", texts.Some(others))
		return true
	}
	for _, p := range small {
		out.suspect(p)
	}
	return false
}

// name makes a container the cause.
func (r *Report) name(p part) {
	what := "objects"
	switch {
	case p.Type == "graph":
		what = "operations"
	case strings.Contains(p.Holds, "Tensor"):
		what = "tensors"
	case strings.Contains(p.Holds, "ndarray"):
		what = "arrays"
	}
	r.Cause = fmt.Sprintf("%s kept in a %s in Python", what, p.Type)
	r.Why = &Cause{Share: min(p.share, 1), Variable: p.Name, container: true,
		Evidence: fmt.Sprintf("%s has %d elements, %.3g more per %s; each is a %s of about %v", p.named(), p.Length,
			p.perStep, r.Unit, p.Holds, memory.Bytes(p.Bytes)),
		Change: "Keep only what is needed later, such as float(loss) instead of a tensor, and drop or write out the rest."}
	if p.File != "" {
		r.Why.Place = placeText(p.File, p.Line)
	}
}

// suspect notes a container of the program that grows, and whose elements may hold more than is seen.
func (r *Report) suspect(p part) {
	note := fmt.Sprintf("%s grows, too, by %.3g elements per %s, which may hold more memory than is seen", p.named(),
		p.perStep, r.Unit)
	if p.File != "" {
		note += ": " + placeText(p.File, p.Line)
	}
	r.suspects = append(r.suspects, strings.ToUpper(note[:1])+note[1:]+".")
}

// The ratio of a container's growth and the memory's in which both agree. Sizes of elements are estimates.
const (
	agreesFrom = 0.3
	agreesTo   = 3
)

// ofGraph reports whether the elements are tensors with the graphs that they hold, whose size is not known.
func (p part) ofGraph() bool { return strings.HasSuffix(p.Holds, "its graph") }

func (c container) named() string {
	if c.Name == "" {
		return "a " + c.Type
	}
	if strings.Contains(c.Name, " ") {
		return fmt.Sprintf("the %s in %s", c.Type, c.Name)
	}
	return fmt.Sprintf("the %s %s", c.Type, c.Name)
}

// place returns where most of what is counted happens, with its name and details.
func (r *recorder) place(what string) (where, name, detail string) {
	if r.main == nil {
		return "", "", ""
	}
	var of []place
	for _, p := range r.main.Places {
		if p.What == what {
			of = append(of, p)
		}
	}
	if len(of) == 0 {
		return "", "", ""
	}
	most := slices.MaxFunc(of, func(a, b place) int { return cmp.Compare(a.Count, b.Count) })
	return placeText(most.File, most.Line), most.Name, most.Detail
}

func placeText(file string, line int) string {
	if folder, err := os.Getwd(); err == nil {
		file = strings.TrimPrefix(file, folder+"/")
	}
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// note adds what limits the answer.
func (r *recorder) note(out *Report, kind string) {
	switch {
	case r.attached:
		out.Notes = append(out.Notes, "The process ran already, so time counts instead of steps, and causes inside "+
			"it are not known.")
	case r.main == nil && kind == byTime && len(r.peers) == 0:
		out.Notes = append(out.Notes, "No process has a probe, so time counts instead of steps, and causes inside the "+
			"program are not known. A Python program needs Python 3.9 or newer without -I, -E and -S, and the variables of "+
			"its environment; a Go program needs memory.Mark.")
	case r.lost:
		out.Notes = append(out.Notes, "The program has closed the connection of the probe, so time counts instead of steps.")
	case kind == byTime && len(r.steps) > 0:
		out.Notes = append(out.Notes, "Too few steps have a sample, so time counts instead.")
	case kind == byTime:
		out.Notes = append(out.Notes, "No steps were seen, so time counts instead.",
			"steadyfit watch --mark REGEXP counts matching lines of the output as steps.")
	}
	r.noteCause(out)
	if len(r.before) > 0 {
		out.Notes = append(out.Notes, "The steps are those of several processes, one after the other.")
	}
	for _, p := range r.peers {
		if p != r.main && marks(p) > 0 && len(r.before) == 0 {
			out.Notes = append(out.Notes, fmt.Sprintf("Process %d has steps, too; the counts are those of process %d.", p.pid,
				r.main.pid))
			break
		}
	}
	if out.Verdict == Undecided {
		out.Notes = append(out.Notes, "Let the program run longer.")
	}
}

// noteCause adds what limits the search for a cause.
func (r *recorder) noteCause(out *Report) {
	searched := func(p *peer) bool { return p.searches > 0 }
	if python, _ := r.injected(); python && out.Cause == unknown && !slices.ContainsFunc(r.peers, searched) {
		out.Notes = append(out.Notes, "Containers of Python were not looked for: the program ended too early, handles "+
			"SIGURG, or its main thread waited in calls that a signal may end. Python's tracemalloc finds the lines that "+
			"allocate.")
	}
	if r.main != nil && len(r.main.Missed) > 0 {
		out.Notes = append(out.Notes, "The probe could not follow all of the program: "+texts.Some(r.main.Missed))
	}
	if out.Cause == keptInPython || out.Cause == keptByMalloc || out.Cause == unknown {
		out.Notes = append(out.Notes, out.suspects[:min(len(out.suspects), 3)]...)
	}
}
