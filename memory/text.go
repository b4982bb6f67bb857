package memory

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
)

// String formats the verdict in a line: kind, reason, slope, level, carrier and confidence.
func (v Verdict) String() string {
	if v.Kind == "" {
		return "no verdict"
	}
	text := string(v.Kind)
	if rise := v.Level - v.Start; rise > 0 && (v.Kind == Plateau || v.Kind == Jump) {
		text += fmt.Sprintf(", +%s since the start", v.amount(rise))
	}
	if v.Reason != "" {
		text += ": " + v.Reason
	}
	if v.NoiseFloor > 0 {
		text += ": " + memlayer.Rate(v.Layer, v.Per, v.Slope.Estimate, v.Slope.Low, v.Slope.High) + " at " + v.amount(v.Level)
	}
	if v.More > 0 {
		text += fmt.Sprintf("; about %s more would decide", v.length(v.More))
	}
	switch v.Cause {
	case "":
	case memlayer.Unattributed:
		text += ", carried by no sampled layer"
	case memlayer.Retention:
		text += ", retained freed memory (malloc in use is flat)"
	default:
		text += ", carried by " + string(v.Carrier)
	}
	if v.NoiseFloor > 0 {
		text += fmt.Sprintf(" (%s%% interval, %d samples over %s of %s)",
			strconv.FormatFloat(100*v.Confidence, 'g', 4, 64), v.Samples, v.length(v.To-v.From), v.Layer)
	}
	return text
}

func (v Verdict) amount(b Bytes) string { return memlayer.Amount(v.Layer, float64(b)) }

func (v Verdict) length(x float64) string {
	if v.Per == memlayer.PerMinute {
		return texts.Duration(time.Duration(x * float64(time.Minute)))
	}
	return texts.Count(int64(math.Round(x)), "step")
}
