package train

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/cluster"
	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/session"
	"steadyfit/supervise"
)

// rankJob is a training that a process of this test binary runs as a rank.
type rankJob struct {
	Test             string
	Cluster          cluster.Cluster
	Dir              string // for the files of rank 0
	Batch, Epochs    int
	Supervised       bool
	Resume           bool
	Slow             time.Duration // time to wait after each step
	ValidationPart   float64
	CheckpointSteps  int
	Validating       bool  // Interrupt is during the validation
	Interrupt, Spoil int64 // the step after which this rank is interrupted, or has another rate; 0 for none
}

const rankEnv = "STEADYFIT_TEST_RANK"

// config returns the training of a rank.
func (j *rankJob) config() Config {
	c := Config{
		Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Validation: "builtin:digits", Seed: 3, Shuffle: true,
		Prefetch:    -1,
		Loop:        fit.Loop{Batch: j.Batch, Epochs: j.Epochs, LearningRate: fit.Constant(0.01)},
		Out:         filepath.Join(j.Dir, "model"),
		Checkpoints: fit.Checkpoint{Folder: filepath.Join(j.Dir, "ckpt"), EverySteps: j.CheckpointSteps, Keep: 3},
		Resume:      j.Resume,
		Cluster:     &j.Cluster,
	}
	c.Loop.Hook(fit.HistoryFile(filepath.Join(j.Dir, "history.jsonl")))
	c.Loop.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if j.Supervised {
		j.Test = "rank"
		c.Supervise, c.Child = Always, j
		c.Supervisor = supervise.Options{Deadline: time.Minute, Restarts: 20, Backoff: 50 * time.Millisecond, Log: c.Loop.Log,
			Stderr: os.Stderr}
	}
	return c
}

func init() {
	childTests["rank"] = func(spec []byte) (Config, error) {
		var j rankJob
		err := json.Unmarshal(spec, &j)
		c := j.config()
		j.disturb(context.Background(), &c)
		return c, err
	}
}

// interrupt sends SIGTERM to this process, and waits until ctx has ended.
func interrupt(ctx context.Context) error {
	err := syscall.Kill(os.Getpid(), syscall.SIGTERM)
	if err == nil {
		<-ctx.Done() // a signal arrives some time after it was sent
	}
	return err
}

// disturb adds a hook that disturbs the training. An interrupt ends ctx.
func (j *rankJob) disturb(ctx context.Context, c *Config) {
	c.Loop.Hook(fit.Hook{Name: "disturb", Step: func(_ context.Context, s *fit.State) error {
		<-time.After(j.Slow) // so that the test can disturb the training
		if j.Spoil == s.Step {
			return s.Session.SetLearningRate(0.5)
		}
		if j.Interrupt == s.Step && !j.Validating {
			return interrupt(ctx)
		}
		return nil
	}})
}

// asRank runs the job in the environment, if there is one, and ends the process.
func asRank(t *testing.T) {
	t.Helper()
	text, is := os.LookupEnv(rankEnv)
	if !is {
		return
	}
	var job rankJob
	require.NoError(t, json.Unmarshal([]byte(text), &job))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := job.config()
	if job.Validating {
		calls := 0
		c.Loop.Alive = func(step int64) {
			if job.Interrupt > 0 && step == job.Interrupt {
				calls++
			}
			if calls == 3 { // after the last step, and two batches of the validation
				assert.NoError(t, interrupt(ctx))
			}
		}
	} else if job.Slow > 0 || job.Interrupt > 0 || job.Spoil > 0 {
		job.disturb(ctx, &c)
	}
	_, err := Run(ctx, c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ended:", err)
		os.Exit(3)
	}
	os.Exit(0)
}

type rankProcess struct {
	*exec.Cmd
	err bytes.Buffer
}

// startRanks starts one process for each rank on free ports. change may change the job of a rank.
func startRanks(t *testing.T, ranks int, job rankJob, change func(rank int, job *rankJob)) (all []*rankProcess) {
	t.Helper()
	job.Cluster.Workers = freeAddresses(t, ranks)
	for rank := range job.Cluster.Workers {
		own := job
		own.Cluster.Rank = rank
		if change != nil {
			change(rank, &own)
		}
		text, err := json.Marshal(own)
		require.NoError(t, err)
		p := &rankProcess{Cmd: exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")}
		p.Env = append(os.Environ(), rankEnv+"="+string(text))
		p.Stderr = &p.err
		p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		require.NoError(t, p.Start())
		t.Cleanup(func() { _ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL) })
		all = append(all, p)
	}
	return all
}

func succeed(t *testing.T, ranks []*rankProcess) {
	t.Helper()
	for i, p := range ranks {
		err := p.Wait()
		require.NoError(t, err, "rank %d: %s", i, p.err.String())
	}
}

// alone runs the training of a job in one process, in micro-batches. It returns the weights and
// the losses.
func alone(t *testing.T, job rankJob, parts int) (state []byte, losses []float64) {
	t.Helper()
	model := builtin(t, "digits")
	s, err := session.OpenModel(t.Context(), model, session.Options{Seed: 3})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.SetMicroBatches(parts))
	train, test, err := data.Builtin("digits")
	require.NoError(t, err)
	l := fit.Loop{Session: s, Batch: job.Batch, Epochs: job.Epochs, LearningRate: fit.Constant(0.01), Validation: test}
	h, err := l.Run(t.Context(), train.Shuffle(3))
	require.NoError(t, err)
	prefix := filepath.Join(t.TempDir(), "v")
	require.NoError(t, s.Save(t.Context(), prefix))
	state, err = os.ReadFile(prefix + ".data-00000-of-00001")
	require.NoError(t, err)
	return state, lossesOf(h.Records)
}

func lossesOf(records []fit.Record) (losses []float64) {
	for _, r := range records {
		for _, m := range r.Metrics {
			losses = append(losses, m.Value)
		}
	}
	return losses
}

func readRecords(t *testing.T, dir string) (records []fit.Record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "history.jsonl"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var r fit.Record
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		records = append(records, r)
	}
	return records
}

// Two ranks have the results of two micro-batches, bit for bit. A training that began with two
// ranks continues with three.
func TestCluster(t *testing.T) {
	asRank(t)
	job := rankJob{Dir: t.TempDir(), Batch: 50, Epochs: 2}
	state, losses := alone(t, job, 2)
	succeed(t, startRanks(t, 2, job, nil))
	assert.Equal(t, state, weights(t, filepath.Join(job.Dir, "model")))
	assert.Equal(t, losses, lossesOf(readRecords(t, job.Dir)))

	job.Epochs, job.Resume = 3, true
	_, losses = alone(t, job, 2)
	succeed(t, startRanks(t, 3, job, nil))
	assert.InDeltaSlice(t, losses, lossesOf(readRecords(t, job.Dir)), 1e-6)
}

// childOf returns the process that a supervisor has started; 0 if there is none.
func childOf(supervisor int) int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", supervisor)) // one for each thread
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for pid := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(pid); err == nil {
				return n
			}
		}
	}
	return 0
}

// newest returns the step of the newest checkpoint.
func newest(dir string) (step int) {
	found, _ := filepath.Glob(filepath.Join(dir, "ckpt", "ckpt-*"))
	for _, path := range found {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "ckpt-"))
		if err == nil {
			step = max(step, n)
		}
	}
	return step
}

// Supervised ranks end with the bits of an undisturbed training although random ranks are killed,
// including the first one. STEADYFIT_TEST_KILLS is the number of ranks to kill.
//
//lane:skip race (ends processes)
//lane:run soak
//lane:skip check (long)
func TestClusterSurvivesKills(t *testing.T) {
	asRank(t)
	kills := 3
	if text := os.Getenv("STEADYFIT_TEST_KILLS"); text != "" {
		var err error
		kills, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	job := rankJob{Dir: t.TempDir(), Batch: 50, Epochs: 3 + kills/2, Supervised: true, Slow: 10 * time.Millisecond,
		CheckpointSteps: 5}
	state, losses := alone(t, job, 2)
	ranks := startRanks(t, 2, job, nil)
	defer func() {
		for i, p := range ranks {
			if t.Failed() {
				t.Logf("rank %d: %s", i, p.err.String())
			}
		}
	}()
	within := func(is func() bool) {
		require.Eventually(t, is, time.Minute, 10*time.Millisecond)
	}
	signals := []syscall.Signal{syscall.SIGKILL, syscall.SIGSEGV}
	before := 0
	for i := range kills {
		within(func() bool { return newest(job.Dir) > before }) // both ranks train
		victim, signal := i%2, signals[i/2%2]
		var was [2]int
		within(func() bool {
			was = [2]int{childOf(ranks[0].Process.Pid), childOf(ranks[1].Process.Pid)}
			return was[0] > 0 && was[1] > 0
		})
		replaced := func(rank int) func() bool {
			return func() bool {
				pid := childOf(ranks[rank].Process.Pid)
				return pid > 0 && pid != was[rank]
			}
		}
		require.NoError(t, syscall.Kill(was[victim], signal))
		within(replaced(1 - victim))
		within(replaced(victim))
		before = newest(job.Dir)
	}
	succeed(t, ranks)
	assert.Equal(t, state, weights(t, filepath.Join(job.Dir, "model")))
	assert.Equal(t, losses, lossesOf(readRecords(t, job.Dir)))
	assert.Contains(t, ranks[0].err.String(), ") was lost: ")
}

// An interrupt of one rank stops all ranks after the same step, with a checkpoint.
func TestClusterInterrupt(t *testing.T) {
	asRank(t)
	job := rankJob{Dir: t.TempDir(), Batch: 50, Epochs: 3}
	state, losses := alone(t, job, 2)
	ranks := startRanks(t, 2, job, func(rank int, job *rankJob) {
		if rank == 1 {
			job.Interrupt = 7
		}
	})
	for _, p := range ranks {
		require.Error(t, p.Wait())
		assert.Contains(t, p.err.String(), "rank 1 was interrupted")
	}
	step := newest(job.Dir)
	assert.GreaterOrEqual(t, step, 7)
	assert.Less(t, step, 20)
	job.Resume = true
	succeed(t, startRanks(t, 2, job, nil))
	assert.Equal(t, state, weights(t, filepath.Join(job.Dir, "model")))
	assert.Equal(t, losses, lossesOf(readRecords(t, job.Dir)))

	job = rankJob{Dir: t.TempDir(), Batch: 50, Epochs: 3, Validating: true}
	ranks = startRanks(t, 2, job, func(rank int, job *rankJob) { job.Interrupt = 29 * int64(rank) })
	for _, p := range ranks {
		require.Error(t, p.Wait())
		assert.Regexp(t, "validation of epoch 1, after step 29: interrupted before batch [0-9]+: rank 1 was interrupted",
			p.err.String())
	}
	assert.Equal(t, 29, newest(job.Dir))
}

// A training refuses ranks with different options or different weights.
func TestClusterDiffers(t *testing.T) {
	asRank(t)
	for _, c := range []struct {
		change       func(*rankJob)
		rank0, rank1 string
	}{
		{func(j *rankJob) { j.Batch-- }, "rank 1 could not take over the state of rank 0",
			"this rank has Loop.Batch 49, and rank 0 has 50"},
		{func(j *rankJob) { j.Epochs++ }, "rank 1 could not take over the state of rank 0",
			"this rank has Loop.Epochs 3, and rank 0 has 2"},
		{func(j *rankJob) { j.Spoil = 3 }, "after epoch 1: the ranks train differently: rank 1",
			"after epoch 1: the ranks train differently: rank 1"},
	} {
		job := rankJob{Dir: t.TempDir(), Batch: 50, Epochs: 2}
		ranks := startRanks(t, 2, job, func(rank int, job *rankJob) {
			if rank == 1 {
				c.change(job)
			}
		})
		for i, p := range ranks {
			require.Error(t, p.Wait())
			assert.Contains(t, p.err.String(), []string{c.rank0, c.rank1}[i])
		}
	}
}

// freeAddresses returns addresses of this machine for ranks or servers.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	addresses, err := cluster.FreeAddresses(n)
	require.NoError(t, err)
	return addresses
}
