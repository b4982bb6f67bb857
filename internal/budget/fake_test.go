package budget

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
)

// fake is a fit.Session that computes nothing.
type fake struct {
	fit.Plain
	onTrain    func(step int64) error
	onEvaluate func() error
	trained    int
}

func newFake() *fake { return &fake{onTrain: func(int64) error { return nil }} }

func (*fake) TrainMetrics() []string    { return []string{"loss"} }
func (*fake) EvaluateMetrics() []string { return []string{"loss"} }

func (f *fake) Train(_ context.Context, step int64, _ data.Batch, out []float64) error {
	f.trained++
	out[0] = 1
	return f.onTrain(step)
}

func (f *fake) Evaluate(_ context.Context, _ data.Batch, out []float64) error {
	out[0] = 1
	return f.onEvaluate()
}

func (*fake) Save(_ context.Context, prefix string) error {
	return os.WriteFile(prefix+".index", []byte("w\n"), 0o666)
}

func (*fake) Restore(_ context.Context, prefix string) error {
	_, err := os.Stat(prefix + ".index")
	return err
}

func (*fake) SetLearningRate(float64) error { return nil }
func (*fake) Identity() map[string]string   { return map[string]string{"model": "fake"} }

func samples(t testing.TB, n int) *data.InMemory {
	ds, err := data.New("samples",
		data.Field{Name: "x", Array: data.Array{Shape: []int{n, 2}, Values: make([]float32, 2*n)}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{n}, Values: make([]float32, n)}})
	require.NoError(t, err)
	return ds
}

// savedStep returns the step of the newest checkpoint of a folder, which must be intact.
func savedStep(t testing.TB, path string) int64 {
	found, err := fit.Checkpoints(filepath.Dir(path))
	require.NoError(t, err)
	require.NoError(t, found[0].Err)
	require.Equal(t, path, found[0].Path)
	return found[0].Step
}

func copyDir(t testing.TB, from string) string {
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
	return to
}
