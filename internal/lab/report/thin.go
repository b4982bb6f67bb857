package report

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/worker"
	"steadyfit/matrix"
	"steadyfit/memory"
)

// ThinOptions limit the size of a result. The zero value keeps no samples and all digits.
type ThinOptions struct {
	// Samples is the maximum number of samples in a series. Longer series are thinned in
	// middle runs and baselines, and left out elsewhere.
	Samples int
	// Digits is the number of significant digits of the figures of runs; 0 keeps all. Figures
	// of combinations have one digit more, samples one digit less. With Digits, runs other than
	// middle ones and baselines keep only the kind of their verdict.
	Digits int
}

// Published are the options for results in a repository.
var Published = ThinOptions{Samples: 10, Digits: 4}

// Thin returns a copy of a result that takes a tenth of the space and still serves all
// functions of this package. It leaves out trends, logs, keys, most facts, and layers that no
// report shows. A combination with a remedy keeps only the phases of its middle run.
func Thin(r *matrix.Result, o ThinOptions) *matrix.Result {
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
		o.combination(c)
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
		o.run(run, middle[run.ID], baseline[run.ID])
	}
	return &out
}

// Documents quote these figures, so they have one more digit.
func (o ThinOptions) combination(c *matrix.Combination) {
	if c.Verdict != nil {
		shown := c.Remedy == matrix.Baseline || c.Remedy == release
		d := o.verdict(*c.Verdict, shown)
		if !shown && len(c.Runs) > 1 {
			d.Slope = memory.Interval{} // the report shows the slope in c.Figures
		}
		c.Verdict = &d
	}
	if o.Digits > 0 {
		o.Digits++
	}
	c.Figures.Slope = o.interval(c.Figures.Slope)
	for _, amount := range []**int64{&c.Figures.Peak, &c.Figures.Loaded, &c.Figures.Level, &c.Figures.Closed, &c.Figures.Trimmed, &c.Figures.StepTime} {
		if *amount != nil {
			rounded := int64(o.round(float64(**amount)))
			*amount = &rounded
		}
	}
	if c.Comparison != nil {
		d := *c.Comparison
		for _, ratio := range []*compare.Ratio{&d.Slope, &d.Peak, &d.Reset, &d.GPU, &d.StepTime} {
			ratio.Interval = o.interval(ratio.Interval)
		}
		c.Comparison = &d
	}
}

func (o ThinOptions) run(run *matrix.RunResult, middle, baseline bool) {
	run.Key, run.Log, run.Seconds = "", "", math.Round(run.Seconds*10)/10
	run.Outcome.Verdict = o.verdict(run.Outcome.Verdict, false)
	if o.Digits > 0 && !middle && !baseline {
		run.Outcome = compare.Outcome{Verdict: memory.Verdict{Kind: run.Outcome.Verdict.Kind, Reason: run.Outcome.Verdict.Reason}}
	}
	for _, reading := range []*memory.Reading{&run.Outcome.Peak, &run.Outcome.Reset, &run.Outcome.GPU, &run.Outcome.StepTime} {
		*reading = o.reading(*reading)
	}
	facts := map[string]string{}
	for name, value := range run.Facts {
		if strings.HasPrefix(name, worker.FactMatrix) {
			facts[name] = value
		}
	}
	run.Facts = facts
	whole := run.Series != nil && len(run.Series.Samples()) <= o.Samples
	shown := whole || middle || baseline
	if run.Series != nil && shown {
		run.Series = run.Series.Thin(o.Samples, func(s memory.Sample) memory.Sample { return o.sample(s, false) })
	} else {
		run.Series = nil
	}
	phases := run.Phases
	run.Phases = map[string]memory.Sample{}
	for name, s := range phases {
		if shown {
			s.At = time.Time{}
			run.Phases[name] = o.sample(s, baseline)
		}
	}
}

// verdict reduces a verdict to the fields that a report uses. If the verdict is not shown itself,
// these are only the fields for a table of remedies.
func (o ThinOptions) verdict(d memory.Verdict, shown bool) memory.Verdict {
	d.Trends, d.Slope = nil, o.interval(d.Slope)
	d.NoiseFloor = o.round(d.NoiseFloor)
	if !shown {
		d = memory.Verdict{Kind: d.Kind, Layer: d.Layer, Per: d.Per, Slope: d.Slope, Confidence: d.Confidence, Samples: d.Samples,
			Reason: d.Reason, Level: o.reading(memory.Known(d.Level)).Bytes}
	}
	return d
}

func (o ThinOptions) interval(i memory.Interval) memory.Interval {
	return memory.Interval{Estimate: o.round(i.Estimate), Low: o.round(i.Low), High: o.round(i.High)}
}

func (o ThinOptions) round(v float64) float64 {
	if o.Digits > 0 {
		if r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', o.Digits, 64), 64); err == nil {
			return r
		}
	}
	return v
}

func (o ThinOptions) reading(r memory.Reading) memory.Reading {
	r.Bytes = memory.Bytes(o.round(float64(r.Bytes)))
	return r
}

// sample keeps anonymous memory and, for baselines, malloc's figures, which show the allocator
// that holds memory.
func (o ThinOptions) sample(s memory.Sample, baseline bool) memory.Sample {
	out := memory.Sample{Step: s.Step, At: s.At}
	for _, value := range s.Values {
		if value.Layer == memory.Anon || baseline && (value.Layer == memory.MallocUsed || value.Layer == memory.MallocFree) {
			value.Reading = ThinOptions{Digits: o.Digits - 1}.reading(value.Reading)
			out.Values = append(out.Values, value)
		}
	}
	return out
}
