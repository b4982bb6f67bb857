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

// container has the fields of a pod's container that the tests check.
type container struct {
	Name      string
	Args      []string
	Resources struct {
		Requests, Limits map[string]string
	}
	Env []struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	}
	VolumeMounts []mount `yaml:"volumeMounts"`
}

type mount struct {
	Name string
	Path string `yaml:"mountPath"`
}

type pod struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct {
		Subdomain      string
		RestartPolicy  string      `yaml:"restartPolicy"`
		Grace          int         `yaml:"terminationGracePeriodSeconds"`
		InitContainers []container `yaml:"initContainers"`
		Containers     []container
		Volumes        []struct {
			Name                  string
			PersistentVolumeClaim *yaml.Node `yaml:"persistentVolumeClaim"`
		}
	}
}

// kept reports whether a path is on a volume that outlives the pod.
func (p *pod) kept(path string) bool {
	return slices.ContainsFunc(p.Spec.Containers[0].VolumeMounts, func(m mount) bool {
		for _, v := range p.Spec.Volumes {
			if v.Name == m.Name && v.PersistentVolumeClaim != nil && strings.HasPrefix(path, m.Path+"/") {
				return true
			}
		}
		return false
	})
}

type kubernetesJob struct {
	Completions, Parallelism int
	CompletionMode           string `yaml:"completionMode"`
	PodFailurePolicy         struct {
		Rules []struct {
			Action      string
			OnExitCodes *struct {
				Operator string
				Values   []int
			} `yaml:"onExitCodes"`
			OnPodConditions []struct{ Type, Status string } `yaml:"onPodConditions"`
		}
	} `yaml:"podFailurePolicy"`
	Template pod
}

// checkFailures asserts that a job retries a failure only if it may not occur again. The interrupt
// of a rank ends all ranks, and does not count.
func (j *kubernetesJob) checkFailures(t *testing.T, ranks bool) {
	t.Helper()
	assert.Equal(t, "Never", j.Template.Spec.RestartPolicy, "podFailurePolicy requires it")
	rules := j.PodFailurePolicy.Rules
	if ranks {
		require.Len(t, rules, 3)
		assert.Equal(t, "Ignore", rules[2].Action)
		assert.Equal(t, []int{exitInterrupted}, rules[2].OnExitCodes.Values)
		rules = rules[:2]
	}
	require.Len(t, rules, 2)
	require.NotNil(t, rules[0].OnExitCodes)
	assert.Equal(t, "FailJob", rules[0].Action)
	assert.Equal(t, "In", rules[0].OnExitCodes.Operator)
	assert.Equal(t, []int{exitUsage, exitEnvironment, exitDiverged}, rules[0].OnExitCodes.Values,
		"all others are tried again")
	assert.Equal(t, "Ignore", rules[1].Action)
	assert.Equal(t, "True", rules[1].OnPodConditions[0].Status)
}

// manifests decodes the objects of a file of examples/k8s by kind.
func manifests(t *testing.T, file string) map[string]*yaml.Node {
	t.Helper()
	text, err := os.Open(filepath.Join("../../examples/k8s", file))
	require.NoError(t, err)
	defer text.Close()
	kinds := map[string]*yaml.Node{}
	for d := yaml.NewDecoder(text); ; {
		var node yaml.Node
		err := d.Decode(&node)
		if errors.Is(err, io.EOF) {
			return kinds
		}
		require.NoError(t, err)
		var object struct{ Kind string }
		require.NoError(t, node.Decode(&object))
		kinds[object.Kind] = &node
	}
}

func decode[T any](t *testing.T, node *yaml.Node) (object struct {
	Metadata struct{ Name string }
	Spec     T
}) {
	t.Helper()
	require.NotNil(t, node)
	require.NoError(t, node.Decode(&object))
	return object
}

// parsed returns the command that a container runs, with its parsed flags.
func parsed(t *testing.T, args []string) *cobra.Command {
	t.Helper()
	root := newRoot(newSettings(), io.Discard, io.Discard)
	cmd, rest, err := root.Find(args)
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(rest), "%v", args)
	require.Empty(t, cmd.Flags().Args(), "%v: all are flags", args)
	return cmd
}

// The arguments of the job in docs/how-to/containers.md are flags, its exit codes are those of
// the program, and its output is on a volume that outlives a pod.
func TestKubernetesJob(t *testing.T) {
	job := decode[kubernetesJob](t, manifests(t, "job.yaml")["Job"]).Spec
	job.checkFailures(t, false)
	pod := job.Template.Spec
	require.Len(t, pod.Containers, 1)
	fit := pod.Containers[0]
	cmd := parsed(t, fit.Args)
	assert.Equal(t, "fit", cmd.Name())
	for _, c := range pod.InitContainers {
		assert.Equal(t, "doctor", parsed(t, c.Args).Name())
	}
	flag := func(name string) string {
		f := cmd.Flags().Lookup(name)
		require.NotNil(t, f, name)
		require.True(t, f.Changed, "--%s is not given", name)
		return f.Value.String()
	}
	assert.Equal(t, "5m", flag("supervise"))
	for _, name := range []string{"resume", "memory-growth"} {
		assert.Equal(t, "true", flag(name), name)
	}
	size, of, _ := strings.Cut(flag("memory-budget"), ":")
	assert.Equal(t, "cgroup", of)
	budget, err := texts.ParseBytes[memory.Bytes](size)
	require.NoError(t, err)
	limit, err := texts.ParseBytes[memory.Bytes](fit.Resources.Limits["memory"] + "B")
	require.NoError(t, err)
	assert.Less(t, budget, limit*19/20, "what comes within a step has to fit between budget and limit")
	assert.Greater(t, budget, limit/2)
	assert.Equal(t, fit.Resources.Limits["memory"], fit.Resources.Requests["memory"])
	assert.Equal(t, "1", fit.Resources.Limits["nvidia.com/gpu"])

	for _, name := range []string{"model", "data", "checkpoints", "history", "out"} {
		path := flag(name)
		assert.True(t, job.Template.kept(path), "--%s=%s is not on a volume that outlives a pod", name, path)
	}
}

// The pods of the manifests for several machines are the ranks of one cluster, and a policy admits
// only them to their ports.
func TestKubernetesClusters(t *testing.T) {
	indexed := manifests(t, "indexed-job.yaml")
	job := decode[kubernetesJob](t, indexed["Job"])
	service := decode[struct {
		ClusterIP string `yaml:"clusterIP"`
		Publish   bool   `yaml:"publishNotReadyAddresses"`
		Selector  map[string]string
	}](t, indexed["Service"])
	job.Spec.checkFailures(t, true)
	assert.Equal(t, "Indexed", job.Spec.CompletionMode)
	assert.Equal(t, job.Spec.Completions, job.Spec.Parallelism, "the ranks run at the same time")
	assert.Equal(t, "None", service.Spec.ClusterIP)
	assert.True(t, service.Spec.Publish)
	assert.Equal(t, job.Spec.Template.Metadata.Labels, service.Spec.Selector)
	assert.Equal(t, service.Metadata.Name, job.Spec.Template.Spec.Subdomain,
		"pods have names only in the domain of the service")

	tf := manifests(t, "tfjob.yaml")
	tfJob := decode[struct {
		Specs map[string]struct {
			Replicas      int
			RestartPolicy string `yaml:"restartPolicy"`
			Template      pod
		} `yaml:"tfReplicaSpecs"`
	}](t, tf["TFJob"])
	require.Len(t, tfJob.Spec.Specs, 1)
	worker := tfJob.Spec.Specs["Worker"]
	assert.Equal(t, "tensorflow", worker.Template.Spec.Containers[0].Name, "the operator adds TF_CONFIG to this container")
	assert.Equal(t, "ExitCode", worker.RestartPolicy, "codes below 128 are not retried")
	assert.GreaterOrEqual(t, exitInterrupted, 128)

	trainer := manifests(t, "trainjob.yaml")
	runtime := decode[struct {
		Template struct {
			Spec struct {
				Jobs []struct {
					Name     string
					Template struct{ Spec kubernetesJob }
				} `yaml:"replicatedJobs"`
			}
		}
	}](t, trainer["TrainingRuntime"])
	trainJob := decode[struct {
		RuntimeRef struct{ Kind, Name string } `yaml:"runtimeRef"`
		Trainer    struct {
			Nodes int `yaml:"numNodes"`
			Args  []string
		}
	}](t, trainer["TrainJob"])
	assert.Equal(t, "TrainingRuntime", trainJob.Spec.RuntimeRef.Kind)
	assert.Equal(t, runtime.Metadata.Name, trainJob.Spec.RuntimeRef.Name)
	nodes := runtime.Spec.Template.Spec.Jobs[0]
	nodes.Template.Spec.checkFailures(t, true)
	node := nodes.Template.Spec.Template
	assert.Equal(t, "node", nodes.Name)
	assert.Equal(t, "node", node.Spec.Containers[0].Name, "Trainer adds its variables to this container")
	node.Spec.Containers[0].Args = trainJob.Spec.Trainer.Args

	for _, c := range []struct {
		kinds map[string]*yaml.Node
		ranks int
		pod   pod
		env   func(rank int) map[string]string
		want  []string
	}{
		{indexed, job.Spec.Completions, job.Spec.Template, func(rank int) map[string]string {
			env := map[string]string{}
			for _, e := range job.Spec.Template.Spec.Containers[0].Env {
				env[e.Name] = e.Value
				if e.ValueFrom.FieldRef.FieldPath == "metadata.annotations['batch.kubernetes.io/job-completion-index']" {
					env[e.Name] = strconv.Itoa(rank)
				}
			}
			return env
		}, []string{job.Metadata.Name + "-0." + service.Metadata.Name + ":2222", job.Metadata.Name + "-1." +
			service.Metadata.Name + ":2222"}},
		{tf, worker.Replicas, worker.Template, func(rank int) map[string]string {
			return map[string]string{"TF_CONFIG": fmt.Sprintf(`{"cluster":{"worker":["%[1]s-worker-0.ns.svc:2222","%[1]s-worker-1.ns.svc:2222"]},"task":{"type":"worker","index":%[2]d},"environment":"cloud"}`,
				tfJob.Metadata.Name, rank)}
		}, []string{"fine-tune-worker-0.ns.svc:2222", "fine-tune-worker-1.ns.svc:2222"}},
		{trainer, trainJob.Spec.Trainer.Nodes, node, func(rank int) map[string]string {
			name := trainJob.Metadata.Name
			return map[string]string{"PET_NNODES": strconv.Itoa(trainJob.Spec.Trainer.Nodes), "PET_NPROC_PER_NODE": "4",
				"PET_NODE_RANK":   strconv.Itoa(rank),
				"PET_MASTER_ADDR": name + "-node-0-0." + name, "PET_MASTER_PORT": "29500"}
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
		checkPolicy(t, c.kinds["NetworkPolicy"], c.pod.Metadata.Labels, port)

		require.NotEmpty(t, c.pod.Metadata.Labels)
		assert.GreaterOrEqual(t, c.pod.Spec.Grace, 60)
		require.Len(t, c.pod.Spec.Containers, 1)
		cmd := parsed(t, c.pod.Spec.Containers[0].Args)
		assert.Equal(t, "fit", cmd.Name())
		for name, want := range map[string]string{"supervise": "5m", "resume": "true"} {
			assert.Equal(t, want, cmd.Flags().Lookup(name).Value.String(), name)
		}
		for _, name := range []string{"model", "data", "checkpoints", "history", "out"} {
			path := cmd.Flags().Lookup(name).Value.String()
			assert.True(t, c.pod.kept(path), "--%s=%s is not on a volume that outlives a pod", name, path)
		}
	}
}

// checkPolicy asserts that a policy admits the pods with these labels, and no others, to a port.
func checkPolicy(t *testing.T, node *yaml.Node, labels map[string]string, port string) {
	t.Helper()
	type selector struct {
		Labels map[string]string `yaml:"matchLabels"`
	}
	policy := decode[struct {
		Pods    selector `yaml:"podSelector"`
		Types   []string `yaml:"policyTypes"`
		Ingress []struct {
			From []struct {
				Pods selector `yaml:"podSelector"`
			}
			Ports []struct{ Port string }
		}
	}](t, node).Spec
	assert.Equal(t, labels, policy.Pods.Labels)
	assert.Equal(t, []string{"Ingress"}, policy.Types)
	require.Len(t, policy.Ingress, 1)
	require.Len(t, policy.Ingress[0].From, 1)
	assert.Equal(t, labels, policy.Ingress[0].From[0].Pods.Labels)
	require.Len(t, policy.Ingress[0].Ports, 1)
	assert.Equal(t, port, policy.Ingress[0].Ports[0].Port)
}
