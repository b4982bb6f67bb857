package session

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/manifest"
	"steadyfit/savedmodels"
)

// versionsEnv makes the test binary write versions to the folder until it is killed.
const versionsEnv = "STEADYFIT_TEST_VERSIONS"

func init() { asChild(versionsEnv, writeVersions) }

func writeVersions(dir string) (any, error) {
	ctx := context.Background()
	model, err := savedmodels.Open("builtin:digits")
	if err != nil {
		return nil, err
	}
	s, err := OpenModel(ctx, model, Options{})
	for err == nil {
		var path string
		path, err = s.SaveVersion(ctx, dir)
		fmt.Println(path)
	}
	return nil, err
}

// openDigits opens builtin:digits until the end of the test.
func openDigits(t *testing.T) *Session {
	t.Helper()
	model, err := savedmodels.Open("builtin:digits")
	require.NoError(t, err)
	s, err := OpenModel(t.Context(), model, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// TestVersionsAreWhole polls a folder of versions while two processes write to it and are killed
// at random moments. Each version that a poll finds must have the hashes of its manifest, and
// TensorFlow must load it. STEADYFIT_TEST_SOAK makes 1,000 polls during 50 writes.
//
//lane:run soak
func TestVersionsAreWhole(t *testing.T) {
	polls, writes, lives := 100, 10, 400*time.Millisecond
	if os.Getenv("STEADYFIT_TEST_SOAK") != "" {
		polls, writes, lives = 1000, 50, 100*time.Millisecond
	}
	seed := uint64(time.Now().UnixNano())
	dir := filepath.Join(t.TempDir(), "versions")
	stop, done := make(chan struct{}), make(chan writersResult, 2)
	for i := range uint64(cap(done)) {
		go func() { done <- killWriters(dir, lives, rand.New(rand.NewPCG(seed, i)), stop) }()
	}
	var newest savedmodels.Version
	polled, loaded := 0, 0
	for polled < polls || newest.Number < int64(writes) {
		select {
		case r := <-done:
			require.NoError(t, r.err)
		case <-time.After(time.Millisecond):
		}
		found, err := savedmodels.Versions(dir)
		require.NoError(t, err)
		if len(found) == 0 {
			continue
		}
		last := found[len(found)-1]
		assert.GreaterOrEqual(t, last.Number, newest.Number, "numbers only grow")
		polled++
		_, err = manifest.Verify(t.Context(), last.Path)
		require.NoError(t, err, "seed %d", seed)
		if last != newest {
			require.NoError(t, load(t.Context(), last.Path), "seed %d", seed)
			loaded++
		}
		newest = last
	}
	close(stop)
	kills := 0
	for range cap(done) {
		r := <-done
		require.NoError(t, r.err)
		kills += r.kills
	}
	t.Logf("seed %d: %d polls, version %d, %d loaded, %d kills", seed, polled, newest.Number, loaded, kills)
	assert.Positive(t, kills)

	// The next process removes what the killed ones left.
	s := openDigits(t)
	path, err := s.SaveVersion(t.Context(), dir)
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	found, err := savedmodels.Versions(dir)
	require.NoError(t, err)
	require.Len(t, entries, len(found))
	require.Equal(t, path, found[len(found)-1].Path)
	for _, v := range found {
		_, err := manifest.Verify(t.Context(), v.Path)
		require.NoError(t, err)
	}
}

func load(ctx context.Context, dir string) error {
	model, err := savedmodels.Open(dir)
	if err != nil {
		return err
	}
	s, err := OpenModel(ctx, model, Options{})
	if err != nil {
		return err
	}
	return s.Close()
}

type writersResult struct {
	kills int
	err   error
}

// killWriters starts processes that write versions, one after the other, and kills each at a random
// moment after its first version, within the given time.
func killWriters(dir string, within time.Duration, random *rand.Rand, stop <-chan struct{}) (r writersResult) {
	for {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), versionsEnv+"="+dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			r.err = err
			return r
		}
		wrote := bufio.NewScanner(stdout).Scan()
		last := false
		select {
		case <-stop:
			last = true
		case <-time.After(time.Duration(random.Int64N(int64(within)))):
		}
		r.err = cmd.Process.Kill()
		ended := cmd.Wait()
		if r.err != nil || !wrote {
			r.err = fmt.Errorf("a process ended early: %w: %s", errors.Join(r.err, ended), &stderr)
			return r
		}
		if r.kills++; last {
			return r
		}
	}
}

func numbers(t *testing.T, dir string) (found []int64) {
	t.Helper()
	versions, err := savedmodels.Versions(dir)
	require.NoError(t, err)
	for _, v := range versions {
		found = append(found, v.Number)
	}
	return found
}

func TestSaveVersion(t *testing.T) {
	s := openDigits(t)
	dir := filepath.Join(t.TempDir(), "deep", "versions")
	require.NoError(t, CheckVersions(dir, s.Model()))
	save := func(number string) {
		t.Helper()
		path, err := s.SaveVersion(t.Context(), dir)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, number), path)
	}
	save("1")
	save("2")
	_, err := savedmodels.Open(filepath.Join(dir, "2"))
	require.NoError(t, err)

	// Folders of other programs keep their names. TensorFlow Serving reads 007 as 7.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "007"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes"), nil, 0o666))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "-9"), 0o777))
	save("8")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "3"), nil, 0o666))
	assert.Equal(t, []int64{1, 2, 8}, numbers(t, dir), "folders with models")

	n, err := manifest.Verify(t.Context(), filepath.Join(dir, "8"))
	require.NoError(t, err)
	assert.Positive(t, n)

	// A version is complete before it appears.
	failed := errors.New("a failure")
	path, err := s.SaveVersion(t.Context(), dir, func(part string) error {
		assert.FileExists(t, filepath.Join(part, "variables", "variables.index"))
		assert.Equal(t, []int64{1, 2, 8}, numbers(t, dir))
		return failed
	})
	require.ErrorIs(t, err, failed)
	assert.Empty(t, path)
	left := filepath.Join(dir, versionPrefix+"1")
	require.NoError(t, os.Mkdir(left, 0o777))
	require.NoError(t, CheckVersions(dir, s.Model()))
	assert.NoDirExists(t, left)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 7)

	for _, wrong := range []string{filepath.Join(dir, "8"), filepath.Join(dir, "notes")} {
		_, err := s.SaveVersion(t.Context(), wrong)
		require.Error(t, err, wrong)
		require.Error(t, CheckVersions(wrong, s.Model()), wrong)
	}
}
