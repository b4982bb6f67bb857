package matrix

import (
	"errors"
	"fmt"
	"strings"

	"steadyfit/memory"
)

// ErrRule: a rule that cannot be read.
var ErrRule = errors.New("not a rule")

// Rule is a limit that workloads as they are must keep, for continuous
// integration: "slope>64KiB/epoch", "slope>1KiB/step", "peak>1GiB", "level>500MiB",
// or "leak".
type Rule struct {
	Amount string // "slope", "peak", "level" or "leak"
	Limit  memory.Bytes
	Epoch  bool // the limit of a slope is per epoch rather than per step
}

// ParseRule reads a rule.
func ParseRule(text string) (Rule, error) {
	wrong := func(why string) (Rule, error) {
		return Rule{}, fmt.Errorf("%w: %q: %s; expected slope>64KiB/epoch, slope>1KiB/step, peak>1GiB, level>500MiB or leak", ErrRule, text, why)
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
		return wrong("what is before > and after / does not fit together")
	}
	var err error
	if r.Limit, err = memory.ParseBytes(size); err != nil {
		return Rule{}, fmt.Errorf("%w: %q: %w", ErrRule, text, err)
	}
	return r, nil
}

// Check lists what breaks the rule, a sentence each. With a baseline from an
// earlier matrix, the rule is on what has been added since: on the difference to
// the same workload there. A slope breaks a rule if the middle run's whole
// interval lies above the limit. A run that crashed breaks every rule.
func (r Rule) Check(result, baseline *Result) []string {
	epochs := make(map[string]float64)
	for _, w := range result.Workloads {
		epochs[w.ID] = float64(w.Epoch)
	}
	before := make(map[cellID]Cell)
	if baseline != nil {
		for _, c := range baseline.Cells {
			before[cellID{c.Runtime, c.Workload, c.Remedy}] = c
		}
	}
	leaky := make(map[cellID]bool)
	for _, w := range result.Workloads {
		if w.Leak != nil && *w.Leak > 0 {
			for _, runtime := range Runtimes() {
				leaky[cellID{runtime, w.ID, Baseline}] = true // leaks on purpose
			}
		}
	}
	var broken []string
	for _, c := range result.Cells {
		id := cellID{c.Runtime, c.Workload, c.Remedy}
		if c.Remedy != Baseline || c.Verdict == nil || leaky[id] {
			continue
		}
		name := c.Runtime + " " + c.Workload
		if c.Verdict.Kind == memory.Crash {
			broken = append(broken, fmt.Sprintf("%s: %s", name, c.Verdict))
			continue
		}
		old, since := before[id]
		if text := r.breaks(c, old, epochs[c.Workload]); text != "" {
			if since {
				text += " more than in the baseline"
			}
			broken = append(broken, name+": "+text)
		}
	}
	return broken
}

func (r Rule) breaks(c, old Cell, epoch float64) string {
	amount := func(now, then *int64) string {
		if now == nil {
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
	scale, per := 1.0, "step"
	if r.Epoch {
		scale, per = epoch, "epoch"
	}
	slope := c.Verdict.Slope
	if old.Verdict != nil {
		slope.Low -= old.Verdict.Slope.High
		slope.Estimate -= old.Verdict.Slope.Estimate
	}
	if slope.Low*scale <= float64(r.Limit) {
		return ""
	}
	return fmt.Sprintf("slope of %v per %s is above %v", memory.Bytes(slope.Estimate*scale), per, r.Limit)
}
