package runner

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/worker"
)

func TestThreadNames(t *testing.T) {
	names := threadNames(os.Getpid())
	n := 0
	for _, count := range names {
		n += count
	}
	assert.Positive(t, n, "%v", names)
}

func TestALimitThatCannotBeApplied(t *testing.T) {
	o := &Observed{}
	job := Job{Args: []string{"sleep", "60"}, Spec: worker.Spec{Workload: "flat", Steps: 4, Every: 1, Epoch: 2},
		Timeout: time.Minute}
	_, err := o.process(t.Context(), job, &limit{size: 1 << 30, dir: t.TempDir()})
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.Empty(t, o.Failure, "it is not the child's failure")
}

func TestExcerpt(t *testing.T) {
	noise := strings.Repeat("I0000 00:00:17 port.cc:153] oneDNN is on.\n", 2*logStore/40)
	for name, c := range map[string]struct{ log, want string }{
		"short":                       {"panic: a\nb\n", "panic: a\nb\n"},
		"from the telling line on":    {noise + "panic: a\n" + noise, "panic: a\n" + noise[:logStore-len("panic: a\n")]},
		"the end, if nothing is told": {noise, noise[len(noise)-logStore:]},
	} {
		assert.Equal(t, c.want, (&Observed{Log: c.log}).Excerpt(), name)
	}
}
