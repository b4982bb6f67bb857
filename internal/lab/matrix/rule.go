package matrix

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// errRule means that the text of a rule is invalid.
var errRule = errors.New("not a rule")

// Rule limits the memory of workloads without a remedy, for continuous integration:
// "slope>64KiB/epoch", "slope>1KiB/step", "peak>1GiB", "level>500MiB", or "leak".
type Rule struct {
	amount string // "slope", "peak", "level" or "leak"
	limit  memory.Bytes
	epoch  bool // the limit of a slope is per epoch rather than per step
}

// ParseRule parses the text of a rule.
func ParseRule(text string) (Rule, error) {
	wrong := func(why string) (Rule, error) {
		return Rule{}, fmt.Errorf("%w: %q: %s; expected slope>64KiB/epoch, slope>1KiB/step, peak>1GiB, level>500MiB or leak",
			errRule, text, why)
	}
	if text == "leak" {
		return Rule{amount: text}, nil
	}
	amount, size, ok := strings.Cut(text, ">")
	if !ok {
		return wrong("no >")
	}
	r := Rule{amount: strings.TrimSpace(amount)}
	size, per, _ := strings.Cut(size, "/")
	switch {
	case r.amount == "slope" && (per == "step" || per == "epoch"):
		r.epoch = per == "epoch"
	case (r.amount == "peak" || r.amount == "level") && per == "":
	default:
		return wrong("the amount and the unit after / do not belong together")
	}
	var err error
	if r.limit, err = texts.ParseBytes[memory.Bytes](size); err != nil {
		return Rule{}, fmt.Errorf("%w: %q: %w", errRule, text, err)
	}
	return r, nil
}

// Check returns a sentence for each workload that breaks the rule, and a sentence for each workload
// for which the rule cannot be decided. If baseline, the result of an earlier matrix, is not nil,
// the rule limits the increase since then. A slope breaks a rule if its whole interval is above the
// limit, and is undecided if the interval contains the limit. The rule "leak" is undecided if some
// runs leak, but not the run that represents all (Middle). A workload with a crashed run breaks
// every rule. Calibration workloads with a leak are left out. A rule that applies to no workload is
// undecided.
func (r Rule) Check(result, baseline *Result) (broken, undecided []string) {
	before := make(map[combinationID]*Combination)
	if baseline != nil {
		for i := range baseline.Combinations {
			c := &baseline.Combinations[i]
			before[combinationID{c.Runtime, c.Workload, c.Remedy}] = c
		}
	}
	workloads := make(map[string]Workload)
	asked := false // for workloads that do not calibrate
	for _, w := range result.Workloads {
		workloads[w.ID] = w
		asked = asked || w.Leak == nil
	}
	applies := false
	for i := range result.Combinations {
		c := &result.Combinations[i]
		w := workloads[c.Workload]
		if c.Remedy != Baseline || c.Verdict == nil || w.Leak != nil && (asked || *w.Leak > 0) {
			continue
		}
		applies = true
		name, old := c.Runtime+" "+c.Workload+": ", before[combinationID{c.Runtime, c.Workload, c.Remedy}]
		switch breaks, open := r.judge(result, c, old, float64(w.For(c.Runtime).Epoch)); {
		case breaks != "":
			broken = append(broken, name+breaks)
		case open != "":
			undecided = append(undecided, name+open)
		}
	}
	if !applies {
		undecided = append(undecided, "no workload was measured that the rule applies to")
	}
	return broken, undecided
}

// judge returns how a combination breaks the rule, or why that cannot be decided. old is nil
// without a baseline.
func (r Rule) judge(result *Result, c, old *Combination, epoch float64) (breaks, open string) {
	more := ""
	if old != nil {
		more = " more than in the baseline"
	}
	switch {
	case len(c.Crashes) > 0:
		return fmt.Sprintf("%d of %d runs crashed: %s", len(c.Crashes), len(c.Runs), c.Crashes[0]), ""
	case c.Verdict.Kind == memlayer.Crash:
		return c.Verdict.String(), ""
	case r.amount == "leak" && c.Verdict.Kind == memory.Leak:
		if old != nil && old.Verdict != nil && old.Verdict.Kind == memory.Leak {
			return "", ""
		}
		return c.Verdict.String() + more, ""
	case r.amount == "leak":
		return "", mayLeak(result, c)
	case r.amount == "slope":
		return r.judgeSlope(c, old, epoch, more)
	}
	amount := func(f Figures) *int64 {
		if r.amount == "level" {
			return f.Level
		}
		return f.Peak
	}
	value := memory.Bytes(0)
	switch now := amount(c.Figures); {
	case now == nil:
		return "", fmt.Sprintf("its %s was not measured", r.amount)
	case old != nil && amount(old.Figures) == nil:
		return "", fmt.Sprintf("the baseline has no %s", r.amount)
	case old != nil:
		value = memory.Bytes(*now - *amount(old.Figures))
	default:
		value = memory.Bytes(*now)
	}
	if value > r.limit {
		breaks = fmt.Sprintf("%s of %v is above %v%s", r.amount, value, r.limit, more)
	}
	return breaks, ""
}

// judgeSlope is judge for slopes. It subtracts the slope of the baseline.
func (r Rule) judgeSlope(c, old *Combination, epoch float64, more string) (breaks, open string) {
	scale, per := 1.0, "step"
	if r.epoch {
		scale, per = epoch, "epoch"
	}
	slope := c.Verdict.Slope
	if old != nil && old.Verdict != nil {
		slope.Low -= old.Verdict.Slope.High
		slope.High -= old.Verdict.Slope.Low
		slope.Estimate -= old.Verdict.Slope.Estimate
	}
	switch limit := float64(r.limit); {
	case slope.Low*scale > limit:
		return fmt.Sprintf("slope of %v per %s is above %v%s", memory.Bytes(slope.Estimate*scale), per, r.limit, more), ""
	case c.Verdict.NoiseFloor == 0:
		return "", fmt.Sprintf("its slope was not measured: %s", c.Verdict)
	case limit < slope.High*scale:
		return "", fmt.Sprintf("its slope is between %v and %v per %s, which may be above %v", memory.Bytes(slope.Low*scale),
			memory.Bytes(slope.High*scale), per, r.limit)
	}
	return "", ""
}

// mayLeak returns why a combination without the verdict leak may leak; empty if it does not.
func mayLeak(result *Result, c *Combination) string {
	if c.Verdict.Kind == memory.Inconclusive {
		return fmt.Sprintf("whether it leaks is not known: %s", c.Verdict)
	}
	leaks := 0
	for i := range result.Runs {
		if run := &result.Runs[i]; slices.Contains(c.Runs, run.ID) && run.Outcome.Verdict.Kind == memory.Leak {
			leaks++
		}
	}
	if leaks == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d runs leak, although most do not: %s", leaks, len(c.Runs), c.Verdict)
}
