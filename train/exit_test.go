package train

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/option"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// The command has more cases, in cmd/steadyfit/exit_test.go.
func TestExitCode(t *testing.T) {
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
		{fmt.Errorf("%w: %w", supervise.ErrRetry, session.ErrData), 1},
		{context.Canceled, 130},
	} {
		assert.Equal(t, c.want, ExitCode(c.err), "%v", c.err)
	}
}
