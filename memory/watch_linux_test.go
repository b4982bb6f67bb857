package memory

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestWatchEndsWithItsProcess(t *testing.T) {
	defer goleak.VerifyNone(t)
	child := sleeper(t)
	w := Watch(t.Context(), Options{Every: time.Millisecond, PID: child.Process.Pid})
	require.NoError(t, child.Process.Kill())
	<-w.done
	require.ErrorIs(t, w.Stop(), os.ErrProcessDone)
}
