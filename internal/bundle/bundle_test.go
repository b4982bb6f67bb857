package bundle

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

func prefixOf(t *testing.T, name string) (*savedmodels.Model, string) {
	m, err := savedmodels.Builtin(name)
	require.NoError(t, err)
	return m, filepath.Join(m.Dir, "variables", "variables")
}

// What TensorFlow wrote is read as it was, all of the model's variables.
func TestRead(t *testing.T) {
	for _, name := range savedmodels.BuiltinNames() {
		t.Run(name, func(t *testing.T) {
			m, prefix := prefixOf(t, name)
			have, err := Read(prefix)
			require.NoError(t, err)
			var wanted, found []string
			for _, v := range m.Variables {
				if v.Restored {
					wanted = append(wanted, Tensor{v.DType, v.Shape}.String())
				}
			}
			for _, one := range have {
				found = append(found, one.String())
			}
			assert.ElementsMatch(t, wanted, found)
			assert.Empty(t, Differences(have, have))
		})
	}
	_, prefix := prefixOf(t, "digits")
	have, err := Read(prefix)
	require.NoError(t, err)
	kernels := 0
	for name, one := range have {
		if strings.HasPrefix(name, "model/") && strings.Contains(name, "hidden") && strings.Contains(name, "kernel") {
			kernels++
			assert.Equal(t, tfbind.Float32, one.DType)
			assert.Len(t, one.Shape, 2)
		}
	}
	assert.Equal(t, 1, kernels)
}

// Any byte that changes or is gone is noticed, or changes nothing.
func TestDamage(t *testing.T) {
	_, prefix := prefixOf(t, "digits")
	whole, err := os.ReadFile(prefix + ".index")
	require.NoError(t, err)
	want, err := parse(whole)
	require.NoError(t, err)
	noticed := 0
	for at := range whole {
		torn := bytes.Clone(whole)
		torn[at] ^= 1 << (at % 8)
		if have, err := parse(torn); err == nil {
			require.Equal(t, want, have, "byte %d", at)
		} else {
			noticed++
		}
		_, err := parse(whole[:at])
		require.Error(t, err)
	}
	require.Greater(t, noticed, len(whole)*9/10)

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "v.index"), []byte("index"), 0o666))
	_, err = Read(filepath.Join(dir, "v"))
	require.ErrorIs(t, err, ErrDamaged)
	_, err = Read(filepath.Join(dir, "w"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestDifferences(t *testing.T) {
	f := func(shape ...int64) Tensor { return Tensor{tfbind.Float32, shape} }
	assert.Equal(t, "a is float32 [2], expected float32 [3], b (float32 []) is missing, c (int64 []) is not one of the model's",
		Differences(map[string]Tensor{"a": f(3), "b": f()}, map[string]Tensor{"a": f(2), "c": {DType: tfbind.Int64}}))
	many := map[string]Tensor{}
	for _, name := range strings.Fields("a b c d e f g") {
		many[name] = f(1)
	}
	assert.True(t, strings.HasSuffix(Differences(many, nil), "e (float32 [1]) is missing, and 2 more"))
}
