package session_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/bundle"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

const lora = "testdata/digits-lora"

// loraModel returns a model that has a frozen int8 layer with LoRA matrices, and a trained head.
func loraModel(t testing.TB) *savedmodels.Model {
	t.Helper()
	m, err := savedmodels.Open(lora)
	require.NoError(t, err)
	require.NotEmpty(t, m.Base)
	return m
}

// otherBase returns the model of loraModel with other frozen weights.
func otherBase(t testing.TB) *savedmodels.Model {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.CopyFS(dir, os.DirFS(lora)))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "variables")))
	require.NoError(t, os.CopyFS(filepath.Join(dir, "variables"), os.DirFS("testdata/other")))
	m, err := savedmodels.Open(dir)
	require.NoError(t, err)
	require.NotEqual(t, loraModel(t).Base, m.Base)
	return m
}

func weightsOf(m *savedmodels.Model) string { return filepath.Join(m.Dir, "variables", "variables") }

// frozenIn counts the frozen variables in a checkpoint.
func frozenIn(t testing.TB, m *savedmodels.Model, prefix string) (n int) {
	t.Helper()
	have, err := bundle.Read(prefix)
	require.NoError(t, err)
	for _, v := range m.Variables {
		if _, ok := have[v.Key]; ok && v.Frozen {
			n++
		}
	}
	return n
}

// A checkpoint has only the variables that training changes, and training resumes from it bit for
// bit.
func TestSaveLeavesOutFrozenVariables(t *testing.T) {
	ctx := context.Background()
	m := loraModel(t)
	bs := batches(t, digits(t), 32, 6)
	prefix := filepath.Join(t.TempDir(), "state")
	a, b := openModel(t, m, session.Options{}), openModel(t, m, session.Options{})
	losses(t, a, bs[:3], 0)
	require.NoError(t, a.Save(ctx, prefix))
	assert.Zero(t, frozenIn(t, m, prefix))
	assert.NoError(t, a.CheckVariables(prefix))
	want := losses(t, a, bs[3:], 3)
	losses(t, b, bs[:1], 0)
	require.NoError(t, b.Restore(ctx, prefix))
	assert.Equal(t, want, losses(t, b, bs[3:], 3))
	// The files of the model itself are complete, and so is what SaveModel writes.
	require.NoError(t, b.Restore(ctx, weightsOf(m)))
	require.NoError(t, a.Restore(ctx, prefix))
	dir := filepath.Join(t.TempDir(), "trained")
	require.NoError(t, a.SaveModel(ctx, dir))
	trained, err := savedmodels.Open(dir)
	require.NoError(t, err)
	assert.NoError(t, a.CheckVariables(weightsOf(trained)))
	require.NoError(t, b.Restore(ctx, weightsOf(trained)))
	assert.Equal(t, want, losses(t, b, bs[3:], 3), "a complete checkpoint")
	assert.Equal(t, m.Base, trained.Base)
	assert.Equal(t, want, losses(t, openModel(t, trained, session.Options{}), bs[3:], 3))
	left, err := filepath.Glob(prefix + "*")
	require.NoError(t, err)
	assert.Len(t, left, 2)
}

// A checkpoint of a model with other frozen variables is refused, and nothing changes.
func TestRestoreRefusesAnotherBase(t *testing.T) {
	ctx := context.Background()
	m, other := loraModel(t), otherBase(t)
	bs := batches(t, digits(t), 32, 3)
	prefix := filepath.Join(t.TempDir(), "state")
	a, b := openModel(t, other, session.Options{}), openModel(t, m, session.Options{})
	losses(t, a, bs[:2], 0)
	require.NoError(t, a.Save(ctx, prefix))
	before := losses(t, b, bs[:1], 0)
	require.NoError(t, b.Restore(ctx, weightsOf(m)))
	require.ErrorIs(t, b.Restore(ctx, prefix), session.ErrMismatch)
	require.ErrorIs(t, b.Restore(ctx, weightsOf(other)), session.ErrMismatch, "a complete checkpoint")
	assert.Equal(t, before, losses(t, b, bs[:1], 0))
	err := b.CheckVariables(prefix)
	require.ErrorIs(t, err, session.ErrMismatch)
	assert.ErrorContains(t, err, m.Base[:12])
	p, err := a.Snapshot(ctx)
	require.NoError(t, err)
	defer p.Close()
	assert.ErrorIs(t, b.Revert(ctx, p), session.ErrMismatch)
}
