package memory

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/memlayer"
)

// String formats the verdict in a line: kind, slope, interval, carrier and confidence.
func (v Verdict) String() string {
	text, ok := v.finding()
	if !ok {
		return "no verdict"
	}
	if v.Cause != "" {
		text += ", " + v.carriedBy()
	}
	if v.NoiseFloor > 0 {
		text += fmt.Sprintf(" (%s%% interval, %d samples over %s of %s)",
			strconv.FormatFloat(100*v.Confidence, 'g', 4, 64), v.Samples, v.length(v.To-v.From), v.Layer)
	}
	return text
}

func (v Verdict) finding() (text string, ok bool) {
	amount := func(b Bytes) string { return memlayer.Amount(v.Layer, float64(b)) }
	slope := v.rate(v.Layer, v.Slope)
	falls := fmt.Sprintf("%d falls of about %s", v.Falls, amount(v.Depth))
	switch v.Kind {
	case Leak:
		text = "leak: " + slope
		if v.Falls > 0 {
			text += ", on top of " + falls
		}
	case Plateau:
		text = fmt.Sprintf("plateau at %s, %s since the start, ", amount(v.Level), v.signed(v.Level-v.Start))
		if v.Model == saturatingModel {
			text += "levelling off: " + slope
		} else {
			text += fmt.Sprintf("reached by %s; since then %s", v.when(v.From), slope)
		}
	case Jump:
		jump := Change{v.From, v.Level - v.Start}
		if len(v.Jumps) > 0 {
			jump = v.Jumps[0]
		}
		text = fmt.Sprintf("jump: %s at %s, then flat at %s: %s", v.signed(jump.Amount), v.when(jump.At), amount(v.Level),
			slope)
	case Flat:
		text = fmt.Sprintf("flat at %s: %s", amount(v.Level), slope)
		if v.Budget > 0 {
			text += ", within the tolerance of growth of " + amount(v.Budget)
		}
	case Sawtooth:
		text = fmt.Sprintf("sawtooth: %s, no growth: %s", falls, slope)
	case Inconclusive:
		text = "inconclusive: " + v.Reason
		if v.Slope != (Interval{}) {
			text += ": " + slope
		}
		if v.More > 0 {
			text += fmt.Sprintf("; about %s more would decide", v.length(v.More))
		}
	case memlayer.Crash:
		text = "crash: " + v.Reason
	}
	return text, text != ""
}

// carriedBy describes the carrier. It mentions that the Go heap is not the carrier if that is certain.
func (v Verdict) carriedBy() string {
	switch v.Cause {
	case memlayer.Unattributed:
		return "carried by no sampled layer"
	case memlayer.Retention:
		return "retained freed memory (malloc in use is flat)"
	}
	text := "carried by " + string(v.Carrier)
	for _, t := range v.Trends {
		if t.Layer == memlayer.GoHeap && math.Abs(t.Share) < flatShare && v.Cause != memlayer.HostHistory &&
			v.Cause != memlayer.GoRuntime {
			text += " (not the Go heap)"
		}
	}
	return text
}

func (v Verdict) when(x float64) string {
	if v.Per == memlayer.PerMinute {
		return v.length(x)
	}
	return "step " + strconv.FormatFloat(math.Ceil(x), 'f', 0, 64)
}

func (v Verdict) length(x float64) string {
	if v.Per == memlayer.PerMinute {
		return duration(x)
	}
	if n := math.Round(x); n != 1 {
		return strconv.FormatFloat(n, 'f', 0, 64) + " steps"
	}
	return "1 step"
}

// rate formats a slope of a layer with its bounds.
func (v Verdict) rate(layer Layer, s Interval) string {
	return memlayer.Rate(layer, v.Per, s.Estimate, s.Low, s.High)
}

func (v Verdict) signed(b Bytes) string {
	text := memlayer.Amount(v.Layer, float64(b))
	if b >= 0 {
		return "+" + text
	}
	return text
}

func duration(minutes float64) string {
	d := time.Duration(minutes * float64(time.Minute))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Minute:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
