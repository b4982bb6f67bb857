package workload

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/worker"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// S1 has 1000 samples and S1d 10,000, also with a divided batch.
func TestAlmost(t *testing.T) {
	for _, s := range []worker.Spec{{Epoch: 32, Batch: 32}, {Epoch: 32, Batch: 16, Samples: 1024},
		{Epoch: 32, Batch: 8, Samples: 1024}} {
		assert.Equal(t, 1000, almost(s), "batch %d", s.Batch)
	}
	assert.Equal(t, 10_000, almost(worker.Spec{Epoch: 157, Batch: 32, Samples: 157 * 64}))
	assert.Equal(t, 1, almost(worker.Spec{Epoch: 1, Batch: 1}))
}

// The model with dropout draws other numbers for micro-batches.
func TestSplitOf(t *testing.T) {
	for name, want := range map[string]string{"digits": worker.SplitExact, "digits-cnn": worker.SplitInexact} {
		// This holds for all options of the session.
		for _, o := range []session.Options{{}, {AllowInexactSplit: true}} {
			model, err := savedmodels.Builtin(name)
			require.NoError(t, err)
			split, err := splitOf(model, o)
			require.NoError(t, err, name)
			assert.Equal(t, want, split, name)
		}
	}
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	_, err = splitOf(model, session.Options{ReadOnly: true})
	require.ErrorIs(t, err, savedmodels.ErrNoSignature)
}
