package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"steadyfit/cluster"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// object is an object of a manifest, or a part of one.
type object = map[string]any

// manifests reads the objects of a file of examples/k8s by kind.
func manifests(t *testing.T, file string) map[string]object {
	t.Helper()
	text, err := os.Open(filepath.Join("../../examples/k8s", file))
	require.NoError(t, err)
	defer text.Close()
	kinds := map[string]object{}
	for d := yaml.NewDecoder(text); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return kinds
		}
		require.NoError(t, err)
		kinds[o["kind"].(string)] = o
	}
}

// at returns a part of an object, as in "spec.containers.0.name".
func at[T any](t *testing.T, o any, path string) T {
	t.Helper()
	for name := range strings.SplitSeq(path, ".") {
		if list, ok := o.([]any); ok {
			i, err := strconv.Atoi(name)
			require.NoError(t, err, path)
			require.Less(t, i, len(list), path)
			o = list[i]
			continue
		}
		require.IsType(t, object{}, o, path)
		o = o.(object)[name]
	}
	value, ok := o.(T)
	require.True(t, ok, "%s is %v", path, o)
	return value
}

// checkFailures asserts that a job retries a failure only if it may not occur again. The interrupt
// of a rank ends all ranks, and does not count.
func checkFailures(t *testing.T, job object, ranks bool) {
	t.Helper()
	assert.Equal(t, "Never", at[string](t, job, "template.spec.restartPolicy"), "podFailurePolicy requires it")
	want := []any{
		object{"action": "FailJob",
			"onExitCodes": object{"operator": "In", "values": []any{exitUsage, exitEnvironment, exitDiverged}}},
		object{"action": "Ignore", "onPodConditions": []any{object{"type": "DisruptionTarget", "status": "True"}}},
	}
	if ranks {
		want = append(want, object{"action": "Ignore",
			"onExitCodes": object{"operator": "In", "values": []any{exitInterrupted}}})
	}
	assert.Equal(t, want, at[[]any](t, job, "podFailurePolicy.rules"), "all others are tried again")
}

// parsed returns the command with these arguments, with its parsed flags.
func parsed(t *testing.T, args []string) *cobra.Command {
	t.Helper()
	root := newRoot(newSettings(), io.Discard, io.Discard)
	cmd, rest, err := root.Find(args)
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(rest), "%v", args)
	require.Empty(t, cmd.Flags().Args(), "%v: all are flags", args)
	return cmd
}

// container returns the command of a container, with its parsed flags.
func container(t *testing.T, c any) *cobra.Command {
	t.Helper()
	var args []string
	for _, arg := range at[[]any](t, c, "args") {
		args = append(args, fmt.Sprint(arg))
	}
	return parsed(t, args)
}

// checkFit asserts that the only container of a pod runs fit, which resumes, is supervised, and writes only to
// volumes that outlive the pod. It returns the flags.
func checkFit(t *testing.T, pod object) (flag func(name string) string) {
	t.Helper()
	require.Len(t, at[[]any](t, pod, "spec.containers"), 1)
	cmd := container(t, at[object](t, pod, "spec.containers.0"))
	assert.Equal(t, "fit", cmd.Name())
	flag = func(name string) string {
		f := cmd.Flags().Lookup(name)
		require.NotNil(t, f, name)
		require.True(t, f.Changed, "--%s is not given", name)
		return f.Value.String()
	}
	assert.Equal(t, "5m", flag("supervise"))
	assert.Equal(t, "true", flag("resume"))
	assert.GreaterOrEqual(t, at[int](t, pod, "spec.terminationGracePeriodSeconds"), 60)
	for _, name := range []string{"model", "data", "checkpoints", "history", "out"} {
		assert.True(t, slices.ContainsFunc(at[[]any](t, pod, "spec.containers.0.volumeMounts"), func(m any) bool {
			return strings.HasPrefix(flag(name), m.(object)["mountPath"].(string)+"/") &&
				slices.ContainsFunc(at[[]any](t, pod, "spec.volumes"), func(v any) bool {
					return v.(object)["name"] == m.(object)["name"] && v.(object)["persistentVolumeClaim"] != nil
				})
		}), "--%s=%s is not on a volume that outlives a pod", name, flag(name))
	}
	return flag
}

// The arguments of the job in docs/how-to/containers.md are flags, its exit codes are those of
// the program, and its output is on a volume that outlives a pod.
func TestKubernetesJob(t *testing.T) {
	job := at[object](t, manifests(t, "job.yaml")["Job"], "spec")
	checkFailures(t, job, false)
	pod := at[object](t, job, "template")
	flag := checkFit(t, pod)
	for _, c := range at[[]any](t, pod, "spec.initContainers") {
		assert.Equal(t, "doctor", container(t, c).Name())
	}
	assert.Equal(t, "true", flag("memory-growth"))
	size, of, _ := strings.Cut(flag("memory-budget"), ":")
	assert.Equal(t, "cgroup", of)
	budget, err := texts.ParseBytes[memory.Bytes](size)
	require.NoError(t, err)
	limits := at[object](t, pod, "spec.containers.0.resources.limits")
	limit, err := texts.ParseBytes[memory.Bytes](limits["memory"].(string) + "B")
	require.NoError(t, err)
	assert.Less(t, budget, limit*19/20, "what comes within a step has to fit between budget and limit")
	assert.Greater(t, budget, limit/2)
	assert.Equal(t, limits["memory"], at[string](t, pod, "spec.containers.0.resources.requests.memory"))
	assert.Equal(t, 1, limits["nvidia.com/gpu"])
}

// indexedEnvironment returns the variables of a pod of the Indexed Job.
func indexedEnvironment(t *testing.T, rank int) map[string]string {
	env := map[string]string{}
	job := manifests(t, "indexed-job.yaml")["Job"]
	for _, e := range at[[]any](t, job, "spec.template.spec.containers.0.env") {
		name := at[string](t, e, "name")
		if value, ok := e.(object)["value"].(string); ok {
			env[name] = value
			continue
		}
		assert.Equal(t, "metadata.annotations['batch.kubernetes.io/job-completion-index']",
			at[string](t, e, "valueFrom.fieldRef.fieldPath"))
		env[name] = strconv.Itoa(rank)
	}
	return env
}

// The pods of the manifests for several machines are the ranks of one cluster, and a policy admits
// only them to their ports.
func TestKubernetesClusters(t *testing.T) {
	indexed := manifests(t, "indexed-job.yaml")
	job, service := at[object](t, indexed["Job"], "spec"), at[object](t, indexed["Service"], "spec")
	checkFailures(t, job, true)
	assert.Equal(t, "Indexed", job["completionMode"])
	assert.Equal(t, job["completions"], job["parallelism"], "the ranks run at the same time")
	assert.Equal(t, "None", service["clusterIP"])
	assert.Equal(t, true, service["publishNotReadyAddresses"])
	assert.Equal(t, at[object](t, job, "template.metadata.labels"), service["selector"])
	domain := at[string](t, indexed["Service"], "metadata.name")
	assert.Equal(t, domain, at[string](t, job, "template.spec.subdomain"),
		"pods have names only in the domain of the service")
	name := at[string](t, indexed["Job"], "metadata.name")

	tf := manifests(t, "tfjob.yaml")
	workers := at[object](t, tf["TFJob"], "spec.tfReplicaSpecs")
	require.Len(t, workers, 1)
	worker := at[object](t, workers, "Worker")
	assert.Equal(t, "tensorflow", at[string](t, worker, "template.spec.containers.0.name"),
		"the operator adds TF_CONFIG to this container")
	assert.Equal(t, "ExitCode", worker["restartPolicy"], "codes below 128 are not retried")
	assert.GreaterOrEqual(t, exitInterrupted, 128)
	tfName := at[string](t, tf["TFJob"], "metadata.name")

	trainer := manifests(t, "trainjob.yaml")
	trainJob := at[object](t, trainer["TrainJob"], "spec")
	assert.Equal(t, "TrainingRuntime", at[string](t, trainJob, "runtimeRef.kind"))
	assert.Equal(t, at[string](t, trainer["TrainingRuntime"], "metadata.name"), at[string](t, trainJob, "runtimeRef.name"))
	nodes := at[object](t, trainer["TrainingRuntime"], "spec.template.spec.replicatedJobs.0")
	checkFailures(t, at[object](t, nodes, "template.spec"), true)
	node := at[object](t, nodes, "template.spec.template")
	assert.Equal(t, "node", nodes["name"])
	assert.Equal(t, "node", at[string](t, node, "spec.containers.0.name"), "Trainer adds its variables to this container")
	at[object](t, node, "spec.containers.0")["args"] = at[[]any](t, trainJob, "trainer.args")
	trainName, numNodes := at[string](t, trainer["TrainJob"], "metadata.name"), at[int](t, trainJob, "trainer.numNodes")

	for _, c := range []struct {
		kinds map[string]object
		ranks int
		pod   object
		env   func(rank int) map[string]string
		want  []string
	}{
		{indexed, at[int](t, job, "completions"), at[object](t, job, "template"),
			func(rank int) map[string]string { return indexedEnvironment(t, rank) },
			[]string{name + "-0." + domain + ":2222", name + "-1." + domain + ":2222"}},
		{tf, at[int](t, worker, "replicas"), at[object](t, worker, "template"), func(rank int) map[string]string {
			return map[string]string{"TF_CONFIG": fmt.Sprintf(`{"cluster":{"worker":["%[1]s-worker-0.ns.svc:2222","%[1]s-worker-1.ns.svc:2222"]},"task":{"type":"worker","index":%[2]d},"environment":"cloud"}`,
				tfName, rank)}
		}, []string{"fine-tune-worker-0.ns.svc:2222", "fine-tune-worker-1.ns.svc:2222"}},
		{trainer, numNodes, node, func(rank int) map[string]string {
			return map[string]string{"PET_NNODES": strconv.Itoa(numNodes), "PET_NPROC_PER_NODE": "4",
				"PET_NODE_RANK":   strconv.Itoa(rank),
				"PET_MASTER_ADDR": trainName + "-node-0-0." + trainName, "PET_MASTER_PORT": "29500"}
		}, []string{"fine-tune-node-0-0.fine-tune:29500", "fine-tune-node-0-1.fine-tune:29500"}},
	} {
		require.Len(t, c.want, c.ranks)
		port := ""
		for rank := range c.ranks {
			env := c.env(rank)
			got, err := cluster.FromEnvironment(func(name string) (string, bool) { value, ok := env[name]; return value, ok })
			require.NoError(t, err)
			require.NotNil(t, got, "%v", env)
			assert.Equal(t, rank, got.Rank)
			assert.Equal(t, c.want, got.Workers)
			_, port, err = net.SplitHostPort(got.Workers[rank])
			require.NoError(t, err)
		}
		number, err := strconv.Atoi(port)
		require.NoError(t, err)
		pods := object{"podSelector": object{"matchLabels": at[object](t, c.pod, "metadata.labels")}}
		require.NotEmpty(t, at[object](t, c.pod, "metadata.labels"))
		assert.Equal(t, object{"podSelector": pods["podSelector"], "policyTypes": []any{"Ingress"}, "ingress": []any{object{
			"from": []any{pods}, "ports": []any{object{"protocol": "TCP", "port": number}}}}},
			at[object](t, c.kinds["NetworkPolicy"], "spec"), "only these pods reach the port")
		checkFit(t, c.pod)
	}
}
