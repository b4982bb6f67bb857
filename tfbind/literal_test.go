package tfbind

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLiteral(t *testing.T) {
	parent := t.TempDir()
	for _, name := range []string{"plain", "a [1]", "[", "]", "*?", `back\slash`, "{x,y}", "größe", "a\nb"} {
		dir := filepath.Join(parent, name)
		require.NoError(t, os.Mkdir(dir, 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "variables.index"), []byte(name), 0o666))
		for _, path := range []string{dir + "/", filepath.Join(dir, "variables")} {
			literal, release, err := Literal(path)
			require.NoError(t, err)
			defer release()
			found, err := filepath.Glob(filepath.Dir(literal) + "/variables.index")
			require.NoError(t, err)
			require.Len(t, found, 1, name)
			text, err := os.ReadFile(found[0])
			require.NoError(t, err)
			assert.Equal(t, name, string(text))
		}
	}
	literal, release, err := Literal("gs://bucket[1]/variables")
	require.NoError(t, err)
	defer release()
	assert.Equal(t, "gs://bucket[1]/variables", literal)
	_, _, err = Literal(filepath.Join(parent, "ck[1]"))
	assert.ErrorContains(t, err, "cannot read files whose names have any of")
	_, _, err = Literal(filepath.Join(parent, "none[1]", "variables"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}
