package matrix

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHasString(t *testing.T) {
	const name = "TF_SOME_NAME"
	path := filepath.Join(t.TempDir(), "lib.so")
	for text, want := range map[string]bool{
		"xTF_SOME_NAME\x00y": true, "TF_SOME_NAMES\x00TF_SOME_NAME is set": false, "": false,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		found, err := hasString(path, name)
		require.NoError(t, err)
		assert.Equal(t, want, found, "%q: not the beginning of a longer name, nor a word of a message", text)
	}
	_, err := hasString(path+".absent", name)
	assert.ErrorIs(t, err, os.ErrNotExist)
}
