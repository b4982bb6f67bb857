package watch

import (
	"errors"
	"fmt"
	"strings"

	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// Rule is a condition under which a check fails.
type Rule struct {
	amount string // "leak", "slope" or "peak"
	limit  memory.Bytes
	per    string // "step" or "minute", of a slope
}

// ParseRule parses leak, slope>SIZE/step, slope>SIZE/minute or peak>SIZE.
func ParseRule(text string) (Rule, error) {
	if text == Leak {
		return Rule{amount: text}, nil
	}
	amount, size, found := strings.Cut(text, ">")
	size, per, _ := strings.Cut(size, "/")
	limit, err := texts.ParseBytes[memory.Bytes](size)
	amount = strings.TrimSpace(amount)
	if !found || err != nil || amount != "peak" && amount != "slope" || (amount == "peak") != (per == "") ||
		per != "" && per != "step" && per != "minute" {
		return Rule{}, fmt.Errorf("the rule %q is not known; expected leak, slope>64KiB/step, slope>1MiB/minute or peak>2GiB",
			text)
	}
	return Rule{amount, limit, per}, nil
}

// Check returns an error if the rule holds for a report.
func (r Rule) Check(of *Report) error {
	switch {
	case r.amount == Leak && of.Verdict == Leak:
		return fmt.Errorf("the memory leaks by %v per %s", memory.Bytes(of.Slope.Estimate), of.Unit)
	case r.amount == "slope":
		return r.checkSlope(of)
	case r.amount == "peak" && of.Peak > r.limit:
		return fmt.Errorf("the peak is %v, and the limit is %v", of.Peak, r.limit)
	}
	return nil
}

func (r Rule) checkSlope(of *Report) error {
	slope := of.Slope.Low
	switch {
	case r.per == "step" && of.Unit == perMinute:
		return errors.New("no steps were seen, so the growth per step is not known; use slope>SIZE/minute")
	case r.per == "minute" && of.Unit != perMinute:
		slope *= 60 / max(of.StepSeconds, 1e-9)
	}
	if slope > float64(r.limit) {
		return fmt.Errorf("the memory grows by at least %v per %s, and the limit is %v", memory.Bytes(slope), r.per, r.limit)
	}
	return nil
}
