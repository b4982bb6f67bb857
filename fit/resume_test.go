package fit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/checkpoint"
)

// tearable returns a loop and its folder, whose newest checkpoint has every kind of file.
func tearable(t testing.TB) (dir string, loop Loop) {
	dir = tempDir(t)
	loop = Loop{Session: newLinear(), Batch: 4, Epochs: 3, Resume: dir}
	complete(t, &loop, samples(t, 8), Checkpoint{Folder: dir}.Hook(), EarlyStop{Metric: "loss", Patience: 9}.Hook())
	return dir, loop
}

// Each file of a checkpoint is damaged as by a power failure or a bad disk. The run resumes
// from the checkpoint before it, and the message names the file.
func TestEveryFileTornInEveryWay(t *testing.T) {
	tears := map[string]func([]byte) []byte{
		"empty":      func([]byte) []byte { return nil },
		"first byte": func(b []byte) []byte { return b[:1] },
		"half":       func(b []byte) []byte { return b[:len(b)/2] },
		"last byte":  func(b []byte) []byte { return b[:len(b)-1] },
		"zeros":      func(b []byte) []byte { return make([]byte, len(b)) },
		"zero tail": func(b []byte) []byte { // a file with its size but without its last blocks
			clear(b[len(b)/2:])
			return b
		},
		"zero head":    func(b []byte) []byte { clear(b[:len(b)/2]); return b },
		"longer":       func(b []byte) []byte { return append(b, 0) },
		"bit at start": func(b []byte) []byte { b[0] ^= 0x80; return b },
		"bit in it":    func(b []byte) []byte { b[len(b)/3] ^= 0x10; return b },
		"bit at end":   func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"gone":         nil,
	}
	whole, _ := tearable(t)
	files := 0
	require.NoError(t, filepath.WalkDir(filepath.Join(whole, "ckpt-6"), func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		name, err := filepath.Rel(whole, path)
		require.NoError(t, err)
		for kind, tear := range tears {
			content := contentOf(t, path)
			if name == filepath.Join("ckpt-6", stateFile) && kind == "last byte" {
				continue // a line break does not matter
			}
			dir := copyDir(t, whole)
			if tear == nil {
				require.NoError(t, os.Remove(filepath.Join(dir, name)))
			} else {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), tear(content), 0o666))
			}
			found := listed(t, dir)
			require.ErrorIs(t, found[0].Err, checkpoint.ErrTorn, "%s: %s", name, kind)
			require.ErrorContains(t, found[0].Err, filepath.Base(name), kind)
			require.NoError(t, found[1].Err)

			var log bytes.Buffer
			got, err := checkpoint.Resume[savedState](dir, warnings(&log))
			require.NoError(t, err)
			require.Equal(t, filepath.Join(dir, "ckpt-4"), got.Path)
			require.NoError(t, got.Lock.Release())
			require.Contains(t, log.String(), filepath.Base(name))
		}
		return nil
	}))
	require.Equal(t, 4, files)
}

// A file that cannot be read may be intact. The run neither resumes from an older checkpoint
// nor reports damage.
func TestUnreadIsNotTorn(t *testing.T) {
	// Nobody can open a link to itself, not even the superuser.
	for _, name := range []string{stateFile, "variables.index", checkpoint.History} {
		for _, all := range []bool{false, true} {
			dir, loop := checkpointed(t, Checkpoint{})
			ckpts := []string{"ckpt-6"}
			if all {
				ckpts = names(t, dir)
			}
			for _, ckpt := range ckpts {
				path := filepath.Join(dir, ckpt, name)
				require.NoError(t, os.Remove(path))
				require.NoError(t, os.Symlink(name, path))
			}
			found := listed(t, dir)
			require.ErrorIs(t, found[0].Err, syscall.ELOOP)
			require.NotErrorIs(t, found[0].Err, checkpoint.ErrTorn)

			before := names(t, dir)
			l := newLinear()
			loop.Session, loop.Epochs = l, 5
			_, err := loop.Run(t.Context(), samples(t, 8))
			require.ErrorIs(t, err, syscall.ELOOP)
			require.NotErrorIs(t, err, checkpoint.ErrTorn)
			require.ErrorContains(t, err, "cannot resume from "+filepath.Join(dir, "ckpt-6"))
			require.ErrorContains(t, err, "move it out of "+dir)
			require.NotContains(t, err.Error(), "damaged")
			require.Empty(t, l.steps)
			require.Equal(t, before, names(t, dir))
		}
	}

	// An older checkpoint that cannot be read stays, and causes a warning.
	dir, loop := checkpointed(t, Checkpoint{})
	path := filepath.Join(dir, "ckpt-2", stateFile)
	require.NoError(t, errors.Join(os.Remove(path), os.Symlink(stateFile, path)))
	var log bytes.Buffer
	loop.Epochs, loop.Log = 5, warnings(&log)
	complete(t, &loop, samples(t, 8))
	require.Contains(t, log.String(), "a checkpoint that cannot be used is ignored")
	require.Contains(t, names(t, dir), "ckpt-2")
}

// renamed is a session with another model in its Identity, whose variables may fit.
type renamed struct {
	*linear
	fits error
}

func (renamed) Identity() map[string]string { return map[string]string{"model": "other", "seed": "1"} }

type checkedModel struct{ renamed }

func (c checkedModel) CheckVariables(prefix string) error {
	if _, err := os.Stat(prefix + ".index"); err != nil {
		return err
	}
	return c.fits
}

// A run with other data, options or metrics than those of the checkpoint is an error that lists the differences, unless
// ResumeAnyway is set.
func TestResumeDespiteDifferences(t *testing.T) {
	with := func(ds data.Dataset) func(*Loop) data.Dataset { return func(*Loop) data.Dataset { return ds } }
	set := func(change func(l *Loop, s *linear)) func(*Loop) data.Dataset {
		return func(l *Loop) data.Dataset {
			change(l, l.Session.(*linear))
			return samples(t, 8)
		}
	}
	rated := func(rate schedule, text, precision string) func(*Loop, *linear) {
		return func(l *Loop, s *linear) { l.LearningRate, l.LearningRateText, s.precision = rate, text, precision }
	}
	noted, unrated := rated(Constant(0.05), "0.05", "float32"), rated(nil, "", "float32")
	validated := func(ds data.Dataset) func(*Loop, *linear) { return func(l *Loop, _ *linear) { l.Validation = ds } }
	type difference struct {
		keys   []string
		change func(*Loop) data.Dataset
		before func(*Loop, *linear) // changes the run that wrote the checkpoint, if it is not nil
		says   string
	}
	for _, c := range []difference{
		{keys: []string{"batch", "steps_per_epoch"}, change: set(func(l *Loop, _ *linear) { l.Batch = 2 })},
		{keys: []string{"steps_per_epoch"}, change: set(func(l *Loop, _ *linear) { l.StepsPerEpoch = 1 })},
		{keys: []string{"drop_remainder"}, change: set(func(l *Loop, _ *linear) { l.DropRemainder = true })},
		{keys: []string{"session.seed"}, change: set(func(_ *Loop, s *linear) { s.seed = "2" })},
		{keys: []string{"validation"}, change: set(func(l *Loop, _ *linear) { l.Validation = samples(t, 4) })},
		{keys: []string{"data"}, change: with(samples(t, 8).Shuffle(1))},
		{keys: []string{"data"}, change: with(samples(t, 7))},
		{keys: []string{"data"}, change: with(edited(t, samples(t, 8), 7))},
		{keys: []string{"data", "data.fields"}, change: func(*Loop) data.Dataset {
			x, y := fieldsOf(t, samples(t, 8))
			return table(t, "line8", x, y, data.Field{Name: "z", Array: y.Array})
		}},
		{keys: []string{"data", "steps_per_epoch"}, change: with(samples(t, 24))},
		{keys: []string{"data", "steps_per_epoch"}, change: with(samples(t, 4))},
		{keys: []string{"metrics"}, change: set(func(_ *Loop, s *linear) { s.names = []string{"loss", "error"} })},
		{keys: []string{"metrics"}, change: set(func(_ *Loop, s *linear) { s.names = []string{"loss"} })},
		{keys: []string{"session.model"}, change: set(func(l *Loop, s *linear) { l.Session = checkedModel{renamed{s, nil}} })},
		{[]string{"session.precision"}, set(rated(Constant(0.05), "0.05", "bfloat16")), noted,
			"session.precision: float32 in the checkpoint, bfloat16 now"},
		{[]string{"learning_rate"}, set(rated(Constant(0.01), "step:0.05:0.5:2", "float32")), noted,
			"learning_rate: 0.05 in the checkpoint, step:0.05:0.5:2 now"},
		{[]string{"learning_rate"}, set(unrated), noted, "learning_rate: 0.05 in the checkpoint, that of the model now"},
		{[]string{"learning_rate"}, set(noted), unrated, "learning_rate: that of the model in the checkpoint, 0.05 now"},
		{[]string{"validation"}, set(validated(edited(t, samples(t, 6), 5))), validated(samples(t, 6)),
			"split into training and validation data differ"},
	} {
		dir, loop := checkpointed(t, Checkpoint{}, c.before)
		l := newLinear()
		loop.Session, loop.Epochs = l, 5
		ds := c.change(&loop)
		before := l.state()
		_, err := loop.Run(t.Context(), ds)
		var mismatch *mismatchError
		require.ErrorAs(t, err, &mismatch, c.keys)
		var keys []string
		for _, d := range mismatch.differences {
			keys = append(keys, d.key)
			require.NotEqual(t, d.checkpoint, d.run)
			require.ErrorContains(t, err, d.key+": ")
		}
		require.Equal(t, c.keys, keys)
		require.Equal(t, before, l.state(), "nothing was restored")
		require.ErrorContains(t, err, "or set Loop.ResumeAnyway")
		require.ErrorContains(t, err, c.says)

		var log bytes.Buffer
		loop.ResumeAnyway, loop.Log = true, warnings(&log)
		h, err := loop.Run(t.Context(), ds)
		require.NoError(t, err, c.keys)
		require.Equal(t, filepath.Join(dir, "ckpt-6"), h.ResumedFrom)
		require.Len(t, h.Records, 5)
		require.Equal(t, []string{forcedEvent}, h.Records[3].Events)
		require.Empty(t, h.Records[4].Events)
		for _, key := range c.keys {
			require.Contains(t, log.String(), "difference="+key+" ")
		}
		require.Equal(t, len(c.keys), strings.Count(log.String(), "resuming despite a difference"))

		// After ResumeAnyway, checkpoints have the identity of the present run, so the next resume
		// needs no ResumeAnyway.
		loop.ResumeAnyway, loop.Epochs = false, 6
		complete(t, &loop, ds)
	}
}

// A run whose schedule is unknown matches.
func TestUnknownScheduleMatches(t *testing.T) {
	for _, text := range []string{"0.05", ""} {
		_, loop := checkpointed(t, Checkpoint{}, func(l *Loop, _ *linear) {
			l.LearningRate, l.LearningRateText = Constant(0.05), "0.05"
		})
		loop.Epochs, loop.LearningRateText = 5, text
		complete(t, &loop, samples(t, 8))
	}
}

// With other data, an interrupted epoch continues with the next pass.
func TestResumeAnywayWithinAnEpoch(t *testing.T) {
	interrupted := func() (string, Loop) {
		dir := tempDir(t)
		l := newLinear()
		loop := Loop{Session: l, Batch: 4, Epochs: 2, Resume: dir}
		complete(t, &loop, samples(t, 16), Checkpoint{Folder: dir}.Hook(), stopAt(3))
		return dir, Loop{Session: newLinear(), Batch: 4, Epochs: 2, Resume: dir, ResumeAnyway: true}
	}
	for _, n := range []int{8, 16, 40} { // fewer batches than the position, as many as before, more
		_, loop := interrupted()
		loop.StepsPerEpoch = min(4, n/4)
		h := complete(t, &loop, edited(t, samples(t, n), 0))
		require.Len(t, h.Records, 2)
	}
	_, loop := interrupted()
	loop.Session.(*linear).names = []string{"loss", "error"}
	complete(t, &loop, samples(t, 16))
}

func TestOtherModelIsNotForced(t *testing.T) {
	for _, c := range []struct {
		session Session
		words   string
	}{
		{renamed{newLinear(), nil}, "session cannot compare"},
		{checkedModel{renamed{newLinear(), errors.New("kernel is 3x4, not 3x5")}}, "kernel is 3x4, not 3x5"},
	} {
		dir, loop := checkpointed(t, Checkpoint{})
		before := names(t, dir)
		loop.Session, loop.ResumeAnyway, loop.Epochs = c.session, true, 5
		_, err := loop.Run(t.Context(), samples(t, 8))
		require.ErrorContains(t, err, "cannot resume from "+filepath.Join(dir, "ckpt-6")+", also despite differences: ")
		require.ErrorContains(t, err, c.words)
		require.NotContains(t, err.Error(), "ResumeAnyway")
		require.Equal(t, before, names(t, dir))
	}
}
