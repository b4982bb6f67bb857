package bundle_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/bundle"
	"steadyfit/internal/dtype"
	"steadyfit/savedmodels"
)

func prefixOf(t *testing.T, name string) (*savedmodels.Model, string) {
	m, err := savedmodels.Builtin(name)
	require.NoError(t, err)
	return m, filepath.Join(m.Dir, "variables", "variables")
}

// Read returns all variables that TensorFlow wrote.
func TestRead(t *testing.T) {
	for _, name := range savedmodels.BuiltinNames() {
		t.Run(name, func(t *testing.T) {
			m, prefix := prefixOf(t, name)
			have, err := bundle.Read(prefix)
			require.NoError(t, err)
			var wanted, found []string
			for _, v := range m.Variables {
				if v.Restored {
					wanted = append(wanted, bundle.Tensor{DType: v.DType, Shape: v.Shape}.String())
				}
			}
			for _, one := range have {
				found = append(found, one.String())
			}
			assert.ElementsMatch(t, wanted, found)
			assert.Empty(t, bundle.Differences(have, have))
		})
	}
	_, prefix := prefixOf(t, "digits")
	have, err := bundle.Read(prefix)
	require.NoError(t, err)
	kernels := 0
	for name, one := range have {
		if strings.HasPrefix(name, "model/") && strings.Contains(name, "hidden") && strings.Contains(name, "kernel") {
			kernels++
			assert.Equal(t, dtype.Float32, one.DType)
			assert.Len(t, one.Shape, 2)
		}
	}
	assert.Equal(t, 1, kernels)
}
