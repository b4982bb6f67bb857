package workload_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/worker"
)

// These are whole runs, with the parameters that the remedy eager can have.
func TestEagerRunsLearnTheSame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ id, model, params string }{
		{"W0", "digits-cnn", ""}, {"W0", "digits-cnn", "reset=process"}, {"S1", "dense-100-64-1", "reset=reload"},
		{"S2", "dense-784-10", "reset=restore"}, {"S3", "image-224", ""}, {"S3", "digits", "micro=2"},
		{"W2", "digits", "release=close"},
	} {
		losses := func(params ...string) (out []float64) {
			if c.params != "" {
				params = append(params, c.params)
			}
			o := do(t, spec(t, c.id, c.model, params...))
			require.Empty(t, o.failure, "%v: %s\n%s", c, o.text, o.log)
			assert.Equal(t, "0", o.facts["live"])
			for _, name := range []string{"loss_first", "loss_last"} {
				loss, err := strconv.ParseFloat(o.facts[name], 64)
				require.NoError(t, err)
				out = append(out, loss)
			}
			return out
		}
		assert.InEpsilonSlice(t, losses(), losses("eager=1"), 1e-4, "%v", c)
	}
}

func TestEagerParameter(t *testing.T) {
	t.Parallel()
	for params, text := range map[[2]string]string{
		{"eager=1", "micro=2"}: "micro=2: eager execution has no gradients and apply signatures",
		{"eager=2", "micro=1"}: "eager=2",
	} {
		o := do(t, spec(t, "W0", "digits", params[:]...))
		assert.Equal(t, worker.NotApplicable, o.failure)
		assert.Contains(t, o.text, text)
	}
}
