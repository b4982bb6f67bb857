package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/tflibrary"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
)

// The command has more cases, in cmd/steadyfit/exit_test.go.
func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{&InputError{errors.New("no such file")}, 2},
		{fmt.Errorf("open: %w", &tflibrary.LoadError{}), 3},
		{&supervise.Error{Code: 3}, 3},
		{&fit.HookError{Hook: "reset", Phase: "step", Err: savedmodels.ErrNotSavedModel}, 1},
		{&fit.HookError{Hook: "checkpoint", Phase: "load", Err: &os.PathError{Op: "read", Path: "ckpt-3", Err: syscall.EIO}},
			1},
		{&fit.HookError{Hook: "history", Phase: "start", Err: &os.PathError{Op: "open", Path: "h.jsonl", Err: syscall.EROFS}},
			2},
		{fmt.Errorf("1.jpg: a damaged JPEG image: %w", data.ErrFormat), 2},
		{checkNames("images", "y", []string{"a", "b"}, 3), 2},
		{session.ErrOutOfMemory, 5},
		{fmt.Errorf("%w: %w", supervise.ErrRetry, session.ErrData), 1},
		{context.Canceled, 130},
	} {
		assert.Equal(t, c.want, ExitCode(c.err), "%v", c.err)
	}
}

// An error about the data ends a training whose features cannot be cached. Others do not: the training
// continues without the cache.
func TestErrorsOfData(t *testing.T) {
	for _, err := range []error{&InputError{os.ErrNotExist}, &data.RowError{Err: data.ErrLabel},
		fmt.Errorf("1.jpg: %w", data.ErrFormat)} {
		assert.True(t, ofData(err), err)
	}
	for _, err := range []error{savedmodels.ErrNotSavedModel, session.ErrMismatch, session.ErrOutOfMemory} {
		assert.False(t, ofData(err), err)
	}
}
