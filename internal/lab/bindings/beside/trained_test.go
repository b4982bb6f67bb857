// Package beside tests this module in the same process with what the build tag names:
//
//	graft     github.com/wamuir/graft
//	galeone   github.com/galeone/tensorflow/tensorflow/go, with github.com/galeone/tfgo
//	official  github.com/tensorflow/tensorflow/tensorflow/go
//	serving   the messages of TensorFlow Serving's API
package beside

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/train"
)

// trained trains the digits with package train, and returns the folder of the model and its accuracy.
func trained(t *testing.T) (dir string, accuracy float64) {
	t.Helper()
	dir = t.TempDir()
	r, err := train.Run(t.Context(), train.Config{
		Model:      "builtin:digits",
		Data:       train.Data{Path: "builtin:digits"},
		Validation: "builtin:digits",
		Seed:       1,
		Shuffle:    true,
		Loop:       fit.Loop{Batch: 32, Epochs: 10},
		Out:        dir,
	})
	require.NoError(t, err)
	all := r.History.Metric("val_accuracy")
	require.Greater(t, all[len(all)-1], 0.95)
	return dir, all[len(all)-1]
}
