package session

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// A load leaves no memory behind. TensorFlow's own loader keeps 2 KiB of metrics for each new path. Without caches of
// threads, malloc counts exactly.
//
//lane:skip race gcstress (measures malloc)
func TestLoadsKeepNoPaths(t *testing.T) {
	const env = "STEADYFIT_TEST_LOADS"
	if os.Getenv(env) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLoadsKeepNoPaths$", "-test.v")
		cmd.Env = append(os.Environ(), env+"=1", "GLIBC_TUNABLES=glibc.malloc.tcache_count=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		found := regexp.MustCompile(`grows by (-?[0-9]+) bytes`).FindSubmatch(out)
		require.NotNil(t, found, "%s", out)
		growth, err := strconv.Atoi(string(found[1]))
		require.NoError(t, err)
		require.Less(t, growth, 500, "bytes per load")
		return
	}
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	load := func(n int) int64 {
		for range n {
			s, err := OpenModel(t.Context(), model, Options{ReadOnly: true, Only: []string{"predict"}})
			require.NoError(t, err)
			require.NoError(t, s.Close())
		}
		m, ok := tfbind.MallocInfo()
		require.True(t, ok)
		return int64(m.InUse)
	}
	before := load(10)
	fmt.Printf("grows by %d bytes\n", (load(30)-before)/30)
}
