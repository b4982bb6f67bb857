package watch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

const perMinute = "minute"

// The growth that is no leak: what a Keras training without a fault shows in its first thousands of steps, what a
// program adds in a minute, and the part of the memory that it adds in the whole time. A longer run shows smaller
// leaks. The free memory that malloc keeps varies more.
const (
	stepBudget = 2 * memory.KiB
	// MinuteBudget is the growth of a program without steps in a minute that is no leak.
	MinuteBudget   = memory.MiB
	wholeBudget    = 0.02
	retainedBudget = 0.1
)

// leastRetained is the time in which the free memory that malloc keeps may rise, as in the first epochs of a training
// with a shuffle buffer.
const leastRetained = time.Minute

// leastMinutes is the time in which a program without steps may still start.
const leastMinutes = 5

// leastUnexplained is the time in which a program without steps must grow to be a leak that nothing explains, in
// minutes. Arrays that a program fills or reads at its start grow for shorter.
const leastUnexplained = 3.0 / 60

// judgedLayers are the layers whose growth is a leak.
var judgedLayers = []memory.Layer{Total, memory.Anon, memlayer.Shared, memlayer.Swap}

// report judges the samples so far. A leak may begin with the steps that follow those of the preferred kind.
func (r *recorder) report() *Report {
	kind, series := r.chosen()
	out := r.judged(kind, series)
	if later, rest := r.later(kind, series); rest != nil && out.Verdict != Leak {
		if leak := r.judged(later, rest); leak.Verdict == Leak {
			return leak
		}
	}
	return out
}

// judged judges the samples of a kind of step.
func (r *recorder) judged(kind string, series *memory.Series) *Report {
	series = even(series, kind)
	out := &Report{Unit: unit(kind), Steps: r.steps[kind], Epochs: r.epochs, Samples: series.Total(), Peak: r.peak,
		Seconds: time.Since(r.began).Seconds(), kind: kind, series: series}
	criteria := criteria(series, kind)
	budget := criteria.Budget
	whole := judge(series, criteria)
	out.Slope, out.From = whole.Slope, whole.From
	for _, layer := range judgedLayers {
		criteria.Layer = layer
		v := whole
		if layer != Total {
			v = judge(series, criteria)
		}
		out.Layers = append(out.Layers, Layer{Name: layer, Verdict: verdict(v), Kind: v.Kind, Slope: v.Slope, Start: v.Start,
			End: v.Level, Text: v.String()})
	}
	out.StepSeconds = secondsPerStep(series, whole, kind)
	out.PerHour = memory.Bytes(whole.Slope.Estimate * 3600 / out.StepSeconds)
	if out.StepSeconds == 0 {
		out.PerHour = 0
	}
	if r.epochs > 1 && kind != byTime {
		out.PerEpoch = memory.Bytes(whole.Slope.Estimate * float64(r.steps[kind]) / float64(r.epochs))
	}
	for _, steps := range r.ends {
		if n := steps[kind]; n > 0 && kind != byTime {
			out.ends = append(out.ends, n)
		}
	}
	out.Left, out.to = r.left, whole.To
	r.decide(out, whole, budget)
	if out.Verdict == Leak && out.Left > 0 && out.PerHour > 0 {
		out.GoneSeconds = float64(out.Left) / float64(out.PerHour) * 3600
	}
	if out.Verdict == Leak && out.StepSeconds > 0 {
		out.Stacks = r.stacks(kind, out.StepSeconds)
	}
	r.note(out, kind)
	return out
}

// criteria returns how the memory of a series is judged.
func criteria(series *memory.Series, kind string) memory.Criteria {
	c := memory.Criteria{Layer: Total, PerMinute: kind == byTime}
	if kind == "train" || kind == "test" || kind == "predict" {
		c.Budget = stepBudget
	}
	if samples := series.Samples(); len(samples) > 0 {
		first, last := samples[0], samples[len(samples)-1]
		span := float64(last.Step - first.Step)
		if kind == byTime {
			c.Budget, span = MinuteBudget, last.At.Sub(first.At).Minutes()
		}
		c.Budget = max(c.Budget, memory.Bytes(wholeBudget*float64(last.Get(Total).Bytes)/max(span, 1e-3)))
	}
	return c
}

// duration returns the time from the first to the last sample.
func duration(s *memory.Series) time.Duration {
	samples := s.Samples()
	return samples[len(samples)-1].At.Sub(samples[0].At)
}

// regular is the half width of the slope's interval, as a part of the slope, up to which growth that nothing explains
// is a leak.
const regular = 0.25

// Why a verdict is not decided although the curve of the memory is.
const (
	mayStart  = "the growth may be that of the start; watch it for 5 minutes or longer"
	irregular = "the growth is irregular, and nothing explains it; buffers that fill look so at first"
	varies    = "the memory rises and falls; watch it for 5 minutes or longer"
)

// decide decides the verdict by the curve of the memory, the growth that is no leak, and what explains the growth.
func (r *recorder) decide(out *Report, v memory.Verdict, budget memory.Bytes) {
	slope, curve := v.Slope, verdict(v)
	grows := curve == Leak || curve == Undecided && slope.Low > float64(v.Budget)
	slight := slightGrowth * float64(v.Level) / max(v.To-v.From, 1e-9)
	out.Verdict = curve
	switch {
	case grows && r.kept(out, slope.Estimate, true):
		// The curve alone does not tell a container that grows from a pool that fills up.
		out.Verdict = Leak
	case curve == Leak && slope.Estimate < slight, curve == Undecided && v.NoiseFloor > 0 && slope.High < slight:
		out.slight(v)
	case curve == Leak && !r.counted(out, v) && !r.kept(out, slope.Estimate, false):
		r.unexplained(out, v)
	case curve == Level && out.short(v) && (slope.Low > float64(MinuteBudget) || slope.High > float64(budget)):
		out.early()
	case v.Kind == memory.Plateau || v.Kind == memory.Jump:
		out.fills(v)
	}
	out.fromFree(v)
	out.agree()
}

// fromFree notes that the program allocates more and more although its memory is level.
func (r *Report) fromFree(v memory.Verdict) {
	used, _ := trend(v, memory.MallocUsed)
	blocks, _ := trend(v, "python block count")
	if r.Verdict != Level || r.kind == byTime || max(used.Low, blocks.Low*blockSize) <= float64(stepBudget) {
		return
	}
	r.hidden = true
	more := memory.Bytes(max(used.Estimate, blocks.Estimate*blockSize))
	r.Notes = append(r.Notes, fmt.Sprintf("The program allocates %v more per %s, so far from memory that it has. "+
		"Its memory may grow once this is used up: let it run longer.", more, r.Unit))
}

// early makes the verdict undecided since a program without steps was watched for too short a time.
func (r *Report) early() {
	if r.Slope.Low <= 0 {
		r.undecided(varies)
		return
	}
	r.undecided(mayStart)
}

// agree makes the verdicts of the layers agree with that of the program.
func (r *Report) agree() {
	for i := range r.Layers {
		l := &r.Layers[i]
		if r.Verdict == Level && l.Verdict != Level || r.Verdict == Undecided && l.Verdict == Leak {
			l.Verdict, l.Text = r.Verdict, "no clear leak: "+r.rate(l.Slope)
		}
	}
	r.Layers[0].Verdict = r.Verdict
}

// unexplained decides about growth that no count and no container explains.
func (r *recorder) unexplained(out *Report, v memory.Verdict) {
	out.Cause, out.Why = attribute(v, out.Unit)
	switch {
	case (out.Cause == unknown || out.Cause == keptByMalloc) && v.Slope.High-v.Slope.Low > 2*regular*v.Slope.Estimate:
		out.undecided(irregular)
	case out.short(v) && (v.To-v.From < leastUnexplained || len(r.peers) > 0 && loads(v)):
		out.undecided(mayStart)
	}
}

// short reports whether a program without steps may still start.
func (r *Report) short(v memory.Verdict) bool { return r.kind == byTime && v.To-v.From < leastMinutes }

// loads reports whether the memory of mapped files grows, as when a program loads packages.
func loads(v memory.Verdict) bool {
	files, _ := trend(v, memlayer.File)
	return files.Low > 0 && files.Estimate*(v.To-v.From) > float64(memory.MiB)
}

// undecided makes the verdict undecided.
func (r *Report) undecided(reason string) {
	r.Verdict, r.Cause, r.Why = Undecided, "", nil
	r.Layers[0].Verdict, r.Layers[0].Text = Undecided, reason+": "+r.rate(r.Slope)
}

// slight makes the verdict level although the memory may have grown a little.
func (r *Report) slight(v memory.Verdict) {
	if r.short(v) && v.Slope.Low > float64(MinuteBudget) {
		r.undecided(mayStart)
		return
	}
	r.Verdict = Level
	grown := memory.Bytes(v.Slope.Estimate * (v.To - v.From))
	if grown < memory.MiB {
		return
	}
	r.Notes = append(r.Notes, fmt.Sprintf("The memory grew by %v in the judged part, and no container of the program "+
		"explains it. Growth as slight is usual at first; a longer run would show a leak.", grown))
}

// fills names a pool or a cache as the cause of a large rise before the judged part.
func (r *Report) fills(v memory.Verdict) {
	rise := v.Level - v.Start
	if rise < max(8*memory.MiB, v.Start/20) || r.kind == byTime && v.From < leastMinutes {
		return
	}
	r.Cause = fills
	r.Why = &Cause{Evidence: fmt.Sprintf("the memory rose by %v until %s %.0f, and is level at %v since then", rise,
		r.Unit, v.From, v.Level)}
}

// judge judges a layer. Growth that the budget does not decide is level if it is within the usual variation.
func judge(s *memory.Series, c memory.Criteria) memory.Verdict {
	budget := float64(c.Budget)
	series := func(c memory.Criteria) memory.Verdict {
		v := s.Judge(c)
		if v.Kind == memory.Plateau && v.Slope.Low > budget && !retained(v) {
			v.Kind, v.Reason = memory.Inconclusive, "the memory still rises, although its curve flattens"
		}
		return v
	}
	v := series(c)
	if rise := v.Slope.Estimate * (v.To - v.From); v.Kind == memory.Leak && retained(v) &&
		(rise < retainedBudget*float64(v.Level) || duration(s) < leastRetained) {
		v.Kind = memory.Inconclusive
		v.Reason = "malloc keeps more free memory, and the memory in use is constant"
	}
	if v.Kind == memory.Inconclusive {
		loose := c
		loose.Budget = 0
		if w := series(loose); verdict(w) == Level {
			return w
		}
		// Malloc's part is known of anonymous memory only, so it may decide what the sum does not.
		if c.Layer == Total && s.Max(memlayer.Shared).Bytes == 0 && s.Max(memlayer.Swap).Bytes == 0 {
			c.Layer = memory.Anon
			return judge(s, c)
		}
	}
	return v
}

// evenParts is the number of parts of a series of which even keeps one sample each.
const evenParts = 120

// even returns a series whose samples are about equally far from each other, since the judgement weighs samples, and
// the first marks of a program come more often than later ones.
func even(s *memory.Series, kind string) *memory.Series {
	samples := s.Samples()
	if len(samples) < leastSamples {
		return s
	}
	at := func(s memory.Sample) float64 { return position(kind, s, samples[0]) }
	span := at(samples[len(samples)-1]) - at(samples[0])
	for bins := evenParts; ; bins *= 2 {
		out, last, n := &memory.Series{}, -1, 0
		for _, s := range samples {
			if bin := int(float64(bins) * (at(s) - at(samples[0])) / max(span, 1e-9)); bin > last {
				out.Append(&s)
				last, n = bin, n+1
			}
		}
		if n >= min(leastSamples+4, len(samples)) || bins > 1<<14 {
			return out
		}
	}
}

// position returns the step of a sample, or the minutes since the first sample.
func position(kind string, s, first memory.Sample) float64 {
	if kind == byTime {
		return s.At.Sub(first.At).Minutes()
	}
	return float64(s.Step)
}

func unit(kind string) string {
	switch kind {
	case byTime:
		return perMinute
	case "train":
		return "training step"
	case "test":
		return "evaluation step"
	case "predict":
		return "prediction step"
	case "run":
		return "session run"
	case "call":
		return "function call"
	}
	return kind
}

func verdict(v memory.Verdict) string {
	switch v.Kind {
	case memory.Leak:
		return Leak
	case memory.Inconclusive:
		return Undecided
	}
	return Level
}

// sure reports whether more samples are unlikely to change the answer.
func (r *Report) sure() bool {
	vague := r.Cause == unknown || r.Cause == keptByMalloc || r.Cause == keptInPython
	if r.Verdict == Leak && !vague && !r.Why.container {
		return r.Samples >= 3*leastSamples
	}
	small, least := memory.Bytes(stepBudget), 20.0
	if r.kind == byTime {
		small = MinuteBudget
	}
	switch {
	case r.Verdict == Undecided:
		return false
	case r.Verdict == Level && (r.hidden || r.Slope.High > float64(small)):
		return false // what is too small for a leak now may be one in a longer run
	case r.Verdict == Leak && vague:
		least = 40 // what explains it may still be found
	}
	// A container that grows may be emptied at the end of an epoch.
	return r.Epochs != 1 && r.Samples >= 4*leastSamples && r.Seconds > least && r.From < r.to/2
}

// secondsPerStep returns the mean time of a step in the judged part; 60 for series by time.
func secondsPerStep(s *memory.Series, v memory.Verdict, kind string) float64 {
	if kind == byTime {
		return 60
	}
	samples := s.Samples()
	from := slices.IndexFunc(samples, func(s memory.Sample) bool { return float64(s.Step) >= v.From })
	if from < 0 || len(samples)-from < 2 {
		return 0
	}
	first, last := samples[from], samples[len(samples)-1]
	return last.At.Sub(first.At).Seconds() / float64(max(last.Step-first.Step, 1))
}

// grown returns the processes that grew most, first.
func grown(all []Process) []Process {
	slices.SortStableFunc(all, func(a, b Process) int { return cmp.Compare(b.Last-b.First, a.Last-a.First) })
	return all[:min(len(all), 5)]
}
