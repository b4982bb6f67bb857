package doctor

import (
	"bytes"
	"path/filepath"
	"runtime"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

func TestSearchFindsNamesAcrossWindows(t *testing.T) {
	const name = "TF_SOME_NAME"
	for _, at := range []int{0, 1, 4<<20 - 13, 4<<20 - 12, 4<<20 - 5, 4<<20 - 1, 4 << 20, 9 << 20} {
		text := append(append(bytes.Repeat([]byte{'x'}, at), name...), 0, 'y')
		held := map[string]bool{}
		require.NoError(t, search(held, bytes.NewReader(text), []string{"ABSENT", name}))
		assert.Equal(t, map[string]bool{name: true}, held, "at %d", at)
	}
	held := map[string]bool{}
	require.NoError(t, search(held, bytes.NewReader([]byte("TF_SOME_NAMES\x00TF_SOME_NAME is set")), []string{name}))
	assert.Empty(t, held, "the beginning of a longer name, and a word of a message")
	assert.ErrorIs(t, search(held, iotest.ErrReader(assert.AnError), []string{name}), assert.AnError)
}

func TestSplitRunPath(t *testing.T) {
	assert.Equal(t, []string{"/a/site/tensorflow", "/a/site/nvidia/cudnn/lib", "/opt/x"},
		splitRunPath("$ORIGIN/:${ORIGIN}/../nvidia/cudnn/lib::/opt/x/", "/a/site/tensorflow"))
}

func TestELFOfTensorFlow(t *testing.T) {
	location, err := tfbind.Locate("")
	if err != nil {
		t.Skipf("needs TensorFlow: set %s to a folder that holds it", tfbind.EnvLibrary)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(location.Library))
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	folders, err := elfRunPath(location.Library)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	assert.Contains(t, folders, dir)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), "a health check runs beside a training")
}

func TestELFOfOtherFiles(t *testing.T) {
	_, err := elfRunPath("elf_test.go")
	assert.ErrorContains(t, err, "read elf_test.go")
	_, err = elfContains([]string{"elf_test.go"}, []string{"X"})
	assert.ErrorContains(t, err, "read elf_test.go")
}
