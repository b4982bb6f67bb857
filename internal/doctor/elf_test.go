package doctor

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/tflibrary"
)

func TestSplitRunPath(t *testing.T) {
	assert.Equal(t, []string{"/a/site/tensorflow", "/a/site/nvidia/cudnn/lib", "/opt/x"},
		splitRunPath("$ORIGIN/:${ORIGIN}/../nvidia/cudnn/lib::/opt/x/", "/a/site/tensorflow"))
}

func TestELFOfTensorFlow(t *testing.T) {
	location, err := tflibrary.Locate("")
	if err != nil {
		t.Skipf("needs TensorFlow: set %s to a folder that holds it", tflibrary.EnvLibrary)
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
