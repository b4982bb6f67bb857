package serve

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// trainerEnv makes the test binary continue the training of the newest version in a folder, and write versions until it
// is killed.
const trainerEnv = "STEADYFIT_TEST_TRAINER"

func writeVersions(dir string) error {
	ctx := context.Background()
	found, err := savedmodels.Versions(dir)
	if err != nil {
		return err
	}
	model, err := savedmodels.Open(found[len(found)-1].Path)
	if err != nil {
		return err
	}
	s, err := session.OpenModel(ctx, model, session.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	images, _, err := data.Builtin("digits")
	for err == nil {
		_, err = writeVersion(ctx, s, images, dir)
	}
	return err
}

// writeVersion trains two steps, and writes a version.
func writeVersion(ctx context.Context, s *session.Session, images data.Dataset, dir string) (path string, err error) {
	loop := fit.Loop{Session: s, Batch: 64, Epochs: 1, StepsPerEpoch: 2, Log: slog.New(slog.DiscardHandler)}
	if _, err := loop.Run(ctx, images); err != nil {
		return "", err
	}
	return s.SaveVersion(ctx, dir)
}

// While a trainer is killed as it writes versions, and started again, no call fails, and each answer is that of one
// version, which served during the call. STEADYFIT_TEST_SOAK makes it 200 kills.
//
//lane:skip race (ends processes)
//lane:run soak
func TestTrainerIsKilled(t *testing.T) {
	kills := 3
	if os.Getenv("STEADYFIT_TEST_SOAK") != "" {
		kills = 200
	}
	_, images := digits(t)
	dir, answers := versions(t, 1, images[0])
	p := open(t, dir, Options{Every: time.Millisecond, Parallel: 2})

	type call struct {
		answer        float32
		before, after int64 // the versions that served
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	var mu sync.Mutex
	calls := map[call]int{}
	for range 4 {
		group.Go(func() {
			own := map[call]int{}
			for ctx.Err() == nil {
				var one answer
				before := p.Version()
				if err := p.Predict(t.Context(), &images[0], &one); err != nil {
					t.Error(err)
				}
				own[call{one.Probabilities[0], before, p.Version()}]++
			}
			mu.Lock()
			defer mu.Unlock()
			for c, n := range own {
				calls[c] += n
			}
		})
	}
	incomplete := 0
	for kill := range kills {
		// The trainer is killed when it writes one of these files, or a little later.
		stage := []string{"", "saved_model.pb", "variables", "SHA256SUMS"}[kill%4]
		trainer := exec.Command(os.Args[0])
		trainer.Env = append(os.Environ(), trainerEnv+"="+dir)
		from := p.Version()
		require.NoError(t, trainer.Start())
		assert.Eventually(t, func() bool {
			found, err := filepath.Glob(filepath.Join(dir, ".version-*", stage))
			now := p.Version()
			return err == nil && now > from && len(found) > 0 || now > from+5
		}, time.Minute, time.Millisecond)
		require.NoError(t, trainer.Process.Kill())
		require.Error(t, trainer.Wait())
		left, err := filepath.Glob(filepath.Join(dir, ".version-*"))
		require.NoError(t, err)
		incomplete += len(left)
	}
	found, err := savedmodels.Versions(dir)
	require.NoError(t, err)
	newest := found[len(found)-1].Number
	require.Eventually(t, func() bool { return p.Version() == newest }, time.Minute, time.Millisecond)
	stop()
	group.Wait()

	served := map[int64]bool{}
	for c := range calls {
		served[c.before], served[c.after] = true, true
	}
	for version := range served {
		model, err := savedmodels.Open(filepath.Join(dir, strconv.FormatInt(version, 10)))
		require.NoError(t, err)
		answer := expected(t, model, images[:1])[0][0]
		assert.Contains(t, []int64{0, version}, answers[answer], "all versions differ")
		answers[answer] = version
	}
	total := 0
	for c, n := range calls {
		version, ok := answers[c.answer]
		assert.True(t, ok, "%v is the answer of no version", c.answer)
		assert.True(t, c.before <= version && version <= c.after, "version %d has answered a call from %d to %d", version, c.before, c.after)
		total += n
	}
	assert.Positive(t, incomplete)
	assert.Empty(t, p.failed)
	t.Logf("%d kills, %d of them during a version; %d calls, answered by %d of %d versions, up to %d", kills, incomplete, total,
		len(served), len(found), newest)
}
