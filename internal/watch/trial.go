package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"steadyfit/internal/stats"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// Verdicts of a trial.
const (
	EndsLeak    = "ends the leak"
	Reduces     = "reduces the leak"
	NoEffect    = "no effect"
	Worse       = "worse"
	Failed      = "failed"
	NotApplied  = "not applied"
	Unavailable = "unavailable"
)

// Trial is what a remedy did to a program, by runs with it and without it in pairs.
type Trial struct {
	Remedy string `json:"remedy"`
	// What says what was changed.
	What    string `json:"what"`
	Verdict string `json:"verdict"`
	// Reason says why there is no comparison.
	Reason string `json:"reason,omitempty"`
	Pairs  int    `json:"pairs"`
	// Without and With are the mean slopes per Unit.
	Without float64 `json:"slope_without,omitzero"`
	With    float64 `json:"slope_with,omitzero"`
	// Slope, Peak and Time divide the value with the remedy by the one without it. Slope has the 95% interval of the mean.
	// The intervals of Peak and Time cover all pairs, up to 7 of them. Time is that of a step; it is zero without steps.
	Slope memory.Interval `json:"slope_ratio,omitzero"`
	Peak  memory.Interval `json:"peak_ratio,omitzero"`
	Time  memory.Interval `json:"time_ratio,omitzero"`
	// Acted is how often a change in Python was made.
	Acted int `json:"acted,omitempty"`
	// Permanent has the lines that make the change permanent.
	Permanent []string `json:"permanent,omitempty"`

	remedy Remedy
	runs   []outcome // by round
}

// outcome is what a run of a trial showed.
type outcome struct {
	slope, peak, step float64
	leaks             bool
}

// Try runs the program of a report again, in rounds: once without remedies and once with each, in alternating order. A
// run ends at the step that decided in the report, and its output is discarded. Try sets Trials and Advice. It makes no
// runs if the memory does not leak, or if no remedy is available. The error says that the program fails when it runs
// again. When ctx ends, the rounds so far count.
func (r *Report) Try(ctx context.Context, o Options, choice string, rounds int, progress func(string)) error {
	remedies := chosen(choice, r.Cause)
	switch {
	case r.Verdict != Leak:
		r.Advice = "No remedies were tried, since no leak was found."
		return nil
	case len(remedies) == 0:
		r.Advice = fmt.Sprintf("Nothing from outside helps against this cause (%s): the program has to be changed.", r.Cause)
		return nil
	}
	base := &Trial{}
	runs := []*Trial{base}
	for _, remedy := range remedies {
		t := &Trial{Remedy: remedy.Name, What: remedy.What, remedy: remedy}
		if err := t.remedy.prepare(r.python); err != nil {
			t.Verdict, t.Reason = Unavailable, err.Error()
		} else {
			runs = append(runs, t)
		}
		r.Trials = append(r.Trials, t)
	}
	var err error
	if len(runs) > 1 {
		err = r.rounds(ctx, o, runs, rounds, progress)
	}
	for _, t := range r.Trials {
		t.compare(base)
	}
	slices.SortStableFunc(r.Trials, func(a, b *Trial) int {
		return cmp.Or(a.rank()-b.rank(), cmp.Compare(a.Slope.Estimate, b.Slope.Estimate),
			cmp.Compare(a.Peak.Estimate, b.Peak.Estimate))
	})
	r.advise()
	return err
}

func (r *Report) rounds(ctx context.Context, o Options, runs []*Trial, rounds int, progress func(string)) error {
	a := arm{kind: r.kind}
	a.from, a.to = r.decisive()
	span := a.to - a.from
	// About 60 marks in all runs, unless they are closer than usual.
	a.every = int(max(1, min(span/20, max(span/60, 1/mostMarks/r.StepSeconds))))
	for round := range rounds {
		for _, t := range runs {
			if t.Verdict != "" {
				continue // it failed, or was not applied
			}
			progress(fmt.Sprintf("round %d of %d: %s", round+1, rounds, cmp.Or(t.Remedy, "without remedies")))
			err := r.run(ctx, o, t, a)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil && t.Remedy == "":
				return fmt.Errorf("remedies: the program without a remedy, when it ran again: %w", err)
			case err != nil:
				t.Verdict, t.Reason = cmp.Or(t.Verdict, Failed), err.Error()
			}
		}
		slices.Reverse(runs)
	}
	return nil
}

// run runs the program of a trial once. An error says why it is no outcome.
func (r *Report) run(ctx context.Context, o Options, t *Trial, a arm) error {
	// A run that a remedy makes slower ends, too.
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(4*r.Seconds*float64(time.Second)))
	defer cancel()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	defer null.Close()
	out, err := keepTail()
	if err != nil {
		return err
	}
	a.remedy = &t.remedy
	o = Options{Command: o.Command, Mark: o.Mark, Stdin: null, Stdout: out.write, Stderr: out.write, arm: &a}
	got, err := Run(ctx, o)
	printed := out.close()
	if err != nil {
		return err
	}
	if got.Ended == "" && got.Exit != r.Exit && (got.Exit != 0 || r.Ended == "") {
		return fmt.Errorf("exit code %d%s", got.Exit, printed)
	}
	t.Acted += got.Acted
	if t.Remedy != "" && !a.applied && got.Acted == 0 {
		t.Verdict = NotApplied
		if len(t.remedy.Env) > 0 {
			return fmt.Errorf("no process had %s and %s*", strings.Join(t.remedy.Env, " "), t.remedy.library)
		}
		return errors.New("the program did nothing to which it applies")
	}
	of, err := got.outcome(a)
	if err != nil {
		return err
	}
	t.runs = append(t.runs, of)
	return nil
}

// decisive returns the part of the first run that suffices to find the leak, or the judged part.
func (r *Report) decisive() (from, to float64) {
	samples := r.series.Samples()
	for part := 2; part < 8; part++ {
		first := &recorder{series: map[string]*memory.Series{r.kind: {}}, tree: newTree()}
		n := len(samples) * part / 8
		for _, s := range samples[:n] {
			first.series[r.kind].Append(&s)
		}
		v := first.judged(r.kind, first.series[r.kind])
		if n >= 2*leastSamples && v.Verdict == Leak && v.Slope.High-v.Slope.Low < v.Slope.Estimate/5 && v.From < v.to/2 {
			return v.From, v.to
		}
	}
	return r.From, r.to
}

// outcome returns the slope by all pairs of samples (Theil-Sen), and the time of a step, in the decisive part.
func (r *Report) outcome(a arm) (outcome, error) {
	var x, y []float64
	var at []time.Time
	all := r.series.Samples()
	for _, s := range all {
		v := position(r.kind, s, all[0])
		if r.kind == a.kind && v >= a.from && v <= a.to && (len(x) == 0 || v > x[len(x)-1]) {
			x, y, at = append(x, v), append(y, float64(s.Get(Total).Bytes)), append(at, s.At)
		}
	}
	last := len(x) - 1
	if last < leastSamples/2 {
		return outcome{}, fmt.Errorf("%d samples in %s are too few: %s", last+1, r.time(r.Seconds), r.counted())
	}
	o := outcome{slope: stats.NewSlopes(x).Median(y), peak: float64(r.Peak), leaks: r.Verdict == Leak}
	if r.kind != byTime {
		o.step = at[last].Sub(at[0]).Seconds() / (x[last] - x[0])
	}
	return o, nil
}

const (
	// confidence is that of the interval of a slope.
	confidence = 0.95
	// ended is the part of the slope up to which no leak is left, and slightly the part that is no effect.
	ended    = 0.25
	slightly = 0.05
	// narrow is the distance from 1 of the interval of a remedy without an effect.
	narrow = 0.25
)

// compare compares the runs of a trial with those without remedies.
func (t *Trial) compare(base *Trial) {
	t.Pairs = min(len(t.runs), len(base.runs))
	n := float64(t.Pairs)
	var slopes []float64
	var peaks, times [2][]float64 // with the remedy, and without
	leaks := false
	for i := range t.Pairs {
		a, b := base.runs[i], t.runs[i]
		t.Without, t.With, leaks = t.Without+a.slope/n, t.With+b.slope/n, leaks || b.leaks
		slopes = append(slopes, b.slope-a.slope)
		peaks = [2][]float64{append(peaks[0], b.peak), append(peaks[1], a.peak)}
		times = [2][]float64{append(times[0], b.step), append(times[1], a.step)}
	}
	switch {
	case t.Verdict != "":
		return
	case t.Pairs < 2:
		t.Verdict, t.Reason = Undecided, "too few runs"
		return
	case t.Without <= 0:
		t.Verdict, t.Reason = Undecided, "the program without remedies does not grow when it runs again"
		return
	}
	mean, low, high := stats.Mean(slopes, confidence)
	t.Slope = memory.Interval{Estimate: 1 + mean/t.Without, Low: 1 + low/t.Without, High: 1 + high/t.Without}
	t.Peak.Estimate, t.Peak.Low, t.Peak.High = stats.MedianRatio(peaks[0], peaks[1])
	if times[1][0] > 0 {
		t.Time.Estimate, t.Time.Low, t.Time.High = stats.MedianRatio(times[0], times[1])
	}
	switch s := t.Slope; {
	case !leaks && s.High < ended:
		t.Verdict = EndsLeak
	case s.High < 1 && s.Estimate < 1-slightly:
		t.Verdict = Reduces
	case s.Low > 1 && s.Estimate > 1+slightly:
		t.Verdict = Worse
	case s.Low > 1-narrow && s.High < 1+narrow:
		t.Verdict = NoEffect
	default:
		t.Verdict, t.Reason = Undecided, "more pairs would decide"
	}
	if t.Verdict == EndsLeak || t.Verdict == Reduces {
		t.Permanent = t.remedy.Lines()
	}
}

var ranking = []string{EndsLeak, Reduces, NoEffect, Undecided, Worse, Failed, NotApplied, Unavailable}

// rank is the place of a verdict in the ranking.
func (t *Trial) rank() int { return slices.Index(ranking, t.Verdict) }

// advise says what follows from the trials, whose best is the first.
func (r *Report) advise() {
	best := r.Trials[0]
	switch best.Verdict {
	case EndsLeak:
		r.Advice = fmt.Sprintf("%s ends the leak: %s.", best.Remedy, best.What)
	case Reduces:
		r.Advice = fmt.Sprintf("No remedy ends the leak; %s %s: %s.", best.Remedy, best.Text(), best.What)
	case NoEffect, Worse:
		r.Advice = "No remedy helps: the program has to be changed."
	case Undecided:
		r.Advice = "It is not decided whether a remedy helps."
	default:
		r.Advice = "No remedy was compared."
	}
}

// Text is the verdict, with the part of the slope that is gone.
func (t *Trial) Text() string {
	if t.Verdict == Reduces {
		return fmt.Sprintf("%s by %.0f%%", t.Verdict, 100*(1-t.Slope.Estimate))
	}
	return t.Verdict
}

// Ratio formats a ratio with its interval. It is empty if it is not known.
func (t *Trial) Ratio(r memory.Interval) string {
	if r == (memory.Interval{}) {
		return ""
	}
	return fmt.Sprintf("%s [%s, %s]", stats.Decimal(r.Estimate, 2), stats.Decimal(r.Low, 2), stats.Decimal(r.High, 2))
}

// WriteRemedies writes the trials for a terminal.
func (r *Report) WriteRemedies(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, r.Advice)
	if len(r.Trials) > 0 {
		fmt.Fprintln(out, "remedy\tverdict\tslope\tpeak\ttime\tpairs")
	}
	for _, t := range r.Trials {
		if t.Slope == (memory.Interval{}) {
			fmt.Fprintf(out, "%s\t%s: %s\n", t.Remedy, t.Text(), texts.Printable(t.Reason))
			continue
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%d\n", t.Remedy, t.Text(), t.Ratio(t.Slope), t.Ratio(t.Peak),
			cmp.Or(t.Ratio(t.Time), "-"), t.Pairs)
	}
	if len(r.Trials) > 0 && r.Trials[0].Permanent != nil {
		fmt.Fprintf(out, "To keep %s:\n    %s\n", r.Trials[0].Remedy, strings.Join(r.Trials[0].Permanent, "\n    "))
	}
	return out.Flush()
}
