package cluster

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/testkit"
	"steadyfit/option"
	"steadyfit/supervise"
)

// from returns the cluster of an environment with a variable per line.
func from(env string) (*Cluster, error) {
	values := map[string]string{}
	for line := range strings.Lines(env) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = value
	}
	return FromEnvironment(func(name string) (string, bool) { value, ok := values[name]; return value, ok })
}

const workers = `"worker":["a:2222","b:2222"]`

func tfConfig(cluster, kind, index string) string {
	return fmt.Sprintf(`TF_CONFIG={"cluster":{%s},"task":{"type":"%s","index":%s},"environment":"cloud"}`, cluster, kind, index)
}

func slurm(tasks int, rank, nodes, perNode, more string) string {
	return fmt.Sprintf("SLURM_JOB_ID=626\nSLURM_STEP_ID=0\nSLURM_STEP_NUM_TASKS=%d\nSLURM_PROCID=%s\nSLURM_STEP_NODELIST=%s\nSLURM_STEP_TASKS_PER_NODE=%s\n%s", tasks, rank, nodes, perNode, more)
}

func TestFromEnvironment(t *testing.T) {
	const master = "PET_MASTER_ADDR=run-node-0-0.run\nPET_MASTER_PORT=29500\nPET_NPROC_PER_NODE=auto\n"
	for _, c := range []struct {
		name, env string
		rank      int
		workers   string // joined by blanks; empty for none
	}{
		{"none", "HOME=/root", 0, ""},
		{"an empty TF_CONFIG", "TF_CONFIG=", 0, ""},
		{"TF_CONFIG without a cluster", "TF_CONFIG={}", 0, ""},
		{"one worker", tfConfig(`"worker":["a:2222"]`, "worker", "0"), 0, ""},
		{"one chief", tfConfig(`"chief":["a:2222"]`, "chief", "0"), 0, ""},
		{"TFJob", tfConfig(`"worker":["dist-worker-0.ns.svc:2222","dist-worker-1.ns.svc:2222"]`, "worker", "1"), 1,
			"dist-worker-0.ns.svc:2222 dist-worker-1.ns.svc:2222"},
		{"TFJob with a domain", tfConfig(`"worker":["d-worker-0.ns.svc.tf.training.com:2222","d-worker-1.ns.svc.tf.training.com:2222"]`, "worker", "0"), 0,
			"d-worker-0.ns.svc.tf.training.com:2222 d-worker-1.ns.svc.tf.training.com:2222"},
		{"the chief", tfConfig(`"chief":["c:1"],`+workers, "chief", "0"), 0, "c:1 a:2222 b:2222"},
		{"a worker of a chief", tfConfig(workers+`,"chief":["c:1"],"ps":[]`, "worker", "1"), 2, "c:1 a:2222 b:2222"},
		{"a master, with an index in quotes", tfConfig(workers+`,"master":["c:1"]`, "worker", `"0"`), 1, "c:1 a:2222 b:2222"},
		{"IPv6", tfConfig(`"worker":["[fd00::1]:1","[fd00::2]:1"]`, "worker", "0"), 0, "[fd00::1]:1 [fd00::2]:1"},
		{"Trainer, torch", "PET_NNODES=3\nPET_NODE_RANK=2\n" + master, 2,
			"run-node-0-0.run:29500 run-node-0-1.run:29500 run-node-0-2.run:29500"},
		{"Trainer, torch, one node", "PET_NNODES=1\nPET_NODE_RANK=0\n" + master, 0, ""},
		{"Trainer, JAX", "JAX_NUM_PROCESSES=2\nJAX_PROCESS_ID=1\nJAX_COORDINATOR_ADDRESS=run-node-0-0.run:6666\nJAX_COORDINATOR_PORT=6666", 1, "run-node-0-0.run:6666 run-node-0-1.run:6666"},
		{"an indexed Job", "PET_NNODES=2\nPET_NODE_RANK=0\nPET_MASTER_ADDR=run-0\nPET_MASTER_PORT=1", 0, "run-0:1 run-1:1"},
		{"TF_CONFIG comes first", tfConfig(workers, "worker", "0") + "\nPET_NNODES=9\n" +
			slurm(2, "1", "n[1-2]", "1(x2)", ""), 0, "a:2222 b:2222"},
		{"TF_CONFIG of one worker comes first", tfConfig(`"worker":["a:2222"]`, "worker", "0") + "\n" + slurm(2, "1", "n[1-2]", "1(x2)", ""), 0, ""},
		{"Slurm", slurm(2, "1", "n[1-2]", "1(x2)", "SLURM_NODEID=1\nSLURM_LOCALID=0"), 1, "n1:12032 n2:12032"},
		{"Slurm, tasks of a node", slurm(5, "3", "n[09-10],login", "2(x2),1", "SLURM_NODEID=1\nSLURM_LOCALID=1"), 3,
			"n09:12032 n09:12033 n10:12032 n10:12033 login:12032"},
		{"Slurm, one node", slurm(2, "0", "n1", "2", ""), 0, "n1:12032 n1:12033"},
		{"Slurm, one task", slurm(1, "0", "n1", "1", ""), 0, ""},
		{"Slurm, a script of sbatch", "SLURM_JOB_ID=7\nSLURM_NTASKS=4\nSLURM_PROCID=0\nSLURM_JOB_NODELIST=n[1-4]\nSLURM_TASKS_PER_NODE=1(x4)", 0, ""},
		{"Slurm, an earlier variable", "SLURM_STEP_NUM_TASKS=2\nSLURM_PROCID=0\nSLURM_STEP_NODELIST=a,b\nSLURM_TASKS_PER_NODE=1(x2)", 0, "a:12000 b:12000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := from(c.env)
			require.NoError(t, err)
			if c.workers == "" {
				require.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			assert.Equal(t, strings.Fields(c.workers), got.Workers)
			assert.Equal(t, fmt.Sprintf("rank %d of %d, from %s", c.rank, len(got.Workers), got.From), got.String())
			assert.Contains(t, c.env, got.From+"=")
			assert.NoError(t, got.Check())
		})
	}
}

func TestFromEnvironmentRefuses(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, c := range []struct{ env, want string }{
		{"TF_CONFIG=" + long, "TF_CONFIG: cannot be read as JSON of a cluster: "},
		{`TF_CONFIG={"cluster":{"worker":{"1":"a:1"},"ps":[]},"task":{"type":"worker","index":1}}`, "TF_CONFIG: the cluster does not list all workers; set enableDynamicWorker"},
		{`TF_CONFIG={"cluster":{"worker":"a:1"}}`, "TF_CONFIG: cannot be read as JSON of a cluster: "},
		{`TF_CONFIG={"sparseCluster":{"worker":{"1":"a:1"},"ps":[]},"task":{"type":"worker","index":1}}`, "TF_CONFIG: the cluster does not list all workers; set enableDynamicWorker"},
		{tfConfig(workers, "evaluator", "0"), "this task is an evaluator, and validation is a part of the training; " +
			"remove the evaluator"},
		{tfConfig(workers+`,"ps":["p:1"]`, "ps", "0"), "the cluster has parameter servers, and training has none; use workers only"},
		{tfConfig(workers+`,"drivers":["p:1"]`, "worker", "0"), `the cluster has a job named "drivers"`},
		{tfConfig(workers+`,"chief":["c:1","d:1"]`, "chief", "0"), "more than one chief"},
		{tfConfig(workers+`,"chief":["c:1"],"master":["d:1"]`, "chief", "0"), "more than one chief"},
		{tfConfig(workers, "worker", "2"), `no task "worker" with the index "2"`},
		{tfConfig(workers, "worker", "-1"), `no task "worker" with the index "-1"`},
		{tfConfig(workers, "worker", "1.5"), `no task "worker" with the index "1.5"`},
		{tfConfig(workers, long, "0"), `no task "xxx`},
		{`TF_CONFIG={"cluster":{` + workers + `}}`, `no task "" with the index ""`},
		{tfConfig(`"worker":["a:2222","a:2222"]`, "worker", "0"), "TF_CONFIG: workers a:2222: ranks 0 and 1 have this address"},
		{tfConfig(`"worker":["a:1","b:0"]`, "worker", "0"), "TF_CONFIG: workers b:0: expected a port from 1 to 65535"},
		{tfConfig(`"worker":["a:1","b:65536"]`, "worker", "0"), "expected a port from 1 to 65535"},
		{tfConfig(`"worker":["a:1","b"]`, "worker", "0"), "workers b: expected host:port"},
		{tfConfig(`"worker":["a:1","`+long+`"]`, "worker", "0"), "expected host:port"},
		{tfConfig(`"worker":["a:1","b c:1"]`, "worker", "0"), "expected a host name or an IP address"},
		{tfConfig(`"worker":["a:1",":1"]`, "worker", "0"), "expected a host name or an IP address"},
		{tfConfig(`"worker":["a:1"`+strings.Repeat(`,"a:1"`, maxRanks)+`]`, "worker", "0"), "workers of length 4097: expected 1 to 4096 addresses"},
		{"PET_NNODES=1:4\nPET_NODE_RANK=0", "PET_NNODES 1:4: the number of machines cannot change during a training; set " +
			"one number"},
		{"PET_NNODES=0", "PET_NNODES 0: expected a number from 1 to 4096"},
		{"PET_NNODES=1000000000", "PET_NNODES 1000000000: expected a number from 1 to 4096"},
		{"PET_NNODES=2\nPET_MASTER_ADDR=a-0\nPET_MASTER_PORT=1", "PET_NODE_RANK: missing; set a number from 0 to 1"},
		{"PET_NNODES=2\nPET_NODE_RANK=2\nPET_MASTER_ADDR=a-0\nPET_MASTER_PORT=1",
			"PET_NODE_RANK 2: expected a number from 0 to 1"},
		{"PET_NNODES=2\nPET_NODE_RANK=0\nPET_MASTER_ADDR=10.0.0.1\nPET_MASTER_PORT=1",
			"the addresses of the other ranks are unknown"},
		{"PET_NNODES=2\nPET_NODE_RANK=0\nPET_MASTER_ADDR=a-0", "expected a port from 1 to 65535"},
		{"JAX_NUM_PROCESSES=2\nJAX_PROCESS_ID=0\nJAX_COORDINATOR_ADDRESS=a-0",
			"JAX_COORDINATOR_ADDRESS a-0: expected the address of rank 0 with a port"},
		{slurm(99999, "0", "n1", "1", ""), "SLURM_STEP_NUM_TASKS 99999: expected a number from 1 to 4096"},
		{slurm(2, "x", "n1", "1", ""), "SLURM_PROCID x: expected a number"},
		{slurm(2, "2", "n[1-2]", "1(x2)", ""), "SLURM_PROCID 2: expected a number from 0 to 1"},
		{slurm(2, "0", "", "2", ""), "SLURM_STEP_NODELIST: expected a list of at most 4096 hosts"},
		{slurm(2, "0", "a,a", "1(x2)", ""), "ranks 0 and 1 have this address"},
		{slurm(2, "0", "a b,c", "1(x2)", ""), "expected a host name"},
		{slurm(2, "0", "n[1-3]", "1(x2)", ""), "SLURM_STEP_TASKS_PER_NODE 1(x2): describes 2 nodes, but " +
			"SLURM_STEP_NODELIST has 3"},
		{slurm(3, "0", "n[1-2]", "1(x2)", ""), "expected 3 tasks on all nodes together, as SLURM_STEP_NUM_TASKS says"},
		{slurm(3, "0", "n[1-2]", "4096(x2)", ""), "expected 3 tasks on all nodes together"},
		{slurm(2, "0", "n[1-2]", "1(x99999999)", ""), "expected numbers of tasks, as in 2(x3),1"},
		{slurm(2, "0", "n[1-2]", "-1,3", ""), "expected numbers of tasks"},
		{slurm(4, "1", "n[1-2]", "2(x2)", "SLURM_NODEID=1\nSLURM_LOCALID=0"),
			"since the tasks of a node must be consecutive; use srun --distribution=block"},
	} {
		t.Run(shorten(c.env), func(t *testing.T) {
			testkit.Allocates(t, 8<<20, func() {
				got, err := from(c.env)
				require.Nil(t, got)
				require.ErrorAs(t, err, new(*option.Error))
				assert.ErrorContains(t, err, c.want)
				assert.Less(t, len(err.Error()), 500)
			})
		})
	}
}

func TestExpandHosts(t *testing.T) {
	for text, want := range map[string]string{
		"a":                "a",
		"a,b-1.x":          "a b-1.x",
		"n[1-3]":           "n1 n2 n3",
		"n[008-10,2]-ib,m": "n008-ib n009-ib n010-ib n2-ib m",
		"r[1-2]n[0-1]":     "r1n0 r1n1 r2n0 r2n1",
		"[1-2]":            "1 2",
	} {
		got, err := expandHosts(text)
		require.NoError(t, err, text)
		assert.Equal(t, strings.Fields(want), got, text)
	}
	for _, text := range []string{
		"", ",", "a,", ",a", "n[", "n[1", "n]", "n[]", "n[1-]", "n[2-1]", "n[a-b]", "n[1-2-3]", "n[-1]", "n[[1]]",
		"n[0-4096]", "n[1-99999999999999999999]", "n[0-4294967295]", "n[1-100][1-100]", "n[1-4000],m[1-4000]",
		"n" + strings.Repeat("[1]", maxBrackets+1), "n[" + strings.Repeat("0", 30_000) + "1-2]", strings.Repeat("[", 100_000),
		strings.Repeat("a,", 100_000) + "a",
	} {
		testkit.Allocates(t, 8<<20, func() {
			got, err := expandHosts(text)
			if err == nil {
				err = (&Cluster{Workers: got}).Check()
			}
			assert.Error(t, err, shorten(text))
		})
	}
}

func TestFreeAddresses(t *testing.T) {
	got, err := FreeAddresses(3)
	require.NoError(t, err)
	require.NoError(t, (&Cluster{Workers: got}).Check())
	_, err = FreeAddresses(maxLocal + 1)
	assert.ErrorContains(t, err, "257 ranks on this machine: expected at most 256")
}

func FuzzFromEnvironment(f *testing.F) {
	for _, env := range []string{tfConfig(workers, "worker", "0"),
		"PET_NNODES=2\nPET_NODE_RANK=1\nPET_MASTER_ADDR=a-0\nPET_MASTER_PORT=1",
		slurm(5, "3", "n[09-10],login", "2(x2),1", "")} {
		f.Add(env)
	}
	f.Fuzz(func(t *testing.T, env string) {
		got, err := from(env)
		if got != nil && (err != nil || got.Check() != nil || len(got.Workers) < 2) {
			t.Errorf("%q: %v, %v", env, got, err)
		}
	})
}

// If the context ends while the port is in use, the error is that of the context and not
// supervise.ErrRetry.
func TestAwaitPort(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	all := Cluster{Workers: []string{fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port)}}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = all.AwaitPort(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, supervise.ErrRetry)
	require.NoError(t, l.Close())
	require.NoError(t, all.AwaitPort(t.Context()))
}
