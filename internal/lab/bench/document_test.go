package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/runner"
)

// documentTable returns the figures that docs/explanation/speed.md quotes: times relative to the C
// loop, and times of Keras relative to --auto, with ratios taken within each turn.
func documentTable(r *Report) string {
	var b strings.Builder
	b.WriteString("| workload | C loop, us | `fit --auto off`, to C | `fit --auto`, to C | what it runs | galeone, to C | Keras `fit`, to auto | Keras at its best, to auto |\n|---|---|---|---|---|---|---|---|\n")
	for _, w := range r.Workloads {
		rows := map[string]Row{}
		best := math.Inf(1)
		for _, row := range r.Summary {
			if row.Workload == w.Name {
				rows[row.Variant] = row
				if strings.HasPrefix(row.Variant, kerasVariant) {
					best = min(best, row.ToAuto.Value)
				}
			}
		}
		to := func(variant string) string { return number(rows[variant].ToBase.Value, 1) }
		ways, _, _ := strings.Cut(r.chosen(w.Name), ":")
		// names in the measured version
		ways = strings.NewReplacer("fused 50 steps", "50 steps per execution", "XLA twin", "XLA-compiled").Replace(ways)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", w.Name, number(rows[baseVariant].StepNS.Value, 1e3),
			to("steadyfit-fit"), to(autoVariant), ways, to("galeone"), number(rows[kerasVariant].ToAuto.Value, 1),
			number(best, 1))
	}
	return b.String()
}

// The table of docs/explanation/speed.md matches docs/results/bench.json.gz.
func TestDocument(t *testing.T) {
	text, err := runner.ReadGzip(filepath.Join("..", "..", "..", "docs", "results", "bench.json.gz"), 1<<20)
	require.NoError(t, err)
	r := &Report{}
	require.NoError(t, json.Unmarshal(text, r))
	summary := slices.Clone(r.Summary)
	r.finish(r.Done)
	assert.Equal(t, summary, r.Summary, "the summary is that of the runs")
	document, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "explanation", "speed.md"))
	require.NoError(t, err)
	table := documentTable(r)
	assert.True(t, strings.Contains(string(document), "\n"+table+"\n"), "docs/explanation/speed.md has to have\n%s", table)
}
