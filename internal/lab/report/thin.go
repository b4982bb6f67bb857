package report

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/worker"
	"steadyfit/memory"
)

const (
	// thinSamples is the maximum number of samples in a thinned series.
	thinSamples = 10
	// thinDigits is the number of significant digits of the figures of runs.
	thinDigits = 4
)

// Thin returns a copy of a result to store in a repository. The copy takes a tenth of the space, and
// all functions of this package accept it. It leaves out trends, logs, keys, most facts, digits, and
// layers that no report shows. Only the middle run of a combination and the runs of a baseline keep
// more than the kind of their verdict and a short series.
func Thin(r *matrix.Result) *matrix.Result {
	v, out := newView(r), *r
	out.Combinations, out.Runs = slices.Clone(r.Combinations), slices.Clone(r.Runs)
	middle, baseline := map[int]bool{}, map[int]bool{}
	for i := range out.Combinations {
		c := &out.Combinations[i]
		if m := v.middle(c); m != nil {
			middle[m.ID] = true
		}
		if c.Remedy == matrix.Baseline {
			for _, id := range c.Runs {
				baseline[id] = true
			}
		}
		thinCombination(c)
	}
	first := r.Started
	for i := range out.Runs {
		if at := out.Runs[i].Started; !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	for i := range out.Runs {
		run := &out.Runs[i]
		if !run.Started.Equal(first) {
			run.Started = time.Time{}
		}
		thinRun(run, middle[run.ID], baseline[run.ID])
	}
	return &out
}

// thinCombination keeps one digit more than thinRun, since documents quote the figures.
func thinCombination(c *matrix.Combination) {
	if c.Verdict != nil {
		shown := c.Remedy == matrix.Baseline || c.Remedy == release
		d := thinVerdict(*c.Verdict, shown)
		if !shown && len(c.Runs) > 1 {
			d.Slope = memory.Interval{} // the report shows the slope in c.Figures
		}
		c.Verdict = &d
	}
	const digits = thinDigits + 1
	c.Figures.Slope = roundInterval(c.Figures.Slope, digits)
	for _, amount := range []**int64{&c.Figures.Peak, &c.Figures.Loaded, &c.Figures.Level, &c.Figures.Closed,
		&c.Figures.Trimmed, &c.Figures.StepTime} {
		if *amount != nil {
			rounded := int64(round(float64(**amount), digits))
			*amount = &rounded
		}
	}
	if c.Comparison != nil {
		d := *c.Comparison
		for _, ratio := range []*compare.Ratio{&d.Slope, &d.Peak, &d.Reset, &d.GPU, &d.StepTime} {
			ratio.Interval = roundInterval(ratio.Interval, digits)
		}
		c.Comparison = &d
	}
}

func thinRun(run *matrix.RunResult, middle, baseline bool) {
	run.Key, run.Log, run.Seconds = "", "", math.Round(run.Seconds*10)/10
	run.Outcome.Verdict = thinVerdict(run.Outcome.Verdict, false)
	if !middle && !baseline {
		run.Outcome = compare.Outcome{Verdict: memory.Verdict{Kind: run.Outcome.Verdict.Kind,
			Reason: run.Outcome.Verdict.Reason}}
	}
	for _, reading := range []*memory.Reading{&run.Outcome.Peak, &run.Outcome.Reset, &run.Outcome.GPU,
		&run.Outcome.StepTime} {
		*reading = roundReading(*reading, thinDigits)
	}
	facts := map[string]string{}
	for name, value := range run.Facts {
		if strings.HasPrefix(name, worker.FactMatrix) {
			facts[name] = value
		}
	}
	run.Facts = facts
	whole := run.Series != nil && len(run.Series.Samples()) <= thinSamples
	shown := whole || middle || baseline
	if run.Series != nil && shown {
		run.Series = run.Series.Thin(thinSamples, func(s memory.Sample) memory.Sample { return thinSample(s, false) })
	} else {
		run.Series = nil
	}
	phases := run.Phases
	run.Phases = map[string]memory.Sample{}
	for name, s := range phases {
		if shown {
			s.At = time.Time{}
			run.Phases[name] = thinSample(s, baseline)
		}
	}
}

// thinVerdict reduces a verdict to the fields that a report uses. If shown is false, only the fields
// for a table of remedies remain.
func thinVerdict(d memory.Verdict, shown bool) memory.Verdict {
	d.Trends, d.Slope = nil, roundInterval(d.Slope, thinDigits)
	d.NoiseFloor = round(d.NoiseFloor, thinDigits)
	if !shown {
		d = memory.Verdict{Kind: d.Kind, Layer: d.Layer, Per: d.Per, Slope: d.Slope, Confidence: d.Confidence,
			Samples: d.Samples,
			Reason:  d.Reason, Level: roundReading(memory.Known(d.Level), thinDigits).Bytes}
	}
	return d
}

func roundInterval(i memory.Interval, digits int) memory.Interval {
	return memory.Interval{Estimate: round(i.Estimate, digits), Low: round(i.Low, digits), High: round(i.High, digits)}
}

// round keeps some significant digits. The largest float64, which stands for infinity, stays as it
// is.
func round(v float64, digits int) float64 {
	if r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64); err == nil {
		return r
	}
	return v
}

func roundReading(r memory.Reading, digits int) memory.Reading {
	r.Bytes = memory.Bytes(round(float64(r.Bytes), digits))
	return r
}

// thinSample keeps anonymous memory and, for baselines, malloc's figures, which show the allocator
// that holds memory.
func thinSample(s memory.Sample, baseline bool) memory.Sample {
	out := memory.Sample{Step: s.Step, At: s.At}
	for _, value := range s.Values {
		if value.Layer == memory.Anon || baseline && (value.Layer == memory.MallocUsed || value.Layer == memory.MallocFree) {
			value.Reading = roundReading(value.Reading, thinDigits-1)
			out.Values = append(out.Values, value)
		}
	}
	return out
}
