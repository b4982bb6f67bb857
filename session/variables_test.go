package session_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/savedmodels"
	"steadyfit/session"
)

// CheckVariables detects another architecture without TensorFlow.
func TestCheckVariables(t *testing.T) {
	weights := func(m *savedmodels.Model) string { return filepath.Join(m.Dir, "variables", "variables") }
	digits, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	for _, name := range savedmodels.BuiltinNames() {
		other, err := savedmodels.Builtin(name)
		require.NoError(t, err)
		require.NoError(t, session.CheckVariables(other, weights(other)))
		err = session.CheckVariables(digits, weights(other))
		switch name {
		case "digits", "digits-bf16", "digits-scaled": // the same variables
			assert.NoError(t, err, name)
		case "digits-fp16":
			assert.ErrorIs(t, err, session.ErrVariables, name)
			assert.ErrorContains(t, err, "is not in the model")
		default:
			assert.ErrorIs(t, err, session.ErrVariables, name)
			assert.ErrorContains(t, err, "is missing")
		}
	}
	err = session.CheckVariables(digits, filepath.Join(t.TempDir(), "variables"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, session.CheckVariables(&savedmodels.Model{Dir: "m"}, ""), "m cannot be saved or restored: the SavedModel has no saver")
}

// Saved variables fit only their own model.
func TestSavedVariablesFit(t *testing.T) {
	ctx := context.Background()
	for _, name := range forDigits {
		prefix := filepath.Join(t.TempDir(), "state")
		s := open(t, name, session.Options{})
		losses(t, s, batches(t, digits(t), 32, 2), 0)
		require.NoError(t, s.Save(ctx, prefix))
		for _, other := range forDigits {
			err := open(t, other, session.Options{}).CheckVariables(ctx, prefix)
			if other == name {
				assert.NoError(t, err)
			} else {
				assert.ErrorIs(t, err, session.ErrVariables)
			}
		}
	}
}
