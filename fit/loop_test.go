package fit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"steadyfit/data"
	"steadyfit/memory"
	"steadyfit/option"
)

func TestRunTrains(t *testing.T) {
	l := newLinear()
	h := complete(t, &Loop{Session: l, Batch: 8, Epochs: 30, Validation: samples(t, 20)}, samples(t, 100).Shuffle(1))
	require.Len(t, h.Records, 30)
	require.Empty(t, h.Stopped)
	last := h.Last()
	require.Equal(t, 30, last.Epoch)
	require.EqualValues(t, 30*13, last.Step)
	losses := h.Metric("loss")
	require.Less(t, losses[29], losses[0]/5)
	require.Len(t, h.Metric("val_loss"), 30)
	require.Equal(t, []string{"loss", "mae", "val_loss", "val_mae"}, metricNamesOf(last.Metrics))
}

func metricNamesOf(m Metrics) []string {
	var names []string
	for _, metric := range m {
		names = append(names, metric.Name)
	}
	return names
}

// With batches of 4, 4 and 2 samples, means over batches differ from means over samples.
func TestMeansAreWeightedBySamples(t *testing.T) {
	l := newLinear()
	l.lossAt = map[int64]float64{1: 1, 2: 2, 3: 6}
	h := complete(t, &Loop{Session: l, Batch: 4, Epochs: 1, Validation: samples(t, 10)}, samples(t, 10))
	loss, _ := h.Last().Metrics.Get("loss")
	require.Equal(t, (4*1+4*2+2*6)/10.0, loss)

	all, err := Evaluate(t.Context(), l, samples(t, 10), 10)
	require.NoError(t, err)
	want, _ := all.Get("loss")
	got, _ := h.Last().Metrics.Get("val_loss")
	require.InDelta(t, want, got, 1e-12)
}

func TestOptionsAreChecked(t *testing.T) {
	ds := samples(t, 10)
	for _, c := range []struct {
		option string
		change func(*Loop)
		words  []string
	}{
		{"Loop.Session", func(l *Loop) { l.Session = nil }, []string{"missing"}},
		{"Loop.Batch", func(l *Loop) { l.Batch = 0 }, []string{"Loop.Batch 0: expected at least 1"}},
		{"Loop.Batch", func(l *Loop) { l.Batch = math.MaxInt }, []string{"at most 2147483647"}},
		{"Loop.Epochs", func(l *Loop) { l.Epochs = -1 }, []string{"-1", "at least 1"}},
		{"Loop.InitialEpoch", func(l *Loop) { l.InitialEpoch = -1 }, []string{"-1: expected at least 0"}},
		{"Loop.InitialEpoch", func(l *Loop) { l.InitialEpoch = 2 }, []string{"nothing is left to train"}},
		{"Loop.StepsPerEpoch", func(l *Loop) { l.StepsPerEpoch = -1 }, []string{"-1: expected at least 0"}},
		{"Loop.StepsPerEpoch", func(l *Loop) { l.StepsPerEpoch = math.MaxInt }, []string{"at most"}},
		{"Loop.ValidationEvery", func(l *Loop) { l.ValidationEvery = -1 }, []string{"-1: expected at least 0"}},
		{"Loop.DropRemainder", func(l *Loop) { l.DropRemainder, l.Batch = true, 11 }, []string{"10 samples", "batch of 11"}},
		{"Loop.Validation", func(l *Loop) { l.Validation = ds; l.Session.(*linear).noEvaluate = true },
			[]string{"no evaluate signature"}},
		{"Loop.Session", func(l *Loop) { l.Session.(*linear).names = []string{"accuracy"} },
			[]string{"expected loss as the first"}},
		{"Loop.Session", func(l *Loop) { l.Session.(*linear).names = []string{"loss", "a", "a"} },
			[]string{"two metrics named a"}},
		{"Loop.Validation", func(l *Loop) { l.Validation = ds; l.Session.(*linear).names = []string{"loss", "val_mae"} },
			[]string{"val_mae"}},
		{"Hook.Name", func(l *Loop) { l.Hook(Hook{}) }, []string{"a hook has none"}},
		{"Hook.Name", func(l *Loop) { l.Hook(Hook{Name: "a"}, Hook{Name: "a", Priority: 3}) },
			[]string{"Hook.Name a: two hooks"}},
		{"Loop.LearningRate", func(l *Loop) { l.LearningRate = Constant(-1) }, []string{"-1: at step 1"}},
		{"Loop.LearningRate", func(l *Loop) { l.LearningRate = Constant(math.NaN()) }, []string{"NaN"}},
	} {
		t.Run(c.option, func(t *testing.T) {
			l := newLinear()
			loop := Loop{Session: l, Batch: 4, Epochs: 2}
			c.change(&loop)
			h, err := loop.Run(t.Context(), ds)
			var wrong *option.Error
			require.ErrorAs(t, err, &wrong)
			require.Equal(t, c.option, wrong.Option)
			for _, word := range c.words {
				require.ErrorContains(t, err, word)
			}
			require.NotNil(t, h)
			require.Empty(t, l.steps)
		})
	}
	_, err := (&Loop{Session: newLinear(), Batch: 1, Epochs: 1}).Run(t.Context(), nil)
	require.ErrorContains(t, err, "dataset")
	var missing context.Context
	_, err = (&Loop{Session: newLinear(), Batch: 1, Epochs: 1}).Run(missing, ds)
	require.ErrorContains(t, err, "context")
}

// passes records the requested passes.
type passes struct {
	data.Dataset
	asked *[]data.Pass
}

func (p passes) Batches(pass data.Pass) iter.Seq2[data.Batch, error] {
	*p.asked = append(*p.asked, pass)
	return p.Dataset.Batches(pass)
}

// An epoch begins where the one before it ended in the data.
func TestPasses(t *testing.T) {
	pass := func(batch, epoch, skip int) data.Pass { return data.Pass{Batch: batch, Epoch: epoch, Skip: skip} }
	for _, c := range []struct {
		name    string
		loop    Loop
		samples int
		passes  []data.Pass
		epochs  []int64 // the steps done after each
	}{
		{"steps per epoch", Loop{Batch: 4, Epochs: 4, StepsPerEpoch: 3}, 20, []data.Pass{
			pass(4, 0, 0),                // batches 0 1 2
			pass(4, 0, 3), pass(4, 1, 0), // 3 4, then 0
			pass(4, 1, 1),                // 1 2 3
			pass(4, 1, 4), pass(4, 2, 0), // 4, then 0 1
		}, []int64{3, 6, 9, 12}},
		{"several passes per epoch", Loop{Batch: 4, Epochs: 2, StepsPerEpoch: 5}, 7, []data.Pass{pass(4, 0, 0), pass(4, 1, 0),
			pass(4, 2, 0), pass(4, 2, 1), pass(4, 3, 0), pass(4, 4, 0)}, []int64{5, 10}},
		{"an initial epoch counts as done", Loop{Batch: 4, Epochs: 3, InitialEpoch: 1}, 20,
			[]data.Pass{pass(4, 1, 0), pass(4, 2, 0)}, []int64{10, 15}},
		{"no remainder", Loop{Batch: 8, Epochs: 2, DropRemainder: true}, 20,
			[]data.Pass{{Batch: 8, DropRemainder: true}, {Batch: 8, Epoch: 1, DropRemainder: true}}, []int64{2, 4}},
		// A batch that is larger than the data takes no more memory than the data.
		{"a batch of more than all", Loop{Batch: maxBatch, Epochs: 1}, 10, []data.Pass{pass(maxBatch, 0, 0)}, []int64{1}},
	} {
		for _, together := range []int{1, 2} {
			var asked []data.Pass
			l := newSeveral(together)
			c.loop.Session = l
			h := complete(t, &c.loop, passes{samples(t, c.samples), &asked})
			require.Equal(t, c.passes, asked, c.name)
			var ends []int64
			for i, r := range h.Records {
				require.Equal(t, c.loop.InitialEpoch+1+i, r.Epoch)
				ends = append(ends, r.Step)
			}
			require.Equal(t, c.epochs, ends, c.name)
			steps := l.steps
			require.Equal(t, ends[len(ends)-1]-1, steps[len(steps)-1])
		}
	}
}

func TestValidationEvery(t *testing.T) {
	loop := Loop{Session: newLinear(), Batch: 8, Epochs: 5, Validation: samples(t, 9), ValidationEvery: 2}
	h := complete(t, &loop, samples(t, 20))
	require.Len(t, h.Metric("val_loss"), 2)
	_, ok := h.Records[0].Metrics.Get("val_loss")
	require.False(t, ok)
	_, ok = h.Records[1].Metrics.Get("val_loss")
	require.True(t, ok)
}

// spy returns a hook that records its calls in log.
func spy(log *[]string, name string, priority int, fail string) Hook {
	note := func(phase string) func(context.Context, *State) error {
		return func(_ context.Context, s *State) error {
			*log = append(*log, fmt.Sprintf("%s %s %d/%d", name, phase, s.Epoch, s.Step))
			if fail == phase {
				return errors.New("no more ink")
			}
			return nil
		}
	}
	return Hook{Name: name, Priority: priority, Start: note("start"), Step: note("step"), Epoch: note("epoch"),
		End: note("end")}
}

func TestHookOrder(t *testing.T) {
	var log []string
	loop := Loop{Session: newLinear(), Batch: 10, Epochs: 2}
	loop.Hook(spy(&log, "late", 5, ""), spy(&log, "first", -1, ""))
	complete(t, &loop, samples(t, 10), spy(&log, "later", 5, ""))
	require.Equal(t, strings.Split(strings.TrimSpace(`
first start 1/0
late start 1/0
later start 1/0
first step 1/1
late step 1/1
later step 1/1
first epoch 1/1
late epoch 1/1
later epoch 1/1
first step 2/2
late step 2/2
later step 2/2
first epoch 2/2
late epoch 2/2
later epoch 2/2
later end 2/2
late end 2/2
first end 2/2`), "\n"), log)
}

func TestHookErrorsNameTheHook(t *testing.T) {
	for _, c := range []struct {
		phase string
		want  []string
	}{
		{"start", []string{"a start 1/0", "b start 1/0", "a end 1/0"}},
		{"step", []string{"a start 1/0", "b start 1/0", "c start 1/0", "a step 1/1", "b step 1/1", "c end 1/1", "b end 1/1",
			"a end 1/1"}},
		{"epoch", []string{"a start 1/0", "b start 1/0", "c start 1/0", "a step 1/1", "b step 1/1", "c step 1/1",
			"a epoch 1/1", "b epoch 1/1", "c end 1/1", "b end 1/1", "a end 1/1"}},
		{"end", []string{"a start 1/0", "b start 1/0", "c start 1/0", "a step 1/1", "b step 1/1", "c step 1/1", "a epoch 1/1",
			"b epoch 1/1", "c epoch 1/1", "c end 1/1", "b end 1/1", "a end 1/1"}},
	} {
		t.Run(c.phase, func(t *testing.T) {
			var log []string
			loop := Loop{Session: newLinear(), Batch: 10, Epochs: 1}
			loop.Hook(spy(&log, "a", 0, ""), spy(&log, "b", 0, c.phase), spy(&log, "c", 0, ""))
			_, err := loop.Run(t.Context(), samples(t, 10))
			var hook *HookError
			require.ErrorAs(t, err, &hook)
			require.Equal(t, "b", hook.Hook)
			require.Equal(t, c.phase, hook.Phase)
			require.ErrorContains(t, err, "b at "+c.phase+": no more ink")
			require.Equal(t, c.want, log)
		})
	}
}

func TestEndKnowsWhatEndedTheRun(t *testing.T) {
	l := newLinear()
	l.onTrain = failing(2, errors.New("out of luck"))
	var seen error
	loop := Loop{Session: l, Batch: 4, Epochs: 1}
	loop.Hook(Hook{Name: "watch", End: func(_ context.Context, s *State) error {
		seen = s.Err
		return errors.New("cannot tidy up")
	}})
	_, err := loop.Run(t.Context(), samples(t, 20))
	require.ErrorContains(t, seen, "train step 3 (epoch 1, batch 2): out of luck")
	require.ErrorContains(t, err, "out of luck")
	require.ErrorContains(t, err, "watch at end: cannot tidy up")
}

func TestHookCanStop(t *testing.T) {
	stop := func(_ context.Context, s *State) error {
		if s.Step == 0 || s.Step == 7 || s.EpochsDone == 2 {
			s.Stop("enough")
			s.Stop("a later reason")
		}
		return nil
	}
	for name, c := range map[string]struct {
		hook           Hook
		steps, records int
	}{
		"at the start":   {Hook{Start: stop}, 0, 0},
		"in an epoch":    {Hook{Step: stop}, 7, 1},
		"after an epoch": {Hook{Epoch: stop}, 10, 2},
	} {
		t.Run(name, func(t *testing.T) {
			l, ends := newLinear(), 0
			loop := Loop{Session: l, Batch: 4, Epochs: 4}
			c.hook.Name = "stopper"
			c.hook.End = func(_ context.Context, s *State) error {
				ends++
				return s.Err
			}
			h := complete(t, &loop, samples(t, 20), c.hook)
			require.Equal(t, "enough", h.Stopped)
			require.Len(t, l.steps, c.steps)
			require.Len(t, h.Records, c.records)
			require.Equal(t, 1, ends)
		})
	}
}

func TestStateShowsTheRun(t *testing.T) {
	l := newLinear()
	l.lossAt = map[int64]float64{1: 2, 2: 4}
	loop := Loop{Session: l, Batch: 4, Epochs: 1, LearningRate: Constant(0.5), Validation: samples(t, 4)}
	loop.Hook(Hook{Name: "look", Step: func(_ context.Context, s *State) error {
		if s.Step == 2 {
			require.Equal(t, 2, s.EpochStep)
			require.Equal(t, 3, s.StepsPerEpoch)
			require.Equal(t, 4, s.Samples)
			require.Equal(t, 4.0, s.Values[0])
			running, _ := s.Running().Get("loss")
			require.Equal(t, 3.0, running)
			rate, ok := s.LearningRate()
			require.True(t, ok)
			require.Equal(t, 0.5, rate)
			require.Nil(t, s.Record)
			s.Event("oom")
			s.Event("oom") // an event is in a record once
		}
		return nil
	}, Epoch: func(_ context.Context, s *State) error {
		require.Zero(t, s.EpochStep)
		s.Event("reset")
		return nil
	}})
	h := complete(t, &loop, samples(t, 12))
	require.Equal(t, []string{"oom", "reset"}, h.Last().Events)
}

// If the context of a run ends, the run completes the current step or hook, returns the error of
// the context, and has the history up to that point. TestResumeIsExactFromEverywhere resumes such runs.
func TestCancellation(t *testing.T) {
	for _, c := range []struct {
		name    string
		records int
		steps   int
		set     func(cancel func(), l *linear, loop *Loop)
	}{
		{"before the run", 0, 0, func(cancel func(), _ *linear, _ *Loop) { cancel() }},
		{"in a start hook", 0, 0, func(cancel func(), _ *linear, loop *Loop) {
			loop.Hook(Hook{Name: "h", Start: func(ctx context.Context, _ *State) error { cancel(); return ctx.Err() }})
		}},
		{"in a step", 1, 8, func(cancel func(), l *linear, _ *Loop) {
			l.onTrain = before(7, cancel)
		}},
		{"in the last step of an epoch", 1, 10, func(cancel func(), l *linear, _ *Loop) {
			l.onTrain = before(9, cancel)
		}},
		{"in a step hook that gives up", 1, 7, func(cancel func(), _ *linear, loop *Loop) {
			loop.Hook(Hook{Name: "h", Step: func(ctx context.Context, s *State) error {
				if s.Step == 7 {
					cancel()
				}
				return ctx.Err()
			}})
		}},
		{"in the validation", 1, 10, func(cancel func(), l *linear, _ *Loop) {
			l.onEvaluate = func() error {
				if l.validated == 5 {
					cancel()
				}
				return nil
			}
		}},
		{"in an epoch hook", 2, 10, func(cancel func(), _ *linear, loop *Loop) {
			loop.Hook(Hook{Name: "h", Epoch: func(ctx context.Context, s *State) error {
				if s.Epoch == 2 {
					cancel()
				}
				return ctx.Err()
			}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			l := newLinear()
			dir := tempDir(t)
			loop := Loop{Session: l, Batch: 4, Epochs: 4, Validation: samples(t, 12)}
			ended := false
			loop.Hook(Checkpoint{Folder: dir}.Hook(), Hook{Name: "last", End: func(ctx context.Context, _ *State) error {
				ended = true
				return ctx.Err()
			}})
			c.set(func() { cancel(errors.New("the lights went out")) }, l, &loop)
			h, err := loop.Run(ctx, samples(t, 20).Shuffle(1))
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, "the lights went out")
			require.Len(t, h.Records, c.records)
			require.Len(t, l.steps, c.steps)
			require.Equal(t, c.name != "before the run", ended)
			if c.steps == 0 {
				require.Empty(t, h.Checkpoint)
				return
			}
			found := listed(t, dir)
			require.Equal(t, int64(c.steps), found[0].Step)
			require.Equal(t, h.Checkpoint, found[0].Path)
		})
	}
}

func TestCancelledInTheLastEpochHookIsComplete(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 1}
	loop.Hook(Hook{Name: "h", Epoch: func(context.Context, *State) error { cancel(); return nil }})
	h, err := loop.Run(ctx, samples(t, 8))
	require.NoError(t, err)
	require.Len(t, h.Records, 1)
}

func TestDeadline(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	_, err := (&Loop{Session: newLinear(), Batch: 4, Epochs: 1}).Run(ctx, samples(t, 8))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestDivergence(t *testing.T) {
	for _, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		l := newLinear()
		l.lossAt = map[int64]float64{8: value}
		h, err := (&Loop{Session: l, Batch: 4, Epochs: 3}).Run(t.Context(), samples(t, 20))
		require.ErrorIs(t, err, ErrDiverged)
		var d *divergedError
		require.ErrorAs(t, err, &d)
		require.Equal(t, fmt.Sprint(value), fmt.Sprint(d.Value))
		require.Equal(t, divergedError{Epoch: 2, Step: 8, Batch: 2, Metric: "loss"},
			divergedError{Epoch: d.Epoch, Step: d.Step, Batch: d.Batch, Metric: d.Metric})
		require.ErrorContains(t, err, fmt.Sprintf("loss is %v at step 8 (epoch 2, batch 2", value))
		require.ErrorContains(t, err, "lower the learning rate")
		require.Len(t, h.Records, 1)
		require.Len(t, l.steps, 8)
	}
	l := newLinear()
	l.valLoss = math.Inf(1)
	_, err := (&Loop{Session: l, Batch: 4, Epochs: 3, Validation: samples(t, 8)}).Run(t.Context(), samples(t, 20))
	require.ErrorContains(t, err, "val_loss is +Inf after step 5 (epoch 1, batch 0 of the validation data")
	require.ErrorIs(t, err, ErrDiverged)
}

func TestOtherMetricsMayBeNaN(t *testing.T) {
	l := newLinear()
	l.names = []string{"loss", "mae", "nothing"}
	h := complete(t, &Loop{Session: l, Batch: 4, Epochs: 2}, samples(t, 8))
	v, ok := h.Last().Metrics.Get("nothing")
	require.True(t, ok)
	require.True(t, math.IsNaN(v))
}

func TestDataErrors(t *testing.T) {
	lost := errors.New("the disk is gone")
	_, err := (&Loop{Session: newLinear(), Batch: 4, Epochs: 2}).Run(t.Context(), brokenData{samples(t, 20), 3, lost})
	require.ErrorIs(t, err, lost)
	require.ErrorContains(t, err, "batch 3 for epoch 1")

	for _, after := range []int{0, 3} {
		_, err = (&Loop{Session: newLinear(), Batch: 4, Epochs: 2}).Run(t.Context(), brokenData{samples(t, 20), after, nil})
		require.ErrorContains(t, err, fmt.Sprintf("line20 ended after batch %d of a pass; its 20 samples should give 5 "+
			"batches of 4", after))
	}

	_, err = (&Loop{Session: newLinear(), Batch: 4, Epochs: 2,
		Validation: brokenData{samples(t, 20), 3, lost}}).Run(t.Context(), samples(t, 20))
	require.ErrorIs(t, err, lost)
	require.ErrorContains(t, err, "validation of epoch 1, after step 5")
}

func TestLearningRateIsSetWhenItChanges(t *testing.T) {
	l := newLinear()
	h := complete(t, &Loop{Session: l, Batch: 4, Epochs: 4, LearningRate: parsed("step:0.1:0.5:2")}, samples(t, 8))
	require.Equal(t, []float64{0.1, 0.05}, l.rates)
	require.Equal(t, 0.1, *h.Records[1].LearningRate)
	require.Equal(t, 0.05, *h.Records[2].LearningRate)
	require.Nil(t, Record{}.LearningRate)
}

// gauged is a session that reports tensors and GPU memory.
type gauged struct {
	*linear
	known bool
}

func (g gauged) Usage() (*int64, memory.Reading) {
	tensors := int64(7)
	return &tensors, memory.Reading{Bytes: 4096, OK: g.known}
}

func TestRecordHasWhatTheSessionTells(t *testing.T) {
	h := complete(t, &Loop{Session: gauged{newLinear(), true}, Batch: 4, Epochs: 1}, samples(t, 8))
	require.EqualValues(t, 7, *h.Last().LiveTensors)
	require.EqualValues(t, 4096, h.Last().GPU.Bytes)

	h = complete(t, &Loop{Session: gauged{newLinear(), false}, Batch: 4, Epochs: 1}, samples(t, 8))
	require.False(t, h.Last().GPU.OK)
}

type slowData struct {
	data.Dataset
	read func()
}

func (d slowData) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		for b, err := range d.Dataset.Batches(p) {
			if d.read(); !yield(b, err) {
				return
			}
		}
	}
}

// A batch takes 3 seconds and a step takes 1, so the wait is 3/4 of the training time, also in
// the epoch that a resumed run completes.
func TestDataWait(t *testing.T) {
	dir := tempDir(t)
	run := func(stopped int64) (*History, string) {
		var out bytes.Buffer
		c := &clock{at: time.Unix(0, 0)}
		l := newLinear()
		l.onTrain = func(int64) error { c.at = c.at.Add(time.Second); return nil }
		l.onEvaluate = func() error { c.at = c.at.Add(time.Hour); return nil }
		ds := slowData{samples(t, 20), func() { c.at = c.at.Add(3 * time.Second) }}
		loop := Loop{Session: l, Batch: 4, Epochs: 2, Validation: samples(t, 4), Resume: dir, now: c.now}
		loop.Hook(terminal(&out, 160), Checkpoint{Folder: dir}.Hook(),
			stopAt(stopped))
		h := complete(t, &loop, ds)
		return h, out.String()
	}
	h, _ := run(7)
	require.Len(t, h.Records, 1)
	h, out := run(-1)
	require.Len(t, h.Records, 2)
	for _, r := range h.Records {
		require.Equal(t, 0.75, *r.DataWait)
		require.Equal(t, 0.25, r.StepsPerSecond, "without the validation")
		require.Equal(t, 1.0, r.SamplesPerSecond)
		require.Greater(t, r.Seconds, 3600.0)
	}
	require.Regexp(t, `\repoch 2/2  step 10  .*  data_wait 75\.0%  `, out)
	require.Regexp(t, `\repoch 2/2  loss [^\r]*  data_wait 75\.0%`, out, "the bar")
}

// An interrupted run on samples that several workers change gives the numbers of an uninterrupted run, and leaves no
// goroutine.
func TestResumeWithChangedData(t *testing.T) {
	train := func(ahead int) data.Dataset {
		bytes, ys := make([]uint8, 80), make([]float32, 40)
		for i := range bytes {
			bytes[i] = uint8(37 * i)
			ys[i/2] = float32(i % 7)
		}
		ds, err := data.New("bytes", data.Field{Name: "x", Array: data.Array{Shape: []int{40, 2}, Values: bytes}},
			data.Field{Name: "y", Array: data.Array{Shape: []int{40}, Values: ys}})
		require.NoError(t, err)
		ds, err = ds.Scale("x", 0, 1)
		require.NoError(t, err)
		return data.Prefetch(ds.Shuffle(7), ahead)
	}
	whole := newLinear()
	h := complete(t, &Loop{Session: whole, Batch: 3, Epochs: 4}, train(0))
	want := outcomeOf(t, h, whole)
	for _, stopAt := range []int64{1, 13, 20, 41} {
		dir := tempDir(t)
		l := newLinear()
		loop := Loop{Session: l, Batch: 3, Epochs: 4, Resume: dir}
		loop.Hook(Checkpoint{Folder: dir}.Hook())
		_, err := interrupt(t, &loop, train(2), stopAt+1)
		require.ErrorIs(t, err, context.Canceled)
		goleak.VerifyNone(t)
		again := newLinear()
		loop.Session = again
		h := complete(t, &loop, train(3))
		require.Equal(t, want, outcomeOf(t, h, again), "stopped at step %d", stopAt)
	}
}

// told is a dataset that implements fingerprinter with a fixed text.
type told struct {
	data.Dataset
	text string
	ok   bool
	err  error
}

func (d told) Fingerprint() (string, bool, error) { return d.text, d.ok, d.err }

// made is a dataset derived from another; its passes must not be read.
type made struct{ data.Dataset }

func (d made) TrainsLike() data.Dataset { return d.Dataset }

func (made) Batches(data.Pass) iter.Seq2[data.Batch, error] { panic("walked") }

// A dataset may say what identifies it, and one that trains like another is identified by that one.
func TestFingerprintOfDerivedData(t *testing.T) {
	ds := samples(t, 8)
	want, err := fingerprint(t.Context(), ds, 4, func() {})
	require.NoError(t, err)
	for _, c := range []struct {
		ds   data.Dataset
		want string
	}{{made{ds}, want}, {told{ds, "files", true, nil}, "files"}, {told{ds, "", false, nil}, want}} {
		for _, derived := range []data.Dataset{c.ds, data.Prefetch(c.ds, 2)} {
			text, err := fingerprint(t.Context(), derived, 4, func() {})
			require.NoError(t, err)
			require.Equal(t, c.want, text)
		}
	}
	_, err = fingerprint(t.Context(), told{ds, "", false, errors.New("unplugged")}, 4, func() {})
	require.ErrorContains(t, err, "unplugged")
}

// The number of allocations does not depend on the number of steps, also if an execution has several.
func TestStepsDoNotAllocate(t *testing.T) {
	mallocs := func(s Session, n int) uint64 {
		ds := told{samples(t, n), "not read", true, nil}
		loop := Loop{Session: s, Batch: 1, Epochs: 1, LearningRate: Constant(0.01)}
		loop.Hook(Checkpoint{Folder: tempDir(t)}.Hook(), Hook{Name: "count", StepEvery: AnyStep,
			Step: func(context.Context, *State) error { return nil }})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := loop.Run(t.Context(), ds)
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		return after.Mallocs - before.Mallocs
	}
	quiet := newLinear()
	quiet.quiet = true
	stacked := &constant{}
	for _, s := range []Session{quiet, stacked} {
		mallocs(s, 10)
		few, many := mallocs(s, 10), mallocs(s, 5000)
		require.Less(t, many, few+500)
	}
	require.Positive(t, stacked.calls)
}

func TestLoopRunsAgain(t *testing.T) {
	var log []string
	loop := Loop{Session: newLinear(), Batch: 10, Epochs: 2}
	loop.Hook(spy(&log, "a", 0, ""), EarlyStop{Metric: "loss", Patience: 1}.Hook())
	for range 2 {
		h := complete(t, &loop, samples(t, 10))
		require.Len(t, h.Records, 2)
	}
	require.Len(t, log, 12)
}

func TestEvaluate(t *testing.T) {
	l := newLinear()
	m, err := Evaluate(t.Context(), l, samples(t, 10), 4)
	require.NoError(t, err)
	require.Equal(t, []string{"loss", "mae"}, metricNamesOf(m))
	require.Equal(t, 3, l.validated)

	l.valLoss = math.NaN()
	m, err = Evaluate(t.Context(), l, samples(t, 10), 4)
	require.NoError(t, err)
	loss, _ := m.Get("loss")
	require.True(t, math.IsNaN(loss))

	ctx, cancel := context.WithCancel(t.Context())
	l = newLinear()
	l.onEvaluate = func() error { cancel(); return nil }
	_, err = Evaluate(ctx, l, samples(t, 10), 4)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, l.validated)

	l = newLinear()
	l.onEvaluate = func() error { return errors.New("out of luck") }
	_, err = Evaluate(t.Context(), l, samples(t, 10), 4)
	require.ErrorContains(t, err, "batch 0: out of luck")

	var wrong *option.Error
	_, err = Evaluate(t.Context(), nil, samples(t, 10), 4)
	require.ErrorAs(t, err, &wrong)
	_, err = Evaluate(t.Context(), l, nil, 4)
	require.ErrorAs(t, err, &wrong)
	_, err = Evaluate(t.Context(), l, samples(t, 10), 0)
	require.ErrorAs(t, err, &wrong)
	l.noEvaluate = true
	_, err = Evaluate(t.Context(), l, samples(t, 10), 4)
	require.ErrorAs(t, err, &wrong)
}

// warnings returns a logger that writes warnings to b.
func warnings(b *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
