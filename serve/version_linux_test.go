package serve

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A rename to another file system says what must be on which.
func TestRollbackToAnotherFileSystem(t *testing.T) {
	_, images := digits(t)
	dir, _ := versions(t, 2, images[0])
	err := open(t, dir, Options{}).Rollback(t.Context(), "/proc/version-2")
	require.ErrorContains(t, err, "rollback "+dir+": rename ")
	require.ErrorContains(t, err, "it must be on the file system of the versions")
}
