package tune

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/autotune"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// gridEnv names a SavedModel with the inputs x and y, such as one of scripts/bench_models.py.
const gridEnv = "STEADYFIT_BENCH_TUNE"

// BenchmarkGrid measures every configuration, then searches without a goal for a tenth of that time.
// It reports both times, and the gap: how much the best configuration of the front of all improves on the
// front of the search (see gain), in percent. Use -benchtime 1x; measuring all takes minutes.
func BenchmarkGrid(b *testing.B) {
	model := os.Getenv(gridEnv)
	if model == "" {
		b.Skip("set " + gridEnv + " to the folder of a model")
	}
	m, err := savedmodels.Open(model)
	require.NoError(b, err)
	ds := randomData(b, m)
	for b.Loop() {
		plan := autotune.Plan{
			Model: m, Data: ds, Batch: 32, Cache: b.TempDir(),
			Limits: autotune.Fixed{}.Limits(session.Options{}, ds.Len()/32, false),
		}
		plan.Limits.Restart = true
		began := time.Now()
		grid := measure(b, plan, nil, 1)
		took := time.Since(began)

		plan.Cache = b.TempDir()
		began = time.Now()
		found, err := Run(b.Context(), &plan, Goal{}, began.Add(took/10), func(e Event) {
			if e.Done != nil {
				b.Logf("search: %v: ratio %.2f, peak %v", e.Configuration, e.Done.Ratio, e.Done.StepPeak)
			}
		})
		require.NoError(b, err)
		searched := time.Since(began)

		// The best of hundreds of trials is also the luckiest, so both fronts are measured again.
		var known, all []autotune.Configuration
		for _, p := range front(grid.points) {
			all = append(all, p.is)
		}
		for _, p := range found.Front {
			known = append(known, p.Configuration)
		}
		again := measure(b, plan, append(all, known...), 12)
		var reached []point
		for _, c := range known {
			if p := again.point(c); p != nil {
				reached = append(reached, *p)
				b.Logf("front of the search: %v: ratio %.2f, peak %v", c, p.ratio, p.peak)
			}
		}
		worst := 0.0
		for _, c := range all {
			if p := again.point(c); p != nil {
				by := gain(reached, p.ratio, float64(p.peak))
				worst = max(worst, by)
				b.Logf("front of the grid: %v: ratio %.2f, peak %v, better than the search by %.1f%%", c, p.ratio, p.peak, 100*by)
			}
		}
		b.ReportMetric(took.Seconds(), "grid-s")
		b.ReportMetric(searched.Seconds(), "search-s")
		b.ReportMetric(float64(len(grid.points)), "configurations")
		b.ReportMetric(float64(len(found.Points)), "searched")
		b.ReportMetric(100*worst, "gap-%")
	}
}

// measure measures the configurations in a number of rounds. If the list is empty, it measures all
// configurations of the plan.
func measure(b *testing.B, plan autotune.Plan, configurations []autotune.Configuration, rounds int) *search {
	b.Helper()
	bases, groups, err := plan.Space()
	require.NoError(b, err)
	s := newSearch(Goal{}, bases, groups, plan.Over)
	if len(configurations) == 0 {
		for _, c := range s.candidates {
			configurations = append(configurations, c.is)
		}
	}
	t, err := autotune.NewTrials(&plan, time.Now().Add(3*time.Hour))
	require.NoError(b, err)
	defer func() { require.NoError(b, t.Close()) }()
	for range rounds {
		for _, c := range configurations {
			m, err := t.Measure(b.Context(), c)
			require.NoError(b, err)
			s.add(m)
			b.Logf("trial: %v: ratio %.2f (%.2f to %.2f), peak %v %s", c, m.Ratio, m.Low, m.High, m.StepPeak, m.Out)
		}
	}
	return s
}

// randomData returns 64 batches of floats from 0 to 1 and of labels below 10.
func randomData(b *testing.B, m *savedmodels.Model) data.Dataset {
	b.Helper()
	sig, err := m.Signature(m.Roles.Train)
	require.NoError(b, err)
	r := rand.New(rand.NewPCG(1, 2))
	const samples = 64 * 32
	shape, size := []int{samples}, samples
	for _, in := range sig.DataInputs() {
		if in.Name == "x" {
			for _, d := range in.Shape[1:] {
				shape, size = append(shape, int(d)), size*int(d)
			}
		}
	}
	x, y := make([]float32, size), make([]int64, samples)
	for i := range x {
		x[i] = r.Float32()
	}
	for i := range y {
		y[i] = r.Int64N(10)
	}
	ds, err := data.New("random", data.Field{Name: "x", Array: data.Array{Shape: shape, Values: x}}, data.Field{Name: "y", Array: data.Array{Shape: []int{samples}, Values: y}})
	require.NoError(b, err)
	return ds
}
