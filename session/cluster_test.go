package session_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/cluster"
	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// rankJob is the work of a rank, which a process of this test binary does (TestMain).
type rankJob struct {
	Workers []string
	Rank    int
	Model   string
	Sizes   []int // samples of the batches
	Fail    int   // the step at which the rank ends; 0 for none
	Options session.Options
}

type rankResult struct {
	Losses     [][]float64
	Evaluation []float64
	State      string // the hash of the variables
	Shared     string
}

const rankEnv = "STEADYFIT_TEST_RANK"

func (j rankJob) run() (r rankResult, err error) {
	ctx := context.Background()
	o := j.Options
	if len(j.Workers) > 0 {
		o.Cluster = &cluster.Cluster{Workers: j.Workers, Rank: j.Rank, Start: time.Minute, Timeout: 20 * time.Second}
	}
	model, err := savedmodels.Open(j.Model)
	if err != nil {
		return r, err
	}
	s, err := session.OpenModel(ctx, model, o)
	if err != nil {
		return r, err
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()
	if len(j.Workers) == 0 {
		if err := s.SetMicroBatches(max(j.Rank, 1)); err != nil {
			return r, err
		}
	}
	train, _, err := data.Builtin("digits")
	if err != nil {
		return r, err
	}
	out := make([]float64, len(s.TrainMetrics()))
	for step, size := range j.Sizes {
		if j.Fail > 0 && step == j.Fail {
			os.Exit(9)
		}
		for b, err := range train.Batches(data.Pass{Batch: size, Skip: step}) {
			if err != nil {
				return r, err
			}
			if err := s.Train(ctx, int64(step), b, out); err != nil {
				return r, err
			}
			r.Losses = append(r.Losses, slices.Clone(out))
			break
		}
	}
	for b, err := range train.Batches(data.Pass{Batch: 45}) {
		if err != nil {
			return r, err
		}
		r.Evaluation = make([]float64, len(s.EvaluateMetrics()))
		if err := s.Evaluate(ctx, b, r.Evaluation); err != nil {
			return r, err
		}
		break
	}
	shared, err := s.Share(fmt.Append(nil, "the data of rank ", j.Rank))
	if err != nil {
		return r, err
	}
	r.Shared = string(shared)
	dir, err := os.MkdirTemp("", "rank-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	if err := s.Save(ctx, filepath.Join(dir, "v")); err != nil {
		return r, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "v.data*"))
	if err != nil || len(files) != 1 {
		return r, fmt.Errorf("%v: %w", files, err)
	}
	values, err := os.ReadFile(files[0])
	sum := sha256.Sum256(values)
	r.State = hex.EncodeToString(sum[:8])
	if err == nil {
		err = s.Leave()
	}
	return r, err
}

// runRank runs the job in the environment and prints its result.
func runRank(text string) int {
	var job rankJob
	err := json.Unmarshal([]byte(text), &job)
	var result rankResult
	if err == nil {
		result, err = job.run()
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func freeAddresses(t testing.TB, n int) (addresses []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addresses = append(addresses, l.Addr().String())
		defer l.Close()
	}
	return addresses
}

type rankProcess struct {
	*exec.Cmd
	out, err bytes.Buffer
}

func startRank(t testing.TB, job rankJob) *rankProcess {
	t.Helper()
	text, err := json.Marshal(job)
	require.NoError(t, err)
	p := &rankProcess{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), rankEnv+"="+string(text))
	p.Stdout, p.Stderr = &p.out, &p.err
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

func (p *rankProcess) result(t testing.TB) (r rankResult) {
	t.Helper()
	require.NoError(t, p.Wait(), "%s", p.err.String())
	require.NoError(t, json.Unmarshal(p.out.Bytes(), &r), "%s", p.out.String())
	return r
}

// All ranks have the same numbers. Those of two ranks are the numbers of two micro-batches, bit
// for bit. A batch with fewer samples than ranks leaves ranks idle.
func TestCluster(t *testing.T) {
	for _, c := range []struct {
		model string
		ranks int
	}{{"digits", 2}, {"digits", 3}, {"digits-fp16", 2}} {
		t.Run(c.model+" "+strconv.Itoa(c.ranks), func(t *testing.T) {
			job := rankJob{Model: "builtin:" + c.model, Sizes: []int{64, 64, 32, 1, 2, 33, 64, 7}}
			job.Rank = c.ranks // micro-batches
			want, err := job.run()
			require.NoError(t, err)
			job.Workers = freeAddresses(t, c.ranks)
			var ranks []*rankProcess
			for job.Rank = range c.ranks {
				ranks = append(ranks, startRank(t, job))
			}
			var results []rankResult
			for _, p := range ranks {
				results = append(results, p.result(t))
			}
			for _, r := range results {
				assert.Equal(t, results[0], r)
				assert.Equal(t, "the data of rank 0", r.Shared)
			}
			if c.ranks == 2 {
				assert.Equal(t, want.State, results[0].State)
				assert.Equal(t, want.Losses, results[0].Losses)
				assert.Equal(t, want.Evaluation, results[0].Evaluation)
			}
			for i := range want.Losses {
				assert.InDeltaSlice(t, want.Losses[i], results[0].Losses[i], 1e-6)
			}
		})
	}
}

// A rank that ends makes the others end soon, with its name and an error to try again.
func TestClusterLosesARank(t *testing.T) {
	job := rankJob{Model: "builtin:digits", Sizes: slices.Repeat([]int{64}, 20), Workers: freeAddresses(t, 3)}
	var ranks []*rankProcess
	for job.Rank = range 3 {
		job.Fail = 0
		if job.Rank == 1 {
			job.Fail = 5
		}
		ranks = append(ranks, startRank(t, job))
	}
	for rank, p := range ranks {
		err := p.Wait()
		require.Error(t, err)
		if rank != 1 {
			assert.Equal(t, 1, p.ProcessState.ExitCode())
			assert.Contains(t, p.err.String(), "another rank of the cluster was lost")
			assert.True(t, strings.Contains(p.err.String(), "rank 1 (") || strings.Contains(p.err.String(), "rank 0 (") || strings.Contains(p.err.String(), "rank 2 ("), p.err.String())
		}
	}
}
