package matrix

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"steadyfit/memory"
)

// errRule means that the text of a rule is invalid.
var errRule = errors.New("not a rule")

// Rule limits the memory of workloads without a remedy, for continuous integration:
// "slope>64KiB/epoch", "slope>1KiB/step", "peak>1GiB", "level>500MiB", or "leak".
type Rule struct {
	Amount string // "slope", "peak", "level" or "leak"
	Limit  memory.Bytes
	Epoch  bool // the limit of a slope is per epoch rather than per step
}

// ParseRule parses the text of a rule. Its error is an ErrRule.
func ParseRule(text string) (Rule, error) {
	wrong := func(why string) (Rule, error) {
		return Rule{}, fmt.Errorf("%w: %q: %s; expected slope>64KiB/epoch, slope>1KiB/step, peak>1GiB, level>500MiB or leak", errRule, text, why)
	}
	if text == "leak" {
		return Rule{Amount: text}, nil
	}
	amount, size, ok := strings.Cut(text, ">")
	if !ok {
		return wrong("no >")
	}
	r := Rule{Amount: strings.TrimSpace(amount)}
	size, per, _ := strings.Cut(size, "/")
	switch {
	case r.Amount == "slope" && (per == "step" || per == "epoch"):
		r.Epoch = per == "epoch"
	case (r.Amount == "peak" || r.Amount == "level") && per == "":
	default:
		return wrong("the amount and the unit after / do not belong together")
	}
	var err error
	if r.Limit, err = memory.ParseBytes(size); err != nil {
		return Rule{}, fmt.Errorf("%w: %q: %w", errRule, text, err)
	}
	return r, nil
}

// Check returns a sentence for each workload that breaks the rule, and a sentence for each one
// that it cannot decide. With a baseline, a result of an earlier matrix, the rule limits the
// increase since then. A slope breaks a rule if its whole interval is above the limit, and is
// undecided if the interval contains the limit. The rule "leak" is undecided if some runs leak, but
// not the one that represents them. A workload with a crashed run breaks every rule.
// Calibration workloads with a leak are left out. A rule that applies to no workload is
// undecided.
func (r Rule) Check(result, baseline *Result) (broken, undecided []string) {
	return r.broken(result, baseline), r.undecided(result, baseline)
}

func (r Rule) broken(result, baseline *Result) []string {
	before := baselines(baseline)
	var broken []string
	for id, c := range r.subjects(result) {
		name := c.Runtime + " " + c.Workload
		if n := len(c.Crashes); n > 0 {
			broken = append(broken, fmt.Sprintf("%s: %d of %d runs crashed: %s", name, n, len(c.Runs), c.Crashes[0]))
			continue
		}
		if c.Verdict.Kind == memory.Crash {
			broken = append(broken, fmt.Sprintf("%s: %s", name, c.Verdict))
			continue
		}
		old, since := before[id]
		if text := r.breaks(c, old, since, id.epoch(result)); text != "" {
			if since {
				text += " more than in the baseline"
			}
			broken = append(broken, name+": "+text)
		}
	}
	return broken
}

func (r Rule) undecided(result, baseline *Result) []string {
	before := baselines(baseline)
	var open []string
	n := 0
	for id, c := range r.subjects(result) {
		n++
		name := c.Runtime + " " + c.Workload
		old, since := before[id]
		switch {
		case c.Verdict.Kind == memory.Crash:
		case r.Amount == "slope" && c.Verdict.NoiseFloor == 0:
			open = append(open, fmt.Sprintf("%s: its slope was not measured: %s", name, c.Verdict))
		case r.Amount == "slope":
			slope, scale, per := r.slope(c, old, id.epoch(result))
			if limit := float64(r.Limit); slope.Low*scale <= limit && limit < slope.High*scale {
				open = append(open, fmt.Sprintf("%s: its slope is between %v and %v per %s, which may be above %v", name,
					memory.Bytes(slope.Low*scale), memory.Bytes(slope.High*scale), per, r.Limit))
			}
		case since && (r.Amount == "peak" && old.Figures.Peak == nil || r.Amount == "level" && old.Figures.Level == nil):
			open = append(open, fmt.Sprintf("%s: the baseline has no %s", name, r.Amount))
		case r.Amount == "leak":
			if why := mayLeak(result, c); why != "" {
				open = append(open, name+": "+why)
			}
		case r.Amount == "peak" && c.Figures.Peak == nil, r.Amount == "level" && c.Figures.Level == nil:
			open = append(open, fmt.Sprintf("%s: its %s was not measured", name, r.Amount))
		}
	}
	if n == 0 {
		open = append(open, "no workload was measured that the rule applies to")
	}
	return open
}

// mayLeak returns why a combination without the verdict leak may leak; empty if it does not.
func mayLeak(result *Result, c Combination) string {
	leaks := 0
	for i := range result.Runs {
		if run := &result.Runs[i]; slices.Contains(c.Runs, run.ID) && run.Outcome.Verdict.Kind == memory.Leak {
			leaks++
		}
	}
	switch {
	case c.Verdict.Kind == memory.Inconclusive:
		return fmt.Sprintf("whether it leaks is not known: %s", c.Verdict)
	case leaks > 0 && c.Verdict.Kind != memory.Leak:
		return fmt.Sprintf("%d of %d runs leak, although most do not: %s", leaks, len(c.Runs), c.Verdict)
	}
	return ""
}

func (r Rule) subjects(result *Result) iter.Seq2[combinationID, Combination] {
	asked := slices.ContainsFunc(result.Workloads, func(w Workload) bool { return w.Leak == nil })
	return func(yield func(combinationID, Combination) bool) {
		for _, c := range result.Combinations {
			// Calibration workloads count only if there are no others.
			calibrates := slices.ContainsFunc(result.Workloads, func(w Workload) bool {
				return w.ID == c.Workload && w.Leak != nil && (asked || *w.Leak > 0)
			})
			if c.Remedy != Baseline || c.Verdict == nil || calibrates {
				continue
			}
			if !yield(combinationID{c.Runtime, c.Workload, c.Remedy}, c) {
				return
			}
		}
	}
}

func baselines(result *Result) map[combinationID]Combination {
	cells := make(map[combinationID]Combination)
	if result != nil {
		for _, c := range result.Combinations {
			cells[combinationID{c.Runtime, c.Workload, c.Remedy}] = c
		}
	}
	return cells
}

func (id combinationID) epoch(result *Result) float64 {
	for _, w := range result.Workloads {
		if w.ID == id.workload {
			return float64(w.on(id.runtime).Epoch)
		}
	}
	return 0
}

func (r Rule) breaks(c, old Combination, since bool, epoch float64) string {
	amount := func(now, then *int64) string {
		if now == nil || since && then == nil {
			return ""
		}
		value := *now
		if then != nil {
			value -= *then
		}
		if value <= int64(r.Limit) {
			return ""
		}
		return fmt.Sprintf("%s of %v is above %v", r.Amount, memory.Bytes(value), r.Limit)
	}
	switch r.Amount {
	case "leak":
		if c.Verdict.Kind == memory.Leak && (old.Verdict == nil || old.Verdict.Kind != memory.Leak) {
			return c.Verdict.String()
		}
		return ""
	case "peak":
		return amount(c.Figures.Peak, old.Figures.Peak)
	case "level":
		return amount(c.Figures.Level, old.Figures.Level)
	}
	slope, scale, per := r.slope(c, old, epoch)
	if slope.Low*scale <= float64(r.Limit) {
		return ""
	}
	return fmt.Sprintf("slope of %v per %s is above %v", memory.Bytes(slope.Estimate*scale), per, r.Limit)
}

// slope returns the slope per step, less that of the baseline. scale converts it to the unit of
// the rule.
func (r Rule) slope(c, old Combination, epoch float64) (slope memory.Interval, scale float64, per string) {
	scale, per = 1.0, "step"
	if r.Epoch {
		scale, per = epoch, "epoch"
	}
	slope = c.Verdict.Slope
	if old.Verdict != nil {
		slope.Low -= old.Verdict.Slope.High
		slope.High -= old.Verdict.Slope.Low
		slope.Estimate -= old.Verdict.Slope.Estimate
	}
	return slope, scale, per
}
