package watch

import (
	"cmp"
	"fmt"
	"maps"
	"math"
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
		"Define the tf.function once, outside the loop, and call it with tensors. Compile a model once."},
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

// explain looks for the cause of a growth.
func (r *recorder) explain(out *Report, kind string, v memory.Verdict) {
	rise, slight := v.Level-v.Start, slightGrowth*float64(v.Level)/max(v.To-v.From, 1e-9)
	switch {
	case out.Verdict == Undecided && v.Slope.Low > float64(v.Budget) && r.kept(out, kind, v.Slope.Estimate, true):
		// The curve alone does not tell a container that grows from a pool that fills up.
		out.Verdict, out.Layers[0].Verdict = Leak, Leak
	case out.Verdict == Undecided && v.NoiseFloor > 0 && v.Slope.High < slight:
		out.slight(v)
	case out.Verdict == Leak:
		if r.kept(out, kind, v.Slope.Estimate, true) {
			return
		}
		if v.Slope.Estimate < slight {
			out.slight(v)
			return
		}
		if !r.counted(out, v) && !r.kept(out, kind, v.Slope.Estimate, false) {
			attribute(out, v)
		}
	case (v.Kind == memory.Plateau || v.Kind == memory.Jump) && rise > max(8*memory.MiB, v.Start/20) &&
		(kind != byTime || v.From > leastMinutes):
		out.Cause = fills
		out.Why = &Cause{Evidence: fmt.Sprintf("the memory rose by %v until %s %.0f, and is level at %v since then", rise,
			out.Unit, v.From, v.Level)}
	}
}

// slight makes the verdict level although the memory may have grown a little.
func (r *Report) slight(v memory.Verdict) {
	r.Verdict = Level
	grown := memory.Bytes(v.Slope.Estimate * (v.To - v.From))
	if grown < memory.MiB {
		return
	}
	r.Notes = append(r.Notes, fmt.Sprintf("The memory grew by %v in the judged part, and no container of the program "+
		"explains it. Growth as slight is usual at first; a longer run would show a leak.",
		grown))
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
				out.exclude("%s: no more %s with time", rule.cause, rule.many)
			}
			continue
		}
		each := v.Slope.Estimate / rate.Estimate
		if each < float64(rule.least) || rule.most > 0 && each > float64(rule.most) {
			out.exclude("%s: %v for each %s does not agree", rule.cause, memory.Bytes(each), rule.one)
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
func attribute(out *Report, v memory.Verdict) {
	slope := v.Slope.Estimate
	switch blocks, _ := trend(v, "python block count"); {
	case v.Cause == memlayer.HostHistory:
		out.Cause = "objects kept in Go"
		out.Why = &Cause{Evidence: "the live heap of Go grows with the memory",
			Change: "Compare two heap profiles of the running program: go tool pprof -diff_base first.pb.gz second.pb.gz"}
	case blocks.Low*blockSize > agreesFrom*slope:
		out.Cause = keptInPython
		out.Why = &Cause{Share: min(blocks.Estimate*blockSize/slope, 1), Evidence: fmt.Sprintf(
			"%.3g more blocks of Python's allocator per %s; no container that was found explains them",
			blocks.Estimate, out.Unit)}
	case retained(v):
		out.Cause = keptByMalloc
		out.Why = &Cause{Evidence: "malloc's free memory rises, and its memory in use does not",
			Change: "Run the program with jemalloc (LD_PRELOAD), or with MALLOC_ARENA_MAX=2."}
	default:
		out.Cause = unknown
		out.Why = &Cause{Evidence: "no count that watch knows explains the growth"}
	}
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
	steps  map[string]int
	at     time.Time
	search int
}

// containerKey tells containers apart, since their IDs are reused.
type containerKey struct {
	of   *peer
	id   int64
	name string
}

// follow remembers the first and the last message about a container.
func (r *recorder) follow(c container, p *peer) {
	now := seen{c, maps.Clone(p.Steps), time.Now(), p.searches}
	key := containerKey{p, c.ID, c.Name}
	if r.containers[key] == nil {
		r.containers[key] = &[2]seen{now, now}
	}
	r.containers[key][1] = now
}

// kept looks for a container whose growth explains the growth of the memory. own means the containers of the program's
// own variables.
func (r *recorder) kept(out *Report, kind string, slope float64, own bool) bool {
	best, share, perStep := container{}, 0.0, 0.0
	for key, c := range r.containers {
		first, last := c[0], c[1]
		more, span := last.Length-last.First, float64(last.steps[kind]-last.Steps[kind])
		if kind == byTime {
			more, span = last.Length-first.Length, last.at.Sub(first.at).Minutes()
		}
		if span <= 0 || last.Own != own || last.search < key.of.searches-1 { // it does not grow any more
			continue
		}
		elements := float64(more) / span
		s := elements * last.Bytes / slope
		// The tensors that a graph holds may be of any size.
		atLeast := strings.HasSuffix(last.Holds, "its graph")
		if s < agreesFrom && !atLeast && own {
			out.suspect(last.container, elements)
			continue
		}
		if s < agreesFrom && !atLeast || s > agreesTo {
			out.exclude("%s grows, but %.2g times as much as the memory", last.named(), s)
			continue
		}
		if share == 0 || math.Abs(math.Log(s)) < math.Abs(math.Log(share)) {
			best, share, perStep = last.container, s, elements
		}
	}
	if share == 0 {
		return false
	}
	what := "objects"
	switch {
	case best.Type == "graph":
		what = "operations"
	case strings.Contains(best.Holds, "Tensor"):
		what = "tensors"
	case strings.Contains(best.Holds, "ndarray"):
		what = "arrays"
	}
	out.Cause = fmt.Sprintf("%s kept in a %s in Python", what, best.Type)
	out.Why = &Cause{Share: min(share, 1), Variable: best.Name,
		Evidence: fmt.Sprintf("%s has %d elements, %.3g more per %s; each is a %s of about %v", best.named(), best.Length,
			perStep, out.Unit, best.Holds, memory.Bytes(best.Bytes)),
		Change: "Keep only what is needed later, such as float(loss) instead of a tensor, and drop or write out the rest."}
	if best.File != "" {
		out.Why.Place = placeText(best.File, best.Line)
	}
	return true
}

// suspect notes a container of the program that grows, and whose elements may hold more than is seen.
func (r *Report) suspect(c container, rate float64) {
	note := fmt.Sprintf("%s grows, too, by %.3g elements per %s, which may hold more memory than is seen", c.named(),
		rate, r.Unit)
	if c.File != "" {
		note += ": " + placeText(c.File, c.Line)
	}
	r.suspects = append(r.suspects, strings.ToUpper(note[:1])+note[1:]+".")
}

// The ratio of a container's growth and the memory's in which both agree. Sizes of elements are estimates.
const (
	agreesFrom = 0.3
	agreesTo   = 3
)

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
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// note adds what limits the answer.
func (r *recorder) note(out *Report, kind string) {
	switch {
	case r.main == nil && kind == byTime && len(r.peers) == 0:
		out.Notes = append(out.Notes, "No process has a probe, so time counts instead of steps, and causes inside the "+
			"program are not known. A Python program needs Python 3.9 or newer without -I, -E and -S, and the variables of "+
			"its environment; a Go program needs memory.Mark.")
	case r.lost:
		out.Notes = append(out.Notes, "The program has closed the connection of the probe, so time counts instead of steps.")
	case kind == byTime && len(r.steps) > 0:
		out.Notes = append(out.Notes, "Too few steps have a sample, so time counts instead.")
	case kind == byTime:
		out.Notes = append(out.Notes, "No steps were seen, so time counts instead.")
	}
	if r.main != nil && len(r.main.Missed) > 0 {
		out.Notes = append(out.Notes, "The probe could not follow all of the program: "+texts.Some(r.main.Missed))
	}
	if out.Cause == keptInPython || slices.Contains(unexplained, out.Cause) {
		out.Notes = append(out.Notes, out.suspects[:min(len(out.suspects), 3)]...)
	}
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
