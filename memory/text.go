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
	slope := Rate(v.Layer, v.Slope, v.Per, true)
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
		if t.Layer == GoHeap && math.Abs(t.Share) < flatShare {
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

// Rate is a slope of a layer, "+3.1 MiB/min", or with its bounds,
// "+3.1 MiB/min [2.9, 3.4]", in the largest unit that suits all that is shown.
func Rate(layer Layer, s Interval, per Per, bounds bool) string {
	unit, size := "", 1.0
	largest := math.Abs(s.Estimate)
	if bounds {
		largest = max(largest, math.Abs(s.Low), math.Abs(s.High))
	}
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
	number := func(v float64) string { return decimal(v/size, digits(largest/size)) }
	text := number(s.Estimate)
	if strings.Trim(text, "0.") != "" && !strings.HasPrefix(text, "-") {
		text = "+" + text
	}
	text += unit + "/" + by
	if bounds {
		text += fmt.Sprintf(" [%s, %s]", number(s.Low), number(s.High))
	}
	return text
}

// Times is the ratio, "x0.52", or with its bounds, "x0.52 [0.49, 0.55]". An upper
// bound that is none is "inf". A ratio that is not OK is "unknown".
func (r Ratio) Times(bounds bool) string {
	if !r.OK {
		return Reading{}.String()
	}
	number := func(v float64) string {
		switch {
		case math.Abs(v) >= 1e4: // says no more than that it is large
			return strconv.FormatFloat(v, 'g', 2, 64)
		case math.Abs(v) >= 10:
			return decimal(v, 1)
		case v < 0.01 && r.Low > 0: // not a slope that may be 0
			return trimmedZero(decimal(v, 3))
		}
		return trimmedZero(decimal(v, 2))
	}
	text := "x" + number(r.Estimate)
	if !bounds {
		return text
	}
	high := number(r.High)
	// Files of before there was Unbounded have the largest number alone.
	if r.Unbounded || r.High >= math.MaxFloat64 {
		high = "inf"
	}
	return fmt.Sprintf("%s [%s, %s]", text, number(r.Low), high)
}

// decimal is a number with so many digits after the point, and without a sign if they
// are all 0.
func decimal(v float64, digits int) string {
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Trim(text, "-0.") == "" {
		text = strings.TrimPrefix(text, "-")
	}
	return text
}

// trimmedZero is "0" for "0.00".
func trimmedZero(text string) string {
	if strings.Trim(text, "0.") == "" {
		return "0"
	}
	return text
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
