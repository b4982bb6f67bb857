package session

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// loadsEnv makes the test binary a program that loads a model repeatedly.
const loadsEnv = "STEADYFIT_TEST_LOADS"

func init() { asChild(loadsEnv, loadsChild) }

// loadsChild returns the growth of malloc's memory in use per load, in bytes.
func loadsChild(string) (any, error) {
	model, err := savedmodels.Builtin("digits")
	var before tfbind.Malloc
	for i := 0; i < 40 && err == nil; i++ {
		if i == 10 {
			before, _ = tfbind.MallocInfo()
		}
		var s *Session
		s, err = OpenModel(context.Background(), model, Options{ReadOnly: true, Only: []string{"predict"}})
		err = errors.Join(err, s.Close())
	}
	after, _ := tfbind.MallocInfo()
	return (after.InUse - before.InUse) / 30, err
}

// A load leaves no memory behind. TensorFlow's own loader keeps 2 KiB of metrics for each new path. Without caches of
// threads, malloc counts exactly.
//
//lane:skip race gcstress (measures malloc)
func TestLoadsKeepNoPaths(t *testing.T) {
	growth, log, err := runChild[int64](t, loadsEnv, "1", "GLIBC_TUNABLES=glibc.malloc.tcache_count=0")
	require.NoError(t, err, log)
	t.Logf("%d bytes per load", growth)
	require.Less(t, growth, int64(500), "bytes per load")
}
