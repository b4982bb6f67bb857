package memory

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// String is the verdict in a line: what, how much with its interval, what
// carries it, and how sure that is.
func (v Verdict) String() string {
	var b strings.Builder
	slope := perUnit(v.Layer, v.Slope, v.Per)
	level, change := v.Layer.amount(float64(v.Level)), signed(v.Layer, float64(v.Level-v.Start))
	switch v.Kind {
	case Leak:
		fmt.Fprintf(&b, "leak: %s", slope)
		if v.Falls > 0 {
			fmt.Fprintf(&b, ", on top of %d falls of about %s", v.Falls, v.Layer.amount(float64(v.Depth)))
		}
	case Plateau:
		fmt.Fprintf(&b, "plateau at %s, %s since the start, ", level, change)
		if v.Model == Saturating {
			fmt.Fprintf(&b, "levelling off: %s", slope)
		} else {
			fmt.Fprintf(&b, "reached by %s; since then %s", v.when(v.From), slope)
		}
	case Jump:
		at := v.From
		if len(v.Jumps) > 0 {
			at, change = v.Jumps[0].At, signed(v.Layer, float64(v.Jumps[0].Amount))
		}
		fmt.Fprintf(&b, "jump: %s at %s, then flat at %s: %s", change, v.when(at), level, slope)
	case Flat:
		fmt.Fprintf(&b, "flat at %s: %s", level, slope)
		if v.Budget > 0 {
			fmt.Fprintf(&b, ", within the budget of %s", v.Layer.amount(float64(v.Budget)))
		}
	case Sawtooth:
		fmt.Fprintf(&b, "sawtooth: %d falls of about %s, no growth: %s", v.Falls, v.Layer.amount(float64(v.Depth)), slope)
	case Inconclusive:
		fmt.Fprintf(&b, "inconclusive: %s", v.Reason)
		if v.Slope != (Interval{}) {
			fmt.Fprintf(&b, ": %s", slope)
		}
		if v.More > 0 {
			fmt.Fprintf(&b, "; about %s more would decide", v.length(v.More))
		}
	case Crash:
		fmt.Fprintf(&b, "crash: %s", v.Reason)
	default:
		return "no verdict"
	}
	if v.Cause != "" {
		b.WriteString(", ")
		b.WriteString(v.carriedBy())
	}
	if v.NoiseFloor > 0 {
		fmt.Fprintf(&b, " (%s%% interval, %d samples over %s of %s)",
			strconv.FormatFloat(100*v.Confidence, 'g', 4, 64), v.Samples, v.length(v.To-v.From), v.Layer)
	}
	return b.String()
}

// carriedBy names the layer and what it is not.
func (v Verdict) carriedBy() string {
	if v.Cause == Unattributed {
		return "carried by no layer that was sampled"
	}
	text := "carried by " + string(v.Carrier)
	if v.Cause == Retention {
		text = "freed memory that is kept (malloc in use is flat)"
	}
	if v.Cause == HostHistory || v.Cause == Retention || v.Cause == GoRuntime {
		return text
	}
	for _, t := range v.Trends {
		if t.Layer == GoHeap && math.Abs(t.Share) < stands {
			return text + " (not the Go heap)"
		}
	}
	return text
}

func (v Verdict) when(x float64) string {
	if v.Per == PerMinute {
		return v.length(x)
	}
	return "step " + strconv.FormatFloat(math.Ceil(x), 'f', 0, 64)
}

func (v Verdict) length(x float64) string {
	if v.Per == PerMinute {
		return duration(x)
	}
	if n := math.Round(x); n != 1 {
		return strconv.FormatFloat(n, 'f', 0, 64) + " steps"
	}
	return "1 step"
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

// perUnit is a slope and its bounds in the largest unit that suits all three:
// "+3.1 MiB/min [2.9, 3.4]".
func perUnit(layer Layer, s Interval, per Per) string {
	unit, size := "", 1.0
	largest := max(math.Abs(s.Estimate), math.Abs(s.Low), math.Abs(s.High))
	switch layer.Unit() {
	case InBytes:
		unit = " B"
		for _, u := range []struct {
			name string
			size Bytes
		}{{" GiB", GiB}, {" MiB", MiB}, {" KiB", KiB}} {
			if largest >= float64(u.size) {
				unit, size = u.name, float64(u.size)
				break
			}
		}
	case InNanoseconds:
		unit = " ns"
	}
	by := "step"
	if per == PerMinute {
		by = "min"
	}
	number := func(v float64) string {
		text := strconv.FormatFloat(v/size, 'f', digits(largest/size), 64)
		if strings.Trim(text, "-0.") == "" {
			text = strings.TrimPrefix(text, "-")
		}
		return text
	}
	estimate := number(s.Estimate)
	if !strings.HasPrefix(estimate, "-") {
		estimate = "+" + estimate
	}
	return fmt.Sprintf("%s%s/%s [%s, %s]", estimate, unit, by, number(s.Low), number(s.High))
}

// digits after the point: three significant ones, two at least of a number
// below 1.
func digits(v float64) int {
	switch {
	case v >= 100:
		return 0
	case v >= 1 || v == 0:
		return 1
	}
	return min(1-int(math.Floor(math.Log10(v))), 6)
}

func signed(layer Layer, v float64) string {
	text := layer.amount(v)
	if v >= 0 {
		return "+" + text
	}
	return text
}
