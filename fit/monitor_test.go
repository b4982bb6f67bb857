package fit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/checkpoint"
	"steadyfit/option"
)

// scripted returns a session whose loss in the i-th epoch, which has one step, is losses[i].
func scripted(losses []float64) *linear {
	l := newLinear()
	l.names = []string{"loss", "other"}
	l.lossAt = make(map[int64]float64)
	for i, v := range losses {
		l.lossAt[int64(i)+1] = v
	}
	return l
}

// The expected epochs are those of EarlyStopping in Keras 3.15 for the same values.
func TestEarlyStopDecidesAsKeras(t *testing.T) {
	const none = 0
	for _, c := range []struct {
		losses   []float64
		stop     EarlyStop
		epochs   int
		stops    bool
		restored int // the epoch whose state the session has in the end
	}{
		{[]float64{5, 4, 3, 2, 1}, EarlyStop{}, 5, false, none},
		{[]float64{5, 4, 4, 3, 2}, EarlyStop{}, 3, true, none},
		{[]float64{5, 4, 4, 3, 2}, EarlyStop{Patience: 1}, 3, true, none},
		{[]float64{5, 4, 4, 3, 2}, EarlyStop{Patience: 2}, 5, false, none},
		{[]float64{5, 4, 6, 6, 3, 7, 7, 7}, EarlyStop{Patience: 2}, 4, true, none},
		{[]float64{5, 4, 6, 6, 3, 7, 7, 7}, EarlyStop{Patience: 3}, 8, true, none},
		{[]float64{5, 4.9, 4.8, 4.7, 4.6, 4.5}, EarlyStop{MinDelta: 0.25, Patience: 2}, 3, true, none},
		{[]float64{5, 4.9, 4.8, 4.7, 4.6, 4.5}, EarlyStop{MinDelta: 0.15, Patience: 2}, 6, false, none},
		{[]float64{5, 4.9, 4.8, 4.7, 4.6, 4.5}, EarlyStop{MinDelta: -0.25, Patience: 2}, 3, true, none},
		{[]float64{1, 2, 3, 3, 3, 3}, EarlyStop{Mode: "max", Patience: 2}, 5, true, none},
		{[]float64{3, 2, 1, 1, 1, 1}, EarlyStop{Mode: "max", Patience: 2}, 3, true, none},
		{[]float64{5, 4, 3, 2, 1, 0.5}, EarlyStop{Baseline: new(2.5), Patience: 2}, 6, false, none},
		{[]float64{5, 4, 3, 2, 1, 0.5}, EarlyStop{Baseline: new(2.5), Patience: 4}, 6, false, none},
		{[]float64{5, 4, 3, 3, 3}, EarlyStop{Baseline: new(float64(10)), Patience: 1}, 4, true, none},
		{[]float64{5, 6, 7, 8, 9}, EarlyStop{Baseline: new(float64(1)), Patience: 3}, 3, true, none},
		{[]float64{1, 2, 3, 2.5, 2.6, 2.7}, EarlyStop{StartFrom: 2, Patience: 2}, 6, true, none},
		{[]float64{1, 2, 3, 4}, EarlyStop{StartFrom: 10}, 4, false, none},
		{[]float64{5, 4, 6, 7, 8}, EarlyStop{RestoreBest: true, Folder: "x", Patience: 2}, 4, true, 2},
		{[]float64{5, 4, 6, 3, 4, 4.5}, EarlyStop{RestoreBest: true, Folder: "x", Patience: 3}, 6, false, 4},
		{[]float64{5, 6, 7, 8, 9}, EarlyStop{RestoreBest: true, Folder: "x", Baseline: new(float64(1)), Patience: 3}, 3, true,
			1},
		{[]float64{5, 4, 3, 6, 7}, EarlyStop{RestoreBest: true, Folder: "x", Baseline: new(float64(1)), Patience: 9}, 5,
			false, 3},
		{[]float64{1, 2, 5, 4, 6}, EarlyStop{RestoreBest: true, Folder: "x", StartFrom: 2, Patience: 3}, 5, false, 4},
	} {
		t.Run(fmt.Sprint(c.losses), func(t *testing.T) {
			t.Chdir(tempDir(t))
			l := scripted(c.losses)
			var log strings.Builder
			loop := Loop{Session: l, Batch: 4, Epochs: len(c.losses), Log: slog.New(slog.NewTextHandler(&log, nil))}
			var states [][2][3]uint64
			c.stop.Metric = "loss"
			loop.Hook(c.stop.Hook(), Hook{Name: "remember", Epoch: func(context.Context, *State) error {
				states = append(states, l.state())
				return nil
			}})
			h, err := loop.Run(t.Context(), samples(t, 4))
			require.NoError(t, err)
			require.Len(t, h.Records, c.epochs)
			require.Equal(t, c.stops, h.Stopped != "", h.Stopped)
			if c.stops {
				require.Contains(t, h.Stopped, fmt.Sprintf("early stop after epoch %d: loss has not improved", c.epochs))
			}
			want := c.epochs
			if c.restored == none {
				require.Empty(t, log.String())
			} else {
				want = c.restored
				require.Contains(t, log.String(), fmt.Sprintf(`level=INFO msg="restored the weights of epoch %d (loss %s)"`, want, formatValue(c.losses[want-1])))
				require.Empty(t, names(t, "x"), "the kept state is removed")
			}
			require.Equal(t, states[want-1], l.state(), "the state in the end is that of epoch %d", want)
		})
	}
}

// The expected rates after each epoch are those of ReduceLROnPlateau in Keras 3.15 for the same
// values and an initial rate of 1.
func TestReduceOnPlateauDecidesAsKeras(t *testing.T) {
	for _, c := range []struct {
		losses []float64
		reduce ReduceOnPlateau
		rates  []float64
	}{
		{[]float64{5, 4, 4, 4, 4, 4}, ReduceOnPlateau{Patience: 2}, []float64{1, 1, 1, 0.5, 0.5, 0.25}},
		{[]float64{5, 4, 4, 4, 4, 4, 4, 4}, ReduceOnPlateau{Patience: 1, Cooldown: 2},
			[]float64{1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125}},
		{[]float64{5, 4, 4, 4, 4, 4}, ReduceOnPlateau{Patience: 1, MinRate: 0.2}, []float64{1, 1, 0.5, 0.25, 0.2, 0.2}},
		{[]float64{5, 4.99995, 4.9999, 4.99985, 4.9998}, ReduceOnPlateau{Patience: 2}, []float64{1, 1, 0.5, 0.5, 0.5}},
		{[]float64{5, 4, 6, 3, 6, 6, 6}, ReduceOnPlateau{Patience: 2}, []float64{1, 1, 1, 1, 1, 0.5, 0.5}},
		{[]float64{1, 2, 2, 2, 3}, ReduceOnPlateau{Patience: 2, Mode: "max"}, []float64{1, 1, 1, 0.5, 0.5}},
		{[]float64{4, 4, 4}, ReduceOnPlateau{Patience: 1}, []float64{1, 0.5, 0.25}},
	} {
		l := scripted(append(c.losses, 0))
		loop := Loop{Session: l, Batch: 4, Epochs: len(c.losses) + 1, LearningRate: Constant(1)}
		c.reduce.Metric, c.reduce.Factor = "loss", 0.5
		loop.Hook(c.reduce.Hook())
		h, err := loop.Run(t.Context(), samples(t, 4))
		require.NoError(t, err)
		for i, want := range c.rates {
			require.InDelta(t, want, *h.Records[i+1].LearningRate, 1e-15, "after epoch %d of %v", i+1, c.losses)
			reduced := *h.Records[i+1].LearningRate < *h.Records[i].LearningRate
			require.Equal(t, reduced, len(h.Records[i].Events) == 1, "event of epoch %d of %v", i+1, c.losses)
		}
	}
}

func TestNaNIsNeverAnImprovement(t *testing.T) {
	for _, d := range []string{"min", "max"} {
		m := monitor{mode: d}
		require.False(t, m.improves(math.NaN()))
		require.True(t, m.improves(1))
		m.set(1)
		require.False(t, m.improves(math.NaN()))
	}
}

func TestGuessMode(t *testing.T) {
	for name, want := range map[string]string{
		"loss": "min", "val_loss": "min", "mae": "min", "val_mean_squared_error": "min",
		"sparse_categorical_crossentropy": "min",
		"accuracy":                        "max", "val_acc": "max", "top_k_categorical_accuracy": "max", "AUC": "max", "val_f1": "max",
		"mean_iou":        "max",
		"false_positives": "", "lossless": "", "": "",
	} {
		got := guessMode(name)
		require.Equal(t, want, got, name)
	}
}

func TestMonitorsAreChecked(t *testing.T) {
	for _, c := range []struct {
		hook  Hook
		words []string
	}{
		{EarlyStop{Metric: "accuracy"}.Hook(), []string{"EarlyStop accuracy: there is no such metric",
			"use one of loss, other"}},
		{EarlyStop{Metric: "val_loss"}.Hook(), []string{"use one of loss, other", "Loop.Validation"}},
		{EarlyStop{Metric: "other"}.Hook(), []string{"does not say whether low or high is better", "min or max"}},
		{EarlyStop{Metric: "loss", Patience: -1}.Hook(), []string{"patience is -1"}},
		{ReduceOnPlateau{Metric: "accuracy"}.Hook(), []string{"ReduceOnPlateau", "use one of loss, other"}},
		{ReduceOnPlateau{Metric: "loss"}.Hook(), []string{"learning rate is not known", "Loop.LearningRate"}},
		{Checkpoint{Folder: tempDir(t), Best: "accuracy"}.Hook(), []string{"Best", "use one of"}},
	} {
		l := scripted(nil)
		loop := Loop{Session: l, Batch: 4, Epochs: 1}
		loop.Hook(c.hook)
		_, err := loop.Run(t.Context(), samples(t, 4))
		var wrong *option.Error
		require.ErrorAs(t, err, &wrong)
		for _, word := range c.words {
			require.ErrorContains(t, err, word)
		}
		require.Empty(t, l.steps)
	}
	for _, bad := range []ReduceOnPlateau{{Factor: -1}, {Factor: 1}, {Cooldown: -1}, {MinRate: -1}} {
		loop := Loop{Session: scripted(nil), Batch: 4, Epochs: 1, LearningRate: Constant(1)}
		bad.Metric = "loss"
		loop.Hook(bad.Hook())
		_, err := loop.Run(t.Context(), samples(t, 4))
		var wrong *option.Error
		require.ErrorAs(t, err, &wrong)
	}
}

func TestMonitorsPassOverEpochsWithoutTheirMetric(t *testing.T) {
	l := scripted([]float64{1, 1, 1, 1, 1, 1})
	loop := Loop{Session: l, Batch: 4, Epochs: 6, Validation: samples(t, 4), ValidationEvery: 2,
		LearningRate: Constant(1e-300)}
	loop.Hook(EarlyStop{Metric: "val_loss", Patience: 2}.Hook(), ReduceOnPlateau{Metric: "val_loss", Patience: 1}.Hook())
	h, err := loop.Run(t.Context(), samples(t, 4))
	require.NoError(t, err)
	require.Len(t, h.Records, 6, "validations 2 and 3 do not improve on the first, which makes epoch 6")
	require.NotEmpty(t, h.Stopped)
	require.Empty(t, h.Records[2].Events)
	require.Equal(t, []string{"learning_rate"}, h.Records[3].Events)
}

// unsaved returns a session whose calls of Save with these numbers fail. The first call has the number 1.
func unsaved(losses []float64, fails ...int) *linear {
	l := scripted(losses)
	saves := 0
	l.onSave = func(string) error {
		if saves++; slices.Contains(fails, saves) {
			return syscall.ENOSPC
		}
		return nil
	}
	return l
}

// Without a folder, the best state is in a temporary folder, which the run removes.
func TestBestStateInATemporaryFolder(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	losses := []float64{9, 5, 2, 4, 6, 6}
	l := scripted(losses)
	var states [][2][3]uint64
	loop := Loop{Session: l, Batch: 4, Epochs: len(losses)}
	loop.Hook(
		EarlyStop{Metric: "loss", Patience: 2, RestoreBest: true}.Hook(),
		Hook{Name: "states", Epoch: func(context.Context, *State) error { states = append(states, l.state()); return nil }},
	)
	for range 2 {
		states = nil
		h, err := loop.Run(t.Context(), samples(t, 4))
		require.NoError(t, err)
		require.True(t, h.Done)
		require.Equal(t, states[2], l.state(), "the third epoch is the best")
		require.Equal(t, 3, h.Restored)
		require.Equal(t, h.Records[2], h.Final())
		require.Equal(t, h.Records[4], h.Last())
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
		*l = *scripted(losses)
	}
}

// If the best state cannot be written, the run ends after the epoch with a checkpoint.
func TestBestStateThatCannotBeWrittenStops(t *testing.T) {
	losses := []float64{9, 5, 2, 4, 6, 6, 6}
	whole := scripted(losses)
	run := func(l *linear, dir string, resume bool) (*History, error) {
		loop := Loop{Session: l, Batch: 4, Epochs: len(losses)}
		if resume {
			loop.Resume = dir
		}
		loop.Hook(EarlyStop{Metric: "loss", Patience: 3, RestoreBest: true, Folder: dir}.Hook(),
			Checkpoint{Folder: dir, EveryEpochs: 100}.Hook())
		return loop.Run(t.Context(), samples(t, 4))
	}
	_, err := run(whole, tempDir(t), false)
	require.NoError(t, err)

	dir := tempDir(t)
	h, err := run(unsaved(losses, 3), dir, false)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "early_stop(loss) at end: saving the best state")
	require.ErrorContains(t, err, "free some space")
	require.False(t, h.Done)
	require.Len(t, h.Records, 3)
	require.Equal(t, filepath.Join(dir, "ckpt-3"), h.Checkpoint)
	requireSound(t, dir)
}

// The folder stays locked until the best state was restored and removed.
func TestBestStateIsRestoredUnderTheLock(t *testing.T) {
	dir := tempDir(t)
	l := &lockLooker{linear: newLinear(), dir: dir}
	loop := Loop{Session: l, Batch: 4, Epochs: 3}
	loop.Hook(EarlyStop{Metric: "loss", RestoreBest: true, Folder: dir}.Hook(), Checkpoint{Folder: dir}.Hook())
	_, err := loop.Run(t.Context(), samples(t, 4))
	require.NoError(t, err)
	require.Len(t, l.found, 1)
	require.ErrorIs(t, l.found[0], checkpoint.ErrLocked)
}

// lockLooker is a session that tries to lock the folder when the session is restored.
type lockLooker struct {
	*linear
	dir   string
	found []error
}

func (l *lockLooker) Restore(ctx context.Context, path string) error {
	lock, err := checkpoint.Acquire(l.dir, slog.New(slog.DiscardHandler))
	l.found = append(l.found, err)
	return errors.Join(l.linear.Restore(ctx, path), lock.Release())
}

// The next run removes the best states of a killed process. A run that cannot lock the folder
// leaves them.
func TestBestStatesOfAnotherProcess(t *testing.T) {
	dir := tempDir(t)
	left := filepath.Join(dir, ".best-loss", "7")
	run := func(resume string, hooks ...Hook) error {
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 3, Resume: resume}
		loop.Hook(append(hooks, EarlyStop{Metric: "loss", RestoreBest: true, Folder: dir}.Hook(),
			Checkpoint{Folder: dir}.Hook())...)
		_, err := loop.Run(t.Context(), samples(t, 4))
		return err
	}
	require.NoError(t, os.MkdirAll(left, 0o777))
	lock, err := checkpoint.Acquire(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, resume := range []string{"", dir} {
		require.ErrorIs(t, run(resume), checkpoint.ErrLocked)
		require.DirExists(t, left)
	}
	require.NoError(t, lock.Release())

	require.NoError(t, run(dir, Hook{Name: "look", Epoch: func(context.Context, *State) error {
		require.NoDirExists(t, left)
		return nil
	}, Priority: priorityReport}))
	requireSound(t, dir)
}

// A run cannot restore a best state that its checkpoint does not have.
func TestBestStateThatACheckpointLacks(t *testing.T) {
	dir := tempDir(t)
	run := func(epochs int, restore bool, resume string) error {
		loop := Loop{Session: scripted([]float64{5, 2, 4, 4, 3, 4}), Batch: 4, Epochs: epochs, Resume: resume}
		loop.Hook(EarlyStop{Metric: "loss", Patience: 9, RestoreBest: restore, Folder: dir}.Hook(),
			Checkpoint{Folder: dir}.Hook())
		_, err := loop.Run(t.Context(), samples(t, 4))
		return err
	}
	require.NoError(t, run(3, false, ""))
	err := run(6, true, dir)
	require.ErrorAs(t, err, new(*option.Error))
	require.ErrorContains(t, err, "RestoreBest: the checkpoint does not have the weights of the best epoch")
}
