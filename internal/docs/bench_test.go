package docs

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/runner"
	"steadyfit/internal/stats"
)

// speedTable returns the table of docs/explanation/speed.md, from the runs in Go benchmark format. Ratios are taken
// within each turn.
func speedTable(t *testing.T, text string) string {
	var models []string
	times := map[string][]float64{} // "model/way", in nanoseconds by turn
	for _, m := range regexp.MustCompile(`model=(\S+)/way=(\S+)-\d+\t1\t(\d+) ns/op`).FindAllStringSubmatch(text, -1) {
		ns, err := strconv.ParseFloat(m[3], 64)
		require.NoError(t, err)
		times[m[1]+"/"+m[2]] = append(times[m[1]+"/"+m[2]], ns)
		if !slices.Contains(models, m[1]) {
			models = append(models, m[1])
		}
	}
	var b bytes.Buffer
	b.WriteString("| workload | C loop, us | `fit --auto off`, to C | `fit --auto`, to C | what it runs | galeone, to C | " +
		"Keras `fit`, to auto | Keras at its best, to auto |\n|---|---|---|---|---|---|---|---|\n")
	for _, model := range models {
		ratio := func(way, base string) float64 {
			var ratios []float64
			for turn, ns := range times[model+"/"+way] {
				ratios = append(ratios, ns/times[model+"/"+base][turn])
			}
			return stats.Median(ratios)
		}
		best := math.Inf(1)
		for _, way := range []string{"keras-fit", "keras-fit-spe", "keras-fit-jit", "keras-fit-spe-jit"} {
			if times[model+"/"+way] != nil {
				best = min(best, ratio(way, "fit-auto"))
			}
		}
		chosen := regexp.MustCompile(`# ` + model + `: (.*?):`).FindStringSubmatch(text)
		require.NotNil(t, chosen, model)
		c := stats.Median(times[model+"/c"]) / 1e3
		fmt.Fprintf(&b, "| `%s` | %s | %.3g | %.3g | %s | %.3g | %.3g | %.3g |\n", model,
			strconv.FormatFloat(c, 'f', map[bool]int{true: 0, false: 1}[c >= 100], 64), ratio("fit", "c"), ratio("fit-auto", "c"),
			chosen[1], ratio("galeone", "c"), ratio("keras-fit", "fit-auto"), best)
	}
	return b.String()
}

// The table of docs/explanation/speed.md has the measured figures.
func TestSpeedOfTrainings(t *testing.T) {
	text, err := runner.ReadGzip(filepath.Join(root, "docs", "results", "bench.txt.gz"), 1<<20)
	require.NoError(t, err)
	table := speedTable(t, string(text))
	assert.True(t, strings.Contains(read(t, "docs/explanation/speed.md"), "\n"+table+"\n"),
		"docs/explanation/speed.md has to have\n%s", table)
}
