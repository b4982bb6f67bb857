package docs

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/testkit"
	"steadyfit/memory"
)

var (
	// ratioCell matches a ratio and its run in a cell: "x0.69 (S3/bf16)". A ratio with an unclear effect
	// is marked: "x1.20 (S1d/bf16, unclear)".
	ratioCell = regexp.MustCompile(`^(x\d+(?:\.\d+)?) \((\w+/[\w-]+)(, unclear)?\)$`)
	// rangeCell matches the lowest and highest ratio of several remedies: "x0.98 to x1.02 (S1d/no-*)".
	rangeCell = regexp.MustCompile(`^(x\d+(?:\.\d+)?) to (x\d+(?:\.\d+)?) \((\w+/[\w-]+)\*\)$`)
	// reasonCell matches a cell, or a part of a cell, without a figure.
	reasonCell = regexp.MustCompile(`^none: \w`)
)

const needsGPU = "needs a GPU: make matrix-gpu"

// effects are the ratios of a published matrix by "workload/remedy".
type effects map[string]compare.Ratio

func effectsOf(t *testing.T, file string, of func(*compare.Comparison) compare.Ratio) effects {
	t.Helper()
	result, err := matrix.ReadFile(filepath.Join("../..", file))
	require.NoError(t, err)
	found := effects{}
	for _, cell := range result.Combinations {
		if cell.Runtime == "go" && cell.Comparison != nil {
			if r := of(cell.Comparison); r.OK {
				found[cell.Workload+"/"+cell.Remedy] = r
			}
		}
	}
	return found
}

func ratioText(x float64) string {
	if math.Round(x*100) >= 1000 {
		return fmt.Sprintf("x%.0f", x)
	}
	return fmt.Sprintf("x%.2f", x)
}

// wrongCell describes the mistake in a cell about the effect of an option, or returns "".
func wrongCell(cell string, measured effects) string {
	if cell == needsGPU {
		return ""
	}
	for part := range strings.SplitSeq(cell, "; ") {
		if reasonCell.MatchString(part) {
			continue
		}
		if m := ratioCell.FindStringSubmatch(part); m != nil {
			r, ok := measured[m[2]]
			want := ratioText(r.Estimate) + " (" + m[2]
			if r.Effect == compare.Unclear {
				want += ", unclear"
			}
			if want += ")"; !ok {
				return m[2] + " was not measured"
			} else if part != want {
				return fmt.Sprintf("it has %q, measured was %q", part, want)
			}
			continue
		}
		m := rangeCell.FindStringSubmatch(part)
		if m == nil {
			return fmt.Sprintf("%q is no ratio with its source, as in x0.69 (S3/bf16), nor %q, nor none: with a reason", part,
				needsGPU)
		}
		low, high := math.Inf(1), math.Inf(-1)
		for id, r := range measured {
			if strings.HasPrefix(id, m[3]) {
				low, high = min(low, r.Estimate), max(high, r.Estimate)
			}
		}
		if math.IsInf(low, 1) {
			return "nothing measured begins with " + m[3]
		}
		if want := fmt.Sprintf("%s to %s (%s*)", ratioText(low), ratioText(high), m[3]); part != want {
			return fmt.Sprintf("it has %q, measured was %q", part, want)
		}
	}
	return ""
}

func TestWrongCell(t *testing.T) {
	ratio := func(estimate float64, effect compare.Effect) compare.Ratio {
		return compare.Ratio{OK: true, Interval: memory.Interval{Estimate: estimate}, Effect: effect}
	}
	measured := effects{
		"S3/bf16": ratio(0.69, compare.Works), "S1d/bf16": ratio(1, compare.Unclear), "S1/xla": ratio(12.4, compare.Harmful),
		"S1d/no-layout": ratio(0.98, compare.NoEffect), "S1d/no-loops": ratio(1.02, compare.NoEffect),
	}
	for _, cell := range []string{needsGPU, "none: TensorFlow ignores it", "x0.69 (S3/bf16)",
		"x1.00 (S1d/bf16, unclear); x0.69 (S3/bf16)", "x0.98 to x1.02 (S1d/no-*)", "x12 (S1/xla); none: S3 crashes with it"} {
		assert.Empty(t, wrongCell(cell, measured), cell)
	}
	for _, cell := range []string{"", "TODO", "?", "x0.9? (S3/bf16)", "none", "none:", "faster", "x0.69", "0.69 (S3/bf16)",
		"x0.68 (S3/bf16)", "x0.69 (S3/bf16, unclear)", "x1.00 (S1d/bf16)", "x0.69 (S3/fp16)", "x0.97 to x1.02 (S1d/no-*)",
		"x0.98 to x1.02 (S3/no-*)", "x0.69 (S3/bf16); faster", "x0.69 (S3/bf16); " + needsGPU} {
		assert.NotEmpty(t, wrongCell(cell, measured), cell)
	}
}

// The effects of options in docs/reference/devices.md are those in docs/results.
func TestEffectsOfOptions(t *testing.T) {
	const file = "docs/results/options.json.gz"
	columns := map[string]effects{
		"memory": effectsOf(t, file, func(c *compare.Comparison) compare.Ratio { return c.Peak }),
		"speed":  effectsOf(t, file, func(c *compare.Comparison) compare.Ratio { return c.StepTime }),
	}
	rows := 0
	for _, table := range testkit.Tables(read(t, "docs/reference/devices.md")) {
		if !slices.Contains(table.Header, "memory") {
			continue
		}
		for i, row := range table.Rows {
			line := table.Line + 2 + i
			require.Len(t, row, len(table.Header), "docs/reference/devices.md:%d", line)
			for name, measured := range columns {
				if wrong := wrongCell(row[slices.Index(table.Header, name)], measured); wrong != "" {
					t.Errorf("docs/reference/devices.md:%d: %s, %s: %s", line, row[1], name, wrong)
				}
			}
			rows++
		}
	}
	assert.Equal(t, 26, rows)
}
