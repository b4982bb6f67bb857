package session_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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
	Sizes   []int  // samples of the batches
	Until   string // the rank waits for this file before its last step
	Start   time.Duration
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
		o.Cluster = &cluster.Cluster{Workers: j.Workers, Rank: j.Rank, Start: cmp.Or(j.Start, time.Minute),
			Timeout: time.Minute}
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
	group := s.Ranks()
	out := make([]float64, len(s.TrainMetrics()))
	for step, size := range j.Sizes {
		for j.Until != "" && step == len(j.Sizes)-1 {
			if _, err := os.Stat(j.Until); err == nil {
				break
			}
			<-time.After(20 * time.Millisecond)
		}
		if err := s.Train(ctx, int64(step), madeBatch(s, size, step), out); err != nil {
			return r, err
		}
		r.Losses = append(r.Losses, slices.Clone(out))
	}
	if group != nil {
		shared, err := group.Share(fmt.Append(nil, "the data of rank ", j.Rank), 0)
		if err != nil {
			return r, err
		}
		r.Shared = string(shared)
	}
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
	if err != nil {
		return r, err
	}
	r.Evaluation = make([]float64, len(s.EvaluateMetrics()))
	if err := s.Evaluate(ctx, madeBatch(s, j.Sizes[0]-1, 100), r.Evaluation); err != nil {
		return r, err
	}
	if group != nil {
		if err := group.CheckEqual(ctx); err != nil {
			return r, err
		}
		err = group.Leave(func() {})
	}
	return r, err
}

// madeBatch makes a batch of different samples for the train signature.
func madeBatch(s *session.Session, size, step int) data.Batch {
	sig, _ := s.Model().Signature(s.Roles().Train)
	return filled(sig, size, func(i int) (float32, int64) {
		return float32(math.Sin(float64(7*i + 100*step))), int64(i+step) % 3
	})
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

// All ranks have the same results. For two ranks and for small models, the results equal those of
// as many micro-batches bit for bit.
//
//lane:skip gcstress (hundreds of steps)
func TestCluster(t *testing.T) {
	sizes := []int{64, 64, 32, 3, 2, 33, 64, 7}
	inexact := session.Options{AllowInexactSplit: true}
	for _, c := range []struct {
		model   string
		ranks   int
		sizes   []int
		options session.Options
	}{
		{"digits", 1, sizes, session.Options{}}, {"digits", 2, sizes, session.Options{}},
		{"digits", 9, []int{63, 11}, session.Options{}},
		{"digits-scaled", 2, sizes, inexact}, {"digits-cnn", 2, sizes, inexact},
		{"image-224", 2, []int{4, 3}, session.Options{}},
	} {
		small := c.ranks <= 3 && (c.model == "digits" || c.model == "digits-cnn")
		if session.RaceEnabled && !small {
			continue
		}
		t.Run(c.model+" "+strconv.Itoa(c.ranks), func(t *testing.T) {
			job := rankJob{Model: "builtin:" + c.model, Sizes: c.sizes, Options: c.options}
			job.Rank = c.ranks // without Workers, the number of micro-batches
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
				assert.Equal(t, len(ranks) > 1, r.Shared == "the data of rank 0")
			}
			if c.options.AllowInexactSplit {
				return
			}
			if c.ranks == 1 { // a single process uses the signature train, which rounds differently
				for i := range want.Losses {
					assert.InDeltaSlice(t, want.Losses[i], results[0].Losses[i], 1e-5)
				}
				return
			}
			assert.Equal(t, want.State, results[0].State)
			assert.Equal(t, want.Losses, results[0].Losses)
			assert.Equal(t, want.Evaluation, results[0].Evaluation)
		})
	}
}

// A model with a fixed batch size cannot train in a cluster, since parts of a batch do not fit it.
func TestClusterFixedBatch(t *testing.T) {
	m := builtin(t, "digits")
	m.Signatures = slices.Clone(m.Signatures)
	i := slices.IndexFunc(m.Signatures, func(s savedmodels.Signature) bool { return s.Name == m.Roles.Gradients })
	m.Signatures[i].Inputs = slices.Clone(m.Signatures[i].Inputs)
	for j := range m.Signatures[i].Inputs {
		in := &m.Signatures[i].Inputs[j]
		in.Shape = slices.Clone(in.Shape)
		if len(in.Shape) > 0 && in.Shape[0] < 0 {
			in.Shape[0] = 32
		}
	}
	_, err := session.Compile(m, session.Options{Cluster: &cluster.Cluster{Workers: []string{"a:1", "b:1"}}})
	require.ErrorContains(t, err, "fixed batch size 32")
}

// A rank that expects another number of ranks, such as one that was given up while it started, does
// not disturb the other ranks.
func TestClusterOfAnotherSize(t *testing.T) {
	job := rankJob{Model: "builtin:digits", Sizes: []int{64, 64}, Workers: freeAddresses(t, 2),
		Until: filepath.Join(t.TempDir(), "end")}
	var ranks []*rankProcess
	for job.Rank = range 2 {
		ranks = append(ranks, startRank(t, job))
	}
	for _, address := range job.Workers {
		require.Eventually(t, func() bool {
			conn, err := net.Dial("tcp", address)
			return err == nil && conn.Close() == nil
		}, time.Minute, 20*time.Millisecond)
	}
	job.Workers, job.Rank, job.Start = append(job.Workers, freeAddresses(t, 1)...), 2, 3*time.Second
	stranger := startRank(t, job)
	require.Error(t, stranger.Wait())
	assert.Contains(t, stranger.err.String(), "it did not take part in an exchange for 3s")
	require.NoError(t, os.WriteFile(job.Until, nil, 0o666))
	for _, p := range ranks {
		p.result(t)
	}
}

// A rank does not wait for the others longer than Cluster.Start.
func TestClusterStart(t *testing.T) {
	job := rankJob{Model: "builtin:digits", Workers: freeAddresses(t, 2), Start: 300 * time.Millisecond}
	p := startRank(t, job)
	require.Error(t, p.Wait())
	assert.Contains(t, p.err.String(), "rank 1 ("+job.Workers[1]+") did not start within 300ms; start all ranks, or "+
		"raise Cluster.Start")
}

// freeAddresses returns addresses of this machine for ranks or servers.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	addresses, err := cluster.FreeAddresses(n)
	require.NoError(t, err)
	return addresses
}
