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
	"steadyfit/internal/budget"
	"steadyfit/internal/tflibrary"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

func TestExitCode(t *testing.T) {
	oomKilled := []supervise.Crash{{OutOfMemory: true}, {OutOfMemory: true}}
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
		{errors.New("other"), 1},
		{supervise.ErrRestart, 0},
		{savedmodels.ErrNoSignature, 2},
		{session.ErrInexactSplit, 2},
		{session.ErrOutOfMemory, 5},
		{&budget.Error{}, 5},
		{fit.ErrDiverged, 4},
		// A lack of memory determines the code, whatever else the error says.
		{fmt.Errorf("the batch cannot be split any further: %w: %w", session.ErrInexactSplit, session.ErrOutOfMemory), 5},
		{&fit.HookError{Hook: "memory budget", Phase: "start", Err: &budget.Error{}}, 5},
		{&fit.HookError{Hook: "reset", Phase: "step", Err: savedmodels.ErrChanged}, 1},
		// In a resumed process, a bad input is no usage error, since the input was good when the training began.
		{fmt.Errorf("%w: %w", supervise.ErrRetry, session.ErrOutOfMemory), 5},
		{fmt.Errorf("%w: %w", session.ErrLost, tfbind.ErrResourceExhausted), 5},
		// The parent returns the child's code, unless the kernel has killed the child for lack of memory.
		{&supervise.Error{Code: 1, Crashes: []supervise.Crash{{}, {}}}, 1},
		{&supervise.Error{Code: 1, Crashes: oomKilled}, 5},
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
