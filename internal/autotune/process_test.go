package autotune

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// faultEnv makes trials fail on purpose.
const faultEnv = "STEADYFIT_TEST_AUTOTUNE_FAULT"

// fail makes a trial die or hang before it begins.
func fail() {
	if os.Getenv(Env) == "" {
		return
	}
	switch os.Getenv(faultEnv) {
	case "dies":
		fmt.Fprintln(os.Stderr, "panic: on purpose")
		os.Exit(2)
	case "hangs":
		select {}
	}
}

func TestMain(m *testing.M) {
	fail()
	if trial, err := Init(context.Background()); trial {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(weightsEnv) != "" {
		if err := printWeights(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// children returns the remaining processes that this one has started.
func children(t *testing.T) []string {
	t.Helper()
	own := fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())
	_, err := os.Stat(own)
	require.NoError(t, err, "the kernel tells no children")
	lists, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	require.Contains(t, lists, own)
	var left []string
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		require.NoError(t, err)
		left = append(left, strings.Fields(string(text))...)
	}
	return left
}

// setMaxTime sets maxTime for a test.
func setMaxTime(t *testing.T, most time.Duration) {
	before := maxTime
	maxTime = most
	t.Cleanup(func() { maxTime = before })
}

func planned(t *testing.T) Plan {
	t.Helper()
	if _, err := tfbind.Load(""); err != nil {
		t.Fatal(err)
	}
	m, ds := dense(t)
	setMaxTime(t, 5*time.Minute)
	return Plan{Model: m, Data: ds, Batch: 32, Limits: Limits{StepsPerExecution: 50, Compiled: true}, Cache: t.TempDir()}
}

// withSample returns the tuner of a plan, with data for its trials.
func withSample(t *testing.T, p *Plan) *Trials {
	t.Helper()
	r, err := newTrials(p, time.Now().Add(maxTime), minRounds)
	require.NoError(t, err)
	r.spec.Data = filepath.Join(t.TempDir(), "batches")
	require.NoError(t, sample(p, r.spec.Data, time.Minute))
	return r
}

//lane:skip race (measures times)
//lane:skip check (long)
func TestChoose(t *testing.T) {
	p := planned(t)
	p.Limits.Threads = true
	before, err := os.ReadFile(filepath.Join(p.Model.Dir, "variables", "variables.data-00000-of-00001"))
	require.NoError(t, err)

	c, err := Choose(t.Context(), p)
	require.NoError(t, err)
	t.Log(c.Reason)
	assert.GreaterOrEqual(t, len(c.Measurements), 6, "plain steps, three bases, and two settings of threads")
	for _, want := range []Configuration{{}, both, fused, compiled} {
		assert.NotNil(t, find(c.Measurements, want), want)
	}
	plain := c.Measurements[0]
	assert.True(t, plain.Configuration.Plain())
	assert.Positive(t, plain.Step)
	for _, m := range c.Measurements {
		t.Logf("%s: %v, ratio %.3f (%.3f to %.3f), %d rounds, peak %v, anonymous %v %s", m.Configuration, seconds(m.Step),
			m.Ratio, m.Low, m.High, m.Rounds, m.Peak, m.Anon, m.Out)
		if m.Out == "" {
			assert.Positive(t, m.Step)
			assert.Positive(t, m.Peak)
			assert.Positive(t, m.Base)
			assert.LessOrEqual(t, m.Low, m.Ratio)
			assert.LessOrEqual(t, m.Ratio, m.High)
		}
	}
	if won := find(c.Measurements, c.Configuration); assert.NotNil(t, won) && !c.Configuration.Plain() {
		assert.LessOrEqual(t, won.High, 1-margin)
	}
	assert.Empty(t, children(t))
	assert.Equal(t, tfbind.Counts{}, tfbind.Live(), "nothing of TensorFlow was used here")
	after, err := os.ReadFile(filepath.Join(p.Model.Dir, "variables", "variables.data-00000-of-00001"))
	require.NoError(t, err)
	assert.Equal(t, before, after)

	// The second choice uses the same measurements, for any length of the training.
	for _, p.Steps = range []int64{10, 0} {
		kept, err := Choose(t.Context(), p)
		require.NoError(t, err)
		assert.Equal(t, c.Configuration, kept.Configuration)
		assert.Contains(t, kept.Reason, "measured before")
	}
}

// A configuration with another allocator runs in a process that has that allocator, and its steps
// give the same results.
func TestTrialWithAllocator(t *testing.T) {
	if _, err := tfprocess.FindAllocator(tfprocess.Jemalloc); err != nil {
		t.Skip(err)
	}
	p := planned(t)
	r := withSample(t, &p)
	for _, configuration := range []Configuration{{}, {Allocator: tfprocess.Jemalloc}} {
		c := r.startProcess(t.Context(), configuration)
		defer c.end()
		a, err := c.hear(time.Now().Add(maxTime))
		require.NoError(t, err)
		require.True(t, a.Finite)
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.PID()))
		require.NoError(t, err)
		assert.Equal(t, !configuration.Plain(), strings.Contains(string(maps), "libjemalloc.so.2"))
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.PID()))
		require.NoError(t, err)
		assert.Equal(t, !configuration.Plain(), strings.Contains(string(environment),
			"\x00MALLOC_CONF="+tfprocess.JemallocKeeps+"\x00"))
	}
}

func TestNoTrials(t *testing.T) {
	p := planned(t)
	t.Setenv(faultEnv, "hangs") // makes any trial fail
	p.Steps = 900
	c, err := Choose(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, Choice{}, c)

	p.Limits = Limits{}
	c, err = Choose(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, Choice{Reason: "plain: the model and the options allow nothing else"}, c)
}

func TestTrialsThatFail(t *testing.T) {
	p := planned(t)
	t.Run("a process dies", func(t *testing.T) {
		t.Setenv(faultEnv, "dies")
		c, err := Choose(t.Context(), p)
		require.NoError(t, err)
		assert.Equal(t, Choice{Reason: "plain: nothing could be measured: plain steps: its process has ended: crashed " +
			"with exit code 2: panic: on purpose"}, c)
	})
	t.Run("the loss is not finite", func(t *testing.T) {
		p := p
		_, ds := dense(t)
		for b, err := range ds.Batches(data.Pass{Batch: ds.Len()}) {
			require.NoError(t, err)
			b.Fields[1].Values.([]float32)[0] = float32(math.NaN())
			p.Data, err = data.New("made", slices.Clone(b.Fields)...)
			require.NoError(t, err)
			c, err := Choose(t.Context(), p)
			require.NoError(t, err)
			assert.Equal(t, Choice{Reason: "plain: nothing could be measured: plain steps: its loss is not finite"}, c)
		}
	})
	t.Run("the model is damaged", func(t *testing.T) {
		p := p
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(p.Model.Dir)))
		values := filepath.Join(dir, "variables", "variables.data-00000-of-00001")
		text, err := os.ReadFile(values)
		require.NoError(t, err)
		text[len(text)/2] ^= 1
		require.NoError(t, os.WriteFile(values, text, 0o600))
		p.Model, err = savedmodels.Open(dir)
		require.NoError(t, err)
		c := withSample(t, &p).startProcess(t.Context(), Configuration{})
		defer c.end()
		_, err = c.hear(time.Now().Add(maxTime))
		assert.ErrorContains(t, err, "is damaged")
	})
	t.Run("a process is killed", func(t *testing.T) {
		c := withSample(t, &p).startProcess(t.Context(), Configuration{})
		defer c.end()
		_, err := c.hear(time.Now().Add(maxTime))
		require.NoError(t, err)
		require.NoError(t, c.Signal(syscall.SIGKILL))
		_, err = c.ask(time.Now().Add(maxTime), 3600)
		assert.ErrorContains(t, err, "its process has ended: killed by SIGKILL")
	})
	t.Run("the parent is gone", func(t *testing.T) {
		c := withSample(t, &p).startProcess(t.Context(), Configuration{})
		defer c.end()
		_, err := c.hear(time.Now().Add(maxTime))
		require.NoError(t, err)
		require.NoError(t, c.Requests.Close())
		require.True(t, c.Wait(time.Minute))
		assert.Contains(t, c.End(nil).Cause, "request: EOF")
		c.Process = nil
	})
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Choose(ctx, p)
		assert.ErrorIs(t, err, context.Canceled)
	})
	assert.Empty(t, children(t))
}
