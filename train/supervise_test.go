package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"

	"steadyfit/internal/contract"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/supervise"
)

// A budget uses a child process if there is a folder of checkpoints.
func TestWhoTrains(t *testing.T) {
	of := func(deadline time.Duration, restarts int) supervise.Options {
		return supervise.Options{Deadline: deadline, Restarts: restarts}
	}
	rss := Budget{Limit: memory.GiB}
	for _, c := range []struct {
		name     string
		config   Config
		child    bool
		deadline time.Duration
		restarts int
	}{
		{"unsupervised", Config{}, false, 0, 0},
		{"supervised", Config{Supervise: Always, Supervisor: of(time.Minute, 3)}, true, time.Minute, 3},
		{"supervised, without restarts", Config{Supervise: Always, Supervisor: of(0, -1)}, true, 0, -1},
		{"in a child already", Config{Supervise: Always, Worker: &supervise.Worker{}}, false, 0, 0},
		{"budget", Config{Supervise: ForBudget, Supervisor: of(5*time.Minute, 3), Budget: rss}, true, 0, -1},
		{"budget, without a deadline", Config{Supervise: ForBudget, Budget: rss}, true, 0, -1},
		{"budget, unsupervised", Config{Budget: rss}, false, 0, 0},
		{"no budget", Config{Supervise: ForBudget}, false, 0, 0},
	} {
		c.config.Checkpoints.Folder = "ckpt"
		s, ok := c.config.supervisor(false)
		assert.Equal(t, c.child, ok, c.name)
		assert.Equal(t, c.deadline, s.Deadline, c.name)
		assert.Equal(t, c.restarts, s.Restarts, c.name)
		c.config.Checkpoints.Folder = ""
		_, ok = c.config.supervisor(false)
		assert.Equal(t, c.child && c.config.Supervise == Always, ok, c.name)
	}
	c := Config{Checkpoints: fit.Checkpoint{Folder: "ckpt"}, Supervise: ForBudget, Supervisor: of(time.Minute, 0),
		Budget: rss, Loop: fit.Loop{Batch: 1, Epochs: 1}}
	assert.NoError(t, c.check(), "the child of a budget has the deadline to end in")
}

// An error before a process resumes a training is retried; an error of the training itself is
// not.
func TestWhatIsTriedAgain(t *testing.T) {
	full := &session.SaveError{Op: "save model to", Err: syscall.EROFS}
	gone := unusable(&fs.PathError{Op: "open", Path: "train.npz", Err: syscall.ENOENT})
	for _, c := range []struct {
		err          error
		onOOM        Choice
		early, again bool
	}{
		{nil, "", true, false},
		{full, "", true, true},
		{full, Restart, false, false},
		{gone, "", true, true},
		{gone, "", false, false},
		{session.ErrOutOfMemory, "", true, true},
		{session.ErrOutOfMemory, "", false, false},
		{session.ErrOutOfMemory, Restart, false, true},
		{refuse("Config.Out", nil, "no"), "", true, false},
	} {
		r := training{Config: Config{OnOutOfMemory: c.onOOM}}
		err := r.restartable(c.err, c.early)
		assert.Equal(t, c.again, errors.Is(err, supervise.ErrRetry), "%v", c)
		assert.ErrorIs(t, err, c.err)
	}
}

func TestContinued(t *testing.T) {
	c := &training{}
	c.adapt(false)
	assert.False(t, c.imagesChecked)
	assert.False(t, c.Resume)
	c.adapt(true)
	assert.True(t, c.imagesChecked, "they have been decoded once")
	assert.True(t, c.Resume)
}

func TestWhatAnErrorLeaves(t *testing.T) {
	hook := func(err error) error { return &fit.HookError{Hook: "h", Phase: "end", Err: err} }
	other := errors.New("other")
	for _, c := range []struct {
		err       error
		unwritten bool
	}{
		{nil, true},
		{hook(&fit.WriteError{}), true},
		{errors.Join(hook(&fit.WriteError{}), hook(&fit.WriteError{})), true},
		{errors.Join(hook(&fit.WriteError{}), hook(other)), false},
		{other, false},
	} {
		assert.Equal(t, c.unwritten, unwritten(c.err), "%v", c.err)
	}
	full := &fit.WriteError{Err: syscall.ENOSPC}
	assert.True(t, notBegun(&fit.HookError{Phase: "start", Err: full}))
	assert.False(t, notBegun(&fit.HookError{Phase: "end", Err: full}))
	assert.False(t, notBegun(&fit.HookError{Phase: "start", Err: other}))
}

// resultJob is the training of TestResultUnderSupervision.
type resultJob struct{ Test, Out, Address string }

func init() {
	childTests["result"] = func(spec []byte) (Config, error) {
		var j resultJob
		err := json.Unmarshal(spec, &j)
		return j.config(), err
	}
}

func (j resultJob) config() Config {
	c := Config{
		Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Loop: fit.Loop{Batch: 32, Epochs: 2, StepsPerEpoch: 2},
		Supervise: Always, Child: j, Checkpoints: fit.Checkpoint{Folder: j.Out + "-checkpoints"}, Out: j.Out,
		Reset: Reset{Depth: contract.ResetProcess, EveryEpochs: 1}, MetricsListen: j.Address, Progress: os.Stderr,
	}
	c.Loop.Hook(fit.Hook{Name: "scrape", Epoch: func(context.Context, *fit.State) error {
		for {
			answer, err := http.Get("http://" + j.Address + "/metrics")
			if err != nil {
				continue // not yet
			}
			text, err := io.ReadAll(answer.Body)
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "steadyfit_restarts_total ") {
					fmt.Fprint(os.Stderr, line)
				}
			}
			return errors.Join(err, answer.Body.Close())
		}
	}})
	return c
}

// Run returns the result of the last child. Each child serves its metrics at the same port.
func TestResultUnderSupervision(t *testing.T) {
	t.Setenv(tfprocess.LogLevel, "")
	require.NoError(t, os.Unsetenv(tfprocess.LogLevel))
	j := resultJob{"result", filepath.Join(t.TempDir(), "model"), freeAddresses(t, 1)[0]}
	var progress bytes.Buffer
	c := j.config()
	c.Progress, c.Supervisor.Stderr = &progress, &progress
	r, err := Run(t.Context(), c)
	require.NoError(t, err, "%s", &progress)
	assert.Regexp(t, `level=INFO msg="the training continues in another process" attempt=1 step=2 reason=`, progress.String())
	assert.NotRegexp(t, `(?m)^I0000.*(reader|loader)\.cc`, progress.String())
	assert.Regexp(t, `(?s)steadyfit_restarts_total 0\n.*steadyfit_restarts_total 1\n`, progress.String())
	assert.Equal(t, j.Out, r.Out)
	assert.True(t, r.History.Done)
	assert.Len(t, r.History.Records, 2)
	assert.EqualValues(t, 4, r.History.Last().Step)
	assert.FileExists(t, filepath.Join(j.Out, "saved_model.pb"))
}
