package autotune

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// decideWith runs executions of scripted length until the chooser decides, and returns how many
// ran in TensorFlow's threads and in the calling thread.
func decideWith(t *testing.T, c *chooser, took func(i int, caller bool) time.Duration) (ran [2]int) {
	t.Helper()
	for i := range 10_000 {
		if c.decided {
			return ran
		}
		if c.caller {
			ran[1]++
		} else {
			ran[0]++
		}
		c.add(32, took(i, c.caller))
	}
	t.Fatal("it decides nothing")
	return ran
}

func TestChooser(t *testing.T) {
	constant := func(threads, caller time.Duration) func(int, bool) time.Duration {
		return func(_ int, in bool) time.Duration {
			if in {
				return caller
			}
			return threads
		}
	}
	const us = time.Microsecond
	for _, c := range []struct {
		name   string
		took   func(int, bool) time.Duration
		caller bool
		ran    [2]int
	}{
		// A warm-up of 3 executions, and 5 blocks in each kind of thread. The number of executions
		// of a block (17, 2, 26 or 16) depends on their time in the warm-up.
		{"short steps", constant(180*us, 80*us), true, [2]int{3 + 5*17, 5 * 17}},
		{"steps that threads share", constant(2*time.Millisecond, 3*time.Millisecond), false, [2]int{3 + 5*3, 5 * 3}},
		{"the same time", constant(100*us, 100*us), false, [2]int{3 + 5*26, 5 * 26}},
		{"long steps are not compared", constant(30*time.Millisecond, 30*time.Millisecond), false, [2]int{3, 0}},
		{"one disturbed block decides nothing", func(i int, in bool) time.Duration {
			if in && i < 60 {
				return time.Second
			}
			return constant(200*us, 100*us)(i, in)
		}, true, [2]int{3 + 5*16, 5 * 16}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var chosen chooser
			assert.Equal(t, c.ran, decideWith(t, &chosen, c.took))
			assert.Equal(t, c.caller, chosen.caller)
		})
	}
}

// The last, smaller batch of a pass does not count, and the first larger execution starts over.
func TestChooserIgnoresRemainders(t *testing.T) {
	var c chooser
	for range 5 {
		c.add(8, time.Millisecond)
	}
	c.add(32, time.Millisecond)
	assert.Equal(t, chooser{samples: 32, ran: 1}, c)
	c.add(8, time.Hour)
	assert.Equal(t, chooser{samples: 32, ran: 1}, c)
}

// A training whose steps change threads, as while a Live measures them, has the weights of a training with plain steps.
func TestLiveKeepsBits(t *testing.T) {
	if !inChild(t) {
		return
	}
	ctx := context.Background()
	_, err := tfbind.Load("")
	require.NoError(t, err)
	images, _, err := data.Builtin("digits")
	require.NoError(t, err)
	_, regression := dense(t)
	for name, ds := range map[string]*data.InMemory{"dense-100-64-1": regression, "digits-cnn": images} {
		t.Run(name, func(t *testing.T) {
			m, err := savedmodels.Builtin(name)
			require.NoError(t, err)
			trained := func(live bool) (text string, changes int) {
				plan, err := session.Compile(m, session.Options{Seed: 1})
				require.NoError(t, err)
				s, err := session.Open(ctx, plan)
				require.NoError(t, err)
				defer s.Close()
				l := NewLive(s, 32)
				assert.False(t, l.decided)
				out := make([]float64, len(s.TrainMetrics()))
				for step := int64(0); step < 200; {
					for b, err := range ds.Batches(data.Pass{Batch: 32}) {
						require.NoError(t, err)
						require.NoError(t, s.Train(ctx, step, b, out))
						before := l.caller
						if live {
							l.note(b.Size, 200*time.Microsecond, nil) // measured times depend on the machine
						}
						if l.caller != before {
							changes++
						}
						if step++; step == 200 {
							break
						}
					}
				}
				text, err = sumOfWeights(ctx, s)
				require.NoError(t, err)
				return text, changes
			}
			plain, _ := trained(false)
			live, changes := trained(true)
			assert.Greater(t, changes, 5)
			assert.Equal(t, plain, live)
		})
	}
}

// childEnv is set in the process of a test that opens sessions. Other processes test a choice of
// threads, which the first session of a process fixes.
const childEnv = "STEADYFIT_TEST_AUTOTUNE_CHILD"

// inChild runs the test in a child process. It returns true in that process.
func inChild(t *testing.T) bool {
	t.Helper()
	if os.Getenv(childEnv) != "" {
		return true
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), childEnv+"=1")
	output, err := child.CombinedOutput()
	require.NoError(t, err, "%s", output)
	assert.Contains(t, string(output), "--- PASS: "+t.Name())
	return false
}

// A training after another one in the same process does not use a cached choice of threads.
func TestLaterTraining(t *testing.T) {
	if !inChild(t) {
		return
	}
	p := planned(t)
	p.Limits.Threads, p.Steps = true, 1
	info, err := tfbind.Load("")
	require.NoError(t, err)
	kept, err := p.open(info)
	require.NoError(t, err)
	for i, c := range []Configuration{fused, intra.over(fused), single.over(fused)} {
		ratio := 0.6 - 0.1*float64(i)
		kept.add(Measurement{Configuration: c, Rounds: 5, Step: ratio, Ratio: ratio, Low: ratio, High: ratio}, false)
	}
	choose := func() Choice {
		c, err := Choose(t.Context(), p)
		require.NoError(t, err)
		return c
	}
	open := func(c Configuration) {
		plan, err := session.Compile(p.Model, c.Apply(p.Options))
		require.NoError(t, err)
		s, err := session.Open(t.Context(), plan)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
	assert.Equal(t, single.over(fused), choose().Configuration)
	open(Configuration{})

	later := choose()
	assert.Equal(t, fused, later.Configuration)
	require.ErrorIs(t, intra.tooLate(p.Options), gpuopts.ErrTooLate)
	require.NoError(t, fused.tooLate(p.Options))
	assert.Equal(t, fused, intra.over(fused).Within(p.Limits, p.Options))
	open(later.Configuration)
}
