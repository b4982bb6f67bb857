package train

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/cluster"
	"steadyfit/option"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// The command has more cases, in cmd/steadyfit/exit_test.go.
func TestExitCode(t *testing.T) {
	later := &training{}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{&InputError{errors.New("no such file")}, 2},
		{asConfig(&option.Error{Option: "Loop.Resume"}), 2},
		{fmt.Errorf("open: %w", &tfbind.LoadError{}), 3},
		{&supervise.Error{Code: 3}, 3},
		{session.ErrOutOfMemory, 5},
		{later.restartable(fmt.Errorf("%w: rank 1", cluster.ErrAbsent), false), 1},
		{context.Canceled, 130},
	} {
		assert.Equal(t, c.want, ExitCode(c.err), "%v", c.err)
	}
	assert.ErrorIs(t, later.restartable(cluster.ErrAbsent, false), supervise.ErrRetry)
}
