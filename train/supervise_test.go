package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/cluster"
	"steadyfit/fit"
	"steadyfit/fit/budget"
	"steadyfit/fit/checkpoint"
	"steadyfit/internal/contract"
	"steadyfit/internal/freeport"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/tfenv"
	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/supervise"
)

// A budget uses a child process if there is a folder of checkpoints.
func TestWhoTrains(t *testing.T) {
	of := func(deadline time.Duration, restarts int) supervise.Options {
		return supervise.Options{Deadline: deadline, Restarts: restarts}
	}
	rss, gpu := Budget{Limit: memory.GiB}, Budget{Limit: memory.GiB, Layer: memlayer.GPUProcess}
	for _, c := range []struct {
		name     string
		config   Config
		child    bool
		deadline time.Duration
		restarts int
		grace    time.Duration
	}{
		{"unsupervised", Config{}, false, 0, 0, 0},
		{"supervised", Config{Supervise: Always, Supervisor: of(time.Minute, 3)}, true, time.Minute, 3, 0},
		{"supervised, without restarts", Config{Supervise: Always, Supervisor: of(0, -1)}, true, 0, -1, 0},
		{"in a child already", Config{Supervise: Always, Worker: &supervise.Worker{}}, false, 0, 0, 0},
		{"budget", Config{Supervise: ForBudget, Supervisor: of(5*time.Minute, 3), Budget: rss}, true, 0, -1, 5 * time.Minute},
		{"budget, without a deadline", Config{Supervise: ForBudget, Budget: rss}, true, 0, -1, time.Minute},
		{"budget, unsupervised", Config{Budget: rss}, false, 0, 0, 0},
		{"no budget", Config{Supervise: ForBudget}, false, 0, 0, 0},
		{"budget of a GPU", Config{Supervise: ForBudget, Budget: gpu}, false, 0, 0, 0},
	} {
		c.config.Checkpoints.Folder = "ckpt"
		s, ok := c.config.supervisor()
		assert.Equal(t, c.child, ok, c.name)
		assert.Equal(t, c.deadline, s.Deadline, c.name)
		assert.Equal(t, c.restarts, s.Restarts, c.name)
		assert.Equal(t, c.grace, s.Grace, c.name)
		c.config.Checkpoints.Folder = ""
		_, ok = c.config.supervisor()
		assert.Equal(t, c.child && c.config.Supervise == Always, ok, c.name)
	}
	for rank, kill := range []bool{false, true} {
		all := cluster.Cluster{Workers: []string{"a:1", "b:1", "c:1"}, Rank: rank}
		s, _ := (&Config{Supervise: Always, Cluster: &all}).supervisor()
		assert.Equal(t, supervise.Options{}, s)
		all.MinWorkers = 1
		s, _ = (&Config{Supervise: Always, Cluster: &all}).supervisor()
		assert.Equal(t, supervise.Options{Peers: 2, KillOrphan: kill}, s)
	}
	c := Config{Checkpoints: Checkpoints{Folder: "ckpt"}, Supervise: ForBudget, Supervisor: of(time.Minute, 0), Budget: rss, Loop: fit.Loop{Batch: 1, Epochs: 1}}
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
	c := &training{Config: Config{CheckImages: true}}
	c.adapt(false)
	assert.True(t, c.CheckImages)
	assert.False(t, c.Resume)
	c.adapt(true)
	assert.False(t, c.CheckImages, "they have been decoded once")
	assert.True(t, c.Resume)
}

func TestWhatAnErrorLeaves(t *testing.T) {
	hook := func(err error) error { return &fit.HookError{Hook: "h", Phase: "end", Err: err} }
	other := errors.New("other")
	for _, c := range []struct {
		err             error
		unlogged, final bool
	}{
		{nil, true, true},
		{hook(&fit.LogError{}), true, false},
		{hook(&fit.LogError{Final: true}), true, true},
		{hook(&checkpoint.Error{Final: true}), false, true},
		{errors.Join(hook(&fit.LogError{Final: true}), hook(&checkpoint.Error{Final: true})), false, true},
		{errors.Join(hook(&fit.LogError{Final: true}), hook(other)), false, false},
		{errors.Join(hook(&fit.LogError{}), hook(&fit.LogError{})), true, false},
		{other, false, false},
	} {
		assert.Equal(t, c.unlogged, every(c.err, unlogged), "%v", c.err)
		assert.Equal(t, c.final, every(c.err, final), "%v", c.err)
	}
	full := &fit.LogError{Err: syscall.ENOSPC}
	assert.True(t, notBegun(&fit.HookError{Phase: "start", Err: full}))
	assert.False(t, notBegun(&fit.HookError{Phase: "end", Err: full}))
	assert.False(t, notBegun(&fit.HookError{Phase: "start", Err: other}))
}

// Run returns in the parent only, with the result of the last child. Each child serves its metrics at the
// same port.
func TestResultUnderSupervision(t *testing.T) {
	const env = "STEADYFIT_TEST_SUPERVISED"
	out := os.Getenv(env)
	if out == "" {
		out = filepath.Join(t.TempDir(), "model")
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, tfenv.LogLevel+"=") })
		cmd.Env = append(cmd.Env, env+"="+out, env+"_ADDRESS="+freeport.Addresses(t, 1)[0])
		var progress bytes.Buffer
		cmd.Stderr = &progress
		text, err := cmd.Output()
		require.NoError(t, err, "%s%s", text, &progress)
		assert.Regexp(t, `level=INFO msg="the training continues in another process" attempt=1 step=2 reason=`, progress.String())
		assert.NotRegexp(t, `(?m)^I0000.*(reader|loader)\.cc`, progress.String())
		assert.Regexp(t, `^restarts 0\nrestarts 1\nout "`+out+`", done true, epochs 2, step 4, loss [0-9.]+\nPASS\n`, string(text))
		assert.FileExists(t, filepath.Join(out, "saved_model.pb"))
		return
	}
	c := Config{
		Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Loop: fit.Loop{Batch: 32, Epochs: 2, StepsPerEpoch: 2},
		Supervise: Always, Checkpoints: Checkpoints{Folder: out + "-checkpoints"}, Out: out,
		Reset: &budget.ResetPolicy{Depth: contract.ResetProcess, EveryEpochs: 1}, MetricsListen: os.Getenv(env + "_ADDRESS"), Progress: os.Stderr,
	}
	c.Loop.Hook(fit.Hook{Name: "scrape", Epoch: func(context.Context, *fit.State) error {
		require.Eventually(t, func() bool {
			answer, err := http.Get("http://" + c.MetricsListen)
			return err == nil && answer.Body.Close() == nil
		}, time.Minute, time.Millisecond)
		fmt.Printf("restarts %v\n", metrics(t, c.MetricsListen)["steadyfit_restarts_total"][""])
		return nil
	}})
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	loss, _ := r.History.Last().Metrics.Get("loss")
	fmt.Printf("out %q, done %v, epochs %d, step %d, loss %v\n", r.Out, r.History.Done, len(r.History.Records), r.History.Last().Step, loss)
}
