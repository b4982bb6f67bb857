package session

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/tfbind"
)

// TestFailedElsewhere tests errors after which all ranks continue in new processes, and errors of
// the training itself, which would recur.
func TestFailedElsewhere(t *testing.T) {
	const aborted = "From /job:worker/replica:0/task:0:\nCollective ops is aborted by: "
	for _, c := range []struct {
		code, message string
		want          bool
	}{
		{"UNAVAILABLE", "Connection reset by peer", true},
		{"FAILED_PRECONDITION", "the step's incarnation doesn't match", true},
		{"INTERNAL", aborted + "Delete called on non-empty BufRendezvous", true},
		{"INTERNAL", "Blas GEMM launch failed", false},
		{"RESOURCE_EXHAUSTED", "2 root error(s) found.\n" + aborted + "failed to allocate memory", false},
		{"INVALID_ARGUMENT", aborted + "Input is not invertible", false},
	} {
		assert.Equal(t, c.want, failedElsewhere(&tfbind.Error{Code: c.code, Message: c.message}), "%s: %s", c.code, c.message)
	}
}
