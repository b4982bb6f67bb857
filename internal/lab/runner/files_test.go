package runner

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Hash depends on the names and contents in a folder, but not on its path.
func TestHash(t *testing.T) {
	hash := func(name, content string) string {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", name), []byte(content), 0o666))
		sum := sha256.New()
		require.NoError(t, Hash(sum, dir))
		return string(sum.Sum(nil))
	}
	assert.Equal(t, hash("a", "1"), hash("a", "1"))
	assert.NotEqual(t, hash("a", "1"), hash("b", "1"))
	assert.NotEqual(t, hash("a", "1"), hash("a", "2"))
	require.ErrorIs(t, Hash(sha256.New(), filepath.Join(t.TempDir(), "nothing")), fs.ErrNotExist)
}
