package matrix

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFindStrings(t *testing.T) {
	const name = "TF_SOME_NAME"
	path := filepath.Join(t.TempDir(), "lib.so")
	for text, want := range map[string]bool{
		"xTF_SOME_NAME\x00y": true, "TF_SOME_NAMES\x00TF_SOME_NAME is set": false, "": false,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		found := map[string]bool{}
		require.NoError(t, findStrings(found, path, []string{"ABSENT", name}))
		assert.Equal(t, want, found[name], "%q: not the beginning of a longer name, nor a word of a message", text)
		assert.False(t, found["ABSENT"])
	}
	assert.ErrorIs(t, findStrings(nil, path+".absent", nil), os.ErrNotExist)
}
