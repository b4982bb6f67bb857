package matrix

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The remedy batch-half changes only the batch, not the dataset, the steps and the epochs.
func TestADividedBatchChangesNothingElse(t *testing.T) {
	p := plan(t)
	for _, runtime := range Runtimes() {
		p.Commands[runtime] = Command{Args: []string{"program"}}
		for _, w := range Workloads() {
			if !w.runsOn(runtime) {
				continue
			}
			w = w.For(runtime)
			for id, n := range map[string]int{"batch-half": 2, "batch-quarter": 4} {
				r, err := FindRemedy(id)
				require.NoError(t, err)
				if effect, _ := p.refuse(runtime, w, r); effect != "" {
					continue
				}
				run, err := p.run(job{runtime: runtime, workload: w, remedy: r})
				require.NoError(t, err)
				base, err := p.run(job{runtime: runtime, workload: w, remedy: Remedies()[0]})
				require.NoError(t, err)
				i := slices.Index(base.Args, fmt.Sprintf("--batch=%d", w.Batch))
				require.GreaterOrEqual(t, i, 0)
				assert.Contains(t, base.Args, fmt.Sprintf("--samples=%d", w.Epoch*w.Batch))
				base.Args[i] = fmt.Sprintf("--batch=%d", w.Batch/n)
				assert.Equal(t, base, run, "%s/%s on %s", w.ID, id, runtime)
			}
		}
	}
}

// The title of the remedy must be true for models with dropout, too.
func TestMicroBatchesPromiseNoMoreThanOneUpdate(t *testing.T) {
	for _, id := range []string{"micro-2", "micro-4"} {
		i := slices.IndexFunc(Remedies(), func(r Remedy) bool { return r.ID == id })
		require.GreaterOrEqual(t, i, 0)
		assert.NotContains(t, Remedies()[i].Title, "same")
	}
}

// A quick matrix has its own remedies, on shorter workloads.
func TestQuick(t *testing.T) {
	p := Plan{Quick: true, User: "model", Runtimes: []string{Go}}
	require.NoError(t, p.Choose(nil, nil, 1000, 16))
	user := p.Workloads[len(p.Workloads)-1]
	assert.Equal(t, []int{200, 2, 20, 16}, []int{user.Steps, user.Every, user.Epoch, user.Batch})
	p = Plan{Quick: true, Runtimes: []string{Go}}
	require.NoError(t, p.Choose(nil, nil, 1000, 32))
	assert.Equal(t, 3, p.Pairs)
	p.defaults()
	assert.Equal(t, quickTime, p.Within)
	for _, w := range p.Workloads {
		full, err := FindWorkload(w.ID)
		require.NoError(t, err)
		assert.Equal(t, w.ID == "W0" || w.ID == "W1", w.Steps == full.Steps, w.ID)
		assert.GreaterOrEqual(t, w.Steps/w.Every, 16, "%s: too few samples for a slope", w.ID)
	}
	require.ErrorContains(t, p.Choose([]string{"W0"}, nil, 1000, 32), "has its own workloads and remedies")
}

// A workload that no runtime of the plan has is refused, since a result without it looks complete.
func TestWorkloadOfAnotherRuntime(t *testing.T) {
	p := Plan{Runtimes: []string{Go, Galeone}}
	require.ErrorContains(t, p.Choose([]string{"W0", "W11"}, nil, 0, 0), "W11 has no program for go or galeone, but for keras: name that in Plan.Runtimes")
	p.Runtimes = []string{Go, Keras}
	require.NoError(t, p.Choose([]string{"W0", "W11"}, nil, 0, 0))
	p.Runtimes = []string{Galeone}
	require.NoError(t, p.Choose([]string{All}, nil, 0, 0))
}

// A plan whose remedies change nothing is refused before its baselines run for hours.
func TestInapplicable(t *testing.T) {
	user, err := FindWorkload(User)
	require.NoError(t, err)
	p := plan(t, user)
	named := func(workload string, ids ...string) []string {
		p.Remedies = Remedies()[:1]
		for _, id := range ids {
			r, err := FindRemedy(id)
			require.NoError(t, err)
			p.Remedies = append(p.Remedies, r)
		}
		p.Select = func(_, w, _ string) bool { return workload == "" || w == workload }
		return p.Inapplicable()
	}
	assert.Empty(t, named(""))
	assert.Empty(t, named("", "gc-epoch", "clear-session"))
	assert.Empty(t, named("", "memory-growth"), "another machine has a GPU")
	assert.Equal(t, []string{"clear-session: it does not apply to the runtime go"}, named("", "clear-session"))
	assert.Equal(t, []string{"the workloads that they were named for are not measured"}, named("W2", "close"))
}
