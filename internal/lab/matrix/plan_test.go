package matrix

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The remedy batch-half changes only the batch, not the dataset, the steps and the epochs. Specs of
// other runs have no Samples, so that runs from before that field existed are reused.
func TestADividedBatchChangesNothingElse(t *testing.T) {
	p := plan(t)
	p.Allocator = func(string) (string, error) { return "lib.so", nil }
	parts := map[string]int{"batch-half": 2, "batch-quarter": 4}
	none := Remedies()[0]
	for _, runtime := range Runtimes() {
		for _, w := range Workloads() {
			if !w.runsOn(runtime) {
				continue
			}
			w = w.For(runtime)
			for _, r := range Remedies() {
				r = r.on(runtime)
				if effect, _ := p.refuse(runtime, w, r); effect != "" && parts[r.ID] != 0 {
					continue
				}
				run, err := p.run(job{runtime: runtime, workload: w, remedy: r})
				s := run.Spec
				require.NoError(t, err)
				text, err := json.Marshal(s)
				require.NoError(t, err)
				n, divided := parts[r.ID]
				if !divided {
					assert.NotContains(t, string(text), `"samples"`, "%s/%s on %s", w.ID, r.ID, runtime)
					continue
				}
				base, err := p.run(job{runtime: runtime, workload: w, remedy: none})
				want := base.Spec
				require.NoError(t, err)
				assert.Equal(t, want.SetSize(), s.SetSize(), w.ID)
				assert.Equal(t, want.Batch, s.WholeBatch(), w.ID)
				want.Samples, want.Batch = w.Epoch*w.Batch, w.Batch/n
				assert.Equal(t, want, s, "%s/%s on %s", w.ID, r.ID, runtime)
			}
		}
	}
	whole := job{runtime: Go, workload: Workload{ID: "W0", Steps: 4, Every: 1, Epoch: 2, Batch: 1},
		remedy: Remedy{ID: "batch-half", Params: map[string]string{batchDivide: "2"}}}
	run, err := p.run(whole)
	s := run.Spec
	require.NoError(t, err)
	assert.Zero(t, s.Samples, "a batch of 1 stays as it is")
}

// The title of the remedy must be true for models with dropout, too.
func TestMicroBatchesPromiseNoMoreThanOneUpdate(t *testing.T) {
	for _, id := range []string{"micro-2", "micro-4"} {
		i := slices.IndexFunc(Remedies(), func(r Remedy) bool { return r.ID == id })
		require.GreaterOrEqual(t, i, 0)
		assert.NotContains(t, Remedies()[i].Title, "same")
	}
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
	assert.Equal(t, []string{"close: the workloads that it was named for are not measured"}, named("W2", "close"))
}
