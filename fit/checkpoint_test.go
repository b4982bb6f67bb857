package fit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/files"
	"steadyfit/internal/testkit"
	"steadyfit/option"
)

// fullLoop returns a loop that uses everything that a checkpoint stores.
func fullLoop(t testing.TB, l *linear, dir string, c Checkpoint) Loop {
	loop := Loop{
		Session: l, Batch: 4, Epochs: 4, Validation: samples(t, 10), ValidationEvery: 2,
		LearningRate: parsed("warmup:3:0.05"), StepsPerEpoch: 4,
	}
	c.Folder, c.Keep, c.EverySteps, c.EveryEpochs, c.Best = dir, 2, 3, 1, "val_loss"
	loop.Hook(
		ReduceOnPlateau{Metric: "loss", Patience: 1, Factor: 0.5}.Hook(),
		EarlyStop{Metric: "loss", Patience: 3}.Hook(),
		HistoryFile(filepath.Join(dir, "run.jsonl")),
		c.Hook(),
	)
	return loop
}

func trainingData(t testing.TB) data.Dataset { return samples(t, 22).Shuffle(9) } // 6 batches of 4

// logged returns the content of the history file without times and memory.
func logged(t testing.TB, dir string) string {
	records, err := readHistory(filepath.Join(dir, "run.jsonl"))
	require.NoError(t, err)
	return outcomeOf(t, &History{Records: records}, newLinear()).History
}

// wanted returns the result of fullLoop without an interruption.
func wanted(t testing.TB) outcome {
	dir := tempDir(t)
	l := newLinear()
	loop := fullLoop(t, l, dir, Checkpoint{})
	h := complete(t, &loop, trainingData(t))
	require.Len(t, h.Records, 4)
	o := outcomeOf(t, h, l)
	require.Equal(t, o.History, logged(t, dir))
	return o
}

// requireResumes completes the run of a folder and compares its result.
func requireResumes(t testing.TB, dir string, want outcome) {
	l := newLinear()
	loop := fullLoop(t, l, dir, Checkpoint{})
	loop.Resume = dir
	h := complete(t, &loop, trainingData(t))
	require.Equal(t, want, outcomeOf(t, h, l))
	require.Equal(t, want.History, logged(t, dir))
	for _, name := range names(t, dir) {
		require.False(t, strings.HasPrefix(name, "."), "%s is left over", name)
	}
	found := listed(t, dir)
	require.LessOrEqual(t, len(found), 3)
	for _, c := range found {
		require.NoError(t, c.Err)
	}
}

// A run is cancelled during each of its steps and validations, and resumed.
func TestResumeIsExactFromEverywhere(t *testing.T) {
	want := wanted(t)
	for stop := range int64(16) {
		dir := tempDir(t)
		ctx, cancel := context.WithCancel(t.Context())
		l := eachWay[stop%2]()
		l.onTrain = before(stop, cancel)
		loop := fullLoop(t, l, dir, Checkpoint{})
		_, err := loop.Run(ctx, trainingData(t))
		if stop == 15 {
			// No validation follows the steps of the last epoch's third quarter. A validation
			// follows the last step of all, and sees the cancelled context.
			require.ErrorIs(t, err, context.Canceled)
		}
		cancel()
		requireResumes(t, dir, want)
	}
	for stop := range 6 {
		dir := tempDir(t)
		ctx, cancel := context.WithCancel(t.Context())
		l := eachWay[stop%2]()
		l.onEvaluate = func() error {
			if l.validated == stop+1 {
				cancel()
			}
			return nil
		}
		loop := fullLoop(t, l, dir, Checkpoint{})
		// After the last evaluation, the run ends with or without a cancelled context.
		_, err := loop.Run(ctx, trainingData(t))
		if stop < 5 {
			require.ErrorIs(t, err, context.Canceled)
		}
		cancel()
		requireResumes(t, dir, want)
	}
}

var errCrash = errors.New("crash")

// The disk fails, or the process dies, before each change to files that the checkpoints make. Earlier checkpoints stay,
// and the next run resumes.
func TestFailureAtEveryWrite(t *testing.T) {
	want := wanted(t)
	for at := 0; ; at++ {
		dir := tempDir(t)
		f := &testkit.DiskFailure{At: at, Err: syscall.EDQUOT, All: true}
		loop := fullLoop(t, eachWay[at%2](), dir, Checkpoint{disk: files.Disk{Before: f.Before}})
		_, err := loop.Run(t.Context(), trainingData(t))
		if at >= f.Count {
			require.NoError(t, err)
			require.Greater(t, at, 100, "the run changes files often")
			return
		}
		require.ErrorIs(t, err, syscall.EDQUOT)
		var hook *HookError
		require.ErrorAs(t, err, &hook)
		require.Equal(t, "checkpoint", hook.Hook)
		var failed *checkpoint.Error
		if errors.As(err, &failed) {
			require.ErrorContains(t, failed, "free some space")
			if failed.Good != "" {
				_, err := verify(failed.Good)
				require.NoError(t, err)
			}
		}
		requireResumes(t, dir, want)
	}
}

// A run replaces a checkpoint of the same step, which an interrupted validation left, and
// crashes before each of its changes to files.
func TestCrashWhileReplacing(t *testing.T) {
	want := wanted(t)
	interrupted := tempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	l := newLinear()
	l.onEvaluate = func() error { cancel(); return nil }
	loop := fullLoop(t, l, interrupted, Checkpoint{})
	_, err := loop.Run(ctx, trainingData(t))
	require.ErrorIs(t, err, context.Canceled)
	require.Contains(t, names(t, interrupted), "ckpt-8")

	for at := range 40 {
		dir := copyDir(t, interrupted)
		crash := &testkit.DiskFailure{At: at, Err: errCrash, All: true}
		loop := fullLoop(t, eachWay[at%2](), dir, Checkpoint{disk: files.Disk{Before: crash.Before}})
		loop.Resume = dir
		_, err := loop.Run(t.Context(), trainingData(t))
		require.ErrorIs(t, err, errCrash)
		found := listed(t, dir)
		whole := 0
		for _, c := range found {
			if c.Err == nil {
				whole++
			}
		}
		require.Positive(t, whole)
		requireResumes(t, dir, want)
	}
}

func TestCrashWhileTheModelIsSaved(t *testing.T) {
	want := wanted(t)
	for at := range 12 {
		dir := tempDir(t)
		l := eachWay[at%2]()
		saves := 0
		l.onSave = func(prefix string) error {
			if saves++; saves <= at/2 {
				return nil
			}
			if err := os.WriteFile(prefix+".data-00000-of-00001", []byte("half"), 0o666); err != nil {
				return err
			}
			return errCrash
		}
		loop := fullLoop(t, l, dir, Checkpoint{})
		_, err := loop.Run(t.Context(), trainingData(t))
		require.ErrorIs(t, err, errCrash)
		require.ErrorContains(t, err, "saving the model")
		requireResumes(t, dir, want)
	}
}

// checkpointed trains 3 epochs of 2 steps, with a checkpoint after each epoch, and returns the
// folder and the loop. changes may change the loop before.
func checkpointed(t testing.TB, c Checkpoint, changes ...func(*Loop, *linear)) (dir string, loop Loop) {
	dir = tempDir(t)
	l := newLinear()
	loop = Loop{Session: l, Batch: 4, Epochs: 3}
	for _, change := range changes {
		if change != nil {
			change(&loop, l)
		}
	}
	c.Folder = dir
	h := complete(t, &loop, samples(t, 8), c.Hook())
	require.Equal(t, filepath.Join(dir, "ckpt-6"), h.Checkpoint)
	loop.Resume = dir
	return dir, loop
}

// A run skips a damaged checkpoint, and writes it again. TestEveryFileTornInEveryWay has the other kinds of damage.
func TestTornCheckpointsAreSkipped(t *testing.T) {
	for _, c := range []struct{ name, from, to, words string }{
		{"variables.index", "", "x", "variables.index has"},
		{"state.json", `"epoch": 3`, `"epoch": 2`, "state.json: it has the checksum"},
		{"state.json", "checkpoint 1", "checkpoint 3",
			`its format is "steadyfit checkpoint 3", expected "steadyfit checkpoint 1"`},
	} {
		t.Run(c.words, func(t *testing.T) {
			dir, loop := checkpointed(t, Checkpoint{})
			path := filepath.Join(dir, "ckpt-6", c.name)
			content := contentOf(t, path)
			require.NoError(t, os.WriteFile(path, bytes.Replace(content, []byte(c.from), []byte(c.to), 1), 0o666))
			found := listed(t, dir)
			require.Len(t, found, 3)
			require.ErrorIs(t, found[0].Err, checkpoint.ErrTorn)
			require.ErrorContains(t, found[0].Err, c.words)
			require.NoError(t, found[1].Err)

			var log bytes.Buffer
			loop.Log = warnings(&log)
			h := complete(t, &loop, samples(t, 8))
			require.Equal(t, filepath.Join(dir, "ckpt-4"), h.ResumedFrom)
			require.Len(t, h.Records, 3)
			require.Contains(t, log.String(), "ckpt-6")
			require.Contains(t, log.String(), "skipping a checkpoint")
			found = listed(t, dir)
			require.NoError(t, found[0].Err, "ckpt-6 was written again")
		})
	}
}

func TestOnlyDamagedCheckpointsIsAnError(t *testing.T) {
	dir, loop := checkpointed(t, Checkpoint{Keep: 1})
	for _, name := range names(t, dir) {
		require.NoError(t, os.Truncate(filepath.Join(dir, name, "state.json"), 10))
	}
	_, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorIs(t, err, checkpoint.ErrTorn)
	require.ErrorContains(t, err, "remove them to start a new training")
	require.ErrorContains(t, err, "ckpt-6")
}

func TestResumeFromNothingBeginsAnew(t *testing.T) {
	for _, dir := range []string{tempDir(t), filepath.Join(tempDir(t), "not", "there")} {
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 1, Resume: dir}
		h := complete(t, &loop, samples(t, 8), Checkpoint{Folder: dir}.Hook())
		require.Empty(t, h.ResumedFrom)
		require.Len(t, h.Records, 1)
	}
}

func TestUsedFolderIsRefused(t *testing.T) {
	dir, loop := checkpointed(t, Checkpoint{})
	before := names(t, dir)
	loop.Resume = ""
	_, err := loop.Run(t.Context(), samples(t, 8))
	var wrong *option.Error
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, "earlier training (the newest is "+before[len(before)-1]+")")
	require.ErrorContains(t, err, "Loop.Resume")
	require.Equal(t, before, names(t, dir))

	// CheckUnused returns the same error before anything is opened.
	early := checkpoint.CheckUnused(dir)
	require.ErrorAs(t, early, &wrong)
	require.ErrorContains(t, err, early.Error())
	require.Equal(t, before, names(t, dir))
	for _, good := range []string{tempDir(t), filepath.Join(dir, "not", "there")} {
		require.NoError(t, checkpoint.CheckUnused(good))
	}
	lock, err := checkpoint.Acquire(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.ErrorIs(t, checkpoint.CheckUnused(dir), checkpoint.ErrLocked, "whoever is at it is not to be resumed")
	require.NoError(t, lock.Release())

	// A run that resumes from one folder must not write to another one that has checkpoints.
	other, _ := checkpointed(t, Checkpoint{})
	loop.Resume, loop.Epochs = other, 4
	_, err = loop.Run(t.Context(), samples(t, 8))
	require.ErrorAs(t, err, &wrong)

	// The run may write to an empty folder.
	empty := tempDir(t)
	again := Loop{Session: newLinear(), Batch: 4, Epochs: 4, Resume: dir}
	complete(t, &again, samples(t, 8), Checkpoint{Folder: empty}.Hook())
	require.Equal(t, []string{"ckpt-8"}, names(t, empty))
}

func TestResumingACompleteRunDoesNothing(t *testing.T) {
	dir, loop := checkpointed(t, Checkpoint{})
	l := newLinear()
	loop.Session = l
	before := names(t, dir)
	h := complete(t, &loop, samples(t, 8))
	require.Contains(t, h.Stopped, "already complete")
	require.Contains(t, h.Stopped, "a larger number of epochs")
	require.Len(t, h.Records, 3)
	require.Empty(t, l.steps)
	require.Equal(t, before, names(t, dir))

	loop.Epochs = 5
	h = complete(t, &loop, samples(t, 8))
	whole := newLinear()
	want := complete(t, &Loop{Session: whole, Batch: 4, Epochs: 5}, samples(t, 8))
	require.Equal(t, outcomeOf(t, want, whole), outcomeOf(t, h, l))
}

func TestResumingAnEarlyStop(t *testing.T) {
	dir := tempDir(t)
	run := func(patience int) (*History, *linear) {
		l := scripted([]float64{5, 4, 6, 7, 8, 9, 9})
		loop := Loop{Session: l, Batch: 4, Epochs: 7, Resume: dir}
		loop.Hook(Checkpoint{Folder: dir, Best: "loss", RestoreBest: true}.Hook(),
			EarlyStop{Metric: "loss", Patience: patience}.Hook())
		h := complete(t, &loop, samples(t, 4))
		return h, l
	}
	first, best := run(2)
	require.Len(t, first.Records, 4)
	again, restored := run(2)
	require.Equal(t, first.Stopped, again.Stopped)
	require.Len(t, again.Records, 4)
	require.Equal(t, best.state(), restored.state(), "the best weights come from the checkpoint")
	longer, restored := run(4)
	require.Len(t, longer.Records, 6)
	require.Equal(t, best.state(), restored.state())
}

func TestKeep(t *testing.T) {
	for _, c := range []struct {
		checkpoint Checkpoint
		want       []string
	}{
		{Checkpoint{}, []string{"ckpt-2", "ckpt-4", "ckpt-6"}},
		{Checkpoint{Keep: 2}, []string{"ckpt-4", "ckpt-6"}},
		{Checkpoint{Keep: 1}, []string{"ckpt-6"}},
		{Checkpoint{Keep: -1, EverySteps: 1}, []string{"ckpt-1", "ckpt-2", "ckpt-3", "ckpt-4", "ckpt-5", "ckpt-6"}},
		{Checkpoint{EveryEpochs: 2}, []string{"ckpt-4", "ckpt-6"}},
		{Checkpoint{EverySteps: 4}, []string{"ckpt-4", "ckpt-6"}},
		{Checkpoint{EverySteps: 5, EveryEpochs: 2}, []string{"ckpt-4", "ckpt-5", "ckpt-6"}},
	} {
		dir, _ := checkpointed(t, c.checkpoint)
		require.Equal(t, c.want, names(t, dir))
	}
	for _, bad := range []Checkpoint{{EverySteps: -1}, {EveryEpochs: -1}} {
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 1}
		bad.Folder = tempDir(t)
		loop.Hook(bad.Hook())
		_, err := loop.Run(t.Context(), samples(t, 4))
		var wrong *option.Error
		require.ErrorAs(t, err, &wrong)
	}
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 1}
	loop.Hook(Checkpoint{Folder: ""}.Hook())
	_, err := loop.Run(t.Context(), samples(t, 4))
	require.ErrorContains(t, err, "no folder")
}

func TestBestIsKept(t *testing.T) {
	dir := tempDir(t)
	l := scripted([]float64{5, 3, 4, 2, 6, 7, 8})
	loop := Loop{Session: l, Batch: 4, Epochs: 3}
	loop.Hook(Checkpoint{Folder: dir, Keep: 1, EveryEpochs: 3, Best: "loss"}.Hook())
	pointer := func() checkpoint.Best {
		var b checkpoint.Best
		text := contentOf(t, filepath.Join(dir, bestFile))
		require.NoError(t, json.Unmarshal(text, &b))
		return b
	}
	complete(t, &loop, samples(t, 4))
	require.Equal(t, checkpoint.Best{Checkpoint: "ckpt-2", Step: 2, Metric: "loss", Value: 3}, pointer())

	loop.Resume, loop.Epochs = dir, 7
	complete(t, &loop, samples(t, 4))
	require.Equal(t, checkpoint.Best{Checkpoint: "ckpt-4", Step: 4, Metric: "loss", Value: 2}, pointer())
	require.Equal(t, []string{bestFile, "ckpt-4", "ckpt-7"}, names(t, dir))
	found := listed(t, dir)
	require.True(t, found[1].Best)
	require.False(t, found[0].Best)
	require.Equal(t, 4, found[1].Epochs)
	require.Equal(t, "linear", found[1].Identity["session.model"])
	require.NoError(t, newLinear().Restore(t.Context(), found[1].Variables))
}

func TestFailedStepWritesNoCheckpoint(t *testing.T) {
	dir := tempDir(t)
	l := newLinear()
	l.onTrain = failing(3, errors.New("out of luck"))
	loop := Loop{Session: l, Batch: 4, Epochs: 9}
	loop.Hook(Checkpoint{Folder: dir}.Hook())
	_, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorContains(t, err, "out of luck")
	require.Equal(t, []string{"ckpt-2"}, names(t, dir))

	// After an error of the data, the checkpoint has the state of the last step.
	dir = tempDir(t)
	loop = Loop{Session: newLinear(), Batch: 4, Epochs: 9}
	loop.Hook(Checkpoint{Folder: dir}.Hook())
	_, err = loop.Run(t.Context(), lateBreak{samples(t, 20), brokenData{samples(t, 20), 3, errors.New("out of luck")}})
	require.ErrorContains(t, err, "out of luck")
	require.Equal(t, []string{"ckpt-5", "ckpt-8"}, names(t, dir))
}

// lateBreak is a dataset whose passes fail except the first.
type lateBreak struct {
	data.Dataset
	later data.Dataset
}

func (d lateBreak) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	if p.Epoch > 0 {
		return d.later.Batches(p)
	}
	return d.Dataset.Batches(p)
}

func TestHooksKeepState(t *testing.T) {
	dir := tempDir(t)
	var loaded []string
	counter := func() Hook {
		count := 0
		return Hook{
			Name: "counter / 1",
			Load: func(state json.RawMessage) error {
				if count = 0; state == nil {
					return nil
				}
				loaded = append(loaded, string(state))
				return json.Unmarshal(state, &count)
			},
			Save: func() (json.RawMessage, error) { return json.RawMessage(fmt.Sprint(count)), nil },
			Step: func(context.Context, *State) error { count++; return nil },
		}
	}
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2}
	complete(t, &loop, samples(t, 8), counter(), Checkpoint{Folder: dir}.Hook())
	require.Empty(t, loaded)

	again := Loop{Session: newLinear(), Batch: 4, Epochs: 3, Resume: dir}
	complete(t, &again, samples(t, 8), counter(), Checkpoint{Folder: dir}.Hook())
	require.Equal(t, []string{"4"}, loaded)

	// A run without the hook warns that the state of the hook is not used.
	var log bytes.Buffer
	without := Loop{Session: newLinear(), Batch: 4, Epochs: 4, Resume: dir, Log: warnings(&log)}
	complete(t, &without, samples(t, 8))
	require.Contains(t, log.String(), "counter / 1")
}

func TestLoadErrorsNameTheHook(t *testing.T) {
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2}
	loop.Hook(Hook{Name: "forgetful", Load: func(json.RawMessage) error { return errors.New("what was it") }})
	_, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorContains(t, err, "forgetful at load: what was it")
}

func TestSessionThatSavesNothing(t *testing.T) {
	loop := Loop{Session: forgetful{newLinear()}, Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint{Folder: tempDir(t)}.Hook())
	_, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorContains(t, err, "the session wrote no file variables")
}

type forgetful struct{ *linear }

func (forgetful) Save(context.Context, string) error { return nil }

func fieldsOf(t testing.TB, ds data.Dataset) (x, y data.Field) {
	for b, err := range ds.Batches(data.Pass{Batch: ds.Len()}) {
		require.NoError(t, err)
		x, y = b.Fields[0], b.Fields[1]
		x.Values, y.Values = slices.Clone(x.Values.([]float32)), slices.Clone(y.Values.([]float32))
	}
	return x, y
}

func table(t testing.TB, name string, fields ...data.Field) *data.InMemory {
	ds, err := data.New(name, fields...)
	require.NoError(t, err)
	return ds
}

// edited returns a dataset with the same name and samples, except for the target of one sample.
func edited(t testing.TB, ds data.Dataset, sample int) *data.InMemory {
	x, y := fieldsOf(t, ds)
	y.Values.([]float32)[sample]++
	return table(t, ds.Name(), x, y)
}

// A run resumes although its files were moved, or their path is spelled differently.
func TestResumeIgnoresNames(t *testing.T) {
	renamed := func(n int) data.Dataset {
		x, y := fieldsOf(t, samples(t, n))
		return table(t, "elsewhere", x, y)
	}
	dir := tempDir(t)
	for i, pair := range [][2]data.Dataset{{samples(t, 8), samples(t, 6)}, {renamed(8), renamed(6)}} {
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2 + i, Validation: pair[1], Resume: dir}
		h := complete(t, &loop, pair[0], Checkpoint{Folder: dir}.Hook())
		require.Equal(t, i == 1, h.ResumedFrom != "")
	}
}

func TestDataIsIdentifiedOnceIfEver(t *testing.T) {
	dir := tempDir(t)
	for _, c := range []struct {
		resume string
		hooks  []Hook
		epochs int
		want   int // number of passes
	}{
		{"", nil, 3, 3},
		{dir, nil, 3, 3}, // there is nothing to resume from
		{"", []Hook{Checkpoint{Folder: dir, EverySteps: 1}.Hook()}, 3, 1 + 3},
		{dir, []Hook{Checkpoint{Folder: dir, EverySteps: 1}.Hook()}, 5, 1 + 2},
		{dir, nil, 6, 1 + 1},
	} {
		var train, validation []data.Pass
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: c.epochs, Resume: c.resume,
			Validation: passes{samples(t, 4), &validation}}
		loop.Hook(c.hooks...)
		complete(t, &loop, passes{samples(t, 8), &train})
		require.Len(t, train, c.want)
		require.Len(t, validation, c.want)
	}
}

func TestIdentifyingReturnsErrors(t *testing.T) {
	lost := errors.New("the disk is gone")
	for _, c := range []struct {
		train, validation data.Dataset
		want              string
	}{
		{brokenData{samples(t, 20), 3, lost}, nil, "identifying the data: the disk is gone"},
		{brokenData{samples(t, 20), 3, nil}, nil, "line20 gave 12 samples in a pass, but should have 20"},
		{samples(t, 20), brokenData{samples(t, 20), 3, lost}, "identifying the validation data: the disk is gone"},
	} {
		l := newLinear()
		loop := Loop{Session: l, Batch: 4, Epochs: 1, Validation: c.validation}
		loop.Hook(Checkpoint{Folder: tempDir(t)}.Hook())
		_, err := loop.Run(t.Context(), c.train)
		require.ErrorContains(t, err, c.want)
		require.Empty(t, l.steps)
	}

	// A resumed run does the same, and leaves the checkpoint unchanged.
	dir, loop := checkpointed(t, Checkpoint{})
	before := names(t, dir)
	_, err := loop.Run(t.Context(), brokenData{samples(t, 8), 1, lost})
	require.ErrorIs(t, err, lost)
	require.ErrorContains(t, err, "resuming from")
	require.Equal(t, before, names(t, dir))

	// Cancelling the context interrupts the pass.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = fingerprint(ctx, samples(t, 8), 4, func() {})
	require.ErrorIs(t, err, context.Canceled)
}

func TestFingerprintTellsData(t *testing.T) {
	text := func(words ...string) data.Dataset {
		return table(t, "words", data.Field{Name: "x", Array: data.Array{Shape: []int{len(words)}, Values: words}})
	}
	of := func(name string, values any, shape ...int) data.Dataset {
		return table(t, "d", data.Field{Name: name, Array: data.Array{Shape: shape, Values: values}})
	}
	sumOf := func(ds data.Dataset, batch int) string {
		sum, err := fingerprint(t.Context(), ds, batch, func() {})
		require.NoError(t, err)
		return sum
	}
	seen := make(map[string]int)
	for i, ds := range []data.Dataset{
		text("a", "bc"), text("ab", "c"), text("bc", "a"),
		of("x", []int32{1, 2, 3, 4}, 2, 2), of("x", []int32{1, 2, 3, 4}, 2, 2, 1), of("x", []uint32{1, 2, 3, 4}, 2, 2),
		of("y", []int32{1, 2, 3, 4}, 2, 2), of("x", []int32{1, 2, 4, 3}, 2, 2), of("x", []bool{true, false}, 2),
		of("x", []bool{true, true}, 2),
		samples(t, 30), samples(t, 30).Shuffle(1), samples(t, 30).Shuffle(2), samples(t, 31), edited(t, samples(t, 30), 29),
		of("x", make([]float64, 40<<10), 2, 20<<10),
	} {
		sum := sumOf(ds, 2)
		require.NotContains(t, seen, sum, "datasets %d and %d", i, seen[sum])
		seen[sum] = i
		require.Equal(t, sum, sumOf(ds, 2))
		require.Equal(t, sum, sumOf(ds, 7), "any batch size gives the same")
		require.Equal(t, sum, sumOf(data.Prefetch(ds, 2), 3))
	}

	// Values of types that no reader returns are an error, too.
	for _, values := range []any{1, []int{1}, []any{1}} {
		require.Error(t, (&fieldSummer{hash: sha256.New()}).add(data.Field{Name: "x",
			Array: data.Array{Shape: []int{1}, Values: values}}))
	}
	require.Error(t, (&fieldSummer{hash: sha256.New()}).add(data.Field{Name: "x", Array: data.Array{Values: []int8{1}}}))
}
