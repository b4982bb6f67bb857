package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/measure"
)

func TestOrder(t *testing.T) {
	assert.Equal(t, []int{0, 1, 2, 3}, order(4, 0))
	assert.Equal(t, []int{3, 2, 1, 0}, order(4, 1))
	assert.Equal(t, []int{1, 2, 3, 0}, order(4, 2))
	assert.Equal(t, []int{1, 0}, order(2, 1), "with two variants, too, each is the first in turn")
	first := map[int]int{}
	for turn := range 40 {
		o := order(4, turn)
		first[o[0]]++
		slices.Sort(o)
		require.Equal(t, []int{0, 1, 2, 3}, o, "turn %d", turn)
	}
	assert.Equal(t, map[int]int{0: 10, 1: 10, 2: 10, 3: 10}, first, "how often each variant is the first")
}

func sampleRun(variant string, turn int, ns float64) Run {
	return Run{Workload: "w", Variant: variant, Turn: turn, FirstStepNS: 5e8,
		Sample: measure.Sample{Steps: 20, StepNS: []float64{ns, ns, ns * 9},
			Anon: []int64{100, 120, 140}, Peak: 400, WarmupLoss: 0.5, LastLoss: 0.4,
			Versions: map[string]string{"tensorflow": "2.21.0"}}}
}

var sampleWorkload = Workload{Name: "w", Batch: 32, Steps: 10, Epochs: 2}

func TestOtherWork(t *testing.T) {
	base := sampleRun("c", 0, 100)
	for _, test := range []struct {
		name   string
		random bool
		change func(*Run)
		want   string
	}{
		{"the same", false, func(*Run) {}, ""},
		{"another order of additions", false, func(r *Run) { r.WarmupLoss *= 1.0005 }, ""},
		{"another loss", false, func(r *Run) { r.WarmupLoss = 0.51 },
			"its mean loss over the first 10 steps is 0.51, that of c is 0.5; the largest relative difference is 0.001"},
		{"random numbers", true, func(r *Run) { r.WarmupLoss = 0.51 }, ""},
		{"another loss with random numbers", true, func(r *Run) { r.WarmupLoss = 0.6 },
			"its mean loss over the first 10 steps is 0.6, that of c is 0.5; the largest relative difference is 0.05"},
		{"no number", false, func(r *Run) { r.WarmupLoss = math.NaN() },
			"its mean loss over the first 10 steps is NaN, that of c is 0.5; the largest relative difference is 0.001"},
		{"fewer steps", false, func(r *Run) { r.Steps = 19 }, "it ran 19 steps, expected 20"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, w := base, sampleWorkload
			w.Random = test.random
			test.change(&r)
			assert.Equal(t, test.want, otherWork(w, &base, &r))
		})
	}
}

// Each turn is slower than the previous one. Within a turn, one variant takes twice as long.
func TestRatiosArePaired(t *testing.T) {
	base := map[int]float64{0: 100, 1: 200, 2: 400}
	e := ratio(map[int]float64{0: 200, 1: 400, 2: 800, 3: 9}, base)
	assert.InDelta(t, 2, e.Value, 1e-12)
	assert.InDelta(t, 2, e.Low, 1e-9)
	assert.InDelta(t, 2, e.High, 1e-9)
	e = ratio(map[int]float64{0: 90, 1: 220, 2: 400}, base)
	assert.Less(t, e.Low, 1.0)
	assert.Greater(t, e.High, 1.0)
	assert.Equal(t, Estimate{Value: 3}, ratio(map[int]float64{1: 600}, base), "one turn has no interval")
	assert.Equal(t, Estimate{}, ratio(map[int]float64{7: 600}, base))
}

func sampleReport() *Report {
	r := &Report{Turns: 3, Workloads: []Workload{sampleWorkload}, Absent: []Absent{}}
	r.Environment = machine.Environment{CPU: "A <CPU>", Cores: 2, TensorFlow: map[string]string{}}
	for turn := range 3 {
		slower := float64(turn + 1)
		r.Runs = append(r.Runs, sampleRun("c", turn, 1000*slower), sampleRun("steadyfit-auto", turn, 500*slower),
			sampleRun("keras-fit", turn, 8000*slower))
	}
	r.absent("w", "keras-fit-jit", "the model has no train_xla", false)
	r.finish(3)
	return r
}

func TestSummary(t *testing.T) {
	r := sampleReport()
	require.Len(t, r.Summary, 3)
	assert.Equal(t, []string{"c", "steadyfit-auto", "keras-fit"},
		[]string{r.Summary[0].Variant, r.Summary[1].Variant, r.Summary[2].Variant})
	row := r.Summary[1]
	assert.InDelta(t, 1000, row.StepNS.Value, 1e-9, "the median over turns of the median over epochs")
	assert.InDelta(t, 0.5, row.ToBase.Value, 1e-9)
	assert.InDelta(t, 16, r.Summary[2].ToAuto.Value, 1e-9)
	assert.InDelta(t, 140, row.Anon, 1e-9)
	assert.InDelta(t, 2, row.Growth, 1e-9, "20 bytes in 10 steps")
	assert.Zero(t, r.Summary[0].ToBase)
	assert.Zero(t, row.ToAuto)
	assert.Equal(t, "2.21.0", r.Environment.TensorFlow["c"])
}

func TestRefusedArmsHaveNoFigures(t *testing.T) {
	r := sampleReport()
	require.NoError(t, r.failed())
	r.absent("w", "keras-fit", "its loss is another one", true)
	r.finish(3)
	assert.Len(t, r.Runs, 6)
	assert.Len(t, r.Summary, 2)
	assert.True(t, r.isAbsent("w", "keras-fit"))
	assert.ErrorContains(t, r.failed(), "w/keras-fit")
	assert.NotContains(t, r.failed().Error(), "jit", "a variant that a model is not for has not failed")
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, sampleReport().write(dir))
	text, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, sampleReport().Summary, back.Summary)
	assert.Len(t, back.Runs, 9)
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	r := sampleReport()
	for _, i := range []int{1, 4} { // of steadyfit-auto, in two turns
		r.Runs[i].Auto = "plain: 137 ms per step (measured before)"
	}
	r.table(&out)
	assert.Equal(t, 1, strings.Count(out.String(), "\n  steadyfit-auto: plain: 137 ms per step (measured before)\n"))
	for _, want := range []string{"w: batch 32, 20 steps after 10", "no keras-fit-jit: the model has no train_xla",
		"0.5  [0.5, 0.5]", "Intervals from 3 turns are wide"} {
		assert.Contains(t, out.String(), want)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"-variants nobody", "-workloads none", "-turns 0", "word", "-epochs -1", "-turns x",
		"-turns 1 word"} {
		var out, errs bytes.Buffer
		assert.Equal(t, 2, run(context.Background(), strings.Fields(args), &out, &errs), args)
		assert.NotEmpty(t, errs.String(), args)
	}
}
