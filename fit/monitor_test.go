package fit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
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
	for _, c := range []struct {
		losses []float64
		stop   EarlyStop
		epochs int
		stops  bool
	}{
		{[]float64{5, 4, 3, 2, 1}, EarlyStop{}, 5, false},
		{[]float64{5, 4, 4, 3, 2}, EarlyStop{}, 3, true},
		{[]float64{5, 4, 4, 3, 2}, EarlyStop{Patience: 1}, 3, true},
		{[]float64{5, 4, 4, 3, 2}, EarlyStop{Patience: 2}, 5, false},
		{[]float64{5, 4, 6, 6, 3, 7, 7, 7}, EarlyStop{Patience: 2}, 4, true},
		{[]float64{5, 4, 6, 6, 3, 7, 7, 7}, EarlyStop{Patience: 3}, 8, true},
		{[]float64{5, 4.9, 4.8, 4.7, 4.6, 4.5}, EarlyStop{MinDelta: 0.25, Patience: 2}, 3, true},
		{[]float64{5, 4.9, 4.8, 4.7, 4.6, 4.5}, EarlyStop{MinDelta: 0.15, Patience: 2}, 6, false},
		{[]float64{5, 4.9, 4.8, 4.7, 4.6, 4.5}, EarlyStop{MinDelta: -0.25, Patience: 2}, 3, true},
		{[]float64{1, 2, 3, 3, 3, 3}, EarlyStop{Mode: "max", Patience: 2}, 5, true},
		{[]float64{3, 2, 1, 1, 1, 1}, EarlyStop{Mode: "max", Patience: 2}, 3, true},
		{[]float64{5, 4, 3, 2, 1, 0.5}, EarlyStop{Baseline: new(2.5), Patience: 2}, 6, false},
		{[]float64{5, 4, 3, 2, 1, 0.5}, EarlyStop{Baseline: new(2.5), Patience: 4}, 6, false},
		{[]float64{5, 4, 3, 3, 3}, EarlyStop{Baseline: new(float64(10)), Patience: 1}, 4, true},
		{[]float64{5, 6, 7, 8, 9}, EarlyStop{Baseline: new(float64(1)), Patience: 3}, 3, true},
		{[]float64{1, 2, 3, 2.5, 2.6, 2.7}, EarlyStop{StartFrom: 2, Patience: 2}, 6, true},
		{[]float64{1, 2, 3, 4}, EarlyStop{StartFrom: 10}, 4, false},
	} {
		t.Run(fmt.Sprint(c.losses), func(t *testing.T) {
			loop := Loop{Session: scripted(c.losses), Batch: 4, Epochs: len(c.losses)}
			c.stop.Metric = "loss"
			h := complete(t, &loop, samples(t, 4), c.stop.Hook())
			require.Len(t, h.Records, c.epochs)
			require.Equal(t, c.stops, h.Stopped != "", h.Stopped)
			if c.stops {
				require.Contains(t, h.Stopped, fmt.Sprintf("early stop after epoch %d: loss has not improved", c.epochs))
			}
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
		h := complete(t, &loop, samples(t, 4), c.reduce.Hook())
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
		"sparse_categorical_crossentropy": "min", "val_my mae (%)": "min",
		"accuracy": "max", "val_acc": "max", "top_k_categorical_accuracy": "max", "AUC": "max", "val_f1": "max",
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
		{Checkpoint{Folder: tempDir(t), RestoreBest: true}.Hook(),
			[]string{"RestoreBest: no metric says which checkpoint is best"}},
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
	h := complete(t, &loop, samples(t, 4))
	require.Len(t, h.Records, 6, "validations 2 and 3 do not improve on the first, which makes epoch 6")
	require.NotEmpty(t, h.Stopped)
	require.Empty(t, h.Records[2].Events)
	require.Equal(t, []string{"learning_rate"}, h.Records[3].Events)
}

// The weights of the best checkpoint are restored under the lock of the folder, also by a run that resumes.
func TestBestWeightsAreRestored(t *testing.T) {
	losses := []float64{9, 5, 2, 4, 6, 6, 7}
	for _, c := range []struct {
		checkpoint Checkpoint
		epochs     []int // of each run
		best       int
	}{
		{Checkpoint{}, []int{7}, 3},
		{Checkpoint{Keep: 1, EveryEpochs: 100}, []int{7}, 3},
		{Checkpoint{}, []int{4, 7, 7}, 3},
		{Checkpoint{BestMode: "max"}, []int{7}, 1},
		{Checkpoint{MinDelta: 3.5}, []int{7}, 2},
	} {
		dir := tempDir(t)
		c.checkpoint.Folder, c.checkpoint.Best, c.checkpoint.RestoreBest = dir, "loss", true
		var states [][2][3]uint64
		for run, epochs := range c.epochs {
			var log strings.Builder
			l := &lockLooker{linear: scripted(losses), dir: dir}
			loop := Loop{Session: l, Batch: 4, Epochs: epochs, Log: slog.New(slog.NewTextHandler(&log, nil))}
			if run > 0 {
				loop.Resume = dir
			}
			loop.Hook(c.checkpoint.Hook(), Hook{Name: "states", Epoch: func(context.Context, *State) error {
				states = append(states, l.state())
				return nil
			}})
			h := complete(t, &loop, samples(t, 4))
			require.Equal(t, states[c.best-1], l.state())
			require.Equal(t, c.best, h.Restored)
			require.Equal(t, h.Records[c.best-1], h.Final())
			require.ErrorIs(t, l.found[len(l.found)-1], checkpoint.ErrLocked)
			require.Contains(t, log.String(), fmt.Sprintf(`level=INFO msg="restored the weights of epoch %d (loss %s)"`, c.best,
				formatValue(losses[c.best-1])))
		}
		require.Len(t, states, 7)
		requireSound(t, dir)
	}
}

// RestoreBest cannot choose among epochs that have no best checkpoint.
func TestBestWeightsNeedACheckpoint(t *testing.T) {
	train := func(dir string, epochs int, c Checkpoint) (*History, error) {
		c.Folder = dir
		loop := Loop{Session: scripted([]float64{2, 5, 4, 6}), Batch: 4, Epochs: epochs, Resume: dir,
			Validation: samples(t, 4), ValidationEvery: 3}
		loop.Hook(c.Hook())
		return loop.Run(t.Context(), samples(t, 4))
	}
	const unknown = "RestoreBest: the resumed training has epochs with loss, but no best checkpoint of them; start a new"

	dir := tempDir(t)
	_, err := train(dir, 2, Checkpoint{})
	require.NoError(t, err)
	for _, epochs := range []int{2, 3} {
		before := names(t, dir)
		_, err = train(dir, epochs, Checkpoint{Best: "loss", RestoreBest: true})
		require.ErrorAs(t, err, new(*option.Error))
		require.ErrorContains(t, err, unknown)
		require.Equal(t, before, names(t, dir))
	}
	h, err := train(dir, 3, Checkpoint{Best: "val_loss", RestoreBest: true}) // no earlier epoch has val_loss
	require.NoError(t, err)
	require.Equal(t, 3, h.Restored)

	// The best checkpoint is removed.
	dir = tempDir(t)
	_, err = train(dir, 2, Checkpoint{Best: "loss"})
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "ckpt-1")))
	_, err = train(dir, 3, Checkpoint{Best: "loss", RestoreBest: true})
	require.ErrorContains(t, err, unknown)
	_, err = train(dir, 4, Checkpoint{Best: "loss"})
	require.NoError(t, err)
	text := contentOf(t, filepath.Join(dir, bestFile))
	require.Contains(t, string(text), "ckpt-3")
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
