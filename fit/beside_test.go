package fit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// held is a session whose first checkpoint is complete only after the end of a later step.
type held struct {
	*linear
	// saves counts the checkpoints, now those that are being written, and most has the maximum of
	// now.
	saves, now, most atomic.Int64
	done             chan struct{}
}

func newHeld(until int64) *held {
	h := &held{linear: newBeside(), done: make(chan struct{})}
	h.onTrain = before(until, func() { close(h.done) })
	h.onSave = func(string) error {
		h.most.Store(max(h.most.Load(), h.now.Add(1)))
		defer h.now.Add(-1)
		if h.saves.Add(1) == 1 {
			<-h.done
		}
		return nil
	}
	return h
}

// Steps run while a checkpoint is written. The checkpoint has the state of its step, and the next
// one waits for it.
func TestStepsRunWhileACheckpointIsWritten(t *testing.T) {
	dir := tempDir(t)
	h := newHeld(4)
	loop := Loop{Session: h, Batch: 4, Epochs: 2, StepsPerEpoch: 6}
	loop.Hook(Checkpoint{Folder: dir, EverySteps: 2, Keep: -1}.Hook(), Hook{
		Name: "steps", Save: func() (json.RawMessage, error) { return json.Marshal(len(h.steps)) },
	})
	// The session trains step 3 and 4 only if ckpt-2 does not stop them, and ckpt-4 needs ckpt-2.
	h.onTrain = func(step int64) error {
		switch step {
		case 2:
			require.NoDirExists(t, filepath.Join(dir, "ckpt-2"))
		case 3:
			close(h.done)
		case 4:
			require.DirExists(t, filepath.Join(dir, "ckpt-2"), "the checkpoint after step 4 waited for it")
		}
		return nil
	}
	history := complete(t, &loop, samples(t, 8))
	require.EqualValues(t, 1, h.most.Load())
	require.Equal(t, []string{"ckpt-10", "ckpt-12", "ckpt-2", "ckpt-4", "ckpt-6", "ckpt-8"}, names(t, dir))
	require.Equal(t, filepath.Join(dir, "ckpt-12"), history.Checkpoint)
	require.Positive(t, history.Records[0].CheckpointPause)
	requireSound(t, dir)
	for _, name := range []string{"ckpt-10", "ckpt-12", "ckpt-4", "ckpt-6", "ckpt-8"} {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
	}

	l := newLinear()
	again := Loop{Session: l, Batch: 4, Epochs: 2, StepsPerEpoch: 6, Resume: dir}
	again.Hook(Hook{Name: "steps", Load: func(state json.RawMessage) error {
		require.JSONEq(t, "2", string(state))
		return nil
	}})
	resumed := complete(t, &again, samples(t, 8))
	require.Equal(t, filepath.Join(dir, "ckpt-2"), resumed.ResumedFrom)
	require.Equal(t, outcomeOf(t, history, h.linear), outcomeOf(t, resumed, l))
}

// The error of a checkpoint that is written while steps run ends the run at a later step.
func TestErrorsOfACheckpointThatIsWrittenBeside(t *testing.T) {
	dir := tempDir(t)
	h := newHeld(3)
	failed := errors.New("no luck")
	h.onSave = func(string) error {
		<-h.done
		return failed
	}
	loop := Loop{Session: h, Batch: 4, Epochs: 4}
	loop.Hook(Checkpoint{Folder: dir, Best: "loss"}.Hook())
	_, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorAs(t, err, new(*WriteError))
	require.ErrorIs(t, err, failed)
	require.Empty(t, names(t, dir))
}

// Training waits for its checkpoints with Foreground, and without memory for the copy, which is logged
// once.
func TestTrainingWaitsForItsCheckpoints(t *testing.T) {
	for name, change := range map[string]func(*linear, *Checkpoint){
		"foreground": func(_ *linear, c *Checkpoint) { c.Foreground = true },
		"memory":     func(l *linear, _ *Checkpoint) { l.size = math.MaxInt64 / 2 },
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			l := newBeside()
			c := Checkpoint{Folder: dir, EverySteps: 1, Keep: -1}
			change(l, &c)
			var log bytes.Buffer
			loop := Loop{Session: l, Batch: 4, Epochs: 4, Log: slog.New(slog.NewTextHandler(&log, nil))}
			loop.Hook(c.Hook())
			l.onTrain = func(step int64) error {
				if step > 0 {
					require.DirExists(t, filepath.Join(dir, checkpointName(step)))
				}
				return nil
			}
			complete(t, &loop, samples(t, 8))
			want := 0
			if name == "memory" {
				want = 1
			}
			require.Equal(t, want, strings.Count(log.String(), "training waits for its checkpoints"))
		})
	}
}

// A failed step and a reset wait for the checkpoint, whose memory they may need.
func TestRecoveryAndResetWaitForTheCheckpoint(t *testing.T) {
	dir := tempDir(t)
	h := newHeld(-1)
	failed, reset := false, false
	h.onTrain = func(step int64) error {
		if step == 2 && !failed {
			failed = true
			close(h.done)
			return errors.New("no memory")
		}
		return nil
	}
	k := &keeping{session: h.linear, decide: func(error) (string, error) {
		require.DirExists(t, filepath.Join(dir, "ckpt-2"))
		return "oom", nil
	}}
	loop := Loop{Session: h, Batch: 4, Epochs: 4, Recover: k.recovery(100)}
	loop.Hook(Checkpoint{Folder: dir}.Hook(), Hook{Name: "resets", Step: func(_ context.Context, s *State) error {
		if s.Step == 5 {
			s.AwaitCheckpoint()
			require.DirExists(t, filepath.Join(dir, "ckpt-4"))
			reset = true
		}
		return nil
	}})
	complete(t, &loop, samples(t, 8))
	require.True(t, failed)
	require.True(t, reset)
}
