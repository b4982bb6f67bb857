//go:build graft || galeone || official

package beside

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
)

// The other binding predicts the test digits with the trained model as well as package train.
func TestBeside(t *testing.T) {
	dir, ours := trained(t)
	model, err := loadSavedModel(dir, []string{"serve"}, nil)
	require.NoError(t, err)
	_, digits, err := data.Builtin("digits")
	require.NoError(t, err)
	sig := model.Signatures["predict"]
	right := 0
	for b, err := range digits.Batches(data.Pass{Batch: 1}) {
		require.NoError(t, err)
		image := make([][]float32, 1)
		for _, v := range b.Fields[0].Values.([]uint8) {
			image[0] = append(image[0], float32(v))
		}
		x, err := newTensor(image)
		require.NoError(t, err)
		results, err := model.Session.Run(map[output]*tensor{named(model, sig.Inputs["x"].Name): x},
			[]output{named(model, sig.Outputs["class"].Name)}, nil)
		require.NoError(t, err)
		if results[0].Value().([]int64)[0] == b.Fields[1].Values.([]int64)[0] {
			right++
		}
	}
	require.InDelta(t, ours, float64(right)/float64(digits.Len()), 1e-4)
	require.NoError(t, model.Session.Close())
}

// named returns the output with a name such as "StatefulPartitionedCall:0".
func named(model *saved, name string) output {
	op, index, _ := strings.Cut(name, ":")
	return model.Graph.Operation(op).Output(int(index[0] - '0'))
}
