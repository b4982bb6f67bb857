package report

import (
	"encoding/json"
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
func Thin(r *matrix.Result) (*matrix.Result, error) {
	v, out := newView(r), *r
	out.Combinations, out.Runs = slices.Clone(r.Combinations), slices.Clone(r.Runs)
	shown := map[int]bool{}
	for i := range out.Combinations {
		c := &out.Combinations[i]
		if r := v.sampled(c); r != nil {
			shown[r.ID] = true
		}
		for _, id := range c.Runs {
			shown[id] = shown[id] || c.Remedy == matrix.Baseline
		}
		if c.Verdict != nil {
			d := *c.Verdict
			if d.Trends = nil; c.Remedy != matrix.Baseline {
				d = thinVerdict(d)
			}
			c.Verdict = &d
		}
	}
	for i := range out.Runs {
		thinRun(&out.Runs[i], shown[out.Runs[i].ID])
	}
	return withFewerDigits(&out)
}

func thinRun(run *matrix.RunResult, shown bool) {
	run.Key, run.Log, run.Started = "", "", time.Time{}
	run.Facts = maps.Clone(run.Facts)
	maps.DeleteFunc(run.Facts, func(name, _ string) bool { return !strings.HasPrefix(name, matrixFacts) })
	phases := run.Phases
	run.Phases = map[string]memory.Sample{}
	if d := run.Outcome.Verdict; !shown {
		run.Outcome, run.Series = compare.Outcome{Verdict: memory.Verdict{Kind: d.Kind, Reason: d.Reason}}, nil
		return
	}
	run.Outcome.Verdict = thinVerdict(run.Outcome.Verdict)
	for name, s := range phases {
		s.At = time.Time{}
		run.Phases[name] = matrix.AnonOnly(s)
	}
	if run.Series != nil {
		run.Series = run.Series.Thin(thinSamples, matrix.AnonOnly)
	}
}

// thinVerdict reduces a verdict to the fields that a table of remedies uses.
func thinVerdict(d memory.Verdict) memory.Verdict {
	return memory.Verdict{Kind: d.Kind, Layer: d.Layer, Per: d.Per, Slope: d.Slope, Confidence: d.Confidence,
		Samples: d.Samples, Reason: d.Reason, Level: d.Level}
}

// withFewerDigits returns a result with all numbers rounded, except the largest float64, which stands for infinity.
func withFewerDigits(r *matrix.Result) (*matrix.Result, error) {
	var all any
	text, err := json.Marshal(r)
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.UseNumber()
		err = d.Decode(&all)
	}
	if err == nil {
		text, err = json.Marshal(rounded(all))
	}
	out := &matrix.Result{}
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	return out, err
}

func rounded(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			v[name] = rounded(x)
		}
	case []any:
		for i, x := range v {
			v[i] = rounded(x)
		}
	case json.Number:
		f, err := v.Float64()
		r, failed := strconv.ParseFloat(strconv.FormatFloat(f, 'g', thinDigits, 64), 64)
		switch {
		case err != nil || failed != nil:
		case strings.ContainsAny(v.String(), ".e"):
			return r
		default:
			return int64(r)
		}
	}
	return v
}
