package fit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSchedule(t *testing.T) {
	for _, c := range []struct {
		text  string
		step  int64
		epoch int
		want  float64
	}{
		{"0.001", 500, 7, 0.001},
		{" 1e-3 ", 0, 0, 0.001},
		{"cosine:0.1:1000", 0, 0, 0.1},
		{"cosine:0.1:1000", 500, 0, 0.05},
		{"cosine:0.1:1000", 1000, 0, 0},
		{"cosine:0.1:1000", 5000, 0, 0},
		{"cosine:0.1:1000:0.02", 500, 0, 0.06},
		{"cosine:0.1:1000:0.02", 9999, 0, 0.02},
		{"linear:0.1:10", 5, 0, 0.05},
		{"linear:0.1:10:0.2", 5, 0, 0.15},
		{"linear:0.1:10:0.2", 50, 0, 0.2},
		{"step:0.1:0.5:10", 1e6, 9, 0.1},
		{"step:0.1:0.5:10", 0, 10, 0.05},
		{"step:0.1:0.5:10", 0, 25, 0.025},
		{"exp:0.1:0.5:100", 0, 3, 0.1},
		{"exp:0.1:0.5:100", 100, 3, 0.05},
		{"exp:0.1:0.5:100", 50, 3, 0.1 * math.Sqrt(0.5)},
		{"warmup:10:0.1", 0, 0, 0.01},
		{"warmup:10:0.1", 9, 0, 0.1},
		{"warmup:10:0.1", 10, 0, 0.1},
		{"warmup:10:cosine:0.1:1000", 500, 0, 0.05},
		{"warmup:2:step:0.1:0.5:10", 0, 10, 0.025},
	} {
		s, err := ParseSchedule(c.text)
		require.NoError(t, err, c.text)
		require.InDelta(t, c.want, s(c.step, c.epoch), 1e-15, "%s at step %d, epoch %d", c.text, c.step, c.epoch)
	}
	for text, why := range map[string]string{
		"":                     `the rate "" is not a number`,
		"fast":                 `the rate "fast"`,
		"-1":                   `the rate "-1"`,
		"NaN":                  `the rate "NaN"`,
		"Inf":                  `the rate "Inf"`,
		"0.1:0.2":              `"0.2" is one argument too many`,
		"cosine":               "the rate is missing",
		"cosine:0.1":           "number of steps or epochs is missing",
		"cosine:0.1:0":         `"0" is not a whole number`,
		"cosine:0.1:1.5":       `"1.5" is not a whole number`,
		"cosine:0.1:10:0:5":    `"5" is one argument too many`,
		"step:0.1:0:10":        `the factor "0"`,
		"exp:0.1:-2:10":        `the factor "-2"`,
		"warmup:10":            "warmup has no schedule after it",
		"warmup:0:0.1":         `"0" is not a whole number`,
		"warmup:10:fast":       `the rate "fast"`,
		"triangle:0.1:0.2:100": `the rate "triangle"`,
	} {
		_, err := ParseSchedule(text)
		require.ErrorContains(t, err, why, text)
		require.ErrorContains(t, err, "expected RATE, cosine:", text)
	}
}

// parsed returns a schedule for the loop of a test.
func parsed(text string) schedule {
	s, err := ParseSchedule(text)
	if err != nil {
		panic(err)
	}
	return s
}
