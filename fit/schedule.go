package fit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

type schedule = func(step int64, epoch int) float64

// Constant returns a schedule with one rate. ParseSchedule returns other schedules.
func Constant(rate float64) func(step int64, epoch int) float64 {
	return func(int64, int) float64 { return rate }
}

// progress returns the part of the steps that are done, at most 1.
func progress(step, steps int64) float64 {
	if step >= steps {
		return 1
	}
	return float64(step) / float64(steps)
}

const scheduleGrammar = "expected RATE, cosine:RATE:STEPS[:FINAL], linear:RATE:STEPS[:FINAL], " +
	"step:RATE:FACTOR:EPOCHS, exp:RATE:FACTOR:STEPS, or warmup:STEPS: before one of them"

// ParseSchedule parses a schedule in the syntax of the command line:
//
//	0.001                    always this rate
//	cosine:0.001:1000        from 0.001 to 0 along half a cosine in 1000 steps
//	cosine:0.001:1000:1e-5   the same, to 1e-5
//	linear:0.001:1000[:1e-5] the same along a line
//	step:0.1:0.5:10          half the rate after every 10 epochs
//	exp:0.1:0.96:1000        times 0.96 in every 1000 steps, in equal ratios
//	warmup:100:0.001         rising linearly in the first 100 steps of any of these
//
// Rates are at least 0, factors are above 0, and steps and epochs are whole numbers of at least
// 1.
func ParseSchedule(text string) (func(step int64, epoch int) float64, error) {
	a := &arguments{parts: strings.Split(strings.TrimSpace(text), ":")}
	s := a.schedule()
	if a.err == nil && len(a.parts) > 0 {
		a.fail("%q is one argument too many", strings.Join(a.parts, ":"))
	}
	if a.err != nil {
		return nil, fmt.Errorf("learning rate %q: %w; %s", text, a.err, scheduleGrammar)
	}
	return s, nil
}

// arguments are the unparsed parts of a schedule, and the first error.
type arguments struct {
	parts []string
	err   error
}

func (a *arguments) schedule() schedule {
	kind := a.parts[0]
	switch kind {
	case "cosine", "linear", "step", "exp", "warmup":
		a.parts = a.parts[1:]
	}
	switch kind {
	case "cosine":
		initial, steps, final := a.rate(), a.count(), a.final()
		return func(step int64, _ int) float64 {
			return final + (initial-final)*(1+math.Cos(math.Pi*progress(step, steps)))/2
		}
	case "linear":
		initial, steps, final := a.rate(), a.count(), a.final()
		return func(step int64, _ int) float64 { return initial + (final-initial)*progress(step, steps) }
	case "step":
		initial, factor, epochs := a.rate(), a.factor(), a.count()
		return func(_ int64, epoch int) float64 { return initial * math.Pow(factor, float64(epoch/int(epochs))) }
	case "exp":
		initial, factor, steps := a.rate(), a.factor(), a.count()
		return func(step int64, _ int) float64 { return initial * math.Pow(factor, float64(step)/float64(steps)) }
	case "warmup":
		steps := a.count()
		if len(a.parts) == 0 {
			a.fail("warmup has no schedule after it")
			return nil
		}
		then := a.schedule()
		return func(step int64, epoch int) float64 {
			rate := then(step, epoch)
			if step < steps {
				rate *= float64(step+1) / float64(steps)
			}
			return rate
		}
	}
	return Constant(a.rate())
}

func (a *arguments) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, args...)
	}
}

func (a *arguments) take(what string) string {
	if len(a.parts) == 0 {
		a.fail("the %s is missing", what)
		return ""
	}
	part := a.parts[0]
	a.parts = a.parts[1:]
	return part
}

func (a *arguments) rate() float64 {
	text := a.take("rate")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !validRate(v) {
		a.fail("the rate %q is not a number of 0 or more", text)
	}
	return v
}

func (a *arguments) final() float64 {
	if len(a.parts) == 0 {
		return 0
	}
	return a.rate()
}

func (a *arguments) factor() float64 {
	text := a.take("factor")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !validRate(v) || v == 0 {
		a.fail("the factor %q is not a number above 0", text)
	}
	return v
}

func (a *arguments) count() int64 {
	text := a.take("number of steps or epochs")
	v, err := strconv.ParseInt(text, 10, 32)
	if err != nil || v < 1 {
		a.fail("%q is not a whole number of at least 1", text)
	}
	return v
}

func validRate(rate float64) bool {
	return rate >= 0 && !math.IsInf(rate, 1)
}
