package tfbind_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

// Opening TensorFlow leaves 40% of its library's read-only pages resident, unless Load releases
// them.
func TestLibraryPagesAreReleased(t *testing.T) {
	info, err := tfbind.Load("")
	require.NoError(t, err)
	path, err := filepath.EvalSymlinks(info.Library)
	require.NoError(t, err)
	var readOnly bool
	sum := map[string]int{} // KiB
	for line := range strings.Lines(mapsAfterLoad) {
		fields := strings.Fields(line)
		if strings.Contains(fields[0], "-") { // the addresses and permissions of a mapping
			readOnly = strings.HasPrefix(fields[1], "r-") && strings.Contains(line, path)
		} else if n, err := strconv.Atoi(fields[1]); readOnly && err == nil {
			sum[fields[0]] += n
		}
	}
	require.Greater(t, sum["Size:"], 100<<10)
	assert.Less(t, sum["Rss:"], sum["Size:"]/4)
}
