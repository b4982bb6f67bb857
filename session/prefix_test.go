package session

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/savedmodels"
)

// CheckVariables detects another architecture without TensorFlow.
func TestCheckPrefix(t *testing.T) {
	weights := func(m *savedmodels.Model) string { return filepath.Join(m.Dir, "variables", "variables") }
	digits, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	for _, name := range savedmodels.BuiltinNames() {
		other, err := savedmodels.Builtin(name)
		require.NoError(t, err)
		require.NoError(t, check(other, weights(other)))
		err = check(digits, weights(other))
		switch name {
		case "digits", "digits-bf16", "digits-scaled": // the same variables
			assert.NoError(t, err, name)
		case "digits-fp16":
			assert.ErrorIs(t, err, ErrMismatch, name)
			assert.ErrorContains(t, err, "is not in the model")
		default:
			assert.ErrorIs(t, err, ErrMismatch, name)
			assert.ErrorContains(t, err, "is missing")
		}
	}
	err = check(digits, filepath.Join(t.TempDir(), "variables"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, check(&savedmodels.Model{Dir: "m"}, ""),
		"m cannot be saved or restored: the SavedModel has no saver")
}

func check(m *savedmodels.Model, prefix string) error {
	return (&Session{Plan: &Plan{model: m}}).CheckVariables(prefix)
}
