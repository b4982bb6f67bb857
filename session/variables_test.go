package session_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/session"
)

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
