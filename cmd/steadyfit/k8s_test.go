package main

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"steadyfit/memory"
)

// container has the fields of a pod's container that the tests check.
type container struct {
	Name      string
	Args      []string
	Resources struct {
		Requests, Limits map[string]string
	}
	VolumeMounts []mount `yaml:"volumeMounts"`
}

type mount struct {
	Name string
	Path string `yaml:"mountPath"`
}

type kubernetesJob struct {
	Kind string
	Spec struct {
		PodFailurePolicy struct {
			Rules []struct {
				Action      string
				OnExitCodes *struct {
					Operator string
					Values   []int
				} `yaml:"onExitCodes"`
				OnPodConditions []struct{ Type string } `yaml:"onPodConditions"`
			}
		} `yaml:"podFailurePolicy"`
		Template struct {
			Spec struct {
				RestartPolicy  string      `yaml:"restartPolicy"`
				InitContainers []container `yaml:"initContainers"`
				Containers     []container
				Volumes        []struct {
					Name                  string
					PersistentVolumeClaim *yaml.Node `yaml:"persistentVolumeClaim"`
				}
			}
		}
	}
}

// parsed returns the command that a container runs, with its parsed flags.
func parsed(t *testing.T, args []string) *cobra.Command {
	t.Helper()
	root := newRoot(io.Discard, io.Discard)
	cmd, rest, err := root.Find(args)
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(rest), "%v", args)
	require.Empty(t, cmd.Flags().Args(), "%v: all are flags", args)
	return cmd
}

// The arguments of the job in docs/how-to/containers.md are flags, its exit codes are those of
// the program, and its output is on a volume that outlives a pod.
func TestKubernetesJob(t *testing.T) {
	text, err := os.ReadFile("../../examples/k8s/job.yaml")
	require.NoError(t, err)
	var job kubernetesJob
	require.NoError(t, yaml.Unmarshal(text, &job))
	assert.Equal(t, "Job", job.Kind)
	pod := job.Spec.Template.Spec
	assert.Equal(t, "Never", pod.RestartPolicy, "podFailurePolicy requires it")

	rules := job.Spec.PodFailurePolicy.Rules
	require.Len(t, rules, 2)
	require.NotNil(t, rules[0].OnExitCodes)
	assert.Equal(t, "FailJob", rules[0].Action)
	assert.Equal(t, "In", rules[0].OnExitCodes.Operator)
	assert.Equal(t, []int{exitUsage, exitEnvironment, exitDiverged}, rules[0].OnExitCodes.Values, "all others are tried again")
	assert.Equal(t, "Ignore", rules[1].Action)

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
	for _, name := range []string{"supervise", "resume", "memory-growth"} {
		assert.Equal(t, "true", flag(name), name)
	}
	assert.Equal(t, "cgroup", flag("memory-budget-of"))
	budget, err := memory.ParseBytes(flag("memory-budget"))
	require.NoError(t, err)
	limit, err := memory.ParseBytes(fit.Resources.Limits["memory"] + "B")
	require.NoError(t, err)
	assert.Less(t, budget, limit*19/20, "what comes within a step has to fit between budget and limit")
	assert.Greater(t, budget, limit/2)
	assert.Equal(t, fit.Resources.Limits["memory"], fit.Resources.Requests["memory"])
	assert.Equal(t, "1", fit.Resources.Limits["nvidia.com/gpu"])

	for _, name := range []string{"model", "data", "checkpoints", "history", "out"} {
		path := flag(name)
		kept := slices.ContainsFunc(fit.VolumeMounts, func(m mount) bool {
			for _, v := range pod.Volumes {
				if v.Name == m.Name && v.PersistentVolumeClaim != nil && strings.HasPrefix(path, m.Path+"/") {
					return true
				}
			}
			return false
		})
		assert.True(t, kept, "--%s=%s is not on a volume that outlives a pod", name, path)
	}
}
