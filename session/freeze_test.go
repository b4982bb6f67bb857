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
	"steadyfit/tfbind"
)

// A frozen state has the values that Save would have written, also after more steps and after a
// reset. It does not change the results of these steps. Another session that restores it has the
// same results.
func TestFrozenStateIsThatOfSave(t *testing.T) {
	ctx := context.Background()
	for name, m := range map[string]*savedmodels.Model{"digits": builtin(t, "digits"), "lora": loraModel(t)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			saved, beside, last := filepath.Join(dir, "saved"), filepath.Join(dir, "beside"), filepath.Join(dir, "last")
			steps := func(s *session.Session, from, to int64) (all [][]float64) {
				for i := from; i < to; i++ {
					out := make([]float64, len(s.TrainMetrics()))
					require.NoError(t, s.Train(ctx, i, madeBatch(s, 16, int(i)), out))
					all = append(all, out)
				}
				return all
			}
			s := openModel(t, m, session.Options{})
			steps(s, 0, 2)
			require.NoError(t, s.Save(ctx, saved))
			want := steps(s, 2, 4)
			require.NoError(t, s.Restore(ctx, saved))
			frozen, err := s.Freeze(ctx)
			require.NoError(t, err)
			require.NotNil(t, frozen)
			written := make(chan error)
			go func() { written <- frozen.Save(beside) }()
			assert.Equal(t, want, steps(s, 2, 4))
			require.NoError(t, <-written)
			_, err = s.Reset(ctx, "reload")
			require.NoError(t, err)
			require.NoError(t, frozen.Save(last))
			have, err := bundle.Read(saved)
			require.NoError(t, err)
			for _, prefix := range []string{beside, last} {
				index, err := os.ReadFile(prefix + ".index")
				require.NoError(t, err)
				require.NoError(t, bundle.Check(prefix, index))
				got, err := bundle.Read(prefix)
				require.NoError(t, err)
				have["steadyfit/base/"+m.Base] = got["steadyfit/base/"+m.Base]
				assert.Equal(t, have, got, "names, types, shapes and checksums")
			}
			other := openModel(t, m, session.Options{})
			require.NoError(t, other.Restore(ctx, beside))
			assert.Equal(t, want, steps(other, 2, 4))
			require.NoError(t, frozen.Close())
			assert.ErrorIs(t, frozen.Save(last), session.ErrMismatch)
			frozen, err = s.Freeze(ctx)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			assert.ErrorIs(t, frozen.Save(last), tfbind.ErrClosed)
			require.NoError(t, frozen.Close())
		})
	}
}

// Only Session.Save can write the files of a saver that saves more than variables.
func TestStateThatCannotBeFrozen(t *testing.T) {
	m := builtin(t, "digits")
	m.ByKey = false
	frozen, err := openModel(t, m, session.Options{}).Freeze(context.Background())
	require.NoError(t, err)
	assert.Nil(t, frozen)
}
