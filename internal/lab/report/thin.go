package report

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/memory"
)

const (
	// thinSamples is the maximum number of samples in a thinned series.
	thinSamples = 10
	// thinDigits is the number of significant digits of figures.
	thinDigits = 5
	// matrixFacts is the beginning of the facts that documents quote.
	matrixFacts = "matrix operations"
)

// Thin returns a copy of a result to store in a repository. The copy takes a tenth of the space, and all
// functions of this package accept it. It leaves out trends, logs, keys, most facts, digits, and layers
// that no report shows. Only the middle run of a combination and the runs of a baseline keep more than
// the kind of their verdict.
func Thin(r *matrix.Result) *matrix.Result {
	v, out := newView(r), *r
	out.Started = began(r)
	out.Combinations, out.Runs = slices.Clone(r.Combinations), slices.Clone(r.Runs)
	shown := map[int]bool{}
	for i := range out.Combinations {
		c := &out.Combinations[i]
		if sampled := v.sampled(c); len(sampled) > 0 {
			shown[sampled[0].ID] = true
		}
		for _, id := range c.Runs {
			shown[id] = shown[id] || c.Remedy == matrix.Baseline
		}
		thinCombination(c)
	}
	for i := range out.Runs {
		thinRun(&out.Runs[i], shown[out.Runs[i].ID])
	}
	return &out
}

func thinCombination(c *matrix.Combination) {
	if c.Verdict != nil {
		d := *c.Verdict
		if c.Remedy != matrix.Baseline {
			d = thinVerdict(d)
		}
		if c.Remedy != matrix.Baseline && len(c.Runs) > 1 {
			d.Slope = memory.Interval{} // the report shows the slope in c.Figures
		}
		d.Trends, d.Slope, d.NoiseFloor = nil, roundInterval(d.Slope), rounded(d.NoiseFloor)
		c.Verdict = &d
	}
	f := &c.Figures
	f.Slope = roundInterval(f.Slope)
	for _, amount := range []**int64{&f.Peak, &f.Loaded, &f.Level, &f.Closed, &f.Trimmed, &f.StepTime} {
		if *amount != nil {
			number := rounded(**amount)
			*amount = &number
		}
	}
	if c.Comparison != nil {
		d := *c.Comparison
		for _, ratio := range []*compare.Ratio{&d.Slope, &d.Peak, &d.Reset, &d.GPU, &d.StepTime} {
			ratio.Interval = roundInterval(ratio.Interval)
		}
		c.Comparison = &d
	}
}

func thinRun(run *matrix.RunResult, shown bool) {
	run.Key, run.Log, run.Started, run.Seconds = "", "", time.Time{}, rounded(run.Seconds)
	run.Facts = maps.Clone(run.Facts)
	maps.DeleteFunc(run.Facts, func(name, _ string) bool { return !strings.HasPrefix(name, matrixFacts) })
	phases := run.Phases
	run.Phases = map[string]memory.Sample{}
	if !shown {
		d := run.Outcome.Verdict
		run.Outcome, run.Series = compare.Outcome{Verdict: memory.Verdict{Kind: d.Kind, Reason: d.Reason}}, nil
		return
	}
	o := &run.Outcome
	o.Verdict = thinVerdict(o.Verdict)
	for _, reading := range []*memory.Reading{&o.Peak, &o.Reset, &o.GPU, &o.StepTime} {
		reading.Bytes = rounded(reading.Bytes)
	}
	for name, s := range phases {
		s.At = time.Time{}
		run.Phases[name] = thinSample(s)
	}
	if run.Series != nil {
		run.Series = run.Series.Thin(thinSamples, thinSample)
	}
}

// thinVerdict reduces a verdict to the fields that a table of remedies uses.
func thinVerdict(d memory.Verdict) memory.Verdict {
	return memory.Verdict{Kind: d.Kind, Layer: d.Layer, Per: d.Per, Slope: roundInterval(d.Slope),
		Confidence: d.Confidence, Samples: d.Samples, Reason: d.Reason, Level: rounded(d.Level)}
}

// thinSample keeps anonymous memory.
func thinSample(s memory.Sample) memory.Sample {
	out := memory.Sample{Step: s.Step, At: s.At}
	if r := s.Get(memory.Anon); r.OK {
		out.Set(memory.Anon, memory.Known(rounded(r.Bytes)))
	}
	return out
}

func roundInterval(i memory.Interval) memory.Interval {
	return memory.Interval{Estimate: rounded(i.Estimate), Low: rounded(i.Low), High: rounded(i.High)}
}

// rounded keeps some significant digits. The largest float64, which stands for infinity, stays as it is.
func rounded[T ~int64 | ~float64](v T) T {
	r, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', thinDigits, 64), 64)
	if err != nil {
		return v
	}
	return T(r)
}
