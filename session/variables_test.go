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

func checkVariables(t *testing.T, m *savedmodels.Model, prefix string) error {
	t.Helper()
	p, err := session.Compile(m, session.Options{ReadOnly: true})
	require.NoError(t, err)
	return p.CheckVariables(prefix)
}

// CheckVariables detects another architecture without TensorFlow.
func TestCheckVariables(t *testing.T) {
	weights := func(m *savedmodels.Model) string { return filepath.Join(m.Dir, "variables", "variables") }
	digits, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	for _, name := range savedmodels.BuiltinNames() {
		other, err := savedmodels.Builtin(name)
		require.NoError(t, err)
		require.NoError(t, checkVariables(t, other, weights(other)))
		err = checkVariables(t, digits, weights(other))
		switch name {
		case "digits", "digits-bf16", "digits-scaled": // the same variables
			assert.NoError(t, err, name)
		case "digits-fp16":
			assert.ErrorIs(t, err, session.ErrMismatch, name)
			assert.ErrorContains(t, err, "is not in the model")
		default:
			assert.ErrorIs(t, err, session.ErrMismatch, name)
			assert.ErrorContains(t, err, "is missing")
		}
	}
	err = checkVariables(t, digits, filepath.Join(t.TempDir(), "variables"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, checkVariables(t, &savedmodels.Model{Dir: "m"}, ""), "m cannot be saved or restored: the SavedModel has no saver")
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
			err := open(t, other, session.Options{}).CheckVariables(prefix)
			if other == name {
				assert.NoError(t, err)
			} else {
				assert.ErrorIs(t, err, session.ErrMismatch)
			}
		}
	}
}
