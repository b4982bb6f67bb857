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

// The machine is a fit.Session that computes nothing.
func (*machine) TrainMetrics() []string    { return []string{"loss"} }
func (*machine) EvaluateMetrics() []string { return []string{"loss"} }

func (m *machine) Train(_ context.Context, _ int64, _ data.Batch, out []float64) error {
	out[0] = 1
	m.train()
	return nil
}

func (m *machine) Evaluate(_ context.Context, _ data.Batch, out []float64) error {
	out[0] = 1
	m.rise(m.validation)
	return nil
}

func (m *machine) Save(_ context.Context, prefix string) error {
	m.rise(m.saving)
	return os.WriteFile(prefix+".index", []byte("w\n"), 0o666)
}

func (*machine) Restore(_ context.Context, prefix string) error {
	_, err := os.Stat(prefix + ".index")
	return err
}

func (*machine) SetLearningRate(float64) error { return nil }
func (*machine) Identity() map[string]string   { return map[string]string{"model": "fake"} }

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
