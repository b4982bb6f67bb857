package matrix

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// errRule means that the text of a rule is invalid.
var errRule = errors.New("not a rule")

// Rule limits the memory of workloads without a remedy, for continuous integration: "slope>64KiB/epoch",
// "slope>1KiB/step", "peak>1GiB", or "leak".
type Rule struct {
	amount string // "slope", "peak" or "leak"
	per    string // "step" or "epoch", of a slope
	limit  memory.Bytes
}

var ruleText = regexp.MustCompile(`^(?:(leak)|(slope)>(.+)/(step|epoch)|(peak)>([^/]+))$`)

// ParseRule parses the text of a rule.
func ParseRule(text string) (Rule, error) {
	m := ruleText.FindStringSubmatch(text)
	if m == nil {
		return Rule{}, fmt.Errorf("%w: %q; expected slope>64KiB/epoch, slope>1KiB/step, peak>1GiB or leak", errRule, text)
	}
	r := Rule{amount: m[1] + m[2] + m[5], per: m[4]}
	if r.amount == "leak" {
		return r, nil
	}
	var err error
	if r.limit, err = texts.ParseBytes[memory.Bytes](m[3] + m[6]); err != nil {
		err = fmt.Errorf("%w: %q: %w", errRule, text, err)
	}
	return r, err
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
	case r.amount == "leak" && c.Verdict.Kind != memory.Leak:
		return "", mayLeak(result, c)
	case r.amount == "leak" && old != nil && old.Verdict != nil && old.Verdict.Kind == memory.Leak:
		return "", ""
	case r.amount == "leak":
		return c.Verdict.String() + more, ""
	}
	now, ok := r.measured(c, epoch)
	if !ok {
		return "", fmt.Sprintf("its %s was not measured: %s", r.amount, c.Verdict)
	}
	if old != nil {
		before, ok := r.measured(old, epoch)
		if !ok {
			return "", fmt.Sprintf("the baseline has no %s", r.amount)
		}
		now = memory.Interval{Estimate: now.Estimate - before.Estimate, Low: now.Low - before.High,
			High: now.High - before.Low}
	}
	per := ""
	if r.per != "" {
		per = " per " + r.per
	}
	switch limit := float64(r.limit); {
	case now.Low > limit:
		breaks = fmt.Sprintf("%s of %v%s is above %v%s", r.amount, memory.Bytes(now.Estimate), per, r.limit, more)
	case now.High > limit:
		open = fmt.Sprintf("its %s is between %v and %v%s, which may be above %v", r.amount, memory.Bytes(now.Low),
			memory.Bytes(now.High), per, r.limit)
	}
	return breaks, open
}

// measured returns the amount of a combination that the rule limits.
func (r Rule) measured(c *Combination, epoch float64) (i memory.Interval, ok bool) {
	switch {
	case r.amount == "peak" && c.Figures.Peak != nil:
		peak := float64(*c.Figures.Peak)
		return memory.Interval{Estimate: peak, Low: peak, High: peak}, true
	case r.amount == "peak" || c.Verdict == nil || c.Verdict.NoiseFloor == 0: // a verdict without a slope has no noise
		return i, false
	case r.per == "step":
		epoch = 1
	}
	s := c.Verdict.Slope
	return memory.Interval{Estimate: s.Estimate * epoch, Low: s.Low * epoch, High: s.High * epoch}, true
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
