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
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			if name == filepath.Join("ckpt-6", stateFile) && kind == "last byte" {
				continue // a line break does not matter
			}
			dir := copyDir(t, whole)
			if tear == nil {
				require.NoError(t, os.Remove(filepath.Join(dir, name)))
			} else {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), tear(content), 0o666))
			}
			found, err := checkpoint.List(dir)
			require.NoError(t, err)
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
			found, err := checkpoint.List(dir)
			require.NoError(t, err)
			require.ErrorIs(t, found[0].Err, syscall.ELOOP)
			require.NotErrorIs(t, found[0].Err, checkpoint.ErrTorn)

			before := names(t, dir)
			l := newLinear()
			loop.Session, loop.Epochs = l, 5
			_, err = loop.Run(t.Context(), samples(t, 8))
			require.ErrorIs(t, err, syscall.ELOOP)
			require.NotErrorIs(t, err, checkpoint.ErrTorn)
			require.ErrorContains(t, err, "cannot resume from "+filepath.Join(dir, "ckpt-6"))
			require.ErrorContains(t, err, "move it out of "+dir)
			require.NotContains(t, err.Error(), "damaged")
			require.Empty(t, l.steps)
			require.Equal(t, before, names(t, dir))
		}
	}
}

// An older checkpoint that cannot be read stays, and causes a warning.
func TestAnOlderCheckpointThatCannotBeRead(t *testing.T) {
	dir, loop := checkpointed(t, Checkpoint{})
	older := names(t, dir)[0]
	require.NotEqual(t, "ckpt-6", older)
	path := filepath.Join(dir, older, stateFile)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink(stateFile, path))
	var log bytes.Buffer
	loop.Session, loop.Epochs, loop.Log = newLinear(), 5, warnings(&log)
	complete(t, &loop, samples(t, 8))
	require.Contains(t, log.String(), "a checkpoint that cannot be used is ignored")
	require.Contains(t, log.String(), older)
	require.Contains(t, names(t, dir), older)
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
	for _, c := range []struct {
		keys   []string
		change func(*Loop) data.Dataset
	}{
		{[]string{"batch", "steps_per_epoch"}, set(func(l *Loop, _ *linear) { l.Batch = 2 })},
		{[]string{"steps_per_epoch"}, set(func(l *Loop, _ *linear) { l.StepsPerEpoch = 1 })},
		{[]string{"drop_remainder"}, set(func(l *Loop, _ *linear) { l.DropRemainder = true })},
		{[]string{"session.seed"}, set(func(_ *Loop, s *linear) { s.seed = "2" })},
		{[]string{"validation"}, set(func(l *Loop, _ *linear) { l.Validation = samples(t, 4) })},
		{[]string{"data"}, with(samples(t, 8).Shuffle(1))},
		{[]string{"data"}, with(samples(t, 7))},
		{[]string{"data"}, with(edited(t, samples(t, 8), 7))},
		{[]string{"data", "data.fields"}, func(*Loop) data.Dataset {
			x, y := fieldsOf(t, samples(t, 8))
			return table(t, "line8", x, y, data.Field{Name: "z", Array: y.Array})
		}},
		{[]string{"data", "steps_per_epoch"}, with(samples(t, 24))},
		{[]string{"data", "steps_per_epoch"}, with(samples(t, 4))},
		{[]string{"metrics"}, set(func(_ *Loop, s *linear) { s.names = []string{"loss", "error"} })},
		{[]string{"metrics"}, set(func(_ *Loop, s *linear) { s.names = []string{"loss"} })},
		{[]string{"session.model"}, set(func(l *Loop, s *linear) { l.Session = checkedModel{renamed{s, nil}} })},
	} {
		dir, loop := checkpointed(t, Checkpoint{})
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

// Another precision or schedule does not match. A run whose schedule is unknown matches.
func TestPrecisionAndScheduleAreCompared(t *testing.T) {
	type run struct {
		precision string
		rate      schedule
		text      string
	}
	noted := run{"float32", Constant(0.05), "0.05"}
	for _, c := range []struct {
		name          string
		before, after run
		want          string // text in the error; empty if the run resumes
	}{
		{"same", noted, noted, ""},
		{"a run that does not say", noted, run{"float32", Constant(0.01), ""}, ""},
		{"precision", noted, run{"bfloat16", Constant(0.05), "0.05"},
			"session.precision: float32 in the checkpoint, bfloat16 now"},
		{"rate", noted, run{"float32", Constant(0.01), "step:0.05:0.5:2"},
			"learning_rate: 0.05 in the checkpoint, step:0.05:0.5:2 now"},
		{"no rate any more", noted, run{"float32", nil, ""}, "learning_rate: 0.05 in the checkpoint, that of the model now"},
		{"a rate", run{"float32", nil, ""}, noted, "learning_rate: that of the model in the checkpoint, 0.05 now"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := tempDir(t)
			train := func(as run, epochs int, anyway bool) (*History, error) {
				l := newLinear()
				l.precision = as.precision
				loop := Loop{Session: l, Batch: 4, Epochs: epochs, Resume: dir, LearningRate: as.rate, LearningRateText: as.text,
					ResumeAnyway: anyway}
				loop.Hook(Checkpoint{Folder: dir}.Hook())
				return loop.Run(t.Context(), samples(t, 8))
			}
			_, err := train(c.before, 1, false)
			require.NoError(t, err)
			_, err = train(c.after, 2, false)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			var mismatch *mismatchError
			require.ErrorAs(t, err, &mismatch)
			require.ErrorContains(t, err, c.want)
			require.Len(t, mismatch.differences, 1)
			h, err := train(c.after, 2, true)
			require.NoError(t, err)
			require.Equal(t, []string{forcedEvent}, h.Records[1].Events)
		})
	}
}
