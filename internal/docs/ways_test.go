package docs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/program"
)

// ways lists the ways to compute in 16 bits that docs/results/precision.yaml covers, with the runs
// of the matrix for the models digits and digits-cnn.
var ways = []struct{ precision, digits, cnn string }{
	{"fp32", "S5/none", "S6/none"},
	{"bf16-rewritten", "S5/bf16", "S6/bf16"},
	{"bf16-exported", "S5b/none", "S6b/none"},
	{"fp16-rewritten", "S5/fp16", "S6/fp16"},
	{"fp16-exported", "S5h/none", "S6h/none"},
	{"fp16-scaled", "S5s/none", ""},
}

// waysTable returns the table of 16-bit computation in docs/reference/devices.md.
func waysTable(t *testing.T) string {
	result, err := matrix.ReadFile("../../docs/results/precision.json.gz")
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString("| model | precision | run | matrix operations in 16 bits | peak, MiB | step, ms |\n" +
		"|---|---|---|---|---|---|\n")
	for _, model := range []string{"digits", "digits-cnn"} {
		for _, way := range ways {
			id := way.digits
			if model != "digits" {
				id = way.cnn
			}
			if id == "" {
				continue
			}
			workload, remedy, _ := strings.Cut(id, "/")
			operations := ""
			for _, run := range result.Runs {
				if run.Runtime == matrix.Go && run.Workload == workload && run.Remedy == remedy {
					now := fmt.Sprintf("%s bfloat16, %s float16 of %s", run.Facts[program.FactMatrixBFloat16],
						run.Facts[program.FactMatrixFloat16], run.Facts[program.FactMatrix])
					require.Contains(t, []string{"", now}, operations, "%s: its runs differ", id)
					operations = now
				}
			}
			require.NotEmpty(t, operations, id)
			for _, c := range result.Combinations {
				if c.Runtime == matrix.Go && c.Workload == workload && c.Remedy == remedy {
					f := c.Figures
					require.NotNil(t, f.Peak, id)
					require.NotNil(t, f.StepTime, id)
					fmt.Fprintf(&b, "| %s | %s | %s | %s | %.0f | %.2f |\n", model, way.precision, id, operations,
						float64(*f.Peak)/(1<<20), float64(*f.StepTime)/1e6)
				}
			}
		}
	}
	return b.String()
}

// The table of 16-bit computation has the measured figures.
func TestWaysToComputeIn16Bits(t *testing.T) {
	doc, err := os.ReadFile("../../docs/reference/devices.md")
	require.NoError(t, err)
	table := waysTable(t)
	assert.True(t, strings.Contains(string(doc), "\n"+table+"\n"), "docs/reference/devices.md has to have\n%s", table)
}
